//! Upstream's format of a scratch file, key by key (multus.md §9).

use crate::networks::delegate::{self, Config, Delegate, Requests};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cni::json::{self, Object};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// A scratch file is unusable.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Malformed JSON, for example truncated by a crash.
    #[error("malformed scratch file")]
    Parse(#[source] json::Error),
    /// A delegate's configuration is not base64.
    #[error("malformed configuration in the scratch file")]
    Base64(#[source] base64::DecodeError),
    /// A delegate's configuration is invalid.
    #[error("malformed configuration in the scratch file")]
    Config(#[source] delegate::Error),
    /// The delegates cannot be encoded.
    #[error("cannot write a scratch file")]
    Encode(#[source] serde_json::Error),
}

/// The keys of a plugin's configuration that the file repeats in plain text.
#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct Plugin {
    #[serde(skip_serializing_if = "String::is_empty")]
    cni_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    r#type: String,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    capabilities: BTreeMap<String, bool>,
    ipam: Ipam,
    #[serde(skip_serializing_if = "Dns::is_empty")]
    dns: Dns,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct Ipam {
    #[serde(skip_serializing_if = "String::is_empty")]
    r#type: String,
}

#[derive(Serialize, Deserialize, Default)]
#[serde(default)]
struct Dns {
    #[serde(skip_serializing_if = "Vec::is_empty")]
    nameservers: Vec<String>,
    #[serde(skip_serializing_if = "String::is_empty")]
    domain: String,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    search: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    options: Vec<String>,
}

impl Dns {
    fn is_empty(&self) -> bool {
        self.nameservers.is_empty()
            && self.domain.is_empty()
            && self.search.is_empty()
            && self.options.is_empty()
    }
}

#[derive(Serialize, Default)]
#[serde(rename_all = "camelCase")]
struct List {
    #[serde(skip_serializing_if = "String::is_empty")]
    cni_version: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    #[serde(skip_serializing_if = "is_false")]
    disable_check: bool,
    #[serde(rename = "disableGC", skip_serializing_if = "is_false")]
    disable_gc: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    plugins: Vec<Plugin>,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "skip_serializing_if needs this signature"
)]
fn is_false(value: &bool) -> bool {
    !*value
}

#[derive(Serialize)]
struct StoredDelegate {
    #[serde(rename = "Conf")]
    conf: Plugin,
    #[serde(rename = "ConfList")]
    conf_list: List,
    #[serde(rename = "Name")]
    name: String,
    #[serde(rename = "ifnameRequest", skip_serializing_if = "Option::is_none")]
    interface: Option<String>,
    #[serde(rename = "macRequest", skip_serializing_if = "Option::is_none")]
    mac: Option<String>,
    #[serde(rename = "infinibandGUIDRequest", skip_serializing_if = "Option::is_none")]
    infiniband_guid: Option<String>,
    #[serde(rename = "ipRequest", skip_serializing_if = "Vec::is_empty")]
    ips: Vec<String>,
    #[serde(rename = "default-route", skip_serializing_if = "Option::is_none")]
    default_route: Option<Vec<IpAddr>>,
    #[serde(rename = "IsFilterV4Gateway")]
    filter_v4: bool,
    #[serde(rename = "IsFilterV6Gateway")]
    filter_v6: bool,
    #[serde(rename = "deviceID", skip_serializing_if = "Option::is_none")]
    device_id: Option<String>,
    #[serde(rename = "resourceName", skip_serializing_if = "Option::is_none")]
    resource_name: Option<String>,
    #[serde(rename = "Bytes")]
    bytes: String,
}

/// The keys of a stored delegate that later calls need.
#[derive(Deserialize, Default)]
#[serde(default)]
struct RestoredDelegate {
    #[serde(rename = "Name")]
    name: String,
    #[serde(rename = "ifnameRequest")]
    interface: String,
    #[serde(rename = "macRequest")]
    mac: String,
    #[serde(rename = "infinibandGUIDRequest")]
    infiniband_guid: String,
    #[serde(rename = "ipRequest")]
    ips: Vec<String>,
    #[serde(rename = "default-route")]
    default_route: Option<Vec<String>>,
    #[serde(rename = "deviceID")]
    device_id: String,
    #[serde(rename = "resourceName")]
    resource_name: String,
    #[serde(rename = "Bytes")]
    bytes: String,
}

/// The keys that are read from a plugin's configuration.
#[derive(Deserialize, Default)]
#[serde(default, rename_all = "camelCase")]
struct PluginKeys {
    cni_version: String,
    name: String,
    r#type: String,
    capabilities: BTreeMap<String, bool>,
    ipam: Ipam,
    dns: Dns,
    disable_check: Flag,
    #[serde(rename = "disableGC")]
    disable_gc: Flag,
}

/// A boolean, or its text.
#[derive(Deserialize)]
#[serde(untagged)]
enum Flag {
    Bool(bool),
    Text(String),
}

impl Default for Flag {
    fn default() -> Self {
        Self::Bool(false)
    }
}

impl Flag {
    fn is_set(&self) -> bool {
        match self {
            Self::Bool(set) => *set,
            Self::Text(text) => text.eq_ignore_ascii_case("true"),
        }
    }
}

/// Reads the plain-text keys. They are informative only, so malformed ones are omitted; `Bytes` holds the whole
/// configuration.
fn keys(object: &Object) -> PluginKeys {
    json::from_slice(object.to_json().as_bytes()).unwrap_or_default()
}

fn subset(object: &Object) -> Plugin {
    let PluginKeys {
        cni_version,
        name,
        r#type,
        capabilities,
        ipam,
        dns,
        ..
    } = keys(object);
    Plugin {
        cni_version,
        name,
        r#type,
        capabilities,
        ipam,
        dns,
    }
}

fn store(delegate: &Delegate, filter_v4: bool, filter_v6: bool) -> StoredDelegate {
    let Delegate {
        display_name,
        config,
        requests,
        resource_name,
        device_id: _,
    } = delegate;
    let (conf, conf_list) = match config.chain() {
        None => (subset(config.object()), List::default()),
        Some(chain) => {
            let list = keys(config.object());
            let list = List {
                cni_version: list.cni_version,
                name: list.name,
                disable_check: list.disable_check.is_set(),
                disable_gc: list.disable_gc.is_set(),
                plugins: chain.iter().map(subset).collect(),
            };
            (Plugin::default(), list)
        }
    };
    StoredDelegate {
        conf,
        conf_list,
        name: display_name.clone(),
        interface: requests.interface.clone(),
        mac: requests.mac.clone(),
        infiniband_guid: requests.infiniband_guid.clone(),
        ips: requests.ips.clone(),
        default_route: requests.default_route.clone(),
        filter_v4,
        filter_v6,
        device_id: delegate.device().map(str::to_owned),
        resource_name: resource_name.clone(),
        bytes: STANDARD.encode(config.object().to_json()),
    }
}

/// Encodes delegates in order. `filters`: for each delegate, whether its own IPv4 and IPv6 default routes are removed
/// ([`crate::networks::default_route`]).
pub(crate) fn encode(delegates: &[Delegate], filters: &[(bool, bool)]) -> Result<Vec<u8>, serde_json::Error> {
    let filters = filters.iter().copied().chain(std::iter::repeat((false, false)));
    let stored: Vec<_> = delegates
        .iter()
        .zip(filters)
        .map(|(delegate, (v4, v6))| store(delegate, v4, v6))
        .collect();
    serde_json::to_vec(&stored)
}

/// Decodes the delegates of a file.
pub(crate) fn decode(text: &[u8]) -> Result<Vec<Delegate>, Error> {
    let stored: Vec<RestoredDelegate> = json::from_slice(text).map_err(Error::Parse)?;
    stored.into_iter().map(restore).collect()
}

fn restore(stored: RestoredDelegate) -> Result<Delegate, Error> {
    let present = |text: String| (!text.is_empty()).then_some(text);
    let config =
        Config::parse(&STANDARD.decode(&stored.bytes).map_err(Error::Base64)?).map_err(Error::Config)?;
    Ok(Delegate {
        display_name: stored.name,
        config,
        requests: Requests {
            interface: present(stored.interface),
            mac: present(stored.mac),
            infiniband_guid: present(stored.infiniband_guid),
            ips: stored.ips,
            // Malformed addresses must not block a DEL.
            default_route: stored.default_route.map(|gateways| {
                gateways
                    .iter()
                    .filter_map(|gateway| gateway.parse().ok())
                    .collect()
            }),
            ..Requests::default()
        },
        resource_name: present(stored.resource_name),
        device_id: present(stored.device_id),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Written by the upstream daemon (the example of multus.md §9, `Bytes` completed).
    const ESTABLISHED: &str = concat!(
        r#"[{"Conf":{"cniVersion":"0.3.1","ipam":{},"name":"weave1","type":"weave-net"},"ConfList":{},"#,
        r#""Name":"weave1","IsFilterV4Gateway":false,"IsFilterV6Gateway":false,"#,
        r#""Bytes":"eyJjbmlWZXJzaW9uIjoiMC4zLjEiLCJuYW1lIjoid2VhdmUxIiwidHlwZSI6IndlYXZlLW5ldCJ9"},"#,
        r#"{"Conf":{"ipam":{}},"ConfList":{"cniVersion":"0.4.0","name":"br","plugins":[{"ipam":{"type":"static"},"#,
        r#""type":"bridge"},{"ipam":{},"type":"tuning"}]},"Name":"default/net1","ifnameRequest":"foo","#,
        r#""macRequest":"02:00:00:00:00:01","ipRequest":["10.0.0.1/24"],"IsFilterV4Gateway":true,"#,
        r#""IsFilterV6Gateway":true,"deviceID":"d1","resourceName":"x.io/r","Bytes":"eyJjbmlWZXJzaW9uIjoiMC40LjAi"#,
        r#"LCJuYW1lIjoiYnIiLCJwbHVnaW5zIjpbeyJ0eXBlIjoiYnJpZGdlIiwiaXBhbSI6eyJ0eXBlIjoic3RhdGljIiwicmFuZ2VzIjpb"#,
        r#"MV19fSx7InR5cGUiOiJ0dW5pbmcifV19"}]"#
    );

    fn upstream() -> Vec<Delegate> {
        decode(ESTABLISHED.as_bytes()).unwrap()
    }

    #[test]
    fn upstreams_scratch_file_is_decoded() {
        // multus#49 (reading)
        let delegates = upstream();
        assert_eq!(delegates.len(), 2);
        assert_eq!(delegates[0].display_name, "weave1");
        assert_eq!(delegates[0].config.plugin_type(), "weave-net");
        assert!(delegates[0].config.chain().is_none());
        let chain = &delegates[1];
        assert_eq!(chain.config.chain().map(<[_]>::len), Some(2));
        assert_eq!(chain.requests.interface.as_deref(), Some("foo"));
        assert_eq!(chain.requests.mac.as_deref(), Some("02:00:00:00:00:01"));
        assert_eq!(chain.requests.ips, ["10.0.0.1/24"]);
        assert_eq!(chain.device_id.as_deref(), Some("d1"));
        assert_eq!(chain.resource_name.as_deref(), Some("x.io/r"));
        // multus#43: all of the plugin's keys, also unknown ones
        assert!(chain.config.object().to_json().contains(r#""ranges":[1]"#));
    }

    #[test]
    fn encoded_scratch_file_equals_upstreams() {
        // multus#49 (writing)
        let text = encode(&upstream(), &[(false, false), (true, true)]).unwrap();
        let ours: Value = serde_json::from_slice(&text).unwrap();
        let theirs: Value = serde_json::from_str(ESTABLISHED).unwrap();
        assert_eq!(ours, theirs);
    }

    #[test]
    fn readable_keys_and_requests_of_a_single_plugin() {
        let config = json!({"cniVersion": "1.0.0", "name": "n", "type": "t", "capabilities": {"ips": true},
            "ipam": {"type": "host-local", "subnet": "10.0.0.0/24"}, "dns": {"nameservers": ["1.1.1.1"]}, "x": 1});
        let mut delegate = Delegate::new(
            "ns/n".into(),
            Config::parse(config.to_string().as_bytes()).unwrap(),
        );
        delegate.requests.infiniband_guid = Some("02:00:00:00:00:00:00:01".into());
        delegate.requests.default_route = Some(vec![]);
        let text = encode(&[delegate], &[]).unwrap();
        let mut stored: Value = serde_json::from_slice(&text).unwrap();
        let bytes = stored[0].as_object_mut().unwrap().shift_remove("Bytes").unwrap();
        let bytes: Value =
            serde_json::from_slice(&STANDARD.decode(bytes.as_str().unwrap()).unwrap()).unwrap();
        assert_eq!(bytes, config);
        assert_eq!(
            stored,
            json!([{
                "Conf": {"cniVersion": "1.0.0", "name": "n", "type": "t", "capabilities": {"ips": true},
                    "ipam": {"type": "host-local"}, "dns": {"nameservers": ["1.1.1.1"]}},
                "ConfList": {}, "Name": "ns/n", "infinibandGUIDRequest": "02:00:00:00:00:00:00:01",
                "default-route": [], "IsFilterV4Gateway": false, "IsFilterV6Gateway": false}])
        );
    }

    #[test]
    fn empty_list_is_accepted_and_truncated_list_is_error() {
        assert!(decode(b"[]").unwrap().is_empty());
        assert!(decode(b"null").unwrap_or_default().is_empty());
        let half = &ESTABLISHED.as_bytes()[..ESTABLISHED.len() / 2];
        assert!(decode(half).is_err());
        assert!(decode(b"").is_err());
        assert!(decode(br#"[{"Bytes":"!"}]"#).is_err());
    }
}
