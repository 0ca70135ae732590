//! ADD: from nothing to an attached container, or back to nothing (cni-plugins §3.2).

use std::time::{Duration, Instant};

use cni::{
    Error, Version,
    note::Level,
    plugin::Call,
    result::{CniResult, Interface},
};
use ipnet::IpNet;
use linux::{
    address::Family,
    arp,
    link::{BridgeSpec, Link, LinkChange, Mac, OperState},
    monitor::wait_operstate_up,
    netns::NetNs,
    port::PortChange,
    route::Socket,
    sysctl::Key,
};

use super::{
    config::Config,
    existing_bridge, gateway, layer3, records, require_vlans,
    steps::{self, Step},
};
use crate::{
    interface, ipam,
    masquerade::{self, Choice},
    messages::{Explain, MAKE_VETH},
    pod::Pod,
    record::{self, AttachmentId, Journal},
    ruleset::Ruleset,
    spoof_check,
    veth::{self, Pair},
};

/// How often a name that is taken is replaced by another.
const NAME_ATTEMPTS: usize = 10;

/// How long a port may take to come up.
const PORT_UP: Duration = Duration::from_millis(2550);

/// Attaches the container. On failure only a bridge that was made stays.
pub(super) fn add(call: &Call) -> Result<CniResult, Error> {
    let config = Config::read(call)?;
    let home = NetNs::current().explain(|| "failed to open netns of the host".to_owned())?;
    let mut host = Socket::open().map_err(cni::error::internal)?;
    let mut pod = Pod::open(call)?;
    let bridge = ensure_bridge(&mut host, &config)
        .map_err(|error| error.prefixed(&format!("failed to create bridge \"{}\"", config.bridge)))?;
    let key = AttachmentId::of(call);
    let owner = key.to(call.config.name());
    let mut journal = begin_record(call, &key, &mut host, &mut pod)?;
    let made = make_pair(call, &config, &mut journal, &mut host, &mut pod, &home);
    let pair = made.inspect_err(|_| {
        // It tells of nothing; the error of ADD is the one that counts.
        let _ = journal.remove();
    })?;
    let mut attachment = Attachment {
        call,
        owner,
        config: &config,
        host,
        rules: Ruleset::of(call),
        pod,
        bridge,
        taken: vec![Step::Pair {
            port: pair.outer_name.clone(),
        }],
        pair,
        leased: false,
        journal,
    };
    let outcome = attachment.complete();
    if outcome.is_err() {
        attachment.roll_back();
    }
    outcome
}

/// Begins the attachment's record. What an ADD that was killed left under it is taken back first, unless the
/// interface is there: then this is a second ADD, and the first one's work is not touched.
fn begin_record(call: &Call, key: &AttachmentId, host: &mut Socket, pod: &mut Pod) -> Result<Journal, Error> {
    let records = records(call);
    if let Some(journal) = records.begin(key)? {
        return Ok(journal);
    }
    let ifname = &call.request.ifname;
    let left = records
        .taken::<Step>(key)?
        .map(|taken| taken.steps)
        .unwrap_or_default();
    let present = pod
        .socket
        .find_link(ifname)
        .explain(|| format!("failed to lookup \"{ifname}\""))?;
    if present.is_some() {
        let port = left.iter().find_map(Step::pair).unwrap_or_default();
        return Err(veth::already_exists(ifname, port));
    }
    steps::undo(
        call,
        host,
        &mut Ruleset::of(call),
        key.to(call.config.name()),
        &left,
    )??;
    // Nobody has its addresses any more, and with them it would be refused others.
    ipam::del(call)?;
    records.remove(key)?;
    records
        .begin(key)?
        .ok_or_else(|| Error::internal(format!("another ADD of \"{ifname}\" is under way")))
}

