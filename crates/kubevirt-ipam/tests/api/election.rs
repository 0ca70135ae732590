//! Two replicas (kubevirt-ipam §3).

use std::time::{Duration, Instant};

use crate::manager::Managing;
use crate::stage::{NAMESPACE, Stage, launcher, pods, until};

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
    let killed = Instant::now();
    first.kill();
    stage.instance("vm2");
    leads(&second);
    let took = killed.elapsed();
    assert!(took >= Duration::from_secs(10), "{took:?}");
    eprintln!("the second replica took over after {took:?}");
    stage.wait_until_held("vm2.podnet", true);
    stage.assert_never_refused(mark);
}

// kubevirt-ipam#94
#[test]
fn replica_that_ends_gives_the_lease_back() {
    let stage = Stage::start().granted();
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/71d89df3");
    let first = Managing::elected(&stage, "first");
    stage.wait_for("the holder", &path, |lease| {
        (lease?["spec"]["holderIdentity"] == "first").then_some(())
    });
    let second = Managing::elected(&stage, "second");
    let ended = Instant::now();
    drop(first);
    stage.wait_for("the holder", &path, |lease| {
        (lease?["spec"]["holderIdentity"] == "second").then_some(())
    });
    eprintln!("the second replica took over after {:?}", ended.elapsed());
    assert!(ended.elapsed() < Duration::from_secs(12));
    drop(second);
}
