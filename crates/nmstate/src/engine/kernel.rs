//! Hosts without NetworkManager: the library changes the kernel and knows no way back, so here is one.
//!
//! What a document touches is written down before the change, and brought back from that: interfaces with their
//! controllers and addresses, the routes over them, name servers, the host's name. What is elsewhere stays alone, such
//! as the interfaces of pods that come and go meanwhile. Nothing of this outlives a restart of the host.

mod host;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use linux::link::Link;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use host::{Before, Kernel, Path};

use super::{Error, NOT_SUPPORTED, library};
use crate::bridge_vlans;

const RESOLV_CONF: &str = "/etc/resolv.conf";
const HOSTNAME: &str = "/proc/sys/kernel/hostname";
/// A number that is another one after each start of the machine.
const BOOT: &str = "/proc/sys/kernel/random/boot_id";
/// Types of interfaces that the library makes without NetworkManager: only those can be brought back.
const MADE: [&str; 4] = ["linux-bridge", "bond", "veth", "vlan"];

/// The document without what the library can't do to the kernel and need not: a port that passes all VLANs does so on
/// a bridge that does not look at them, too.
///
/// # Errors
/// When ports are to pass only some VLANs.
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

/// Does what the library leaves undone before it does the rest: takes the addresses off interfaces that are to be
/// ports, and routes away that are in the way of others.
///
/// # Errors
/// When the kernel refuses.
pub(super) fn prepare(desired: &Value) -> Result<(), Error> {
    let mut kernel = Kernel::ask()?;
    let all = kernel.links.iter().map(|link| link.name.clone()).collect();
    for path in kernel.routes(&all)? {
        let mut unwanted = list(desired, "/routes/config").filter(|route| route["state"] == "absent");
        // What the kernel made itself goes with its address.
        if !path.is_to_neighbours()
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

/// Names of the ports that a document gives a bridge or a bond.
fn ports(controller: &Value) -> impl Iterator<Item = &str> {
    let of_bridge = list(controller, "/bridge/port").map(name);
    of_bridge.chain(list(controller, "/link-aggregation/port").filter_map(Value::as_str))
}

/// What a document touches, as it was.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Snapshot {
    /// The start of the machine that it is of.
    boot: String,
    /// All interfaces that the document touches, whether they were there or not.
    touched: BTreeSet<String>,
    /// Those that were there.
    links: Vec<Before>,
    /// The routes over them.
    routes: Vec<Path>,
    /// The file, when name servers are touched.
    resolv_conf: Option<String>,
    /// The host's name, when it is touched.
    hostname: Option<String>,
}

impl Snapshot {
    /// What `desired` touches on the host that `report` describes.
    ///
    /// # Errors
    /// When something is to be removed that could not be brought back, or the kernel does not answer.
    pub(super) fn take(desired: &Value, report: &Value) -> Result<Self, Error> {
        let mut kernel = Kernel::ask()?;
        let all = kernel.links.iter().map(|link| link.name.clone()).collect();
        let paths = kernel.routes(&all)?;
        let named = named(desired, &kernel.links);
        let touched = touched(desired, &named, &kernel.links, &paths);
        let reported: BTreeMap<&str, &Value> = list(report, "/interfaces")
            .map(|interface| (name(interface), interface))
            .collect();
        for gone in list(desired, "/interfaces").filter(|interface| interface["state"] == "absent") {
            let kind = reported.get(name(gone)).map(|there| &there["type"]);
            if let Some(kind) = kind.and_then(Value::as_str)
                && !MADE.contains(&kind)
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
            .filter(|link| touched.contains(&link.name))
            .cloned()
            .collect();
        for link in &there {
            links.push(Before {
                name: link.name.clone(),
                mac: link.mac.map(|mac| mac.to_string()),
                mtu: link.mtu,
                up: link.is_up(),
                controller: link.master.and_then(|master| kernel.name(master)),
                addresses: kernel.addresses(link)?,
                bystander: !named.contains(&link.name),
                document: reported
                    .get(link.name.as_str())
                    .map_or(Value::Null, |interface| bare(interface)),
            });
        }
        let routes = paths.into_iter();
        let routes = routes.filter(|path| touched.contains(&path.link)).collect();
        let file = |path| fs::read_to_string(path).ok();
        Ok(Self {
            boot: file(BOOT).unwrap_or_default(),
            touched,
            links,
            routes,
            resolv_conf: desired.get("dns-resolver").and_then(|_| file(RESOLV_CONF)),
            hostname: desired.get("hostname").and_then(|_| file(HOSTNAME)),
        })
    }

    /// Brings back what was there, as far as it goes: what fails does not keep the rest from being brought back.
    ///
    /// # Errors
    /// What could not be brought back.
    pub(super) async fn restore(&self) -> Result<(), Error> {
        if fs::read_to_string(BOOT).unwrap_or_default() != self.boot {
            // The change went with the restart of the machine.
            return Ok(());
        }
        let mut wrong = Vec::new();
        self.remove_made(&mut wrong)?;
        self.make_removed(&mut wrong).await?;
        self.restore_links(&mut wrong)?;
        self.restore_routes(&mut wrong)?;
        for (path, content) in [(RESOLV_CONF, &self.resolv_conf), (HOSTNAME, &self.hostname)] {
            if let Some(content) = content
                && fs::read_to_string(path).ok().as_ref() != Some(content)
                && let Err(error) = fs::write(path, content)
            {
                wrong.push(format!("{path}: {error}"));
            }
        }
        if wrong.is_empty() {
            return Ok(());
        }
        Err(host::refused(&wrong.join("; ")))
    }

    fn remove_made(&self, wrong: &mut Vec<String>) -> Result<(), Error> {
        let mut kernel = Kernel::ask()?;
        let links = std::mem::take(&mut kernel.links);
        for link in links {
            let was_there = self.links.iter().any(|before| before.name == link.name);
            if self.touched.contains(&link.name)
                && !was_there
                && let Err(error) = kernel.socket.delete_link(&link)
                && !error.is_not_found()
            {
                wrong.push(error.to_string());
            }
        }
        Ok(())
    }

    async fn make_removed(&self, wrong: &mut Vec<String>) -> Result<(), Error> {
        let kernel = Kernel::ask()?;
        let gone = self
            .links
            .iter()
            .filter(|before| !before.bystander && kernel.index(&before.name).is_none());
        // What was not reported can't be made, and is missed later.
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
                wrong.push(error.text);
                return Ok(());
            }
        };
        state.set_kernel_only(true);
        state.set_verify_change(false);
        if let Err(error) = Box::pin(state.apply_async()).await {
            wrong.push(error.to_string());
        }
        Ok(())
    }

    fn restore_links(&self, wrong: &mut Vec<String>) -> Result<(), Error> {
        let mut kernel = Kernel::ask()?;
        for before in &self.links {
            let now = kernel.links.iter().find(|link| link.name == before.name).cloned();
            let Some(now) = now else {
                if !before.bystander {
                    wrong.push(format!("interface {} is gone", before.name));
                }
                continue;
            };
            wrong.extend(kernel.restore_link(before, &now));
        }
        Ok(())
    }

    fn restore_routes(&self, wrong: &mut Vec<String>) -> Result<(), Error> {
        let mut kernel = Kernel::ask()?;
        let now = kernel.routes(&self.touched)?;
        for extra in now.iter().filter(|path| !self.routes.contains(path)) {
            if let Some(route) = kernel.route(extra)
                && let Err(error) = kernel.socket.delete_route(&route)
                && !error.is_not_found()
            {
                wrong.push(error.to_string());
            }
        }
        let mut missing: Vec<&Path> = self.routes.iter().filter(|path| !now.contains(path)).collect();
        // A gateway has to be reachable first.
        missing.sort_by_key(|path| path.gateway.is_some());
        for path in missing {
            if let Some(route) = kernel.route(path)
                && let Err(error) = kernel.socket.add_route(&route)
                && !error.is_exists()
            {
                wrong.push(error.to_string());
            }
        }
        Ok(())
    }
}

