//! Renders the parts, with a function for each.

use std::{collections::BTreeSet, sync::Mutex};

use api::cluster_network::config::DiagnosticsPlacement;
use serde_json::{Map, Value, json};

use super::{
    Context, Error,
    objects::{container, containers_of, extend, find, parse, set, set_host_path, set_variable, use_image},
};
use crate::{
    additional_networks::Helpers, facts::Facts, kube_proxy::Proxy, messages, names, settings::Settings,
};

/// Placeholders of images in the files.
const OWN: &str = "weft";
const KUBE_PROXY: &str = "kube-proxy";
pub(super) const KUBE_RBAC_PROXY: &str = "kube-rbac-proxy";
const WHEREABOUTS: &str = "whereabouts";
const MULTI_NETWORK_POLICY: &str = "multus-networkpolicy";
/// Role and `RoleBinding` of Prometheus in the namespaces that it reads.
const PROMETHEUS: &str = "prometheus-k8s";

/// Namespaces whose networks are open to pods of all namespaces.
const GLOBAL_NAMESPACES: &str = "default,openshift-multus,openshift-sriov-network-operator,openshift-cnv";
/// Maximum number of nodes whose MTU is probed: enough to find differences, and a bound for large clusters.
const MOST_PROBED_NODES: usize = 16;

/// Directory of the node's CNI configurations in the container of multus.
const CONF_DIR_IN_MULTUS: &str = "/host/etc/cni/net.d";
/// Directory of OVN-Kubernetes' CNI configuration in the container of multus.
const OVN_DIR_IN_MULTUS: &str = "/host/run/multus/cni/net.d";

/// Completes the common fields of all parts: the image of Weft, the CNI directories, and the endpoint of the API
/// server.
pub(super) fn complete(objects: &mut [Value], context: &Context<'_>) {
    let Context { facts, settings, .. } = context;
    use_image(objects, OWN, &settings.image, &settings.pull_policy);
    for volume in ["cni", "system-cni-dir"] {
        set_host_path(objects, volume, &facts.cni.conf);
    }
    set_host_path(objects, "cnibin", &facts.cni.bin);
    // If the operator deploys the services, nodes have to reach the API server before services work. Otherwise the
    // existing service leads to every API server.
    let has_services = context.spec.deploy_kube_proxy == Some(true)
        || context.spec.default_network.kind == names::OVN_KUBERNETES;
    let is_direct = has_services && !facts.api_server.host.is_empty();
    let (host, port) = (&facts.api_server.host, &facts.api_server.port);
    set_variable(objects, names::API_HOST, is_direct.then_some(host));
    set_variable(objects, names::API_PORT, is_direct.then_some(port));
}

/// Multus, and the definition of networks (§12).
pub(super) fn multus(context: &Context<'_>) -> Result<Vec<Value>, Error> {
    let mut objects = parse("multus.yaml", include_str!("multus.yaml"))?;
    let config = daemon_config(context).to_string();
    let map = find(&mut objects, "ConfigMap", "multus-daemon-config")?;
    set(map, "/data/daemon-config.json", json!(config))?;
    let bin = &context.facts.cni.bin;
    let plugins = find(&mut objects, "DaemonSet", "multus-additional-cni-plugins")?;
    // The links lead to the directory on the node.
    set(plugins, "/spec/template/spec/containers/0/command/5", json!(bin))?;
    let helpers = Helpers::of(context.spec);
    if helpers.dhcp {
        objects.extend(parse("dhcp.yaml", include_str!("dhcp.yaml"))?);
    }
    if helpers.whereabouts {
        objects.extend(whereabouts(context)?);
    }
    complete(&mut objects, context);
    let definition = create_only(definition(api::net_attach_def::crd())?);
    objects.insert(0, definition);
    Ok(objects)
}

/// The IPAM plugin whereabouts, and its reconciler, which releases leaked addresses (§8.3). Without an image, another
/// installer deploys both.
fn whereabouts(context: &Context<'_>) -> Result<Vec<Value>, Error> {
    let settings = context.settings;
    let Some(image) = &settings.whereabouts_image else {
        left_out(messages::NO_WHEREABOUTS);
        return Ok(Vec::new());
    };
    let mut objects = parse("whereabouts.yaml", include_str!("whereabouts.yaml"))?;
    use_image(&mut objects, WHEREABOUTS, image, &settings.pull_policy);
    for object in &mut objects {
        if object["kind"] == "CustomResourceDefinition" {
            *object = create_only(object.take());
        }
    }
    Ok(objects)
}

