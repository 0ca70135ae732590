//! Roll-back on hosts without NetworkManager: the library changes the kernel and cannot roll back.
//!
//! Before a change, the parts of the host that the document affects are recorded, and later restored: interfaces
//! with their controllers and addresses, the routes over them, name servers, the host name. Other parts stay untouched,
//! such as the interfaces of pods that come and go meanwhile. Neither change nor record outlives a reboot.

mod host;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use kube_kit::document::list;
use linux::link::{Link, LinkChange};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use host::{Kernel, LinkSnapshot, RouteSnapshot};

use super::{Error, NOT_SUPPORTED, library};
use crate::bridge_vlans;

const RESOLV_CONF: &str = "/etc/resolv.conf";
const HOSTNAME: &str = "/proc/sys/kernel/hostname";
/// An identifier that changes with each boot.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// Interface types that the library can create without NetworkManager: only those can be restored.
const RECREATABLE: [&str; 4] = ["linux-bridge", "bond", "veth", "vlan"];

/// The document without the parts that the library cannot and need not apply to the kernel: a port that passes all
/// VLANs needs no setting on a bridge without VLAN filtering.
pub(super) fn supported(mut desired: Value) -> Result<Value, Error> {
    let interfaces = desired.get_mut("interfaces").and_then(Value::as_array_mut);
    for interface in interfaces.into_iter().flatten() {
        let bridge = name(interface).to_owned();
        let ports = interface
            .pointer_mut("/bridge/port")
            .and_then(Value::as_array_mut);
        for port in ports.into_iter().flatten() {
            let Some(port) = port.as_object_mut() else {
                continue;
            };
            match port.shift_remove("vlan") {
                None => {}
                Some(vlan) if vlan == bridge_vlans::all() || vlan == json!({}) => {}
                Some(_) => {
                    return Err(not_supported(&format!(
                        "bridge {bridge}: VLANs of ports need NetworkManager on this host"
                    )));
                }
            }
        }
    }
    Ok(desired)
}

/// Does what the library omits and needs: sets the MTU of existing interfaces, removes the addresses of interfaces that
/// become ports, and the routes that are absent in the document.
pub(super) fn prepare(desired: &Value) -> Result<(), Error> {
    let mut kernel = Kernel::read()?;
    set_mtus(&mut kernel, desired)?;
    let all = kernel.links.iter().map(|link| link.name.clone()).collect();
    for path in kernel.routes(&all)? {
        let mut unwanted = list(desired, "/routes/config").filter(|route| route["state"] == "absent");
        // A route that the kernel created goes with its address.
        if !path.is_direct()
            && unwanted.any(|route| path.is_meant_by(route))
            && let Some(route) = kernel.route(&path)
        {
            kernel
                .socket
                .delete_route(&route)
                .map_err(|error| host::refused(&error))?;
        }
    }
    let controllers = list(desired, "/interfaces").filter(|interface| interface["state"] != "absent");
    let ports: BTreeSet<&str> = controllers.flat_map(ports).collect();
    let ports: Vec<Link> = kernel
        .links
        .iter()
        .filter(|link| ports.contains(&link.name.as_str()))
        .cloned()
        .collect();
    for port in ports {
        for net in kernel.addresses(&port)? {
            kernel
                .socket
                .delete_address(&port, net)
                .map_err(|error| host::refused(&error))?;
        }
    }
    Ok(())
}

/// Sets the MTU of existing interfaces. The kernel refuses a VLAN with a larger MTU than its base interface: a refused
/// change is tried again after the others.
fn set_mtus(kernel: &mut Kernel, desired: &Value) -> Result<(), Error> {
    let wanted = list(desired, "/interfaces").filter(|interface| interface["state"] != "absent");
    let changed = wanted.filter_map(|interface| {
        let mtu = u32::try_from(interface["mtu"].as_u64()?).ok()?;
        let link = kernel.links.iter().find(|link| link.name == name(interface))?;
        (link.mtu != mtu).then(|| (link.clone(), mtu))
    });
    let mut pending: Vec<(Link, u32)> = changed.collect();
    loop {
        let (mut left, mut cause) = (Vec::new(), None);
        let all = pending.len();
        for (link, mtu) in pending {
            let change = LinkChange {
                mtu: Some(mtu),
                ..LinkChange::default()
            };
            if let Err(error) = kernel.socket.change_link(&link, "set MTU of link", &change) {
                cause.get_or_insert(error);
                left.push((link, mtu));
            }
        }
        match cause {
            None => return Ok(()),
            Some(error) if left.len() == all => return Err(host::refused(&error)),
            Some(_) => pending = left,
        }
    }
}

/// Names of the ports of a bridge or a bond in a document.
fn ports(controller: &Value) -> impl Iterator<Item = &str> {
    let of_bridge = list(controller, "/bridge/port").map(name);
    of_bridge.chain(list(controller, "/link-aggregation/port").filter_map(Value::as_str))
}

