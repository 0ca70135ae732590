//! OVN-Kubernetes (§7): its objects, in the order of §7.3.

use serde_json::{Value, json};

use super::{
    Context, Error,
    objects::{containers_of, find, parse, set, set_host_path, set_variable, use_image},
    parts::{complete, control_plane_selector, create_only, definition, hash, without_monitoring},
};
use crate::{
    cidr, messages, names,
    ovn::{
        flags,
        ini::{self, ini},
        ipsec::{self, Mode},
        knobs::{self, Hardware, NodeLabel, Offload},
        observed,
        rollout::{self, Order},
    },
};

/// Placeholder of the image of OVN-Kubernetes in the files.
pub(super) const OVN: &str = "ovn";
const KUBE_RBAC_PROXY: &str = "kube-rbac-proxy";
const NODE: &str = "ovnkube-node";
const CONTROL_PLANE: &str = "ovnkube-control-plane";
const CONTROLLER: &str = "ovnkube-controller";
/// Directory of CNI configurations that multus delegates to.
const MULTUS_CONF_DIR: &str = "/var/run/multus/cni/net.d";
/// Platform whose routers send wrong sizes.
const AZURE: &str = "Azure";

/// Annotation of the control plane's pods with the hash of the file that they read once.
const CONTROL_PLANE_HASH: &str = "network.operator.openshift.io/ovnkube-control-plane-config-hash";
/// The same of the pods on nodes.
const NODE_HASH: &str = "network.operator.openshift.io/ovnkube-node-config-hash";
/// Annotation with the hash of the script.
const SCRIPT_HASH: &str = "network.operator.openshift.io/ovnkube-script-lib-hash";

/// Everything that the objects are completed with.
struct Decided {
    file: String,
    script_hash: String,
    hardware: Hardware,
    kinds: Vec<Offload>,
    order: Order,
    ipsec: ipsec::Decision,
    ip_family: &'static str,
}

impl Decided {
    fn of(context: &Context<'_>, script: &Value) -> Result<Self, Error> {
        let Context {
            spec,
            facts,
            settings,
            ..
        } = *context;
        let refused = |error: knobs::Error| Error::Refused(error.to_string());
        let (hardware, kinds) = observed::offloads(&facts.ovn).map_err(refused)?;
        let file = ini(&ini::Input {
            spec,
            facts,
            udp_aggregation: knobs::udp_aggregation(&facts.ovn.config_maps.udp_aggregation),
            egress_health_port: settings.ovn.egress_health_port,
        });
        let is_v6 = |text: &str| cidr::parse(text).is_ok_and(|net| cidr::is_v6(&net));
        let mut families = spec.cluster_network.iter().map(|entry| is_v6(&entry.cidr));
        let first = families.next();
        let ip_family = if families.any(|family| Some(family) != first) {
            "dual-stack"
        } else {
            "single-stack"
        };
        Ok(Self {
            file,
            script_hash: hash(&script.to_string()),
            hardware,
            kinds,
            order: rollout::order(&facts.ovn.existing, &settings.version, ip_family),
            ipsec: ipsec::decide(Mode::of(&flags::config(spec)), &facts.ovn.encryption),
            ip_family,
        })
    }
}

/// All objects.
pub(super) fn objects(context: &Context<'_>) -> Result<Vec<Value>, Error> {
    let Context {
        spec,
        facts,
        settings,
        ..
    } = *context;
    let Some(image) = &settings.ovn.image else {
        return Err(Error::Refused(messages::NO_OVN_IMAGE.to_owned()));
    };
    if facts.api_server.host.is_empty() {
        return Err(Error::Refused(messages::NO_API_SERVER.to_owned()));
    }
    let mut configuration = parse("configuration.yaml", include_str!("ovn/configuration.yaml"))?;
    let script = find(&mut configuration, "ConfigMap", "ovnkube-script-lib")?;
    set(
        script,
        "/data/ovnkube-lib.sh",
        json!(include_str!("ovn/ovnkube-lib.sh")),
    )?;
    let decided = Decided::of(context, &script["data"])?;
    let file = find(&mut configuration, "ConfigMap", "ovnkube-config")?;
    set(file, "/data/ovnkube.conf", json!(decided.file))?;

    let mut objects = parse("namespace.yaml", include_str!("ovn/namespace.yaml"))?;
    objects.extend(definitions(context)?);
    objects.extend(roles(context)?);
    objects.extend(configuration);
    if decided.ipsec.machine_configs {
        objects.extend(parse("machines.yaml", include_str!("ovn/machines.yaml"))?);
    }
    objects.push(create_only(json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": names::MANAGED_NAMESPACE },
    })));
    objects.extend(parse("admission.yaml", include_str!("ovn/admission.yaml"))?);
    objects.extend(parse("monitoring.yaml", include_str!("ovn/monitoring.yaml"))?);
    objects.extend(parse("host_network.yaml", include_str!("ovn/host_network.yaml"))?);
    objects.push(control_plane(context, &decided)?);
    objects.extend(nodes(context, &decided)?);
    objects.extend(encryption(&decided)?);
    if decided.order.prepull {
        objects.extend(parse("prepuller.yaml", include_str!("ovn/prepuller.yaml"))?);
    }
    use_image(&mut objects, OVN, image, &settings.pull_policy);
    guard_metrics(&mut objects, context)?;
    complete(&mut objects, context);
    let conf = if spec.disable_multi_network == Some(true) {
        &facts.cni.conf
    } else {
        MULTUS_CONF_DIR
    };
    set_host_path(&mut objects, "host-cni-netd", conf);
    Ok(without_monitoring(objects, facts))
}

