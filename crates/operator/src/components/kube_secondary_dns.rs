//! Secondary DNS: addresses of virtual machines on secondary networks (operands §7).

use api::network_addons::NetworkAddonsConfigSpec;

use super::{Component, Context};
use crate::manifest::{Error, Manifest};

/// See the module.
pub struct KubeSecondaryDns;

impl Component for KubeSecondaryDns {
    fn name(&self) -> &'static str {
        "kubeSecondaryDNS"
    }

    fn enabled(&self, spec: &NetworkAddonsConfigSpec) -> bool {
        spec.kube_secondary_dns.is_some()
    }

    fn render(&self, _context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
        Ok(Vec::new())
    }

    fn deployed(&self) -> bool {
        false
    }
}