/// Interfaces that a document names, and the other ends of those: what goes from the host while it is applied goes
/// because of it.
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

/// Whether two interfaces of this host are the ends of one pair. The index that an end has for the other one may be of
/// another namespace, and somebody else's here: so both have to say it.
fn are_ends(one: &Link, other: &Link) -> bool {
    let veths = one.is_kind("veth") && other.is_kind("veth");
    veths && one.peer == Some(other.index) && other.peer == Some(one.index)
}

/// Interfaces that a document touches: those that it names, ports of controllers among them, and those that lose
/// routes.
fn touched(desired: &Value, named: &BTreeSet<String>, links: &[Link], paths: &[Path]) -> BTreeSet<String> {
    let mut touched = named.clone();
    let absent = list(desired, "/routes/config").filter(|route| route["state"] == "absent");
    // Such routes are removed wherever they lead.
    for route in absent.filter(|route| route["next-hop-interface"].as_str().is_none_or(str::is_empty)) {
        let meant = paths.iter().filter(|path| path.may_be_meant_by(route));
        touched.extend(meant.map(|path| path.link.clone()));
    }
    let index = |link: &Link| touched.contains(&link.name).then_some(link.index);
    let indexes: BTreeSet<u32> = links.iter().filter_map(index).collect();
    let is_port = |link: &&Link| link.master.is_some_and(|master| indexes.contains(&master));
    touched.extend(links.iter().filter(is_port).map(|link| link.name.clone()));
    touched
}

/// What makes an interface anew; everything else is brought back by itself.
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
    // Ports may not be there yet, and get their controller later.
    for (section, ports) in [("bridge", "port"), ("link-aggregation", "port")] {
        if let Some(section) = document.get_mut(section).and_then(Value::as_object_mut) {
            section.insert(ports.to_owned(), json!([]));
        }
    }
    Value::Object(document)
}

fn list<'a>(document: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    document
        .pointer(pointer)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn name(interface: &Value) -> &str {
    interface["name"].as_str().unwrap_or_default()
}

fn not_supported(text: &str) -> Error {
    Error::new(NOT_SUPPORTED, format!("{NOT_SUPPORTED}: {text}"))
}
