//! The measured cases and their configurations, as pure values.

use std::path::Path;

use serde_json::{Value, json};

/// Version of all configurations: the newest that Debian's plugins support.
const VERSION: &str = "1.0.0";
/// Name of the network, and of host-local's directory.
pub(crate) const NETWORK: &str = "bench";
/// Name of the bridge.
pub(crate) const BRIDGE: &str = "br0";
/// The interface in the container.
pub(crate) const IFNAME: &str = "net1";
/// The host's end of a container's veth pair.
pub(crate) const OUTER: &str = "veth0";
/// The parent of macvlans and ipvlans on a host.
pub(crate) const PARENT: &str = "eth0";
/// The address of containers without a range.
const ADDRESS: &str = "10.63.0.2/16";
/// Bits per second, and burst in bits.
const RATE: u64 = 8_000_000;
/// Number of port mappings of each existing container.
const MAPPINGS: u32 = 10;
/// First mapped port of the host.
const FIRST_PORT: u32 = 20_000;
/// First two bytes of host-local's addresses.
const SUBNET: [u8; 2] = [10, 64];

/// A case: an entry of [`CASES`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct Case {
    /// Name on the command line and in the title of its table.
    pub(crate) name: &'static str,
    /// The measured plugin.
    pub(crate) plugin: &'static str,
    /// Configuration besides the version, the network and the plugin.
    keys: fn(&Place<'_>) -> Value,
    /// Initial state of each host.
    pub(crate) host: Before,
    /// Initial state of each container.
    pub(crate) container: Interface,
    /// The part of the work that bare netlink does.
    pub(crate) floor: Floor,
}

/// Parameters of a configuration.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    /// Path of the container's namespace.
    pub(crate) sandbox: &'a Path,
    /// Directory of addresses.
    pub(crate) data: &'a Path,
    /// 0 for the measured container, or else the number of an existing one.
    pub(crate) number: u32,
}

/// Initial state of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Before {
    /// A bridge, as on all hosts.
    Bridge,
    /// A number of ports with MAC spoof check.
    GuardedPorts(u32),
    /// A number of taken addresses.
    Leases(u16),
    /// A number of containers that the plugin attached.
    Containers(u32),
}

/// Initial state of a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Interface {
    /// The plugin creates the interface.
    None,
    /// An interface whose other end is in the container too.
    Own,
    /// An interface whose other end is [`OUTER`] of the host.
    Attached,
}

/// The work of bare netlink, for comparison with a plugin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Floor {
    /// No comparison.
    None,
    /// A veth pair, up.
    Pair,
    /// A veth pair, up, with the host's end as a port of the bridge.
    Port,
    /// A link on the host's [`PARENT`], up.
    Child(Kind),
}

/// Kinds of links with a parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    MacVlan,
    IpVlan,
}

/// A case without special requirements.
const PLAIN: Case = Case {
    name: "",
    plugin: "bridge",
    keys: |_| json!({ "bridge": BRIDGE }),
    host: Before::Bridge,
    container: Interface::None,
    floor: Floor::Port,
};
/// A case of a chained plugin, which only needs the name of the interface.
const CHAINED: Case = Case {
    floor: Floor::None,
    ..PLAIN
};

