//! KubeVirt IPAM: addresses that virtual machines keep (operands §8).

use api::network_addons::NetworkAddonsConfigSpec;

use super::{Component, Context};
use crate::manifest::{Error, Manifest};

/// See the module.
pub struct KubevirtIpamController;

impl Component for KubevirtIpamController {
    fn name(&self) -> &'static str {
        "kubevirtIpamController"
    }

    fn enabled(&self, spec: &NetworkAddonsConfigSpec) -> bool {
        spec.kubevirt_ipam_controller.is_some()
    }

    fn render(&self, _context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
        Ok(Vec::new())
    }

    fn deployed(&self) -> bool {
        false
    }
}