fn daemon_config(context: &Context<'_>) -> Value {
    let Context { spec, facts, .. } = context;
    let mut config = json!({
        "auxiliaryCNIChainName": "vendor-cni-chain",
        "binDir": facts.cni.bin,
        "chrootDir": "/hostroot",
        "cniConfigDir": CONF_DIR_IN_MULTUS,
        "cniVersion": "1.0.0",
        "globalNamespaces": GLOBAL_NAMESPACES,
        "logLevel": "verbose",
        "logToStderr": true,
        "multusAutoconfigDir": CONF_DIR_IN_MULTUS,
        "multusConfigFile": "auto",
        "namespaceIsolation": true,
        "socketDir": "/host/run/multus/",
    });
    match spec.default_network.kind.as_str() {
        names::WEFT => {
            config["readinessindicatorfile"] =
                json!(format!("{CONF_DIR_IN_MULTUS}/{}", names::POD_NETWORK_FILE));
        }
        names::OVN_KUBERNETES => {
            config["multusAutoconfigDir"] = json!(OVN_DIR_IN_MULTUS);
            config["readinessindicatorfile"] = json!(format!("{OVN_DIR_IN_MULTUS}/{}", names::OVN_FILE));
        }
        _ => {}
    }
    config
}

/// The webhook that validates definitions of networks (§12).
pub(super) fn admission_controller(context: &Context<'_>) -> Result<Vec<Value>, Error> {
    let mut objects = parse("admission.yaml", include_str!("admission.yaml"))?;
    complete(&mut objects, context);
    let deployment = find(&mut objects, "Deployment", "multus-admission-controller")?;
    let is_single = context.facts.control_plane_nodes == 1 || context.facts.single_hosted_node;
    let replicas = if is_single { 1 } else { 2 };
    set(deployment, "/spec/replicas", json!(replicas))?;
    place_on_control_plane(deployment, context.facts)?;
    Ok(objects)
}

/// Network policies for additional networks, with the configured image (§12).
pub(super) fn multi_network_policy(context: &Context<'_>) -> Result<Vec<Value>, Error> {
    let settings = context.settings;
    let Some(image) = &settings.multi_network_policy_image else {
        return Err(Error::Refused(messages::NO_MULTI_NETWORK_POLICY.to_owned()));
    };
    let mut objects = parse(
        "multi_network_policy.yaml",
        include_str!("multi_network_policy.yaml"),
    )?;
    use_image(&mut objects, MULTI_NETWORK_POLICY, image, &settings.pull_policy);
    complete(&mut objects, context);
    let definition = find(
        &mut objects,
        "CustomResourceDefinition",
        "multi-networkpolicies.k8s.cni.cncf.io",
    )?;
    *definition = create_only(definition.take());
    if !context.facts.openshift {
        let daemon = find(&mut objects, "DaemonSet", "multus-networkpolicy")?;
        let endpoint = "--container-runtime-endpoint=/run/containerd/containerd.sock";
        set(daemon, "/spec/template/spec/containers/0/args/1", json!(endpoint))?;
    }
    Ok(objects)
}

/// The default network `Weft`.
pub(super) fn pod_network(context: &Context<'_>) -> Result<Vec<Value>, Error> {
    let mut objects = parse("pod_network.yaml", include_str!("pod_network.yaml"))?;
    complete(&mut objects, context);
    let daemon = find(&mut objects, "DaemonSet", "pod-network")?;
    let ranges: Vec<&str> = context
        .spec
        .cluster_network
        .iter()
        .map(|it| it.cidr.as_str())
        .collect();
    let containers = containers_of(daemon)?;
    let network = json!(["--cluster-cidr", ranges.join(",")]);
    if let Some(container) = containers.first_mut() {
        container["args"] = network;
    }
    Ok(objects)
}

