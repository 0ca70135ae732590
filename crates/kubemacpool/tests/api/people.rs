//! `weft macpool` against a cluster.

use clap::Parser as _;
use kube_kit::connection::Answer;
use kubemacpool::cli::{Args, answer};
use serde_json::json;

use crate::fixture::Stage;
use crate::objects::{Kind, MACHINES_WEBHOOK, Nic, PODS_WEBHOOK, instance, machine, pod, running};

#[derive(Debug, clap::Parser)]
struct Program {
    #[command(flatten)]
    args: Args,
}

fn run(stage: &Stage, arguments: &[&str]) -> Answer {
    let kubeconfig = stage.kubeconfig().display().to_string();
    let whole = ["macpool"].iter().chain(arguments).copied();
    let program = Program::try_parse_from(whole.chain(["--kubeconfig", &kubeconfig]));
    answer(program.expect("arguments").args)
}

fn said(code: u8, text: &str, remarks: &str) -> Answer {
    Answer {
        text: text.to_owned(),
        remarks: remarks.to_owned(),
        code,
    }
}

#[test]
fn who_and_usage_read_the_cluster() {
    let stage = Stage::start();
    stage.configure(1);
    stage.set_range("02:00:00:00:10:00", "02:00:00:00:10:0f");
    stage.namespace("lab", &[(PODS_WEBHOOK, "allocate"), (MACHINES_WEBHOOK, "ignore")]);
    stage.namespace("other", &[]);
    let mac = "02:00:00:00:10:01";
    // No server listens on the webhooks' port, so the objects are created in namespaces that they ignore.
    stage.create(
        Kind::Machine,
        "lab",
        &machine("vm", &[Nic::multus("blue").with(mac)]),
    );
    stage.create(Kind::Instance, "lab", &instance("vm", &[Nic::multus("blue")]));
    stage.report(Kind::Instance, "lab", "vm", &running(&[("blue", mac)]));
    let networks = json!([{ "name": "blue", "mac": mac }]).to_string();
    stage.run_pod("other", &pod("p", Some(&networks)));

    let text = "\
02:00:00:00:10:01 is held by 2 objects; it is in the pool's range 02:00:00:00:10:00 - 02:00:00:00:10:0f

OBJECT       INTERFACE  STANDING
vm/lab/vm    blue       not managed; never handed out
pod/other/p  blue       not managed; never handed out
vmi/lab/vm   blue       running instance
";
    assert_eq!(run(&stage, &["who", "0200.0000.1001"]), said(0, text, ""));
    let unused =
        "no object has 02:00:00:00:10:02; it is in the pool's range 02:00:00:00:10:00 - 02:00:00:00:10:0f\n";
    assert_eq!(run(&stage, &["who", "02:00:00:00:10:02"]), said(1, unused, ""));

    let usage = run(&stage, &["usage"]);
    let expected = "\
range     02:00:00:00:10:00 - 02:00:00:00:10:0f, of the pool in kubemacpool-system
size      16  100.0 %
used       0    0.0 %  by objects of managed namespaces
reserved   1    6.2 %  by objects of other namespaces
free      15   93.7 %

NAMESPACE  OF MACHINES  OF PODS
lab        1            0
other      0            1

HELD TWICE         OBJECTS
02:00:00:00:10:01  2
`weft macpool who MAC` names them.
";
    assert_eq!(usage, said(0, expected, ""));
    stage.label("lab", MACHINES_WEBHOOK, None);
    let managed = run(&stage, &["usage"]).text;
    assert!(managed.contains("\nused       1    6.2 %"), "{managed}");
}

#[test]
fn missing_parts_are_reported_with_advice() {
    let stage = Stage::without_kubevirt();
    let networks = json!([{ "name": "blue", "mac": "02:00:00:00:10:01" }]).to_string();
    stage.create(Kind::Pod, "default", &pod("p", Some(&networks)));
    let who = run(&stage, &["who", "02:00:00:00:10:01"]);
    assert!(
        who.text.contains("\npod/default/p  blue       not managed"),
        "{who:#?}"
    );
    assert_eq!(
        who.remarks,
        "note: KubeVirt is not installed in this cluster: only pods were checked\n"
    );
    stage.set_range("02:00:00:00:10:00", "zz");
    let bad = run(&stage, &["usage"]);
    let says = "error: ConfigMap kubemacpool-system/kubemacpool-mac-range-config has no valid range: RANGE_END: address zz: \
                invalid MAC address\nCorrect its keys RANGE_START and RANGE_END";
    assert!(bad.code == 2 && bad.remarks.starts_with(says), "{bad:#?}");
    stage.delete(
        Kind::ConfigMap,
        "kubemacpool-system",
        "kubemacpool-mac-range-config",
    );
    let missing = run(&stage, &["usage", "--namespace", "kubemacpool-system"]);
    let says = "error: there is no MAC pool in namespace kubemacpool-system: no ConfigMap \
                kubemacpool-mac-range-config\nInstall it by `spec: {kubeMacPool: {}}` in the NetworkAddonsConfig";
    assert!(
        missing.code == 2 && missing.remarks.starts_with(says),
        "{missing:#?}"
    );
    let unmanaged = run(&stage, &["who", "02:00:00:00:10:01"]);
    assert_eq!(unmanaged.code, 0);
    assert!(
        unmanaged
            .text
            .starts_with("02:00:00:00:10:01 is held by one object\n"),
        "{unmanaged:#?}"
    );
    assert!(
        unmanaged
            .remarks
            .contains("note: there is no MAC pool in this cluster"),
        "{unmanaged:#?}"
    );
}
