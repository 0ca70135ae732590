//! Observed state of OVN-Kubernetes, from the objects in the caches of the watches (§7.2).

use std::cmp::Ordering;

use serde_json::Value;

use super::{
    ipsec,
    knobs::{self, Data, Offload},
    rollout::{self, DaemonSetProgress, DeploymentProgress, Existing, Workload},
};
use crate::{names, objects::list};

#[cfg(test)]
mod tests;

/// Annotation of `ovnkube-node` with its masquerade subnets at the installation.
pub const MASQUERADE: &str = "networkoperator.openshift.io/default-masquerade-network-cidrs";
/// Annotation of workloads with the address families of pods.
pub const IP_FAMILY: &str = "networkoperator.openshift.io/ip-family-mode";
/// Annotation of `ovnkube-node` when OVN encrypts.
pub const IPSEC_ENABLED: &str = "networkoperator.openshift.io/ipsec-enabled";
/// Names of the operator's machine configurations that install `IPsec` on hosts.
pub const MACHINE_CONFIGS: [&str; 2] = ["80-ipsec-master-extensions", "80-ipsec-worker-extensions"];

/// Masquerade subnets of a new cluster.
const NEW_MASQUERADE: [&str; 2] = ["169.254.0.0/17", "fd69::/112"];
/// Label of machine configurations with the role of their nodes.
pub const ROLE: &str = "machineconfiguration.openshift.io/role";
/// Annotation of the users' machine configurations that install `IPsec` on hosts.
const USERS: &str = "user-ipsec-machine-config";
/// First version in which machine configurations can install `IPsec`.
const FIRST_VERSION: &str = "4.15.0";

/// `ConfigMaps` that tune OVN-Kubernetes (§7.1). A missing one counts as empty.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ConfigMaps {
    /// `ovs-flows-config`.
    pub flows: Data,
    /// `udp-aggregation-config`.
    pub udp_aggregation: Data,
    /// `hardware-offload-config`, which is parsed once, because each time logs its warnings.
    pub hardware: Result<knobs::Hardware, knobs::Error>,
    /// `ovn-kubernetes-config-overrides`.
    pub overrides: Data,
    /// `network-node-identity`.
    pub node_identity: Data,
}

impl Default for ConfigMaps {
    fn default() -> Self {
        Self {
            flows: Data::new(),
            udp_aggregation: Data::new(),
            hardware: knobs::hardware(&Data::new()),
            overrides: Data::new(),
            node_identity: Data::new(),
        }
    }
}

impl ConfigMaps {
    /// True if each node has its own user (§17.2).
    pub fn has_node_identity(&self) -> bool {
        self.node_identity
            .get("enabled")
            .is_none_or(|value| value == "true")
    }
}

/// Observed state of OVN-Kubernetes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Observed {
    /// Existing workloads.
    pub existing: Existing,
    /// Input of the decision about `IPsec`.
    pub encryption: ipsec::Facts,
    /// Default masquerade subnets.
    pub masquerade: Vec<String>,
    /// `ConfigMaps` that tune OVN-Kubernetes.
    pub config_maps: ConfigMaps,
    /// Nodes with a label of hardware offload, and all labels of each.
    pub offload_nodes: Vec<(String, Data)>,
}

/// Objects from which the state is read.
#[derive(Clone, Debug, Default)]
pub struct Objects<'a> {
    /// `DaemonSet` `ovnkube-node`.
    pub node: Option<&'a Value>,
    /// Deployment `ovnkube-control-plane`.
    pub control_plane: Option<&'a Value>,
    /// `DaemonSet` `ovnkube-upgrades-prepuller`.
    pub prepuller: Option<&'a Value>,
    /// True if the API server serves machine configurations.
    pub has_machine_configs: bool,
    /// True if another cluster hosts the control plane.
    pub is_hosted: bool,
    /// Machine configurations.
    pub machine_configs: Vec<&'a Value>,
    /// Machine configuration pools.
    pub pools: Vec<&'a Value>,
    /// `ClusterOperator` `machine-config`.
    pub machine_operator: Option<&'a Value>,
    /// All nodes.
    pub nodes: Vec<&'a Value>,
    /// `ConfigMaps` that tune OVN-Kubernetes.
    pub config_maps: ConfigMaps,
}

