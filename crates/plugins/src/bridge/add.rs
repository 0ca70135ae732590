//! ADD: the pod's port of the bridge (cni-plugins §3.2).

use std::time::{Duration, Instant};

use cni::{
    Error,
    note::Level,
    result::{CniResult, Interface},
};
use ipnet::IpNet;
use linux::{
    address::Family,
    arp,
    link::{BridgeSpec, Link, LinkChange, Mac, OperState},
    monitor::wait_operstate_up,
    port::PortChange,
    route::Socket,
    sysctl::Key,
};

use super::{
    check,
    config::Config,
    existing::{existing_bridge, require_vlans},
    gateway, layer3,
};
use crate::{
    attach::{CreatedLink, Inspection, LinkRequest, Settings, Stage, Step, interface_of, occupied_pair},
    forwarding::enable_forwarding,
    messages::Explain as _,
    names::kind,
    spoof_check,
    veth::{self, Pair},
};

/// Deadline for a port to come up.
const PORT_UP: Duration = Duration::from_millis(2550);

/// A pod's port of the bridge.
pub(super) struct Port {
    pub(super) config: Config,
    /// Set by `make`, like `pair`.
    bridge: Link,
    pair: Pair,
}

impl LinkRequest for Port {
    fn settings(&self) -> Settings {
        Settings {
            dns: self.config.dns.clone(),
            masquerade: self.config.masquerade,
            leave_down: self.config.leave_down,
        }
    }

    fn kind(&self) -> Option<&'static str> {
        Some(kind::VETH)
    }

    fn occupied(&self, ifname: &str, left: &[Step]) -> Error {
        occupied_pair(ifname, left)
    }

    fn make(&mut self, stage: &mut Stage<'_>) -> Result<CreatedLink, Error> {
        self.bridge = ensure_bridge(&mut stage.host, &self.config).map_err(|error| {
            error.prefixed(&format!("failed to create bridge \"{}\"", self.config.bridge))
        })?;
        self.pair = stage.make_pair(self.config.mac, self.config.mtu)?;
        self.plug_in(&mut stage.host)?;
        if self.config.spoof_check {
            self.check_senders(stage)?;
        }
        let bridge = Interface {
            name: self.bridge.name.clone(),
            mtu: Some(self.bridge.mtu),
            ..Interface::default()
        };
        let outer = Interface {
            name: self.pair.outer_name.clone(),
            mtu: Some(self.pair.inner.mtu),
            ..Interface::default()
        };
        Ok(CreatedLink {
            link: Some(self.pair.inner.clone()),
            outside: vec![bridge, outer],
        })
    }

    fn complete(&self, leased: &mut CniResult) -> Result<(), Error> {
        layer3::complete(&self.config, leased);
        Ok(())
    }

    fn prepare(&mut self, stage: &mut Stage<'_>, link: &Link, _leased: &CniResult) -> Result<(), Error> {
        if self.config.detect_duplicates {
            // Before the bridge forwards, probes for duplicate addresses would be lost.
            stage.pod.inside(|_| {
                self.tune(&link.name);
                Ok(())
            })?;
            stage.set_up(link)?;
            self.wait_for_port(&mut stage.host)?;
        }
        Ok(())
    }

    fn tune(&self, ifname: &str) {
        let settings: &[(&str, &str)] = if self.config.detect_duplicates {
            &[("enhanced_dad", "1"), ("accept_dad", "1")]
        } else {
            &[("accept_dad", "0")]
        };
        for (name, value) in settings {
            let _ = Key::ipv6(ifname, name).and_then(|key| key.write(value));
        }
        let _ = arp::enable(ifname);
    }

    fn route(&mut self, stage: &mut Stage<'_>, _link: &Link, result: &mut CniResult) -> Result<(), Error> {
        if !self.config.is_gateway {
            return Ok(());
        }
        let gateways = layer3::gateways(result);
        for address in &gateways {
            self.become_gateway(&mut stage.host, *address, result)?;
        }
        for family in [Family::V4, Family::V6] {
            if gateways
                .iter()
                .any(|gateway| Family::of(&gateway.addr()) == family)
            {
                enable_forwarding(family)?;
            }
        }
        Ok(())
    }

    fn finish(&mut self, stage: &mut Stage<'_>, link: &Link, result: &mut CniResult) -> Result<(), Error> {
        let outer = if self.config.leave_down {
            let outer = stage.host.link_by_index(self.pair.outer_index);
            outer.explain(|| format!("failed to lookup \"{}\"", self.pair.outer_name))?
        } else {
            self.wait_for_port(&mut stage.host)?
        };
        if !result.ips.is_empty() {
            announce(stage, link);
        }
        // A bridge without its own MAC changes its MAC with its ports.
        let bridge = stage.host.link_by_index(self.bridge.index);
        let bridge = bridge.explain(|| format!("failed to lookup \"{}\"", self.bridge.name))?;
        result.interfaces[0].mac = bridge.mac.map(|mac| mac.to_string());
        result.interfaces[1].mac = outer.mac.map(|mac| mac.to_string());
        Ok(())
    }

    fn check_host(&mut self, here: &mut Inspection<'_>) -> Result<(), Error> {
        self.bridge = check::check_bridge(&mut here.host, &self.config, &here.previous)?;
        Ok(())
    }

    fn check_link(&self, here: &mut Inspection<'_>, link: &Link) -> Result<(), Error> {
        check::check_port(here, &self.config, &self.bridge, link)
    }
}

