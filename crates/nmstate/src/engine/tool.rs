//! Requests of people at a terminal (nmstate §4.6), and computations for other hosts.

use nmstate::{NetworkPolicy, NetworkState};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::library::{configured, current, document, filled, from, lacking, retrieved, state_of, to};
use super::{Backend, Error, MALFORMED, order};

/// A request of a person at a terminal. Without a current state, that of this host is used.
#[derive(Clone, Debug, PartialEq)]
pub enum Tool {
    /// The state of the host.
    Show {
        /// Leave out leased and learned parts.
        running_config_only: bool,
        /// Include passwords and keys.
        secrets: bool,
    },
    /// Applies a document or a policy. The answer is the document.
    Apply {
        /// A document, or a policy with `desiredState`.
        desired: Value,
        /// How to apply it.
        options: Options,
    },
    /// Commits the checkpoint of this name; an empty name is the last one.
    Commit(String),
    /// Rolls back to the checkpoint of this name; an empty name is the last one.
    Rollback(String),
    /// Fills in a policy. The answer has `desired` and `captured`.
    Policy {
        /// `capture` and `desiredState`.
        policy: Value,
        /// The state that captures are evaluated on.
        current: Option<Value>,
        /// Earlier results of captures, by name.
        captured: Map<String, Value>,
    },
    /// Formats a document.
    Format(Value),
    /// Configuration files that give a host this state at boot, by backend.
    Configuration(Value),
    /// The document that reverts another one.
    Revert {
        /// The document.
        desired: Value,
        /// The state before it.
        current: Option<Value>,
    },
    /// Topologies and features that a document uses.
    Statistic {
        /// The document.
        desired: Value,
        /// The state before it.
        current: Option<Value>,
    },
    /// The part of a document that the host lacks, like [`Request::Diff`](super::Request::Diff).
    Diff {
        /// The document.
        desired: Value,
        /// The state of the host.
        current: Option<Value>,
    },
}

/// How a document is applied.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
#[allow(clippy::struct_excessive_bools, reason = "flags of a command line")]
pub struct Options {
    /// Whether to commit; otherwise the change is rolled back after the timeout.
    pub commit: bool,
    /// The timeout, in seconds.
    pub timeout: u32,
    /// Whether to verify the result.
    pub verify: bool,
    /// Whether the change ends with the next boot.
    pub memory_only: bool,
    /// Whether to reset the unmentioned members of an interface.
    pub replace: bool,
    /// Whether the answer includes passwords and keys.
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

/// Whether a document is a policy, with the desired state under its own key.
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
    // The future is too large for the stack.
    Box::pin(state.apply_async()).await?;
    if !options.secrets {
        state.hide_secrets();
    }
    from(&state)
}

/// A policy in a file.
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
    // The future is too large for the stack.
    let filled = Box::pin(filled(&policy.capture, &desired, captured, host)).await?;
    Ok(json!({ "desired": filled.desired, "captured": filled.captured }))
}

/// The given state, or the state of this host.
async fn state(backend: Backend, given: Option<Value>) -> Result<NetworkState, Error> {
    match given {
        Some(given) => reported(&given),
        None => current(backend).await,
    }
}

/// The given state, or the configured state of this host.
async fn before(backend: Backend, given: Option<Value>) -> Result<NetworkState, Error> {
    match given {
        Some(given) => reported(&given),
        None => configured(backend).await,
    }
}

/// Parses a reported state, which a newer or older library may have written: interfaces that this one cannot parse are
/// left out. An error means that nothing can be parsed.
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
