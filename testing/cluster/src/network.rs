//! Addresses and links of a cluster.
//!
//! ```text
//! host ──169.254.x.y/30── control ──cluster0 (bridge)──┬── eth0 node01 ── pods 10.244.1.0/24
//!                                                      └── eth0 node02 ── pods 10.244.2.0/24
//!                                   spare0 (bridge) ───┬── eth1 node01
//!                                                      └── eth1 node02
//! ```
//!
//! In a dual-stack cluster, all of these except the link to the host, `spare0` and `eth1` also have IPv6 addresses: see
//! [`Families`].
//!
//! All links except the link to the host are inside the cluster's network namespaces. Clusters can therefore use equal
//! addresses without collisions.

use std::process::Stdio;

use crate::error::{Error, Result};
use crate::run;
use crate::space::Space;

/// Address of the control plane for nodes and pods.
pub(crate) const CONTROL: &str = "10.10.0.1";
const CONTROL_IPV6: &str = "fd00:10:10::1";
/// Addresses of services.
pub(crate) const SERVICES: &str = "10.96.0.0/16";
const SERVICES_IPV6: &str = "fd00:10:96::/112";
/// The `kubernetes` service.
pub(crate) const KUBERNETES: &str = "10.96.0.1";
/// Address of a cluster DNS server.
pub(crate) const DNS: &str = "10.96.0.10";
/// Addresses of all pods.
const PODS: &str = "10.244.0.0/16";
const PODS_IPV6: &str = "fd00:10:244::/56";

/// Enables IPv6 in a network namespace. Fails if the kernel has no IPv6.
const ENABLE_IPV6: &str = "echo 0 >/proc/sys/net/ipv6/conf/all/disable_ipv6\n";

/// The address families of a cluster. Nodes, pods and services have addresses of each family.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Families {
    /// IPv4 alone.
    Single,
    /// IPv4 and IPv6. The first addresses, which are the primary ones, are those of IPv4.
    Dual,
}

impl Families {
    fn select<T>(self, ipv4: T, ipv6: T) -> Vec<T> {
        match self {
            Self::Single => vec![ipv4],
            Self::Dual => vec![ipv4, ipv6],
        }
    }

    /// Returns the addresses of the control plane.
    pub(crate) fn control(self) -> Vec<&'static str> {
        self.select(CONTROL, CONTROL_IPV6)
    }

    /// Returns the addresses of services, as a list with commas.
    pub(crate) fn services(self) -> String {
        self.select(SERVICES, SERVICES_IPV6).join(",")
    }

    /// Returns the addresses of all pods, as a list with commas.
    pub(crate) fn pods(self) -> String {
        self.select(PODS, PODS_IPV6).join(",")
    }

    /// Returns the ranges of all addresses, for default routes.
    pub(crate) fn everything(self) -> Vec<&'static str> {
        self.select("0.0.0.0/0", "::/0")
    }

    /// Returns the addresses of a node, counted from 1. They have the same digits.
    pub(crate) fn node_addresses(self, index: usize) -> Vec<String> {
        let last = 10 + index;
        self.select(format!("10.10.0.{last}"), format!("fd00:10:10::{last}"))
    }

    /// Returns the pod addresses of a node, counted from 1.
    pub(crate) fn pod_ranges(self, index: usize) -> Vec<String> {
        self.select(
            format!("10.244.{index}.0/24"),
            format!("fd00:10:244:{index:x}::/64"),
        )
    }

    fn enable(self) -> &'static str {
        match self {
            Self::Single => "",
            Self::Dual => ENABLE_IPV6,
        }
    }
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
pub(crate) fn create_bridges(control: &Space, families: Families) -> Result<()> {
    let mut script = families.enable().to_owned();
    script.push_str(
        "for bridge in cluster0 spare0; do\n\
         ip link show $bridge >/dev/null 2>&1 || ip link add $bridge type bridge\n\
         ip link set $bridge up\n\
         done\n",
    );
    for address in families.control() {
        script.push_str(&assign(address, "cluster0"));
    }
    control.script(&script, Stdio::null()).map(drop)
}

