//! From a policy of the original design to the document for this node, with the host at hand (nmstate §3.2-7).

use std::time::Duration;

use serde_json::Value;
use thiserror::Error;
use tokio::time::{Instant, sleep};
use tracing::info;

use super::policy::Policy;
use super::{auto_bond, matching, policy};
use crate::apply::Pipeline;
use crate::engine::{self, Backend, Engine};
use crate::failure::Failure;

/// Time between two looks for neighbours.
const PAUSE: Duration = Duration::from_secs(1);

/// Why there is no document.
#[derive(Debug, Error)]
pub enum Error {
    /// The policy makes no sense; it won't the next time either.
    #[error(transparent)]
    Policy(#[from] policy::Error),
    /// Bonds can't be made as the policy asks for.
    #[error(transparent)]
    Bond(#[from] auto_bond::Error),
    /// The host's state can't be had.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// LLDP can't be switched on, without which nothing can match.
    #[error("LLDP cannot be enabled: {0}")]
    Listen(Failure),
}

impl Error {
    /// Whether another attempt at the same policy makes sense.
    pub fn retry(&self) -> bool {
        match self {
            Self::Policy(_) | Self::Bond(_) => false,
            Self::Engine(_) => true,
            Self::Listen(failure) => failure.retry,
        }
    }
}

/// What a policy of the original design is on a node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Document {
    /// What is wanted there; null when there is nothing to do.
    pub desired: Value,
    /// Whether any interface of the node matches.
    pub is_matched: bool,
}

/// The document of a policy of the original design for this node; nothing when the policy is one of today's. Bridges'
/// VLANs and references to the node are not filled in yet.
///
/// A rule about neighbours' VLANs needs LLDP: it is switched on first, and neighbours have a minute. Without a
/// `pipeline`, for policies that are only tried, the host is taken as it is.
///
/// # Errors
/// See [`Error`].
pub async fn document(
    engine: &Engine,
    pipeline: Option<&Pipeline>,
    spec: &Value,
    backend: Backend,
) -> Result<Option<Document>, Error> {
    let Some(mut policy) = Policy::of(spec)? else {
        return Ok(None);
    };
    policy.veths_apart = backend == Backend::Kernel;
    let mut report = engine.report().await?;
    if let Some(pipeline) = pipeline {
        let listening = matching::listening(&policy, &report);
        if !listening.is_null() {
            info!("enabling LLDP: {listening}");
            pipeline.apply(&listening).await.map_err(Error::Listen)?;
        }
        let end = Instant::now() + matching::LLDP_PATIENCE;
        while !matching::is_heard(&policy, &report) && Instant::now() < end {
            sleep(PAUSE).await;
            report = engine.report().await?;
        }
    }
    Ok(Some(Document {
        desired: matching::document(&policy, &report)?,
        is_matched: matching::is_matched(&policy, &report),
    }))
}

#[cfg(test)]
mod tests;
