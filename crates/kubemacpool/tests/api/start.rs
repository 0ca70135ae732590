//! State and readiness of a starting manager (kubemacpool §3.2, §3.3, §8).

use kubemacpool::pool::Draft;
use serde_json::json;

use crate::fixture::Stage;
use crate::manager::Managing;
use crate::objects::{CONFIGURATION, Kind, MACHINES_WEBHOOK, Nic, PODS_WEBHOOK, addresses, machine, pod};

const FIRST: &str = "02:00:00:00:00:01";
const SECOND: &str = "02:00:00:00:00:02";

fn networks(mac: &str) -> String {
    json!([{ "name": "net", "mac": mac }]).to_string()
}

fn with(name: &str, macs: &[&str]) -> serde_json::Value {
    let names = ["a", "b", "c"];
    let nics = macs
        .iter()
        .zip(names)
        .map(|(mac, name)| Nic::multus(name).with(mac));
    machine(name, &nics.collect::<Vec<_>>())
}

// kubemacpool#62, kubemacpool#63
#[test]
fn existing_addresses_are_known_and_duplicates_counted() {
    let stage = Stage::start();
    stage.namespace("managed", &[(PODS_WEBHOOK, "allocate")]);
    stage.namespace("unmanaged", &[(MACHINES_WEBHOOK, "ignore")]);
    for (namespace, mac) in [("managed", FIRST), ("unmanaged", SECOND)] {
        stage.create(Kind::Pod, namespace, &pod("p", Some(&networks(mac))));
    }
    let shared = "02-00-00-00-00-03";
    for name in ["one", "two"] {
        stage.create(Kind::Machine, "managed", &with(name, &[shared]));
    }
    stage.create(Kind::Machine, "unmanaged", &with("ignored", &[shared]));
    let mut malformed = with("malformed", &[]);
    malformed["spec"]["template"] = json!("text");
    stage.create(Kind::Machine, "managed", &malformed);
    let odd = with("odd", &["not-an-address", "02:00:00:00:00:04"]);
    stage.create(Kind::Machine, "managed", &odd);

    let manager = Managing::ready(&stage);
    assert_eq!(manager.holders(FIRST), ["pod/managed/p:net"]);
    // It is never allocated, but not counted as the pool's.
    assert_eq!(manager.holders(SECOND), ["pod/unmanaged/p:net"]);
    assert_eq!(manager.holders("02:00:00:00:00:04"), ["vm/managed/odd:b"]);
    let snapshot = manager.snapshot();
    assert_eq!(
        (
            snapshot.range.used,
            snapshot.range.reserved,
            snapshot.range.pending
        ),
        (3, 1, 0)
    );
    assert_eq!(snapshot.duplicates, 1);
    drop(manager);

    stage.send(
        axum::http::Method::DELETE,
        &format!("{}/{CONFIGURATION}", Kind::Webhooks.path("")),
        None,
    );
    stage.delete(Kind::Machine, "managed", "two");
    let manager = Managing::ready(&stage);
    assert_eq!(manager.snapshot().duplicates, 0);
    assert_eq!(
        manager.holders("02:00:00:00:00:03"),
        ["vm/managed/one:a", "vm/unmanaged/ignored:a"]
    );
}

// kubemacpool#13
#[test]
fn restarts_allocate_different_addresses() {
    let stage = Stage::start();
    let first = || {
        let manager = Managing::start(&stage);
        manager.wait("an address", |state| {
            let address = state.pool.allocate(&mut Draft::new(), "nic");
            address.map_err(|error| error.to_string())
        })
    };
    assert_ne!(first(), first());
}

// kubemacpool#64: what readiness is
#[test]
fn manager_waits_for_a_valid_webhook_configuration() {
    let stage = Stage::start();
    let manager = Managing::start(&stage);
    let unknown = |text: &str| {
        manager.wait(text, |state| match state.is_ready() {
            Err(error) if error.to_string() == text => Ok(()),
            other => Err(format!("{other:?}")),
        });
        assert!(!manager.is_ready());
    };
    unknown("webhook mutatepods.kubemacpool.io was not found on mutatingWebhookConfig kubemacpool-mutator");
    stage.configure_as(manager.port, |configuration| {
        configuration["webhooks"][0]["namespaceSelector"] = json!({});
    });
    unknown("no opt mode defined for webhook mutatepods.kubemacpool.io");
    // The label's value is configurable.
    stage.configure_as(manager.port, |configuration| {
        configuration["webhooks"][0]["namespaceSelector"]["matchExpressions"] =
            json!([{ "key": PODS_WEBHOOK, "operator": "In", "values": ["yes"] }]);
    });
    manager.wait_until_ready();
}

// kubemacpool#67
#[test]
fn kubevirt_installed_later_is_served() {
    let stage = Stage::without_kubevirt();
    stage.namespace("vms", &[]);
    let manager = Managing::ready(&stage);
    stage.define_kubevirt();
    let probe = machine("probe", &[Nic::masquerade("default")]);
    stage.wait_until_called(Kind::Machine, "vms", &probe, |answer| {
        answer.status.is_success() && addresses(&answer.object) != [""]
    });
    let created = stage.create(
        Kind::Machine,
        "vms",
        &machine("vm", &[Nic::masquerade("default")]),
    );
    let [mac] = &addresses(&created)[..] else {
        panic!("{created:#}")
    };
    manager.wait_until_known("vms", "vm", true);
    manager.wait_for_holders(mac, &["vm/vms/vm:default"]);
    stage.delete(Kind::Machine, "vms", "vm");
    manager.wait_for_holders(mac, &[]);
}
