//! `ovs`: attaches a pod to an Open vSwitch bridge (cni-plugins §10).
//!
//! ```text
//!   OVSDB: Bridge br1 ──> Port ──> Interface veth1a2b3c4d     external_ids: the container and the owner
//!                                      │
//!   host namespace                veth1a2b3c4d ═════════ net1 <── addresses from IPAM
//! ```
//!
//! The database keeps ports across reboots and while the switch is stopped. A port is therefore a recorded step, and
//! every call for the bridge removes ports whose pair is gone.

mod cache;
mod check;
mod config;
pub(crate) mod database;
pub(crate) mod flat_file;
mod port;
mod remove;
mod vlans;

use std::{net::IpAddr, time::Duration};

use cni::{Error, error::code, json::Object, names::key, note::Level, plugin::Call, result::CniResult};
use linux::{
    arp,
    link::{Link, Mac},
};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use self::{
    config::{Config, Target},
    database::Database,
};
use crate::{
    attach::{
        CreatedLink, Inspection, LinkPlugin, LinkRequest, Settings, Stage, Step, interface_of, occupied_pair,
    },
    ipam,
    messages::Explain as _,
    names::{OVS, ovs::MAC_PREFIX},
    record::AttachmentId,
    veth::Pair,
};

pub(crate) use cache::CacheFile;
pub(crate) use config::socket;
pub(crate) use port::find_by_name as find_port;
pub(crate) use remove::remove_recorded;

/// The part of a call's time that the wait for the link does not use: for a late answer of the database, and for the
/// rollback.
const MARGIN: Duration = Duration::from_secs(15);

/// The plugin.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Ovs;

/// The requested port.
struct Port {
    config: Config,
    /// Set after the flat file is read.
    target: Target,
    /// Set by `make`.
    pair: Pair,
    /// MAC of the pod's link, once known.
    mac: Option<Mac>,
}

impl LinkPlugin for Ovs {
    fn name(&self) -> &'static str {
        OVS
    }

    fn title(&self) -> &'static str {
        crate::names::ovs::TITLE
    }

    fn keys(&self) -> &'static [&'static str] {
        config::keys()
    }

    fn read(&self, call: &Call) -> Result<Box<dyn LinkRequest>, Error> {
        let config = Config::read(call)?;
        Ok(Box::new(Port {
            mac: config.mac,
            target: Target::default(),
            config,
            pair: Pair::default(),
        }))
    }

    fn remove_unrecorded(&self, call: &Call) -> Result<(), Error> {
        remove::unrecorded(call)
    }

    fn sweep(&self, call: &Call) {
        if let Ok(target) = Config::read(call).and_then(Config::complete) {
            remove::sweep(call, &target);
        }
    }

    /// Error 50 if the database does not answer or the bridge does not exist.
    fn status(&self, call: &Call) -> Result<(), Error> {
        let target = Config::read(call)?.complete()?;
        let usable = || Database::connect(&target.socket)?.require_bridge(&target.bridge);
        usable().map_err(|error| Error {
            code: code::PLUGIN_NOT_AVAILABLE,
            ..error
        })
    }
}

impl LinkRequest for Port {
    fn settings(&self) -> Settings {
        Settings::default()
    }

