//! Changes while the manager runs: selectors, labels, the range (kubemacpool §7, §11).

use axum::http::Method;
use serde_json::json;

use crate::fixture::{NAMESPACE, POD, RANGE, Stage};
use crate::manager::{Managing, range};
use crate::notices::wait_for_events;
use crate::objects::{Kind, MACHINES_WEBHOOK, Nic, PODS_WEBHOOK, addresses, machine, pod, pod_addresses};

/// The first address of a new virtual machine; empty if it gets none.
fn created(stage: &Stage, namespace: &str, name: &str) -> String {
    let vm = machine(name, &[Nic::masquerade("default")]);
    addresses(&stage.create(Kind::Machine, namespace, &vm)).remove(0)
}

/// Waits until a dry run of a creation gets such an address.
fn wait_for_address(stage: &Stage, namespace: &str, expected: impl Fn(&str) -> bool) {
    let vm = machine("probe", &[Nic::masquerade("default")]);
    stage.wait_until_called(Kind::Machine, namespace, &vm, |answer| {
        let macs = addresses(&answer.object);
        macs.first().is_some_and(|mac| expected(mac))
    });
}

// kubemacpool#29, kubemacpool#57, kubemacpool#66
#[test]
fn label_and_selector_changes_apply_to_next_request() {
    let stage = Stage::start();
    stage.namespace("plain", &[]);
    stage.namespace("ignored", &[(MACHINES_WEBHOOK, "ignore")]);
    stage.namespace(
        "allocated",
        &[(PODS_WEBHOOK, "allocate"), (MACHINES_WEBHOOK, "allocate")],
    );
    let manager = Managing::ready(&stage);
    wait_for_address(&stage, "plain", |mac| mac.starts_with("02:"));
    assert_eq!(created(&stage, "ignored", "vm"), "");
    assert_ne!(created(&stage, "allocated", "vm"), "");
    let networks = r#"[{"name":"net"}]"#;
    let pod_of = |namespace| pod_addresses(&stage.create(Kind::Pod, namespace, &pod("p", Some(networks))));
    assert_eq!(pod_of("plain"), [""]);
    stage.label("plain", PODS_WEBHOOK, Some("disable"));
    let other = pod("other", Some(networks));
    assert_eq!(pod_addresses(&stage.create(Kind::Pod, "plain", &other)), [""]);
    assert_ne!(pod_of("allocated"), [""]);

    stage.configure_as(manager.port, |configuration| {
        let expressions = &mut configuration["webhooks"][1]["namespaceSelector"]["matchExpressions"];
        expressions[2] = json!({ "key": MACHINES_WEBHOOK, "operator": "In", "values": ["allocate"] });
    });
    wait_for_address(&stage, "plain", str::is_empty);
    assert_ne!(created(&stage, "allocated", "another"), "");
    manager.wait("virtual machines to be opted in", |state| {
        let managed = |namespace| {
            state
                .managed
                .is_managed(kubemacpool::pool::Kind::Machine, namespace)
        };
        match (managed("plain"), managed("allocated")) {
            (Ok(false), Ok(true)) => Ok(()),
            other => Err(format!("{other:?}")),
        }
    });
    stage.label("plain", MACHINES_WEBHOOK, Some("allocate"));
    wait_for_address(&stage, "plain", |mac| mac.starts_with("02:"));
}

// kubemacpool#68
#[test]
fn changed_range_is_used_without_restart() {
    let stage = Stage::start();
    stage.namespace("vms", &[]);
    let _manager = Managing::ready(&stage);
    wait_for_address(&stage, "vms", |mac| mac.starts_with("02:"));
    let before = created(&stage, "vms", "before");
    for first in ["0a", "0e"] {
        stage.set_range(
            &format!("{first}:00:00:00:00:00").to_uppercase(),
            &format!("{first}:00:00:00:00:FF").to_uppercase(),
        );
        wait_for_address(&stage, "vms", |mac| {
            mac.starts_with(&format!("{first}:00:00:00:00:"))
        });
    }
    let vm = stage.get(Kind::Machine, "vms", "before").expect("it is there");
    assert_eq!(addresses(&vm), [before]);
}