/// kube-proxy, with the configured image (§9.4).
pub(super) fn kube_proxy(context: &Context<'_>, proxy: &Proxy) -> Result<Vec<Value>, Error> {
    let settings = context.settings;
    let Some(image) = &settings.kube_proxy_image else {
        return Err(Error::Refused(messages::NO_KUBE_PROXY_IMAGE.to_owned()));
    };
    let mut objects = parse("kube_proxy.yaml", include_str!("kube_proxy.yaml"))?;
    use_image(&mut objects, KUBE_PROXY, image, &settings.pull_policy);
    complete(&mut objects, context);
    let config = find(&mut objects, "ConfigMap", "proxy-config")?;
    set(config, "/data/kube-proxy-config.yaml", json!(proxy.file))?;
    let daemon = find(&mut objects, "DaemonSet", "openshift-kube-proxy")?;
    // kube-proxy reads its configuration only at its start.
    daemon["spec"]["template"]["metadata"]["annotations"][names::CONFIG_HASH] = json!(hash(&proxy.file));
    set(
        daemon,
        "/spec/template/spec/containers/0/ports/0/containerPort",
        json!(proxy.health_port),
    )?;
    if let Some(guard) = &settings.kube_rbac_proxy_image {
        let port = proxy.metrics_port;
        set(
            daemon,
            "/spec/template/spec/containers/1/command/2",
            json!(format!("--secure-listen-address=:{port}")),
        )?;
        set(
            daemon,
            "/spec/template/spec/containers/1/ports/0/containerPort",
            json!(port),
        )?;
        if let Some(profile) = &context.facts.tls_profile {
            let flags = &mut container(daemon, KUBE_RBAC_PROXY)?["command"];
            extend(flags, profile.flags());
        }
        let service = find(&mut objects, "Service", "openshift-kube-proxy")?;
        set(service, "/spec/ports/0/port", json!(port))?;
        use_image(&mut objects, KUBE_RBAC_PROXY, guard, &settings.pull_policy);
    } else {
        // Without kube-rbac-proxy, no container listens on the port of the metrics.
        containers_of(daemon)?.retain(|container| container["name"] != KUBE_RBAC_PROXY);
        let monitors = ["ServiceMonitor", "Service"];
        objects.retain(|object| !monitors.iter().any(|kind| object["kind"] == *kind));
    }
    Ok(without_monitoring(objects, context.facts))
}

/// Connectivity checks (§13.1).
pub(super) fn diagnostics(context: &Context<'_>) -> Result<Vec<Value>, Error> {
    let mut objects = parse("diagnostics.yaml", include_str!("diagnostics.yaml"))?;
    complete(&mut objects, context);
    let anywhere = json!([{ "operator": "Exists" }]);
    for (kind, name, placement, tolerations) in [
        (
            "Deployment",
            "network-check-source",
            &context.diagnostics.source_placement,
            json!([]),
        ),
        (
            "DaemonSet",
            "network-check-target",
            &context.diagnostics.target_placement,
            anywhere,
        ),
    ] {
        let workload = find(&mut objects, kind, name)?;
        place(workload, placement, tolerations)?;
        if !context.facts.openshift {
            set(
                workload,
                "/spec/template/spec/priorityClassName",
                json!("system-cluster-critical"),
            )?;
        }
    }
    Ok(without_monitoring(objects, context.facts))
}

fn place(workload: &mut Value, placement: &DiagnosticsPlacement, tolerations: Value) -> Result<(), Error> {
    let selector = if placement.node_selector.is_empty() {
        json!({ "kubernetes.io/os": "linux" })
    } else {
        json!(placement.node_selector)
    };
    set(workload, "/spec/template/spec/nodeSelector", selector)?;
    let tolerations = if placement.tolerations.is_empty() {
        tolerations
    } else {
        json!(placement.tolerations)
    };
    workload["spec"]["template"]["spec"]["tolerations"] = tolerations;
    Ok(())
}

/// The Job that probes the MTU of the nodes. The Job needs the address of the API server, because services may not work
/// yet.
pub(super) fn mtu_prober(facts: &Facts, settings: &Settings) -> Result<Vec<Value>, Error> {
    let mut objects = parse("mtu_prober.yaml", include_str!("mtu_prober.yaml"))?;
    use_image(&mut objects, OWN, &settings.image, &settings.pull_policy);
    let (host, port) = (&facts.api_server.host, &facts.api_server.port);
    let is_known = !host.is_empty();
    if facts.linux_nodes > 1 {
        let nodes = facts.linux_nodes.min(MOST_PROBED_NODES);
        let job = find(&mut objects, "Job", "mtu-prober")?;
        // Each pod runs on another node.
        job["spec"]["completions"] = json!(nodes);
        job["spec"]["parallelism"] = json!(nodes);
        job["spec"]["template"]["spec"]["affinity"]["podAntiAffinity"] = json!({
            "requiredDuringSchedulingIgnoredDuringExecution": [{
                "labelSelector": { "matchLabels": { "app": names::MTU_PROBER_APP } },
                "topologyKey": "kubernetes.io/hostname",
            }],
        });
        for container in containers_of(job)? {
            if let Some(command) = container["command"].as_array_mut() {
                command.push(json!(format!("--nodes={nodes}")));
            }
        }
    }
    set_variable(&mut objects, names::API_HOST, is_known.then_some(host));
    set_variable(&mut objects, names::API_PORT, is_known.then_some(port));
    for object in &mut objects {
        object["metadata"]["namespace"] = json!(settings.namespace);
    }
    Ok(objects)
}

