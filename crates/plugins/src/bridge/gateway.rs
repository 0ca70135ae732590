//! The bridge as gateway of its pods (cni-plugins §3.2 step 8).

use cni::Error;
use ipnet::IpNet;
use linux::{
    address::Family,
    link::{Link, LinkChange, Mac, VethSpec},
    route::Socket,
};

use super::{layer3, vlans::Vlans};
use crate::{
    messages::{Explain, MAKE_VETH},
    names::kind,
    veth::{ignore_routers, random_name},
};

/// Assigns the gateway's address to the link. Removes conflicting addresses if the config permits it.
pub(super) fn ensure_address(
    host: &mut Socket,
    link: &Link,
    gateway: IpNet,
    force: bool,
) -> Result<(), Error> {
    let name = &link.name;
    let family = Family::of(&gateway.addr());
    let present = host
        .addresses(link, Some(family))
        .explain(|| format!("could not get list of IP addresses of \"{name}\""))?;
    let present: Vec<_> = present.into_iter().map(|address| address.net).collect();
    let Some(conflicts) = layer3::conflicts(&present, &gateway) else {
        return Ok(());
    };
    if !conflicts.is_empty() && !force {
        return Err(Error::internal(format!(
            "\"{name}\" already has an IP address different from {gateway}"
        )));
    }
    for conflict in conflicts {
        host.delete_address(link, conflict)
            .explain(|| format!("could not remove IP address from \"{name}\""))?;
    }
    match host.add_address(link, gateway) {
        // A concurrent ADD added it.
        Err(error) if error.is_exists() => {}
        done => done.explain(|| format!("could not add IP address to \"{name}\""))?,
    }
    // Pins the MAC from before this port. Otherwise the bridge would inherit the lowest MAC of its ports and
    // change it with every pod. A bridge that lost its last port has none.
    let failed = || format!("could not set MAC address of \"{name}\"");
    let mac = match link.mac.filter(|mac| !mac.is_zero()) {
        Some(mac) => mac,
        None => Mac::random().explain(failed)?,
    };
    host.set_mac(link, mac).explain(failed)
}

/// Returns the host's port in one VLAN of the bridge. Creates a missing pair and connects an unconnected one, whose
/// bridge was deleted or whose ADD was interrupted.
pub(super) fn ensure_vlan_gateway(
    host: &mut Socket,
    bridge: &Link,
    vlans: &Vlans,
    id: u16,
) -> Result<Link, Error> {
    let name = format!("{}.{id}", bridge.name);
    let (link, made) = match find_vlan_gateway(host, &name)? {
        Some(link) => (link, false),
        None => make_vlan_gateway(host, bridge, &name)?,
    };
    if !link.is_kind(kind::VETH) {
        return Err(Error::internal(format!(
            "\"{name}\" already exists but is not a veth"
        )));
    }
    let connected = connect(host, bridge, vlans, link);
    if connected.is_err() && made {
        // Best effort, to report the first error.
        let _ = host.delete_link_by_name(&name);
    }
    connected
}

fn find_vlan_gateway(host: &mut Socket, name: &str) -> Result<Option<Link>, Error> {
    host.find_link(name)
        .explain(|| format!("failed to find host namespace interface \"{name}\""))
}

/// Creates the pair. Returns whether this call created it.
fn make_vlan_gateway(host: &mut Socket, bridge: &Link, name: &str) -> Result<(Link, bool), Error> {
    let port_name = random_name().explain(|| MAKE_VETH.to_owned())?;
    let made = host.create_veth(&VethSpec {
        name,
        mac: None,
        mtu: Some(bridge.mtu),
        peer_name: &port_name,
        peer_ns: None,
    });
    if matches!(&made, Err(error) if error.is_exists())
        // A concurrent ADD may have created it.
        && let Some(link) = find_vlan_gateway(host, name)?
    {
        return Ok((link, false));
    }
    made.map(|link| (link, true)).explain(|| MAKE_VETH.to_owned())
}

/// Adds the gateway's peer to the bridge. Sets the gateway up last, so that an `up` gateway is complete.
fn connect(host: &mut Socket, bridge: &Link, vlans: &Vlans, gateway: Link) -> Result<Link, Error> {
    let name = &gateway.name;
    let failed = || format!("failed to connect \"{name}\" to bridge {}", bridge.name);
    let port = match gateway.peer {
        Some(index) => Some(host.link_by_index(index).explain(failed)?),
        None => None,
    };
    // The index may belong to another namespace.
    let port = port.filter(|port| port.is_kind(kind::VETH) && port.peer == Some(gateway.index));
    let Some(port) = port.filter(|port| port.master.is_none_or(|master| master == bridge.index)) else {
        return Err(Error::internal(format!(
            "{}: its other end is not free",
            failed()
        )));
    };
    if port.master.is_some() && gateway.is_up() {
        return Ok(gateway);
    }
    for link in [&gateway, &port] {
        ignore_routers(&link.name);
    }
    let change = LinkChange {
        master: Some(bridge.index),
        up: Some(true),
        ..LinkChange::default()
    };
    host.change_link(&port, "connect link", &change).explain(failed)?;
    set_port_vlans(host, (&port).into(), bridge, vlans)?;
    host.set_up(&gateway)
        .explain(|| format!("failed to set \"{name}\" up"))?;
    host.link_by_index(gateway.index).explain(failed)
}

/// Adds a new port to its VLANs.
pub(super) fn set_port_vlans(
    host: &mut Socket,
    port: linux::link::LinkRef<'_>,
    bridge: &Link,
    vlans: &Vlans,
) -> Result<(), Error> {
    // A new port is only in the bridge's default VLAN.
    let default = bridge
        .bridge
        .and_then(|bridge| bridge.default_vlan)
        .filter(|id| *id != 0);
    if let Some(id) = default.filter(|_| vlans.replaces_default()) {
        host.delete_port_vlans(port, &[id])
            .explain(|| format!("failed to remove default vlan on interface \"{}\"", port.name))?;
    }
    let wanted = vlans.wanted();
    if wanted.is_empty() {
        return Ok(());
    }
    host.add_port_vlans(port, &wanted)
        .explain(|| format!("failed to setup vlan tag on interface \"{}\"", port.name))
}
