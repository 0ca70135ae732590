//! `ovnkube-node` (§7.5): one `DaemonSet` for nodes without hardware offload, and one for each kind of offload.

use serde_json::{Value, json};

use super::{
    super::{
        Context, Error,
        objects::{container, containers_of, find, parse, push, set, set_variable},
        parts::hash,
    },
    Decided, describe, hold, text,
};
use crate::{
    names,
    ovn::{
        flags, ipsec,
        knobs::{Hardware, NodeLabel, Offload},
        observed,
    },
};

const NODE: &str = "ovnkube-node";
const CONTROLLER: &str = "ovnkube-controller";
/// Platform whose routers report wrong MTUs.
const AZURE: &str = "Azure";

/// `ovnkube-node`, and its variants for nodes with hardware offload.
pub(super) fn nodes(context: &Context<'_>, decided: &Decided) -> Result<Vec<Value>, Error> {
    let mut all = vec![node(context, decided, None)?];
    for (kind, name) in [Offload::SmartNic, Offload::DpuHost]
        .into_iter()
        .zip(names::OVN_OFFLOADED_NODES)
    {
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

/// The CNI plugin of DPUs, which refuses all pods. Another operator runs OVN-Kubernetes there (§7.3).
pub(super) fn error_cni(context: &Context<'_>) -> Result<Vec<Value>, Error> {
    let Some(affinity) = on_dpus(context)? else {
        return Ok(Vec::new());
    };
    let mut objects = parse("error_cni.yaml", include_str!("error_cni.yaml"))?;
    let script = include_str!("error-cni.sh");
    let map = find(&mut objects, "ConfigMap", "error-cni-script")?;
    set(map, "/data/error-cni.sh", json!(script))?;
    let workload = find(&mut objects, "DaemonSet", "error-cni-plugin")?;
    let template = &mut workload["spec"]["template"];
    // The pods copy the script at their start.
    template["metadata"]["annotations"][names::CONFIG_HASH] = json!(hash(script));
    template["spec"]["affinity"] = affinity;
    Ok(objects)
}

/// Affinity to DPUs. `None` without DPUs, or with another default network.
pub(in crate::render) fn on_dpus(context: &Context<'_>) -> Result<Option<Value>, Error> {
    if context.spec.default_network.kind != names::OVN_KUBERNETES {
        return Ok(None);
    }
    let offloads = observed::offloads(&context.facts.ovn);
    let (hardware, kinds) = offloads.map_err(|error| Error::Refused(error.to_string()))?;
    let terms = json!([{ "matchExpressions": placement(&hardware, Some(Offload::Dpu)) }]);
    let required = json!({ "nodeSelectorTerms": terms });
    let affinity = json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": required } });
    Ok(kinds.contains(&Offload::Dpu).then_some(affinity))
}

fn node(context: &Context<'_>, decided: &Decided, mode: Option<Offload>) -> Result<Value, Error> {
    let Context {
        spec,
        facts,
        settings,
        ..
    } = *context;
    let ovn = flags::config(spec);
    let mut objects = parse("node.yaml", include_str!("node.yaml"))?;
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
    describe(workload, context, decided, names::OVN_CONFIG_HASH);
    if decided.ipsec.ovn {
        workload["metadata"]["annotations"][observed::IPSEC_ENABLED] = json!("true");
    }
    if !facts.ovn.masquerade.is_empty() {
        workload["metadata"]["annotations"][observed::MASQUERADE] = json!(facts.ovn.masquerade.join(","));
    }
    let terms = "/spec/template/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution\
                 /nodeSelectorTerms/0/matchExpressions";
    set(workload, terms, placement(&decided.hardware, mode))?;
    if facts.has_single_control_plane() {
        // A database without clients on other nodes is ready without a delay.
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
    // Nodes of a hosted cluster may reach the API server through the proxy.
    let proxy = facts.management.iter().flat_map(|_| &facts.proxy);
    for (name, value) in variables.iter().chain(proxy) {
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

/// Removes containers and volumes that a node of this mode, cluster and platform does not need.
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

/// Node affinity of a `DaemonSet`: nodes with the label of its mode, or nodes without any such label.
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
