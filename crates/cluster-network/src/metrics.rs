//! Metrics of the operator (§16): the state of `IPsec`, the conditions, and the metrics of every controller. Clients need
//! the right to read them.

use std::path::PathBuf;

use api::cluster_network::{Condition, operator::NetworkSpec};
use axum::Router;
use kube::Client;
use kube_kit::{
    auth,
    metrics::Controller,
    serve::{self, Bind, Certified, Limits, Readiness, Serving},
    tls::{self, Profile},
};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{family::Family, gauge::Gauge},
    registry::Registry,
};

use crate::{messages, names, ovn::ipsec::Mode};

/// Path of the metrics, and of the non-resource URL in the right to read them.
const PATH: &str = "/metrics";
/// Directory of a serving certificate from the platform, if the platform issues one.
const CERTIFICATES: &str = "/var/run/secrets/serving-cert";
/// Service of the metrics.
const SERVICE: &str = "metrics";
/// Value of the label `controller`.
const CONTROLLER: &str = "operconfig";
/// Types of the operator's own conditions. One of another controller may vanish, and would keep its last value here.
const CONDITIONS: [&str; 4] = ["Available", "Degraded", "Progressing", "Upgradeable"];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Ipsec {
    mode: &'static str,
    is_legacy_api: &'static str,
}

impl Ipsec {
    /// The state of a configuration. A configuration without a mode uses the legacy API.
    fn of(spec: &NetworkSpec) -> Self {
        if spec.default_network.kind != names::OVN_KUBERNETES {
            return Self {
                mode: mode(Mode::Disabled),
                is_legacy_api: messages::IPSEC_NOT_SUPPORTED,
            };
        }
        let config = spec.default_network.ovn_kubernetes_config.as_ref();
        let has_mode = config
            .and_then(|config| config.ipsec_config.as_ref())
            .is_some_and(|ipsec| !ipsec.mode.is_empty());
        Self {
            mode: mode(config.map_or(Mode::Disabled, Mode::of)),
            is_legacy_api: if has_mode { "false" } else { "true" },
        }
    }
}

fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Disabled => "Disabled",
        Mode::External => "External",
        Mode::Full => "Full",
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ConditionLabels {
    condition: &'static str,
}

/// The metrics. Clones share their values.
#[derive(Clone, Debug)]
pub struct Metrics {
    ipsec: Family<Ipsec, Gauge>,
    conditions: Family<ConditionLabels, Gauge>,
    controller: Controller,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            ipsec: Family::default(),
            conditions: Family::default(),
            controller: Controller::new(CONTROLLER),
        }
    }
}

impl Metrics {
    /// Records the `IPsec` state of a valid configuration.
    pub(crate) fn set_ipsec(&self, spec: &NetworkSpec) {
        let state = Ipsec::of(spec);
        if self.ipsec.get(&state).is_some() {
            return;
        }
        // Only one state applies at a time.
        self.ipsec.clear();
        self.ipsec.get_or_create(&state).set(1);
    }

    /// Records the operator's own conditions.
    pub(crate) fn set_conditions(&self, conditions: &[Condition]) {
        for condition in CONDITIONS {
            if let Some(found) = conditions.iter().find(|it| it.kind == condition) {
                let gauge = self.conditions.get_or_create(&ConditionLabels { condition });
                gauge.set(i64::from(found.status == "True"));
            }
        }
    }

    pub(crate) fn controller(&self) -> &Controller {
        &self.controller
    }

    /// Serves over TLS: probes to all clients, and metrics to users with the right to `get` their path.
    ///
    /// # Errors
    /// If the address cannot be opened, or no certificate can be issued.
    pub async fn serve(
        &self,
        listen: Bind,
        namespace: &str,
        client: Client,
        readiness: Readiness,
    ) -> Result<Option<Serving>, serve::NoServer> {
        let server = Certified {
            certificates: Some(PathBuf::from(CERTIFICATES)),
            names: tls::service_names(SERVICE, namespace),
            profile: Profile::default(),
            http2: true,
            authorities: None,
            limits: Limits::default(),
        };
        // The operator works without a certificate of the platform.
        let loaded = Readiness::new();
        server
            .serve(&listen, self.router(client, readiness), &loaded)
            .await
    }