/// Makes the pair under a name that is recorded before it is used.
fn make_pair(
    call: &Call,
    config: &Config,
    journal: &mut Journal,
    host: &mut Socket,
    pod: &mut Pod,
    home: &NetNs,
) -> Result<Pair, Error> {
    for _ in 0..NAME_ATTEMPTS {
        let outer_name = veth::random_name().explain(|| MAKE_VETH.to_owned())?;
        journal.note(&[Step::Pair {
            port: outer_name.clone(),
        }])?;
        let wish = veth::Wish {
            ifname: &call.request.ifname,
            outer_name: &outer_name,
            mac: config.mac,
            mtu: config.mtu,
        };
        if let Some(pair) = veth::create(pod, host, home, wish)? {
            return Ok(pair);
        }
        journal.clear()?;
    }
    Err(Error::internal(format!(
        "{MAKE_VETH}: failed to find a unique veth name"
    )))
}

/// The bridge: made if it is missing; nothing but its state is changed if it is there.
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
    // An address of its own: one that changes with every pod would be wrong in results and in the pods' caches.
    let mac = Mac::random().explain(|| format!("could not add \"{name}\""))?;
    let vlan_filtering = config.vlans.is_some();
    let spec = BridgeSpec {
        name,
        mtu: config.mtu,
        mac: Some(mac),
        vlan_filtering,
    };
    match host.create_bridge(&spec) {
        // Another ADD was faster.
        Err(error) if error.is_exists() => {}
        done => done.explain(|| format!("could not add \"{name}\""))?,
    }
    existing_bridge(host, name)?.ok_or_else(|| Error::internal(format!("could not lookup \"{name}\"")))
}

/// An attachment that is being made: the pair exists, everything else is to come.
struct Attachment<'a> {
    call: &'a Call,
    owner: record::Attachment<'a>,
    config: &'a Config,
    host: Socket,
    rules: Ruleset,
    pod: Pod,
    bridge: Link,
    pair: Pair,
    /// What was done, in order, beside the addresses that IPAM has assigned.
    taken: Vec<Step>,
    leased: bool,
    journal: Journal,
}

