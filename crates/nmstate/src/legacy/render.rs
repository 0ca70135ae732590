//! Renders a policy of the original design for this node (nmstate §3.2-7).

use std::time::Duration;

use serde_json::Value;
use thiserror::Error;
use tokio::time::{Instant, sleep};
use tracing::info;

use super::policy::OriginalPolicy;
use super::{auto_bond, matching, policy};
use crate::apply::Pipeline;
use crate::engine::{self, Backend, Engine};
use crate::failure::Failure;

/// Interval of the reads while waiting for neighbours.
const PAUSE: Duration = Duration::from_secs(1);

/// A policy cannot be rendered.
#[derive(Debug, Error)]
pub enum Error {
    /// The policy is invalid, for good.
    #[error(transparent)]
    Policy(#[from] policy::Error),
    /// The bonds cannot be created.
    #[error(transparent)]
    Bond(#[from] auto_bond::Error),
    /// The host cannot be read.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// LLDP cannot be enabled, so nothing can match.
    #[error("LLDP cannot be enabled: {0}")]
    Lldp(Failure),
}

impl Error {
    /// Whether a retry of the same policy may succeed.
    pub fn retry(&self) -> bool {
        match self {
            Self::Policy(_) | Self::Bond(_) => false,
            Self::Engine(_) => true,
            Self::Lldp(failure) => failure.retry,
        }
    }
}

/// A rendered policy of the original design.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Document {
    /// The desired state; null if there is nothing to do.
    pub desired: Value,
    /// Whether any interface of the node matches.
    pub is_matched: bool,
}

/// Renders a policy of the original design for this node; `None` for a policy of the present design. Default VLANs of
/// bridges and node variables are not filled in yet.
///
/// A rule about VLANs of neighbours needs LLDP: it is enabled first, and neighbours have a minute. Without a
/// `pipeline`, for dry runs, the host stays unchanged.
///
/// # Errors
/// See [`Error`].
pub async fn document(
    engine: &Engine,
    pipeline: Option<&Pipeline>,
    spec: &Value,
    backend: Backend,
) -> Result<Option<Document>, Error> {
    let Some(mut policy) = OriginalPolicy::of(spec)? else {
        return Ok(None);
    };
    policy.excludes_veths = backend == Backend::Kernel;
    let mut report = engine.report().await?;
    if let Some(pipeline) = pipeline {
        let lldp_document = matching::lldp_document(&policy, &report);
        if !lldp_document.is_null() {
            info!("enabling LLDP: {lldp_document}");
            pipeline.apply(&lldp_document).await.map_err(Error::Lldp)?;
        }
        let end = Instant::now() + matching::LLDP_TIMEOUT;
        while !matching::has_neighbours(&policy, &report) && Instant::now() < end {
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
