//! The devices that kubelet and resource claims allocated to a pod, and their assignment to its networks (multus.md
//! §4.1, §4.4).
//!
//! ```text
//! networks with a resourceName ──> kubelet: its socket, else its checkpoint
//! claims of the pod ────────────────> API server: ResourceClaims, ResourceSlices
//!                                    └──> IDs by resource ── in list order ──> deviceID, pciBusID
//! ```

use crate::cluster::{ClusterView, Pod};
use crate::execution::workers::{self, Workers};
use crate::networks::delegate::{self, Delegate};
use crate::sandbox::PodRef;
use kube_kit::grpc;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

mod checkpoint;
pub(crate) mod claims;
pub mod pod_resources;

/// Default of kubelet's directory.
const KUBELET_DIR: &str = "/var/lib/kubelet";

/// The devices of a pod are unknown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Kubelet's pod-resources API failed.
    #[error("getPodResources: failed to list pod resources, {0}")]
    PodResources(#[from] grpc::Error),
    /// Kubelet's checkpoint is unusable.
    #[error("{0}")]
    Checkpoint(#[from] checkpoint::Error),
    /// The pod's resource claims are unusable.
    #[error("{0}")]
    Claims(#[from] claims::Error),
    /// The checkpoint could not be read in time.
    #[error("{0}")]
    Work(#[from] workers::Error),
}

/// Device IDs of one pod by resource, unique and ascending. Other components that assign the same devices rely on
/// that order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Devices(BTreeMap<String, BTreeSet<String>>);

impl Devices {
    /// Adds a device. Init containers and containers may share one.
    fn add(&mut self, resource: &str, device: String) {
        self.0.entry(resource.to_owned()).or_default().insert(device);
    }

    /// Adds the devices of the pod's resource claims. Unavailable claims (an API server without them, or no
    /// permission) are an error only if a network would lack a device.
    pub async fn add_claimed(
        &mut self,
        pod: &Pod,
        networks: &[Delegate],
        cluster: &impl ClusterView,
    ) -> Result<(), Error> {
        let Some(claims) = &pod.claims else {
            return Ok(());
        };
        let mut all = self.clone();
        match claims.add_to(&mut all, &pod.namespace, cluster).await {
            Ok(()) => *self = all,
            Err(error) if error.is_refused() && self.suffice_for(networks) => {
                tracing::warn!(pod = pod.name, %error, "cannot read the pod's resource claims, its networks do not need them");
            }
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    /// Whether each network with a resource would get a device of it.
    fn suffice_for(&self, networks: &[Delegate]) -> bool {
        let mut wanted = BTreeMap::<&str, usize>::new();
        for resource in networks
            .iter()
            .filter_map(|network| network.resource_name.as_deref())
        {
            *wanted.entry(resource).or_default() += 1;
        }
        wanted.iter().all(|(resource, count)| {
            self.0
                .get(*resource)
                .is_some_and(|devices| devices.len() >= *count)
        })
    }

    /// Assigns to each network with a resource the next device of it, in list order. A network gets none when no
    /// device is left.
    pub fn give_to(&self, networks: &mut [Delegate]) -> Result<(), delegate::Error> {
        let mut left: BTreeMap<&str, _> = self
            .0
            .iter()
            .map(|(resource, devices)| (resource.as_str(), devices.iter()))
            .collect();
        for network in networks {
            let resource = network.resource_name.as_deref();
            let devices = resource.and_then(|resource| left.get_mut(resource));
            if let Some(device) = devices.and_then(Iterator::next) {
                network.set_device(device.clone())?;
            }
        }
        Ok(())
    }
}

/// The kubelet of this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kubelet {
    dir: PathBuf,
}

impl Default for Kubelet {
    fn default() -> Self {
        Self::at(KUBELET_DIR.into())
    }
}

impl Kubelet {
    /// A kubelet with another directory.
    pub fn at(dir: PathBuf) -> Self {
        Self { dir }
    }

    /// The devices that it allocated to a pod. The checkpoint is read only without a socket, because it may be stale.
    pub async fn devices_of(&self, pod: &PodRef, workers: &Workers) -> Result<Devices, Error> {
        let socket = self.dir.join(pod_resources::SOCKET);
        if socket.exists() {
            return Ok(pod_resources::devices_of(&socket, pod).await?);
        }
        let (dir, pod) = (self.dir.clone(), pod.clone());
        Ok(workers
            .run(&pod.namespace.clone(), move || checkpoint::devices_of(&dir, &pod))
            .await??)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::networks::delegate::Config;
    use serde_json::{Value, json};

    fn network(resource: Option<&str>, config: &Value) -> Delegate {
        let config = Config::parse(config.to_string().as_bytes()).unwrap();
        let mut network = Delegate::new("ns/net".into(), config);
        network.resource_name = resource.map(Into::into);
        network
    }

    fn config(network: &Delegate) -> Value {
        serde_json::from_str(&network.config.object().to_json()).unwrap()
    }

    #[test]
    fn networks_get_devices_in_order() {
        // multus#23
        let mut devices = Devices::default();
        for (resource, device) in [
            ("x.io/r", "b"),
            ("x.io/r", "a"),
            ("x.io/other", "o"),
            ("x.io/r", "b"),
        ] {
            devices.add(resource, device.into());
        }
        let single = json!({"type": "p", "name": "n"});
        let chain = json!({"name": "n", "plugins": [{"type": "p"}, {"type": "q"}]});
        let mut networks = vec![
            network(None, &single),
            network(Some("x.io/r"), &single),
            network(Some("x.io/unknown"), &single),
            network(Some("x.io/r"), &chain),
            network(Some("x.io/r"), &single),
        ];
        for index in [1, 4] {
            networks[index].requests.device_id = Some("asked-for".into());
        }
        devices.give_to(&mut networks).unwrap();
        let given: Vec<_> = networks
            .iter()
            .map(|network| network.device_id.as_deref())
            .collect();
        assert_eq!(given, [None, Some("a"), None, Some("b"), None]);
        // The pod's requested device applies only without an allocated one, and changes no configuration.
        assert_eq!(
            (networks[1].device(), networks[4].device()),
            (Some("a"), Some("asked-for"))
        );
        assert_eq!(config(&networks[4]), single);
        assert_eq!(
            config(&networks[1]),
            json!({"type": "p", "name": "n", "deviceID": "a", "pciBusID": "a"})
        );
        assert_eq!(
            config(&networks[3])["plugins"],
            json!([{"type": "p", "deviceID": "b", "pciBusID": "b"}, {"type": "q", "deviceID": "b", "pciBusID": "b"}])
        );
        assert_eq!(config(&networks[0]), single);
        assert_eq!(config(&networks[2]), single);
    }
}
