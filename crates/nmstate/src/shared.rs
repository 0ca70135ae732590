//! State of the handler that its parts share.

use std::sync::Arc;

use tokio::sync::{Notify, watch};

use crate::engine::Engine;
use crate::settings::Settings;

/// The common state of all parts of the handler. Clones share it.
#[derive(Clone)]
pub struct Shared {
    /// Name of this node.
    pub node: String,
    /// Client of the API server.
    pub client: kube::Client,
    /// The engine of this host.
    pub engine: Engine,
    /// Requests a new report.
    pub refresh: Arc<Notify>,
    /// Notifies the reporter of a possible change of the host.
    pub changed: Arc<Notify>,
    /// Number of observed starts of NetworkManager; changes that failed without it are retried then.
    pub starts: Arc<watch::Sender<u64>>,
    /// Settings from the environment.
    pub settings: Arc<Settings>,
}

impl Shared {
    /// Creates the shared state of the handler of `node`.
    pub fn new(node: &str, client: kube::Client, engine: Engine, settings: Settings) -> Self {
        Self {
            node: node.to_owned(),
            client,
            engine,
            refresh: Arc::new(Notify::new()),
            changed: Arc::new(Notify::new()),
            starts: Arc::new(watch::Sender::new(0)),
            settings: Arc::new(settings),
        }
    }
}