// kubemacpool#69-71
#[test]
fn bad_range_is_reported_once_and_old_one_stays() {
    let stage = Stage::start();
    stage.namespace("vms", &[]);
    let mut own = pod(POD, None);
    own["metadata"]["labels"] = json!({ "app": "kubemacpool", "control-plane": "mac-controller-manager" });
    own["spec"]["securityContext"] =
        json!({ "runAsNonRoot": true, "runAsUser": 107, "seccompProfile": { "type": "RuntimeDefault" } });
    own["spec"]["containers"][0]["securityContext"] =
        json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
    stage.run_pod(NAMESPACE, &own);
    let _manager = Managing::ready(&stage);
    wait_for_address(&stage, "vms", |mac| mac.starts_with("02:"));

    let mut expected = Vec::new();
    let mut reported = |kind: &str, text: &str| {
        expected.push(format!("{kind} Pod/{POD} x1: {text}"));
        expected.sort();
        let expected: Vec<_> = expected.iter().map(String::as_str).collect();
        wait_for_events(&stage, NAMESPACE, &expected);
        wait_for_address(&stage, "vms", |mac| mac.starts_with("02:"));
    };
    let ignored = "Invalid MAC range in ConfigMap, ignoring new range values: ";
    stage.set_range("invalid-mac", "02:00:00:00:00:ff");
    reported(
        "Warning InvalidRange",
        &format!("{ignored}invalid RANGE_START \"invalid-mac\": address invalid-mac: invalid MAC address"),
    );
    stage.set_range("03:00:00:00:00:00", "06:00:00:00:00:00");
    reported(
        "Warning UpdateFailed",
        "Failed to apply new MAC ranges 03:00:00:00:00:00 - 06:00:00:00:00:00: invalid range start: invalid mac address. \
         Multicast addressing is not supported. Unicast addressing must be used. The first octet is 0X3",
    );
    let empty = json!({ "data": null });
    stage.patch(Kind::ConfigMap, NAMESPACE, RANGE, &empty).accepted();
    reported(
        "Warning InvalidRange",
        &format!("{ignored}RANGE_START not found in ConfigMap"),
    );
    stage.delete(Kind::ConfigMap, NAMESPACE, RANGE);
    // Restoring the current range changes nothing, without an event.
    stage.set_range("02:00:00:00:00:00", "02:FF:FF:FF:FF:FF");
    stage.set_range("0a:00:00:00:00:00", "0a:00:00:00:00:ff");
    wait_for_address(&stage, "vms", |mac| mac.starts_with("0a:"));
    let updated = "MAC addresses are handed out of 0a:00:00:00:00:00 - 0a:00:00:00:00:ff from now on";
    expected.push(format!("Normal RangeUpdated Pod/{POD} x1: {updated}"));
    let expected: Vec<_> = expected.iter().map(String::as_str).collect();
    wait_for_events(&stage, NAMESPACE, &expected);
}

// kubemacpool#10, kubemacpool#12
#[test]
fn released_address_is_reused_when_all_others_are_taken() {
    let stage = Stage::start();
    stage.namespace("vms", &[]);
    stage.set_range("02:00:00:00:00:10", "02:00:00:00:00:11");
    let manager = Managing::ready_as(&stage, |settings| {
        settings.range = range("02:00:00:00:00:10", "02:00:00:00:00:11");
    });
    wait_for_address(&stage, "vms", |mac| mac.starts_with("02:"));
    let mut given = [created(&stage, "vms", "one"), created(&stage, "vms", "two")];
    let third = machine("three", &[Nic::masquerade("default")]);
    assert_eq!(
        stage.refused(Kind::Machine, "vms", &third),
        "admission webhook \"mutatevirtualmachines.kubemacpool.io\" denied the request: Failed to create virtual machine \
         allocation error: Failed to allocate mac to the vm object: the range is full"
    );
    stage
        .send(
            Method::DELETE,
            &format!("{}/one", Kind::Machine.path("vms")),
            None,
        )
        .accepted();
    manager.wait_for_holders(&given[0], &[]);
    assert_eq!(created(&stage, "vms", "three"), given[0]);
    given.sort();
    assert_eq!(given, ["02:00:00:00:00:10", "02:00:00:00:00:11"]);
}
