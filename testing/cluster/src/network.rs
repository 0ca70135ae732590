//! Addresses and links of a cluster.
//!
//! ```text
//! host ──169.254.x.y/30── control ──cluster0 (bridge)──┬── eth0 node01 ── pods 10.244.1.0/24
//!                                                      └── eth0 node02 ── pods 10.244.2.0/24
//!                                   spare0 (bridge) ───┬── eth1 node01
//!                                                      └── eth1 node02
//! ```
//!
//! All links except the link to the host are inside the cluster's network namespaces. Clusters can therefore use equal
//! addresses without collisions.

use std::process::Stdio;

use crate::error::{Error, Result};
use crate::run;
use crate::space::Space;

/// Address of the control plane for nodes and pods.
pub(crate) const CONTROL: &str = "10.10.0.1";
/// Addresses of services.
pub(crate) const SERVICES: &str = "10.96.0.0/16";
/// The `kubernetes` service.
pub(crate) const KUBERNETES: &str = "10.96.0.1";
/// Address of a cluster DNS server.
pub(crate) const DNS: &str = "10.96.0.10";
/// Addresses of all pods.
pub(crate) const PODS: &str = "10.244.0.0/16";

/// Returns the address of a node, counted from 1.
pub(crate) fn node_address(index: usize) -> String {
    format!("10.10.0.{}", 10 + index)
}

/// Returns the pod addresses of a node, counted from 1.
pub(crate) fn pod_range(index: usize) -> String {
    format!("10.244.{index}.0/24")
}

/// The link between host and control plane: the addresses of both ends, in one /30.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct HostLink {
    pub(crate) host: String,
    pub(crate) control: String,
}

impl HostLink {
    /// Returns the link with the /30 number `index`, modulo the 16,000 usable networks of the link-local range.
    fn numbered(index: u32) -> Self {
        let index = index % (250 * 64);
        // 169.254.0.0/24 and 169.254.255.0/24 are reserved (RFC 3927), and clouds use 169.254.169.0/24.
        let third = match index / 64 + 1 {
            169.. => index / 64 + 2,
            below => below,
        };
        let fourth = index % 64 * 4;
        let address = |offset| format!("169.254.{third}.{}", fourth + offset);
        Self {
            host: address(1),
            control: address(2),
        }
    }

    /// Returns an unused link. `taken` lists used addresses and routes. `seed` selects the first candidate.
    pub(crate) fn free(seed: u32, taken: &str) -> Option<Self> {
        let free = |link: &Self| {
            let prefix = link
                .host
                .rsplit_once('.')
                .map_or("", |(prefix, _)| prefix)
                .to_owned()
                + ".";
            // A whole free /24 is required, because addresses are plentiful.
            !taken.contains(&prefix)
        };
        (0..250)
            .map(|step| Self::numbered(seed.wrapping_add(step * 64)))
            .find(free)
    }
}

/// Creates the link between the host and the control plane. `name` is the host's end.
pub(crate) fn connect_host(control: &Space, name: &str, link: &HostLink) -> Result<()> {
    let on_host = |script: &str| -> Result<String> {
        run::output(&mut control.command_in(&["--mount", "--pid"], ["sh", "-euc", script])?)
    };
    if !has_links(control, &["host0"]) {
        let host = std::fs::File::open("/proc/self/ns/net").map_err(|source| Error::Io {
            what: "cannot open the host's network namespace".to_owned(),
            source,
        })?;
        // The namespace of a killed control plane may persist for a minute, with its link.
        on_host(&format!("ip link delete {name} 2>/dev/null || :"))?;
        let script = format!("ip link add host0 type veth peer name {name} netns /proc/self/fd/0");
        control.script(&script, Stdio::from(host))?;
    }
    let script = format!(
        "ip address replace {}/30 dev host0\nip link set host0 up",
        link.control
    );
    control.script(&script, Stdio::null())?;
    on_host(&format!(
        "ip address replace {}/30 dev {name}\nip link set {name} up",
        link.host
    ))
    .map(drop)
}

fn has_links(space: &Space, names: &[&str]) -> bool {
    let script: String = names
        .iter()
        .map(|name| format!("ip link show {name}\n"))
        .collect();
    space.script(&script, Stdio::null()).is_ok()
}

/// Creates the bridges of the control plane.
pub(crate) fn create_bridges(control: &Space) -> Result<()> {
    let script = format!(
        "for bridge in cluster0 spare0; do\n\
         ip link show $bridge >/dev/null 2>&1 || ip link add $bridge type bridge\n\
         ip link set $bridge up\n\
         done\n\
         ip address replace {CONTROL}/24 dev cluster0"
    );
    control.script(&script, Stdio::null()).map(drop)
}

/// Connects `node`, the `index`th of `count` nodes, to both bridges, and adds the routes to the other nodes' pod
/// ranges. With `count` 0, adds no routes.
pub(crate) fn connect_node(control: &Space, node: &Space, index: usize, count: usize) -> Result<()> {
    let mut script = String::new();
    let wired = has_links(node, &["eth0", "eth1"]);
    for (bridge, nic) in [("cluster0", "eth0"), ("spare0", "eth1")] {
        let port = format!("{}-{nic}", node.name());
        if !wired {
            // The namespace of a killed node may persist for a minute, with its links.
            script.push_str(&format!(
                "ip link delete {port} 2>/dev/null || :\n\
                 ip link add {port} type veth peer name {nic} netns /proc/self/fd/0\n"
            ));
        }
        script.push_str(&format!("ip link set {port} master {bridge} up\n"));
    }
    script.push_str(&format!(
        "ip route replace {} via {}\n",
        pod_range(index),
        node_address(index)
    ));
    control.script(&script, Stdio::from(node.network()?))?;
    let mut script = format!(
        "ip address replace {}/24 dev eth0\nip link set eth0 up\nip link set eth1 up\nip route replace default via {CONTROL}\n",
        node_address(index)
    );
    for other in (1..=count).filter(|other| *other != index) {
        script.push_str(&format!(
            "ip route replace {} via {}\n",
            pod_range(other),
            node_address(other)
        ));
    }
    node.script(&script, Stdio::null()).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_to_the_host_avoids_used_networks() {
        let first = HostLink::free(0, "").unwrap();
        assert_eq!(
            (first.host.as_str(), first.control.as_str()),
            ("169.254.1.1", "169.254.1.2")
        );
        let second = HostLink::free(0, "inet 169.254.1.77/16 scope link").unwrap();
        assert_eq!(second.host, "169.254.2.1");
    }

    #[test]
    fn reserved_link_local_address_is_never_used() {
        for index in 0..250 * 64 {
            let link = HostLink::numbered(index);
            let third: u32 = link.host.split('.').nth(2).unwrap().parse().unwrap();
            assert!((1..=254).contains(&third) && third != 169, "{link:?}");
        }
    }
}
