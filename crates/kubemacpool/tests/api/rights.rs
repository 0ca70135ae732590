//! The shipped roles are sufficient for the manager (kubemacpool §17.1).

use std::collections::BTreeSet;

use cluster::wait;
use serde_json::json;

use crate::fixture::{ACCOUNT, DEADLINE, NAMESPACE, POD, Stage};
use crate::manager::Managing;
use crate::objects::{Kind, Nic, instance, machine, pod, running};

// kubemacpool#93
#[test]
fn manager_works_with_the_shipped_roles() {
    let stage = Stage::start();
    stage.install_shipped();
    stage.namespace("work", &[("mutatepods.kubemacpool.io", "allocate")]);
    let mark = stage.mark();
    let manager = Managing::ready(&stage);
    let networks = r#"[{"name":"br1"}]"#;
    stage.wait_until_called(Kind::Pod, "work", &pod("asked", Some(networks)), |answer| {
        answer.object.to_string().contains(r#"\"mac\""#)
    });

    // Cause every request and write.
    stage.create(Kind::Pod, "work", &pod("one", Some(networks)));
    let mut held = machine("held", &[Nic::masquerade("default")]);
    held["metadata"]["finalizers"] = json!(["k8s.v1.cni.cncf.io/kubeMacPool"]);
    stage.create(Kind::Machine, "work", &held);
    stage.delete(Kind::Machine, "work", "held");
    stage.wait_for("the finalizer to go", (Kind::Machine, "work", "held"), |found| {
        found.is_none().then_some(())
    });
    let owned = json!([{ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "none", "uid": "u" }]);
    let mut launcher = pod("launcher", Some(networks));
    launcher["metadata"]["ownerReferences"] = owned;
    stage.create(Kind::Pod, "work", &launcher);
    for name in ["left", "right"] {
        stage.create(Kind::Instance, "work", &instance(name, &[Nic::multus("br1")]));
        stage.report(
            Kind::Instance,
            "work",
            name,
            &running(&[("br1", "02:00:00:00:77:77")]),
        );
    }
    let reported = |namespace: &str, reason: &str| {
        wait::until(reason, DEADLINE, || {
            let events = stage.events(namespace);
            if events.iter().any(|event| event.contains(reason)) {
                Ok(())
            } else {
                Err(format!("{events:#?}"))
            }
        })
        .unwrap_or_else(|error| panic!("{error}"));
    };
    reported("work", "MACCollision");
    let mut own = pod(POD, None);
    own["metadata"]["labels"] = json!({ "app": "kubemacpool", "control-plane": "mac-controller-manager" });
    own["spec"]["securityContext"] = json!({
        "runAsNonRoot": true, "runAsUser": 107, "seccompProfile": { "type": "RuntimeDefault" },
    });
    own["spec"]["containers"][0]["securityContext"] =
        json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
    stage.run_pod(NAMESPACE, &own);
    stage.set_range("nonsense", "02:00:00:00:00:ff");
    reported(NAMESPACE, "InvalidRange");

    drop(manager);
    let all = stage.entries_since(mark);
    let its = all
        .iter()
        .filter(|entry| entry["impersonatedUser"]["username"] == ACCOUNT);
    let mut used = BTreeSet::new();
    for entry in its {
        assert_ne!(entry["responseStatus"]["code"], 403, "{entry:#}");
        let text = |field: &serde_json::Value| field.as_str().unwrap_or_default().to_owned();
        used.insert((text(&entry["objectRef"]["resource"]), text(&entry["verb"])));
    }
    // The manager must have used all its rights; those for Secrets belong to the other mode.
    for (resource, verb) in [
        ("pods", "watch"),
        ("namespaces", "watch"),
        ("virtualmachines", "watch"),
        ("virtualmachines", "get"),
        ("virtualmachines", "update"),
        ("virtualmachineinstances", "watch"),
        ("configmaps", "watch"),
        ("mutatingwebhookconfigurations", "watch"),
        ("events", "create"),
    ] {
        let right = (resource.to_owned(), verb.to_owned());
        assert!(used.contains(&right), "{verb} {resource}: {used:?}");
    }
    assert!(used.iter().all(|(resource, _)| resource != "secrets"), "{used:?}");
}
