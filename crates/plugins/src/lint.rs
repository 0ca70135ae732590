//! Lints configs without a call: reports configs that our plugins would reject, and keys that they would ignore.

use cni::Version;
use cni::config::NetworkConfig;
use cni::env::{Request, Variables, Verb};
use cni::json::{Object, folds_to};
use cni::names::key;
use cni::plugin::Call;

use crate::messages::{NO_IPAM, NO_RANGES};
use crate::names::{
    BANDWIDTH, DHCP, FIREWALL, HOST_LOCAL, OVS_MIRROR_CONSUMER, OVS_MIRROR_PRODUCER, PORTMAP, SBR, STATIC,
    TUNING, VRF,
};
use crate::{
    LINK_PLUGINS, bandwidth, dhcp, firewall, host_local, ovs_mirror, plugin_by_name, portmap, sbr,
    static_ipam, tuning, vrf,
};

/// Keys of every plugin: those of the protocol, and those that multus adds.
const COMMON: [&str; 11] = [
    key::CNI_VERSION,
    key::NAME,
    key::TYPE,
    key::CAPABILITIES,
    "ipam",
    "dns",
    "args",
    key::RUNTIME_CONFIG,
    key::PREV_RESULT,
    "deviceID",
    "pciBusID",
];
/// A placeholder interface name, which some validations include.
const INTERFACE: &str = "net1";
/// The capability that passes ranges with the call.
const IP_RANGES: &str = "ipRanges";

/// Findings in one plugin's config.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Lint {
    /// Errors that fail every attachment.
    pub errors: Vec<String>,
    /// Unknown keys, each with the plugin that ignores it.
    pub unknown: Vec<(String, String)>,
}

/// Lints the config of a plugin and its IPAM plugin if they are ours. Skips values that only a call provides.
pub fn lint(config: &NetworkConfig, version: Version) -> Lint {
    let mut lint = Lint::default();
    let call = call(config, version);
    let plugin = plugin_by_name(config.plugin()).map_or("", |plugin| plugin.name());
    let link_plugin = LINK_PLUGINS
        .iter()
        .find(|link_plugin| link_plugin.name() == plugin);
    let (refused, keys) = match link_plugin {
        Some(link_plugin) => (link_plugin.read(&call).map(drop), link_plugin.keys()),
        None => match plugin {
            BANDWIDTH => (bandwidth::validate(&call), bandwidth::keys()),
            FIREWALL => (firewall::validate(&call), firewall::keys()),
            OVS_MIRROR_CONSUMER | OVS_MIRROR_PRODUCER => {
                (ovs_mirror::validate(&call, plugin), ovs_mirror::keys())
            }
            PORTMAP => (portmap::validate(&call), portmap::keys()),
            SBR => (sbr::validate(&call), sbr::keys()),
            TUNING => (tuning::validate(&call), tuning::keys()),
            VRF => (vrf::validate(&call), vrf::keys()),
            _ => (Ok(()), &[][..]),
        },
    };
    if let Err(error) = refused {
        lint.errors.push(format!("plugin {}: {error}", config.plugin()));
    }
    if !keys.is_empty() {
        lint.unknown(config.plugin(), &config.object, &[keys, &COMMON]);
    }
    let ipam = config.ipam_plugin();
    let (refused, keys) = match ipam {
        DHCP => (dhcp::validate(&call), dhcp::ipam_keys()),
        HOST_LOCAL => (host_local::validate(&call), host_local::ipam_keys()),
        STATIC => (static_ipam::validate(&call), static_ipam::ipam_keys()),
        _ => (Ok(()), &[][..]),
    };
    match refused {
        Err(error) if error.msg == NO_RANGES && config.has_capability(IP_RANGES) => {}
        // The check of the plugin type already reports this in better words.
        Err(error) if error.msg == NO_IPAM => {}
        Err(error) => lint.errors.push(format!("IPAM plugin {ipam}: {error}")),
        Ok(()) => {}
    }
    let ipam_object = config
        .object
        .get("ipam")
        .map(|text| Object::parse(text.get().as_bytes()));
    if let Some(Ok(object)) = ipam_object
        && !keys.is_empty()
    {
        lint.unknown(ipam, &object, &[keys, &[key::TYPE]]);
    }
    lint
}

impl Lint {
    fn unknown(&mut self, plugin: &str, object: &Object, known: &[&[&str]]) {
        let is_known = |key: &str| known.iter().copied().flatten().any(|field| folds_to(key, field));
        let unknown = object.iter().map(|(key, _)| key).filter(|key| !is_known(key));
        self.unknown
            .extend(unknown.map(|key| (plugin.to_owned(), key.to_owned())));
    }
}

