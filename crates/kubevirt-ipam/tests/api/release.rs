//! `weft ippool release`, after the component was removed (kubevirt-ipam §11).

use clap::Parser;
use kube_kit::connection::Answer;
use serde_json::json;

use crate::manager::Managing;
use crate::stage::{Stage, claims, until};

#[derive(Parser)]
struct Command {
    #[command(flatten)]
    args: kubevirt_ipam::cli::Args,
}

fn release(stage: &Stage) -> Answer {
    let kubeconfig = stage.kubeconfig().as_os_str().to_owned();
    let arguments = [
        "ippool".into(),
        "release".into(),
        "--kubeconfig".into(),
        kubeconfig,
    ];
    kubevirt_ipam::cli::answer(Command::parse_from(arguments).args)
}

// kubevirt-ipam#110
#[test]
fn finalizers_are_removed_once_the_controller_is_gone() {
    let stage = Stage::start().granted();
    stage.both_networks();
    let manager = Managing::elected(&stage, "one");
    stage.running("vm1");
    for name in ["vm1.podnet", "vm1.random.net"] {
        stage.wait_until_held(name, true);
    }
    let both = json!({ "metadata": { "finalizers": ["example.com/other", "kubevirt.io/persistent-ipam"] } });
    stage
        .patch(&format!("{}/vm1.podnet", claims("ns1")), &both)
        .accepted();
    let refused = release(&stage);
    assert_eq!(
        (refused.code, refused.remarks.as_str()),
        (
            1,
            "error: a controller renews the Lease \"cluster-network-addons/71d89df3\": remove the component first\n"
        )
    );
    stage.wait_until_held("vm1.podnet", true);
    // The controller has no time to release the Lease.
    manager.kill();
    let done = release(&stage);
    assert_eq!(
        (done.code, done.text.as_str(), done.remarks.as_str()),
        (0, "IPAMClaims without the finalizer now: 2\n", "")
    );
    let finalizers = |name: &str| stage.claim(name).expect("a claim")["metadata"]["finalizers"].clone();
    assert_eq!(finalizers("vm1.podnet"), json!(["example.com/other"]));
    assert_eq!(finalizers("vm1.random.net"), json!(null));
    assert_eq!(release(&stage).text, "IPAMClaims without the finalizer now: 0\n");
    let free = json!({ "metadata": { "finalizers": null } });
    stage
        .patch(&format!("{}/vm1.podnet", claims("ns1")), &free)
        .accepted();
    // A restarted controller adds the finalizers again. Without leader election, it is not seen.
    let manager = Managing::start(&stage);
    until("the claims to be held", || {
        if finalizers("vm1.random.net") == json!(["kubevirt.io/persistent-ipam"]) {
            Ok(())
        } else {
            Err("not yet")
        }
    });
    stage.configure(manager.port);
    let done = release(&stage);
    assert_eq!(
        (done.code, done.remarks.as_str()),
        (
            0,
            "note: the webhook configuration \"kubevirt-ipam-controller-mutating-webhook-configuration\" exists: if a \
             controller runs without leader election, it adds the finalizers again only at its next start\n"
        )
    );
}
