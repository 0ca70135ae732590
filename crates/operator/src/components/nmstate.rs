//! Node state: interfaces of nodes by policies (operator §15).

use api::network_addons::NetworkAddonsConfigSpec;

use super::{Component, Context};
use crate::manifest::{Error, Manifest};

/// See the module.
pub struct NMState;

impl Component for NMState {
    fn name(&self) -> &'static str {
        "nmstate"
    }

    fn enabled(&self, spec: &NetworkAddonsConfigSpec) -> bool {
        spec.nmstate.is_some()
    }

    fn render(&self, _context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
        Ok(Vec::new())
    }

    fn deployed(&self) -> bool {
        false
    }
}
