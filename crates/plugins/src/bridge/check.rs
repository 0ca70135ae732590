//! CHECK: everything that ADD configured is still as it left it (cni-plugins §3.4). STATUS: ADD could be served
//! (§3.5).

use cni::{
    Error,
    error::code,
    plugin::Call,
    result::{CniResult, Interface},
};
use linux::{
    link::{Link, PortState},
    route::Socket,
};

use super::{config::Config, existing_bridge, require_vlans};
use crate::{
    check, ipam, masquerade, messages::Explain, names::kind, pod::Pod, record::AttachmentId,
    ruleset::Ruleset, spoof_check,
};

/// An error that names the first difference.
pub(super) fn check(call: &Call) -> Result<(), Error> {
    let config = Config::read(call)?;
    let mut pod = Pod::open(call)?;
    ipam::check(call)?;
    let previous = check::previous(call)?;
    let mut host = Socket::open().map_err(cni::error::internal)?;

    let bridge = check_bridge(&mut host, &config, &previous)?;
    let interface = check::sandbox_interface(call, &previous, &pod.path)?;
    let inner = check::sandbox_link(&mut pod.socket, interface)?;
    if !inner.is_kind(kind::VETH) {
        return Err(Error::internal(format!(
            "Error: Container interface {} not of type veth",
            inner.name
        )));
    }
    let outer = find_outer(&mut host, &previous, &bridge, &inner)?;
    check_port(&mut host, &config, &outer)?;
    if !config.leave_down && !inner.is_up() {
        return Err(Error::internal(format!("Interface {} is down", inner.name)));
    }
    check_rules(call, &config, &outer, &inner, &previous)?;
    check::addresses(&mut pod.socket, &inner, &previous.ips)?;
    check::routes(&mut pod.socket, &previous.routes)
}

/// An error, code 50, if ADD could do nothing with the node as it is. A bridge that is missing is no obstacle.
pub(super) fn status(call: &Call) -> Result<(), Error> {
    let config = Config::read(call)?;
    let usable = || {
        let mut host = Socket::open().map_err(cni::error::internal)?;
        match existing_bridge(&mut host, &config.bridge)? {
            Some(bridge) => require_vlans(&config, &bridge),
            None => Ok(()),
        }
    };
    usable().map_err(|error| Error {
        code: code::PLUGIN_NOT_AVAILABLE,
        ..error
    })?;
    ipam::status(call)
}

fn check_bridge(host: &mut Socket, config: &Config, previous: &CniResult) -> Result<Link, Error> {
    let name = &config.bridge;
    let expected = outside(previous)
        .find(|interface| interface.name == *name)
        .ok_or_else(|| Error::internal(format!("prevResult has no interface \"{name}\"")))?;
    let bridge = host
        .find_link(name)
        .explain(|| format!("failed to lookup \"{name}\""))?
        .ok_or_else(|| Error::internal(format!("Bridge interface {name} not found")))?;
    if bridge.bridge.is_none() {
        return Err(Error::internal(format!(
            "Interface {name} does not have link type of bridge"
        )));
    }
    // A bridge that is no gateway takes on MACs of its ports: there, another one says nothing. The gateway of a
    // VLAN is not the bridge.
    let vlan = config.vlans.as_ref().and_then(|vlans| vlans.access);
    if config.is_gateway && vlan.is_none() {
        check::same_mac(&bridge, expected, "Bridge interface")?;
    }
    if bridge.is_promiscuous() != config.promiscuous {
        return Err(Error::internal(format!(
            "Bridge interface {name} configured Promisc Mode {} doesn't match current state: {} ",
            config.promiscuous,
            bridge.is_promiscuous()
        )));
    }
    Ok(bridge)
}

/// The host's end: among the interfaces that ADD reported, the veth whose other end is the container's and
/// that is a port of the bridge.
fn find_outer(host: &mut Socket, previous: &CniResult, bridge: &Link, inner: &Link) -> Result<Link, Error> {
    for expected in outside(previous).filter(|interface| interface.name != bridge.name) {
        let Some(link) = host
            .find_link(&expected.name)
            .explain(|| format!("failed to lookup \"{}\"", expected.name))?
        else {
            continue;
        };
        let other_end = link.peer == Some(inner.index) && inner.peer == Some(link.index);
        if link.is_kind(kind::VETH) && other_end && link.master == Some(bridge.index) {
            check::same_mac(&link, expected, "Host interface")?;
            return Ok(link);
        }
    }
    Err(Error::internal(format!(
        "CNI veth created for bridge {} was not found",
        bridge.name
    )))
}

fn check_port(host: &mut Socket, config: &Config, outer: &Link) -> Result<(), Error> {
    let name = &outer.name;
    let wanted = PortState {
        hairpin: config.hairpin,
        isolated: Some(config.isolated),
    };
    let found = outer.port.unwrap_or_default();
    if found.hairpin != wanted.hairpin {
        return Err(Error::internal(format!(
            "Port {name} configured hairpin mode {} doesn't match current state: {}",
            wanted.hairpin, found.hairpin
        )));
    }
    // A kernel that knows no isolation isolates nothing.
    if found.isolated.unwrap_or_default() != config.isolated {
        return Err(Error::internal(format!(
            "Port {name} configured isolation {} doesn't match current state: {}",
            config.isolated,
            found.isolated.unwrap_or_default()
        )));
    }
    let Some(vlans) = &config.vlans else { return Ok(()) };
    let present = host
        .port_vlans(outer)
        .explain(|| format!("failed to list VLANs of \"{name}\""))?;
    match vlans.wanted().into_iter().find(|vlan| !present.contains(vlan)) {
        Some(missing) => Err(Error::internal(format!(
            "Port {name} is not in VLAN {} as configured",
            missing.id
        ))),
        None => Ok(()),
    }
}

fn check_rules(
    call: &Call,
    config: &Config,
    outer: &Link,
    inner: &Link,
    previous: &CniResult,
) -> Result<(), Error> {
    let key = AttachmentId::of(call);
    let owner = key.to(call.config.name());
    let mut rules = Ruleset::of(call);
    if let Some(mac) = inner.mac.filter(|_| config.spoof_check) {
        let port = spoof_check::Port {
            name: &outer.name,
            mac,
        };
        spoof_check::check(&mut rules, owner, port)?;
    }
    if let Some(choice) = config.masquerade {
        let addresses: Vec<_> = previous.ips.iter().map(|ip| ip.address).collect();
        masquerade::check(&mut rules, choice, owner, &addresses)?;
    }
    Ok(())
}

/// The interfaces on the host.
fn outside(previous: &CniResult) -> impl Iterator<Item = &Interface> {
    previous
        .interfaces
        .iter()
        .filter(|interface| interface.sandbox.is_none())
}
