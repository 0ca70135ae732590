//! What people ask the library for at a terminal (nmstate §4.6), and what is computed for a host that is not this one.

use nmstate::{NetworkPolicy, NetworkState};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::library::{configured, current, document, filled, from, lacking, retrieved, state_of, to};
use super::{Backend, Error, MALFORMED, order};

/// A wish of somebody at a terminal. Where the current state is not given, it is this host's.
#[derive(Clone, Debug, PartialEq)]
pub enum Tool {
    /// The state of the host.
    Show {
        /// Without what was leased or learned.
        running_config_only: bool,
        /// With passwords and keys.
        secrets: bool,
    },
    /// Makes the host what a document or a policy says. The answer is the document.
    Apply {
        /// Document, or policy with `desiredState`.
        desired: Value,
        /// How.
        options: Options,
    },
    /// Keeps what was applied under this checkpoint; an empty name is the last one.
    Commit(String),
    /// Undoes what was applied under this checkpoint; an empty name is the last one.
    Rollback(String),
    /// Fills in a policy. The answer has `desired` and `captured`.
    Policy {
        /// `capture` and `desiredState`.
        policy: Value,
        /// The state that captures look at.
        current: Option<Value>,
        /// What captures found before, by name.
        captured: Map<String, Value>,
    },
    /// The document as the library writes it.
    Format(Value),
    /// Files that configure a host so before it starts, by backend.
    Configuration(Value),
    /// What undoes a document.
    Revert {
        /// The document.
        desired: Value,
        /// What is there before it.
        current: Option<Value>,
    },
    /// Topologies and features that a document uses.
    Statistic {
        /// The document.
        desired: Value,
        /// What is there before it.
        current: Option<Value>,
    },
    /// What of a document is not there yet, told as [`Request::Diff`](super::Request::Diff) tells it.
    Diff {
        /// The document.
        desired: Value,
        /// What is there.
        current: Option<Value>,
    },
}

/// How a document is applied.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub struct Options {
    /// Whether the change is kept; otherwise it is undone when the time is over.
    pub commit: bool,
    /// That time, in seconds.
    pub timeout: u32,
    /// Whether it is checked that the host became what was asked for.
    pub verify: bool,
    /// Whether the change is forgotten with the next start of the host.
    pub memory_only: bool,
    /// Whether what is not said of an interface is reset.
    pub replace: bool,
    /// Whether the answer has passwords and keys.
    pub secrets: bool,
}

pub(super) async fn answer(backend: Backend, tool: Tool) -> Result<Value, Error> {
    match tool {
        Tool::Show {
            running_config_only,
            secrets,
        } => {
            let mut state = state_of(backend);
            state.set_running_config_only(running_config_only);
            state.set_include_secrets(secrets);
            Ok(order::put(from(&retrieved(state).await?)?))
        }
        Tool::Apply { desired, options } => apply(backend, desired, options).await,
        Tool::Commit(checkpoint) => {
            NetworkState::checkpoint_commit_async(&checkpoint).await?;
            Ok(Value::String(checkpoint))
        }
        Tool::Rollback(checkpoint) => {
            NetworkState::checkpoint_rollback_async(&checkpoint).await?;
            Ok(Value::String(checkpoint))
        }
        Tool::Policy {
            policy,
            current,
            captured,
        } => fill(backend, policy, current, captured).await,
        Tool::Format(value) if is_policy(&value) => from(&to::<NetworkPolicy>(value)?),
        Tool::Format(value) => from(&document(&value)?),
        Tool::Configuration(desired) => from(&document(&desired)?.gen_conf()?),
        Tool::Revert { desired, current } => {
            let before = before(backend, current).await?;
            from(&document(&desired)?.generate_revert(&before)?)
        }
        Tool::Statistic { desired, current } => {
            let before = before(backend, current).await?;
            let statistic = document(&desired)?.statistic(&before)?;
            Ok(json!({ "topology": from(&statistic.topology)?, "features": from(&statistic.features)? }))
        }
        Tool::Diff { desired, current } => {
            let there = state(backend, current).await?;
            lacking(&document(&desired)?, &there)
        }
    }
}

/// Whether a document is a policy: what is wanted stands under a key of its own.
fn is_policy(value: &Value) -> bool {
    ["desiredState", "desired", "capture"]
        .iter()
        .any(|key| value.get(key).is_some())
}

async fn apply(backend: Backend, desired: Value, options: Options) -> Result<Value, Error> {
    let desired = if is_policy(&desired) {
        let mut filled = fill(backend, desired, None, Map::new()).await?;
        filled["desired"].take()
    } else {
        desired
    };
    let mut state = document(&desired)?;
    state.set_kernel_only(backend == Backend::Kernel);
    state.set_commit(options.commit);
    state.set_timeout(options.timeout);
    state.set_verify_change(options.verify);
    state.set_memory_only(options.memory_only);
    state.set_override_iface(options.replace);
    // Large enough to be kept off the stack.
    Box::pin(state.apply_async()).await?;
    if !options.secrets {
        state.hide_secrets();
    }
    from(&state)
}

/// A policy as people write it into a file.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Policy {
    #[serde(default)]
    capture: Map<String, Value>,
    #[serde(default, alias = "desiredState")]
    desired: Map<String, Value>,
    current: Option<Value>,
}

async fn fill(
    backend: Backend,
    policy: Value,
    current: Option<Value>,
    captured: Map<String, Value>,
) -> Result<Value, Error> {
    let policy: Policy = to(policy)?;
    let captured = captured
        .iter()
        .map(|(name, state)| Ok((name.clone(), reported(state)?)));
    let captured = captured.collect::<Result<_, Error>>()?;
    let current = current.or(policy.current);
    let host = async || state(backend, current).await;
    let desired = policy.desired.into();
    // Large enough to be kept off the stack.
    let filled = Box::pin(filled(&policy.capture, &desired, captured, host)).await?;
    Ok(json!({ "desired": filled.desired, "captured": filled.captured }))
}

/// The given state, or all that this host has.
async fn state(backend: Backend, given: Option<Value>) -> Result<NetworkState, Error> {
    match given {
        Some(given) => reported(&given),
        None => current(backend).await,
    }
}

/// The given state, or what this host was configured to have.
async fn before(backend: Backend, given: Option<Value>) -> Result<NetworkState, Error> {
    match given {
        Some(given) => reported(&given),
        None => configured(backend).await,
    }
}

/// A state that somebody reported, which a newer or older library may have written: what this one does not know of an
/// interface is left out, and what cannot be read at all is said.
fn reported(state: &Value) -> Result<NetworkState, Error> {
    let mut error = match document(state) {
        Ok(state) => return Ok(state),
        Err(error) => error,
    };
    let mut readable = state.clone();
    if let Some(Value::Array(interfaces)) = readable.get_mut("interfaces") {
        interfaces.retain(|interface| document(&json!({ "interfaces": [interface] })).is_ok());
        error = match document(&readable) {
            Ok(state) => return Ok(state),
            Err(error) => error,
        };
    }
    Err(Error {
        kind: MALFORMED.to_owned(),
        ..error
    })
}