/// Definitions of the kinds that OVN-Kubernetes serves. One that exists stays as it is.
fn definitions(context: &Context<'_>) -> Result<Vec<Value>, Error> {
    let mut all = parse("definitions.yaml", include_str!("ovn/definitions.yaml"))?;
    let advertises = flags::advertises_routes(&flags::config(context.spec));
    let gated = [
        ("routeadvertisements.k8s.ovn.org", advertises),
        ("vteps.k8s.ovn.org", advertises && context.facts.gate("EVPN")),
        (
            "clusternetworkconnects.k8s.ovn.org",
            context.facts.gate("NetworkConnect"),
        ),
    ];
    let mut more = parse(
        "gated_definitions.yaml",
        include_str!("ovn/gated_definitions.yaml"),
    )?;
    more.retain(|it| {
        gated
            .iter()
            .any(|(name, is_on)| *is_on && it["metadata"]["name"] == *name)
    });
    all.extend(more);
    all.push(definition(api::ipam_claim::crd())?);
    Ok(all.into_iter().map(create_only).collect())
}

/// Permissions. Where each node is a user of its own, they are those of the group of these users (§7.7).
fn roles(context: &Context<'_>) -> Result<Vec<Value>, Error> {
    const ROLE: &str = "openshift-ovn-kubernetes-node-limited";
    let mut objects = parse("rbac.yaml", include_str!("ovn/rbac.yaml"))?;
    let facts = context.facts;
    let advertises = flags::advertises_routes(&flags::config(context.spec));
    let gated = [
        (
            "dnsnameresolvers",
            "network.openshift.io",
            facts.gate("DNSNameResolver"),
        ),
        (
            "clusternetworkconnects",
            "k8s.ovn.org",
            facts.gate("NetworkConnect"),
        ),
        ("routeadvertisements", "k8s.ovn.org", advertises),
        ("vteps", "k8s.ovn.org", advertises && facts.gate("EVPN")),
    ];
    for (role, verbs) in [
        (ROLE, json!(["get", "list", "watch"])),
        (
            "openshift-ovn-kubernetes-control-plane-limited",
            json!(["get", "list", "watch", "patch", "update"]),
        ),
    ] {
        let Some(rules) = find(&mut objects, "ClusterRole", role)?["rules"].as_array_mut() else {
            continue;
        };
        for (plural, group, _) in gated.iter().filter(|(_, _, is_on)| *is_on) {
            let resources = [(*plural).to_owned(), format!("{plural}/status")];
            rules.push(json!({ "apiGroups": [group], "resources": resources, "verbs": verbs }));
        }
        if advertises && role != ROLE {
            rules.push(json!({
                "apiGroups": ["frrk8s.metallb.io"], "resources": ["frrconfigurations"],
                "verbs": ["get", "list", "watch", "create", "patch", "update", "delete"],
            }));
        }
    }
    if facts.ovn.config_maps.has_node_identity() {
        for (kind, name) in [
            ("RoleBinding", "openshift-ovn-kubernetes-nodes-identity-limited"),
            (
                "ClusterRoleBinding",
                "openshift-ovn-kubernetes-node-identity-limited",
            ),
        ] {
            let binding = find(&mut objects, kind, ROLE)?;
            binding["metadata"]["name"] = json!(name);
            binding["subjects"] = json!([{
                "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:ovn-nodes",
            }]);
        }
    }
    Ok(objects)
}

