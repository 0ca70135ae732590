//! What is deployed for an `NMState`: pure, manifests and facts in, objects out, in the order in which they are applied
//! (nmstate §10.2, §11).

use api::node_state::{NMState, NMStateSpec};
use k8s_openapi::api::core::v1::Toleration;
use kube_kit::object::Owner;
use kube_kit::serve::Bind;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use thiserror::Error;

use super::files::{self, Files};
use super::names::{self, env, namespace};
use super::object::{Missing, Object, each_text};
use super::settings::Settings;
use crate::names::{
    KERNEL, METRICS_ADDRESS, METRICS_CERTIFICATES, RELATIONSHIP_LABELS, WEBHOOK_AUTHORITY,
    WEBHOOK_CONFIGURATION, env as handler,
};

/// Why nothing can be deployed.
#[derive(Debug, Error)]
pub enum Error {
    /// There are no manifests.
    #[error(transparent)]
    Files(#[from] files::Error),
    /// A manifest lacks what is to be completed.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// A definition can't be generated; a test rules it out.
    #[error(transparent)]
    Definition(#[from] api::Error),
    /// An object can't be written as JSON; a test rules it out.
    #[error("cannot write an object as JSON")]
    Json(#[from] serde_json::Error),
}

/// What decides beside the `NMState` and the operator's settings.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Facts {
    /// Whether this is OpenShift.
    pub openshift: bool,
    /// Whether there is a role that collects what may be read.
    pub cluster_reader: bool,
    /// How many nodes are set aside for infrastructure.
    pub dedicated_nodes: usize,
    /// Ports that API servers listen on.
    pub api_ports: Vec<i32>,
    /// On OpenShift, what servers may speak, as JSON.
    pub tls_profile: Option<String>,
}

/// The objects, in order.
///
/// # Errors
/// When manifests are missing or malformed.
pub fn render(
    wish: &NMState,
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
        owned.retain(|object| !cert_managers(object));
    }
    for object in &mut owned {
        complete(&mut Object(object), &wish.spec, settings, facts)?;
        place_names(object, settings);
    }
    if facts.openshift && files.has("console-plugin.yaml") {
        owned.extend(console_plugin(&wish.spec, settings, files)?);
    }
    let owner = owner(wish);
    for object in &mut owned {
        stamp(&mut Object(object), wish)?;
        Object(object).insert("/metadata", "ownerReferences", json!([owner.reference()]))?;
    }
    for definition in &mut unowned {
        stamp(&mut Object(definition), wish)?;
    }
    Ok(unowned.into_iter().chain(spaces).chain(owned).collect())
}

/// Kinds that outlive every `NMState`.
fn definitions() -> Result<Vec<Value>, Error> {
    let definitions = [
        api::node_state::network_state_crd()?,
        api::node_state::policy_crd()?,
        api::node_state::enactment_crd()?,
    ];
    let values = definitions.iter().map(serde_json::to_value);
    Ok(values.collect::<Result<_, _>>()?)
}

/// What everything but definitions and namespaces belongs to.
fn owner(wish: &NMState) -> Owner {
    let metadata = &wish.metadata;
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

/// What OpenShift has no need of: it issues certificates itself.
fn cert_managers(object: &Value) -> bool {
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
            object.replace("/spec/minAvailable", i64::from(is_spread(facts)))?;
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
        // Readers of metrics are asked for their right on OpenShift alone.
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

/// The address that an `NMState` chooses for the metrics. `None` leaves the manifests' address: without a choice, for the
/// definition's default, which never had an effect, and for text that is no address.
fn metrics_address(spec: &NMStateSpec) -> Option<Bind> {
    let address = spec.metrics_configuration.as_ref()?.bind_address.as_str();
    if address == METRICS_ADDRESS {
        return None;
    }
    address.parse().ok()
}

/// Whether there are two webhooks, so that there is always one.
fn is_spread(facts: &Facts) -> bool {
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
    workload.variable(env::ENABLE_PROFILER, &settings.profiler.0)?;
    workload.variable(env::PROFILER_PORT, &settings.profiler.1)?;
    let name = workload.name().to_owned();
    if name != names::CERT_MANAGER {
        workload.variable(handler::IS_OPENSHIFT, &facts.openshift.to_string())?;
    }
    match name.as_str() {
        names::HANDLER => return complete_handler(workload, spec, settings),
        names::WEBHOOK => {
            if is_spread(facts) {
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
                // The port alone: the pod's address is unknown here.
                Some(Bind::Everywhere(port) | Bind::At(_, port)) => {
                    workload.variable(handler::METRICS_BIND_ADDRESS, &format!(":{port}"))?;
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
                // The webhook configuration that it looks after is called so too.
                workload.variable(handler::PREFIX, &settings.prefix)?;
            }
        }
        _ => {}
    }
    if facts.openshift {
        // Its constraints for everybody choose the user. Privileged ones are the handler's alone.
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
    for (name, value) in &settings.handed_on {
        handler_set.variable(name, value)?;
    }
    let probes = spec.probe_configuration.as_ref();
    if let Some(dns) = probes.and_then(|probes| probes.dns.as_ref()) {
        handler_set.variable(handler::PROBE_DNS_HOST, &dns.host)?;
    }
    if let Some(choice) = &spec.handler_configuration {
        if !choice.backend.is_empty() {
            handler_set.variable(handler::BACKEND, &choice.backend)?;
        }
        if let Some(served) = choice.original_design {
            handler_set.variable(handler::ORIGINAL_DESIGN, &served.to_string())?;
        }
        if let Some(seconds) = choice.drift_seconds {
            handler_set.variable(handler::DRIFT_INTERVAL, &seconds.to_string())?;
        }
    }
    if has_variable(handler_set, handler::BACKEND, KERNEL)? {
        // Nobody listens there, and a pod that mounts what is not there does not start.
        handler_set.without_volume("dbus-socket")?;
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
        handler_set.place("affinity", affinity)?;
    }
    handler_set.place("nodeSelector", spec.node_selector.as_ref().unwrap_or(&linux))?;
    handler_set.place("tolerations", spec.tolerations.as_ref().unwrap_or(&everything))
}

fn has_variable(workload: &mut Object<'_>, name: &str, value: &str) -> Result<bool, Missing> {
    let variables = workload.at("/spec/template/spec/containers/0/env")?;
    let mut variables = variables.as_array().into_iter().flatten();
    Ok(variables.any(|variable| variable["name"] == name && variable["value"] == value))
}

/// Intervals that are given; the manifest has the others.
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
            workload.variable(name, value)?;
        }
    }
    Ok(())
}

/// Labels of the nodes that infrastructure runs on.
pub fn infrastructure_selector(spec: &NMStateSpec) -> Vec<(String, String)> {
    match &spec.infra_node_selector {
        Some(selector) => selector.clone().into_iter().collect(),
        None => vec![("kubernetes.io/os".to_owned(), "linux".to_owned())],
    }
}

/// What infrastructure tolerates.
pub fn infrastructure_tolerations(spec: &NMStateSpec) -> Vec<Toleration> {
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
        Some(affinity) => workload.place("affinity", affinity)?,
        None => workload.place(
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
    workload.place("nodeSelector", &selector)?;
    workload.place("tolerations", &infrastructure_tolerations(spec))
}

/// Puts the namespaces and the names of this installation in the place of those in the manifests.
fn place_names(object: &mut Value, settings: &Settings) {
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
    each_text(object, &mut |member, text| match member {
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

/// The console's plugin under its own name, on its own port.
fn console_plugin(spec: &NMStateSpec, settings: &Settings, files: &Files) -> Result<Vec<Value>, Error> {
    let plugin = &settings.plugin;
    let mut objects = files.objects("console-plugin.yaml")?;
    for object in &mut objects {
        each_text(object, &mut |member, text| {
            if member == "namespace" && text == namespace::HANDLER {
                text.clone_from(&settings.handler_namespace);
            } else if member == "image" {
                text.clone_from(&plugin.image);
            } else {
                *text = text.replace(names::PLUGIN, &plugin.name);
            }
        });
        let mut object = Object(object);
        match object.kind() {
            "ConfigMap" => object.insert("/data", "nginx.conf", nginx(plugin.port))?,
            "Service" => {
                object.replace("/spec/ports/0/port", plugin.port)?;
                object.replace("/spec/ports/0/targetPort", plugin.port)?;
            }
            "NetworkPolicy" => object.replace("/spec/ingress/0/ports/0/port", plugin.port)?,
            "ConsolePlugin" => object.replace("/spec/backend/service/port", plugin.port)?,
            "Deployment" => {
                object.replace(
                    "/spec/template/spec/containers/0/ports/0/containerPort",
                    plugin.port,
                )?;
                if let Some(affinity) = &spec.infra_affinity {
                    object.place("affinity", affinity)?;
                }
                if let Some(selector) = &spec.infra_node_selector {
                    object.place("nodeSelector", selector)?;
                }
                if let Some(tolerations) = &spec.infra_tolerations {
                    object.place("tolerations", tolerations)?;
                }
            }
            _ => {}
        }
    }
    Ok(objects)
}

fn nginx(port: u16) -> String {
    format!(
        "error_log /dev/stdout info;\n\
         events {{}}\n\
         http {{\n\
         \x20 access_log         /dev/stdout;\n\
         \x20 include            /etc/nginx/mime.types;\n\
         \x20 default_type       application/octet-stream;\n\
         \x20 keepalive_timeout  65;\n\
         \x20 server {{\n\
         \x20   listen              [::]:{port} ssl;\n\
         \x20   ssl_certificate     /var/serving-cert/tls.crt;\n\
         \x20   ssl_certificate_key /var/serving-cert/tls.key;\n\
         \x20   root                /opt/app-root/src;\n\
         \x20 }}\n\
         }}\n"
    )
}

/// Labels by which the operator knows its objects, and those that say what an `NMState` is a part of.
fn stamp(object: &mut Object<'_>, wish: &NMState) -> Result<(), Missing> {
    let given = wish.metadata.labels.iter().flatten();
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
