use super::*;
use crate::outage::tests::{failure, success};
use crate::outage::{Outcome, record};
use api::connectivity_check::{PodNetworkConnectivityCheckSpec, PodNetworkConnectivityCheckStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

const NOW: i64 = 1_700_000_000;

pub(super) fn check(name: &str, endpoint: &str, results: &[Outcome]) -> Check {
    let spec = PodNetworkConnectivityCheckSpec {
        source_pod: "pod".to_owned(),
        target_endpoint: endpoint.to_owned(),
        tls_client_cert: None,
    };
    let mut check = Check::new(name, spec);
    let mut status = PodNetworkConnectivityCheckStatus::default();
    for result in results {
        record(&mut status, result);
    }
    check.status = (!results.is_empty()).then_some(status);
    check
}

pub(super) fn args(node: Option<&str>, failures: bool) -> Args {
    Args {
        node: node.map(str::to_owned),
        failures,
        stored: false,
        matrix: false,
        cluster: Flags {
            kubeconfig: None,
            context: None,
        },
    }
}

fn printed(checks: &[Check], args: &Args) -> (String, u8) {
    let now = Timestamp::from_second(NOW).expect("a time");
    match report(checks, &Requested::default(), args, now) {
        Ok(answer) => (answer.text, answer.code),
        Err(error) => (error.to_string(), 2),
    }
}

#[test]
fn results_are_printed_node_by_node() {
    let checks = [
        check(
            "network-check-source-n2-to-network-check-target-n1",
            "10.0.0.1:8080",
            &[success(NOW - 120), failure(NOW - 60), failure(NOW)],
        ),
        check(
            "network-check-source-n1-to-network-check-target-n2",
            "10.0.0.2:8080",
            &[success(NOW)],
        ),
        check(
            "network-check-source-n1-to-load-balancer-api-external",
            "api.example.com:6443",
            &[success(NOW - 60)],
        ),
        check("network-check-source-n2-to-a", "h:1", &[success(NOW - 301)]),
        check("network-check-source-n2-to-b", "h:2", &[]),
    ];
    let (text, code) = printed(&checks, &args(None, false));
    assert_eq!(
        text,
        "\
n1: 2 of 2 endpoints reachable
  ok    network-check-target-n2     10.0.0.2:8080         1ms
  ok    load-balancer-api-external  api.example.com:6443  1ms
n2: 0 of 3 endpoints reachable
  FAIL  network-check-target-n1  10.0.0.1:8080  since 2023-11-14T22:12:20Z: no
  ?     a                        h:1            no result since 2023-11-14T22:08:19Z, for more than 5m0s: does the pod of network-check-source run?
  ?     b                        h:2            not checked yet

3 of 5 endpoints are not known to be reachable.
"
    );
    assert_eq!(code, 1);
    let (text, code) = printed(&checks, &args(Some("n1.example.com"), true));
    assert_eq!(
        text,
        "n1: 2 of 2 endpoints reachable\n\nAll 2 endpoints are reachable.\n"
    );
    assert_eq!(code, 0);
    let (text, code) = printed(&checks, &args(Some("n3"), false));
    assert_eq!(
        (text.as_str(), code),
        ("node n3 has no connectivity checks\nNodes with checks: n1, n2", 2)
    );
}

#[test]
fn labels_of_nodes_may_look_like_separators() {
    let mut failing = check(
        "network-check-source-n1-to-network-check-target-rack-to-1",
        "h:1",
        &[failure(NOW)],
    );
    let owner = |name: &str| OwnerReference {
        kind: "Node".to_owned(),
        name: name.to_owned(),
        ..OwnerReference::default()
    };
    failing.metadata.owner_references = Some(vec![owner("n1.example.com")]);
    let checks = [
        failing,
        check("network-check-source-n1-to-a", "h:2", &[success(NOW)]),
    ];
    let (text, code) = printed(&checks, &args(Some("n1"), true));
    assert!(
        text.starts_with("n1: 1 of 2 endpoints reachable\n  FAIL  network-check-target-rack-to-1  h:1  "),
        "{text}"
    );
    assert_eq!(code, 1);
}

#[test]
fn cluster_without_checks_is_reported() {
    let (text, code) = printed(&[], &args(None, false));
    assert!(
        text.starts_with("this cluster has no connectivity checks\n"),
        "{text}"
    );
    assert_eq!(code, 2);
}

#[test]
fn check_without_a_new_result_counts_as_not_reachable() {
    // cluster-network#206
    let names =
        ["renewed", "silent", "new", "unrequested"].map(|name| format!("network-check-source-n1-to-{name}"));
    let checks = |last: [&[Outcome]; 4]| -> Vec<Check> {
        let named = names.iter().zip(last);
        named.map(|(name, results)| check(name, "h:1", results)).collect()
    };
    let before = checks([
        &[success(NOW - 60)],
        &[success(NOW - 30)],
        &[],
        &[success(NOW - 20)],
    ]);
    let requested = before.iter().take(3);
    let requested = requested.map(|check| (check.metadata.name.clone().unwrap_or_default(), latest(check)));
    let requested = Requested(requested.collect());
    // The clocks of this machine and of the source differ: that decides nothing.
    let after = checks([
        &[success(NOW - 60), failure(NOW - 50)],
        &[success(NOW - 30)],
        &[],
        &[success(NOW - 20)],
    ]);
    assert_eq!(after.iter().filter(|check| requested.lacks(check)).count(), 2);
    let now = Timestamp::from_second(NOW).expect("a time");
    let answer = report(&after, &requested, &args(None, false), now).expect("an answer");
    assert_eq!(
        answer.text,
        "\
n1: 1 of 4 endpoints reachable
  FAIL  renewed      h:1  since 2023-11-14T22:12:30Z: no
  ?     silent       h:1  no new result, the last one is from 2023-11-14T22:12:50Z
  ?     new          h:1  not checked yet
  ok    unrequested  h:1  1ms

3 of 4 endpoints are not known to be reachable.

Some checks have no new result after 30s: does their source run?
  kubectl --namespace openshift-network-diagnostics get pods --selector app=network-check-source
"
    );
    assert_eq!(answer.code, 1);
}
