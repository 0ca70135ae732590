//! The objects with which network observability is installed (§18.6). They belong to the users afterwards: no
//! label, no owner, no pruning.

use serde_json::Value;

use super::{Error, objects::parse};

/// The request to OLM for the operator of network observability, after its namespace and the rights of its
/// installer.
///
/// # Errors
/// If the embedded file is invalid.
pub(crate) fn operator() -> Result<Vec<Value>, Error> {
    parse("observability.yaml", include_str!("observability.yaml"))
}

/// The request for network observability, after its namespace.
///
/// # Errors
/// If the embedded file is invalid.
pub(crate) fn collector() -> Result<Vec<Value>, Error> {
    parse("flow_collector.yaml", include_str!("flow_collector.yaml"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{super::sample::titles, collector, operator};

    // cluster-network#196
    #[test]
    fn rights_precede_the_request_to_olm() {
        let objects = operator().expect("objects");
        let own = "netobserv-operator-installer";
        assert_eq!(
            titles(&objects),
            [
                "Namespace netobserv-operator".to_owned(),
                format!("ServiceAccount {own}"),
                format!("ClusterRole {own}"),
                format!("ClusterRoleBinding {own}"),
                format!("Role {own}"),
                format!("RoleBinding {own}"),
                "ClusterExtension netobserv-operator".to_owned(),
            ]
        );
        let extension = objects.last().expect("an object");
        assert_eq!(
            extension["spec"],
            json!({
                "namespace": "netobserv-operator",
                "serviceAccount": { "name": own },
                "source": {
                    "sourceType": "Catalog",
                    "catalog": { "packageName": "netobserv-operator", "channels": ["stable"] },
                },
            })
        );
        for object in &objects {
            let subject = &object["subjects"][0];
            if !subject.is_null() {
                assert_eq!(
                    (&subject["name"], &subject["namespace"]),
                    (&json!(own), &json!("netobserv-operator"))
                );
                assert_eq!(object["roleRef"]["name"], own);
            }
        }
    }

    // cluster-network#196
    #[test]
    fn collector_needs_few_resources() {
        let objects = collector().expect("objects");
        assert_eq!(titles(&objects), ["Namespace netobserv", "FlowCollector cluster"]);
        let automatic = json!({ "server": { "tls": { "type": "Auto" } } });
        assert_eq!(
            objects[1]["spec"],
            json!({
                "namespace": "netobserv",
                "deploymentModel": "Service",
                "agent": {
                    "type": "eBPF",
                    "ebpf": { "sampling": 400, "features": ["DNSTracking"], "metrics": automatic },
                },
                "processor": { "metrics": automatic },
                "loki": { "enable": false },
            })
        );
    }
}
