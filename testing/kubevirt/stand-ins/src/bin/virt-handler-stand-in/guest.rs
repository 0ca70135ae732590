//! The next state of a virtual machine instance, computed without I/O from the instance and its launcher pods.
//!
//! ```text
//! Scheduled ── containers ready ──> Running ── deleted, or its pod succeeded ──> Succeeded
//!                                      └────── its pod failed or is gone ──────> Failed
//! ```
//!
//! A migration takes one step in each reconciliation: the address of the target, the start, the arrival of the guest,
//! the end. An instance is written as a whole, because its kind has no status subresource.

use serde_json::{Value, json};

use crate::interfaces;
use crate::names::{APP, CREATED_BY, LAUNCHER, MIGRATION_TARGET, NODE_NAME, UNPAUSED};

/// Port of migrations on a node. No process listens on it.
const MIGRATION_PORT: &str = "49152";

/// The writes for an instance.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Plan {
    /// The changed instance; `None` if nothing changes.
    pub(crate) instance: Option<Value>,
    /// Names of launcher pods whose guest left.
    pub(crate) left: Vec<String>,
}

/// Computes the plan for `instance` with the pods of its namespace. `now` is the time in RFC 3339.
pub(crate) fn plan(instance: &Value, pods: &[&Value], now: &str) -> Plan {
    let pods: Vec<&Value> = pods.iter().copied().filter(|pod| is_of(pod, instance)).collect();
    let mut next = instance.clone();
    let node = instance["status"]["nodeName"].as_str().unwrap_or_default();
    let pod = pods
        .iter()
        .copied()
        .find(|pod| !node.is_empty() && pod["spec"]["nodeName"] == node);
    match instance["status"]["phase"].as_str().unwrap_or_default() {
        "Scheduled" => scheduled(&mut next, pod, now),
        "Running" => running(&mut next, pod, &pods, now),
        _ => {}
    }
    let left = left(instance, &pods);
    Plan {
        instance: (next != *instance).then_some(next),
        left,
    }
}

/// Returns true if a launcher pod of an instance lacks the condition that its guest is not paused.
///
/// virt-controller 1.5 sets the condition by a patch that first tests all conditions as virt-controller decodes them.
/// Kubernetes 1.34 added a field to conditions, which virt-controller does not decode, so that the test fails, and the
/// pod never becomes ready.
pub(crate) fn waits_for_unpaused(pod: &Value) -> bool {
    let has = |list: &Value, key: &str| {
        list.as_array()
            .into_iter()
            .flatten()
            .any(|item| item[key] == UNPAUSED)
    };
    pod["metadata"]["deletionTimestamp"].is_null()
        && has(&pod["spec"]["readinessGates"], "conditionType")
        && !has(&pod["status"]["conditions"], "type")
        && pod["status"]["phase"] == "Running"
}

/// Returns the condition of [`waits_for_unpaused`], as a patch of the pod's status.
pub(crate) fn unpaused(now: &str) -> Value {
    json!({ "status": { "conditions": [
        { "type": UNPAUSED, "status": "True", "lastProbeTime": now, "lastTransitionTime": now },
    ] } })
}

fn is_of(pod: &Value, instance: &Value) -> bool {
    let labels = &pod["metadata"]["labels"];
    labels[APP] == LAUNCHER && labels[CREATED_BY] == instance["metadata"]["uid"]
}

fn scheduled(next: &mut Value, pod: Option<&Value>, now: &str) {
    if is_deleted(next) {
        return enter(next, "Succeeded", now);
    }
    match pod {
        Some(pod) if is_true(&pod["status"]["conditions"], "ContainersReady") => start(next, pod, now),
        Some(_) => {}
        None => enter(next, "Failed", now),
    }
}

fn running(next: &mut Value, pod: Option<&Value>, pods: &[&Value], now: &str) {
    if is_deleted(next) {
        return enter(next, "Succeeded", now);
    }
    match pod.map(|pod| (pod, pod["status"]["phase"].as_str().unwrap_or_default())) {
        Some((_, "Succeeded")) => enter(next, "Succeeded", now),
        Some((_, "Failed")) | None => enter(next, "Failed", now),
        Some((pod, _)) => {
            interfaces::update(next, pod);
            migrate(next, pods, now);
        }
    }
}