/// All cases, in the order of their measurement.
pub(crate) const CASES: [Case; 17] = [
    Case {
        name: "bridge",
        ..PLAIN
    },
    Case {
        name: "bridge+static",
        keys: |_| {
            let ipam = json!({ "type": "static", "addresses": [{ "address": ADDRESS }] });
            json!({ "bridge": BRIDGE, "ipam": ipam })
        },
        ..PLAIN
    },
    Case {
        name: "bridge+host-local",
        keys: |place| json!({ "bridge": BRIDGE, "ipam": range(place) }),
        ..PLAIN
    },
    Case {
        name: "bridge+ipMasq",
        keys: |place| json!({ "bridge": BRIDGE, "isGateway": true, "ipMasq": true, "ipam": range(place) }),
        ..PLAIN
    },
    guarded("bridge+macspoofchk@1", 1),
    guarded("bridge+macspoofchk@100", 100),
    guarded("bridge+macspoofchk@1000", 1000),
    Case {
        name: "ptp",
        plugin: "ptp",
        keys: |place| json!({ "ipam": range(place) }),
        floor: Floor::Pair,
        ..PLAIN
    },
    child("macvlan", Kind::MacVlan),
    child("ipvlan", Kind::IpVlan),
    Case {
        name: "host-local@10000",
        plugin: "host-local",
        keys: |place| json!({ "ipam": range(place) }),
        host: Before::Leases(10_000),
        ..CHAINED
    },
    Case {
        name: "tuning",
        plugin: "tuning",
        keys: |place| {
            json!({
                "mac": "02:00:00:00:be:ac", "mtu": 1400, "sysctl": { "net.ipv4.conf.IFNAME.arp_filter": "1" },
                "prevResult": previous(place, None),
            })
        },
        container: Interface::Own,
        ..CHAINED
    },
    mapped("portmap@1", 0),
    mapped("portmap@1000", 1000 / MAPPINGS),
    admitted("firewall@1", 0),
    admitted("firewall@100", 100),
    Case {
        name: "bandwidth",
        plugin: "bandwidth",
        keys: |place| {
            json!({
                "ingressRate": RATE, "ingressBurst": RATE, "egressRate": RATE, "egressBurst": RATE,
                "prevResult": previous(place, None),
            })
        },
        container: Interface::Attached,
        ..CHAINED
    },
];

const fn guarded(name: &'static str, ports: u32) -> Case {
    Case {
        name,
        keys: |_| json!({ "bridge": BRIDGE, "macspoofchk": true }),
        host: Before::GuardedPorts(ports),
        ..PLAIN
    }
}

const fn child(name: &'static str, kind: Kind) -> Case {
    Case {
        name,
        plugin: name,
        keys: |place| json!({ "master": PARENT, "ipam": range(place) }),
        floor: Floor::Child(kind),
        ..PLAIN
    }
}

/// One mapping, beside a number of containers with [`MAPPINGS`] each.
const fn mapped(name: &'static str, containers: u32) -> Case {
    Case {
        name,
        plugin: "portmap",
        keys: mappings,
        host: Before::Containers(containers),
        ..CHAINED
    }
}

/// One address, beside this number of containers with an address each.
const fn admitted(name: &'static str, containers: u32) -> Case {
    Case {
        name,
        plugin: "firewall",
        keys: |place| json!({ "prevResult": previous(place, Some(&address(place))) }),
        host: Before::Containers(containers),
        ..CHAINED
    }
}

/// Returns the cases with these names. A name without `@…` selects all sizes. No names select all cases. An unknown
/// name is an error.
pub(crate) fn chosen(names: &[String]) -> Result<Vec<Case>, String> {
    let is = |case: &Case, name: &str| {
        case.name == name || case.name.split_once('@').is_some_and(|(stem, _)| stem == name)
    };
    if let Some(unknown) = names.iter().find(|name| !CASES.iter().any(|case| is(case, name))) {
        let known = CASES.map(|case| case.name).join(", ");
        return Err(format!("no case is called \"{unknown}\"; there are: {known}"));
    }
    let wanted = |case: &Case| names.is_empty() || names.iter().any(|name| is(case, name));
    Ok(CASES.into_iter().filter(wanted).collect())
}

impl Case {
    /// Returns the standard input of a call.
    pub(crate) fn config(&self, place: &Place<'_>) -> Value {
        let mut config = json!({ "cniVersion": VERSION, "name": NETWORK, "type": self.plugin });
        if let Value::Object(keys) = (self.keys)(place) {
            for (key, value) in keys {
                config[key] = value;
            }
        }
        config
    }
}

fn range(place: &Place<'_>) -> Value {
    let [a, b] = SUBNET;
    let subnet = format!("{a}.{b}.0.0/16");
    json!({ "type": "host-local", "dataDir": place.data, "ranges": [[{ "subnet": subnet }]] })
}