/// Annotations of a workload and its pods that describe the network, and those that roll the pods.
fn describe(workload: &mut Value, context: &Context<'_>, decided: &Decided, config_hash: &str) {
    let spec = context.spec;
    let cidrs: Vec<&str> = spec
        .cluster_network
        .iter()
        .map(|entry| entry.cidr.as_str())
        .collect();
    let is_hybrid = flags::config(spec).hybrid_overlay_config.is_some();
    let described = [
        (observed::IP_FAMILY, decided.ip_family.to_owned()),
        (
            "networkoperator.openshift.io/cluster-network-cidr",
            cidrs.join(","),
        ),
        (
            "networkoperator.openshift.io/hybrid-overlay-status",
            if is_hybrid { "enabled" } else { "disabled" }.to_owned(),
        ),
    ];
    let pods = [
        (config_hash, hash(&decided.file)),
        (SCRIPT_HASH, decided.script_hash.clone()),
    ];
    for (key, value) in &described {
        workload["metadata"]["annotations"][*key] = json!(value);
    }
    for (key, value) in described.iter().chain(&pods) {
        workload["spec"]["template"]["metadata"]["annotations"][*key] = json!(value);
    }
}

/// A workload that waits for another one stays as it is (§7.6).
fn hold(workload: &mut Value, annotation: &str) {
    workload["metadata"]["annotations"][annotation] = json!("");
}

fn control_plane(context: &Context<'_>, decided: &Decided) -> Result<Value, Error> {
    let file = "control_plane.yaml";
    let mut objects = parse(file, include_str!("ovn/control_plane.yaml"))?;
    let workload = find(&mut objects, "Deployment", CONTROL_PLANE)?;
    let facts = context.facts;
    let replicas = if facts.control_plane_nodes == 1 { 1 } else { 2 };
    set(workload, "/spec/replicas", json!(replicas))?;
    set(
        workload,
        "/spec/template/spec/nodeSelector",
        control_plane_selector(facts),
    )?;
    describe(workload, context, decided, CONTROL_PLANE_HASH);
    let manager = container(workload, "ovnkube-cluster-manager")?;
    extend(&mut manager["args"], flags::control_plane(context.spec, facts));
    if !decided.order.control_plane {
        hold(workload, names::CREATE_ONLY);
    }
    Ok(workload.take())
}

/// `ovnkube-node`, and its variants for nodes with hardware offload.
fn nodes(context: &Context<'_>, decided: &Decided) -> Result<Vec<Value>, Error> {
    let mut all = vec![node(context, decided, None)?];
    for (kind, name) in [
        (Offload::SmartNic, "ovnkube-node-smart-nic"),
        (Offload::DpuHost, "ovnkube-node-dpu-host"),
    ] {
        if decided.kinds.contains(&kind) {
            let mut workload = node(context, decided, Some(kind))?;
            workload["metadata"]["name"] = json!(name);
            for labels in ["/spec/selector/matchLabels", "/spec/template/metadata/labels"] {
                set(&mut workload, &format!("{labels}/app"), json!(name))?;
            }
            all.push(workload);
        }
    }
    Ok(all)
}

