//! KubeVirt's control plane on a test cluster: the real virt-api and virt-controller, with stand-ins for guests.
//!
//! ```text
//! control plane's machine   kube-apiserver ──webhooks, subresources──> virt-api
//!                                  │ ^─────────────────────────────── virt-controller
//!                                  └───────────────────────────────── virt-handler-stand-in
//! nodes                     launcher pods, of an image with virt-launcher-stand-in alone
//! ```
//!
//! Virtual machines, their instances, launcher pods with their networks, migrations and evictions are KubeVirt's. Only
//! the inside of pods is simulated, by the two programs in `stand-ins`. There is no virt-operator. All programs run
//! beside Kubernetes instead of in pods, so that they need no images, and end with the cluster.
//!
//! * [`Programs`] are KubeVirt's programs, built once into the cache,
//! * [`up`] starts all programs on a cluster,
//! * [`scene`] is the demonstration.

mod error;
mod installation;
mod launcher;
mod objects;
mod programs;
pub mod scene;

use std::path::PathBuf;

pub use error::{Error, Result};
pub use installation::up;
pub use programs::{Programs, VERSION};

/// KubeVirt's namespace.
pub const NAMESPACE: &str = "kubevirt";
/// Names of the stand-in programs, as Cargo builds them.
pub const HANDLER_STAND_IN: &str = "virt-handler-stand-in";
/// See [`HANDLER_STAND_IN`].
pub const LAUNCHER_STAND_IN: &str = "virt-launcher-stand-in";

/// Paths of the built stand-in programs.
#[derive(Debug, Clone)]
pub struct StandIns {
    /// [`HANDLER_STAND_IN`]
    pub handler: PathBuf,
    /// [`LAUNCHER_STAND_IN`], which must be static
    pub launcher: PathBuf,
}
