//! Requests answered by the nmstate library.

use std::collections::HashMap;

use nmstate::{NetworkPolicy, NetworkState, NmstateError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout_at;

use super::journal::{self, kept};
use super::pending::Pending;
use super::{
    Backend, Error, Filled, MALFORMED, Request, Template, difference, expression, kernel, mistake, order,
    tool, trunk, version,
};

/// Answers until nobody can ask any more.
pub(super) async fn answer(
    backend: Backend,
    mut pending: Pending,
    mut requests: mpsc::UnboundedReceiver<Request>,
) {
    journal::listen();
    pending.recover().await;
    // Whoever no longer waits for the answer needs none.
    loop {
        let asked = match pending.due() {
            None => requests.recv().await,
            Some(due) => {
                let Ok(asked) = timeout_at(due, requests.recv()).await else {
                    pending.try_again().await;
                    continue;
                };
                asked
            }
        };
        let Some(request) = asked else { return };
        match request {
            Request::Versions(back) => {
                drop(back.send(kept(Value::Null, version::versions(backend)).await));
            }
            Request::Report(back) => drop(back.send(kept(Value::Null, report(backend)).await)),
            Request::Fill(template, back) => {
                let document = template.desired.clone();
                drop(back.send(kept(document, fill(backend, template)).await));
            }
            Request::Features(desired, back) => {
                drop(back.send(kept(desired.clone(), features(backend, desired)).await));
            }
            Request::Diff(desired, back) => {
                drop(back.send(kept(desired.clone(), diff(backend, desired)).await));
            }
            Request::Apply(desired, back) => {
                drop(back.send(kept(desired.clone(), pending.apply(desired)).await));
            }
            Request::Commit(back) => drop(back.send(kept(Value::Null, pending.commit()).await)),
            Request::Rollback(back) => drop(back.send(kept(Value::Null, pending.rollback()).await)),
            Request::Leave(back) => {
                drop(back.send(kept(Value::Null, pending.leave()).await));
                return;
            }
            Request::Tool(tool, back) => {
                drop(back.send(kept(Value::Null, tool::answer(backend, tool)).await));
            }
        }
    }
}

/// The state of the host, complete, with secrets hidden.
pub(super) async fn current(backend: Backend) -> Result<NetworkState, Error> {
    retrieved(state_of(backend)).await
}

/// The state of the host as far as it was configured, without what was leased or learned.
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

/// A state with what the host has.
pub(super) async fn retrieved(mut state: NetworkState) -> Result<NetworkState, Error> {
    state.retrieve_async().await?;
    Ok(state)
}

pub(super) async fn report(backend: Backend) -> Result<Value, Error> {
    let state = current(backend).await?;
    Ok(order::put(from(&state)?))
}

async fn fill(backend: Backend, template: Template) -> Result<Filled, Error> {
    let Template {
        capture,
        desired,
        captured,
    } = template;
    let captured = captured.into_iter().map(|(name, state)| Ok((name, to(state)?)));
    let captured = captured.collect::<Result<_, Error>>()?;
    filled(&capture, &desired, captured, async || current(backend).await).await
}

/// Fills in a document by what captures found, or find on a host whose state is asked for then.
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
        // Where the template itself is what can't be read, the place is known.
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

async fn features(backend: Backend, desired: Value) -> Result<Vec<String>, Error> {
    let desired = document(&desired)?;
    let statistic = desired.statistic(&configured(backend).await?)?;
    to(from(&statistic.features)?)
}

async fn diff(backend: Backend, desired: Value) -> Result<Value, Error> {
    let desired = match backend {
        Backend::NetworkManager => desired,
        Backend::Kernel => kernel::supported(desired)?,
    };
    let desired = document(&desired)?;
    lacking(&desired, &current(backend).await?)
}

/// What of a document a host does not have yet whose state is this.
pub(super) fn lacking(desired: &NetworkState, now: &NetworkState) -> Result<Value, Error> {
    let mut difference = from(&desired.gen_diff(now)?)?;
    let mut now = from(now)?;
    trunk::gather(&mut difference);
    trunk::gather(&mut now);
    Ok(difference::left(&difference, &now))
}

/// A document as the library reads it.
///
/// # Errors
/// When it is none: with the path of the mistake.
pub(super) fn document(document: &Value) -> Result<NetworkState, Error> {
    read(document).map_err(|error| malformed(&error, document))
}

fn read(document: &Value) -> Result<NetworkState, NmstateError> {
    Ok(serde_json::from_value(document.clone())?)
}

/// What is wrong with a document that can't be read, and where.
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
