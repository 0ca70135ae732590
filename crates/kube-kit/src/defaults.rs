//! Defaults of the API server, kind by kind: fields of a live object that no client wrote.
//!
//! They distinguish drift from defaulting (operator.md §9.1). This is a table, not code: each line is a path below the
//! object (`*` stands for a list element) and the server's default. [`crate::apply`] learns newer defaults from the
//! answers to its writes.

use serde_json::Value;

/// The value that marks a field as the server's default.
#[derive(Clone, Copy)]
enum Filled {
    Text(&'static str),
    Number(i64),
    Flag(bool),
    /// Any value of the server's choice, such as an address.
    Anything,
    /// A copy of the sibling field.
    SameAs(&'static str),
    /// Decided from the value and its parent object.
    If(fn(value: &Value, parent: &Value) -> bool),
}
use Filled::{Anything, Flag, If, Number, SameAs, Text};

type Table = &'static [(&'static str, Filled)];

const POD: Table = &[
    ("restartPolicy", Text("Always")),
    ("dnsPolicy", Text("ClusterFirst")),
    ("schedulerName", Text("default-scheduler")),
    ("terminationGracePeriodSeconds", Number(30)),
    ("serviceAccount", SameAs("serviceAccountName")),
    ("volumes.*.hostPath.type", Text("")),
    ("volumes.*.configMap.defaultMode", Number(420)),
    ("volumes.*.secret.defaultMode", Number(420)),
    ("volumes.*.downwardAPI.defaultMode", Number(420)),
    ("volumes.*.downwardAPI.items.*.fieldRef.apiVersion", Text("v1")),
    ("volumes.*.projected.defaultMode", Number(420)),
    (
        "volumes.*.projected.sources.*.serviceAccountToken.expirationSeconds",
        Number(3600),
    ),
    (
        "volumes.*.projected.sources.*.downwardAPI.items.*.fieldRef.apiVersion",
        Text("v1"),
    ),
];

const CONTAINER: Table = &[
    ("terminationMessagePath", Text("/dev/termination-log")),
    ("terminationMessagePolicy", Text("File")),
    ("imagePullPolicy", If(pull_policy_follows_the_tag)),
    ("ports.*.protocol", Text("TCP")),
    ("env.*.valueFrom.fieldRef.apiVersion", Text("v1")),
    ("env.*.valueFrom.resourceFieldRef.divisor", Text("0")),
    ("lifecycle.preStop.httpGet.scheme", Text("HTTP")),
    ("lifecycle.postStart.httpGet.scheme", Text("HTTP")),
    ("securityContext.procMount", Text("Default")),
];

const PROBE: Table = &[
    ("timeoutSeconds", Number(1)),
    ("periodSeconds", Number(10)),
    ("successThreshold", Number(1)),
    ("failureThreshold", Number(3)),
    ("httpGet.scheme", Text("HTTP")),
    ("httpGet.path", Text("/")),
];

const DAEMON_SET: Table = &[
    ("spec.revisionHistoryLimit", Number(10)),
    ("spec.updateStrategy.type", Text("RollingUpdate")),
    ("spec.updateStrategy.rollingUpdate.maxUnavailable", Number(1)),
    ("spec.updateStrategy.rollingUpdate.maxSurge", Number(0)),
];

const DEPLOYMENT: Table = &[
    ("spec.replicas", Number(1)),
    ("spec.revisionHistoryLimit", Number(10)),
    ("spec.progressDeadlineSeconds", Number(600)),
    ("spec.strategy.type", Text("RollingUpdate")),
    ("spec.strategy.rollingUpdate.maxUnavailable", Text("25%")),
    ("spec.strategy.rollingUpdate.maxSurge", Text("25%")),
];

const STATEFUL_SET: Table = &[
    ("spec.replicas", Number(1)),
    ("spec.revisionHistoryLimit", Number(10)),
    ("spec.podManagementPolicy", Text("OrderedReady")),
    ("spec.updateStrategy.type", Text("RollingUpdate")),
    ("spec.updateStrategy.rollingUpdate.partition", Number(0)),
    (
        "spec.persistentVolumeClaimRetentionPolicy.whenDeleted",
        Text("Retain"),
    ),
    (
        "spec.persistentVolumeClaimRetentionPolicy.whenScaled",
        Text("Retain"),
    ),
];

