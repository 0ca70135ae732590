//! Settings of changes and probes.

use std::time::Duration;

use crate::engine::Backend;
use crate::names;

/// How hosts are changed and probed.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Whether hosts are probed.
    pub probes: bool,
    /// Name that the DNS probe resolves.
    pub dns_host: String,
    /// Time for a probe to pass before the change; otherwise it is not selected.
    pub selection_timeout: Duration,
    /// Time for all probes together to pass after the change.
    pub timeout: Duration,
    /// Interval between two attempts of a probe.
    pub pause: Duration,
    /// Configuration of the API server for new connections; without it the probes use the existing client.
    pub cluster: Option<kube::Config>,
    /// The configurator of the host: without NetworkManager, the success message warns that a change is not persistent.
    pub backend: Backend,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            probes: true,
            dns_host: names::PROBE_HOST.to_owned(),
            selection_timeout: Duration::from_secs(10),
            timeout: Duration::from_secs(120),
            pause: Duration::from_secs(1),
            cluster: None,
            backend: Backend::default(),
        }
    }
}
