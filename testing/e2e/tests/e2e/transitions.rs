//! Transitions between configurations: placement of workloads, and kills of the operator.

use std::time::Duration;

use serde_json::{Value, json};

use crate::{
    dump::{self, Dump},
    pods::{TestNamespace, pod},
    support::{Stage, only_on},
};

const ALL: [&str; 3] = ["multus", "kube-cni-linux-bridge-plugin", "bridge-marker"];

/// Number of kills of the operator in a run.
const KILLS: usize = 20;

/// Seed of the times of the kills, to repeat a run.
const SEED_VARIABLE: &str = "WEFT_E2E_SEED";

#[test]
fn workloads_run_on_their_nodes() {
    // operator#20, multus#114
    let Some(stage) = Stage::enter() else { return };
    let placement = |name: &str| {
        let set = stage.daemonset(name);
        let pods = &set["spec"]["template"]["spec"];
        ["nodeSelector", "tolerations", "affinity"].map(|key| match &pods[key] {
            Value::Object(members) if members.is_empty() => Value::Null,
            value => value.clone(),
        })
    };
    let everywhere = ALL.map(placement);
    for [selector, tolerations, affinity] in &everywhere {
        assert_eq!(*selector, json!({ "kubernetes.io/os": "linux" }));
        let unschedulable = json!({ "key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule" });
        assert_eq!(*tolerations, json!([unschedulable]));
        assert_eq!(*affinity, Value::Null);
    }
    let node01 = json!({ "kubernetes.io/hostname": "node01" });
    let leaving = stage.follow_log("multus", "node02");
    stage.configure(&json!({
        "multus": {}, "linuxBridge": {}, "imagePullPolicy": "IfNotPresent",
        "placementConfiguration": { "workloads": { "nodeSelector": node01 } },
    }));
    for name in ALL {
        stage.wait(&format!("DaemonSet {name} is on node01 alone"), || {
            only_on(&stage.daemonset_pods(name), "node01").then_some(())
        });
        assert_eq!(
            placement(name),
            [node01.clone(), Value::Null, Value::Null],
            "{name}"
        );
    }
    stage.available();
    // The daemon removed the configuration when multus left the node. If the API server did not answer the daemon in
    // time, the shim removes the file two minutes later, and the pod below starts then.
    let kept = stage.multus_configuration("node02");
    let log = leaving.end();
    let unanswered = log.contains("whether the DaemonSet still places a pod");
    assert!(kept.is_empty() || unanswered, "{kept}\n{log}");
    let ns = TestNamespace::create(&stage, "e2e-left-by-multus");
    ns.apply(&pod("plain", Some("node02"), &json!([])));
    let ready = ns.ready("plain");
    assert!(
        !ready.has_network_status(),
        "the cluster's own network attached it"
    );

    stage.configure(&usual());
    stage.available_on_all_nodes(&ALL);
    assert_eq!(ALL.map(placement), everywhere);
    assert!(
        !stage.multus_configuration("node02").is_empty(),
        "Available means that node02 attaches again"
    );
}

#[test]
fn operator_killed_during_a_transition_reaches_the_same_state() {
    let Some(stage) = Stage::enter() else { return };
    // The reference, without kills.
    stage.configure(&usual());
    stage.available_on_all_nodes(&ALL);
    let expected = dump::deployed(&stage);
    assert!(expected.len() > 10, "{:?}", expected.keys());

    let mut dice = Dice::thrown();
    println!("seed: {SEED_VARIABLE}={}", dice.0);
    for kill in 1..=KILLS {
        let [pid] = stage.wait("the operator runs", || {
            <[u32; 1]>::try_from(stage.operator_pids()).ok()
        });
        stage.configure(&some_configuration(&mut dice));
        let pause = Duration::from_millis(dice.below(1500));
        stage.pass(pause);
        println!("kill {kill} of process {pid} after {pause:?}");
        stage.kill_operator(pid);
    }
    stage.configure(&usual());
    stage.wait_for("what is deployed is what was deployed before", || {
        let found = dump::deployed(&stage);
        let differences = differences(&expected, &found);
        if differences.is_empty() {
            Ok(())
        } else {
            Err(differences)
        }
    });
    stage.available_on_all_nodes(&ALL);
}

/// State of the tests on the cluster.
fn usual() -> Value {
    json!({ "multus": {}, "linuxBridge": {}, "imagePullPolicy": "IfNotPresent" })
}

/// Returns some components with settings. Multus is always included: a node that loses it between two kills may start
/// no pods for two minutes, including the operator's.
fn some_configuration(dice: &mut Dice) -> Value {
    let mut spec = json!({ "imagePullPolicy": "IfNotPresent", "multus": {} });
    if dice.below(3) > 0 {
        spec["linuxBridge"] = json!({ "preserveDefaultVlan": dice.below(2) == 0 });
    }
    if dice.below(3) == 0 {
        // Both nodes, with another template.
        let placement = json!({ "nodeSelector": { "kubernetes.io/os": "linux" } });
        spec["placementConfiguration"] = json!({ "workloads": placement });
    }
    spec
}

fn differences(expected: &Dump, found: &Dump) -> String {
    let mut lines = Vec::new();
    for (name, object) in expected {
        match found.get(name) {
            None => lines.push(format!("{name} is missing")),
            Some(other) if other != object => lines.push(format!("{name}: {object}\nis now {other}")),
            Some(_) => {}
        }
    }
    let extra = found.keys().filter(|name| !expected.contains_key(*name));
    lines.extend(extra.map(|name| format!("{name} is left over")));
    lines.join("\n")
}

/// A deterministic pseudo-random generator.
struct Dice(u64);

impl Dice {
    fn thrown() -> Self {
        let seed = std::env::var(SEED_VARIABLE)
            .ok()
            .and_then(|seed| seed.parse().ok());
        let now = std::time::UNIX_EPOCH.elapsed().unwrap();
        Self(seed.unwrap_or(u64::try_from(now.as_nanos() & u128::from(u64::MAX)).unwrap()) | 1)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }
}