const SERVICE: Table = &[
    ("spec.clusterIP", Anything),
    ("spec.clusterIPs", Anything),
    ("spec.ipFamilies", Anything),
    ("spec.ipFamilyPolicy", Anything),
    ("spec.internalTrafficPolicy", Text("Cluster")),
    ("spec.externalTrafficPolicy", Text("Cluster")),
    ("spec.allocateLoadBalancerNodePorts", Flag(true)),
    ("spec.healthCheckNodePort", Anything),
    ("spec.sessionAffinity", Text("None")),
    ("spec.type", Text("ClusterIP")),
    ("spec.ports.*.protocol", Text("TCP")),
    ("spec.ports.*.targetPort", SameAs("port")),
    ("spec.ports.*.nodePort", Anything),
];

const SERVICE_ACCOUNT: Table = &[("secrets", Anything), ("imagePullSecrets", Anything)];

const SECRET: Table = &[("type", Text("Opaque"))];

const NAMESPACE: Table = &[("spec.finalizers", Anything)];

const ROLE: Table = &[
    // The controller of aggregated roles fills in the rules.
    (
        "rules",
        If(|_, role| role.get("aggregationRule").is_some_and(Value::is_object)),
    ),
];

const BINDING: Table = &[
    ("roleRef.apiGroup", Text("rbac.authorization.k8s.io")),
    ("subjects.*.apiGroup", If(default_subject_group)),
];

const NETWORK_POLICY: Table = &[
    ("spec.policyTypes", If(default_policy_types)),
    ("spec.ingress.*.ports.*.protocol", Text("TCP")),
    ("spec.egress.*.ports.*.protocol", Text("TCP")),
];

const WEBHOOKS: Table = &[
    ("webhooks.*.failurePolicy", Text("Fail")),
    ("webhooks.*.matchPolicy", Text("Equivalent")),
    ("webhooks.*.reinvocationPolicy", Text("Never")),
    ("webhooks.*.timeoutSeconds", Number(10)),
    (
        "webhooks.*.namespaceSelector",
        If(|value, _| is_empty_object(value)),
    ),
    ("webhooks.*.objectSelector", If(|value, _| is_empty_object(value))),
    ("webhooks.*.rules.*.scope", Text("*")),
    ("webhooks.*.clientConfig.service.port", Number(443)),
];

const CUSTOM_RESOURCE_DEFINITION: Table = &[
    ("spec.conversion.strategy", Text("None")),
    ("spec.conversion.webhook.clientConfig.service.port", Number(443)),
    (
        "spec.names.listKind",
        If(|value, names| value.as_str() == Some(&format!("{}List", kind_of(names)))),
    ),
    (
        "spec.names.singular",
        If(|value, names| value.as_str() == Some(&kind_of(names).to_lowercase())),
    ),
];

const SECURITY_CONTEXT_CONSTRAINTS: Table = &[
    ("allowPrivilegeEscalation", Flag(true)),
    ("fsGroup.type", Text("RunAsAny")),
    ("supplementalGroups.type", Text("RunAsAny")),
    ("userNamespaceLevel", Text("AllowHostLevel")),
];