/// Returns the result of the previous plugin.
fn previous(place: &Place<'_>, address: Option<&str>) -> Value {
    let addresses: Vec<_> = address
        .iter()
        .map(|address| json!({ "address": address, "interface": 1 }))
        .collect();
    json!({
        "cniVersion": VERSION,
        "interfaces": [
            { "name": OUTER, "mac": "02:00:00:00:00:01" },
            { "name": IFNAME, "mac": "02:00:00:00:00:02", "sandbox": place.sandbox },
        ],
        "ips": addresses,
    })
}

/// Returns the ports of the host that lead to a container: one for the measured container, or else [`MAPPINGS`].
fn mappings(place: &Place<'_>) -> Value {
    let count = if place.number == 0 { 1 } else { MAPPINGS };
    let first = FIRST_PORT + place.number * MAPPINGS;
    let ports: Vec<_> = (first..first + count)
        .map(|port| json!({ "hostPort": port, "containerPort": 80, "protocol": "tcp" }))
        .collect();
    json!({ "runtimeConfig": { "portMappings": ports }, "prevResult": previous(place, Some(&address(place))) })
}

/// The address of a container whose address another plugin assigned.
fn address(place: &Place<'_>) -> String {
    let [c, d] = u16::try_from(place.number).unwrap_or_default().to_be_bytes();
    format!("10.62.{c}.{d}/16")
}

/// Returns the container ID number `number` of a kind: 64 digits, as from runtimes.
pub(crate) fn container_id(kind: u8, number: u32) -> String {
    format!("{kind:02x}{number:062x}")
}

/// Returns host-local's files for a number of addresses: name and content (cni-plugins §6).
pub(crate) fn leases(used: u16) -> Vec<(String, String)> {
    let [a, b] = SUBNET;
    // The first address belongs to the gateway.
    let address = |number: u16| {
        let [c, d] = (number + 2).to_be_bytes();
        format!("{a}.{b}.{c}.{d}")
    };
    let lease = |number: u16| {
        let id = container_id(0xff, number.into());
        (address(number), format!("{id}\r\n{IFNAME}"))
    };
    let mut files: Vec<(String, String)> = (0..used).map(lease).collect();
    if let Some(last) = used.checked_sub(1) {
        files.push(("last_reserved_ip.0".to_owned(), address(last)));
    }
    files
}

/// A port with MAC spoof check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Port {
    /// The host's end of the pair.
    pub(crate) name: String,
    /// The container's address.
    pub(crate) mac: String,
    pub(crate) container_id: String,
    /// The container's end.
    pub(crate) ifname: String,
}

