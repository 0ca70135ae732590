//! The pod's network namespace. Entered once, at the first use: a netlink socket stays bound to the namespace in
//! which it was opened.

use crate::networks::default_route::{DefaultRoute, RouteAction, RouteActions};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use linux::address::Family;
use linux::netns::NetNs;
use linux::route::Socket;
use linux::routes::{MAIN_TABLE, Route};
use std::net::IpAddr;
use std::path::Path;

/// The operations of multus itself in a pod's network namespace. Tests replace it.
pub trait PodNetns {
    /// Whether an interface of this name exists.
    fn has(&mut self, interface: &str) -> Result<bool, NetnsError>;

    /// Applies the actions to the interface's default routes.
    fn reroute(&mut self, interface: &str, actions: RouteActions) -> Result<(), RouteError>;

    /// All default routes.
    fn defaults(&mut self) -> Result<Vec<DefaultRoute>, RouteError>;

    /// Restores a default route. An existing one is no error.
    fn restore(&mut self, route: &DefaultRoute) -> Result<(), RouteError>;
}

/// The namespace cannot be opened or read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("validateIfName: no net namespace {netns} found: {cause}")]
pub struct NetnsError {
    /// The namespace's path.
    pub netns: String,
    /// The cause.
    pub cause: String,
}

/// A default route could not be changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RouteError {
    /// A route could not be removed.
    #[error("error deleting default gateway: {0}")]
    Delete(String),
    /// A route could not be added.
    #[error("error setting default gateway: {0}")]
    Set(String),
}

/// The network namespace at a path.
#[derive(Debug)]
pub struct KernelNetns {
    path: String,
    socket: Option<Socket>,
}

impl KernelNetns {
    /// Does not open the namespace yet.
    pub fn new(path: &str) -> Self {
        Self {
            path: path.to_owned(),
            socket: None,
        }
    }

    fn socket(&mut self) -> Result<&mut Socket, String> {
        let socket = self.socket.take().map_or_else(|| open(&self.path), Ok)?;
        Ok(self.socket.insert(socket))
    }
}

fn open(path: &str) -> Result<Socket, String> {
    let netns = NetNs::open(Path::new(path)).map_err(|error| error.to_string())?;
    let opened = netns.run(Socket::open).map_err(|error| error.to_string())?;
    opened.map_err(|error| error.to_string())
}

impl PodNetns for KernelNetns {
    fn has(&mut self, interface: &str) -> Result<bool, NetnsError> {
        let found = self
            .socket()
            .and_then(|socket| socket.find_link(interface).map_err(|error| error.to_string()));
        found.map(|link| link.is_some()).map_err(|cause| NetnsError {
            netns: self.path.clone(),
            cause,
        })
    }

    fn reroute(&mut self, interface: &str, actions: RouteActions) -> Result<(), RouteError> {
        let socket = self.socket().map_err(RouteError::Delete)?;
        let link = socket
            .link_by_name(interface)
            .map_err(|error| RouteError::Delete(error.to_string()))?
            .index;
        for (action, family, default) in [
            (actions.v4, Family::V4, IpNet::V4(Ipv4Net::default())),
            (actions.v6, Family::V6, IpNet::V6(Ipv6Net::default())),
        ] {
            if action == RouteAction::Keep {
                continue;
            }
            remove_defaults(socket, link, family).map_err(|error| RouteError::Delete(error.to_string()))?;
            if let RouteAction::Replace(gateway) = action {
                add_default(socket, link, default, gateway)
                    .map_err(|error| RouteError::Set(error.to_string()))?;
            }
        }
        Ok(())
    }

    fn defaults(&mut self) -> Result<Vec<DefaultRoute>, RouteError> {
        let socket = self.socket().map_err(RouteError::Delete)?;
        defaults(socket).map_err(|error| RouteError::Delete(error.to_string()))
    }

    fn restore(&mut self, route: &DefaultRoute) -> Result<(), RouteError> {
        let socket = self.socket().map_err(RouteError::Set)?;
        let failed = |error: linux::Error| RouteError::Set(error.to_string());
        let link = socket.link_by_name(&route.interface).map_err(failed)?.index;
        let everything = if route.ipv4 {
            IpNet::V4(Ipv4Net::default())
        } else {
            IpNet::V6(Ipv6Net::default())
        };
        let route = Route {
            link: Some(link),
            gateway: route.gateway,
            priority: route.metric,
            ..Route::to(everything)
        };
        add(socket, &route).map_err(failed)
    }
}

fn defaults(socket: &mut Socket) -> linux::Result<Vec<DefaultRoute>> {
    let mut found = Vec::new();
    for (family, ipv4) in [(Family::V4, true), (Family::V6, false)] {
        for route in socket.routes(family)? {
            let Some(link) = route.link.filter(|link| is_default(&route, *link)) else {
                continue;
            };
            found.push(DefaultRoute {
                interface: socket.link_by_index(link)?.name,
                ipv4,
                gateway: route.gateway,
                metric: route.priority,
            });
        }
    }
    Ok(found)
}

/// Whether it is a default route of the main table. Plugins' own tables, which rules select, are not touched.
fn is_default(route: &Route, link: u32) -> bool {
    route.dst.prefix_len() == 0
        && route.link == Some(link)
        && route.table.is_none_or(|table| table == MAIN_TABLE)
}

fn remove_defaults(socket: &mut Socket, link: u32, family: Family) -> linux::Result<()> {
    let routes = socket.routes(family)?;
    routes
        .iter()
        .filter(|route| is_default(route, link))
        .try_for_each(|route| socket.delete_route(route))
}

fn add_default(socket: &mut Socket, link: u32, default: IpNet, gateway: IpAddr) -> linux::Result<()> {
    let route = Route {
        link: Some(link),
        gateway: Some(gateway),
        ..Route::to(default)
    };
    add(socket, &route)
}

fn add(socket: &mut Socket, route: &Route) -> linux::Result<()> {
    match socket.add_route(route) {
        Err(error) if error.is_exists() => Ok(()),
        other => other,
    }
}
