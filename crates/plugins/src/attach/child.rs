//! A link in the pod with a parent link: macvlan, ipvlan and vlan (cni-plugins §9, §15).

use std::str::FromStr;

use cni::{
    Error,
    plugin::Call,
    result::{CniResult, Dns},
};
use linux::{
    arp,
    link::{InvalidMode, KindState, Link, LinkKind, Mac, MacVlanMode},
};

use super::{CreatedLink, Inspection, LinkRequest, NewLink, Parent, Settings, Stage};
use crate::{ipam, names::MACVLAN};

/// A link with a parent.
pub(crate) struct Child {
    /// The kind's name in errors.
    pub(crate) what: &'static str,

    pub(crate) kind: LinkKind<'static>,
    /// The state that the kernel is expected to report.
    pub(crate) state: KindState,
    /// The state's name in errors of CHECK: `container macvlan mode`.
    pub(crate) state_name: &'static str,

    pub(crate) parent: Parent,

    pub(crate) mac: Option<Mac>,
    /// The config's DNS settings, which replace those of IPAM even if empty.
    pub(crate) dns: Dns,
    /// Announces the addresses to neighbours.
    pub(crate) announces: bool,
    /// Addresses from `prevResult`, for a config without IPAM.
    pub(crate) inherited: Option<CniResult>,
    /// Prefix of IPAM errors.
    pub(crate) ipam_failed: Option<&'static str>,
}

impl Child {
    /// A macvlan link with a MAC that the kernel chooses.
    pub(crate) fn macvlan(mode: MacVlanMode, parent: Parent, dns: Dns) -> Self {
        Child {
            what: MACVLAN,
            kind: LinkKind::MacVlan {
                mode,
                broadcast_queue: None,
            },
            state: KindState::MacVlan(mode),
            state_name: "container macvlan mode",
            parent,
            mac: None,
            dns,
            announces: true,
            inherited: None,
            ipam_failed: None,
        }
    }
}

/// Parses the config's optional mode. `what` is the kind of link, for the error.
pub(crate) fn mode<T: FromStr<Err = InvalidMode>>(what: &str, named: &str, default: T) -> Result<T, Error> {
    if named.is_empty() {
        return Ok(default);
    }
    let invalid = |InvalidMode(mode)| Error::internal(format!("unknown {what} mode: \"{mode}\""));
    named.parse().map_err(invalid)
}

impl LinkRequest for Child {
    fn settings(&self) -> Settings {
        Settings::with_dns(&self.dns)
    }

    fn kind(&self) -> Option<&'static str> {
        Some(self.what)
    }

    fn make(&mut self, stage: &mut Stage<'_>) -> Result<CreatedLink, Error> {
        let parent = self.parent.find(&mut stage.host, &mut stage.pod)?;
        let link = stage.make_link(&NewLink {
            kind: self.kind,
            what: self.what,
            mac: self.mac,
            mtu: parent.mtu,
            parent: Some(&parent),
        })?;
        Ok(CreatedLink::inside(link))
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
        // Without a configured master, the default route may have changed since ADD.
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
    fn mode_is_the_default_the_configured_one_or_an_error() {
        let read = |named| mode("macvlan", named, MacVlanMode::Bridge).map_err(|error| error.msg);
        assert_eq!(read(""), Ok(MacVlanMode::Bridge));
        assert_eq!(read("vepa"), Ok(MacVlanMode::Vepa));
        assert_eq!(read("other"), Err("unknown macvlan mode: \"other\"".into()));
    }
}