/// Sets the state of a started guest.
fn start(next: &mut Value, pod: &Value, now: &str) {
    enter(next, "Running", now);
    interfaces::update(next, pod);
    let bridged = interfaces::bridges_the_pod_network(next);
    let memory = next["spec"]["domain"]["memory"]["guest"].clone();
    let status = &mut next["status"];
    let mut conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    conditions.retain(|condition| {
        ["LiveMigratable", "StorageLiveMigratable"]
            .iter()
            .all(|kind| condition["type"] != *kind)
    });
    let mut migratable = condition("LiveMigratable", !bridged);
    if bridged {
        migratable["reason"] = json!("InterfaceNotLiveMigratable");
        migratable["message"] = json!("the interface of the pod network is bridged");
    }
    conditions.extend([migratable, condition("StorageLiveMigratable", true)]);
    status["conditions"] = conditions.into();
    // virt-controller waits for this field before a migration.
    status["selinuxContext"] = json!("none");
    status["migrationMethod"] = json!("LiveMigration");
    status["migrationTransport"] = json!("Unix");
    status["machine"] = json!({ "type": "q35" });
    status["currentCPUTopology"] = json!({ "cores": 1, "sockets": 1, "threads": 1 });
    if memory.is_string() {
        status["memory"] = json!({ "guestAtBoot": memory, "guestCurrent": memory, "guestRequested": memory });
    }
}

fn condition(kind: &str, holds: bool) -> Value {
    let status = if holds { "True" } else { "False" };
    json!({ "type": kind, "status": status, "lastProbeTime": null, "lastTransitionTime": null })
}

/// Applies the next step of a migration.
fn migrate(next: &mut Value, pods: &[&Value], now: &str) {
    let migration = next["status"]["migrationState"].clone();
    let is_set = |field: &str| !matches!(&migration[field], Value::Null | Value::Bool(false));
    let Some(node) = migration["targetNode"].as_str().filter(|node| !node.is_empty()) else {
        return;
    };
    if is_set("completed") || is_set("failed") || is_set("endTimestamp") || is_set("abortRequested") {
        return;
    }
    let target = pods
        .iter()
        .find(|pod| pod["metadata"]["name"] == migration["targetPod"]);
    let Some(target) = target.filter(|pod| is_true(&pod["status"]["conditions"], "ContainersReady")) else {
        return;
    };
    let state = &mut next["status"]["migrationState"];
    let mut set = |field: &str, value: Value| state[field] = value;
    if !is_set("targetNodeAddress") {
        set("targetNodeAddress", target["status"]["hostIP"].clone());
        set("targetDirectMigrationNodePorts", json!({ MIGRATION_PORT: 0 }));
    } else if !is_set("startTimestamp") {
        set("startTimestamp", json!(now));
        set("mode", json!("PreCopy"));
    } else if !is_set("targetNodeDomainReadyTimestamp") {
        set("targetNodeDomainDetected", json!(true));
        set("targetNodeDomainReadyTimestamp", json!(now));
    } else {
        set("completed", json!(true));
        set("endTimestamp", json!(now));
        arrive(next, node);
    }
}

/// Sets the new node of the guest.
fn arrive(next: &mut Value, node: &str) {
    next["status"]["nodeName"] = json!(node);
    remove(&mut next["status"], "evacuationNodeName");
    remove(&mut next["status"], "launcherContainerImageVersion");
    let labels = &mut next["metadata"]["labels"];
    labels[NODE_NAME] = json!(node);
    remove(labels, MIGRATION_TARGET);
}

fn remove(object: &mut Value, field: &str) {
    if let Some(fields) = object.as_object_mut() {
        fields.shift_remove(field);
    }
}

/// Returns the source pods of finished migrations.
fn left(instance: &Value, pods: &[&Value]) -> Vec<String> {
    let migration = &instance["status"]["migrationState"];
    if migration["completed"] != true || migration["failed"] == true {
        return Vec::new();
    }
    let mut left = Vec::new();
    for pod in pods {
        let source = pod["spec"]["nodeName"] == migration["sourceNode"]
            && pod["spec"]["nodeName"] != instance["status"]["nodeName"];
        if source && pod["status"]["phase"] == "Running" {
            left.extend(pod["metadata"]["name"].as_str().map(str::to_owned));
        }
    }
    left
}

fn enter(next: &mut Value, phase: &str, now: &str) {
    let status = &mut next["status"];
    status["phase"] = json!(phase);
    let mut times = status["phaseTransitionTimestamps"]
        .as_array()
        .cloned()
        .unwrap_or_default();
    times.push(json!({ "phase": phase, "phaseTransitionTimestamp": now }));
    status["phaseTransitionTimestamps"] = times.into();
}

fn is_deleted(object: &Value) -> bool {
    !object["metadata"]["deletionTimestamp"].is_null()
}

