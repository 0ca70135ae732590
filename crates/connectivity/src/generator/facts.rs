//! What objects of the cluster say about sources and targets. What is missing or malformed says nothing.

use std::net::IpAddr;

use serde_json::Value;

use super::{Endpoint, Existing, Service};
use crate::names::{MANAGED_BY, MANAGER};

/// What the platform says about itself (`Infrastructure.config.openshift.io`).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Infrastructure {
    /// URL of the API server for those outside of the cluster.
    pub external: Option<String>,
    /// URL of the API server for those inside.
    pub internal: Option<String>,
    /// Whether the control plane is hosted by another cluster.
    pub hosted: bool,
}

/// What the operator's configuration says about checks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Wish {
    /// Whether anything is to be done at all.
    pub managed: bool,
    /// Whether there are to be checks.
    pub enabled: bool,
}

impl Default for Wish {
    fn default() -> Self {
        Self {
            managed: true,
            enabled: true,
        }
    }
}

/// A condition, as it was written.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Condition {
    /// Status, reason and message.
    pub says: (String, String, String),
    /// Since when the status is what it is.
    pub since: String,
}

fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object
        .pointer(pointer)
        .and_then(Value::as_str)
        .unwrap_or_default()
}

fn items<'a>(object: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    object
        .pointer(pointer)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

/// Addresses of a `Service`. A headless one has none.
pub fn service(object: &Value) -> Service {
    let addresses = items(object, "/spec/clusterIPs").filter_map(Value::as_str);
    Service {
        addresses: addresses.filter_map(|address| address.parse().ok()).collect(),
    }
}

/// Endpoints of an `EndpointSlice` that are ready, at its first port.
pub fn endpoints(object: &Value) -> Vec<Endpoint> {
    let port = items(object, "/ports").find_map(|port| u16::try_from(port["port"].as_u64()?).ok());
    let Some(port) = port else { return Vec::new() };
    // Nothing means that nobody knows, and counts as ready.
    let ready = items(object, "/endpoints")
        .filter(|endpoint| endpoint.pointer("/conditions/ready").and_then(Value::as_bool) != Some(false));
    let endpoint = |endpoint: &Value| {
        let address: IpAddr = text(endpoint, "/addresses/0").parse().ok()?;
        let node = endpoint["nodeName"].as_str().map(str::to_owned);
        Some(Endpoint { address, port, node })
    };
    ready.filter_map(endpoint).collect()
}

/// Node of a `Pod`, once it has one.
pub fn node(object: &Value) -> Option<String> {
    Some(text(object, "/spec/nodeName"))
        .filter(|node| !node.is_empty())
        .map(str::to_owned)
}

/// What an `Infrastructure` says.
pub fn infrastructure(object: &Value) -> Infrastructure {
    let url = |pointer| {
        Some(text(object, pointer))
            .filter(|url| !url.is_empty())
            .map(str::to_owned)
    };
    Infrastructure {
        external: url("/status/apiServerURL"),
        internal: url("/status/apiServerInternalURI"),
        hosted: text(object, "/status/controlPlaneTopology") == "External",
    }
}

/// Whether a `ClusterVersion` is on its way to another one: nothing is generated meanwhile.
pub fn is_upgrading(object: &Value) -> bool {
    let latest = items(object, "/status/history").next();
    let is_done = latest.is_some_and(|latest| {
        latest["state"] == "Completed" && latest["version"] == object["status"]["desired"]["version"]
    });
    !is_done
}

/// What the operator's `Network` says.
pub fn wish(object: &Value) -> Wish {
    const SWITCH: &str = "/spec/unsupportedConfigOverrides/operator/enableConnectivityCheckController";
    let state = text(object, "/spec/managementState");
    Wish {
        managed: state.is_empty() || state == "Managed",
        enabled: !text(object, SWITCH).eq_ignore_ascii_case("false"),
    }
}

/// The condition of this type.
pub fn condition(object: &Value, type_: &str) -> Option<Condition> {
    let found = items(object, "/status/conditions").find(|condition| condition["type"] == type_)?;
    let part = |pointer| text(found, pointer).to_owned();
    Some(Condition {
        says: (part("/status"), part("/reason"), part("/message")),
        since: part("/lastTransitionTime"),
    })
}

/// What is known of a check.
pub fn existing(object: &Value) -> Existing {
    let owners = items(object, "/metadata/ownerReferences");
    Existing {
        labelled: object["metadata"]["labels"][MANAGED_BY] == MANAGER,
        source_pod: text(object, "/spec/sourcePod").to_owned(),
        endpoint: text(object, "/spec/targetEndpoint").to_owned(),
        owners: owners.map(|owner| text(owner, "/uid").to_owned()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_ready_endpoints_count() {
        let slice = json!({
            "addressType": "IPv4", "ports": [{ "port": 8080 }],
            "endpoints": [
                { "addresses": ["10.0.0.1"], "nodeName": "n1", "conditions": { "ready": true } },
                { "addresses": ["10.0.0.2"], "nodeName": "n2", "conditions": { "ready": false } },
                { "addresses": ["10.0.0.3"] },
                { "addresses": ["no address"] },
            ],
        });
        let found: Vec<_> = endpoints(&slice)
            .into_iter()
            .map(|endpoint| (endpoint.address.to_string(), endpoint.port, endpoint.node))
            .collect();
        assert_eq!(
            found,
            [
                ("10.0.0.1".to_owned(), 8080, Some("n1".to_owned())),
                ("10.0.0.3".to_owned(), 8080, None)
            ]
        );
        assert_eq!(endpoints(&json!({ "endpoints": slice["endpoints"] })), []);
    }

    #[test]
    fn headless_service_has_no_addresses() {
        assert_eq!(
            service(&json!({ "spec": { "clusterIPs": ["None"] } })).addresses,
            [] as [IpAddr; 0]
        );
        let both = service(&json!({ "spec": { "clusterIPs": ["10.0.0.1", "fd00::1"] } }));
        assert_eq!(both.addresses.len(), 2);
    }

    #[test]
    fn upgrade_is_over_when_the_latest_entry_is_what_is_desired() {
        let version = |state: &str, latest: &str| {
            json!({ "status": { "desired": { "version": "4.20.1" }, "history": [
                { "state": state, "version": latest }, { "state": "Completed", "version": "4.20.0" },
            ] } })
        };
        assert!(!is_upgrading(&version("Completed", "4.20.1")));
        assert!(is_upgrading(&version("Partial", "4.20.1")));
        assert!(is_upgrading(&version("Completed", "4.20.0")));
        assert!(is_upgrading(&json!({})));
    }

    #[test]
    fn checks_can_be_switched_off() {
        for (spec, managed, enabled) in [
            (json!({}), true, true),
            (json!({ "managementState": "Managed" }), true, true),
            (json!({ "managementState": "Unmanaged" }), false, true),
            (
                json!({ "unsupportedConfigOverrides": { "operator": { "enableConnectivityCheckController": "False" } } }),
                true,
                false,
            ),
            (
                json!({ "unsupportedConfigOverrides": { "operator": { "enableConnectivityCheckController": "True" } } }),
                true,
                true,
            ),
        ] {
            let wish = wish(&json!({ "spec": spec }));
            assert_eq!(wish, Wish { managed, enabled }, "{spec}");
        }
    }
}