/// The state of everything that a document affects, before the change.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Snapshot {
    /// Identifier of the boot that the snapshot belongs to.
    boot: String,
    /// All interfaces that the document affects, whether they existed or not.
    #[serde(rename = "touched")]
    affected: BTreeSet<String>,
    /// Those that existed.
    links: Vec<LinkSnapshot>,
    /// The routes over them.
    routes: Vec<RouteSnapshot>,
    /// Content of resolv.conf, if the document affects name servers.
    resolv_conf: Option<String>,
    /// The host name, if the document affects it.
    hostname: Option<String>,
}

impl Snapshot {
    /// Records everything that `desired` affects on the host with the state `report`.
    pub(super) fn take(desired: &Value, report: &Value) -> Result<Self, Error> {
        let mut kernel = Kernel::read()?;
        let all = kernel.links.iter().map(|link| link.name.clone()).collect();
        let paths = kernel.routes(&all)?;
        let named = named(desired, &kernel.links);
        let affected = affected(desired, &named, &kernel.links, &paths);
        let reported: BTreeMap<&str, &Value> = list(report, "/interfaces")
            .map(|interface| (name(interface), interface))
            .collect();
        for gone in list(desired, "/interfaces").filter(|interface| interface["state"] == "absent") {
            let kind = reported.get(name(gone)).map(|there| &there["type"]);
            if let Some(kind) = kind.and_then(Value::as_str)
                && !RECREATABLE.contains(&kind)
            {
                return Err(not_supported(&format!(
                    "interface {} of type {kind} could not be brought back once it is removed: that needs \
                     NetworkManager on this host",
                    name(gone)
                )));
            }
        }
        let mut links = Vec::new();
        let there: Vec<Link> = kernel
            .links
            .iter()
            .filter(|link| affected.contains(&link.name))
            .cloned()
            .collect();
        for link in &there {
            links.push(LinkSnapshot {
                name: link.name.clone(),
                mac: link.mac.map(|mac| mac.to_string()),
                mtu: link.mtu,
                up: link.is_up(),
                controller: link.master.and_then(|master| kernel.name(master)),
                addresses: kernel.addresses(link)?,
                is_unnamed: !named.contains(&link.name),
                document: reported
                    .get(link.name.as_str())
                    .map_or(Value::Null, |interface| bare(interface)),
            });
        }
        let routes = paths.into_iter();
        let routes = routes.filter(|path| affected.contains(&path.link)).collect();
        let file = |path| fs::read_to_string(path).ok();
        Ok(Self {
            boot: file(BOOT).unwrap_or_default(),
            affected,
            links,
            routes,
            resolv_conf: desired.get("dns-resolver").and_then(|_| file(RESOLV_CONF)),
            hostname: desired.get("hostname").and_then(|_| file(HOSTNAME)),
        })
    }

    /// Restores as much as possible: a failure does not stop the rest.
    pub(super) async fn restore(&self) -> Result<(), Error> {
        if fs::read_to_string(BOOT).unwrap_or_default() != self.boot {
            // The reboot undid the change.
            return Ok(());
        }
        let mut failures = Vec::new();
        self.remove_created(&mut failures)?;
        self.recreate_removed(&mut failures).await?;
        self.restore_links(&mut failures)?;
        self.restore_routes(&mut failures)?;
        for (path, content) in [(RESOLV_CONF, &self.resolv_conf), (HOSTNAME, &self.hostname)] {
            if let Some(content) = content
                && fs::read_to_string(path).ok().as_ref() != Some(content)
                && let Err(error) = fs::write(path, content)
            {
                failures.push(format!("{path}: {error}"));
            }
        }
        if failures.is_empty() {
            return Ok(());
        }
        Err(host::refused(&failures.join("; ")))
    }

    fn remove_created(&self, failures: &mut Vec<String>) -> Result<(), Error> {
        let mut kernel = Kernel::read()?;
        let links = std::mem::take(&mut kernel.links);
        for link in links {
            let was_there = self.links.iter().any(|before| before.name == link.name);
            if self.affected.contains(&link.name)
                && !was_there
                && let Err(error) = kernel.socket.delete_link(&link)
                && !error.is_not_found()
            {
                failures.push(error.to_string());
            }
        }
        Ok(())
    }

    async fn recreate_removed(&self, failures: &mut Vec<String>) -> Result<(), Error> {
        let kernel = Kernel::read()?;
        let gone = self
            .links
            .iter()
            .filter(|before| !before.is_unnamed && kernel.index(&before.name).is_none());
        // An interface without a report cannot be created; restore_links reports it.
        let gone: Vec<Value> = gone
            .map(|before| before.document.clone())
            .filter(Value::is_object)
            .collect();
        if gone.is_empty() {
            return Ok(());
        }
        let mut state = match library::document(&json!({ "interfaces": gone })) {
            Ok(state) => state,
            Err(error) => {
                failures.push(error.text);
                return Ok(());
            }
        };
        state.set_kernel_only(true);
        state.set_verify_change(false);
        if let Err(error) = Box::pin(state.apply_async()).await {
            failures.push(error.to_string());
        }
        Ok(())
    }