/// A synthetic ADD.
fn call(config: &NetworkConfig, version: Version) -> Call {
    Call {
        plugin: "",
        request: Request {
            verb: Verb::Add,
            container_id: "lint".to_owned(),
            netns: None,
            ifname: INTERFACE.to_owned(),
            args: String::new(),
            path: Vec::new(),
            netns_override: false,
        },
        config: config.clone(),
        version,
        stdin: Vec::new(),
        variables: Variables::new(),
        resident: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(config: &str) -> Lint {
        let config = NetworkConfig::parse(config.as_bytes()).unwrap();
        lint(&config, Version::V1_0_0)
    }

    fn errors(config: &str) -> Vec<String> {
        of(config).errors
    }

    #[test]
    fn valid_configs_have_no_findings() {
        for config in [
            r#"{"type":"bridge"}"#,
            r#"{"cniVersion":"1.0.0","name":"n","type":"cnv-bridge","bridge":"br1","VLAN":7,"macspoofchk":true,
                "capabilities":{"mac":true},"args":{"cni":{"mac":"02:00:00:00:00:01"}},
                "ipam":{"type":"host-local","ranges":[[{"subnet":"10.1.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}"#,
            r#"{"type":"tuning","sysctl":{"net.ipv4.conf.IFNAME.arp_filter":"1"},"mtu":1400,"txQLen":7}"#,
            r#"{"type":"portmap","capabilities":{"portMappings":true},"snat":true,"conditionsV4":["ip","daddr","!=","10.0.0.1"]}"#,
            r#"{"type":"bandwidth","capabilities":{"bandwidth":true},"ingressRate":8000,"ingressBurst":8000}"#,
            r#"{"type":"firewall","ingressPolicy":"same-bridge","iptablesAdminChainName":"ADMIN"}"#,
            r#"{"type":"sbr","table":100,"addSourceHints":true}"#,
            r#"{"type":"ovs","bridge":"br1","vlan":100,"trunk":[{"id":42}],"vlan_mode":"native-tagged","mtu":1400,
                "interface_type":"system","socket_file":"unix:/s","link_state_check_retries":3,"args":{"cni":{"ovnPort":"p"}}}"#,
            r#"{"type":"ovs-mirror-producer","bridge":"br1","mirrors":[{"name":"m","ingress":true}]}"#,
            r#"{"type":"ovs-mirror-consumer","bridge":"br1","configuration_path":"/x","mirrors":[{"name":"m"}]}"#,
            r#"{"type":"sriov","anything":1,"ipam":{"type":"static","addresses":[{"address":"10.1.0.1/24"}]}}"#,
            r#"{"type":"macvlan","ipam":{"type":"whereabouts","range":"nonsense","x":1}}"#,
            r#"{"type":"bridge","capabilities":{"ipRanges":true},"ipam":{"type":"host-local"}}"#,
            r#"{"type":"bridge","ipam":{}}"#,
            r#"{"cniVersion":"0.4.0","type":"egress-router","name":"n","interfaceArgs":{"master":"eth1"},
                "ip":{"addresses":["192.0.2.2/24"],"destinations":["80 TCP 203.0.113.9"],"gateway":"192.0.2.1"},
                "log_file":"/tmp/egress-router-log","log_level":"debug"}"#,
            r#"{"type":"macvtap","mtu":1400,"promiscMode":true,"owner":107,"group":107,"mac":"02:00:00:00:00:01"}"#,
        ] {
            assert_eq!(of(config), Lint::default(), "{config}");
        }
    }

    #[test]
    fn invalid_configs_are_reported() {
        for (config, text) in [
            (
                r#"{"type":"bridge","vlan":5000}"#,
                "plugin bridge: invalid VLAN ID 5000 (must be between 0 and 4094)",
            ),
            (
                r#"{"type":"cnv-bridge","hairpinMode":true,"promiscMode":true}"#,
                "plugin cnv-bridge: cannot set hairpin mode and promiscuous mode at the same time",
            ),
            (
                r#"{"type":"macvlan","mode":"switch"}"#,
                "plugin macvlan: unknown macvlan mode: \"switch\"",
            ),
            (
                r#"{"type":"ipvlan","mode":"l4"}"#,
                "plugin ipvlan: unknown ipvlan mode: \"l4\"",
            ),
            (
                r#"{"type":"vlan","vlanId":5}"#,
                "plugin vlan: \"master\" field is required. It specifies the host interface name to create the VLAN for",
            ),
            (
                r#"{"type":"vlan","master":"eth0","vlanId":4095}"#,
                "plugin vlan: invalid VLAN ID 4095 (must be between 0 and 4095 inclusive)",
            ),
            (
                r#"{"type":"vlan","master":"eth0","vlanId":5}"#,
                "plugin vlan: failed to execute IPAM delegate: no plugin name provided",
            ),
            (
                r#"{"type":"host-device"}"#,
                "plugin host-device: specify either \"device\", \"hwaddr\", \"kernelpath\" or \"pciBusID\"",
            ),
            (r#"{"type":"macvtap","mtu":-1}"#, "plugin macvtap: invalid MTU -1"),
            (
                r#"{"type":"tap","mac":"x"}"#,
                "plugin tap: invalid args x for MAC addr: address x: invalid MAC address",
            ),
            (
                r#"{"type":"vrf"}"#,
                "plugin vrf: configuration is expected to have a valid vrf name",
            ),
            (r#"{"type":"ptp"}"#, "plugin ptp: no plugin name provided"),
            (
                r#"{"type":"dummy"}"#,
                "plugin dummy: dummy interface requires an IPAM configuration",
            ),
            (
                r#"{"type":"tuning","sysctl":{"a":"1","a":"2"}}"#,
                "plugin tuning: duplicated sysctl keys are not allowed",
            ),
            (
                r#"{"type":"portmap","backend":"pf"}"#,
                "plugin portmap: failed to parse config: unrecognized backend \"pf\"",
            ),
            (
                r#"{"type":"bandwidth","egressRate":8}"#,
                "plugin bandwidth: if rate is set, burst must also be set",
            ),
            (
                r#"{"type":"cnv-firewall","ingressPolicy":"closed"}"#,
                "plugin cnv-firewall: unknown ingress policy: \"closed\"",
            ),
            (
                r#"{"type":"ovs","bridge":"br1","trunk":[{"id":4096}]}"#,
                "plugin ovs: incorrect trunk id parameter",
            ),
            (
                r#"{"type":"ovs-mirror-producer","bridge":"br1","mirrors":[{"name":"m"}]}"#,
                "plugin ovs-mirror-producer: a mirror producer must have either a ingress or an egress or both",
            ),
            (
                r#"{"type":"sbr","gateways":["here"]}"#,
                "plugin sbr: invalid static gateway IP address: here",
            ),
            (
                r#"{"type":"bridge","ipam":{"type":"dhcp","request":[{"option":"router"}]}}"#,
                "IPAM plugin dhcp: Can not parse option \"router\": invalid digit found in string",
            ),
            (
                r#"{"type":"bridge","ipam":{"type":"host-local"}}"#,
                "IPAM plugin host-local: no IP ranges specified",
            ),
            (
                r#"{"type":"macvlan","ipam":{"type":"static","addresses":[{"address":"10.1.0.1"}]}}"#,
                "IPAM plugin static: the 'address' field is expected to be in CIDR notation, got: '10.1.0.1'",
            ),
        ] {
            assert_eq!(errors(config), [text], "{config}");
        }
        let wrong_type = errors(r#"{"type":"bridge","mtu":"big"}"#);
        assert!(
            wrong_type[0].starts_with("plugin bridge: failed to load netconf: "),
            "{wrong_type:?}"
        );
    }

    #[test]
    fn unknown_keys_are_reported() {
        let lint = of(
            r#"{"type":"bridge","bridg":"br1","IsGateway":true,"ipam":{"type":"host-local","subnet":"10.1.0.0/24","gatway":"x"}}"#,
        );
        let pair = |plugin: &str, key: &str| (plugin.to_owned(), key.to_owned());
        assert_eq!(
            lint.unknown,
            [pair("bridge", "bridg"), pair("host-local", "gatway")]
        );
        assert!(lint.errors.is_empty());
        let ipam = r#""ipam":{"type":"static","addresses":[{"address":"10.1.0.1/24"}]}"#;
        for (plugin, known) in [
            (
                "macvlan",
                r#""master":"e","mode":"vepa","bcqueuelen":7,"mac":"02:00:00:00:00:01","linkInContainer":true"#,
            ),
            ("ipvlan", r#""master":"e","mode":"l3s","mtu":1400"#),
            (
                "vlan",
                r#""master":"e","vlanId":7,"mtu":1400,"linkInContainer":false"#,
            ),
            ("dummy", r#""dns":{}"#),
            (
                "host-device",
                r#""device":"eth1","hwaddr":"","kernelpath":"","pciBusID":"""#,
            ),
            (
                "tap",
                r#""multiQueue":true,"owner":107,"group":107,"selinuxContext":"a","bridge":"b""#,
            ),
            ("vrf", r#""vrfname":"blue","table":7"#),
            ("ptp", r#""ipMasq":true,"ipMasqBackend":"nftables","mtu":1400"#),
        ] {
            let lint = of(&format!(r#"{{"type":"{plugin}",{known},"other":1,{ipam}}}"#));
            assert_eq!(lint.unknown, [pair(plugin, "other")]);
            assert!(lint.errors.is_empty(), "{:?}", lint.errors);
        }
    }
}
