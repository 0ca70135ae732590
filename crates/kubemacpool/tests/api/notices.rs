//! Events about collisions and about the range.

use cni::mac::Mac;
use kubemacpool::{
    collisions::{Collisions, Facts, Migration, Notice, Pod, Reference},
    notices::{Notices, RangeNotice},
};
use serde_json::{Value, json};

use crate::{
    collisions::Running,
    fixture::{DEADLINE, NAMESPACE, POD, Stage, Task},
    objects::{Kind, Nic, addresses, instance, machine, pod},
};

/// Publishes enqueued notices.
fn publisher(stage: &Stage, notices: &Notices) -> Task {
    let notices = notices.clone();
    stage.task(move |client, shutdown| async move {
        tokio::select! {
            () = notices.publish_all(client, NAMESPACE) => {}
            () = shutdown.wait() => {}
        }
    })
}

/// Waits until a namespace has exactly these events, in any order.
pub(crate) fn wait_for_events(stage: &Stage, namespace: &str, expected: &[&str]) {
    let mut expected: Vec<_> = expected.iter().map(ToString::to_string).collect();
    expected.sort();
    cluster::wait::until(&format!("{expected:?}"), DEADLINE, || {
        let mut events = stage.events(namespace);
        events.sort();
        if events == expected {
            Ok(())
        } else {
            Err(format!("{events:#?}"))
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
}

/// A pod of the manager that is not running yet.
fn managers_pod(stage: &Stage, name: &str) {
    let mut pod = pod(name, None);
    pod["metadata"]["labels"] = json!({ "app": "kubemacpool", "control-plane": "mac-controller-manager" });
    // Pod security of the namespace.
    pod["spec"]["securityContext"] =
        json!({ "runAsNonRoot": true, "runAsUser": 107, "seccompProfile": { "type": "RuntimeDefault" } });
    pod["spec"]["containers"][0]["securityContext"] =
        json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
    stage.create(Kind::Pod, NAMESPACE, &pod);
}

fn uid(object: &Value) -> String {
    object["metadata"]["uid"].as_str().expect("a UID").to_owned()
}

// kubemacpool#73, kubemacpool#79: the events
#[test]
fn collision_event_is_on_every_party_and_counts_repeats() {
    let stage = Stage::start();
    stage.namespace("a", &[]);
    stage.namespace("b", &[]);
    let machine = stage.create(Kind::Instance, "a", &instance("v1", &[Nic::multus("br1")]));
    let other = stage.create(Kind::Pod, "b", &pod("p1", None));
    let notices = Notices::new();
    let _task = publisher(&stage, &notices);

    let mac = Mac::parse("02:00:00:00:00:50").expect("an address");
    let seen = || -> Vec<Notice> {
        let mut collisions = Collisions::new();
        collisions.begin();
        let facts = Facts::of_instance(&uid(&machine), "Running", [mac], Migration::default());
        collisions.set(&Reference::instance("a", "v1"), facts, &|_, _| true);
        let uid = uid(&other);
        let facts = Pod {
            uid: &uid,
            phase: "Running",
            launcher: false,
            attached: true,
        };
        collisions.set(
            &Reference::pod("b", "p1"),
            Facts::of_pod(&facts, [mac]),
            &|_, _| true,
        )
    };
    let message = "MAC 02:00:00:00:00:50: Collision between pod/b/p1, vmi/a/v1";
    for count in 1..=2 {
        notices.collisions(seen());
        wait_for_events(
            &stage,
            "a",
            &[&format!(
                "Warning MACCollision VirtualMachineInstance/v1 x{count}: {message}"
            )],
        );
        wait_for_events(
            &stage,
            "b",
            &[&format!("Warning MACCollision Pod/p1 x{count}: {message}")],
        );
    }
    for (namespace, object, version) in [("a", &machine, "kubevirt.io/v1"), ("b", &other, "v1")] {
        let event = &stage.list(Kind::Event, namespace)[0];
        assert_eq!(event["source"]["component"], "kubemacpool", "{event:#}");
        assert_eq!(event["involvedObject"]["apiVersion"], version, "{event:#}");
        assert_eq!(event["involvedObject"]["uid"], uid(object), "{event:#}");
    }
}

#[test]
fn range_events_are_on_the_running_manager_pod() {
    let stage = Stage::start();
    // The first one is pending.
    managers_pod(&stage, "kubemacpool-mac-controller-manager");
    managers_pod(&stage, POD);
    stage.report(Kind::Pod, NAMESPACE, POD, &json!({ "phase": "Running" }));
    let notices = Notices::new();
    let _task = publisher(&stage, &notices);
    let (start, end) = (
        Mac::from_number(0x0a00_0000_0000),
        Mac::from_number(0x0a00_0000_00ff),
    );
    notices.range(RangeNotice::Updated { start, end });
    notices.range(RangeNotice::NearlyFull);
    let error = "RANGE_START not found in ConfigMap".to_owned();
    notices.range(RangeNotice::Invalid { error });
    wait_for_events(
        &stage,
        NAMESPACE,
        &[
            &format!(
                "Normal RangeUpdated Pod/{POD} x1: \
                 MAC addresses are handed out of 0a:00:00:00:00:00 - 0a:00:00:00:00:ff from now on"
            ),
            &format!(
                "Warning InvalidRange Pod/{POD} x1: Invalid MAC range in ConfigMap, ignoring new range values: \
                 RANGE_START not found in ConfigMap"
            ),
            &format!(
                "Warning RangeNearlyFull Pod/{POD} x1: 90% or more of the MAC range is taken: \
                 virtual machines and pods are refused when it is full. Widen the range."
            ),
        ],
    );
    let components = stage.list(Kind::Event, NAMESPACE).into_iter().map(|event| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&event["reason"]), text(&event["source"]["component"]))
    });
    let mut components: Vec<_> = components.collect();
    components.sort();
    let expected = [
        ("InvalidRange", "configmap-controller"),
        ("RangeNearlyFull", "kubemacpool"),
        ("RangeUpdated", "configmap-controller"),
    ];
    assert_eq!(
        components,
        expected.map(|(reason, component)| (reason.to_owned(), component.to_owned()))
    );
}

