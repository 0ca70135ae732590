//! Requests answered by the nmstate library.

use std::collections::HashMap;

use nmstate::{NetworkPolicy, NetworkState, NmstateError};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use tokio::sync::mpsc;

use super::{Backend, Error, Filled, Request, Template};

/// How long a change may go without being committed, in seconds; then NetworkManager undoes it.
const CHECKPOINT: u32 = 480;

/// Answers until nobody can ask any more.
pub(super) async fn answer(backend: Backend, mut requests: mpsc::UnboundedReceiver<Request>) {
    // Whoever no longer waits for the answer needs none.
    while let Some(request) = requests.recv().await {
        match request {
            Request::Report(back) => drop(back.send(report(backend).await)),
            Request::Fill(template, back) => drop(back.send(fill(backend, template).await)),
            Request::Features(desired, back) => drop(back.send(features(backend, desired).await)),
            Request::Diff(desired, back) => drop(back.send(diff(backend, desired).await)),
            Request::Apply(desired, back) => drop(back.send(apply(backend, desired).await)),
            Request::Commit(back) => {
                drop(
                    back.send(
                        NetworkState::checkpoint_commit_async("")
                            .await
                            .map_err(Error::from),
                    ),
                );
            }
            Request::Rollback(back) => {
                drop(
                    back.send(
                        NetworkState::checkpoint_rollback_async("")
                            .await
                            .map_err(Error::from),
                    ),
                );
            }
        }
    }
}

async fn current(backend: Backend) -> Result<NetworkState, Error> {
    let mut state = NetworkState::new();
    state.set_kernel_only(backend == Backend::Kernel);
    state.retrieve_async().await?;
    Ok(state)
}

async fn report(backend: Backend) -> Result<Value, Error> {
    let state = current(backend).await?;
    from(&state)
}

async fn fill(backend: Backend, template: Template) -> Result<Filled, Error> {
    let Template {
        capture,
        desired,
        captured,
    } = template;
    let policy: NetworkPolicy = to(json!({ "capture": capture, "desiredState": desired }))?;
    let found: HashMap<String, NetworkState> = if captured.is_empty() {
        policy.capture.execute(&current(backend).await?)?
    } else {
        let states = captured.into_iter().map(|(name, state)| Ok((name, to(state)?)));
        states.collect::<Result<_, Error>>()?
    };
    let desired = from(&policy.desired.fill_with_captured_data(&found)?)?;
    let captured = found.iter().map(|(name, state)| Ok((name.clone(), from(state)?)));
    Ok(Filled {
        desired,
        captured: captured.collect::<Result<Map<_, _>, Error>>()?,
    })
}

async fn features(backend: Backend, desired: Value) -> Result<Vec<String>, Error> {
    let desired: NetworkState = to(desired)?;
    let mut running = NetworkState::new();
    running.set_kernel_only(backend == Backend::Kernel);
    running.set_running_config_only(true);
    running.retrieve_async().await?;
    let statistic = desired.statistic(&running)?;
    to(from(&statistic.features)?)
}

async fn diff(backend: Backend, desired: Value) -> Result<Value, Error> {
    let desired: NetworkState = to(desired)?;
    from(&desired.gen_diff(&current(backend).await?)?)
}

async fn apply(backend: Backend, desired: Value) -> Result<(), Error> {
    let mut desired: NetworkState = to(desired)?;
    desired.set_kernel_only(backend == Backend::Kernel);
    desired.set_commit(false);
    desired.set_verify_change(true);
    desired.set_timeout(CHECKPOINT);
    // Large enough to be kept off the stack.
    Ok(Box::pin(desired.apply_async()).await?)
}

fn to<T: DeserializeOwned>(value: Value) -> Result<T, Error> {
    serde_json::from_value(value).map_err(|error| NmstateError::from(error).into())
}

fn from<T: Serialize>(value: &T) -> Result<Value, Error> {
    serde_json::to_value(value).map_err(|error| NmstateError::from(error).into())
}

impl From<NmstateError> for Error {
    fn from(error: NmstateError) -> Self {
        Self {
            kind: error.kind().to_string(),
            text: error.to_string(),
            log: String::new(),
        }
    }
}
