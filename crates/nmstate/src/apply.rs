//! The pipeline: the only code that changes a host, and probes it afterwards (nmstate §5.6).
//!
//! ```text
//!   document ──> roll back uncommitted change ──> select probes ──> apply ──> probes pass ──> commit
//!                                                                     │            └── no ──> roll back, probe again
//!                                                                     └── fails: rolled back by the engine
//! ```
//!
//! After a kill, the next start of the engine or NetworkManager's timeout rolls the change back.

mod messages;

use std::future::pending;
use std::pin::{Pin, pin};

use kube::Client;
use serde_json::Value;
use tokio::sync::Mutex;

use crate::engine::{self, Backend, Engine};
use crate::failure::Failure;
use crate::probes::{CHECKS, Failed, Probe, Prober, Selection};
use crate::secrets;

pub use crate::probes::Settings;

/// Changes a host.
pub struct Pipeline {
    engine: Engine,
    prober: Prober,
    backend: Backend,
    /// Held from the selection of probes to the commit: the uncommitted change belongs to the holder. It is held across
    /// awaits, so it is an async mutex.
    lock: Mutex<()>,
}

impl Pipeline {
    /// A pipeline for the host of the engine, which is the node of this name.
    pub fn new(engine: Engine, client: Client, node: String, settings: Settings) -> Self {
        let backend = settings.backend;
        Self {
            prober: Prober::new(engine.clone(), client, node, settings),
            engine,
            backend,
            lock: Mutex::new(()),
        }
    }

    /// Applies a document, and returns the message of the success condition. If the host fails its probes afterwards,
    /// the change is rolled back.
    ///
    /// # Errors
    /// If the document is refused, the change fails, or the host was cut off: the host is then unchanged.
    pub async fn apply(&self, desired: &Value) -> Result<String, Failure> {
        self.apply_until(desired, pending()).await
    }

    /// Like [`Self::apply`], until `superseded` resolves: then an uncommitted change is rolled back, which is a
    /// failure. The library's own work is not interrupted.
    pub(crate) async fn apply_until(
        &self,
        desired: &Value,
        superseded: impl Future<Output = ()>,
    ) -> Result<String, Failure> {
        let _lock = self.lock.lock().await;
        self.change(desired, pin!(superseded)).await
    }

    /// Like [`Self::apply`], if `condition` holds once the pipeline is free. Otherwise nothing is changed, and the
    /// result is `None`.
    pub(crate) async fn apply_if(
        &self,
        desired: &Value,
        condition: impl Future<Output = bool>,
    ) -> Option<Result<String, Failure>> {
        let _lock = self.lock.lock().await;
        if !condition.await {
            return None;
        }
        Some(self.change(desired, pin!(pending())).await)
    }

    async fn change(
        &self,
        desired: &Value,
        mut superseded: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<String, Failure> {
        let Self { engine, prober, .. } = self;
        if is_empty(desired) {
            tracing::info!("{}", messages::EMPTY);
            return Ok(messages::SUCCESS.to_owned());
        }
        // An uncommitted change is one of a killed handler, or an experiment at a terminal. It must not influence the
        // selection of probes.
        if engine.rollback().await.is_ok() {
            tracing::info!("rolled back an uncommitted change");
        }
        let Selection { probes, checks } = tokio::select! {
            biased;
            () = &mut superseded => return Err(superseded_failure()),
            chosen = prober.select(desired) => chosen,
        };
        let failed = |error: engine::Error| Failure::of(&error, desired);
        engine.apply(desired.clone()).await.map_err(failed)?;
        let passed = tokio::select! {
            biased;
            passed = prober.pass(&probes, checks) => passed,
            () = &mut superseded => {
                tracing::info!("rolling back a superseded change");
                let mut failure = superseded_failure();
                self.roll_back(&mut failure.text).await;
                return Err(failure);
            }
        };
        if let Err(why) = passed {
            return Err(self.undo(&why, &probes, desired).await);
        }
        engine.commit().await.map_err(failed)?;
        Ok(match self.backend {
            Backend::NetworkManager => messages::SUCCESS.to_owned(),
            Backend::Kernel => messages::NOT_PERSISTENT.to_owned(),
        })
    }

    /// Rolls back a change that cut the host off, and waits until the host passes its probes again.
    async fn undo(&self, why: &Failed, probes: &[Probe], desired: &Value) -> Failure {
        tracing::warn!(probe = %why.probe, cause = %why.cause, "rolling back");
        let mut text = messages::rolled_back(why);
        let mut has_api_server = self.roll_back(&mut text).await;
        if has_api_server && let Err(still) = self.prober.pass(probes, CHECKS).await {
            text.push_str(&messages::not_settled(&still));
            has_api_server = !still.lost_api_server;
        }
        Failure {
            text: secrets::hidden_in(&text, desired),
            // If the API server is back without the change, the change cut the host off, and a retry would do it again.
            // If it stays away, the cause may be another one.
            retry: !(why.lost_api_server && has_api_server),
        }
    }

    /// Rolls a change back. `false` if that fails, with the error appended to `text`.
    async fn roll_back(&self, text: &mut String) -> bool {
        let Err(error) = self.engine.rollback().await else {
            return true;
        };
        tracing::error!("Rolling back network configuration, manual intervention needed: {error}");
        text.push_str(&messages::not_rolled_back(&error));
        false
    }

    /// The part of the document that the host lacks; an empty object if there is nothing to change.
    ///
    /// # Errors
    /// If the document is refused, or the host cannot be read.
    pub async fn diff(&self, desired: &Value) -> Result<Value, Failure> {
        let diff = self.engine.diff(desired.clone()).await;
        diff.map_err(|error| Failure::of(&error, desired))
    }
}

/// The failure of a superseded change.
fn superseded_failure() -> Failure {
    Failure {
        text: messages::SUPERSEDED.to_owned(),
        retry: true,
    }
}

/// Whether a document is empty.
pub fn is_empty(document: &Value) -> bool {
    match document {
        Value::Null => true,
        Value::Object(members) => members.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
