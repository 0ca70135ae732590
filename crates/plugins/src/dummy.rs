//! `dummy`: creates an unconnected link in the pod, for its addresses (cni-plugins §15).

use cni::{Error, plugin::Call};
use linux::link::LinkKind;

use crate::{
    attach::{Addressing, CreatedLink, LinkPlugin, LinkRequest, NewLink, Settings, Stage, Step},
    ipam,
    messages::DUMMY_WITHOUT_IPAM,
    names::DUMMY,
};

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dummy;

/// A dummy link.
struct DummyLink;

impl LinkPlugin for Dummy {
    fn name(&self) -> &'static str {
        DUMMY
    }

    fn keys(&self) -> &'static [&'static str] {
        // Only the keys that all plugins have.
        &["name"]
    }

    fn read(&self, call: &Call) -> Result<Box<dyn LinkRequest>, Error> {
        if ipam::is_wanted(call) {
            return Ok(Box::new(DummyLink));
        }
        Err(Error::internal(DUMMY_WITHOUT_IPAM))
    }

    fn addressing(&self) -> Addressing {
        Addressing::Required
    }
}

impl LinkRequest for DummyLink {
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

    fn make(&mut self, stage: &mut Stage<'_>) -> Result<CreatedLink, Error> {
        let link = stage.make_link(&NewLink {
            kind: LinkKind::Dummy,
            what: DUMMY,
            parent: None,
            mac: None,
            mtu: None,
        })?;
        Ok(CreatedLink::inside(link))
    }
}