/// The tables of a kind, each with its root path.
fn tables(kind: &str) -> &'static [(&'static str, Table)] {
    const WORKLOAD: [(&str, Table); 9] = [
        ("spec.template.spec", POD),
        ("spec.template.spec.containers.*", CONTAINER),
        ("spec.template.spec.containers.*.livenessProbe", PROBE),
        ("spec.template.spec.containers.*.readinessProbe", PROBE),
        ("spec.template.spec.containers.*.startupProbe", PROBE),
        ("spec.template.spec.initContainers.*", CONTAINER),
        ("spec.template.spec.initContainers.*.livenessProbe", PROBE),
        ("spec.template.spec.initContainers.*.readinessProbe", PROBE),
        ("spec.template.spec.initContainers.*.startupProbe", PROBE),
    ];
    /// A workload's own fields, followed by those of its pod template.
    const fn workload(own: Table) -> [(&'static str, Table); 10] {
        let mut all = [("", own); 10];
        let mut index = 0;
        while index < WORKLOAD.len() {
            all[index + 1] = WORKLOAD[index];
            index += 1;
        }
        all
    }
    const DAEMON_SETS: [(&str, Table); 10] = workload(DAEMON_SET);
    const DEPLOYMENTS: [(&str, Table); 10] = workload(DEPLOYMENT);
    const STATEFUL_SETS: [(&str, Table); 10] = workload(STATEFUL_SET);
    match kind {
        "DaemonSet" => &DAEMON_SETS,
        "Deployment" => &DEPLOYMENTS,
        "StatefulSet" => &STATEFUL_SETS,
        "Service" => &[("", SERVICE)],
        "ServiceAccount" => &[("", SERVICE_ACCOUNT)],
        "Secret" => &[("", SECRET)],
        "Namespace" => &[("", NAMESPACE)],
        "ClusterRole" => &[("", ROLE)],
        "ClusterRoleBinding" | "RoleBinding" => &[("", BINDING)],
        "NetworkPolicy" => &[("", NETWORK_POLICY)],
        "MutatingWebhookConfiguration" | "ValidatingWebhookConfiguration" => &[("", WEBHOOKS)],
        "CustomResourceDefinition" => &[("", CUSTOM_RESOURCE_DEFINITION)],
        "SecurityContextConstraints" => &[("", SECURITY_CONTEXT_CONSTRAINTS)],
        _ => &[],
    }
}

/// Whether `value` is the API server's default at `path` of an object of this kind. `path` has `*` for list elements;
/// `parent` is the object that holds the field.
pub(crate) fn server_filled(kind: &str, path: &[&str], value: &Value, parent: &Value) -> bool {
    tables(kind).iter().any(|(prefix, table)| {
        let Some(rest) = strip(path, prefix) else {
            return false;
        };
        table.iter().any(|(pattern, filled)| {
            rest.iter().copied().eq(pattern.split('.')) && matches(*filled, value, parent)
        })
    })
}

/// Whether an empty value at this path differs from an absent one: `{}` as a selector selects everything, `{}` as a
/// volume or a subresource enables it, a label without a value is a label, `false` revokes a right that pods have by
/// default, and user 0 overrides the user of the image.
pub(crate) fn empty_has_meaning(path: &[&str], value: &Value) -> bool {
    let switch = matches!(
        path,
        [.., "namespaceSelector" | "podSelector" | "emptyDir"] | [.., "subresources", "status"]
    );
    let entry = matches!(
        path,
        [
            ..,
            "labels" | "annotations" | "matchLabels" | "nodeSelector" | "selector" | "data" | "binaryData",
            _
        ]
    );
    let denial = matches!(
        path,
        [.., "automountServiceAccountToken"]
            | [.., "securityContext", "allowPrivilegeEscalation" | "runAsUser"]
    );
    // Values inside a schema are data.
    let data = matches!(path, [.., "default" | "example"]);
    (switch && value.is_object()) || (entry && value.is_string()) || ((denial || data) && !value.is_null())
}

/// The path below the prefix, if it is below it.
fn strip<'a, 'b>(path: &'a [&'b str], prefix: &str) -> Option<&'a [&'b str]> {
    if prefix.is_empty() {
        return Some(path);
    }
    let length = prefix.split('.').count();
    let head = path.get(..length)?;
    head.iter()
        .copied()
        .eq(prefix.split('.'))
        .then(|| &path[length..])
}

fn matches(filled: Filled, value: &Value, parent: &Value) -> bool {
    match filled {
        Text(text) => value.as_str() == Some(text),
        Number(number) => value.as_i64() == Some(number),
        Flag(flag) => value.as_bool() == Some(flag),
        Anything => true,
        SameAs(sibling) => parent.get(sibling) == Some(value),
        If(decide) => decide(value, parent),
    }
}

/// `Always` for the tag `latest` or no tag, `IfNotPresent` otherwise.
fn pull_policy_follows_the_tag(value: &Value, container: &Value) -> bool {
    let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
    let (path, digest) = image
        .split_once('@')
        .map_or((image, None), |(path, digest)| (path, Some(digest)));
    let tag = path
        .rsplit('/')
        .next()
        .and_then(|last| last.split_once(':'))
        .map(|(_, tag)| tag);
    let latest = tag == Some("latest") || (tag.is_none() && digest.is_none());
    value.as_str() == Some(if latest { "Always" } else { "IfNotPresent" })
}

