//! The config of `ovs`, and the port that it requests (cni-plugins §10.1, §10.2).

use std::time::Duration;

use cni::{Error, args::CniArgs, json, plugin::Call};
use linux::link::{InvalidMac, Mac};
use serde::Deserialize;
use serde_json::Value;

use super::{
    flat_file,
    vlans::{TrunkItem, Vlans},
};
use crate::{
    attach::WireMac,
    config::read_config,
    messages::{MAKE_VETH, OVS_NO_BRIDGE_NAME},
    names::{
        arg,
        ovs::{DEFAULT_SOCKET, OVN_BRIDGE},
    },
};

/// Upstream's default number of checks of the link state, and the interval between them. Ours uses the product as
/// timeout.
const RETRIES: i64 = 5;
const INTERVAL: i64 = 600;
/// Maximum timeout for the link state.
const LONGEST_WAIT: Duration = Duration::from_mins(10);

/// Keys that the flat file can also have.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
struct Wire {
    bridge: String,
    vlan: Option<u32>,
    trunk: Vec<TrunkItem>,
    vlan_mode: String,
    mtu: i64,
    #[serde(rename = "deviceID")]
    device_id: String,
    ofport_request: u32,
    interface_type: String,
    configuration_path: String,
    socket_file: String,
    link_state_check_retries: i64,
    link_state_check_interval: i64,
    args: WireArgs,
    #[serde(rename = "runtimeConfig")]
    runtime_config: WireMac,
}

#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
struct WireArgs {
    cni: WireCniArgs,
}

/// Arguments. The object also holds arguments of other plugins, so values other than strings are ignored.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
struct WireCniArgs {
    mac: Value,
    #[serde(rename = "ovnPort")]
    ovn_port: Value,
}

/// The keys of a config.
pub(super) fn keys() -> &'static [&'static str] {
    json::fields_of::<Wire>()
}

/// A config before the flat file is applied.
#[derive(Debug, Clone)]
pub(super) struct Config {
    wire: Wire,
    /// Requested MAC of the pod's link.
    pub(super) mac: Option<Mac>,
    /// The port's name in OVN.
    pub(super) ovn_port: Option<String>,
    /// UID of the pod, may be empty.
    pub(super) pod_uid: String,
}

/// The port that the config and the flat file request.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) bridge: String,
    /// The database's address.
    pub(super) socket: String,
    pub(super) vlans: Vlans,
    /// MTU of both ends, bytes.
    pub(super) mtu: Option<u32>,
    /// `OpenFlow` port.
    pub(super) ofport_request: Option<u32>,
    /// Type of the interface, may be empty.
    pub(super) interface_type: String,
    /// Timeout for the link to come up.
    pub(super) link_wait: Duration,
}

impl Config {
    /// Parses and validates a config. Does not access the node.
    pub(super) fn read(call: &Call) -> Result<Self, Error> {
        let config = Config::new(read_config(call)?, &call.args()?)?;
        Vlans::new(config.wire.vlan, &config.wire.trunk, &config.wire.vlan_mode)?;
        Ok(config)
    }

    fn new(wire: Wire, args: &CniArgs) -> Result<Self, Error> {
        args.require_known(&[arg::MAC, "mac", arg::OVN_PORT, "ovnPort", arg::POD_UID])?;
        if !wire.device_id.is_empty() {
            return Err(Error::internal(format!(
                "deviceID {}: this version of the ovs plugin has no hardware offload and no vDPA",
                wire.device_id
            )));
        }
        let cni = &wire.args.cni;
        let mac = first([
            Some(wire.runtime_config.mac.as_str()),
            args.get(arg::MAC),
            args.get("mac"),
            cni.mac.as_str(),
        ]);
        let ovn_port = first([
            args.get(arg::OVN_PORT),
            args.get("ovnPort"),
            cni.ovn_port.as_str(),
        ]);
        let invalid = |error: InvalidMac| Error::internal(format!("{MAKE_VETH}: {error}"));
        Ok(Config {
            mac: mac.map(str::parse).transpose().map_err(invalid)?,
            ovn_port: ovn_port.map(str::to_owned),
            pod_uid: args.get(arg::POD_UID).unwrap_or_default().to_owned(),
            wire,
        })
    }

    /// Applies the defaults of the flat file and resolves the target.
    pub(super) fn complete(mut self) -> Result<Target, Error> {
        if let Some(file) = flat_file::read::<Wire>(&self.wire.configuration_path)? {
            self.wire.fill(file);
        }
        self.target()
    }

    fn target(self) -> Result<Target, Error> {
        let Config { wire, ovn_port, .. } = self;
        let bridge = match (wire.bridge, ovn_port) {
            (bridge, _) if !bridge.is_empty() => bridge,
            (_, Some(_)) => OVN_BRIDGE.to_owned(),
            (_, None) => return Err(Error::internal(OVS_NO_BRIDGE_NAME)),
        };
        Ok(Target {
            bridge,
            vlans: Vlans::new(wire.vlan, &wire.trunk, &wire.vlan_mode)?,
            mtu: u32::try_from(wire.mtu).ok().filter(|mtu| *mtu > 0),
            ofport_request: Some(wire.ofport_request).filter(|port| *port > 0),
            interface_type: wire.interface_type,
            link_wait: wait(wire.link_state_check_retries, wire.link_state_check_interval),
            socket: socket(wire.socket_file),
        })
    }
}

