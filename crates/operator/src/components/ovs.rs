//! Open vSwitch: CNI plugins, and a marker that advertises bridges as resources (operands §5).

use api::network_addons::NetworkAddonsConfigSpec;

use super::{Component, Context};
use crate::manifest::{Error, Manifest};

/// See the module.
pub struct Ovs;

impl Component for Ovs {
    fn name(&self) -> &'static str {
        "ovs"
    }

    fn enabled(&self, spec: &NetworkAddonsConfigSpec) -> bool {
        spec.ovs.is_some()
    }

    fn render(&self, _context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
        Ok(Vec::new())
    }

    fn deployed(&self) -> bool {
        false
    }
}