/// Returns the input of `nft -f` for upstream's spoof check of these ports (cni-plugins §4).
pub(crate) fn spoof_rules(ports: &[Port]) -> String {
    let mut jumps = String::new();
    let mut chains = String::new();
    for port in ports {
        let Port {
            name,
            mac,
            container_id,
            ifname,
        } = port;
        let chain = format!("cni-br-iface-{container_id}-{ifname}");
        let comment = format!("comment \"macspoofchk-{container_id}-{ifname}\"");
        jumps.push_str(&format!("iifname \"{name}\" jump {chain} {comment}\n"));
        chains.push_str(&format!(
            "chain {chain}-mac {{\nether saddr {mac} return {comment}\ndrop {comment}\n}}\n\
             chain {chain} {{\njump {chain}-mac {comment}\n}}\n"
        ));
    }
    format!(
        "table bridge nat {{\n{chains}chain PREROUTING {{\n\
         type filter hook prerouting priority -300; policy accept;\n{jumps}}}\n}}\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(name: &str) -> Value {
        config_of(name, 0)
    }

    fn config_of(name: &str, number: u32) -> Value {
        let case = chosen(&[name.to_owned()]).unwrap()[0];
        case.config(&Place {
            sandbox: Path::new("/run/netns/a"),
            data: Path::new("/data"),
            number,
        })
    }

    #[test]
    fn name_selects_a_case_and_a_stem_selects_all_sizes() {
        assert_eq!(chosen(&[]).unwrap().len(), CASES.len());
        let named = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
            chosen(&names).map(|cases| cases.iter().map(|case| case.name).collect::<Vec<_>>())
        };
        assert_eq!(named(&["tuning", "bridge"]).unwrap(), ["bridge", "tuning"]);
        assert_eq!(named(&["bridge+macspoofchk"]).unwrap().len(), 3);
        let error = named(&["bridge", "brigde"]).unwrap_err();
        assert!(
            error.contains("\"brigde\"") && error.contains("host-local@10000"),
            "{error}"
        );
    }

    #[test]
    fn config_names_its_plugin_and_the_measured_feature() {
        assert_eq!(
            config("bridge"),
            json!({ "cniVersion": "1.0.0", "name": "bench", "type": "bridge", "bridge": "br0" })
        );
        assert_eq!(config("bridge+static")["ipam"]["type"], "static");
        let masquerade = config("bridge+ipMasq");
        assert_eq!(
            (&masquerade["isGateway"], &masquerade["ipMasq"]),
            (&json!(true), &json!(true))
        );
        assert_eq!(masquerade["ipam"]["dataDir"], "/data");
        assert_eq!(config("bridge+macspoofchk@100")["macspoofchk"], true);
        assert_eq!(config("host-local@10000")["type"], "host-local");
        let tuning = config("tuning");
        assert_eq!(tuning["prevResult"]["interfaces"][1]["sandbox"], "/run/netns/a");
        assert_eq!(tuning["mtu"], 1400);
        for name in ["macvlan", "ipvlan"] {
            assert_eq!(
                (&config(name)["type"], &config(name)["master"]),
                (&json!(name), &json!(PARENT))
            );
        }
        let firewall = config("firewall");
        assert_eq!(firewall["prevResult"]["ips"][0]["address"], "10.62.0.0/16");
        assert_eq!(config("bandwidth")["prevResult"]["interfaces"][0]["name"], OUTER);
    }

    #[test]
    fn ports_of_all_containers_are_a_thousand_different_ones() {
        let ports = |number| -> Vec<u64> {
            let config = config_of("portmap@1000", number);
            let mappings = config["runtimeConfig"]["portMappings"].as_array().unwrap();
            mappings
                .iter()
                .map(|mapping| mapping["hostPort"].as_u64().unwrap())
                .collect()
        };
        let case = chosen(&["portmap@1000".to_owned()]).unwrap()[0];
        let Before::Containers(containers) = case.host else {
            panic!("{case:?}");
        };
        let mut all: Vec<u64> = (0..=containers).flat_map(ports).collect();
        assert_eq!(all.len(), 1001);
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 1001);
        assert!(all.iter().all(|port| u16::try_from(*port).is_ok()));
        let last = config_of("portmap@1000", containers);
        assert_eq!(last["prevResult"]["ips"][0]["address"], "10.62.0.100/16");
    }

    #[test]
    fn leases_are_files_of_consecutive_addresses_after_the_gateway() {
        let files = leases(300);
        assert_eq!(
            files[0],
            ("10.64.0.2".to_owned(), format!("ff{:062x}\r\nnet1", 0))
        );
        assert_eq!(files[299].0, "10.64.1.45");
        assert_eq!(
            files[300],
            ("last_reserved_ip.0".to_owned(), "10.64.1.45".to_owned())
        );
        assert!(leases(0).is_empty());
    }

    #[test]
    fn spoof_rules_have_the_names_and_comments_of_upstream() {
        let port = Port {
            name: "veth1".to_owned(),
            mac: "02:00:00:00:00:07".to_owned(),
            container_id: "abc".to_owned(),
            ifname: "net1".to_owned(),
        };
        let expected = r#"table bridge nat {
chain cni-br-iface-abc-net1-mac {
ether saddr 02:00:00:00:00:07 return comment "macspoofchk-abc-net1"
drop comment "macspoofchk-abc-net1"
}
chain cni-br-iface-abc-net1 {
jump cni-br-iface-abc-net1-mac comment "macspoofchk-abc-net1"
}
chain PREROUTING {
type filter hook prerouting priority -300; policy accept;
iifname "veth1" jump cni-br-iface-abc-net1 comment "macspoofchk-abc-net1"
}
}
"#;
        assert_eq!(spoof_rules(&[port]), expected);
    }
}
