//! Macvtap: a device plugin and a CNI plugin (operands §6).

use api::network_addons::NetworkAddonsConfigSpec;

use super::{Component, Context};
use crate::{
    cluster_facts::Cluster,
    manifest::{Error, Manifest},
};

/// ConfigMap of the device plugin when the specification names none.
const DEVICE_PLUGIN_CONFIG: &str = "macvtap-deviceplugin-config";

/// See the module.
pub struct Macvtap;

impl Component for Macvtap {
    fn name(&self) -> &'static str {
        "macvtap"
    }

    fn enabled(&self, spec: &NetworkAddonsConfigSpec) -> bool {
        spec.macvtap.is_some()
    }

    fn validate(&self, spec: &NetworkAddonsConfigSpec, cluster: &Cluster) -> Vec<String> {
        if self.enabled(spec) && cluster.openshift_network.is_some() {
            vec!["`macvtap` has been requested, but is not supported on OpenShift".into()]
        } else {
            Vec::new()
        }
    }

    fn defaults(
        &self,
        spec: &mut NetworkAddonsConfigSpec,
        previous: Option<&NetworkAddonsConfigSpec>,
        _random: [u8; 2],
    ) {
        let Some(macvtap) = &mut spec.macvtap else { return };
        if macvtap.device_plugin_config.is_empty() {
            let before = previous.and_then(|spec| spec.macvtap.as_ref());
            macvtap.device_plugin_config = before
                .map(|macvtap| macvtap.device_plugin_config.clone())
                .filter(|name| !name.is_empty())
                .unwrap_or_else(|| DEVICE_PLUGIN_CONFIG.to_owned());
        }
    }

    fn render(&self, _context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
        Ok(Vec::new())
    }

    fn deployed(&self) -> bool {
        false
    }
}
