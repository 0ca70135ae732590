//! Renders OVN-Kubernetes (§7): the objects, in the order of §7.3.

mod hosted;
pub(super) mod node;
mod roles;

use api::cluster_network::operator::NetworkSpec;
use serde_json::{Value, json};

use super::{
    Context, Error,
    objects::{container, containers_of, extend, find, parse, set, set_host_path, set_variable, use_image},
    parts::{complete, control_plane_selector, create_only, hash, without_monitoring},
};
use crate::{
    cidr, messages, names,
    ovn::{
        flags,
        ini::{self, ini},
        ipsec::{self, Mode},
        knobs::{self, Hardware, Offload},
        observed,
        rollout::{self, Order},
    },
};

/// Placeholder of the image of OVN-Kubernetes in the files.
pub(super) const OVN: &str = "ovn";
const KUBE_RBAC_PROXY: &str = "kube-rbac-proxy";
/// Directory of the delegate's CNI configuration for multus.
const MULTUS_CONF_DIR: &str = "/var/run/multus/cni/net.d";

/// Annotation of the control plane's pods with the hash of the file. The pods read the file only at their start.
const CONTROL_PLANE_HASH: &str = "network.operator.openshift.io/ovnkube-control-plane-config-hash";
/// Annotation with the hash of the script.
const SCRIPT_HASH: &str = "network.operator.openshift.io/ovnkube-script-lib-hash";

/// Values that complete the objects.
struct Decided {
    /// The configuration file of the nodes.
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
        let is_v6 = |text: &str| cidr::parse(text).is_ok_and(|net| cidr::is_v6(&net));
        let mut families = spec.cluster_network.iter().map(|entry| is_v6(&entry.cidr));
        let first = families.next();
        let ip_family = if families.any(|family| Some(family) != first) {
            "dual-stack"
        } else {
            "single-stack"
        };
        Ok(Self {
            file: file(context, None),
            script_hash: hash(&script.to_string()),
            hardware,
            kinds,
            order: rollout::order(&facts.ovn.existing, &settings.version, ip_family),
            ipsec: ipsec::decide(Mode::of(&flags::config(spec)), &facts.ovn.encryption),
            ip_family,
        })
    }
}

/// The configuration file: of the nodes, or of pods of the management cluster with this URL of the API server.
fn file(context: &Context<'_>, local_api_server: Option<&str>) -> String {
    let facts = context.facts;
    ini(&ini::Input {
        spec: context.spec,
        facts,
        udp_aggregation: knobs::udp_aggregation(&facts.ovn.config_maps.udp_aggregation),
        egress_health_port: context.settings.ovn.egress_health_port,
        local_api_server,
    })
}

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
    if facts.external_control_plane && facts.management.is_none() {
        return Err(Error::Refused(messages::EXTERNAL_CONTROL_PLANE.to_owned()));
    }
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
    if decided.ipsec.ovn && !facts.ovn.config_maps.has_node_identity() {
        tracing::warn!("{}", messages::IPSEC_WITHOUT_IDENTITY);
    }
    let file = find(&mut configuration, "ConfigMap", "ovnkube-config")?;
    set(file, "/data/ovnkube.conf", json!(decided.file))?;

    let mut objects = parse("namespace.yaml", include_str!("ovn/namespace.yaml"))?;
    objects.extend(roles::definitions(context)?);
    objects.extend(roles::roles(context)?);
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
    if facts.management.is_none() {
        objects.push(control_plane(context, &decided)?);
    }
    objects.extend(node::nodes(context, &decided)?);
    objects.extend(node::error_cni(context)?);
    objects.extend(encryption(&decided)?);
    if decided.order.prepull {
        objects.extend(parse("prepuller.yaml", include_str!("ovn/prepuller.yaml"))?);
    }
    let hosted = hosted::control_plane(context, &decided, &mut objects)?;
    use_image(&mut objects, OVN, image, &settings.pull_policy);
    guard_metrics(&mut objects, context)?;
    complete(&mut objects, context);
    let conf = if spec.disable_multi_network == Some(true) {
        &facts.cni.conf
    } else {
        MULTUS_CONF_DIR
    };
    set_host_path(&mut objects, "host-cni-netd", conf);
    let mut objects = without_monitoring(objects, facts);
    objects.extend(hosted);
    Ok(objects)
}

/// Annotates a workload and its pods with the description of the network, and the pods also with hashes, whose changes
/// restart them.
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

/// Leaves a workload unchanged, because it has to wait for another one (§7.6).
fn hold(workload: &mut Value, annotation: &str) {
    workload["metadata"]["annotations"][annotation] = json!("");
}

fn control_plane(context: &Context<'_>, decided: &Decided) -> Result<Value, Error> {
    let file = "control_plane.yaml";
    let mut objects = parse(file, include_str!("ovn/control_plane.yaml"))?;
    let workload = find(&mut objects, "Deployment", names::OVN_CONTROL_PLANE)?;
    let facts = context.facts;
    let replicas = if facts.has_single_control_plane() { 1 } else { 2 };
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

/// Workloads that encrypt traffic (§7.8).
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
        // On each node, the two pods decide which of them works.
        set_variable(&mut objects, "IPSEC_DAEMON_SETS", Some("both"));
    }
    if waits {
        // The `DaemonSet`s encrypt until OVN has stopped the encryption.
        for object in &mut objects {
            hold(object, names::CREATE_WAIT);
        }
    }
    Ok(objects)
}

/// Serves metrics through kube-rbac-proxy. On OpenShift, the platform issues the certificate after the network works.
/// Elsewhere, the certificate comes from `OperatorPKI` `ovn`.
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
    if let Some(profile) = &context.facts.tls_profile {
        for object in objects
            .iter_mut()
            .filter(|object| object["apiVersion"] == "apps/v1")
        {
            for guard in containers_of(object)?.iter_mut().filter(|it| is_guard(it)) {
                extend(&mut guard["args"], profile.flags());
            }
        }
    }
    use_image(objects, KUBE_RBAC_PROXY, image, &settings.pull_policy);
    Ok(())
}

/// True if OVN-Kubernetes manages the BGP sessions between the nodes.
pub(super) fn has_managed_bgp(spec: &NetworkSpec) -> bool {
    let managed = flags::config(spec).bgp_managed_config;
    managed.is_some_and(|managed| !managed.bgp_topology.is_empty())
}

fn text(value: bool) -> &'static str {
    if value { "true" } else { "false" }
}

#[cfg(test)]
mod tests;