#[test]
fn nearly_full_range_has_one_event_and_metrics() {
    let stage = Stage::start();
    managers_pod(&stage, POD);
    stage.namespace("vms", &[]);
    stage.namespace("out", &[("mutatevirtualmachines.kubemacpool.io", "ignore")]);
    let manager = Running::with_range(&stage, ["02:00:00:00:00:10", "02:00:00:00:00:19"]);
    let nic = |mac: &str| Nic::masquerade("default").with(mac);
    let probe = machine("probe", &[Nic::masquerade("default")]);
    stage.wait_until_called(Kind::Machine, "vms", &probe, |answer| {
        answer.status.is_success() && addresses(&answer.object) != [""]
    });
    // One unmanaged, one outside of the range, and eight allocated.
    stage.create(Kind::Machine, "out", &machine("vm", &[nic("02:00:00:00:00:13")]));
    stage.create(
        Kind::Machine,
        "vms",
        &machine("outside", &[nic("02:00:00:00:01:13")]),
    );
    manager.wait_for_series(
        "kmp_range",
        &[
            "kmp_range_addresses 10",
            "kmp_range_used 0",
            "kmp_range_reserved 1",
            "kmp_range_pending 0",
        ],
    );
    let create = |number: u8| {
        let vm = machine(&format!("vm{number}"), &[Nic::masquerade("default")]);
        stage.create(Kind::Machine, "vms", &vm);
    };
    (1..=7).for_each(create);
    manager.wait_for_series("kmp_range_used", &["kmp_range_used 7"]);
    assert_eq!(stage.events(NAMESPACE), [""; 0]);
    create(8);
    manager.wait_for_series("kmp_range_used", &["kmp_range_used 8"]);
    let full = format!(
        "Warning RangeNearlyFull Pod/{POD} x1: 90% or more of the MAC range is taken: \
         virtual machines and pods are refused when it is full. Widen the range."
    );
    wait_for_events(&stage, NAMESPACE, &[&full]);
    create(9);
    stage.set_range("02:00:00:00:00:10", "02:00:00:00:00:FF");
    let updated = format!(
        "Normal RangeUpdated Pod/{POD} x1: \
         MAC addresses are handed out of 02:00:00:00:00:10 - 02:00:00:00:00:ff from now on"
    );
    wait_for_events(&stage, NAMESPACE, &[&full, &updated]);
    manager.wait_for_series("kmp_range_addresses", &["kmp_range_addresses 240"]);
    // Dry runs, then ten virtual machines.
    let answered = manager
        .series(r#"controller_runtime_webhook_requests_total{webhook="/mutate-virtualmachines",code="200"}"#);
    assert!(answered >= 10, "{answered}");
}
