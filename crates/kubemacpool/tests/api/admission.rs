//! Creation of pods and virtual machines by users (kubemacpool §9.2, §10.2, §12.1).

use std::collections::BTreeSet;

use kubemacpool::settings::Settings;
use serde_json::{Value, json};

use crate::fixture::{NAMESPACE, Stage};
use crate::manager::{Managing, range};
use crate::objects::{Kind, MACHINES_WEBHOOK, Nic, PODS_WEBHOOK, addresses, machine, pod, pod_addresses};

const POD_DENIED: &str = "admission webhook \"mutatepods.kubemacpool.io\" denied the request: ";
/// Prefix of the error for a refused virtual machine.
pub(crate) const VM_DENIED: &str =
    "admission webhook \"mutatevirtualmachines.kubemacpool.io\" denied the request: ";

/// The range of the manifests.
pub(crate) const WIDE: (&str, &str) = ("02:00:00:00:00:00", "02:ff:ff:ff:ff:ff");

/// A manager with this range and configured webhooks.
pub(crate) fn manager(stage: &Stage, range: (&str, &str)) -> Managing {
    manager_as(stage, range, |_| ())
}

fn manager_as(stage: &Stage, (first, last): (&str, &str), change: impl FnOnce(&mut Settings)) -> Managing {
    stage.set_range(first, last);
    let manager = Managing::ready_as(stage, |settings| {
        settings.range = range(first, last);
        change(settings);
    });
    let probe = machine("probe", &[Nic::masquerade("default")]);
    stage.wait_until_called(Kind::Machine, NAMESPACE, &probe, |answer| {
        answer.status.is_success() && addresses(&answer.object) != [""]
    });
    manager
}

/// Whether an address is held, stored or pending.
fn holds(manager: &Managing, mac: &str) -> bool {
    !manager.holders(mac).is_empty()
}

fn networks(pod: &Value) -> &str {
    pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"]
        .as_str()
        .expect("networks")
}

fn of_the_pool(mac: &str) -> bool {
    let ours = mac.strip_prefix("02:").is_some_and(|rest| rest.len() == 14);
    ours && mac.to_lowercase() == mac
}

// kubemacpool#50-51, kubemacpool#53, kubemacpool#57, kubemacpool#59, kubemacpool#61
#[test]
fn pods_in_opted_in_namespaces_get_addresses() {
    let stage = Stage::start();
    stage.namespace("in", &[(PODS_WEBHOOK, "allocate")]);
    stage.namespace("disabled", &[(PODS_WEBHOOK, "disable")]);
    stage.namespace("out", &[]);
    let manager = manager(&stage, WIDE);
    let asks = r#"[{ "name": "ovs-conf"}]"#;

    let plain = stage.create(Kind::Pod, "in", &pod("plain", Some(asks)));
    let [mac] = &pod_addresses(&plain)[..] else {
        panic!("one address: {plain:#}")
    };
    assert!(of_the_pool(mac), "{mac}");
    assert_eq!(
        networks(&plain),
        format!(r#"[{{"name":"ovs-conf","namespace":"in","mac":"{mac}","cni-args":null}}]"#)
    );
    assert!(holds(&manager, mac));

    let trial = stage
        .create_dry(Kind::Pod, "in", &pod("trial", Some(asks)))
        .accepted();
    let [tried] = &pod_addresses(&trial)[..] else {
        panic!("one address: {trial:#}")
    };
    assert!(of_the_pool(tried) && tried != mac, "{tried}");
    assert!(!holds(&manager, tried), "nothing is held for a trial");

    let claim = r#"[{"name":"n","namespace":"in","mac":"0A:00:00:00:00:01","cni-args":null,"ipam-claim-reference":"c"}]"#;
    let with_claim = stage.create(Kind::Pod, "in", &pod("claim", Some(claim)));
    assert_eq!(networks(&with_claim), claim, "what is unknown survives");
    assert!(holds(&manager, "0a:00:00:00:00:01"));

    let asks_more = r#"[{"name":"a","ips":["10.10.0.1","fd00::1/64"],"mac":"02-00-00-00-AA-01"},
        {"namespace":"other","name":"b","interface":"net7","mac":"0200.0000.aa02"},{"name":"c","ips":["10.10.0.2"]}]"#;
    let several = stage.create(Kind::Pod, "in", &pod("several", Some(asks_more)));
    let given = pod_addresses(&several);
    let third = given.get(2).expect("three addresses");
    assert!(of_the_pool(third), "{third}");
    let expected = concat!(
        r#"[{"name":"a","namespace":"in","ips":["10.10.0.1","fd00::1/64"],"mac":"02-00-00-00-AA-01","cni-args":null},"#,
        r#"{"name":"b","namespace":"other","mac":"0200.0000.aa02","interface":"net7","cni-args":null},"#,
        r#"{"name":"c","namespace":"in","ips":["10.10.0.2"],"mac":"THIRD","cni-args":null}]"#
    );
    assert_eq!(networks(&several), expected.replace("THIRD", third));
    for mac in ["02:00:00:00:aa:01", "02:00:00:00:aa:02", third] {
        assert!(holds(&manager, mac), "{mac}");
    }

    for (namespace, networks_asked) in [("disabled", asks), ("out", asks), ("in", "net1,ns/net2@eth5")] {
        let pod = pod("untouched", Some(networks_asked));
        let untouched = stage.create(Kind::Pod, namespace, &pod);
        assert_eq!(networks(&untouched), networks_asked, "{namespace}");
    }
    let without = stage.create(Kind::Pod, "in", &pod("without", None));
    assert_eq!(without["metadata"]["annotations"], Value::Null);
}

