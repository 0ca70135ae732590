//! Installation of the node state operator alone, without the add-ons operator (nmstate §11): the files of its
//! releases, with the objects that the add-ons operator would deploy.

use serde_json::json;

use super::{Error, Install, documents, in_order};
use operator::{
    components::nmstate,
    images::Image,
    manifest::{self, Manifest},
};

/// Folder of the files in a release.
pub(crate) const FOLDER: &str = "nmstate";

/// Files in the order in which they are applied; the last one is the `NMState`.
pub(crate) const FILES: [&str; 7] = [
    "nmstate.io_nmstates.yaml",
    "namespace.yaml",
    "service_account.yaml",
    "role.yaml",
    "role_binding.yaml",
    "operator.yaml",
    "nmstate.io_v1_nmstate_cr.yaml",
];

/// Namespace of an installation of node state alone.
const NAMESPACE: &str = "nmstate";
/// Name of the operator and its account.
const OPERATOR: &str = "nmstate-operator";
/// Prefix of the names of roles and bindings that the add-ons operator deploys.
const BESIDE: &str = "cluster-network-addons-";

/// Variables, with their defaults, that the add-ons operator does not set.
const VARIABLES: [(&str, &str); 8] = [
    ("NNCP_MAX_RETRIES", "5"),
    ("NNCP_MAX_BACKOFF_SECONDS", "30"),
    ("NNCP_INITIAL_BACKOFF_SECONDS", "1"),
    ("PLUGIN_NAME", "nmstate-console-plugin"),
    (
        "PLUGIN_IMAGE",
        "quay.io/nmstate/nmstate-console-plugin:release-1.0.0",
    ),
    ("PLUGIN_PORT", "9443"),
    ("ENABLE_PROFILER", "False"),
    ("PROFILER_PORT", "6060"),
];

/// Renders the [files](FILES): pairs of name and YAML.
///
/// # Errors
/// If the operator's own files lack the target of a step.
pub(crate) fn render(install: &Install<'_>) -> Result<Vec<(&'static str, String)>, Error> {
    let objects = nmstate::operator()?;
    let [definition, namespace, account, role, binding, operator, nmstate] = FILES;
    let (mut accounts, mut bindings, mut workloads) = (Vec::new(), Vec::new(), Vec::new());
    for mut object in objects {
        object.set_namespace(NAMESPACE);
        match object.kind() {
            "ServiceAccount" => accounts.push(object),
            "ClusterRoleBinding" | "RoleBinding" => {
                let name = own_name(&object);
                object.set_metadata("name", json!(name))?;
                object.replace("/roleRef/name", json!(name))?;
                bindings.push(object);
            }
            _ => {
                alone(&mut object, install)?;
                workloads.push(object);
            }
        }
    }
    let mut roles = manifest::parse("nmstate-role.yaml", include_str!("nmstate-role.yaml"))?;
    for object in &mut roles {
        let name = own_name(object);
        object.set_metadata("name", json!(name))?;
        object.set_metadata("labels", json!({ "app": "kubernetes-nmstate-operator" }))?;
    }
    let space = Manifest::from_value(json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": NAMESPACE, "labels": {
            "name": NAMESPACE,
            "pod-security.kubernetes.io/enforce": "privileged",
            "pod-security.kubernetes.io/audit": "privileged",
            "pod-security.kubernetes.io/warn": "privileged",
        } },
    }));
    let example = nmstate::default_object()?;
    Ok(vec![
        (definition, in_order(definition, &api::node_state::crd()?)?),
        (namespace, documents(namespace, &[space])?),
        (account, documents(account, &accounts)?),
        (role, documents(role, &roles)?),
        (binding, documents(binding, &bindings)?),
        (operator, documents(operator, &workloads)?),
        (nmstate, documents(nmstate, &example)?),
    ])
}

/// Name of a role or a binding in an installation of node state alone: that of its role.
pub(super) fn own_name(object: &Manifest) -> String {
    let name = object.name();
    name.strip_prefix(BESIDE).unwrap_or(name).to_owned()
}

/// The operator's workload without the parts for the add-ons operator, and with the settings that it would choose.
fn alone(workload: &mut Manifest, install: &Install<'_>) -> Result<(), Error> {
    let mut pods = workload.pods()?;
    pods.labels_mut()?.shift_remove("allow-access-cluster-services");
    pods.without_annotation("openshift.io/required-scc");
    let role = |role: &str| format!("node-role.kubernetes.io/{role}");
    pods.set(
        "affinity",
        json!({ "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 10,
            "preference": { "matchExpressions": [{ "key": role("control-plane"), "operator": "Exists" }] },
        }] } }),
    )?;
    let tolerated = ["control-plane", "master"]
        .map(|name| json!({ "key": role(name), "operator": "Exists", "effect": "NoSchedule" }));
    pods.set("tolerations", json!(tolerated))?;
    let mut container = pods.container(OPERATOR)?;
    container
        .run(Image::Native(install.image), install.pull_policy)
        .variable("RELATED_IMAGE_HANDLER_IMAGE", install.image)?
        .variable("HANDLER_IMAGE_PULL_POLICY", install.pull_policy)?;
    for (name, value) in VARIABLES {
        container.add_variable(name, value)?;
    }
    container.set(
        "resources",
        json!({
            "requests": { "cpu": "60m", "memory": "30Mi" },
            "limits": { "cpu": "500m", "memory": "1Gi" },
        }),
    );
    Ok(())
}

#[cfg(test)]
mod tests;
