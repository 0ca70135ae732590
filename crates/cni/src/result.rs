//! Results of plugins: interfaces, addresses, routes and DNS, in the format of every version.
//!
//! [`CniResult`] has the form of 1.1.0. Older formats are converted from and to it (cni-plugins §1.5, multus §10.8).

mod legacy;

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::Error;
use crate::json;
use crate::version::Version;

/// A result in the form of 1.1.0.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
pub struct CniResult {
    /// The attachment's interfaces, on the host and in the sandbox.
    pub interfaces: Vec<Interface>,
    /// The assigned addresses.
    pub ips: Vec<IpConfig>,
    /// The installed routes.
    pub routes: Vec<Route>,
    /// Resolver settings.
    pub dns: Dns,
}

/// An interface of a result.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Interface {
    /// Name of the interface.
    pub name: String,
    /// Hardware address.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "non_empty")]
    pub mac: Option<String>,
    /// MTU; since 1.1.0.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mtu: Option<u32>,
    /// Path of its network namespace; `None` on the host.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "non_empty")]
    pub sandbox: Option<String>,
    /// vhost-user socket; since 1.1.0.
    #[serde(skip_serializing_if = "Option::is_none", deserialize_with = "non_empty")]
    pub socket_path: Option<String>,
    /// PCI address; since 1.1.0.
    #[serde(
        rename = "pciID",
        skip_serializing_if = "Option::is_none",
        deserialize_with = "non_empty"
    )]
    pub pci_id: Option<String>,
}

/// An address of a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct IpConfig {
    /// Address with its prefix length.
    #[serde(deserialize_with = "crate::net::deserialize_cidr")]
    pub address: IpNet,
    /// The gateway of its subnet.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "lenient_ip"
    )]
    pub gateway: Option<IpAddr>,
    /// Index into [`CniResult::interfaces`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<usize>,
}

/// A route of a result.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Route {
    /// The destination.
    #[serde(deserialize_with = "crate::net::deserialize_cidr")]
    pub dst: IpNet,
    /// The next hop; `None` for the gateway of the address, or a route on the link.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "lenient_ip"
    )]
    pub gw: Option<IpAddr>,
    /// Path MTU.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub mtu: u32,
    /// Advertised TCP segment size.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub advmss: u32,
    /// Metric.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub priority: u32,
    /// Routing table.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub table: Option<u32>,
    /// The kernel's number of the scope.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub scope: Option<u8>,
}

impl Route {
    /// A route with only destination and gateway.
    pub fn new(dst: IpNet, gw: Option<IpAddr>) -> Self {
        Self {
            dst,
            gw,
            mtu: 0,
            advmss: 0,
            priority: 0,
            table: None,
            scope: None,
        }
    }

    /// Whether this is a default route of its family.
    pub fn is_default(&self) -> bool {
        self.dst.prefix_len() == 0
    }
}

/// Resolver settings of a result or a config.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Dns {
    /// The local domain.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub domain: String,
    /// Name servers.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub nameservers: Vec<String>,
    /// Resolver options.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// Search domains.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub search: Vec<String>,
}

impl Dns {
    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde hands out references")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// A text; empty means missing.
fn non_empty<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.filter(|text| !text.is_empty()))
}

/// An address; empty, which is Go's text of "no address", means missing.
fn lenient_ip<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<IpAddr>, D::Error> {
    match Option::<String>::deserialize(deserializer)?.filter(|text| !text.is_empty()) {
        None => Ok(None),
        Some(text) => text
            .parse()
            .map(Some)
            .map_err(|_| serde::de::Error::custom(format!("invalid IP address: {text}"))),
    }
}

/// The key that decides the format.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Versioned {
    #[serde(rename = "cniVersion")]
    cni_version: String,
}