// kubemacpool#52, kubemacpool#53
#[test]
fn pods_are_refused_with_upstream_texts() {
    let stage = Stage::start();
    stage.namespace("in", &[(PODS_WEBHOOK, "allocate")]);
    let _manager = manager(&stage, ("02:00:00:00:00:10", "02:00:00:00:00:11"));
    let refused = |networks| stage.refused(Kind::Pod, "in", &pod("refused", Some(networks)));

    assert_eq!(
        refused(""),
        format!(
            "{POD_DENIED}parsePodNetworkAnnotation: pod annotation not having \"network\" as key, refer Multus \
             README.md for the usage guide"
        )
    );
    let text = refused(r#"[{"name":"n","ips":"10.10.0.1"}]"#);
    let format = "parsePodNetworkAnnotation: failed to parse pod Network Attachment Selection Annotation JSON format: ";
    assert!(text.starts_with(&format!("{POD_DENIED}{format}")), "{text}");
    assert_eq!(
        refused(r#"[{"name":"n","mac":"xx"}]"#),
        format!("{POD_DENIED}address xx: invalid MAC address")
    );
    let three = r#"[{"name":"a"},{"name":"b"},{"name":"c"}]"#;
    assert_eq!(refused(three), format!("{POD_DENIED}the range is full"));
    // The refused one holds nothing: both addresses are free.
    let two = r#"[{"name":"a"},{"name":"b"}]"#;
    let both = stage.create(Kind::Pod, "in", &pod("both", Some(two)));
    let found: BTreeSet<_> = pod_addresses(&both).into_iter().collect();
    let expected = ["02:00:00:00:00:10", "02:00:00:00:00:11"].map(str::to_owned);
    assert_eq!(found, expected.into());
}

// kubemacpool#16-18, kubemacpool#24-26, kubemacpool#28
#[test]
fn virtual_machines_get_addresses() {
    let stage = Stage::start();
    stage.namespace("vms", &[]);
    let manager = manager(&stage, WIDE);
    let stamp = "/metadata/annotations/kubemacpool.io~1transaction-timestamp";

    let nics = [
        Nic::masquerade("default"),
        Nic::multus("br1"),
        Nic::unsupported("left"),
    ];
    let mut asked = machine("vm", &nics);
    asked["spec"]["template"]["spec"]["domain"]["devices"]["disks"] =
        json!([{ "name": "d", "io": "native-new" }]);
    let vm = stage.create(Kind::Machine, "vms", &asked);
    let [first, second, third] = &addresses(&vm)[..] else {
        panic!("three interfaces: {vm:#}")
    };
    assert!(
        of_the_pool(first) && of_the_pool(second) && first != second,
        "{vm:#}"
    );
    assert_eq!(third, "", "not one that the pool takes care of");
    assert!(holds(&manager, first) && holds(&manager, second));
    let disks = |vm: &Value| vm["spec"]["template"]["spec"]["domain"]["devices"]["disks"].clone();
    assert_eq!(disks(&vm), json!([{ "name": "d", "io": "native-new" }]));
    let before = vm.pointer(stamp).cloned().expect("a timestamp");

    let mut annotated = machine("annotated", &[]);
    annotated["metadata"]["annotations"] = json!({ "mine": "kept" });
    let annotated = stage.create(Kind::Machine, "vms", &annotated);
    assert_eq!(annotated["metadata"]["annotations"]["mine"], "kept");
    assert!(annotated.pointer(stamp).is_some(), "{annotated:#}");

    // The original manifest without addresses, applied again.
    asked["metadata"]["resourceVersion"] = vm["metadata"]["resourceVersion"].clone();
    asked["metadata"]["labels"] = json!({ "a": "b" });
    let again = stage.replace(Kind::Machine, "vms", &asked).accepted();
    let now = again.pointer(stamp).expect("it stays");
    assert_ne!(now, &before, "a change has a time of its own");
    assert_eq!(disks(&again), disks(&vm));
    let trial = machine("trial", &[Nic::masquerade("default")]);
    let trial = stage.create_dry(Kind::Machine, "vms", &trial).accepted();
    let [tried] = &addresses(&trial)[..] else {
        panic!("one interface: {trial:#}")
    };
    assert!(of_the_pool(tried) && !holds(&manager, tried), "{tried}");
    assert!(stage.get(Kind::Machine, "vms", "trial").is_none());
}

// kubemacpool#29
#[test]
fn namespaces_opt_out_or_in() {
    let stage = Stage::start();
    stage.namespace("plain", &[]);
    stage.namespace("ignored", &[(MACHINES_WEBHOOK, "ignore")]);
    stage.namespace("chosen", &[(MACHINES_WEBHOOK, "allocate")]);
    let manager = manager(&stage, WIDE);
    let vm = machine("vm", &[Nic::masquerade("default")]);
    let handed_out = |namespace| {
        let created = stage.create_dry(Kind::Machine, namespace, &vm).accepted();
        let given = of_the_pool(&addresses(&created)[0]);
        assert_eq!(
            given,
            created["metadata"]["annotations"].is_object(),
            "{created:#}"
        );
        given
    };
    assert_eq!(
        ["plain", "ignored", "chosen"].map(handed_out),
        [true, false, true]
    );

    stage.configure_as(manager.port, |configuration| {
        configuration["webhooks"][1]["namespaceSelector"]["matchExpressions"][2] =
            json!({ "key": MACHINES_WEBHOOK, "operator": "In", "values": ["allocate"] });
    });
    stage.wait_until_called(Kind::Machine, "plain", &vm, |answer| {
        addresses(&answer.object) == [""]
    });
    assert_eq!(
        ["plain", "ignored", "chosen"].map(handed_out),
        [false, false, true]
    );
}

// kubemacpool#31, kubemacpool#38
#[test]
fn addresses_survive_a_manifest_without_them() {
    let stage = Stage::start();
    stage.namespace("vms", &[]);
    let _manager = manager(&stage, WIDE);
    let names = ["a", "b", "c", "d", "e"];
    let nics: Vec<_> = names.into_iter().map(Nic::multus).collect();
    let manifest = machine("vm", &nics);
    let created = stage.create(Kind::Machine, "vms", &manifest);
    let given = addresses(&created);
    assert_eq!(given.iter().collect::<BTreeSet<_>>().len(), 5, "{given:?}");

    let mut again = manifest.clone();
    again["metadata"]["resourceVersion"] = created["metadata"]["resourceVersion"].clone();
    let again = stage.replace(Kind::Machine, "vms", &again).accepted();
    assert_eq!(addresses(&again), given);

    let stamp = |vm: &Value| vm["metadata"]["annotations"]["kubemacpool.io/transaction-timestamp"].clone();
    assert!(stamp(&again).is_string(), "{again:#}");
    let finalizer = json!({ "metadata": { "finalizers": ["example.org/held"] } });
    let held = stage.patch(Kind::Machine, "vms", "vm", &finalizer).accepted();
    assert_eq!(
        stamp(&held),
        stamp(&again),
        "nothing of the machine itself changed"
    );
    let owner = json!({ "apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "1" });
    let owner = json!({ "metadata": { "ownerReferences": [owner] } });
    let owned = stage.patch(Kind::Machine, "vms", "vm", &owner).accepted();
    assert_eq!(stamp(&owned), stamp(&again));
    let status = stage.report(Kind::Machine, "vms", "vm", &json!({ "ready": true }));
    assert_eq!(stamp(&status), stamp(&again));
    let label = json!({ "metadata": { "labels": { "a": "b" }, "finalizers": null } });
    let labelled = stage.patch(Kind::Machine, "vms", "vm", &label).accepted();
    assert_ne!(stamp(&labelled), stamp(&held));
    assert_eq!(addresses(&labelled), given);
}

// kubemacpool#10, kubemacpool#20-23
#[test]
fn virtual_machines_are_refused_with_upstream_texts() {
    let stage = Stage::start();
    stage.namespace("vms", &[]);
    stage.namespace("others", &[]);
    let manager = manager(&stage, ("02:00:00:00:00:10", "02:00:00:00:00:11"));
    let create = format!("{VM_DENIED}Failed to create virtual machine allocation error: ");
    let mac = "02:00:00:00:ff:ff";
    let refused = |nics: &[Nic]| stage.refused(Kind::Machine, "vms", &machine("refused", nics));
    let failed = |text: &str| format!("{create}Failed to allocate mac to the vm object: {text}");

    let inside = "02:00:00:00:00:10";
    for (one, other) in [(mac, mac), (mac, "02-00-00-00-FF-FF"), (inside, inside)] {
        let twice = refused(&[Nic::multus("br1").with(one), Nic::multus("br2").with(other)]);
        let expected = format!("duplicate MAC address {one} found on interfaces: br1 and br2");
        assert_eq!(twice, failed(&expected), "{other}");
    }
    assert_eq!(
        refused(&[Nic::multus("br1").with("xx")]),
        failed("invalid MAC address format for interface br1: xx: address xx: invalid MAC address")
    );
    assert_eq!(
        refused(&[Nic::multus("br1"), Nic::multus("br1")]),
        failed("Failed to mutate virtual machine: every interface must have a unique name")
    );
    assert!(
        !holds(&manager, mac) && !holds(&manager, inside),
        "what is refused holds nothing"
    );

    let first = stage.create(
        Kind::Machine,
        "vms",
        &machine("vm1", &[Nic::multus("br1").with(mac)]),
    );
    assert_eq!(addresses(&first), [mac]);
    let second = machine("vm2", &[Nic::multus("br1").with(mac)]);
    let second = stage.try_create(Kind::Machine, "others", &second);
    assert_eq!(
        second.warnings,
        [format!("MAC {mac} is already used by vm/vms/vm1, interface br1")]
    );
    second.accepted();
    let holders: Vec<_> = manager
        .holders(mac)
        .iter()
        .map(|holder| holder.trim_end_matches('?').to_owned())
        .collect();
    assert_eq!(holders, ["vm/vms/vm1:br1", "vm/others/vm2:br1"], "in their order");

    for name in ["one", "two"] {
        stage.create(
            Kind::Machine,
            "vms",
            &machine(name, &[Nic::masquerade("default")]),
        );
    }
    assert_eq!(
        refused(&[Nic::masquerade("default")]),
        failed("the range is full")
    );
    let stored = stage.get(Kind::Machine, "vms", "one").expect("it is there");
    let mut grown = machine("one", &[Nic::masquerade("default"), Nic::multus("br1")]);
    grown["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"].clone();
    let update = format!("{VM_DENIED}Failed to update virtual machine allocation error: ");
    let text = stage.replace(Kind::Machine, "vms", &grown).refused();
    assert_eq!(text, format!("{update}the range is full"));
    let mut same = machine("one", &[Nic::multus("a"), Nic::multus("a")]);
    same["metadata"]["resourceVersion"] = stored["metadata"]["resourceVersion"].clone();
    let text = stage.replace(Kind::Machine, "vms", &same).refused();
    let unique = "Failed to mutate virtual machine: every interface must have a unique name";
    assert_eq!(text, format!("{update}{unique}"));

    let mut empty = machine("empty", &[]);
    empty["spec"]["template"] = Value::Null;
    let empty = stage.create(Kind::Machine, "vms", &empty);
    assert_eq!(empty["metadata"]["annotations"], Value::Null, "left alone");
}

#[test]
fn reject_duplicates_refuses_used_address() {
    let stage = Stage::start();
    stage.namespace("vms", &[]);
    stage.namespace("in", &[(PODS_WEBHOOK, "allocate")]);
    let _manager = manager_as(&stage, WIDE, |settings| settings.reject_duplicates = true);
    let mac = "0a:00:00:00:00:01";
    let vm = |name| machine(name, &[Nic::multus("br1").with(mac)]);
    stage.create(Kind::Machine, "vms", &vm("first"));
    let used = format!(
        "failed to allocate requested mac address: MAC {mac} is already used by vm/vms/first, interface br1"
    );
    assert_eq!(
        stage.refused(Kind::Machine, "vms", &vm("second")),
        format!(
            "{VM_DENIED}Failed to create virtual machine allocation error: Failed to allocate mac to the vm object: {used}"
        )
    );
    let networks = format!(r#"[{{"name":"n","mac":"{mac}"}}]"#);
    assert_eq!(
        stage.refused(Kind::Pod, "in", &pod("third", Some(&networks))),
        format!("{POD_DENIED}{used}")
    );
}

// kubemacpool#30
#[test]
fn create_of_taken_name_costs_no_address() {
    let stage = Stage::start();
    stage.namespace("vms", &[]);
    let manager = manager(&stage, ("02:00:00:00:00:10", "02:00:00:00:00:11"));
    let vm = machine("vm", &[Nic::masquerade("default")]);
    let given = addresses(&stage.create(Kind::Machine, "vms", &vm));
    manager.wait_until_known("vms", "vm", true);
    for _ in 0..3 {
        let text = stage.refused(Kind::Machine, "vms", &vm);
        assert_eq!(text, "virtualmachines.kubevirt.io \"vm\" already exists");
    }
    let other = machine("other", &[Nic::masquerade("default")]);
    let other = addresses(&stage.create(Kind::Machine, "vms", &other));
    assert_ne!(other, given);
}

// kubemacpool#58
#[test]
fn pods_outside_platform_namespaces_need_the_manager() {
    let stage = Stage::start();
    stage.namespace("in", &[(PODS_WEBHOOK, "allocate")]);
    stage.namespace("zero", &[(PODS_WEBHOOK, "allocate"), ("runlevel", "0")]);
    stage.namespace(
        "level",
        &[(PODS_WEBHOOK, "allocate"), ("openshift.io/run-level", "0")],
    );
    stage.namespace("out", &[]);
    let manager = manager(&stage, WIDE);
    stage.create(Kind::Pod, "in", &pod("before", None));
    drop(manager);
    let text = stage.refused(Kind::Pod, "in", &pod("after", None));
    assert!(
        text.contains("failed calling webhook \"mutatepods.kubemacpool.io\""),
        "{text}"
    );
    for namespace in ["zero", "level", "out"] {
        stage.create(Kind::Pod, namespace, &pod("after", None));
    }
}
