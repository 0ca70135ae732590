//! What is measured, and the configs that it takes: pure values.

use std::path::Path;

use serde_json::{Value, json};

/// Version of all configs: the newest that Debian's plugins speak.
const VERSION: &str = "1.0.0";
/// Name of the network, and so of the directory that host-local keeps its addresses in.
pub(crate) const NETWORK: &str = "bench";
/// Name of the bridge.
pub(crate) const BRIDGE: &str = "br0";
/// The interface in the container.
pub(crate) const IFNAME: &str = "net1";
/// First two bytes of the addresses that host-local gives.
const SUBNET: [u8; 2] = [10, 64];

/// One thing to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Case {
    /// What it is called on the command line and above its table.
    pub(crate) name: &'static str,
    pub(crate) what: What,
}

/// The plugin and what it has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum What {
    /// `bridge`, without addresses.
    Layer2,
    /// `bridge` with an address of a fixed list.
    Static,
    /// `bridge` with an address of a range.
    HostLocal,
    /// The same as a gateway that masquerades.
    Masquerade,
    /// `bridge` with the MAC spoof check, while so many other ports have it.
    SpoofCheck { ports: u32 },
    /// `host-local` alone, while so many addresses are taken.
    Addresses { used: u16 },
    /// `tuning` of MAC, MTU and one kernel setting.
    Tuning,
}

/// All of them, in the order in which they are measured.
pub(crate) const CASES: [Case; 9] = [
    case("bridge", What::Layer2),
    case("bridge+static", What::Static),
    case("bridge+host-local", What::HostLocal),
    case("bridge+ipMasq", What::Masquerade),
    case("bridge+macspoofchk@1", What::SpoofCheck { ports: 1 }),
    case("bridge+macspoofchk@100", What::SpoofCheck { ports: 100 }),
    case("bridge+macspoofchk@1000", What::SpoofCheck { ports: 1000 }),
    case("host-local@10000", What::Addresses { used: 10_000 }),
    case("tuning", What::Tuning),
];

const fn case(name: &'static str, what: What) -> Case {
    Case { name, what }
}

/// The cases called so; a name without `@…` means all sizes. All cases for no names, an error for an unknown one.
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
    /// Name of the plugin that is called.
    pub(crate) fn plugin(&self) -> &'static str {
        match self.what {
            What::Addresses { .. } => "host-local",
            What::Tuning => "tuning",
            _ => "bridge",
        }
    }

    /// Whether the container's interface is what the plugin makes: then bare netlink has something to compare with.
    pub(crate) fn attaches(&self) -> bool {
        self.plugin() == "bridge"
    }

    /// Standard input of a call for the container at `sandbox`, with addresses kept in `data`.
    pub(crate) fn config(&self, sandbox: &Path, data: &Path) -> Value {
        let mut config = json!({ "cniVersion": VERSION, "name": NETWORK, "type": self.plugin() });
        if self.attaches() {
            config["bridge"] = json!(BRIDGE);
        }
        match self.what {
            What::Layer2 => {}
            What::Static => {
                config["ipam"] = json!({ "type": "static", "addresses": [{ "address": "10.63.0.2/16" }] });
            }
            What::HostLocal | What::Addresses { .. } => config["ipam"] = range(data),
            What::Masquerade => {
                config["ipam"] = range(data);
                config["isGateway"] = json!(true);
                config["ipMasq"] = json!(true);
            }
            What::SpoofCheck { .. } => config["macspoofchk"] = json!(true),
            What::Tuning => {
                config["mac"] = json!("02:00:00:00:be:ac");
                config["mtu"] = json!(1400);
                config["sysctl"] = json!({ "net.ipv4.conf.IFNAME.arp_filter": "1" });
                config["prevResult"] = json!({
                    "cniVersion": VERSION,
                    "interfaces": [{ "name": IFNAME, "mac": "02:00:00:00:00:01", "sandbox": sandbox }],
                });
            }
        }
        config
    }
}

fn range(data: &Path) -> Value {
    let [a, b] = SUBNET;
    json!({ "type": "host-local", "dataDir": data, "ranges": [[{ "subnet": format!("{a}.{b}.0.0/16") }]] })
}

/// Container ID number `number` of some kind: 64 digits, as runtimes make them.
pub(crate) fn container_id(kind: u8, number: u32) -> String {
    format!("{kind:02x}{number:062x}")
}

/// Files in host-local's directory after it gave out so many addresses: name and content (cni-plugins §6).
pub(crate) fn leases(used: u16) -> Vec<(String, String)> {
    let [a, b] = SUBNET;
    // The first is the gateway's.
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

/// A port that has the MAC spoof check.
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

/// What `nft -f` takes to lay down the established spoof check of these ports (cni-plugins §4).
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
        let case = chosen(&[name.to_owned()]).unwrap()[0];
        case.config(Path::new("/run/netns/a"), Path::new("/data"))
    }

    #[test]
    fn names_choose_cases_and_a_stem_chooses_all_sizes() {
        assert_eq!(chosen(&[]).unwrap(), CASES);
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
    fn every_config_names_its_plugin_and_asks_for_what_the_case_measures() {
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
        assert_eq!(tuning["prevResult"]["interfaces"][0]["sandbox"], "/run/netns/a");
        assert_eq!(tuning["mtu"], 1400);
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
    fn spoof_rules_have_the_established_names_and_comments() {
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
