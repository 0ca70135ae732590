//! The config of `bridge`.

use cni::{Error, args::CniArgs, json, plugin::Call, result::Dns};
use linux::link::Mac;
use serde::Deserialize;

use super::{
    node_defaults::NodeDefaults,
    vlans::{TrunkItem, Vlans},
};
use crate::{
    attach::{WireDns, WireMac},
    config::read_config,
    ipam,
    masquerade::Choice,
    messages::{HAIRPIN_AND_PROMISC, IPAM_WITHOUT_INTERFACE, MAKE_VETH},
    names::{DEFAULT_BRIDGE, arg},
};

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(
    clippy::struct_excessive_bools,
    reason = "these are the keys that users write"
)]
struct Wire {
    bridge: String,
    is_gateway: bool,
    is_default_gateway: bool,
    force_address: bool,
    ip_masq: bool,
    ip_masq_backend: String,
    mtu: i64,
    hairpin_mode: bool,
    promisc_mode: bool,
    vlan: i64,
    vlan_trunk: Option<Vec<TrunkItem>>,
    preserve_default_vlan: Option<bool>,
    macspoofchk: bool,
    enabledad: bool,
    disable_container_interface: bool,
    port_isolation: bool,
    dns: WireDns,
    args: WireArgs,
    runtime_config: WireMac,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct WireArgs {
    cni: WireMac,
}

/// A validated config.
#[derive(Debug, PartialEq, Eq)]
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
pub(super) struct Config {
    /// The bridge's name.
    pub(super) bridge: String,
    /// Assigns the gateway's address to the bridge.
    pub(super) is_gateway: bool,
    /// Adds default routes via the bridge.
    pub(super) is_default_gateway: bool,
    /// Replaces conflicting addresses of the bridge.
    pub(super) force_address: bool,
    /// MTU of the pair and of a new bridge, in bytes.
    pub(super) mtu: Option<u32>,
    /// Permits frames to return through the port they came from.
    pub(super) hairpin: bool,
    /// Sets the bridge promiscuous.
    pub(super) promiscuous: bool,
    /// Blocks frames to and from other isolated ports.
    pub(super) isolated: bool,
    /// VLANs of the port. `None` leaves VLANs unconfigured.
    pub(super) vlans: Option<Vlans>,
    /// Enables IPv6 duplicate address detection in the pod.
    pub(super) detect_duplicates: bool,
    /// Leaves the pod's link down.
    pub(super) leave_down: bool,
    /// Drops frames from the pod with a spoofed source MAC.
    pub(super) spoof_check: bool,
    /// Masquerades packets that leave the pod's subnet.
    pub(super) masquerade: Option<Choice>,
    /// MAC of the pod's link.
    pub(super) mac: Option<Mac>,
    /// DNS settings that replace those of IPAM.
    pub(super) dns: Option<Dns>,
}

/// The keys of a config.
pub(super) fn keys() -> &'static [&'static str] {
    json::fields_of::<Wire>()
}

impl Config {
    /// Reads and validates the config of an ADD or CHECK.
    pub(super) fn read(call: &Call) -> Result<Self, Error> {
        let mut wire: Wire = read_config(call)?;
        if wire.asks_for_vlans() && wire.preserve_default_vlan.is_none() {
            let node = NodeDefaults::read(&call.request.path)?;
            wire.preserve_default_vlan = Some(node.preserve_default_vlan);
        }
        Config::new(wire, &call.args()?, ipam::is_wanted(call))
    }

    fn new(wire: Wire, args: &CniArgs, layer3: bool) -> Result<Self, Error> {
        let keep_default = wire.preserve_default_vlan.unwrap_or_default();
        let vlans = Vlans::new(wire.vlan, wire.vlan_trunk.as_deref(), keep_default)?;
        let mac = mac(&wire, args)?;
        // Like upstream, ignores the backend without masquerading.
        let backend = wire.ip_masq.then(|| Choice::named(&wire.ip_masq_backend));
        if layer3 && wire.disable_container_interface {
            return Err(Error::internal(IPAM_WITHOUT_INTERFACE));
        }
        if wire.hairpin_mode && wire.promisc_mode {
            return Err(Error::internal(HAIRPIN_AND_PROMISC));
        }
        Ok(Config {
            bridge: if wire.bridge.is_empty() {
                DEFAULT_BRIDGE.to_owned()
            } else {
                wire.bridge
            },
            is_gateway: wire.is_gateway || wire.is_default_gateway,
            is_default_gateway: wire.is_default_gateway,
            force_address: wire.force_address,
            mtu: u32::try_from(wire.mtu).ok().filter(|mtu| *mtu > 0),
            hairpin: wire.hairpin_mode,
            promiscuous: wire.promisc_mode,
            isolated: wire.port_isolation,
            vlans,
            detect_duplicates: wire.enabledad,
            leave_down: wire.disable_container_interface,
            spoof_check: wire.macspoofchk,
            masquerade: backend.transpose()?,
            mac,
            dns: wire.dns.given(),
        })
    }
}

impl Wire {
    fn asks_for_vlans(&self) -> bool {
        self.vlan != 0 || self.vlan_trunk.is_some()
    }
}

