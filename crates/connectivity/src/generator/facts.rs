//! Reads sources and targets from objects of the cluster. A missing or malformed field counts as absent.

use std::net::IpAddr;

use kube_kit::document::{list, text};
use serde_json::Value;

use super::{Endpoint, Existing, Service};
use crate::names::{MANAGED_BY, MANAGER};

/// The platform's `Infrastructure.config.openshift.io`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Infrastructure {
    /// URL of the API server for clients outside of the cluster.
    pub external: Option<String>,
    /// URL of the API server for clients in the cluster.
    pub internal: Option<String>,
    /// True if another cluster hosts the control plane.
    pub hosted: bool,
}

/// The settings of the operator's `Network` that concern checks.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(crate) struct Settings {
    /// True if the controller may write.
    pub managed: bool,
    /// True if checks are desired.
    pub enabled: bool,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            managed: true,
            enabled: true,
        }
    }
}

/// A written condition.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Condition {
    /// Status, reason and message.
    pub content: (String, String, String),
    /// Last transition time of the status.
    pub since: String,
}

/// The cluster IPs of a `Service`. A headless service has none.
pub(crate) fn service(object: &Value) -> Service {
    let addresses = list(object, "/spec/clusterIPs").filter_map(Value::as_str);
    Service {
        addresses: addresses.filter_map(|address| address.parse().ok()).collect(),
    }
}

/// The ready endpoints of an `EndpointSlice`, with its first port.
pub(crate) fn endpoints(object: &Value) -> Vec<Endpoint> {
    let port = list(object, "/ports").find_map(|port| u16::try_from(port["port"].as_u64()?).ok());
    let Some(port) = port else { return Vec::new() };
    // An endpoint without the condition counts as ready.
    let ready = list(object, "/endpoints")
        .filter(|endpoint| endpoint.pointer("/conditions/ready").and_then(Value::as_bool) != Some(false));
    let endpoint = |endpoint: &Value| {
        let address: IpAddr = text(endpoint, "/addresses/0").parse().ok()?;
        let node = endpoint["nodeName"].as_str().map(str::to_owned);
        Some(Endpoint { address, port, node })
    };
    ready.filter_map(endpoint).collect()
}

/// The node of a `Pod`, if the pod is scheduled.
pub(crate) fn node(object: &Value) -> Option<String> {
    Some(text(object, "/spec/nodeName"))
        .filter(|node| !node.is_empty())
        .map(str::to_owned)
}

/// Reads an `Infrastructure`.
pub(crate) fn infrastructure(object: &Value) -> Infrastructure {
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

/// True if a `ClusterVersion` is being upgraded. The controller does not write during upgrades.
pub(crate) fn is_upgrading(object: &Value) -> bool {
    let latest = list(object, "/status/history").next();
    let is_done = latest.is_some_and(|latest| {
        latest["state"] == "Completed" && latest["version"] == object["status"]["desired"]["version"]
    });
    !is_done
}

/// Reads the operator's `Network`.
pub(crate) fn settings(object: &Value) -> Settings {
    const SWITCH: &str = "/spec/unsupportedConfigOverrides/operator/enableConnectivityCheckController";
    let state = text(object, "/spec/managementState");
    Settings {
        managed: state.is_empty() || state == "Managed",
        enabled: !text(object, SWITCH).eq_ignore_ascii_case("false"),
    }
}

/// The condition of this type.
pub(crate) fn condition(object: &Value, type_: &str) -> Option<Condition> {
    let found = list(object, "/status/conditions").find(|condition| condition["type"] == type_)?;
    let part = |pointer| text(found, pointer).to_owned();
    Some(Condition {
        content: (part("/status"), part("/reason"), part("/message")),
        since: part("/lastTransitionTime"),
    })
}

/// Reads a check.
pub(crate) fn existing(object: &Value) -> Existing {
    let owners = list(object, "/metadata/ownerReferences");
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
    fn endpoints_that_are_not_ready_are_ignored() {
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
    fn upgrade_ends_when_the_latest_entry_has_the_desired_version() {
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
    fn checks_are_disabled_by_the_override() {
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
            let settings = settings(&json!({ "spec": spec }));
            assert_eq!(settings, Settings { managed, enabled }, "{spec}");
        }
    }
}
