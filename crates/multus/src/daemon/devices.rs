//! Assigns devices to the networks of a pod (multus.md §4.1, §4.4).

use super::Daemon;
use crate::cluster::{ClusterView, Pod};
use crate::devices;
use crate::execution::workers::Workers;
use crate::networks::delegate::{self, Delegate};
use crate::sandbox::Sandbox;

/// Devices could not be assigned.
#[derive(Debug, thiserror::Error)]
#[error("error loading k8s delegates k8s args: network {network}: getKubernetesDelegate: {cause}")]
pub(super) struct Error {
    /// The first network that needs a device.
    network: String,
    cause: Cause,
}

#[derive(Debug, thiserror::Error)]
enum Cause {
    #[error("failed to get resourceMap from ResourceClient: {0}")]
    Lookup(#[from] devices::Error),
    #[error("{0}")]
    Configuration(#[from] delegate::Error),
}

impl<C: ClusterView + 'static> Daemon<C> {
    /// Assigns the pod's devices to the networks that name a resource. Makes no request when no network does.
    pub(super) async fn give_devices(
        &self,
        sandbox: &Sandbox,
        pod: &Pod,
        networks: &mut [Delegate],
        workers: &Workers,
    ) -> Result<(), Error> {
        let Some(first) = networks.iter().find(|network| network.resource_name.is_some()) else {
            return Ok(());
        };
        let network = first.display_name.clone();
        let given = self.look_up_and_give(sandbox, pod, networks, workers).await;
        given.map_err(|cause| Error { network, cause })
    }

    async fn look_up_and_give(
        &self,
        sandbox: &Sandbox,
        pod: &Pod,
        networks: &mut [Delegate],
        workers: &Workers,
    ) -> Result<(), Cause> {
        let mut devices = self.config.kubelet.devices_of(&sandbox.pod, workers).await?;
        devices.add_claimed(pod, networks, &*self.cluster).await?;
        Ok(devices.give_to(networks)?)
    }
}