/// Reads the state from the objects.
pub fn observe(objects: &Objects<'_>) -> Observed {
    Observed {
        existing: Existing {
            node: objects
                .node
                .map(|it| workload(it, daemon_set(it).is_progressing())),
            control_plane: objects
                .control_plane
                .map(|it| workload(it, deployment(it).is_progressing())),
            prepuller: objects
                .prepuller
                .map(|it| workload(it, daemon_set(it).is_progressing())),
        },
        encryption: encryption(objects),
        masquerade: masquerade(objects),
        offload_nodes: offload_nodes(objects),
        config_maps: objects.config_maps.clone(),
    }
}

fn annotation<'a>(object: &'a Value, key: &str) -> &'a str {
    object["metadata"]["annotations"][key]
        .as_str()
        .unwrap_or_default()
}

fn number(value: &Value) -> i32 {
    let number = value.as_i64().unwrap_or_default();
    i32::try_from(number).unwrap_or(i32::MAX)
}

fn workload(object: &Value, is_progressing: bool) -> Workload {
    Workload {
        version: annotation(object, names::VERSION_ANNOTATION).to_owned(),
        ip_family: annotation(object, IP_FAMILY).to_owned(),
        is_progressing,
    }
}

fn daemon_set(object: &Value) -> DaemonSetProgress {
    let status = &object["status"];
    DaemonSetProgress {
        generation: object["metadata"]["generation"].as_i64().unwrap_or_default(),
        observed: status["observedGeneration"].as_i64().unwrap_or_default(),
        desired: number(&status["desiredNumberScheduled"]),
        updated: number(&status["updatedNumberScheduled"]),
        available: number(&status["numberAvailable"]),
        unavailable: number(&status["numberUnavailable"]),
        is_hung: object["metadata"]["annotations"]
            .get(names::ROLLOUT_HUNG)
            .is_some(),
    }
}

/// True if a `DaemonSet` or Deployment has pods, and all of them are current and available.
pub fn is_rolled_out(object: &Value) -> bool {
    let has_pods = if object["kind"] == "Deployment" {
        deployment(object).replicas > 0
    } else {
        daemon_set(object).desired > 0
    };
    has_pods && is_complete(object)
}

/// True if no pod of a `DaemonSet` or Deployment is outdated or unavailable. A hung rollout is not complete.
pub fn is_complete(object: &Value) -> bool {
    if object["kind"] == "Deployment" {
        return !deployment(object).is_progressing();
    }
    let progress = DaemonSetProgress {
        is_hung: false,
        ..daemon_set(object)
    };
    !progress.is_progressing()
}

fn deployment(object: &Value) -> DeploymentProgress {
    let status = &object["status"];
    DeploymentProgress {
        generation: object["metadata"]["generation"].as_i64().unwrap_or_default(),
        observed: status["observedGeneration"].as_i64().unwrap_or_default(),
        replicas: object["spec"]["replicas"]
            .as_i64()
            .map_or(1, |_| number(&object["spec"]["replicas"])),
        updated: number(&status["updatedReplicas"]),
        available: number(&status["availableReplicas"]),
    }
}

fn masquerade(objects: &Objects<'_>) -> Vec<String> {
    let owned = |subnets: &mut dyn Iterator<Item = &str>| subnets.map(str::to_owned).collect();
    let (Some(node), Some(_)) = (objects.node, objects.control_plane) else {
        return owned(&mut NEW_MASQUERADE.into_iter());
    };
    let subnets = annotation(node, MASQUERADE).split(',').map(str::trim);
    owned(&mut subnets.filter(|subnet| !subnet.is_empty()))
}

fn offload_nodes(objects: &Objects<'_>) -> Vec<(String, Data)> {
    // The rendering reports an invalid ConfigMap.
    let Ok(hardware) = &objects.config_maps.hardware else {
        return Vec::new();
    };
    let nodes = objects.nodes.iter().filter_map(|node| {
        let labels: Data = serde_json::from_value(node["metadata"]["labels"].clone()).ok()?;
        let name = node["metadata"]["name"].as_str()?;
        let kind = knobs::offload(hardware, name, &labels);
        (!matches!(kind, Ok(None))).then(|| (name.to_owned(), labels))
    });
    nodes.collect()
}

/// Kinds of hardware offload that nodes have.
///
/// # Errors
/// If `hardware-offload-config` is invalid, or a node has the labels of two kinds.
pub fn offloads(observed: &Observed) -> Result<(knobs::Hardware, Vec<Offload>), knobs::Error> {
    let hardware = observed.config_maps.hardware.clone()?;
    let mut kinds = Vec::new();
    for (node, labels) in &observed.offload_nodes {
        if let Some(kind) = knobs::offload(&hardware, node, labels)?
            && !kinds.contains(&kind)
        {
            kinds.push(kind);
        }
    }
    Ok((hardware, kinds))
}