/// Returns the command that gives a link that is up an address of the nodes' network. Without `nodad`, the kernel would
/// refuse to use an IPv6 address until it knows that no other machine has it.
fn assign(address: &str, link: &str) -> String {
    if address.contains(':') {
        format!("ip address replace {address}/64 dev {link} nodad\n")
    } else {
        format!("ip address replace {address}/24 dev {link}\n")
    }
}

/// Returns the commands that route the pods of a node, counted from 1, to the node.
fn route_pods(families: Families, index: usize) -> String {
    let paths = families
        .pod_ranges(index)
        .into_iter()
        .zip(families.node_addresses(index));
    paths
        .map(|(range, node)| format!("ip route replace {range} via {node}\n"))
        .collect()
}

/// Connects `node`, the `index`th of `count` nodes, to both bridges, and adds the routes to the other nodes' pod
/// ranges. With `count` 0, adds no routes.
pub(crate) fn connect_node(
    control: &Space,
    node: &Space,
    index: usize,
    count: usize,
    families: Families,
) -> Result<()> {
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
    script.push_str(&route_pods(families, index));
    control.script(&script, Stdio::from(node.network()?))?;
    node.script(&script_of_node(index, count, families), Stdio::null())
        .map(drop)
}

/// Returns the commands for the links of a node.
fn script_of_node(index: usize, count: usize, families: Families) -> String {
    let mut script = families.enable().to_owned();
    script.push_str("ip link set eth0 up\nip link set eth1 up\n");
    for address in families.node_addresses(index) {
        script.push_str(&assign(&address, "eth0"));
    }
    // A node that opens a connection to a Service needs a route before kube-proxy selects a pod.
    for (range, gateway) in families.everything().into_iter().zip(families.control()) {
        script.push_str(&format!("ip route replace {range} via {gateway}\n"));
    }
    for other in (1..=count).filter(|other| *other != index) {
        script.push_str(&route_pods(families, other));
    }
    script
}

#[cfg(test)]
mod tests {
    use std::net::Ipv6Addr;

    use super::*;

    #[test]
    fn node_of_one_family_has_no_ipv6_address() {
        assert_eq!(
            script_of_node(1, 2, Families::Single),
            "ip link set eth0 up\n\
             ip link set eth1 up\n\
             ip address replace 10.10.0.11/24 dev eth0\n\
             ip route replace 0.0.0.0/0 via 10.10.0.1\n\
             ip route replace 10.244.2.0/24 via 10.10.0.12\n"
        );
        assert_eq!(
            route_pods(Families::Single, 1),
            "ip route replace 10.244.1.0/24 via 10.10.0.11\n"
        );
    }

    #[test]
    fn dual_stack_node_has_addresses_and_routes_of_both_families() {
        assert_eq!(
            script_of_node(1, 2, Families::Dual),
            "echo 0 >/proc/sys/net/ipv6/conf/all/disable_ipv6\n\
             ip link set eth0 up\n\
             ip link set eth1 up\n\
             ip address replace 10.10.0.11/24 dev eth0\n\
             ip address replace fd00:10:10::11/64 dev eth0 nodad\n\
             ip route replace 0.0.0.0/0 via 10.10.0.1\n\
             ip route replace ::/0 via fd00:10:10::1\n\
             ip route replace 10.244.2.0/24 via 10.10.0.12\n\
             ip route replace fd00:10:244:2::/64 via fd00:10:10::12\n"
        );
        assert!(!script_of_node(1, 0, Families::Dual).contains("10.244"));
    }

    #[test]
    fn ipv6_pod_range_of_each_node_is_in_that_of_all_pods() {
        let segments = |range: &str| {
            let (address, _) = range.split_once('/').unwrap();
            address.parse::<Ipv6Addr>().unwrap().segments()
        };
        let mut expected = segments(PODS_IPV6);
        for index in [1, 16, 255] {
            expected[3] = index;
            assert_eq!(segments(&Families::Dual.pod_ranges(index.into())[1]), expected);
        }
    }

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