fn node(context: &Context<'_>, decided: &Decided, mode: Option<Offload>) -> Result<Value, Error> {
    let Context {
        spec,
        facts,
        settings,
        ..
    } = *context;
    let ovn = flags::config(spec);
    let mut objects = parse("node.yaml", include_str!("ovn/node.yaml"))?;
    set_variable(
        &mut objects,
        "OVN_NB_INACTIVITY_PROBE",
        Some(&settings.ovn.nb_inactivity_probe),
    );
    set_variable(
        &mut objects,
        "OVN_CONTROLLER_INACTIVITY_PROBE",
        Some(&settings.ovn.controller_inactivity_probe),
    );
    set_variable(
        &mut objects,
        "OVN_NORTHD_PROBE_INTERVAL",
        Some(settings.ovn.northd_probe_interval.as_deref().unwrap_or_default()),
    );
    let (bytes, files) = flags::audit_files(&ovn);
    set_variable(&mut objects, "MAX_FILE_BYTES", Some(&bytes));
    set_variable(&mut objects, "MAX_LOG_FILES", Some(&files));
    set_variable(&mut objects, "OVN_IPSEC", Some(text(decided.ipsec.ovn)));
    let is_always = ipsec::is_always_encapsulated(&ovn, &facts.platform.to_string());
    set_variable(&mut objects, "OVN_IPSEC_ENCAPSULATION", Some(text(is_always)));
    let is_local = ovn
        .gateway_config
        .as_ref()
        .is_some_and(|gateway| gateway.routing_via_host);
    let without_ct_inv = flags::advertises_routes(&ovn) && is_local;
    set_variable(
        &mut objects,
        "OVN_USE_CT_INV_MATCH",
        without_ct_inv.then_some("false"),
    );
    set_variable(
        &mut objects,
        "OVN_NOTRACK_PORTS",
        Some(&flags::tunnel_ports(&ovn)),
    );
    let forwarding = if flags::forwards_all(&ovn) {
        "Global"
    } else {
        "Restricted"
    };
    set_variable(&mut objects, "OVN_IP_FORWARDING", Some(forwarding));
    let node_mode = match mode {
        None | Some(Offload::Dpu) => "full",
        Some(Offload::SmartNic) => "smart-nic",
        Some(Offload::DpuHost) => "dpu-host",
    };
    set_variable(&mut objects, "OVN_NODE_MODE", Some(node_mode));

    let workload = find(&mut objects, "DaemonSet", NODE)?;
    describe(workload, context, decided, NODE_HASH);
    if decided.ipsec.ovn {
        workload["metadata"]["annotations"][observed::IPSEC_ENABLED] = json!("true");
    }
    if !facts.ovn.masquerade.is_empty() {
        workload["metadata"]["annotations"][observed::MASQUERADE] = json!(facts.ovn.masquerade.join(","));
    }
    let terms = "/spec/template/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution\
                 /nodeSelectorTerms/0/matchExpressions";
    set(workload, terms, placement(&decided.hardware, mode))?;
    if facts.control_plane_nodes == 1 {
        // Without others to serve, a database need not wait before it counts as ready.
        for name in ["nbdb", "sbdb"] {
            if let Some(probe) = container(workload, name)?["readinessProbe"].as_object_mut() {
                probe.shift_remove("initialDelaySeconds");
            }
        }
    }
    container(workload, "ovn-controller")?["args"] = json!(flags::audit(&ovn));
    let controller = container(workload, CONTROLLER)?;
    controller["args"] = json!(flags::node(spec, facts, mode, &decided.hardware));
    let variables = flags::flow_variables(spec, &facts.ovn);
    for (name, value) in variables {
        push(&mut controller["env"], json!({ "name": name, "value": value }));
    }
    if mode.is_some() && !decided.hardware.port_resource.is_empty() {
        let resource = &decided.hardware.port_resource;
        let count = json!(decided.hardware.port_count.to_string());
        controller["resources"]["requests"][resource] = count.clone();
        controller["resources"]["limits"][resource] = count;
        let name = "OVNKUBE_NODE_MGMT_PORT_DP_RESOURCE_NAME";
        push(&mut controller["env"], json!({ "name": name, "value": resource }));
    }
    leave_out(workload, context, mode)?;
    if !decided.order.node {
        hold(workload, names::CREATE_ONLY);
    }
    Ok(workload.take())
}

/// Removes what a node of this mode, cluster and platform does not need.
fn leave_out(workload: &mut Value, context: &Context<'_>, mode: Option<Offload>) -> Result<(), Error> {
    let facts = context.facts;
    let is_azure = facts.platform.to_string() == AZURE;
    containers_of(workload)?.retain(|it| {
        let is = |name: &str| it["name"] == name;
        let is_needed = is_azure || !is("drop-icmp");
        is_needed && (mode != Some(Offload::DpuHost) || is(CONTROLLER) || is("kube-rbac-proxy-node"))
    });
    let has_identity = facts.ovn.config_maps.has_node_identity();
    if !has_identity && let Some(pod) = workload["spec"]["template"]["spec"].as_object_mut() {
        pod.shift_remove("initContainers");
    }
    let mut unused = Vec::new();
    if !has_identity {
        unused.push("host-kubelet");
    }
    if !has_identity || facts.openshift {
        unused.push("host-kubernetes");
    }
    let remove = |list: &mut Value| {
        if let Some(list) = list.as_array_mut() {
            list.retain(|it| !unused.iter().any(|name| it["name"] == *name));
        }
    };
    remove(&mut workload["spec"]["template"]["spec"]["volumes"]);
    remove(&mut container(workload, CONTROLLER)?["volumeMounts"]);
    Ok(())
}

