//! Documents and states of hosts as values of the nmstate library.

use std::collections::HashMap;

use nmstate::{NetworkPolicy, NetworkState, NmstateError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::{Backend, Error, Filled, MALFORMED, difference, expression, mistake, order, trunk};

/// The complete state of the host, with secrets hidden.
pub(super) async fn current(backend: Backend) -> Result<NetworkState, Error> {
    retrieved(state_of(backend)).await
}

/// The configured state of the host, without leased or learned parts.
pub(super) async fn configured(backend: Backend) -> Result<NetworkState, Error> {
    let mut state = state_of(backend);
    state.set_running_config_only(true);
    retrieved(state).await
}

/// A state to be retrieved.
pub(super) fn state_of(backend: Backend) -> NetworkState {
    let mut state = NetworkState::new();
    state.set_kernel_only(backend == Backend::Kernel);
    state
}

/// Retrieves a state from the host.
pub(super) async fn retrieved(mut state: NetworkState) -> Result<NetworkState, Error> {
    state.retrieve_async().await?;
    Ok(state)
}

pub(super) async fn report(backend: Backend) -> Result<Value, Error> {
    let state = current(backend).await?;
    Ok(order::put(from(&state)?))
}

/// Fills in a document with given results of captures, or evaluates them on the state of `host`.
pub(super) async fn filled(
    capture: &Map<String, Value>,
    desired: &Value,
    captured: HashMap<String, NetworkState>,
    host: impl AsyncFnOnce() -> Result<NetworkState, Error>,
) -> Result<Filled, Error> {
    let explained = |error: Error| expression::explained(error, capture);
    let found = if captured.is_empty() && !capture.is_empty() {
        if let Some(missing) = expression::missing(capture) {
            return Err(missing);
        }
        let expressions: NetworkPolicy = to(json!({ "capture": capture })).map_err(explained)?;
        let found = expressions.capture.execute(&host().await?);
        found.map_err(|error| explained(error.into()))?
    } else {
        captured
    };
    let policy: NetworkPolicy = to(json!({ "desiredState": desired }))?;
    let filled = policy.desired.fill_with_captured_data(&found).map_err(|error| {
        // If the template itself is malformed, the position in it is known.
        match read(desired) {
            Err(same) if same.msg().ends_with(error.msg()) => malformed(&same, desired),
            _ => error.into(),
        }
    });
    let desired = from(&filled?)?;
    let captured = found.iter().map(|(name, state)| Ok((name.clone(), from(state)?)));
    Ok(Filled {
        desired,
        captured: captured.collect::<Result<Map<_, _>, Error>>()?,
    })
}

/// The part of a desired state that a host with the state `now` lacks.
pub(super) fn lacking(desired: &NetworkState, now: &NetworkState) -> Result<Value, Error> {
    let mut difference = from(&desired.gen_diff(now)?)?;
    let mut now = from(now)?;
    trunk::gather(&mut difference);
    trunk::gather(&mut now);
    Ok(difference::remaining(&difference, &now))
}

/// Parses a document.
pub(super) fn document(document: &Value) -> Result<NetworkState, Error> {
    read(document).map_err(|error| malformed(&error, document))
}

fn read(document: &Value) -> Result<NetworkState, NmstateError> {
    Ok(serde_json::from_value(document.clone())?)
}

/// The parser's error with the path of the mistake.
fn malformed(error: &NmstateError, document: &Value) -> Error {
    let complaint = |document: &Value| read(document).err().map(|error| error.msg().to_owned());
    let place = mistake::path(document, &complaint);
    let place = place.map(|place| format!("{place}: ")).unwrap_or_default();
    Error::new(MALFORMED, format!("{}: {place}{}", error.kind(), error.msg()))
}

pub(super) fn to<T: DeserializeOwned>(value: Value) -> Result<T, Error> {
    serde_json::from_value(value).map_err(|error| NmstateError::from(error).into())
}

pub(super) fn from<T: Serialize>(value: &T) -> Result<Value, Error> {
    serde_json::to_value(value).map_err(|error| NmstateError::from(error).into())
}

impl From<NmstateError> for Error {
    fn from(error: NmstateError) -> Self {
        Self::new(&error.kind().to_string(), error.to_string())
    }
}