    fn router(&self, client: Client, readiness: Readiness) -> Router {
        let metrics = serve::metrics(self.registry().into());
        serve::probes(readiness).merge(auth::guarded(metrics, client, PATH))
    }

    fn registry(&self) -> Registry {
        let mut registry = Registry::default();
        registry.register(
            names::metric::IPSEC_STATE,
            messages::IPSEC_HELP,
            self.ipsec.clone(),
        );
        registry.register(
            names::metric::CONDITION,
            messages::CONDITION_HELP,
            self.conditions.clone(),
        );
        self.controller.register(&mut registry);
        registry
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn text(metrics: &Metrics) -> String {
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &metrics.registry()).expect("text");
        text
    }

    fn states(metrics: &Metrics) -> Vec<String> {
        let text = text(metrics);
        let lines = text
            .lines()
            .filter(|line| line.starts_with("openshift_network_operator_ipsec_state{"));
        lines.map(str::to_owned).collect()
    }

    // cluster-network#90
    #[test]
    fn one_ipsec_state_follows_the_configuration() {
        let metrics = Metrics::default();
        assert_eq!(states(&metrics), Vec::<String>::new(), "nothing is known yet");
        let spec = |kind: &str, config: Value| -> NetworkSpec {
            serde_json::from_value(
                json!({ "defaultNetwork": { "type": kind, "ovnKubernetesConfig": config } }),
            )
            .expect("a configuration")
        };
        for (kind, config, mode, is_legacy) in [
            (
                "OVNKubernetes",
                json!({ "ipsecConfig": { "mode": "Disabled" } }),
                "Disabled",
                "false",
            ),
            (
                "OVNKubernetes",
                json!({ "ipsecConfig": { "mode": "Full" } }),
                "Full",
                "false",
            ),
            (
                "OVNKubernetes",
                json!({ "ipsecConfig": { "mode": "External" } }),
                "External",
                "false",
            ),
            ("OVNKubernetes", json!({ "ipsecConfig": {} }), "Full", "true"),
            ("OVNKubernetes", json!({}), "Disabled", "true"),
            ("OVNKubernetes", Value::Null, "Disabled", "true"),
            (
                "Weft",
                Value::Null,
                "Disabled",
                "N/A - ipsec not supported (non-OVN network)",
            ),
        ] {
            metrics.set_ipsec(&spec(kind, config));
            let expected = format!(
                "openshift_network_operator_ipsec_state{{mode=\"{mode}\",is_legacy_api=\"{is_legacy}\"}} 1"
            );
            assert_eq!(states(&metrics), [expected]);
        }
    }

    // cluster-network#211
    #[test]
    fn metrics_follow_the_conditions() {
        let metrics = Metrics::default();
        let report = |kind: &str, status: &str| Condition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            ..Condition::default()
        };
        assert!(!text(&metrics).contains("weft_cluster_network_condition{"));
        for (status, value) in [("False", 0), ("True", 1), ("False", 0)] {
            metrics.set_conditions(&[
                report("Available", "True"),
                report("Degraded", status),
                report("OfAnotherController", "True"),
            ]);
            let text = text(&metrics);
            assert!(!text.contains("OfAnotherController"), "{text}");
            for line in [
                "weft_cluster_network_condition{condition=\"Available\"} 1".to_owned(),
                format!("weft_cluster_network_condition{{condition=\"Degraded\"}} {value}"),
            ] {
                assert!(
                    text.lines().any(|found| found == line),
                    "{line} is not in\n{text}"
                );
            }
        }
    }

    // cluster-network#91
    #[test]
    fn metrics_of_every_controller_exist_from_the_start() {
        let text = text(&Metrics::default());
        for line in [
            "controller_runtime_reconcile_total{controller=\"operconfig\",result=\"success\"} 0",
            "workqueue_depth{controller=\"operconfig\",name=\"operconfig\"} 0",
        ] {
            assert!(
                text.lines().any(|found| found == line),
                "{line} is not in\n{text}"
            );
        }
        assert!(text.contains("\nprocess_resident_memory_bytes "), "{text}");
    }
}