    fn restore_links(&self, failures: &mut Vec<String>) -> Result<(), Error> {
        let mut kernel = Kernel::read()?;
        for before in &self.links {
            let now = kernel.links.iter().find(|link| link.name == before.name).cloned();
            let Some(now) = now else {
                if !before.is_unnamed {
                    failures.push(format!("interface {} is gone", before.name));
                }
                continue;
            };
            failures.extend(kernel.restore_link(before, &now));
        }
        Ok(())
    }

    fn restore_routes(&self, failures: &mut Vec<String>) -> Result<(), Error> {
        let mut kernel = Kernel::read()?;
        let now = kernel.routes(&self.affected)?;
        for extra in now.iter().filter(|path| !self.routes.contains(path)) {
            if let Some(route) = kernel.route(extra)
                && let Err(error) = kernel.socket.delete_route(&route)
                && !error.is_not_found()
            {
                failures.push(error.to_string());
            }
        }
        let mut missing: Vec<&RouteSnapshot> =
            self.routes.iter().filter(|path| !now.contains(path)).collect();
        // Gateways must be reachable first.
        missing.sort_by_key(|path| path.gateway.is_some());
        for path in missing {
            if let Some(route) = kernel.route(path)
                && let Err(error) = kernel.socket.add_route(&route)
                && !error.is_exists()
            {
                failures.push(error.to_string());
            }
        }
        Ok(())
    }
}

/// Interfaces that a document names, and their peers: if one disappears during the change, the change removed it.
fn named(desired: &Value, links: &[Link]) -> BTreeSet<String> {
    let mut named = BTreeSet::new();
    for interface in list(desired, "/interfaces") {
        named.insert(name(interface).to_owned());
        let peer = interface.pointer("/veth/peer").and_then(Value::as_str);
        named.extend(peer.map(str::to_owned));
        named.extend(ports(interface).map(str::to_owned));
    }
    for route in list(desired, "/routes/config") {
        let over = route["next-hop-interface"].as_str();
        named.extend(over.map(str::to_owned));
    }
    named.remove("");
    let there: Vec<&Link> = links.iter().filter(|link| named.contains(&link.name)).collect();
    let other_ends = links
        .iter()
        .filter(|link| there.iter().any(|end| are_ends(end, link)));
    let other_ends: Vec<String> = other_ends.map(|link| link.name.clone()).collect();
    named.extend(other_ends);
    named
}

/// Whether two interfaces are the ends of one veth pair. The peer index may belong to another namespace, so both must
/// refer to each other.
fn are_ends(one: &Link, other: &Link) -> bool {
    let veths = one.is_kind("veth") && other.is_kind("veth");
    veths && one.peer == Some(other.index) && other.peer == Some(one.index)
}

/// Interfaces that a document affects: named ones, ports of their controllers, and interfaces that lose routes.
fn affected(
    desired: &Value,
    named: &BTreeSet<String>,
    links: &[Link],
    paths: &[RouteSnapshot],
) -> BTreeSet<String> {
    let mut affected = named.clone();
    let absent = list(desired, "/routes/config").filter(|route| route["state"] == "absent");
    // Such routes are removed on all interfaces.
    for route in absent.filter(|route| route["next-hop-interface"].as_str().is_none_or(str::is_empty)) {
        let meant = paths.iter().filter(|path| path.may_be_meant_by(route));
        affected.extend(meant.map(|path| path.link.clone()));
    }
    let index = |link: &Link| affected.contains(&link.name).then_some(link.index);
    let indexes: BTreeSet<u32> = links.iter().filter_map(index).collect();
    let is_port = |link: &&Link| link.master.is_some_and(|master| indexes.contains(&master));
    affected.extend(links.iter().filter(is_port).map(|link| link.name.clone()));
    affected
}

/// The members that are needed to create an interface; everything else is restored separately.
fn bare(interface: &Value) -> Value {
    let kept = [
        "name",
        "type",
        "bridge",
        "link-aggregation",
        "veth",
        "vlan",
        "mac-address",
    ];
    let mut document: Map<String, Value> = kept
        .iter()
        .filter_map(|key| Some(((*key).to_owned(), interface.get(*key)?.clone())))
        .collect();
    document.insert("state".to_owned(), "up".into());
    // Ports may not exist yet, and get their controller later.
    for (section, ports) in [("bridge", "port"), ("link-aggregation", "port")] {
        if let Some(section) = document.get_mut(section).and_then(Value::as_object_mut) {
            section.insert(ports.to_owned(), json!([]));
        }
    }
    Value::Object(document)
}

fn name(interface: &Value) -> &str {
    interface["name"].as_str().unwrap_or_default()
}

fn not_supported(text: &str) -> Error {
    Error::new(NOT_SUPPORTED, format!("{NOT_SUPPORTED}: {text}"))
}