    fn kind(&self) -> Option<&'static str> {
        Some(crate::names::kind::VETH)
    }

    fn occupied(&self, ifname: &str, left: &[Step]) -> Error {
        occupied_pair(ifname, left)
    }

    fn make(&mut self, stage: &mut Stage<'_>) -> Result<CreatedLink, Error> {
        self.target = self.config.clone().complete()?;
        let mut database = Database::connect(&self.target.socket)?;
        database.require_bridge(&self.target.bridge)?;
        remove::failed_ports(stage.call, &mut database, &self.target.bridge);
        self.pair = stage.make_pair(self.config.mac, self.target.mtu)?;
        // Before the link becomes a port: a user-space switch reads a new port's flags, adds one and writes
        // them back, which would revert a change in between.
        let outer = self.pair.outer();
        stage
            .host
            .set_up(outer)
            .explain(|| format!("failed to set \"{}\" up", outer.name))?;
        self.plug_in(stage, &mut database)?;
        let outer = self.pair.outer();
        let outer = stage
            .host
            .link_by_index(outer.index)
            .explain(|| format!("failed to lookup \"{}\"", outer.name))?;
        Ok(CreatedLink {
            link: Some(self.pair.inner.clone()),
            outside: vec![interface_of(&outer)],
        })
    }

    fn lease(&self, call: &Call) -> Result<Option<CniResult>, Error> {
        if !ipam::is_wanted(call) {
            return Ok(None);
        }
        let plugin = call.config.ipam_plugin();
        let failed = |error: Error| error.wrapped(&format!("failed to set up IPAM plugin type \"{plugin}\""));
        ipam::add(call).map(Some).map_err(failed)
    }

    /// Derives the link's MAC from its first address unless configured, and waits until the switch forwards
    /// frames.
    fn prepare(&mut self, stage: &mut Stage<'_>, link: &Link, leased: &CniResult) -> Result<(), Error> {
        if let (None, Some(ip)) = (self.config.mac, leased.ips.first()) {
            let mac = mac_of(ip.address.addr());
            let set = stage.pod.socket.set_mac(link, mac);
            set.explain(|| format!("failed to set MAC address {mac} of \"{}\"", link.name))?;
            self.mac = Some(mac);
        }
        stage.set_up(link)?;
        let limit = self.link_wait(stage.call);
        database::wait_until_up(&self.target.socket, &self.pair.outer_name, limit)
    }

    fn tune(&self, ifname: &str) {
        let _ = arp::enable(ifname);
    }

    fn finish(&mut self, stage: &mut Stage<'_>, link: &Link, result: &mut CniResult) -> Result<(), Error> {
        let mac = self.mac.or(link.mac);
        if let Some(interface) = result.interfaces.iter_mut().find(|it| it.sandbox.is_some()) {
            interface.mac = mac.map(|mac| mac.to_string());
        }
        if let Some(mac) = mac
            && !result.ips.is_empty()
            && let Err(error) = arp::announce(&mut stage.pod.socket, link, mac)
        {
            let ifname = &link.name;
            stage.call.note(
                Level::Warn,
                format_args!("failed to announce addresses of \"{ifname}\": {error}"),
            );
        }
        Ok(())
    }

    fn check_host(&mut self, here: &mut Inspection<'_>) -> Result<(), Error> {
        self.target = self.config.clone().complete()?;
        check::check_port(here, &self.target)
    }

    fn check_link(&self, here: &mut Inspection<'_>, link: &Link) -> Result<(), Error> {
        check::check_pair(here, link)
    }
}

impl Port {
    /// Timeout for the link to come up, within the deadline of the call.
    fn link_wait(&self, call: &Call) -> Duration {
        let wanted = self.target.link_wait;
        match &call.resident {
            Some(resident) => wanted.min(resident.left().saturating_sub(MARGIN)),
            None => wanted,
        }
    }

    /// Adds the host end as a port of the bridge.
    fn plug_in(&self, stage: &mut Stage<'_>, database: &mut Database) -> Result<(), Error> {
        let new = port::New {
            name: &self.pair.outer_name,
            netns: &stage.pod.path.clone(),
            ifname: &stage.call.request.ifname,
            pod_uid: &self.config.pod_uid,
            ovn_port: self.config.ovn_port.as_deref(),
        };
        stage.begin(Step::OvsPort {
            port: new.name.to_owned(),
            socket: self.target.socket.clone(),
            netns: new.netns.to_owned(),
        })?;
        // Best effort: only upstream's plugin reads the file.
        if let Err(error) = self.write_cache(stage.call) {
            stage.call.note(Level::Warn, error);
        }
        port::create(database, &self.target, &new)
    }

    /// Writes the config with the resolved bridge name.
    fn write_cache(&self, call: &Call) -> Result<(), Error> {
        let mut netconf = call.config.object.clone();
        netconf.remove(key::PREV_RESULT);
        let named = netconf.set("bridge", &self.target.bridge);
        let named = named.and_then(|()| netconf.set("socket_file", &self.target.socket));
        named.map_err(cni::error::internal)?;
        CacheFile::of(&AttachmentId::of(call), "").write(&Cached {
            netconf,
            orig_if_name: "",
            userspace_mode: false,
            vdpa_type: "",
        })
    }
}

/// The cache file of an attachment in upstream's format.
#[derive(Serialize)]
#[serde(rename_all = "PascalCase")]
struct Cached {
    netconf: Object,
    orig_if_name: &'static str,
    userspace_mode: bool,
    vdpa_type: &'static str,
}

/// Derives a MAC from an address like upstream.
fn mac_of(address: IpAddr) -> Mac {
    let tail: [u8; 4] = match address {
        IpAddr::V4(address) => address.octets(),
        IpAddr::V6(address) => {
            let [a, b, c, d, ..]: [u8; 32] = Sha256::digest(address.to_string()).into();
            [a, b, c, d]
        }
    };
    let ([first, second], [a, b, c, d]) = (MAC_PREFIX, tail);
    Mac([first, second, a, b, c, d])
}

#[cfg(test)]
mod tests {
    use super::*;

    // cni-plugins#55
    #[test]
    fn mac_of_address_has_upstreams_prefix() {
        assert_eq!(
            mac_of("10.1.2.3".parse().unwrap()).to_string(),
            "0a:58:0a:01:02:03"
        );
        // sha256("fd00::3")
        let digest = Sha256::digest("fd00::3");
        let wanted = format!(
            "0a:58:{:02x}:{:02x}:{:02x}:{:02x}",
            digest[0], digest[1], digest[2], digest[3]
        );
        assert_eq!(mac_of("fd00::3".parse().unwrap()).to_string(), wanted);
    }
}