impl CniResult {
    /// Parses a plugin's output by its own version, or by `fallback` without one.
    ///
    /// Keys match as in Go, because some plugins print `CNIVersion`.
    pub fn parse(text: &[u8], fallback: Version) -> Result<Self, Error> {
        let decoding = |error: json::Error| Error::internal(format!("cannot read CNI result: {error}"));
        let version = json::from_slice::<Versioned>(text).map_err(decoding)?.cni_version;
        let version = if version.is_empty() {
            fallback
        } else {
            version
                .parse()
                .map_err(|_| Error::internal(format!("unsupported CNI result version \"{version}\"")))?
        };
        if version < Version::V0_3_0 {
            return Ok(json::from_slice::<legacy::Legacy>(text).map_err(decoding)?.into());
        }
        json::from_slice(text).map_err(decoding)
    }

    /// The result in the format of `version`, with sorted keys and without empty members.
    ///
    /// Fails for 0.1.0 and 0.2.0 when there is no address: `cannot convert: no valid IP addresses`.
    pub fn to_json(&self, version: Version) -> Result<Value, Error> {
        if version < Version::V0_3_0 {
            return legacy::Legacy::try_from(self)?.to_json(version);
        }
        let modern = version >= Version::V1_0_0;
        let mut out = serde_json::Map::new();
        out.insert("cniVersion".into(), version.as_str().into());
        if !self.interfaces.is_empty() {
            let interfaces = self.interfaces.iter().map(|interface| {
                let mut interface = interface.clone();
                if !modern {
                    interface.mtu = None;
                    interface.socket_path = None;
                    interface.pci_id = None;
                }
                value(&interface)
            });
            out.insert(
                "interfaces".into(),
                interfaces.collect::<Result<Vec<_>, _>>()?.into(),
            );
        }
        if !self.ips.is_empty() {
            let ips = self.ips.iter().map(|ip| {
                let mut json = value(ip)?;
                if !modern && let Some(members) = json.as_object_mut() {
                    members.insert("version".into(), family(ip.address).into());
                }
                Ok(json)
            });
            out.insert("ips".into(), ips.collect::<Result<Vec<Value>, Error>>()?.into());
        }
        if !self.routes.is_empty() {
            let routes = self.routes.iter().map(|route| {
                let kept = if modern {
                    route.clone()
                } else {
                    Route::new(route.dst, route.gw)
                };
                value(&kept)
            });
            out.insert("routes".into(), routes.collect::<Result<Vec<_>, _>>()?.into());
        }
        if modern {
            if !self.dns.is_empty() {
                out.insert("dns".into(), value(&self.dns)?);
            }
        } else {
            out.insert("dns".into(), value(&self.dns)?);
        }
        Ok(Value::Object(out))
    }

    /// The index of the interface `name` in the sandbox.
    pub fn sandbox_interface(&self, name: &str) -> Option<usize> {
        self.interfaces
            .iter()
            .position(|interface| interface.name == name && interface.sandbox.is_some())
    }
}

fn value(item: &impl Serialize) -> Result<Value, Error> {
    serde_json::to_value(item).map_err(crate::error::internal)
}

