//! Dynamic networks: attaches running pods to networks (operands §2).

use api::network_addons::NetworkAddonsConfigSpec;

use super::{Component, Context};
use crate::{
    cluster_facts::Cluster,
    manifest::{Error, Manifest},
};

/// Sockets of container runtimes that are supported; the first is the default.
const CRI_SOCKETS: [&str; 3] = [
    "/run/crio/crio.sock",
    "/run/containerd/containerd.sock",
    "/run/k3s/containerd/containerd.sock",
];

/// See the module.
pub struct MultusDynamicNetworks;

impl Component for MultusDynamicNetworks {
    fn name(&self) -> &'static str {
        "multusDynamicNetworks"
    }

    fn enabled(&self, spec: &NetworkAddonsConfigSpec) -> bool {
        spec.multus_dynamic_networks.is_some()
    }

    fn validate(&self, spec: &NetworkAddonsConfigSpec, cluster: &Cluster) -> Vec<String> {
        let Some(settings) = &spec.multus_dynamic_networks else {
            return Vec::new();
        };
        let socket = settings.host_cri_socket_path.as_str();
        let error = if cluster.openshift_network.is_some() {
            "`multusDynamicNetworks` configuration is not supported on Openshift yet".to_owned()
        } else if spec.multus.is_none() {
            "the `multus` configuration is required".to_owned()
        } else if !socket.is_empty() && !CRI_SOCKETS.contains(&socket) {
            format!("`hostCRISocketPath` must be one of: {}", CRI_SOCKETS.join(", "))
        } else {
            return Vec::new();
        };
        vec![error]
    }

    fn defaults(
        &self,
        spec: &mut NetworkAddonsConfigSpec,
        previous: Option<&NetworkAddonsConfigSpec>,
        _random: [u8; 2],
    ) {
        let Some(settings) = &mut spec.multus_dynamic_networks else {
            return;
        };
        if settings.host_cri_socket_path.is_empty() {
            let before = previous.and_then(|spec| spec.multus_dynamic_networks.as_ref());
            settings.host_cri_socket_path = before
                .map(|settings| settings.host_cri_socket_path.clone())
                .filter(|path| !path.is_empty())
                .unwrap_or_else(|| CRI_SOCKETS[0].to_owned());
        }
    }

    fn render(&self, _context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
        Ok(Vec::new())
    }

    fn deployed(&self) -> bool {
        false
    }
}
