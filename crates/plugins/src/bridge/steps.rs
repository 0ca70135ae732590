//! The steps of ADD that DEL and GC take back, as they stand in an attachment's record.

use cni::Error;
use linux::route::Socket;
use serde::{Deserialize, Serialize};

use crate::messages::Explain as _;

/// A step of ADD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Step {
    /// A pair was made.
    Pair {
        /// Name of the host's end.
        port: String,
    },
}

impl Step {
    /// The host's end of the pair, in the step that makes it.
    pub(super) fn port(&self) -> Option<&str> {
        match self {
            Step::Pair { port } => Some(port),
        }
    }
}

/// Takes steps back, the last one first. A step that fails does not keep the others from being taken back; the
/// first error is returned. What is gone already is fine.
pub(super) fn undo(host: &mut Socket, steps: &[Step]) -> Result<(), Error> {
    let mut outcome = Ok(());
    for step in steps.iter().rev() {
        let undone = match step {
            Step::Pair { port } => delete_port(host, port),
        };
        outcome = outcome.and(undone);
    }
    outcome
}

/// Removes the host's end of a pair; the container's goes with it.
fn delete_port(host: &mut Socket, name: &str) -> Result<(), Error> {
    match host.delete_link_by_name(name) {
        Err(error) if error.is_not_found() => Ok(()),
        done => done.explain(|| format!("failed to delete \"{name}\"")),
    }
}