fn family(address: IpNet) -> &'static str {
    match address {
        IpNet::V4(_) => "4",
        IpNet::V6(_) => "6",
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const L3: &[u8] = br#"{"cniVersion":"1.1.0","interfaces":[{"name":"br1","mac":"02:00:00:00:00:01"},
        {"name":"net1","mac":"02:00:00:00:00:02","mtu":1400,"sandbox":"/run/netns/x"}],
        "ips":[{"interface":1,"address":"10.1.2.2/24","gateway":"10.1.2.1"},{"address":"fd00::2/64"}],
        "routes":[{"dst":"0.0.0.0/0","gw":"10.1.2.1","mtu":1300},{"dst":"::/0"}],
        "dns":{"nameservers":["10.1.2.1"]}}"#;

    fn read(text: &[u8]) -> CniResult {
        CniResult::parse(text, Version::V0_1_0).unwrap()
    }

    #[test]
    fn one_x_is_printed_as_it_is() {
        let result = read(L3);
        let json = result.to_json(Version::V1_1_0).unwrap();
        assert_eq!(
            json,
            json!({"cniVersion":"1.1.0","interfaces":[{"name":"br1","mac":"02:00:00:00:00:01"},
                {"name":"net1","mac":"02:00:00:00:00:02","mtu":1400,"sandbox":"/run/netns/x"}],
                "ips":[{"interface":1,"address":"10.1.2.2/24","gateway":"10.1.2.1"},{"address":"fd00::2/64"}],
                "routes":[{"dst":"0.0.0.0/0","gw":"10.1.2.1","mtu":1300},{"dst":"::/0"}],
                "dns":{"nameservers":["10.1.2.1"]}})
        );
        let keys: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(keys, ["cniVersion", "interfaces", "ips", "routes", "dns"]);
        assert_eq!(read(json.to_string().as_bytes()), result);
    }

    #[test]
    fn zero_three_and_four_name_the_family_and_lose_the_new_members() {
        // cni-plugins#9
        for version in [Version::V0_3_0, Version::V0_3_1, Version::V0_4_0] {
            let json = read(L3).to_json(version).unwrap();
            assert_eq!(json["cniVersion"], version.as_str());
            assert_eq!(json["ips"][0]["version"], "4");
            assert_eq!(json["ips"][1]["version"], "6");
            assert_eq!(json["interfaces"][1].get("mtu"), None);
            assert_eq!(json["routes"][0], json!({"dst":"0.0.0.0/0","gw":"10.1.2.1"}));
        }
        assert_eq!(
            read(L3).to_json(Version::V1_0_0).unwrap()["ips"][0].get("version"),
            None
        );
    }

    #[test]
    fn oldest_format_has_one_address_per_family() {
        // cni-plugins#9
        let json = read(L3).to_json(Version::V0_2_0).unwrap();
        assert_eq!(
            json,
            json!({"cniVersion":"0.2.0",
                "ip4":{"ip":"10.1.2.2/24","gateway":"10.1.2.1","routes":[{"dst":"0.0.0.0/0","gw":"10.1.2.1"}]},
                "ip6":{"ip":"fd00::2/64","routes":[{"dst":"::/0"}]},
                "dns":{"nameservers":["10.1.2.1"]}})
        );
        let back = read(json.to_string().as_bytes());
        assert_eq!(back.ips.len(), 2);
        assert_eq!(back.routes.len(), 2);
        let error = CniResult::default().to_json(Version::V0_1_0).unwrap_err();
        assert_eq!(error.msg, "cannot convert: no valid IP addresses");
    }

    #[test]
    fn a_result_without_version_has_the_configs() {
        let result = CniResult::parse(br#"{"ip4":{"ip":"10.0.0.1/8"}}"#, Version::V0_2_0).unwrap();
        assert_eq!(result.ips[0].address.to_string(), "10.0.0.1/8");
        let result = CniResult::parse(br#"{"ips":[{"address":"10.0.0.1/8"}]}"#, Version::V1_0_0).unwrap();
        assert_eq!(result.ips.len(), 1);
    }

    #[test]
    fn odd_keys_empty_texts_and_unknown_versions() {
        let result = read(br#"{"CNIVersion":"0.4.0","Interfaces":[{"Name":"eth0","mac":"","sandbox":""}]}"#);
        assert_eq!(
            result.interfaces[0],
            Interface {
                name: "eth0".into(),
                ..Interface::default()
            }
        );
        let error = CniResult::parse(br#"{"cniVersion":"0.9.0"}"#, Version::LATEST).unwrap_err();
        assert_eq!(error.msg, "unsupported CNI result version \"0.9.0\"");
        assert!(CniResult::parse(b"not json", Version::LATEST).is_err());
        for (version, text) in [
            ("1.1.0", r#""ips":[{"address":"10.01.1.2/24"}]"#),
            ("1.1.0", r#""routes":[{"dst":"010.0.0.0/8"}]"#),
            ("0.2.0", r#""ip4":{"ip":"10.01.1.2/24"}"#),
        ] {
            let text = format!(r#"{{"cniVersion":"{version}",{text}}}"#);
            let error = CniResult::parse(text.as_bytes(), Version::LATEST).unwrap_err();
            assert!(error.msg.contains("invalid CIDR address: "), "{error}");
        }
    }
}
