use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};

use super::{Assessment, State, assess};

const VERSION: &str = "1.2.3";

fn now() -> Timestamp {
    "2026-01-02T03:04:05Z".parse().expect("a time")
}

fn daemon_set(name: &str, status: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {
            "name": name, "namespace": "ns", "generation": 1, "annotations": { "release.openshift.io/version": VERSION },
        },
        "status": status,
    })
}

fn scheduled(current: i64, updated: i64, unavailable: i64) -> Value {
    json!({
        "currentNumberScheduled": current, "updatedNumberScheduled": updated, "numberUnavailable": unavailable,
        "numberAvailable": current - unavailable, "numberReady": current - unavailable, "observedGeneration": 1,
    })
}

fn installed(complete: bool) -> State {
    State {
        install_complete: Some(complete),
        ..State::default()
    }
}

fn lines(found: &Assessment) -> Vec<&str> {
    let lines = found.progressing.iter();
    lines.map(|(_, line)| line.as_str()).collect()
}

fn found(workload: &Value, before: &State) -> Assessment {
    assess(&[workload], before, VERSION, true, now())
}

#[test]
fn cluster_without_workloads_is_deploying() {
    let found = assess(&[], &installed(false), VERSION, true, now());
    assert_eq!((lines(&found), found.reached), (vec!["Deploying"], false));
    assert_eq!(found.state.install_complete, Some(false));
}

#[test]
fn version_is_not_reached_while_a_rendered_workload_is_missing() {
    let daemon_set = daemon_set("a", &scheduled(2, 2, 0));
    let found = assess(&[&daemon_set], &installed(false), VERSION, false, now());
    assert_eq!(
        (found.reached, found.state.install_complete),
        (false, Some(false))
    );
}

#[test]
fn unavailable_pods_count_down_until_all_are_available() {
    for (unavailable, line) in [
        (2, Some("DaemonSet \"/ns/a\" is not available (awaiting 2 nodes)")),
        (1, Some("DaemonSet \"/ns/a\" is not available (awaiting 1 nodes)")),
        (0, None),
    ] {
        let found = found(&daemon_set("a", &scheduled(2, 2, unavailable)), &installed(false));
        assert_eq!(lines(&found).first().copied(), line);
        assert_eq!(found.reached, line.is_none());
        assert_eq!(found.state.install_complete, Some(line.is_none()));
    }
    let none = found(&daemon_set("a", &scheduled(0, 0, 0)), &installed(false));
    assert_eq!(
        lines(&none),
        ["DaemonSet \"/ns/a\" is not yet scheduled on any nodes"]
    );
    let mut other = daemon_set("a", &scheduled(1, 1, 0));
    other["metadata"]["annotations"]["release.openshift.io/version"] = json!("1.0.0");
    assert!(!found(&other, &installed(false)).reached);
}

// cluster-network#62
#[test]
fn pods_that_are_away_later_are_no_progress() {
    let found = found(&daemon_set("a", &scheduled(3, 3, 1)), &installed(true));
    assert!(found.progressing.is_empty(), "{:?}", found.progressing);
    let text = serde_json::to_string(&found.state).expect("JSON");
    assert_eq!(State::read(Some(&text), false).install_complete, Some(true));
    // The annotation of an earlier version.
    let old = r#"{"DaemonsetStates":null,"DeploymentStates":[],"StatefulsetStates":[]}"#;
    assert_eq!(State::read(Some(old), true).install_complete, Some(true));
    assert_eq!(State::read(Some(old), false).install_complete, Some(false));
}

// cluster-network#202
#[test]
fn cause_follows_the_lines_of_its_workload() {
    let [a, b] = ["a", "b"].map(|name| daemon_set(name, &scheduled(2, 2, 1)));
    let before = assess(&[&a, &b], &installed(false), VERSION, true, now());
    let later = now() + SignedDuration::from_secs(600);
    let mut found = assess(&[&a, &b], &before.state, VERSION, true, later);
    found.explain(&found.unavailable[0].clone(), "cause");
    assert_eq!(
        lines(&found),
        [
            "DaemonSet \"/ns/a\" is not available (awaiting 1 nodes): cause",
            "DaemonSet \"/ns/b\" is not available (awaiting 1 nodes)",
        ]
    );
    let hung: Vec<bool> = found
        .hung
        .iter()
        .map(|(_, line)| line.ends_with("Z: cause"))
        .collect();
    assert_eq!(hung, [true, false]);
}

#[test]
fn workload_without_progress_hangs_until_it_moves() {
    let daemon = daemon_set("a", &scheduled(3, 1, 0));
    let before = found(&daemon, &installed(true));
    assert_eq!(
        lines(&before),
        ["DaemonSet \"/ns/a\" update is rolling out (1 out of 3 updated)"]
    );
    assert!(before.hung.is_empty());
    let at = |seconds| now() + SignedDuration::from_secs(seconds);
    let early = assess(&[&daemon], &before.state, VERSION, true, at(599));
    assert!(early.hung.is_empty());
    assert_eq!(early.look_again.map(|left| left.as_secs()), Some(1));
    let late = assess(&[&daemon], &early.state, VERSION, true, at(600));
    assert_eq!(
        late.hung[0].1,
        "DaemonSet \"/ns/a\" rollout is not making progress - last change 2026-01-02T03:04:05Z"
    );
    let mut moving = daemon_set("a", &scheduled(3, 2, 0));
    moving["metadata"]["annotations"]["networkoperator.openshift.io/rollout-hung"] = json!("");
    let moving = assess(&[&moving], &late.state, VERSION, true, at(601));
    assert!(moving.hung.is_empty());
    assert_eq!(moving.moving_again.len(), 1);
}

#[test]
fn workload_that_is_not_critical_decides_nothing() {
    let mut deployment = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {
            "name": "a", "namespace": "ns", "generation": 1,
            "annotations": { "release.openshift.io/version": VERSION, "networkoperator.openshift.io/non-critical": "" },
        },
        "status": { "replicas": 2, "updatedReplicas": 2, "unavailableReplicas": 2, "observedGeneration": 1 },
    });
    let waiting = found(&deployment, &installed(false));
    assert_eq!(
        lines(&waiting),
        ["Deployment \"/ns/a\" is waiting for other operators to become ready"]
    );
    assert!(waiting.reached && waiting.unavailable.is_empty());
    assert_eq!(waiting.state.install_complete, Some(false));
    deployment["metadata"]["generation"] = json!(2);
    let processed = found(&deployment, &installed(true));
    assert_eq!(
        lines(&processed),
        ["Deployment \"/ns/a\" update is being processed (generation 2, observed generation 1)"]
    );
}