impl Attachment<'_> {
    fn complete(&mut self) -> Result<CniResult, Error> {
        self.plug_in()?;
        if self.config.spoof_check {
            self.check_senders()?;
        }
        let mut result = CniResult {
            interfaces: self.interfaces(),
            ..CniResult::default()
        };
        if self.config.layer3 {
            self.assign_addresses(&mut result)?;
        } else if !self.config.leave_down {
            self.set_inner_up()?;
        }
        let outer = if self.config.leave_down {
            let outer = self.host.link_by_index(self.pair.outer_index);
            outer.explain(|| format!("failed to lookup \"{}\"", self.pair.outer_name))?
        } else {
            self.wait_for_port()?
        };
        if self.config.layer3 {
            self.announce();
        }
        // A bridge takes on the MAC of a port unless it has one of its own.
        let bridge = self.host.link_by_index(self.bridge.index);
        let bridge = bridge.explain(|| format!("failed to lookup \"{}\"", self.bridge.name))?;
        result.interfaces[0].mac = bridge.mac.map(|mac| mac.to_string());
        result.interfaces[1].mac = outer.mac.map(|mac| mac.to_string());
        if let Some(dns) = &self.config.dns {
            result.dns = dns.clone();
        }
        if self.call.version < Version::V1_1_0 {
            result
                .interfaces
                .iter_mut()
                .for_each(|interface| interface.mtu = None);
        }
        // A result that the config's version cannot express is a failure while there still is a way back.
        if self.call.version < Version::V0_3_0 {
            result.to_json(self.call.version)?;
        }
        Ok(result)
    }

    /// Connects the host's end to the bridge.
    fn plug_in(&mut self) -> Result<(), Error> {
        let outer = self.pair.outer();
        let change = LinkChange {
            master: Some(self.bridge.index),
            up: Some(true),
            ..LinkChange::default()
        };
        self.host
            .change_link(outer, "connect link", &change)
            .explain(|| {
                format!(
                    "failed to connect \"{}\" to bridge {}",
                    outer.name, self.bridge.name
                )
            })?;
        // A new port has both switched off, so that nothing has to be said when that is what is wanted, also
        // not to kernels that know no isolation.
        if self.config.hairpin {
            let change = PortChange {
                hairpin: Some(true),
                ..PortChange::default()
            };
            self.host
                .change_port(outer, "set hairpin mode of", change)
                .explain(|| format!("failed to setup hairpin mode for {}", outer.name))?;
        }
        if self.config.isolated {
            let change = PortChange {
                isolated: Some(true),
                ..PortChange::default()
            };
            self.host
                .change_port(outer, "isolate port", change)
                .explain(|| format!("failed to set isolated on for {}", outer.name))?;
        }
        match &self.config.vlans {
            Some(vlans) => gateway::set_port_vlans(&mut self.host, outer, &self.bridge, vlans),
            None => Ok(()),
        }
    }

    /// Has frames dropped that the container sends under another address than its own.
    fn check_senders(&mut self) -> Result<(), Error> {
        let inner = &self.pair.inner;
        let mac = inner
            .mac
            .ok_or_else(|| Error::internal(format!("\"{}\" has no MAC address", inner.name)))?;
        let step = Step::SpoofCheck {
            port: self.pair.outer_name.clone(),
            mac,
        };
        begin(&mut self.journal, &mut self.taken, step)?;
        let port = spoof_check::Port {
            name: &self.pair.outer_name,
            mac,
        };
        spoof_check::set_up(&mut self.rules, self.owner, port)
    }

    /// Has packets that leave the container's subnets take on an address of the host.
    fn masquerade(&mut self, choice: Choice, addresses: &[IpNet]) -> Result<(), Error> {
        let Self {
            rules,
            journal,
            taken,
            owner,
            ..
        } = self;
        masquerade::set_up(rules, choice, *owner, addresses, |backend| {
            let addresses = addresses.to_vec();
            begin(journal, taken, Step::Masquerade { backend, addresses })
        })
    }

    fn interfaces(&self) -> Vec<Interface> {
        let inner = &self.pair.inner;
        let mac = |link: &Link| link.mac.map(|mac| mac.to_string());
        vec![
            Interface {
                name: self.bridge.name.clone(),
                mac: mac(&self.bridge),
                mtu: Some(self.bridge.mtu),
                ..Interface::default()
            },
            Interface {
                name: self.pair.outer_name.clone(),
                mtu: Some(inner.mtu),
                ..Interface::default()
            },
            Interface {
                name: inner.name.clone(),
                mac: mac(inner),
                mtu: Some(inner.mtu),
                sandbox: Some(self.pod.path.clone()),
                ..Interface::default()
            },
        ]
    }

    fn assign_addresses(&mut self, result: &mut CniResult) -> Result<(), Error> {
        let leased = ipam::add(self.call)?;
        self.leased = true;
        let leased = layer3::complete(self.config, leased)?;
        let gateways = if self.config.is_gateway {
            layer3::gateways(&leased)
        } else {
            Vec::new()
        };
        result.ips = leased.ips;
        result.routes = leased.routes;
        result.dns = leased.dns;
        let plan = interface::plan(&self.pair.inner.name, result)?;

        let inner = &self.pair.inner;
        let detect = self.config.detect_duplicates;
        if detect {
            // Questions that are sent before the bridge passes them on would be lost, and a duplicate with them.
            self.pod.inside(|_| {
                prepare(&inner.name, detect);
                Ok(())
            })?;
            self.set_inner_up()?;
            self.wait_for_port()?;
        }
        let (call, inner) = (self.call, &self.pair.inner);
        self.pod.inside(|socket| {
            if !detect {
                prepare(&inner.name, detect);
            }
            interface::apply(call, socket, inner, &plan)
        })?;

        for address in &gateways {
            self.become_gateway(*address, result)?;
        }
        for family in [Family::V4, Family::V6] {
            if gateways
                .iter()
                .any(|gateway| Family::of(&gateway.addr()) == family)
            {
                gateway::enable_forwarding(family)?;
            }
        }
        if let Some(choice) = self.config.masquerade {
            let addresses: Vec<_> = result.ips.iter().map(|ip| ip.address).collect();
            self.masquerade(choice, &addresses)?;
        }
        Ok(())
    }

    /// Puts a gateway's address on the bridge, or on the host's own port in the VLAN.
    fn become_gateway(&mut self, address: IpNet, result: &mut CniResult) -> Result<(), Error> {
        let config = self.config;
        let vlan = config
            .vlans
            .as_ref()
            .and_then(|vlans| Some((vlans.gateway_port()?, vlans.access?)));
        let Some((port, id)) = vlan else {
            return gateway::ensure_address(&mut self.host, &self.bridge, address, config.force_address)
                .map_err(|error| error.prefixed("failed to set bridge addr"));
        };
        let link = gateway::ensure_vlan_gateway(&mut self.host, &self.bridge, &port, id)?;
        if !result
            .interfaces
            .iter()
            .any(|interface| interface.name == link.name)
        {
            result.interfaces.push(Interface {
                name: link.name.clone(),
                mac: link.mac.map(|mac| mac.to_string()),
                mtu: Some(link.mtu),
                ..Interface::default()
            });
        }
        gateway::ensure_address(&mut self.host, &link, address, config.force_address)
            .map_err(|error| error.prefixed("failed to set vlan interface for bridge with addr"))
    }

    fn set_inner_up(&mut self) -> Result<(), Error> {
        let inner = &self.pair.inner;
        self.pod
            .socket
            .set_up(inner)
            .explain(|| format!("failed to set \"{}\" up", inner.name))
    }

    /// Waits until the bridge passes frames of the port.
    fn wait_for_port(&mut self) -> Result<Link, Error> {
        let outer = wait_operstate_up(&mut self.host, self.pair.outer(), Instant::now() + PORT_UP)
            .explain(|| format!("failed to lookup \"{}\"", self.pair.outer_name))?;
        if outer.operstate == OperState::Up {
            return Ok(outer);
        }
        Err(Error::internal(format!(
            "bridge port in error state: {}",
            outer.operstate
        )))
    }

    /// Tells the segment where the addresses are, now that the bridge passes it on.
    fn announce(&mut self) {
        let inner = &self.pair.inner;
        if let Some(mac) = inner.mac
            && let Err(error) = arp::announce(&mut self.pod.socket, inner, mac)
        {
            self.call.note(
                Level::Warn,
                format_args!("failed to announce addresses of \"{}\": {error}", inner.name),
            );
        }
    }

    /// Takes back what was done, as far as that is possible; the error of ADD stays the one that counts. What could
    /// not be taken back stays recorded, for DEL and GC.
    fn roll_back(&mut self) {
        let undone = steps::undo(
            self.call,
            &mut self.host,
            &mut self.rules,
            self.owner,
            &self.taken,
        );
        let forgotten = undone.and_then(|left| {
            // As in DEL: whoever gets the addresses next must not meet the pair.
            if self.leased {
                ipam::del(self.call)?;
            }
            left.and_then(|()| self.journal.remove())
        });
        if let Err(error) = forgotten {
            self.call.note(
                Level::Error,
                format_args!("failed to take back what a failed ADD did: {error}"),
            );
        }
    }
}

/// Records a step that is about to be taken.
fn begin(journal: &mut Journal, taken: &mut Vec<Step>, step: Step) -> Result<(), Error> {
    journal.note(std::slice::from_ref(&step))?;
    taken.push(step);
    Ok(())
}

/// Settings of the container's end that have to be made before it gets addresses; to be called in its
/// namespace. Kernels may lack any of them.
fn prepare(ifname: &str, detect_duplicates: bool) {
    let settings: &[(&str, &str)] = if detect_duplicates {
        &[("enhanced_dad", "1"), ("accept_dad", "1")]
    } else {
        &[("accept_dad", "0")]
    };
    for (name, value) in settings {
        let _ = Key::ipv6(ifname, name).and_then(|key| key.write(value));
    }
    let _ = arp::enable(ifname);
}
