//! Installation of the MAC pool alone, without the operator (kubemacpool §18): the objects that the operator would
//! deploy, without the parts that depend on the operator.

use api::network_addons::KubeMacPool as Range;
use serde_json::json;

use super::{Error, Install, documents};
use operator::{components::kube_mac_pool, manifest::Manifest};

/// The first file installs the pool, and the second its monitoring. The third replaces the first, and installs the pool
/// with several managers.
pub(crate) const FILES: [&str; 3] = [
    "kubemacpool.yaml",
    "kubemacpool-monitoring.yaml",
    "kubemacpool-replicas.yaml",
];

/// Namespace of an installation of the pool alone.
const NAMESPACE: &str = "kubemacpool-system";

/// Range of an installation of the pool alone.
const RANGE: [&str; 2] = ["02:00:00:00:00:00", "02:FF:FF:FF:FF:FF"];

/// Label that selects the manager's pods.
const CONTROL_PLANE: (&str, &str) = ("control-plane", "mac-controller-manager");

/// Number of managers in the third file.
const REPLICAS: u32 = 3;

/// Head of the file with several managers.
const ABOUT_REPLICAS: &str = "\
# The MAC pool with three managers: apply this instead of kubemacpool.yaml. Where that is installed, remove its one
# manager first:
#
#   kubectl delete deployment -n kubemacpool-system kubemacpool-mac-controller-manager
#
# --replicas divides the range into equal parts. Each manager allocates from the part whose number is in its pod's name,
# so that no two managers allocate the same address. Each manager answers for all objects. spec.replicas and --replicas
# are the same number. To change it, or to change the range to one that overlaps the old one, scale to 0 first.
";

/// Renders the [files](FILES): pairs of name and YAML.
///
/// # Errors
/// If the operator's own files lack the target of a step.
pub(crate) fn render(install: &Install<'_>) -> Result<Vec<(&'static str, String)>, Error> {
    let [alone, monitoring, replicas] = FILES;
    let mut objects = objects(install)?;
    let own = objects.iter().position(|object| object.kind() == "Namespace");
    let pool = objects.split_off(own.ok_or(Error::Empty { file: alone })?);
    let several = documents(replicas, &several(&pool)?)?;
    Ok(vec![
        (alone, documents(alone, &pool)?),
        (monitoring, documents(monitoring, &objects)?),
        (replicas, format!("{ABOUT_REPLICAS}{several}")),
    ])
}

/// All objects, those of monitoring first.
fn objects(install: &Install<'_>) -> Result<Vec<Manifest>, Error> {
    let range = Range {
        range_start: RANGE[0].to_owned(),
        range_end: RANGE[1].to_owned(),
    };
    let mut objects = kube_mac_pool::objects(range, install.image, install.pull_policy, NAMESPACE)?;
    for object in &mut objects {
        if object.kind() == "Namespace" {
            object
                .labels_mut()?
                .insert("pod-security.kubernetes.io/enforce".into(), json!("restricted"));
        }
        if object.has_pods() {
            alone(object)?;
        }
    }
    Ok(objects)
}

/// A workload without the parts for the operator and for OpenShift.
fn alone(workload: &mut Manifest) -> Result<(), Error> {
    let serves = workload.name() == kube_mac_pool::MANAGER;
    let mut pods = workload.pods()?;
    pods.labels_mut()?.shift_remove("allow-access-cluster-services");
    pods.without_annotation("openshift.io/required-scc");
    if !serves {
        pods.without("affinity")?;
        return Ok(());
    }
    pods.container("manager")?
        .set("args", json!(["--v=production", "--wait-time=300"]));
    let (label, value) = CONTROL_PLANE;
    pods.set(
        "affinity",
        json!({ "podAntiAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 1,
            "podAffinityTerm": {
                "labelSelector": { "matchExpressions": [{ "key": label, "operator": "In", "values": [value] }] },
                "topologyKey": "kubernetes.io/hostname",
            },
        }] } }),
    )?;
    // The pods leave an unreachable node after one minute instead of five.
    let tolerated = ["node.kubernetes.io/unreachable", "node.kubernetes.io/not-ready"].map(
        |taint| json!({ "key": taint, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 60 }),
    );
    pods.set("tolerations", json!(tolerated))?;
    Ok(())
}

/// The same objects with several managers, each with a number.
fn several(pool: &[Manifest]) -> Result<Vec<Manifest>, Error> {
    let mut objects = Vec::new();
    for object in pool {
        let mut object = object.clone();
        if object.has_pods() && object.name() == kube_mac_pool::MANAGER {
            objects.extend(around_several());
            number(&mut object)?;
        }
        objects.push(object);
    }
    Ok(objects)
}

/// Makes a `StatefulSet` of the manager's Deployment.
fn number(manager: &mut Manifest) -> Result<(), Error> {
    manager.set("kind", json!("StatefulSet"));
    manager.without_spec("strategy")?;
    for (key, value) in [
        ("replicas", json!(REPLICAS)),
        ("serviceName", json!(kube_mac_pool::MANAGER)),
        // The managers do not wait for each other.
        ("podManagementPolicy", json!("Parallel")),
        ("updateStrategy", json!({ "type": "RollingUpdate" })),
    ] {
        manager.set_spec(key, value)?;
    }
    let replicas = [format!("--replicas={REPLICAS}")];
    let mut pods = manager.pods()?;
    // A manager that ends gets requests for a moment longer, and answers them.
    pods.set("terminationGracePeriodSeconds", json!(10))?;
    pods.container("manager")?.add_arguments(&replicas);
    Ok(())
}

/// Additional objects of several managers: a Service that names them, and a disruption budget.
fn around_several() -> [Manifest; 2] {
    let (label, value) = CONTROL_PLANE;
    let metadata = json!({ "name": kube_mac_pool::MANAGER, "namespace": NAMESPACE });
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": metadata,
        "spec": {
            "clusterIP": "None", "selector": { label: value },
            "ports": [{ "name": "webhook-server", "port": 8000 }],
        },
    });
    let budget = json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": metadata,
        "spec": { "maxUnavailable": 1, "selector": { "matchLabels": { label: value } } },
    });
    [service, budget].map(Manifest::from_value)
}

#[cfg(test)]
mod tests;