fn is_true(conditions: &Value, kind: &str) -> bool {
    let mut conditions = conditions.as_array().into_iter().flatten();
    conditions.any(|condition| condition["type"] == kind && condition["status"] == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: &str = "2026-01-01T00:00:00Z";

    fn instance(phase: &str) -> Value {
        json!({
            "metadata": { "name": "vm", "uid": "u", "labels": { NODE_NAME: "node01" } },
            "spec": { "domain": { "devices": { "interfaces": [{ "name": "default", "masquerade": {} }] } },
                "networks": [{ "name": "default", "pod": {} }] },
            "status": { "phase": phase, "nodeName": "node01", "evacuationNodeName": "node01" },
        })
    }

    fn pod(name: &str, node: &str, phase: &str) -> Value {
        json!({
            "metadata": { "name": name, "labels": { APP: LAUNCHER, CREATED_BY: "u" } },
            "spec": { "nodeName": node, "readinessGates": [{ "conditionType": UNPAUSED }] },
            "status": { "phase": phase, "hostIP": "10.10.0.12", "podIPs": [{ "ip": "10.244.1.5" }],
                "conditions": [{ "type": "ContainersReady", "status": "True" }] },
        })
    }

    fn phase(plan: &Plan) -> Option<&str> {
        plan.instance.as_ref()?["status"]["phase"].as_str()
    }

    #[test]
    fn scheduled_instance_with_ready_containers_runs() {
        let pod = pod("p", "node01", "Running");
        let plan = plan(&instance("Scheduled"), &[&pod], NOW);
        assert_eq!(phase(&plan), Some("Running"));
        let status = &plan.instance.as_ref().unwrap()["status"];
        assert_eq!(status["selinuxContext"], "none");
        assert_eq!(status["interfaces"][0]["ipAddress"], "10.244.1.5");
        assert!(is_true(&status["conditions"], "LiveMigratable"));
    }

    #[test]
    fn running_instance_without_changes_is_not_written() {
        let pod = pod("p", "node01", "Running");
        let first = plan(&instance("Scheduled"), &[&pod], NOW).instance.unwrap();
        assert_eq!(plan(&first, &[&pod], NOW), Plan::default());
    }

    #[test]
    fn running_instance_ends_as_its_pod_ends() {
        let running = instance("Running");
        for (pods, expected) in [
            (vec![pod("p", "node01", "Succeeded")], "Succeeded"),
            (vec![pod("p", "node01", "Failed")], "Failed"),
            (vec![pod("p", "node02", "Running")], "Failed"),
        ] {
            let pods: Vec<&Value> = pods.iter().collect();
            assert_eq!(phase(&plan(&running, &pods, NOW)), Some(expected));
        }
        let mut deleted = running;
        deleted["metadata"]["deletionTimestamp"] = json!(NOW);
        let pod = pod("p", "node01", "Running");
        assert_eq!(phase(&plan(&deleted, &[&pod], NOW)), Some("Succeeded"));
    }

    #[test]
    fn migration_proceeds_step_by_step_and_ends_the_source_pod() {
        let (source, target) = (pod("p", "node01", "Running"), pod("q", "node02", "Running"));
        let pods = [&source, &target];
        let mut now = instance("Running");
        interfaces::update(&mut now, &source);
        now["status"]["migrationState"] =
            json!({ "migrationUid": "m", "targetNode": "node02", "targetPod": "q", "sourceNode": "node01" });
        for field in [
            "targetNodeAddress",
            "startTimestamp",
            "targetNodeDomainReadyTimestamp",
            "completed",
        ] {
            assert!(
                now["status"]["migrationState"][field].is_null(),
                "{field} is set in a later step"
            );
            let plan = plan(&now, &pods, NOW);
            assert_eq!(plan.left, [] as [&str; 0]);
            now = plan.instance.unwrap();
            assert!(!now["status"]["migrationState"][field].is_null(), "{now}");
        }
        assert_eq!(now["status"]["nodeName"], "node02");
        assert_eq!(now["metadata"]["labels"][NODE_NAME], "node02");
        assert_eq!(now["status"]["evacuationNodeName"], Value::Null);
        let after = plan(&now, &pods, NOW);
        assert_eq!((after.instance, after.left), (None, vec!["p".to_owned()]));
    }

    #[test]
    fn migration_waits_for_its_target() {
        let source = pod("p", "node01", "Running");
        let mut now = instance("Running");
        interfaces::update(&mut now, &source);
        now["status"]["migrationState"] =
            json!({ "migrationUid": "m", "targetNode": "node02", "targetPod": "q" });
        assert_eq!(plan(&now, &[&source], NOW), Plan::default());
    }

    #[test]
    fn running_pod_without_the_condition_waits_for_it() {
        let mut pod = pod("p", "node01", "Running");
        assert!(waits_for_unpaused(&pod));
        let condition = unpaused(NOW)["status"]["conditions"][0].clone();
        pod["status"]["conditions"] = json!([condition]);
        assert!(!waits_for_unpaused(&pod));
    }
}
