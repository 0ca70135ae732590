//! Two replicas (kubevirt-ipam §3).

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use crate::manager::Managing;
use crate::stage::{NAMESPACE, Stage, launcher, pods, until};

/// A replica that waited for the expiry of the Lease takes over after this time, less a second for roundings.
const EXPIRY: SignedDuration = SignedDuration::from_secs(14);

fn lease_path() -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/71d89df3")
}

fn time(lease: &Value, field: &str) -> Timestamp {
    let text = lease["spec"][field].as_str().expect("a time");
    text.parse().expect("a time")
}

// kubevirt-ipam#69
#[test]
fn one_of_two_replicas_writes_and_both_answer() {
    let stage = Stage::start().granted();
    stage.both_networks();
    let mark = stage.mark();
    let first = Managing::elected(&stage, "first");
    let leads = |manager: &Managing| {
        until("the lease", || {
            if manager.leadership.may_write() {
                Ok(())
            } else {
                Err("not yet")
            }
        });
    };
    leads(&first);
    let second = Managing::elected(&stage, "second");
    stage.instance("vm1");
    stage.wait_until_held("vm1.podnet", true);
    assert!(!second.leadership.may_write());
    for (replica, pod) in [(&first, "pod1"), (&second, "pod2")] {
        stage.configure(replica.port);
        until("the webhook to be called", || {
            let path = format!("{}?dryRun=All", pods("ns1"));
            let answer = stage.try_create(&path, &launcher(pod, "vm1", "ns1/supadupanet"));
            let text = answer.object.to_string();
            if text.contains("ipam-claim-reference") {
                Ok(())
            } else {
                Err(text)
            }
        });
    }
    first.kill();
    let renewed = time(&stage.get(&lease_path()).expect("the Lease"), "renewTime");
    stage.instance("vm2");
    leads(&second);
    let acquired = time(&stage.get(&lease_path()).expect("the Lease"), "acquireTime");
    let took = acquired.duration_since(renewed);
    assert!(took >= EXPIRY, "{took:?}");
    eprintln!("the second replica took over {took:?} after the last renewal");
    stage.wait_until_held("vm2.podnet", true);
    stage.assert_never_refused(mark);
}

// kubevirt-ipam#94
#[test]
fn replica_that_ends_gives_the_lease_back() {
    let stage = Stage::start().granted();
    let path = lease_path();
    let first = Managing::elected(&stage, "first");
    stage.wait_for("the holder", &path, |lease| {
        (lease?["spec"]["holderIdentity"] == "first").then_some(())
    });
    let second = Managing::elected(&stage, "second");
    drop(first);
    // The second replica need not wait for the expiry, or has the Lease already.
    let lease = stage.get(&path).expect("the Lease");
    assert_ne!(lease["spec"]["holderIdentity"], "first", "{lease:#}");
    stage.wait_for("the holder", &path, |lease| {
        (lease?["spec"]["holderIdentity"] == "second").then_some(())
    });
    drop(second);
}
