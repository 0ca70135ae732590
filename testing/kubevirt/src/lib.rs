//! KubeVirt's control plane on a test cluster: virt-api and virt-controller as they are, with guests that do not exist.
//!
//! ```text
//! control plane's machine   kube-apiserver ──webhooks, subresources──> virt-api
//!                                  │ ^─────────────────────────────── virt-controller
//!                                  └───────────────────────────────── virt-handler-stand-in
//! nodes                     launcher pods, of an image with virt-launcher-stand-in alone
//! ```
//!
//! Virtual machines, their instances, launcher pods with their networks, migrations and evictions are KubeVirt's own.
//! Only what happens within a pod is played: see the two programs in `stand-ins`. There is no virt-operator, and all
//! programs run beside Kubernetes, not in pods, so that they need no images; they end with the cluster.
//!
//! * [`Programs`] are KubeVirt's, built once into the cache,
//! * [`up`] brings all of it up on a cluster,
//! * [`scene`] is what a person is shown on it.

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
/// Names of the programs that play what is not there, as Cargo builds them.
pub const HANDLER_STAND_IN: &str = "virt-handler-stand-in";
/// See [`HANDLER_STAND_IN`].
pub const LAUNCHER_STAND_IN: &str = "virt-launcher-stand-in";

/// The built programs that play what is not there.
#[derive(Debug, Clone)]
pub struct StandIns {
    /// [`HANDLER_STAND_IN`]
    pub handler: PathBuf,
    /// [`LAUNCHER_STAND_IN`], which must be static
    pub launcher: PathBuf,
}