fn default_subject_group(value: &Value, subject: &Value) -> bool {
    let wanted = match subject.get("kind").and_then(Value::as_str) {
        Some("User" | "Group") => "rbac.authorization.k8s.io",
        _ => "",
    };
    value.as_str() == Some(wanted)
}

/// Always ingress, and egress if the policy has such rules.
fn default_policy_types(value: &Value, spec: &Value) -> bool {
    let egress = spec
        .get("egress")
        .and_then(Value::as_array)
        .is_some_and(|rules| !rules.is_empty());
    let wanted: &[&str] = if egress {
        &["Ingress", "Egress"]
    } else {
        &["Ingress"]
    };
    value.as_array().is_some_and(|types| {
        types
            .iter()
            .map(Value::as_str)
            .eq(wanted.iter().map(|name| Some(*name)))
    })
}

fn is_empty_object(value: &Value) -> bool {
    value.as_object().is_some_and(serde_json::Map::is_empty)
}

fn kind_of(names: &Value) -> &str {
    names.get("kind").and_then(Value::as_str).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn filled(kind: &str, path: &str, value: &Value, parent: &Value) -> bool {
        let path: Vec<&str> = path.split('.').collect();
        server_filled(kind, &path, value, parent)
    }

    #[test]
    fn server_filled_applies_at_path_of_default_alone() {
        let policy = "spec.template.spec.containers.*.terminationMessagePolicy";
        assert!(filled("DaemonSet", policy, &json!("File"), &json!({})));
        assert!(!filled(
            "DaemonSet",
            policy,
            &json!("FallbackToLogsOnError"),
            &json!({})
        ));
        assert!(!filled("Service", policy, &json!("File"), &json!({})));
        assert!(!filled(
            "DaemonSet",
            "spec.terminationMessagePolicy",
            &json!("File"),
            &json!({})
        ));
        let probe = "spec.template.spec.initContainers.*.startupProbe.failureThreshold";
        assert!(filled("Deployment", probe, &json!(3), &json!({})));
        assert!(!filled("Deployment", probe, &json!(4), &json!({})));
    }

    #[test]
    fn default_pull_policy_follows_tag() {
        let path = "spec.template.spec.containers.*.imagePullPolicy";
        for (image, policy) in [
            ("weft", "Always"),
            ("weft:latest", "Always"),
            ("localhost:5000/weft", "Always"),
            ("weft:v1", "IfNotPresent"),
            ("localhost:5000/weft:v1", "IfNotPresent"),
            ("weft@sha256:00", "IfNotPresent"),
            ("weft:latest@sha256:00", "Always"),
        ] {
            assert!(
                filled("DaemonSet", path, &json!(policy), &json!({ "image": image })),
                "{image} {policy}"
            );
        }
    }

    #[test]
    fn defaults_depend_on_sibling_fields() {
        assert!(filled(
            "Service",
            "spec.ports.*.targetPort",
            &json!(443),
            &json!({"port": 443})
        ));
        assert!(!filled(
            "Service",
            "spec.ports.*.targetPort",
            &json!(8443),
            &json!({"port": 443})
        ));
        let types = "spec.policyTypes";
        assert!(filled(
            "NetworkPolicy",
            types,
            &json!(["Ingress"]),
            &json!({"ingress": [{}]})
        ));
        assert!(!filled(
            "NetworkPolicy",
            types,
            &json!(["Ingress"]),
            &json!({"egress": [{}]})
        ));
        assert!(filled(
            "NetworkPolicy",
            types,
            &json!(["Ingress", "Egress"]),
            &json!({"egress": [{}]})
        ));
        let names = json!({"kind": "Thing"});
        assert!(filled(
            "CustomResourceDefinition",
            "spec.names.listKind",
            &json!("ThingList"),
            &names
        ));
        assert!(filled(
            "CustomResourceDefinition",
            "spec.names.singular",
            &json!("thing"),
            &names
        ));
    }
}
