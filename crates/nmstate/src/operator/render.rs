//! Renders the objects of an `NMState`: pure, from manifests and facts, in the order in which they are applied
//! (nmstate §10.2, §11).

mod console_plugin;

use api::node_state::{NMState, NMStateSpec};
use k8s_openapi::api::core::v1::Toleration;
use kube_kit::object::Owner;
use kube_kit::serve::Bind;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::files::{self, Files};
use super::names::{self, env, namespace};
use super::object::{Missing, Object, for_each_string};
use super::settings::Settings;
use crate::names::{
    KERNEL, METRICS_ADDRESS, METRICS_CERTIFICATES, RELATIONSHIP_LABELS, WEBHOOK_AUTHORITY,
    WEBHOOK_CONFIGURATION, env as handler,
};

/// The objects cannot be rendered.
#[derive(Debug, Error)]
pub(crate) enum Error {
    /// The manifests cannot be used.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// A manifest lacks the place of an edit.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// A definition cannot be generated; a test rules it out.
    #[error(transparent)]
    Definition(#[from] api::Error),
    /// An object cannot be serialized; a test rules it out.
    #[error("cannot write an object as JSON")]
    Json(#[from] serde_json::Error),
}

/// Facts that the objects depend on, beside the `NMState` and the operator's settings.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Facts {
    /// Whether this is OpenShift.
    pub openshift: bool,
    /// Whether the aggregated role of cluster readers exists.
    pub cluster_reader: bool,
    /// Number of nodes that are reserved for infrastructure.
    pub dedicated_nodes: usize,
    /// Ports of the API servers.
    pub api_ports: Vec<i32>,
    /// The TLS profile as JSON, on OpenShift.
    pub tls_profile: Option<String>,
}

/// Renders the objects, in order.
pub(crate) fn render(
    nmstate: &NMState,
    settings: &Settings,
    facts: &Facts,
    files: &Files,
) -> Result<Vec<Value>, Error> {
    let mut unowned = definitions()?;
    let mut spaces = files.objects("namespace.yaml")?;
    for space in &mut spaces {
        complete_namespace(&mut Object(space), settings, facts)?;
    }
    let mut owned = Vec::new();
    owned.extend(files.objects("rbac.yaml")?);
    if facts.cluster_reader {
        owned.extend(files.objects("cluster-reader.yaml")?);
    }
    owned.extend(files.objects("network-policies.yaml")?);
    if facts.openshift {
        owned.extend(files.objects("openshift.yaml")?);
    }
    for file in [
        "workloads.yaml",
        "services.yaml",
        "monitoring.yaml",
        "admission.yaml",
    ] {
        owned.extend(files.objects(file)?);
    }
    if facts.openshift {
        owned.retain(|object| !is_cert_manager(object));
    }
    for object in &mut owned {
        complete(&mut Object(object), &nmstate.spec, settings, facts)?;
        substitute_names(object, settings);
    }
    if facts.openshift && files.has("console-plugin.yaml") {
        owned.extend(console_plugin::console_plugin(&nmstate.spec, settings, files)?);
    }
    let owner = owner(nmstate);
    for object in &mut owned {
        stamp(&mut Object(object), nmstate)?;
        Object(object).insert("/metadata", "ownerReferences", json!([owner.reference()]))?;
    }
    for definition in &mut unowned {
        stamp(&mut Object(definition), nmstate)?;
    }
    Ok(unowned.into_iter().chain(spaces).chain(owned).collect())
}

/// Custom resource definitions, which outlive the `NMState`.
fn definitions() -> Result<Vec<Value>, Error> {
    let definitions = [
        api::node_state::network_state_crd()?,
        api::node_state::policy_crd()?,
        api::node_state::enactment_crd()?,
    ];
    let values = definitions.iter().map(serde_json::to_value);
    Ok(values.collect::<Result<_, _>>()?)
}

/// The owner of all objects except definitions and namespaces.
fn owner(nmstate: &NMState) -> Owner {
    let metadata = &nmstate.metadata;
    Owner {
        api_version: kube_kit::object::NMSTATE.api_version(),
        kind: names::OWNER_KIND.to_owned(),
        name: metadata.name.clone().unwrap_or_default(),
        uid: metadata.uid.clone().unwrap_or_default(),
    }
}

fn complete_namespace(space: &mut Object<'_>, settings: &Settings, facts: &Facts) -> Result<(), Missing> {
    let name = settings.handler_namespace.as_str();
    space.replace("/metadata/name", name)?;
    space.label("name", name)?;
    if facts.openshift {
        space.label("openshift.io/cluster-monitoring", "true")?;
        space.insert("/metadata/annotations", "openshift.io/node-selector", "")?;
    }
    Ok(())
}

/// Whether an object belongs to the certificate manager, which OpenShift does not need.
fn is_cert_manager(object: &Value) -> bool {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    name == names::CERT_MANAGER || name.starts_with("allow-cert-manager-")
}

fn complete(
    object: &mut Object<'_>,
    spec: &NMStateSpec,
    settings: &Settings,
    facts: &Facts,
) -> Result<(), Missing> {
    if object.has_pods() {
        complete_workload(object, spec, settings, facts)?;
    }
    match (object.kind(), object.name()) {
        ("PodDisruptionBudget", names::WEBHOOK) => {
            object.replace("/spec/minAvailable", i64::from(is_replicated(facts)))?;
        }
        ("NetworkPolicy", name) if name.ends_with(names::API_PORT.1) => {
            for port in facts.api_ports.iter().filter(|port| **port != names::API_PORT.0) {
                let port = json!({ "protocol": "TCP", "port": port });
                object.push("/spec/egress/0", "ports", port)?;
            }
        }
        ("NetworkPolicy", names::METRICS_INGRESS) => {
            if let Some(Bind::Everywhere(port) | Bind::At(_, port)) = metrics_address(spec) {
                object.replace("/spec/ingress/0/ports/0/port", port)?;
            }
        }
        ("ClusterRole", names::HANDLER) if facts.openshift => {
            let rule = json!({
                "apiGroups": ["security.openshift.io"], "resources": ["securitycontextconstraints"],
                "resourceNames": ["privileged"], "verbs": ["use"],
            });
            object.push("", "rules", rule)?;
        }
        // The right to read metrics is checked on OpenShift only.
        ("ClusterRole", names::METRICS) if !facts.openshift => {
            let ours = json!([kube_kit::object::NMSTATE.group]);
            object.retain("/rules", |rule| rule["apiGroups"] == ours)?;
        }
        ("ValidatingAdmissionPolicy", names::HANDLER_NODE) => {
            let namespace = &settings.handler_namespace;
            let account = settings.name(names::HANDLER);
            let is_handler =
                format!("request.userInfo.username == 'system:serviceaccount:{namespace}:{account}'");
            object.replace("/spec/matchConditions/0/expression", is_handler)?;
        }
        ("Service", names::MONITOR) if facts.openshift => object.insert(
            "/metadata/annotations",
            names::SERVING_CERTIFICATE,
            names::OPENSHIFT_METRICS,
        )?,
        ("ServiceMonitor", _) if facts.openshift => {
            let server = format!(
                "{}.{}.svc",
                settings.name(names::MONITOR),
                settings.handler_namespace
            );
            let ca = "/etc/prometheus/configmaps/serving-certs-ca-bundle/service-ca.crt";
            let tls = json!({ "caFile": ca, "serverName": server });
            object.replace("/spec/endpoints/0/tlsConfig", tls)?;
        }
        ("ConfigMap", name) if name == names::TLS_CONFIG.0 => {
            let profile = facts.tls_profile.clone().unwrap_or_default();
            object.insert("/data", names::TLS_CONFIG.1, profile)?;
        }
        _ => {}
    }
    Ok(())
}

/// The address that an `NMState` chooses for the metrics. `None` keeps the manifests' address: without a choice, for
/// the definition's default, which never had an effect, and for an invalid address.
fn metrics_address(spec: &NMStateSpec) -> Option<Bind> {
    let address = spec.metrics_configuration.as_ref()?.bind_address.as_str();
    if address == METRICS_ADDRESS {
        return None;
    }
    address.parse().ok()
}

/// Whether the webhook has two replicas, so that one is always available.
fn is_replicated(facts: &Facts) -> bool {
    facts.dedicated_nodes > 1
}

fn complete_workload(
    workload: &mut Object<'_>,
    spec: &NMStateSpec,
    settings: &Settings,
    facts: &Facts,
) -> Result<(), Missing> {
    const CONTAINER: &str = "/spec/template/spec/containers/0";
    workload.replace(&format!("{CONTAINER}/image"), settings.image.as_str())?;
    workload.replace(
        &format!("{CONTAINER}/imagePullPolicy"),
        settings.pull_policy.as_str(),
    )?;
    workload.set_env(env::ENABLE_PROFILER, &settings.profiler.0)?;
    workload.set_env(env::PROFILER_PORT, &settings.profiler.1)?;
    let name = workload.name().to_owned();
    if name != names::CERT_MANAGER {
        workload.set_env(handler::IS_OPENSHIFT, &facts.openshift.to_string())?;
    }
    match name.as_str() {
        names::HANDLER => return complete_handler(workload, spec, settings),
        names::WEBHOOK => {
            if is_replicated(facts) {
                workload.replace("/spec/replicas", 2)?;
            }
            if facts.openshift {
                let secret = "/spec/template/spec/volumes/0/secret/secretName";
                workload.replace(secret, names::OPENSHIFT_WEBHOOK)?;
            }
        }
        names::METRICS => {
            match metrics_address(spec) {
                Some(Bind::Off) => workload.replace("/spec/replicas", 0)?,
                // Only the port: the pod's address is unknown here.
                Some(Bind::Everywhere(port) | Bind::At(_, port)) => {
                    workload.set_env(handler::METRICS_BIND_ADDRESS, &format!(":{port}"))?;
                    workload.replace(&format!("{CONTAINER}/ports/0/containerPort"), port)?;
                }
                None => {}
            }
            if facts.openshift {
                let secret = json!({ "secretName": names::OPENSHIFT_METRICS });
                mount(workload, "tls-key-pair", METRICS_CERTIFICATES, ("secret", secret))?;
            }
        }
        names::CERT_MANAGER => {
            intervals(workload, spec)?;
            if !settings.prefix.is_empty() {
                // The webhook configuration has the prefix too.
                workload.set_env(handler::PREFIX, &settings.prefix)?;
            }
        }
        _ => {}
    }
    if facts.openshift {
        // OpenShift's restricted SCC chooses the user; only the handler is privileged.
        workload.remove("/spec/template/spec/securityContext", "runAsUser")?;
        let profile = facts.tls_profile.as_deref().unwrap_or_default();
        let config = json!({ "name": names::TLS_CONFIG.0 });
        mount(
            workload,
            "tls-config",
            names::TLS_DIRECTORY,
            ("configMap", config),
        )?;
        workload.insert(
            "/spec/template/metadata/annotations",
            names::TLS_HASH,
            hash(profile),
        )?;
    }
    place_infrastructure(workload, spec)
}

fn hash(text: &str) -> String {
    let digest = Sha256::digest(text.as_bytes());
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn mount(
    workload: &mut Object<'_>,
    name: &str,
    path: &str,
    (kind, source): (&str, Value),
) -> Result<(), Missing> {
    workload.push(
        "/spec/template/spec",
        "volumes",
        json!({ "name": name, kind: source }),
    )?;
    workload.push(
        "/spec/template/spec/containers/0",
        "volumeMounts",
        json!({ "name": name, "mountPath": path, "readOnly": true }),
    )
}

fn complete_handler(
    handler_set: &mut Object<'_>,
    spec: &NMStateSpec,
    settings: &Settings,
) -> Result<(), Missing> {
    for (name, value) in &settings.forwarded {
        handler_set.set_env(name, value)?;
    }
    let probes = spec.probe_configuration.as_ref();
    if let Some(dns) = probes.and_then(|probes| probes.dns.as_ref()) {
        handler_set.set_env(handler::PROBE_DNS_HOST, &dns.host)?;
    }
    if let Some(choice) = &spec.handler_configuration {
        if !choice.backend.is_empty() {
            handler_set.set_env(handler::BACKEND, &choice.backend)?;
        }
        if let Some(served) = choice.original_design {
            handler_set.set_env(handler::ORIGINAL_DESIGN, &served.to_string())?;
        }
        if let Some(seconds) = choice.drift_seconds {
            handler_set.set_env(handler::DRIFT_INTERVAL, &seconds.to_string())?;
        }
    }
    if has_env(handler_set, handler::BACKEND, KERNEL)? {
        // These hosts have no bus, and a pod with a missing host path does not start.
        handler_set.remove_volume("dbus-socket")?;
    }
    if spec.log_level == "debug" {
        for word in ["--v", "debug"] {
            handler_set.push("/spec/template/spec/containers/0", "args", json!(word))?;
        }
        let probe = "/spec/template/spec/containers/0/livenessProbe/exec";
        handler_set.push(probe, "command", json!("-vv"))?;
    }
    let linux = [("kubernetes.io/os".to_owned(), "linux".to_owned())].into();
    let everything = vec![Toleration {
        operator: Some("Exists".to_owned()),
        ..Toleration::default()
    }];
    if let Some(affinity) = &spec.affinity {
        handler_set.set_in_pod("affinity", affinity)?;
    }
    handler_set.set_in_pod("nodeSelector", spec.node_selector.as_ref().unwrap_or(&linux))?;
    handler_set.set_in_pod("tolerations", spec.tolerations.as_ref().unwrap_or(&everything))
}

fn has_env(workload: &mut Object<'_>, name: &str, value: &str) -> Result<bool, Missing> {
    let variables = workload.at("/spec/template/spec/containers/0/env")?;
    let mut variables = variables.as_array().into_iter().flatten();
    Ok(variables.any(|variable| variable["name"] == name && variable["value"] == value))
}

/// Sets the intervals that are given; the manifest has defaults.
fn intervals(workload: &mut Object<'_>, spec: &NMStateSpec) -> Result<(), Missing> {
    let Some(given) = &spec.self_sign_configuration else {
        return Ok(());
    };
    let values = [
        &given.ca_rotate_interval,
        &given.ca_overlap_interval,
        &given.cert_rotate_interval,
        &given.cert_overlap_interval,
    ];
    for (name, value) in env::CERTIFICATES.into_iter().zip(values) {
        if !value.is_empty() {
            workload.set_env(name, value)?;
        }
    }
    Ok(())
}

/// Labels of the nodes for infrastructure.
pub(crate) fn infrastructure_selector(spec: &NMStateSpec) -> Vec<(String, String)> {
    match &spec.infra_node_selector {
        Some(selector) => selector.clone().into_iter().collect(),
        None => vec![("kubernetes.io/os".to_owned(), "linux".to_owned())],
    }
}

/// Tolerations of the infrastructure.
pub(crate) fn infrastructure_tolerations(spec: &NMStateSpec) -> Vec<Toleration> {
    let control_plane = |role: &str| Toleration {
        key: Some(format!("node-role.kubernetes.io/{role}")),
        operator: Some("Exists".to_owned()),
        effect: Some("NoSchedule".to_owned()),
        ..Toleration::default()
    };
    spec.infra_tolerations
        .clone()
        .unwrap_or_else(|| vec![control_plane("control-plane"), control_plane("master")])
}

fn place_infrastructure(workload: &mut Object<'_>, spec: &NMStateSpec) -> Result<(), Missing> {
    let role = |weight: i32, role: &str| {
        let key = format!("node-role.kubernetes.io/{role}");
        json!({
            "weight": weight,
            "preference": { "matchExpressions": [{ "key": key, "operator": "Exists" }] },
        })
    };
    match &spec.infra_affinity {
        Some(affinity) => workload.set_in_pod("affinity", affinity)?,
        None => workload.set_in_pod(
            "affinity",
            &json!({ "nodeAffinity": {
                "preferredDuringSchedulingIgnoredDuringExecution": [role(10, "control-plane"), role(1, "master")],
            } }),
        )?,
    }
    let selector: serde_json::Map<String, Value> = infrastructure_selector(spec)
        .into_iter()
        .map(|(key, value)| (key, json!(value)))
        .collect();
    workload.set_in_pod("nodeSelector", &selector)?;
    workload.set_in_pod("tolerations", &infrastructure_tolerations(spec))
}

/// Replaces the namespaces and names of the manifests with those of this installation.
fn substitute_names(object: &mut Value, settings: &Settings) {
    const NAMED: [&str; 10] = [
        names::HANDLER,
        names::HANDLER_EVENTS,
        names::HANDLER_NODE,
        names::WEBHOOK,
        names::METRICS,
        names::CERT_MANAGER,
        names::MONITOR,
        names::READER,
        WEBHOOK_CONFIGURATION,
        WEBHOOK_AUTHORITY,
    ];
    for_each_string(object, &mut |member, text| match member {
        "namespace" | "kubernetes.io/metadata.name" => {
            let place = match text.as_str() {
                namespace::HANDLER => &settings.handler_namespace,
                namespace::OPERATOR => &settings.operator_namespace,
                namespace::MONITORING => &settings.monitoring_namespace,
                _ => return,
            };
            text.clone_from(place);
        }
        "name" | "policyName" | "secretName" | "serviceAccountName" | "resourceNames"
            if NAMED.contains(&text.as_str()) =>
        {
            *text = settings.name(text);
        }
        _ => {}
    });
}

/// Adds the operator's label, and the relationship labels of the `NMState`.
fn stamp(object: &mut Object<'_>, nmstate: &NMState) -> Result<(), Missing> {
    let given = nmstate.metadata.labels.iter().flatten();
    let is_known = |label: &str| RELATIONSHIP_LABELS.iter().any(|(_, known)| label == *known);
    for (label, value) in given.filter(|(label, _)| is_known(label)) {
        object.label(label, value)?;
        if object.has_pods() {
            object.insert("/spec/template/metadata/labels", label, value.as_str())?;
        }
    }
    object.label(names::MANAGED_BY.0, names::MANAGED_BY.1)
}

#[cfg(test)]
mod tests;
