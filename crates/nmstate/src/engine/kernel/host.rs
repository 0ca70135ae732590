//! Reads and restores the kernel's interfaces and routes.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use linux::address::Family;
use linux::link::{Link, LinkChange, LinkRef, Mac};
use linux::route::Socket;
use linux::routes::{LINK_SCOPE, LOCAL_TABLE, Route};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::super::{Error, PLUGIN_FAILURE};

/// The state of an interface before a change.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct LinkSnapshot {
    pub(super) name: String,
    pub(super) mac: Option<String>,
    pub(super) mtu: u32,
    pub(super) up: bool,
    pub(super) controller: Option<String>,
    pub(super) addresses: Vec<IpNet>,
    /// Whether the document affects the interface without naming it: if it disappears, something else removed it.
    #[serde(default, rename = "bystander")]
    pub(super) is_unnamed: bool,
    /// The document with which the library creates it.
    pub(super) document: Value,
}

/// The state of a route before a change.
#[derive(Clone, Debug, Deserialize, Eq, PartialEq, Serialize)]
pub(super) struct RouteSnapshot {
    pub(super) link: String,
    dst: IpNet,
    pub(super) gateway: Option<IpAddr>,
    priority: Option<u32>,
    table: Option<u32>,
    pub(super) scope: Option<u8>,
    mtu: Option<u32>,
    advmss: Option<u32>,
    source: Option<IpAddr>,
}

impl RouteSnapshot {
    /// Whether the route leads to a directly connected network.
    pub(super) fn is_direct(&self) -> bool {
        self.gateway.is_none() && self.scope == Some(LINK_SCOPE)
    }

    /// Whether an absent route of a document means this route: all given members are equal.
    pub(super) fn is_meant_by(&self, entry: &Value) -> bool {
        let says = |key: &str, is: &dyn Fn(&Value) -> bool| entry.get(key).is_none_or(is);
        let number = |key: &str, of: Option<u32>| says(key, &|value| value.as_u64() == of.map(u64::from));
        says("destination", &|value| {
            value.as_str().and_then(|net| net.parse().ok()) == Some(self.dst)
        }) && says("next-hop-interface", &|value| value == self.link.as_str())
            && says("next-hop-address", &|value| {
                value.as_str().and_then(|address| address.parse().ok()) == self.gateway
            })
            && number("table-id", self.table)
            && number("metric", self.priority.or(Some(0)))
    }

    /// Whether the library may take an absent route of a document for this one: it ignores some members.
    pub(super) fn may_be_meant_by(&self, entry: &Value) -> bool {
        let net: Option<IpNet> = entry["destination"].as_str().and_then(|net| net.parse().ok());
        let gateway = entry["next-hop-address"].as_str();
        let gateway: Option<IpAddr> = gateway.and_then(|address| address.parse().ok());
        net.is_none_or(|net| net.trunc() == self.dst)
            && gateway.is_none_or(|gateway| Some(gateway) == self.gateway)
    }
}

/// The kernel, with its interfaces at the time of [`Kernel::read`].
pub(super) struct Kernel {
    pub(super) socket: Socket,
    pub(super) links: Vec<Link>,
}

impl Kernel {
    pub(super) fn read() -> Result<Self, Error> {
        let mut socket = Socket::open().map_err(|error| refused(&error))?;
        let links = socket.links().map_err(|error| refused(&error))?;
        Ok(Self { socket, links })
    }

    pub(super) fn index(&self, name: &str) -> Option<u32> {
        self.links
            .iter()
            .find(|link| link.name == name)
            .map(|link| link.index)
    }

    pub(super) fn name(&self, index: u32) -> Option<String> {
        let mut links = self.links.iter();
        links
            .find(|link| link.index == index)
            .map(|link| link.name.clone())
    }

    /// Addresses other than link-local ones of the kernel.
    pub(super) fn addresses(&mut self, link: &Link) -> Result<Vec<IpNet>, Error> {
        let addresses = self
            .socket
            .addresses(link, None)
            .map_err(|error| refused(&error))?;
        let nets = addresses.into_iter().map(|address| address.net);
        Ok(nets
            .filter(|net| !matches!(net, IpNet::V6(net) if net.addr().is_unicast_link_local()))
            .collect())
    }

    /// Routes over these interfaces.
    pub(super) fn routes(&mut self, over: &BTreeSet<String>) -> Result<Vec<RouteSnapshot>, Error> {
        let mut paths = Vec::new();
        for family in [Family::V4, Family::V6] {
            for route in self.socket.routes(family).map_err(|error| refused(&error))? {
                let link = route.link.and_then(|link| self.name(link));
                if let Some(link) =
                    link.filter(|link| over.contains(link) && route.table != Some(LOCAL_TABLE))
                {
                    paths.push(RouteSnapshot {
                        link,
                        dst: route.dst,
                        gateway: route.gateway,
                        priority: route.priority,
                        table: route.table,
                        scope: route.scope,
                        mtu: route.mtu,
                        advmss: route.advmss,
                        source: route.source,
                    });
                }
            }
        }
        Ok(paths)
    }

