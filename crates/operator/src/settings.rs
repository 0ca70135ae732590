//! Settings of the operator from its environment (operator §2).

use crate::{images::Images, names::env};

/// Settings of the operator.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Settings {
    /// Version in status and labels; may be empty.
    pub operator_version: String,
    /// Namespace of the operator.
    pub operator_namespace: String,
    /// Namespace of the operands.
    pub operand_namespace: String,
    /// Name of the operator's own pod, if it runs in one.
    pub pod_name: Option<String>,
    /// The operator's image in its Deployment, for an unreadable own pod.
    pub operator_image: Option<String>,
    /// Images from environment variables; the operator's own image is detected later.
    pub images: Images,
    /// The monitoring stack.
    pub prometheus: Prometheus,
}

/// The monitoring stack of the cluster.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Prometheus {
    /// Namespace of its service account.
    pub namespace: String,
    /// Name of its service account.
    pub service_account: String,
    /// Template of the links of alerts, with exactly one `%s` for the name of the alert.
    pub runbook_url_template: String,
}

/// Placeholder for the name of the alert.
const ALERT: &str = "%s";

impl Default for Prometheus {
    fn default() -> Self {
        Self {
            namespace: "monitoring".into(),
            service_account: "prometheus-k8s".into(),
            runbook_url_template: "https://kubevirt.io/monitoring/runbooks/%s".into(),
        }
    }
}

impl Prometheus {
    fn read(set: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let default = Self::default();
        let template = set(env::RUNBOOK_URL_TEMPLATE).unwrap_or(default.runbook_url_template);
        if template.matches(ALERT).count() != 1 {
            return Err(Error::RunbookUrlTemplate);
        }
        Ok(Self {
            namespace: set(env::MONITORING_NAMESPACE).unwrap_or(default.namespace),
            service_account: set(env::MONITORING_SERVICE_ACCOUNT).unwrap_or(default.service_account),
            runbook_url_template: template,
        })
    }

    /// The link of an alert.
    pub(crate) fn runbook_url(&self, alert: &str) -> String {
        self.runbook_url_template.replacen(ALERT, alert, 1)
    }
}

/// A missing or invalid environment variable.
#[derive(Clone, Copy, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Error {
    /// `OPERATOR_NAMESPACE` is missing.
    #[error("environment variable OPERATOR_NAMESPACE has to be set")]
    OperatorNamespace,
    /// `WATCH_NAMESPACE` is missing; it may be empty.
    #[error("WATCH_NAMESPACE must be set")]
    WatchNamespace,
    /// The template of links does not have exactly one placeholder.
    #[error("runbook URL template must have exactly 1 %s substring")]
    RunbookUrlTemplate,
}

impl Settings {
    /// Reads the environment through `lookup`. Variables of earlier generations are ignored.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Self, Error> {
        let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let operator_namespace = set(env::OPERATOR_NAMESPACE).ok_or(Error::OperatorNamespace)?;
        lookup(env::WATCH_NAMESPACE).ok_or(Error::WatchNamespace)?;
        Ok(Self {
            operator_version: lookup(env::OPERATOR_VERSION).unwrap_or_default(),
            operand_namespace: set(env::OPERAND_NAMESPACE).unwrap_or_else(|| operator_namespace.clone()),
            operator_namespace,
            pod_name: set(env::POD_NAME),
            operator_image: set(env::OPERATOR_IMAGE),
            images: Images::read(&lookup),
            prometheus: Prometheus::read(set)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Settings, Error> {
        Settings::read(|name| {
            variables
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).to_owned())
        })
    }

    #[test]
    fn missing_namespaces_are_reported_with_upstream_texts() {
        let error = |variables| read(variables).expect_err("an error").to_string();
        assert_eq!(
            error(&[]),
            "environment variable OPERATOR_NAMESPACE has to be set"
        );
        let empty = [("OPERATOR_NAMESPACE", ""), ("WATCH_NAMESPACE", "")];
        assert_eq!(
            error(&empty),
            "environment variable OPERATOR_NAMESPACE has to be set"
        );
        assert_eq!(
            error(&[("OPERATOR_NAMESPACE", "ns")]),
            "WATCH_NAMESPACE must be set"
        );
    }

    #[test]
    fn operand_namespace_defaults_to_operator_namespace() {
        let base = [("OPERATOR_NAMESPACE", "ns"), ("WATCH_NAMESPACE", "")];
        let settings = read(&base).expect("settings");
        assert_eq!(
            (
                settings.operator_namespace.as_str(),
                settings.operand_namespace.as_str()
            ),
            ("ns", "ns")
        );
        let more = [
            base[0],
            base[1],
            ("OPERAND_NAMESPACE", "other"),
            ("SRIOV_CNI_IMAGE", "x"),
            ("POD_NAME", ""),
        ];
        let settings = read(&more).expect("settings");
        assert_eq!(
            (settings.operand_namespace.as_str(), settings.pod_name),
            ("other", None)
        );
    }

    #[test]
    fn monitoring_stack_defaults_to_openshift_monitoring() {
        let base = [("OPERATOR_NAMESPACE", "ns"), ("WATCH_NAMESPACE", "")];
        let prometheus = |more: &[(&str, &str)]| read(&[&base, more].concat()).map(|it| it.prometheus);
        let found = prometheus(&[("MONITORING_NAMESPACE", ""), ("MONITORING_SERVICE_ACCOUNT", "")]);
        let found = found.expect("settings");
        assert_eq!(found.namespace, "monitoring");
        assert_eq!(found.service_account, "prometheus-k8s");
        assert_eq!(
            found.runbook_url("CnaoDown"),
            "https://kubevirt.io/monitoring/runbooks/CnaoDown"
        );
        let found = prometheus(&[
            ("MONITORING_NAMESPACE", "openshift-monitoring"),
            ("MONITORING_SERVICE_ACCOUNT", "prometheus"),
            ("RUNBOOK_URL_TEMPLATE", "https://runbooks.example/%s.html"),
        ]);
        let found = found.expect("settings");
        assert_eq!(found.namespace, "openshift-monitoring");
        assert_eq!(found.service_account, "prometheus");
        assert_eq!(
            found.runbook_url("CnaoDown"),
            "https://runbooks.example/CnaoDown.html"
        );
        for template in ["https://runbooks.example/", "%s/%s"] {
            let error = prometheus(&[("RUNBOOK_URL_TEMPLATE", template)]).expect_err("no template");
            assert_eq!(
                error.to_string(),
                "runbook URL template must have exactly 1 %s substring"
            );
        }
    }
}