fn encryption(objects: &Objects<'_>) -> ipsec::Facts {
    let role = |config: &Value| {
        config["metadata"]["labels"][ROLE]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    let configs = |is_wanted: &dyn Fn(&Value) -> bool| -> Vec<&Value> {
        let wanted = objects.machine_configs.iter().copied().filter(|it| is_wanted(it));
        wanted.collect()
    };
    let has_both = |configs: &[&Value]| {
        ["master", "worker"]
            .iter()
            .all(|wanted| configs.iter().any(|config| role(config) == *wanted))
    };
    let ours = configs(&|config| {
        let name = config["metadata"]["name"].as_str().unwrap_or_default();
        MACHINE_CONFIGS.contains(&name) && kube_kit::object::owned_by(config, "Network")
    });
    let users = configs(&|config| annotation(config, USERS) == "true");
    let (has_ours, has_users) = (has_both(&ours), has_both(&users));
    let carried = if has_ours { &ours } else { &users };
    ipsec::Facts {
        node: objects.node.map(node),
        has_ours,
        has_users,
        // Without machine configurations, `IPsec` cannot be installed on hosts (§19).
        is_hosted: objects.is_hosted || !objects.has_machine_configs,
        are_machines_ready: (has_ours || has_users)
            && carried
                .iter()
                .all(|config| is_carried(config, &role(config), &objects.pools)),
        can_configure_machines: objects.machine_operator.is_some_and(is_able),
    }
}

fn node(object: &Value) -> ipsec::Node {
    let version = annotation(object, names::VERSION_ANNOTATION);
    let mut containers = list(object, "/spec/template/spec/containers");
    let database = containers.find(|container| container["name"] == "nbdb");
    let encrypts = database.is_some_and(|it| it["lifecycle"]["postStart"].to_string().contains("ipsec=true"));
    ipsec::Node {
        is_progressing: daemon_set(object).is_progressing()
            || object["metadata"]["generation"] != object["status"]["observedGeneration"],
        says_so: !annotation(object, IPSEC_ENABLED).is_empty(),
        is_old_and_encrypts: encrypts && rollout::compare(version, FIRST_VERSION) == Some(Ordering::Less),
    }
}

/// True if pools select the role, and all machines of these pools have the configuration.
fn is_carried(config: &Value, role: &str, pools: &[&Value]) -> bool {
    let mut selected = pools.iter().filter(|pool| selects(pool, role)).peekable();
    selected.peek().is_some()
        && selected.all(|pool| {
            let (status, name) = (&pool["status"], config["metadata"]["name"].as_str());
            name.is_some_and(|name| is_carried_by(pool, name))
                && status["updatedMachineCount"] == status["machineCount"]
        })
}

/// True if the rendered configuration of the pool contains a machine configuration. Its machines may lack it yet.
pub fn is_carried_by(pool: &Value, name: &str) -> bool {
    list(pool, "/status/configuration/source").any(|source| source["name"] == name)
}

/// True if the selector of the pool matches machine configurations whose only label is this role. A pool without
/// a selector has none.
pub fn selects(pool: &Value, role: &str) -> bool {
    let selector = &pool["spec"]["machineConfigSelector"];
    let mut labels = selector["matchLabels"].as_object().into_iter().flatten();
    selector.is_object()
        && labels.all(|(key, value)| key == ROLE && value == role)
        && list(selector, "/matchExpressions").all(|expression| {
            let is_role = expression["key"] == ROLE;
            let is_listed = is_role && list(expression, "/values").any(|value| value == role);
            match expression["operator"].as_str() {
                Some("In") => is_listed,
                Some("NotIn") => !is_listed,
                Some("Exists") => is_role,
                _ => !is_role,
            }
        })
}

/// True if the machine config operator is available, and its version is new enough.
fn is_able(operator: &Value) -> bool {
    let status = &operator["status"];
    let is = |kind: &str, value: &str| {
        let conditions = status["conditions"].as_array().into_iter().flatten();
        conditions
            .into_iter()
            .any(|it| it["type"] == kind && it["status"] == value)
    };
    let mut versions = status["versions"].as_array().into_iter().flatten();
    let version = versions.find(|version| version["name"] == "operator");
    let version = version.and_then(|it| it["version"].as_str()).unwrap_or_default();
    let order = rollout::compare(version, FIRST_VERSION);
    is("Available", "True")
        && is("Degraded", "False")
        && is("Progressing", "False")
        && order.is_some_and(|order| order != Ordering::Less)
}