    pub(super) fn route(&self, path: &RouteSnapshot) -> Option<Route> {
        Some(Route {
            link: Some(self.index(&path.link)?),
            gateway: path.gateway,
            priority: path.priority,
            table: path.table,
            scope: path.scope,
            mtu: path.mtu,
            advmss: path.advmss,
            source: path.source,
            ..Route::to(path.dst)
        })
    }

    /// Restores an interface. Returns the failures.
    pub(super) fn restore_link(&mut self, before: &LinkSnapshot, now: &Link) -> Vec<String> {
        let mut failures = Vec::new();
        let link = LinkRef::from(now);
        let controller = before.controller.as_deref();
        let controller = controller.and_then(|name| self.links.iter().find(|link| link.name == name));
        for (doing, change) in changes(before, now, now.is_up(), controller) {
            if let Err(error) = self.socket.change_link(link, doing, &change) {
                failures.push(error.to_string());
            }
        }
        match self.addresses(now) {
            Err(error) => failures.push(error.text),
            Ok(there) => {
                for extra in there.iter().filter(|net| !before.addresses.contains(net)) {
                    if let Err(error) = self.socket.delete_address(link, *extra) {
                        failures.push(error.to_string());
                    }
                }
            }
        }
        // Secondary addresses were removed with the primary one of their network.
        for net in &before.addresses {
            match self.socket.add_address(link, *net) {
                Err(error) if !error.is_exists() => failures.push(error.to_string()),
                _ => {}
            }
        }
        failures
    }
}

/// The changes that restore an interface, in order.
fn changes(
    before: &LinkSnapshot,
    now: &Link,
    is_up: bool,
    controller: Option<&Link>,
) -> Vec<(&'static str, LinkChange<'static>)> {
    let master = controller.map(|controller| controller.index);
    let moves = master != now.master;
    let mac: Option<Mac> = before.mac.as_deref().and_then(|mac| mac.parse().ok());
    let all = [
        (
            "set down link",
            // A bond accepts no port that is up.
            moves && is_up && controller.is_some_and(|controller| controller.is_kind("bond")),
            LinkChange {
                up: Some(false),
                ..LinkChange::default()
            },
        ),
        (
            "restore controller of link",
            moves,
            LinkChange {
                master: Some(master.unwrap_or(0)),
                ..LinkChange::default()
            },
        ),
        (
            "restore MAC of link",
            mac.is_some() && mac != now.mac,
            LinkChange {
                mac,
                ..LinkChange::default()
            },
        ),
        (
            "restore MTU of link",
            before.mtu != now.mtu,
            LinkChange {
                mtu: Some(before.mtu),
                ..LinkChange::default()
            },
        ),
        (
            "restore state of link",
            // A bond sets new ports up, and released ports down.
            moves || before.up != is_up,
            LinkChange {
                up: Some(before.up),
                ..LinkChange::default()
            },
        ),
    ];
    let needed = all.into_iter().filter(|(_, needed, _)| *needed);
    needed.map(|(doing, _, change)| (doing, change)).collect()
}

/// Wraps an error of the kernel.
pub(super) fn refused(error: &dyn std::fmt::Display) -> Error {
    Error::new(PLUGIN_FAILURE, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(name: &str, index: u32, kind: Option<&str>) -> Link {
        let mut link = Link::default();
        link.name = name.to_owned();
        link.index = index;
        link.kind = kind.map(str::to_owned);
        link.mtu = 1500;
        link
    }

    fn before(controller: Option<&str>) -> LinkSnapshot {
        LinkSnapshot {
            name: "eth1".to_owned(),
            mac: None,
            mtu: 1500,
            up: true,
            controller: controller.map(str::to_owned),
            addresses: Vec::new(),
            is_unnamed: false,
            document: Value::Null,
        }
    }

    fn states_and_controllers(changes: &[(&str, LinkChange<'_>)]) -> Vec<(Option<bool>, Option<u32>)> {
        let parts = changes.iter().map(|(_, change)| (change.up, change.master));
        parts.collect()
    }

    #[test]
    fn port_that_returns_to_its_controller_ends_up() {
        let back = |kind: &str, up: bool| {
            let now = link("eth1", 2, None);
            let controller = link("controller", 7, Some(kind));
            states_and_controllers(&changes(&before(Some("controller")), &now, up, Some(&controller)))
        };
        let (down, under, up) = ((Some(false), None), (None, Some(7)), (Some(true), None));
        assert_eq!(back("bond", true), [down, under, up]);
        assert_eq!(back("bond", false), [under, up]);
        assert_eq!(back("bridge", true), [under, up]);
    }

    #[test]
    fn port_that_leaves_a_bond_ends_up() {
        let mut now = link("eth1", 2, None);
        now.master = Some(7);
        let back = states_and_controllers(&changes(&before(None), &now, true, None));
        assert_eq!(back, [(None, Some(0)), (Some(true), None)]);
    }
}
