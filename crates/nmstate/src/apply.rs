//! The one way to change a host: probes chosen, change applied, host probed, change kept or undone (nmstate §5.6).
//!
//! ```text
//!   document ──> undo what is pending ──> select probes ──> apply ──> probes pass ──> commit
//!                                                             │            └── no ──> roll back, let it settle
//!                                                             └── fails: undone by the engine
//! ```
//!
//! Whoever is killed in between leaves what the engine's next start, or NetworkManager's own time-out, undoes.

mod messages;

use std::future::pending;
use std::pin::{Pin, pin};
use std::time::Duration;

use kube::Client;
use serde_json::Value;
use tokio::sync::Mutex;

use crate::engine::{self, Backend, Engine};
use crate::failure::Failure;
use crate::names;
use crate::probes::{Chosen, Failed, LOOKS, Probe, Prober};
use crate::secrets;

/// How hosts are changed and probed.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whether hosts are probed at all.
    pub probes: bool,
    /// The name that the DNS probe looks up.
    pub dns_host: String,
    /// How long a probe may take to pass before the change, to be asked again after it.
    pub selection: Duration,
    /// How long all probes together may take to pass after the change.
    pub patience: Duration,
    /// Time between two attempts of a probe.
    pub pause: Duration,
    /// The way to the API server for clients without connections; without it probes ask by the one that there is.
    pub cluster: Option<kube::Config>,
    /// How the host is configured: what the kernel alone keeps is gone with the host's restart, and says so.
    pub backend: Backend,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            probes: true,
            dns_host: names::PROBE_HOST.to_owned(),
            selection: Duration::from_secs(10),
            patience: Duration::from_secs(120),
            pause: Duration::from_secs(1),
            cluster: None,
            backend: Backend::default(),
        }
    }
}

/// The one way to change a host.
pub struct Pipeline {
    engine: Engine,
    prober: Prober,
    backend: Backend,
    /// One change at a time, from the choice of probes to the commit: what is pending belongs to whoever holds it.
    /// It has to be held while the host is waited for, so it is one that waits without blocking the thread.
    turn: Mutex<()>,
}

impl Pipeline {
    /// A way to change the host that the engine works on, which is the node of this name.
    pub fn new(engine: Engine, client: Client, node: String, settings: Settings) -> Self {
        let backend = settings.backend;
        Self {
            prober: Prober::new(engine.clone(), client, node, settings),
            engine,
            backend,
            turn: Mutex::new(()),
        }
    }

    /// Makes the host what the document says, and returns what the condition of the success says. When the host does
    /// not get through its probes afterwards, the change is undone.
    ///
    /// # Errors
    /// When the document is refused, the change fails, or the host was cut off by it: then the host is as before.
    pub async fn apply(&self, desired: &Value) -> Result<String, Failure> {
        self.apply_until(desired, pending()).await
    }

    /// Like [`Self::apply`], until `superseded` ends: what is changed and not yet committed by then is rolled back, which
    /// is a failure. Only the library's own work is not interrupted.
    ///
    /// # Errors
    /// See [`Self::apply`].
    pub(crate) async fn apply_until(
        &self,
        desired: &Value,
        superseded: impl Future<Output = ()>,
    ) -> Result<String, Failure> {
        let _turn = self.turn.lock().await;
        self.change(desired, pin!(superseded)).await
    }

    /// Like [`Self::apply`], unless that is no longer wanted when it is its turn: then nothing is done, and that is
    /// `None`.
    ///
    /// # Errors
    /// See [`Self::apply`].
    pub(crate) async fn apply_if(
        &self,
        desired: &Value,
        wanted: impl Future<Output = bool>,
    ) -> Option<Result<String, Failure>> {
        let _turn = self.turn.lock().await;
        if !wanted.await {
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
        // Whoever did not commit, did not want it: a handler that was killed, or somebody who tried something. What it
        // did to the host must not decide what the host is asked for afterwards.
        if engine.rollback().await.is_ok() {
            tracing::info!("rolled back a change that nobody committed");
        }
        let Chosen { probes, looks } = tokio::select! {
            biased;
            () = &mut superseded => return Err(not_wanted()),
            chosen = prober.select(desired) => chosen,
        };
        let failed = |error: engine::Error| Failure::of(&error, desired);
        engine.apply(desired.clone()).await.map_err(failed)?;
        let passed = tokio::select! {
            biased;
            passed = prober.pass(&probes, looks) => passed,
            () = &mut superseded => {
                tracing::info!("rolling back a change that is not wanted any more");
                let mut failure = not_wanted();
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

    /// Undoes a change that cut the host off, and waits until it is back.
    async fn undo(&self, why: &Failed, probes: &[Probe], desired: &Value) -> Failure {
        tracing::warn!(probe = %why.probe, cause = %why.cause, "rolling back");
        let mut text = messages::rolled_back(why);
        let mut has_api_server = self.roll_back(&mut text).await;
        if has_api_server && let Err(still) = self.prober.pass(probes, LOOKS).await {
            text.push_str(&messages::not_settled(&still));
            has_api_server = !still.lost_api_server;
        }
        Failure {
            text: secrets::hidden_in(&text, desired),
            // An API server that is there again without the change was lost by the change: another attempt would cut the
            // host off again. One that stays away may have other reasons.
            retry: !(why.lost_api_server && has_api_server),
        }
    }

    /// Undoes a change; `false` when that fails, which `text` says then.
    async fn roll_back(&self, text: &mut String) -> bool {
        let Err(error) = self.engine.rollback().await else {
            return true;
        };
        tracing::error!("Rolling back network configuration, manual intervention needed: {error}");
        text.push_str(&messages::not_rolled_back(&error));
        false
    }

    /// What of the document the host does not have yet; an empty object when there is nothing to change.
    ///
    /// # Errors
    /// When the document is refused, or the host's state can't be had.
    pub async fn diff(&self, desired: &Value) -> Result<Value, Failure> {
        let diff = self.engine.diff(desired.clone()).await;
        diff.map_err(|error| Failure::of(&error, desired))
    }
}

/// A change that was given up.
fn not_wanted() -> Failure {
    Failure {
        text: messages::SUPERSEDED.to_owned(),
        retry: true,
    }
}

/// Whether a document asks for nothing.
pub fn is_empty(document: &Value) -> bool {
    match document {
        Value::Null => true,
        Value::Object(members) => members.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests;