/// The role for all users (§14).
pub(super) fn public_role() -> Result<Vec<Value>, Error> {
    let mut objects = parse("public.yaml", include_str!("public.yaml"))?;
    // OpenShift creates the namespace, with its own labels.
    let namespace = find(&mut objects, "Namespace", "openshift-config-managed")?;
    *namespace = create_only(namespace.take());
    Ok(objects)
}

/// Policy that protects service blocks from changes (§17, 7).
pub(super) fn service_cidrs() -> Result<Vec<Value>, Error> {
    parse("service_cidr.yaml", include_str!("service_cidr.yaml"))
}

/// Discovery of the operator's metrics by Prometheus, and alerts (§16). Only OpenShift's certificate authority signs the
/// certificate of their Service, and only OpenShift has alerts of its own for the conditions.
pub(super) fn operator_metrics(context: &Context<'_>) -> Result<Vec<Value>, Error> {
    let mut objects = parse("operator_metrics.yaml", include_str!("operator_metrics.yaml"))?;
    if context.facts.openshift {
        objects.retain(|object| object["metadata"]["name"] != names::ALERTS);
    } else {
        skip_verification(&mut objects);
    }
    for object in &mut objects {
        object["metadata"]["namespace"] = json!(context.settings.namespace);
    }
    Ok(objects)
}

/// Node selector of the control plane. Without labelled control plane nodes, it selects all nodes that run Linux.
pub(super) fn control_plane_selector(facts: &Facts) -> Value {
    let mut selector = json!({ "kubernetes.io/os": "linux" });
    if facts.labelled_master {
        selector[names::MASTER_LABEL] = json!("");
    } else if facts.control_plane_nodes > 0 {
        selector[names::CONTROL_PLANE_LABEL] = json!("");
    }
    selector
}

/// Places a workload on the control plane nodes, if the cluster has any.
pub(super) fn place_on_control_plane(workload: &mut Value, facts: &Facts) -> Result<(), Error> {
    let label = if facts.labelled_master {
        names::MASTER_LABEL
    } else {
        names::CONTROL_PLANE_LABEL
    };
    if facts.control_plane_nodes > 0 {
        let selector = json!({ "kubernetes.io/os": "linux", label: "" });
        set(workload, "/spec/template/spec/nodeSelector", selector)?;
    }
    let tolerations: Vec<Value> = [names::MASTER_LABEL, names::CONTROL_PLANE_LABEL]
        .iter()
        .map(|key| json!({ "key": key, "operator": "Exists", "effect": "NoSchedule" }))
        .collect();
    set(workload, "/spec/template/spec/tolerations", json!(tolerations))
}

/// Makes Prometheus accept any certificate, where OpenShift's authority does not sign them.
pub(super) fn skip_verification(objects: &mut [Value]) {
    for monitor in objects.iter_mut().filter(|it| it["kind"] == "ServiceMonitor") {
        for endpoint in monitor["spec"]["endpoints"].as_array_mut().into_iter().flatten() {
            endpoint["tlsConfig"] = json!({ "insecureSkipVerify": true });
        }
    }
}

/// Removes the objects of Prometheus' operator from a cluster without its kinds, and the rights of that Prometheus.
pub(super) fn without_monitoring(mut objects: Vec<Value>, facts: &Facts) -> Vec<Value> {
    if !facts.monitoring {
        objects.retain(|object| {
            object["apiVersion"] != "monitoring.coreos.com/v1" && object["metadata"]["name"] != PROMETHEUS
        });
    }
    objects
}

/// Logs that something is left out: once, because the settings stay while the operator runs.
pub(super) fn left_out(text: &'static str) {
    static LOGGED: Mutex<BTreeSet<&str>> = Mutex::new(BTreeSet::new());
    if kube_kit::lock(&LOGGED).insert(text) {
        tracing::warn!("{text}");
    }
}

pub(super) fn definition(
    definition: Result<
        k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
        api::Error,
    >,
) -> Result<Value, Error> {
    serde_json::to_value(definition?).map_err(|cause| Error::Syntax {
        file: "definition",
        cause: cause.to_string(),
    })
}

/// Makes apply leave an existing object unchanged.
pub(super) fn create_only(mut object: Value) -> Value {
    let annotations = &mut object["metadata"]["annotations"];
    if annotations.is_null() {
        *annotations = Value::Object(Map::new());
    }
    annotations[names::CREATE_ONLY] = json!("");
    object
}

pub(crate) fn hash(text: &str) -> String {
    use sha2::{Digest as _, Sha256};
    Sha256::digest(text)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}
