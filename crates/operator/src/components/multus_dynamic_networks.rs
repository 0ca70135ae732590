//! Dynamic networks: attaches running pods to networks (operands §2).

use api::network_addons::NetworkAddonsConfigSpec;
use serde_json::json;

use super::{Context, replace_roles};
use crate::{
    cluster_facts::{Cluster, Platform},
    general, layout,
    manifest::{Error, Manifest},
    messages::specification,
    names,
};

/// Supported sockets of container runtimes; the first is the default.
pub const CRI_SOCKETS: [&str; 4] = [
    layout::CRIO_SOCKET,
    layout::CONTAINERD_SOCKET,
    layout::K3S_SOCKET,
    layout::MICROK8S_SOCKET,
];

/// The controller's configuration in its container.
const CONFIG: &str = "/etc/dynamic-networks-controller/dynamic-networks-config.json";

/// The multus daemon's socket in the controller's container.
const MULTUS_SOCKET: &str = "/host/run/multus/multus.sock";

/// Volume for the socket of the controller's probes, and its mount path.
const RUN: (&str, &str) = ("run", "/run");

pub(crate) fn render(context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
    let mut objects = context.objects(
        "multus_dynamic_networks/controller.yaml",
        include_str!("multus_dynamic_networks/controller.yaml"),
    )?;
    let image = context.images.of(names::env::MULTUS_DYNAMIC_NETWORKS_IMAGE)?;
    if image.is_native() {
        let roles = context.objects(
            "multus_dynamic_networks/native-role.yaml",
            include_str!("multus_dynamic_networks/native-role.yaml"),
        )?;
        replace_roles(&mut objects, roles);
    }
    for object in &mut objects {
        if object.has_pods() {
            complete(object, context)?;
        } else if object.kind() == "ConfigMap" {
            let config = json!({
                "criSocketPath": in_container(cri_socket(context)),
                "multusSocketPath": MULTUS_SOCKET,
            });
            object.replace("/data/dynamic-networks-config.json", json!(config.to_string()))?;
        }
    }
    Ok(objects)
}

/// Checks that multus is enabled, that this is not OpenShift, and that the socket is supported.
pub(crate) fn validate(spec: &NetworkAddonsConfigSpec, cluster: &Cluster) -> Vec<String> {
    let Some(settings) = &spec.multus_dynamic_networks else {
        return Vec::new();
    };
    let socket = settings.host_cri_socket_path.as_str();
    let error = if cluster.openshift_network.is_some() {
        specification::DYNAMIC_ON_OPENSHIFT.to_owned()
    } else if spec.multus.is_none() {
        specification::DYNAMIC_WITHOUT_MULTUS.to_owned()
    } else if !socket.is_empty() && !CRI_SOCKETS.contains(&socket) {
        specification::cri_socket(&CRI_SOCKETS)
    } else {
        return Vec::new();
    };
    vec![error]
}

/// Keeps the socket of the container runtime, or fills in the detected one.
pub(crate) fn defaults(
    spec: &mut NetworkAddonsConfigSpec,
    previous: Option<&NetworkAddonsConfigSpec>,
    platform: Platform,
) {
    let Some(settings) = &mut spec.multus_dynamic_networks else {
        return;
    };
    if settings.host_cri_socket_path.is_empty() {
        let before = previous.and_then(|spec| spec.multus_dynamic_networks.as_ref());
        settings.host_cri_socket_path = before
            .map(|settings| settings.host_cri_socket_path.clone())
            .filter(|path| CRI_SOCKETS.contains(&path.as_str()))
            .unwrap_or_else(|| platform.layout.cri_socket.unwrap_or(CRI_SOCKETS[0]).to_owned());
    }
}

fn complete(workload: &mut Manifest, context: &Context<'_>) -> Result<(), Error> {
    let image = context.images.of(names::env::MULTUS_DYNAMIC_NETWORKS_IMAGE)?;
    let socket = cri_socket(context);
    let mut pods = workload.pods()?;
    // Pods on nodes without multus would wait for its socket, and block the roll-out.
    let mut placement = context.workloads();
    if !image.is_native() && placement.node_selector == general::linux_nodes() {
        // The selector is the same as upstream's: an additional one would restart the pods of an adopted installation.
        placement.node_selector.clear();
    }
    pods.place(&placement)?;
    pods.host_path("cri-socket", socket)?;
    if image.is_native() {
        // The mount is the directory instead of the socket: a restarted daemon creates a new socket.
        pods.host_directory("multus-server-socket", "/run/multus")?;
        pods.add_empty_dir(RUN.0)?;
        // Network policies select this label to allow access to the API server.
        pods.labels_mut()?
            .insert(names::CLUSTER_SERVICES_LABEL.to_owned(), json!(""));
    }
    let mut container = pods.container("dynamic-networks-controller")?;
    container
        .run(image, context.pull_policy())
        .mount_at("cri-socket", &in_container(socket))?;
    if image.is_native() {
        container
            .command(&["/weft", "dynamic-networks"])
            .set("args", json!([format!("--config={CONFIG}")]))
            .mount_at("multus-server-socket", "/host/run/multus")?
            .also_mount(RUN.0, RUN.1)?
            // The controller needs only two sockets of root on the host.
            .without_privileges()?
            .as_root_of_the_host()?;
        for (probe, check) in [("livenessProbe", "--check"), ("readinessProbe", "--check=ready")] {
            container
                .probe_command(probe, &["/weft", "dynamic-networks", check])?
                .probe_at_once(probe)?;
        }
    }
    Ok(())
}

/// The socket of the nodes' container runtime. A complete specification has one; a record of an earlier operator may be
/// incomplete.
fn cri_socket<'a>(context: &Context<'a>) -> &'a str {
    let settings = context.spec.multus_dynamic_networks.as_ref();
    settings
        .map(|settings| settings.host_cri_socket_path.as_str())
        .filter(|path| !path.is_empty())
        .unwrap_or(CRI_SOCKETS[0])
}

/// The path under which the container sees a path of the host.
fn in_container(host_path: &str) -> String {
    format!("/host{host_path}")
}