impl Wire {
    /// Sets missing keys from the flat file.
    fn fill(&mut self, file: Wire) {
        fill(&mut self.bridge, file.bridge, String::is_empty);
        fill(&mut self.vlan, file.vlan, Option::is_none);
        fill(&mut self.trunk, file.trunk, Vec::is_empty);
        fill(&mut self.vlan_mode, file.vlan_mode, String::is_empty);
        fill(&mut self.mtu, file.mtu, |mtu| *mtu == 0);
        fill(&mut self.ofport_request, file.ofport_request, |port| *port == 0);
        fill(&mut self.interface_type, file.interface_type, String::is_empty);
        fill(&mut self.socket_file, file.socket_file, String::is_empty);
        let (retries, interval) = (file.link_state_check_retries, file.link_state_check_interval);
        fill(&mut self.link_state_check_retries, retries, |count| *count == 0);
        fill(&mut self.link_state_check_interval, interval, |count| *count == 0);
    }
}

fn fill<T>(own: &mut T, other: T, is_empty: impl FnOnce(&T) -> bool) {
    if is_empty(own) {
        *own = other;
    }
}

/// The database's address, with its default.
pub(crate) fn socket(given: String) -> String {
    if given.is_empty() {
        return DEFAULT_SOCKET.to_owned();
    }
    given
}

/// The first non-empty text.
fn first<'a>(texts: impl IntoIterator<Item = Option<&'a str>>) -> Option<&'a str> {
    texts.into_iter().flatten().find(|text| !text.is_empty())
}

/// The timeout for the link state.
fn wait(retries: i64, interval: i64) -> Duration {
    let given = |value: i64, default: i64| if value == 0 { default } else { value };
    let all = given(retries, RETRIES).saturating_mul(given(interval, INTERVAL));
    Duration::from_millis(all.try_into().unwrap_or_default()).min(LONGEST_WAIT)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: &str, args: &str) -> Result<Config, String> {
        let wire = json::from_str(config).map_err(|error| error.to_string())?;
        Config::new(wire, &CniArgs::parse(args).unwrap()).map_err(|error| error.msg)
    }

    fn target(config: &str, args: &str) -> Result<Target, String> {
        read(config, args)?.target().map_err(|error| error.msg)
    }

    #[test]
    fn config_without_bridge_and_ovn_port_is_rejected() {
        assert_eq!(target("{}", "").unwrap_err(), "failed to get bridge name");
        assert_eq!(target("{}", "OvnPort=p").unwrap().bridge, "br-int");
        assert_eq!(target(r#"{"bridge":"br1"}"#, "OvnPort=p").unwrap().bridge, "br1");
    }

    #[test]
    fn defaults_match_upstream() {
        let target = target(r#"{"bridge":"br1"}"#, "").unwrap();
        assert_eq!(target.socket, "unix:/var/run/openvswitch/db.sock");
        assert_eq!(target.link_wait, Duration::from_secs(3));
        assert_eq!((target.mtu, target.ofport_request), (None, None));
        assert_eq!(wait(-1, 600), Duration::ZERO);
        assert_eq!(wait(i64::MAX, i64::MAX), LONGEST_WAIT);
    }

    // cni-plugins#56
    #[test]
    fn the_ovn_port_has_two_sources_in_any_letter_case() {
        for (config, args) in [
            ("{}", "OvnPort=p"),
            ("{}", "ovnPort=p"),
            (r#"{"args":{"cni":{"ovnPort":"p"}}}"#, ""),
            (r#"{"args":{"cni":{"OVNPORT":"p"}}}"#, ""),
            (
                r#"{"args":{"cni":{"ovnPort":"other","ips":["10.1.2.3"],"x":{"y":1}}}}"#,
                "OvnPort=p",
            ),
        ] {
            let read = read(config, args).unwrap();
            assert_eq!(read.ovn_port.as_deref(), Some("p"), "{config} {args}");
        }
        let foreign = read(r#"{"args":{"cni":{"ovnPort":[1],"mac":7}}}"#, "").unwrap();
        assert_eq!((foreign.ovn_port, foreign.mac), (None, None));
    }

    #[test]
    fn the_mac_has_three_sources() {
        let mac = |config: &str, args: &str| read(config, args).unwrap().mac.unwrap().to_string();
        let own = r#"{"args":{"cni":{"MAC":"02:00:00:00:00:01"}}}"#;
        assert_eq!(mac(own, ""), "02:00:00:00:00:01");
        assert_eq!(mac(own, "mac=02:00:00:00:00:02"), "02:00:00:00:00:02");
        let both =
            r#"{"args":{"cni":{"mac":"02:00:00:00:00:01"}},"runtimeConfig":{"mac":"02:00:00:00:00:03"}}"#;
        assert_eq!(mac(both, "MAC=02:00:00:00:00:02"), "02:00:00:00:00:03");
        assert_eq!(
            read("{}", "MAC=x").unwrap_err(),
            "failed to make veth pair: address x: invalid MAC address"
        );
        assert_eq!(read("{}", "FOO=1").unwrap_err(), "ARGS: unknown args [\"FOO=1\"]");
    }

    // cni-plugins#60
    #[test]
    fn flat_file_sets_only_missing_keys() {
        let mut wire: Wire = json::from_str(r#"{"bridge":"br1","mtu":0,"vlan":5}"#).unwrap();
        wire.fill(
            json::from_str(r#"{"bridge":"br2","MTU":1400,"vlan":6,"socket_file":"tcp:127.0.0.1:1"}"#)
                .unwrap(),
        );
        assert_eq!(
            (wire.bridge.as_str(), wire.mtu, wire.vlan),
            ("br1", 1400, Some(5))
        );
        assert_eq!(wire.socket_file, "tcp:127.0.0.1:1");
    }

    #[test]
    fn device_id_is_rejected() {
        let refused = read(r#"{"deviceID":"0000:03:00.1"}"#, "").unwrap_err();
        assert!(refused.starts_with("deviceID 0000:03:00.1: "), "{refused}");
    }
}