/// The pod's MAC: from `runtimeConfig.mac`, `args.cni.mac` or `MAC` in `CNI_ARGS`, in this order.
fn mac(wire: &Wire, args: &CniArgs) -> Result<Option<Mac>, Error> {
    args.require_known(&[arg::MAC])?;
    let sources = [
        wire.runtime_config.mac.as_str(),
        &wire.args.cni.mac,
        args.get(arg::MAC).unwrap_or_default(),
    ];
    let Some(text) = sources.into_iter().find(|text| !text.is_empty()) else {
        return Ok(None);
    };
    text.parse()
        .map(Some)
        .map_err(|error: linux::link::InvalidMac| Error::internal(format!("{MAKE_VETH}: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::masquerade::Backend;

    fn read(config: &str, args: &str, layer3: bool) -> Result<Config, Error> {
        let wire = json::from_str(config).unwrap();
        Config::new(wire, &CniArgs::parse(args).unwrap(), layer3)
    }

    fn message(config: &str, layer3: bool) -> String {
        let error = read(config, "", layer3).unwrap_err();
        assert_eq!(error.code, 999);
        error.msg
    }

    #[test]
    fn an_empty_config_is_a_plain_bridge() {
        let config = read("{}", "", false).unwrap();
        assert_eq!(config.bridge, "cni0");
        assert_eq!(
            (config.mtu, config.mac, config.vlans, config.dns),
            (None, None, None, None)
        );
        assert!(!config.is_gateway && !config.isolated && !config.leave_down);
    }

    // cni-plugins#7
    #[test]
    fn keys_take_effect_in_any_letter_case() {
        let config = read(
            r#"{"BRIDGE":"br9","ISDEFAULTGATEWAY":true,"Mtu":1400,"portisolation":true}"#,
            "",
            true,
        )
        .unwrap();
        assert_eq!(config.bridge, "br9");
        assert!(config.is_gateway && config.is_default_gateway && config.isolated);
        assert_eq!(config.mtu, Some(1400));
    }

    #[test]
    fn contradictions_are_refused() {
        assert_eq!(
            message(r#"{"disableContainerInterface":true}"#, true),
            "cannot use IPAM when DisableContainerInterface flag is set"
        );
        read(r#"{"disableContainerInterface":true}"#, "", false).unwrap();
        assert_eq!(
            message(r#"{"hairpinMode":true,"promiscMode":true}"#, false),
            "cannot set hairpin mode and promiscuous mode at the same time"
        );
    }

    #[test]
    fn masquerading_has_two_backends() {
        let backend = |config: &str| read(config, "", true).unwrap().masquerade;
        assert_eq!(backend("{}"), None);
        assert_eq!(backend(r#"{"ipMasq":true}"#), Some(Choice::Automatic));
        for (name, wanted) in [("nftables", Backend::Nftables), ("iptables", Backend::Iptables)] {
            let config = format!(r#"{{"ipMasq":true,"ipMasqBackend":"{name}"}}"#);
            assert_eq!(backend(&config), Some(Choice::Only(wanted)));
        }
        assert_eq!(backend(r#"{"ipMasqBackend":"pf"}"#), None);
        assert_eq!(
            message(r#"{"ipMasq":true,"ipMasqBackend":"pf"}"#, true),
            "unknown ipmasq backend \"pf\""
        );
    }

    // cni-plugins#15
    #[test]
    fn the_mac_has_three_sources() {
        let arguments = "MAC=02:00:00:00:00:01;IgnoreUnknown=1;K8S_POD_NAME=x";
        let mac =
            |config: &str, args: &str| read(config, args, false).unwrap().mac.map(|mac| mac.to_string());
        assert_eq!(mac("{}", arguments).as_deref(), Some("02:00:00:00:00:01"));
        let static_arg = r#"{"args":{"cni":{"mac":"02-00-00-00-00-02"}}}"#;
        assert_eq!(mac(static_arg, arguments).as_deref(), Some("02:00:00:00:00:02"));
        let all =
            r#"{"args":{"cni":{"mac":"02:00:00:00:00:02"}},"runtimeConfig":{"mac":"02:00:00:00:00:03"}}"#;
        assert_eq!(mac(all, arguments).as_deref(), Some("02:00:00:00:00:03"));
        assert_eq!(
            message(r#"{"runtimeConfig":{"mac":"nonsense"}}"#, false),
            "failed to make veth pair: address nonsense: invalid MAC address"
        );
        let unknown = read("{}", "FOO=1", false).unwrap_err();
        assert_eq!(unknown.msg, "ARGS: unknown args [\"FOO=1\"]");
    }

    // cni-plugins#25
    #[test]
    fn any_dns_setting_counts() {
        let dns = |config: &str| read(config, "", true).unwrap().dns;
        assert_eq!(dns(r#"{"dns":{}}"#), None);
        assert_eq!(dns(r#"{"dns":{"domain":"","nameservers":null}}"#), None);
        assert_eq!(dns(r#"{"dns":{"nameservers":[]}}"#), Some(Dns::default()));
        assert_eq!(dns(r#"{"dns":{"options":[]}}"#), Some(Dns::default()));
        let domain = dns(r#"{"dns":{"domain":"example"}}"#).unwrap();
        assert_eq!(domain.domain, "example");
    }
}
