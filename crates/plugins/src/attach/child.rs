//! A link in the container that stands on another one: what macvlan, ipvlan and vlan ask for (cni-plugins §9, §15).

use std::str::FromStr;

use cni::{
    Error,
    plugin::Call,
    result::{CniResult, Dns},
};
use linux::{
    arp,
    link::{InvalidMode, KindState, Link, LinkKind, Mac},
};

use super::{Inspection, Made, NewLink, Parent, Settings, Stage, Wish};
use crate::ipam;

/// The link.
pub(crate) struct Child {
    /// The name of its kind.
    pub(crate) what: &'static str,
    /// Its kind.
    pub(crate) kind: LinkKind<'static>,
    /// The state that the kernel reports of it afterwards.
    pub(crate) state: KindState,
    /// The name of that state in errors of CHECK: `container macvlan mode`.
    pub(crate) state_name: &'static str,
    /// The link below.
    pub(crate) parent: Parent,
    /// Its address.
    pub(crate) mac: Option<Mac>,
    /// Resolver settings of the config, which are the only ones.
    pub(crate) dns: Dns,
    /// Neighbours are told of its addresses.
    pub(crate) announces: bool,
    /// Addresses of the plugin before it in the chain, for a config without IPAM.
    pub(crate) inherited: Option<CniResult>,
    /// The beginning of errors of IPAM.
    pub(crate) ipam_failed: Option<&'static str>,
}

/// The mode of a config, which may name none. `what` is the kind of link, for the error.
pub(crate) fn mode<T: FromStr<Err = InvalidMode>>(what: &str, named: &str, default: T) -> Result<T, Error> {
    if named.is_empty() {
        return Ok(default);
    }
    let invalid = |InvalidMode(mode)| Error::internal(format!("unknown {what} mode: \"{mode}\""));
    named.parse().map_err(invalid)
}

impl Wish for Child {
    fn settings(&self) -> Settings {
        Settings::with_dns(&self.dns)
    }

    fn kind(&self) -> Option<&'static str> {
        Some(self.what)
    }

    fn make(&mut self, stage: &mut Stage<'_>) -> Result<Made, Error> {
        let parent = self.parent.find(&mut stage.host, &mut stage.pod)?;
        let link = stage.make_link(&NewLink {
            kind: self.kind,
            what: self.what,
            mac: self.mac,
            mtu: parent.mtu,
            parent: Some(&parent),
        })?;
        Ok(Made::inside(link))
    }

    fn lease(&self, call: &Call) -> Result<Option<CniResult>, Error> {
        if !ipam::is_wanted(call) {
            return Ok(self.inherited.clone());
        }
        let leased = ipam::add(call).map_err(|error| match self.ipam_failed {
            Some(prefix) => error.wrapped(prefix),
            None => error,
        });
        leased.map(Some)
    }

    fn tune(&self, ifname: &str) {
        if self.announces {
            let _ = arp::enable(ifname);
        }
    }

    fn check_host(&mut self, here: &mut Inspection<'_>) -> Result<(), Error> {
        // Where none is named, the default route may have moved on since.
        if self.parent.master.is_empty() {
            return Ok(());
        }
        self.parent.find(&mut here.host, &mut here.pod).map(drop)
    }

    fn check_link(&self, _here: &mut Inspection<'_>, link: &Link) -> Result<(), Error> {
        if link.kind_state != self.state {
            return Err(Error::internal(format!(
                "{} {} does not match expected value: {}",
                self.state_name, link.kind_state, self.state
            )));
        }
        if self.parent.mtu != 0 && i64::from(link.mtu) != self.parent.mtu {
            return Err(Error::internal(format!(
                "Error: Tuning configured MTU of {} is {}, current value is {}",
                link.name, self.parent.mtu, link.mtu
            )));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use linux::link::MacVlanMode;

    use super::*;

    #[test]
    fn mode_of_a_config_is_the_default_the_named_one_or_an_error() {
        let read = |named| mode("macvlan", named, MacVlanMode::Bridge).map_err(|error| error.msg);
        assert_eq!(read(""), Ok(MacVlanMode::Bridge));
        assert_eq!(read("vepa"), Ok(MacVlanMode::Vepa));
        assert_eq!(read("other"), Err("unknown macvlan mode: \"other\"".into()));
    }
}
