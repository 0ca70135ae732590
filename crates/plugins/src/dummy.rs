//! `dummy`: gives a container a link that leads nowhere, for its addresses (cni-plugins §15).

use cni::{Error, plugin::Call};
use linux::link::LinkKind;

use crate::{
    attach::{Addressing, LinkPlugin, Made, NewLink, Settings, Stage, Step, Wish},
    ipam,
    messages::DUMMY_WITHOUT_IPAM,
    names::DUMMY,
};

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dummy;

/// The link.
struct Nowhere;

impl LinkPlugin for Dummy {
    fn name(&self) -> &'static str {
        DUMMY
    }

    fn keys(&self) -> &'static [&'static str] {
        // Those that every plugin has.
        &["name"]
    }

    fn read(&self, call: &Call) -> Result<Box<dyn Wish>, Error> {
        if ipam::is_wanted(call) {
            return Ok(Box::new(Nowhere));
        }
        Err(Error::internal(DUMMY_WITHOUT_IPAM))
    }

    fn addressing(&self) -> Addressing {
        Addressing::Required
    }
}

impl Wish for Nowhere {
    fn settings(&self) -> Settings {
        Settings::default()
    }

    fn kind(&self) -> Option<&'static str> {
        Some(DUMMY)
    }

    fn occupied(&self, ifname: &str, _left: &[Step]) -> Error {
        Error::internal(format!(
            "failed to create {DUMMY}: create dummy \"{ifname}\": file exists"
        ))
    }

    fn make(&mut self, stage: &mut Stage<'_>) -> Result<Made, Error> {
        let link = stage.make_link(&NewLink {
            kind: LinkKind::Dummy,
            what: DUMMY,
            parent: None,
            mac: None,
            mtu: None,
        })?;
        Ok(Made::inside(link))
    }
}
