//! `weft network plan` and `weft network status` with a real API server.

use std::{io::Write as _, time::Instant};

use clap::Parser;
use cluster_network::cli::{PlanArgs, StatusArgs, plan, status};
use kube_kit::connection::Answer;
use serde_json::json;
use stage::{Admin, Server};

use crate::stage::{KUBE_PROXY, MULTUS, OPERATOR, Stage};

#[derive(Parser)]
struct Plan {
    #[command(flatten)]
    args: PlanArgs,
}

#[derive(Parser)]
struct Status {
    #[command(flatten)]
    args: StatusArgs,
}

/// The answer about a file, with further arguments.
pub(crate) fn asked(admin: &Admin, yaml: &str, more: &[&str]) -> Answer {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(yaml.as_bytes()).expect("written");
    let kubeconfig = admin.kubeconfig().display().to_string();
    let path = file.path().display().to_string();
    let args = ["plan", "-f", &path, "--kubeconfig", &kubeconfig];
    let Plan { args } = Plan::parse_from(args.iter().chain(more));
    plan(&args)
}

/// Text and exit code of the plan for a file.
fn planned(admin: &Admin, yaml: &str) -> (String, u8) {
    let answer = asked(admin, yaml, &[]);
    assert!(answer.remarks.is_empty(), "{}", answer.remarks);
    (answer.text, answer.code)
}

fn stated(stage: &Stage) -> (String, u8) {
    let kubeconfig = stage.kubeconfig().display().to_string();
    let Status { args } = Status::parse_from(["status", "--kubeconfig", &kubeconfig]);
    let answer = status(&args);
    (answer.text, answer.code)
}

const NETWORK: &str = "
apiVersion: config.openshift.io/v1
kind: Network
spec:
  clusterNetwork: [{cidr: 10.244.0.0/16}]
  serviceNetwork: [10.96.0.0/12]
  networkType: Calico
";

#[test]
fn plan_before_the_installation_lists_all_objects() {
    let server = Server::bare();
    let began = Instant::now();
    let (text, code) = planned(&server, NETWORK);
    assert_eq!(code, 1, "{text}");
    assert!(text.contains("+ DaemonSet openshift-multus/multus\n"), "{text}");
    // The lists have a deadline of 30 s.
    assert!(began.elapsed().as_secs() < 25, "{:?}", began.elapsed());
}

#[test]
fn plan_lists_the_change_of_each_object() {
    let stage = Stage::start();
    // The cluster has no Deployment of the operator, so that the plan uses the default image of kube-proxy.
    let (text, code) = planned(&stage, NETWORK);
    assert_eq!(code, 1, "{text}");
    for line in [
        "+ DaemonSet openshift-multus/multus\n",
        "+ DaemonSet openshift-kube-proxy/openshift-kube-proxy\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
    // The command wrote nothing.
    assert!(stage.get(OPERATOR).is_none() && stage.get(MULTUS).is_none());

    let _operator = stage.operator();
    stage.configure("Calico");
    stage.there(KUBE_PROXY);
    stage.at_rest();
    // Everybody can set the label, and claim an owner of that kind.
    stage.apply(&json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": "forged", "namespace": "default", "labels": { "networkoperator.openshift.io/part": "multus" },
            "ownerReferences": [
                { "apiVersion": "operator.openshift.io/v1", "kind": "Network", "name": "cluster", "uid": "another" },
            ],
        },
    }));
    let operator = |spec: &str| {
        let config = "apiVersion: operator.openshift.io/v1\nkind: Network\nspec:\n  ";
        planned(&stage, &format!("{NETWORK}---\n{config}{spec}\n"))
    };
    let (text, code) = operator("deployKubeProxy: false");
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("- DaemonSet openshift-kube-proxy/openshift-kube-proxy\n"),
        "{text}"
    );
    assert!(!text.contains("+ ") && !text.contains("forged"), "{text}");
    let (text, code) = operator("additionalNetworks: [{name: a, type: Raw, rawCNIConfig: '{}'}]");
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("+ NetworkAttachmentDefinition default/a\n"),
        "{text}"
    );
    let (text, code) = operator("disableMultiNetwork: true");
    assert_eq!(
        (text.as_str(), code),
        (
            "Not applying unsafe configuration change: invalid configuration: [cannot change DisableMultiNetwork]. Use \
             'oc edit network.operator.openshift.io cluster' to undo the change.\n",
            1
        )
    );
}

#[test]
fn status_names_the_pending_workloads() {
    let stage = Stage::start();
    let (text, code) = stated(&stage);
    assert_eq!(code, 1, "{text}");
    assert!(text.starts_with("there is no operator configuration"), "{text}");
    let _operator = stage.operator();
    stage.configure("Calico");
    stage.there(KUBE_PROXY);
    stage.at_rest();
    let (text, code) = stated(&stage);
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("Available    False (Startup): The network is starting up\n"),
        "{text}"
    );
    assert!(text.contains("DaemonSet openshift-multus/multus"), "{text}");
    stage.roll_out_all();
    stage.condition("Available", "True : ");
    stage.condition("Progressing", "False : ");
    let (text, code) = stated(&stage);
    assert_eq!(code, 0, "{text}");
    assert!(
        text.contains("Available    True\n") && text.contains("Degraded     False\n"),
        "{text}"
    );
    stage.change(OPERATOR, &json!({ "spec": { "disableMultiNetwork": true } }));
    stage.wait_for("Degraded", OPERATOR, |object| {
        crate::stage::condition(object?, "Degraded")?
            .starts_with("True")
            .then_some(())
    });
    let (text, code) = stated(&stage);
    assert_eq!(code, 1, "{text}");
    assert!(
        text.contains("Degraded     True (InvalidOperatorConfig): "),
        "{text}"
    );
}