/// Which nodes a `DaemonSet` is for: those with its label, or those without any.
fn placement(hardware: &Hardware, mode: Option<Offload>) -> Value {
    let expression = |label: &NodeLabel, any: &str, one: &str| {
        if label.value.is_empty() {
            json!({ "key": label.key, "operator": any })
        } else {
            json!({ "key": label.key, "operator": one, "values": [label.value] })
        }
    };
    let labels = hardware.labels.iter();
    let all: Vec<Value> = match mode {
        None => labels
            .map(|(_, label)| expression(label, "DoesNotExist", "NotIn"))
            .collect(),
        Some(mode) => labels
            .filter(|(kind, _)| *kind == mode)
            .map(|(_, label)| expression(label, "Exists", "In"))
            .collect(),
    };
    json!(all)
}

/// Workloads that encrypt (§7.8).
fn encryption(decided: &Decided) -> Result<Vec<Value>, Error> {
    let ipsec::Decision {
        host,
        containerized,
        hold: waits,
        ..
    } = decided.ipsec;
    let mut objects = parse("ipsec.yaml", include_str!("ovn/ipsec.yaml"))?;
    objects.retain(|object| match object["metadata"]["name"].as_str() {
        Some("ovn-ipsec-host") => host,
        _ => containerized,
    });
    if host && containerized {
        // Each of them finds out on the node which one works there.
        set_variable(&mut objects, "IPSEC_DAEMON_SETS", Some("both"));
    }
    if waits {
        // They encrypt until OVN does so no more.
        for object in &mut objects {
            hold(object, names::CREATE_WAIT);
        }
    }
    Ok(objects)
}

/// Metrics are read through kube-rbac-proxy. On OpenShift its certificate comes once the network is there, elsewhere from
/// `OperatorPKI` `ovn`.
fn guard_metrics(objects: &mut Vec<Value>, context: &Context<'_>) -> Result<(), Error> {
    const FOLDER: &str = "/etc/pki/tls/metrics-cert";
    let settings = context.settings;
    let is_guard = |it: &Value| it["image"] == KUBE_RBAC_PROXY;
    let Some(image) = &settings.kube_rbac_proxy_image else {
        for object in objects
            .iter_mut()
            .filter(|object| object["apiVersion"] == "apps/v1")
        {
            containers_of(object)?.retain(|it| !is_guard(it));
        }
        objects.retain(|object| {
            !["ServiceMonitor", "Service"]
                .iter()
                .any(|kind| object["kind"] == *kind)
        });
        return Ok(());
    };
    if !context.facts.openshift {
        for object in objects
            .iter_mut()
            .filter(|object| object["apiVersion"] == "apps/v1")
        {
            for guard in containers_of(object)?.iter_mut().filter(|it| is_guard(it)) {
                guard["command"] = json!([KUBE_RBAC_PROXY, "--logtostderr"]);
                extend(
                    &mut guard["args"],
                    vec![
                        format!("--tls-private-key-file={FOLDER}/tls.key"),
                        format!("--tls-cert-file={FOLDER}/tls.crt"),
                    ],
                );
            }
            let volumes = object
                .pointer_mut("/spec/template/spec/volumes")
                .and_then(Value::as_array_mut);
            for volume in volumes
                .into_iter()
                .flatten()
                .filter(|it| it["name"] == "metrics-cert")
            {
                volume["secret"] = json!({ "secretName": "ovn-cert" });
            }
        }
    }
    use_image(objects, KUBE_RBAC_PROXY, image, &settings.pull_policy);
    Ok(())
}

fn container<'a>(workload: &'a mut Value, name: &str) -> Result<&'a mut Value, Error> {
    let missing = Error::Missing {
        object: format!("{} {}", workload["kind"], workload["metadata"]["name"]),
        part: name.to_owned(),
    };
    let mut containers = containers_of(workload)?.iter_mut();
    containers
        .find(|container| container["name"] == name)
        .ok_or(missing)
}

fn extend(list: &mut Value, more: Vec<String>) {
    if let Some(list) = list.as_array_mut() {
        list.extend(more.into_iter().map(Value::from));
    }
}

fn push(list: &mut Value, one: Value) {
    if let Some(list) = list.as_array_mut() {
        list.push(one);
    }
}

fn text(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

#[cfg(test)]
mod tests;
