//! Multus: attaches pods to additional networks (operands §1).

use api::network_addons::NetworkAddonsConfigSpec;
use kube_kit::object::DAEMON_SET;
use serde_json::{Map, Value, json};

use super::{Context, Leftover, Place, replace_roles};
use crate::{
    cluster_facts::Cluster,
    manifest::{Error, Manifest},
    messages::specification,
    names,
};

pub(crate) fn render(context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
    if context.cluster.openshift_network.is_some() {
        // OpenShift deploys multus itself.
        return Ok(Vec::new());
    }
    let mut objects = context.namespace_object()?;
    objects.push(Manifest::definition(api::net_attach_def::crd())?);
    let mut access = context.objects("multus/rbac.yaml", include_str!("multus/rbac.yaml"))?;
    if context.images.of(names::env::MULTUS_IMAGE)?.is_native() {
        let narrow = include_str!("multus/native-role.yaml");
        replace_roles(&mut access, context.objects("multus/native-role.yaml", narrow)?);
    }
    objects.extend(access);
    let mut daemon = context.objects("multus/daemon.yaml", include_str!("multus/daemon.yaml"))?;
    for object in &mut daemon {
        if object.has_pods() {
            complete(object, context)?;
        } else if object.kind() == "ConfigMap" {
            configure(object, own_keys(context))?;
        }
    }
    objects.extend(daemon);
    if context.cluster.platform.scc {
        objects.extend(context.objects("multus/scc.yaml", include_str!("multus/scc.yaml"))?);
    }
    Ok(objects)
}

pub(super) fn leftovers(_: &Cluster) -> &'static [Leftover] {
    // The DaemonSet of thin multus. It would continue to write the node's configuration.
    const OLD: [Leftover; 1] = [Leftover {
        kind: DAEMON_SET,
        place: Place::Operands,
        name: "kube-multus-ds-amd64",
    }];
    &OLD
}

/// Refuses multus if OpenShift is configured not to deploy multus, and names of namespaces that cannot exist: multus
/// separates them by commas.
pub(crate) fn validate(spec: &NetworkAddonsConfigSpec, cluster: &Cluster) -> Vec<String> {
    let Some(multus) = &spec.multus else {
        return Vec::new();
    };
    let disabled = cluster
        .openshift_network
        .is_some_and(|network| network.multus_disabled);
    let disabled = disabled.then(|| specification::MULTUS_DISABLED.to_owned());
    let invalid = multus
        .global_namespaces
        .iter()
        .filter(|name| !kube_kit::path::is_label(name));
    disabled
        .into_iter()
        .chain(invalid.map(specification::global_namespace))
        .collect()
}

/// Keys of multus' configuration that isolate namespaces. Empty without isolation.
fn isolation(context: &Context<'_>) -> Map<String, Value> {
    let mut keys = Map::new();
    let Some(multus) = &context.spec.multus else {
        return keys;
    };
    if multus.namespace_isolation == Some(true) {
        keys.insert("namespaceIsolation".to_owned(), json!(true));
        if !multus.global_namespaces.is_empty() {
            let namespaces = multus.global_namespaces.join(",");
            keys.insert("globalNamespaces".to_owned(), json!(namespaces));
        }
    }
    keys.sort_keys();
    keys
}

/// Keys of multus' configuration that differ from the file.
fn own_keys(context: &Context<'_>) -> Map<String, Value> {
    let mut keys = isolation(context);
    if context.directories().moved {
        keys.insert(BIN_DIR_KEY.to_owned(), json!(context.directories().bin));
    }
    keys
}

fn complete(workload: &mut Manifest, context: &Context<'_>) -> Result<(), Error> {
    let image = context.images.of(names::env::MULTUS_IMAGE)?;
    let directories = context.directories();
    let isolation = isolation(context);
    let mut pods = workload.pods()?;
    if !isolation.is_empty() {
        // Multus reads its configuration at the start.
        pods.annotate(ISOLATION, &Value::Object(isolation).to_string())?;
    }
    pods.place(&context.workloads())?;
    pods.host_path("cni", directories.conf)?;
    pods.host_path("cnibin", directories.bin)?;
    if let Some(targets) = directories.bin_targets() {
        pods.add_host_path(BIN_TARGETS, targets)?;
    }
    let mut install = pods.container("install-multus-binary")?;
    install.run(image, context.pull_policy());
    if image.is_native() {
        install
            .command(&["/weft", "install-multus", "--to", "/host/opt/cni/bin"])
            .read_only_root()?;
    }
    let mut daemon = pods.container("kube-multus")?;
    daemon.run(image, context.pull_policy());
    if directories.moved {
        // Multus looks for a plugin in the container, and runs it under the same path on the host.
        daemon.mount_at("cnibin", directories.bin)?;
    }
    if let Some(targets) = directories.bin_targets() {
        daemon.also_mount(BIN_TARGETS, targets)?;
    }
    if image.is_native() {
        // No preStop hook: the node's configuration stays over a restart, and the shim waits for the daemon.
        daemon
            .command(&["/weft", "multus-daemon"])
            .startup_command(&["/weft", "multus-daemon", "--check"])
            .without("lifecycle")
            .read_only_root()?;
    }
    Ok(())
}

/// Volume with the targets of the links in the directory of plugins.
const BIN_TARGETS: &str = "cnibin-targets";

/// Annotation of the pods with the isolation at their start.
const ISOLATION: &str = "networkaddonsoperator.network.kubevirt.io/multus-isolation";

/// Key of the first directory of plugins in multus' configuration.
const BIN_DIR_KEY: &str = "binDir";

/// File with multus' configuration, in its ConfigMap.
const DAEMON_CONFIG: &str = "/data/daemon-config.json";

/// Sets keys of multus' configuration.
fn configure(config_map: &mut Manifest, keys: Map<String, Value>) -> Result<(), Error> {
    if keys.is_empty() {
        return Ok(());
    }
    let text = config_map.value().pointer(DAEMON_CONFIG).and_then(Value::as_str);
    let mut config: Map<String, Value> =
        serde_json::from_str(text.unwrap_or_default()).map_err(|error| Error::Syntax {
            file: "multus/daemon.yaml",
            cause: error.to_string(),
        })?;
    config.extend(keys);
    // Upstream's operator sorts the keys.
    config.sort_keys();
    config_map.replace(DAEMON_CONFIG, json!(Value::Object(config).to_string()))
}