impl Port {
    pub(super) fn new(config: Config) -> Self {
        Port {
            config,
            bridge: Link::default(),
            pair: Pair::default(),
        }
    }

    /// Adds the host end to the bridge.
    fn plug_in(&self, host: &mut Socket) -> Result<(), Error> {
        let outer = self.pair.outer();
        let change = LinkChange {
            master: Some(self.bridge.index),
            up: Some(true),
            ..LinkChange::default()
        };
        host.change_link(outer, "connect link", &change).explain(|| {
            format!(
                "failed to connect \"{}\" to bridge {}",
                outer.name, self.bridge.name
            )
        })?;
        // Both default to off for a new port. Setting only `on` also supports kernels without isolation.
        if self.config.hairpin {
            let change = PortChange {
                hairpin: Some(true),
                ..PortChange::default()
            };
            host.change_port(outer, "set hairpin mode of", change)
                .explain(|| format!("failed to setup hairpin mode for {}", outer.name))?;
        }
        if self.config.isolated {
            let change = PortChange {
                isolated: Some(true),
                ..PortChange::default()
            };
            host.change_port(outer, "isolate port", change)
                .explain(|| format!("failed to set isolated on for {}", outer.name))?;
        }
        match &self.config.vlans {
            Some(vlans) => gateway::set_port_vlans(host, outer, &self.bridge, vlans),
            None => Ok(()),
        }
    }

    /// Drops frames from the pod with a spoofed source MAC.
    fn check_senders(&self, stage: &mut Stage<'_>) -> Result<(), Error> {
        let inner = &self.pair.inner;
        let mac = inner
            .mac
            .ok_or_else(|| Error::internal(format!("\"{}\" has no MAC address", inner.name)))?;
        stage.begin(Step::SpoofCheck {
            port: self.pair.outer_name.clone(),
            mac,
        })?;
        let port = spoof_check::Port {
            name: &self.pair.outer_name,
            mac,
        };
        stage.with_rules(|rules, owner| spoof_check::set_up(rules, owner, port))
    }

    /// Assigns a gateway's address to the bridge, or to the host's port in the VLAN.
    fn become_gateway(&self, host: &mut Socket, address: IpNet, result: &mut CniResult) -> Result<(), Error> {
        let config = &self.config;
        let vlan = config
            .vlans
            .as_ref()
            .and_then(|vlans| Some((vlans.gateway_port()?, vlans.access?)));
        let Some((port, id)) = vlan else {
            return gateway::ensure_address(host, &self.bridge, address, config.force_address)
                .map_err(|error| error.prefixed("failed to set bridge addr"));
        };
        let link = gateway::ensure_vlan_gateway(host, &self.bridge, &port, id)?;
        if !result
            .interfaces
            .iter()
            .any(|interface| interface.name == link.name)
        {
            result.interfaces.push(interface_of(&link));
        }
        gateway::ensure_address(host, &link, address, config.force_address)
            .map_err(|error| error.prefixed("failed to set vlan interface for bridge with addr"))
    }

    /// Waits until the port forwards frames.
    fn wait_for_port(&self, host: &mut Socket) -> Result<Link, Error> {
        let outer = wait_operstate_up(host, self.pair.outer(), Instant::now() + PORT_UP)
            .explain(|| format!("failed to lookup \"{}\"", self.pair.outer_name))?;
        if outer.operstate == OperState::Up {
            return Ok(outer);
        }
        Err(Error::internal(format!(
            "bridge port in error state: {}",
            outer.operstate
        )))
    }
}

/// Announces the addresses, after the port forwards frames.
fn announce(stage: &mut Stage<'_>, link: &Link) {
    if let Some(mac) = link.mac
        && let Err(error) = arp::announce(&mut stage.pod.socket, link, mac)
    {
        stage.call.note(
            Level::Warn,
            format_args!("failed to announce addresses of \"{}\": {error}", link.name),
        );
    }
}

/// Returns the bridge, creating it if missing. Changes only the state of an existing bridge.
fn ensure_bridge(host: &mut Socket, config: &Config) -> Result<Link, Error> {
    let name = config.bridge.as_str();
    let bridge = match existing_bridge(host, name)? {
        Some(bridge) => bridge,
        None => make_bridge(host, config)?,
    };
    require_vlans(config, &bridge)?;
    veth::ignore_routers(name);
    let change = LinkChange {
        up: (!bridge.is_up()).then_some(true),
        promiscuous: (config.promiscuous && !bridge.is_promiscuous()).then_some(true),
        ..LinkChange::default()
    };
    if change != LinkChange::default() {
        host.change_link(&bridge, "set up bridge", &change)
            .explain(|| format!("could not set up \"{name}\""))?;
    }
    Ok(bridge)
}

fn make_bridge(host: &mut Socket, config: &Config) -> Result<Link, Error> {
    let name = config.bridge.as_str();
    // Its own MAC: an inherited one changes with every pod, which invalidates results and the pods' neighbour
    // caches.
    let mac = Mac::random().explain(|| format!("could not add \"{name}\""))?;
    let vlan_filtering = config.vlans.is_some();
    let spec = BridgeSpec {
        name,
        mtu: config.mtu,
        mac: Some(mac),
        vlan_filtering,
    };
    match host.create_bridge(&spec) {
        // A concurrent ADD created it.
        Err(error) if error.is_exists() => {}
        done => done.explain(|| format!("could not add \"{name}\""))?,
    }
    existing_bridge(host, name)?.ok_or_else(|| Error::internal(format!("could not lookup \"{name}\"")))
}
