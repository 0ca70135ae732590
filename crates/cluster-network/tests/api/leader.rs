//! Leader election among several operators.

use std::time::Duration;

use cluster_network::leader::{Candidate, Timing};
use kube::Client;
use kube_kit::shutdown::Shutdown;
use serde_json::json;
use stage::Line;

use crate::stage::{ACCOUNT, Stage, Task};

const NAMESPACE: &str = "openshift-network-operator";
const LEASE: &str =
    "/apis/coordination.k8s.io/v1/namespaces/openshift-network-operator/leases/network-operator-lock";

/// A Lease that a candidate does not lose on a busy machine.
const LONG: Duration = Duration::from_mins(1);
/// A Lease whose end a test can wait for.
const SHORT: Duration = Duration::from_secs(6);

/// A candidate with the operator's rights, which leads until it is stopped. `releases` makes the candidate release the
/// Lease.
fn candidate(stage: &Stage, identity: &'static str, lease: Duration, releases: bool) -> Task {
    let renewal = Duration::from_secs(1);
    stage.task_as(ACCOUNT, move |client, shutdown| {
        leads(client, shutdown, identity, Timing { lease, renewal }, releases)
    })
}

async fn leads(client: Client, shutdown: Shutdown, identity: &str, timing: Timing, releases: bool) {
    let mut candidate = Candidate::new(client, NAMESPACE, identity, timing);
    if candidate.elected(&shutdown).await {
        tokio::select! {
            () = shutdown.wait() => {}
            () = candidate.lost() => return,
        }
        if releases {
            candidate.release().await;
        }
    }
}

fn led_by(stage: &Stage, identity: &str) {
    stage.wait_for(identity, LEASE, |lease| {
        (lease?["spec"]["holderIdentity"] == identity).then_some(())
    });
}

#[test]
fn next_operator_leads_when_the_leader_ends_or_dies() {
    let stage = Stage::start();
    let one = candidate(&stage, "one", LONG, true);
    led_by(&stage, "one");
    let two = candidate(&stage, "two", SHORT, false);
    let before = stage.there(LEASE)["spec"]["renewTime"].clone();
    stage.wait_for("a renewal", LEASE, |lease| {
        (lease?["spec"]["renewTime"] != before).then_some(())
    });
    led_by(&stage, "one");
    drop(one);
    led_by(&stage, "two");
    // The candidate keeps the Lease at its end, like a killed operator.
    drop(two);
    assert_eq!(stage.there(LEASE)["spec"]["holderIdentity"], "two");
    let _three = candidate(&stage, "three", LONG, true);
    led_by(&stage, "three");
    assert_eq!(stage.there(LEASE)["spec"]["leaseTransitions"], json!(3));
}

// cluster-network#204
#[test]
fn leader_that_is_cut_off_ends_before_the_next_one_leads() {
    let stage = Stage::start();
    let line = Line::to(stage.api().url());
    // Two renewals before the end of the Lease, the leader gives up.
    let timing = Timing {
        lease: Duration::from_secs(12),
        renewal: Duration::from_secs(3),
    };
    let one = stage.task_through(&line, ACCOUNT, move |client, shutdown| {
        leads(client, shutdown, "one", timing, true)
    });
    led_by(&stage, "one");
    let _two = candidate(&stage, "two", LONG, true);
    line.cut();
    led_by(&stage, "two");
    assert!(one.has_ended());
}
