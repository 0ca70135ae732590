//! The original design of 2018 and 2019: `NodeNetworkState.spec` (nmstate §3.2-3 to 6, §3.2-11).

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use std::time::Duration;

use axum::http::{Method, StatusCode};
use cluster::wait;
use serde_json::{Value, json};
use weft_nmstate::engine::{Engine, Request};
use weft_nmstate::handler::{Settings, Shared};
use weft_nmstate::legacy::node_state;

use crate::fixture::{self, DEADLINE, Kind, Stage, Task};
use crate::host::{self, Host};

const STATES: &str = "/apis/nmstate.io/v1/nodenetworkstates";

/// Enforces the desired state of a node's object, and checks for drift all the time.
fn enforcer(stage: &Stage, node: &str, host: &Host) -> Task {
    let settings = Settings {
        resync: Duration::from_millis(100),
        ..fixture::settings()
    };
    enforcer_with(stage, node, host, settings)
}

fn enforcer_with(stage: &Stage, node: &str, host: &Host, settings: Settings) -> Task {
    let (node, host) = (node.to_owned(), host.clone());
    stage.task(move |client, shutdown| async move {
        let shared = fixture::shared(&node, &host, client, settings);
        tokio::select! {
            () = enforce(shared) => {}
            () = shutdown.wait() => {}
        }
    })
}

async fn enforce(shared: Shared) {
    let pipeline = fixture::pipeline(&shared);
    node_state::start(shared, pipeline).await;
}

/// An object in the form of that time.
fn state(node: &str, spec: Value) -> Value {
    json!({
        "apiVersion": "nmstate.io/v1", "kind": "NodeNetworkState", "metadata": { "name": node }, "spec": spec,
    })
}

fn with_mtu(mtu: u32) -> Value {
    json!({ "interfaces": [{ "name": "eth1", "type": "ethernet", "state": "up", "mtu": mtu }] })
}

fn create(stage: &Stage, object: &Value) {
    stage.send(Method::POST, STATES, Some(object)).accepted();
}

/// Waits until the condition has the expected message.
fn wait_for_condition(stage: &Stage, node: &str, kind: &str, message: &str) -> Value {
    let what = format!("{node} to be {kind}: {message}");
    stage.wait_for(&what, (Kind::State, node), |object| {
        let object = object?;
        let conditions = object["status"]["conditions"].as_array()?;
        conditions
            .iter()
            .any(|it| {
                it["type"] == kind
                    && it["status"] == "True"
                    && it["message"].as_str().unwrap_or_default().contains(message)
            })
            .then(|| object.clone())
    })
}

fn until(what: &str, host: &Host, mut holds: impl FnMut(&Host) -> bool) {
    wait::until(what, DEADLINE, || {
        if holds(host) {
            Ok(())
        } else {
            Err(format!("{:#?}\n{:#?}", host.applied(), host.current()))
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
}

// nmstate#85, nmstate#90
#[test]
fn original_desired_state_is_applied_on_its_node_only() {
    let stage = Stage::start();
    let (host, other) = (Host::new(host::two_nics()), Host::new(host::two_nics()));
    let _enforcers = [
        enforcer(&stage, "node01", &host),
        enforcer(&stage, "node02", &other),
    ];
    create(
        &stage,
        &state(
            "node02",
            json!({ "managed": true, "desiredState": { "interfaces": null } }),
        ),
    );
    let mut object = state(
        "node01",
        json!({
            "managed": true, "nodeName": "node01",
            "desiredState": { "interfaces": [{
                "name": "eth1", "type": "ethernet", "state": "up", "ifIndex": 3, "mtu": 9000,
                "ipv6": { "enabled": true, "autoConf": true, "dhcp": true },
            }] },
        }),
    );
    object["status"] = json!({ "currentState": { "capabilities": [], "interfaces": [{ "name": "eth1", "autoConf": true }] } });
    create(&stage, &object);
    let reported = wait_for_condition(&stage, "node01", "Available", "successfully reconciled");
    assert_eq!(
        (
            &reported["status"]["conditions"][0]["reason"],
            fixture::status_of(&reported, "Failing")
        ),
        (&json!("SuccessfullyConfigured"), "False".to_owned())
    );
    assert_eq!(
        host.applied(),
        [json!({ "interfaces": [{
            "name": "eth1", "type": "ethernet", "state": "up", "mtu": 9000,
            "ipv6": { "enabled": true, "autoconf": true, "dhcp": true },
        }] })]
    );
    assert_eq!((host.commits(), other.applied().len()), (1, 0));

    for version in ["v1", "v1alpha1", "v1beta1"] {
        let path = format!("/apis/nmstate.io/{version}/nodenetworkstates/node01");
        let read = stage.send(Method::GET, &path, None).accepted();
        assert_eq!(read["spec"], object["spec"], "{version}");
    }
}

// nmstate#86-87
#[test]
fn missing_desired_state_applies_nothing_and_removes_conditions() {
    let stage = Stage::start();
    let host = Host::new(host::two_nics());
    create(
        &stage,
        &state(
            "node01",
            json!({ "managed": false, "desiredState": with_mtu(9000) }),
        ),
    );
    let _enforcer = enforcer(&stage, "node01", &host);
    let spec = |spec: Value| {
        stage
            .patch(Kind::State, "node01", &json!({ "spec": spec }))
            .accepted()
    };
    spec(json!({ "managed": true, "desiredState": { "interfaces": null } }));
    spec(json!({ "managed": true, "desiredState": with_mtu(1400) }));
    wait_for_condition(&stage, "node01", "Available", "");
    assert_eq!(
        host.applied(),
        [with_mtu(1400)],
        "only the desired state was applied"
    );
    let gone = || {
        stage.wait_for("the outcome to be gone", (Kind::State, "node01"), |object| {
            let conditions = object?["status"]["conditions"].as_array()?;
            conditions.is_empty().then_some(())
        });
    };
    spec(json!({ "managed": false }));
    gone();
    host.change(|current| current["interfaces"][1]["mtu"] = json!(1500));
    spec(json!({ "managed": true, "desiredState": with_mtu(1300) }));
    wait_for_condition(&stage, "node01", "Available", "");
    assert_eq!(
        host.applied(),
        [with_mtu(1400), with_mtu(1300)],
        "unmanaged drift was left alone"
    );
    // A real null, which no patch can write.
    let mut object = stage.get(Kind::State, "node01").expect("a state");
    object["spec"] = json!({ "managed": true, "desiredState": { "interfaces": null } });
    let path = format!("{}/node01", Kind::State.path());
    let written = stage.send(Method::PUT, &path, Some(&object)).accepted();
    assert_eq!(written["spec"], object["spec"]);
    gone();
    host.change(|current| current["interfaces"][1]["mtu"] = json!(1500));
    spec(json!({ "managed": true, "desiredState": with_mtu(1200) }));
    wait_for_condition(&stage, "node01", "Available", "");
    assert_eq!(
        host.applied(),
        [with_mtu(1400), with_mtu(1300), with_mtu(1200)],
        "nothing was desired in between"
    );
}

// nmstate#88
#[test]
fn foreign_change_of_the_host_is_repaired() {
    let stage = Stage::start();
    let host = Host::new(host::two_nics());
    let _enforcer = enforcer(&stage, "node01", &host);
    create(
        &stage,
        &state("node01", json!({ "desiredState": with_mtu(9000) })),
    );
    wait_for_condition(&stage, "node01", "Available", "");
    host.change(|current| current["interfaces"][1]["mtu"] = json!(1500));
    until("the host to have the desired state", &host, |host| {
        host.current()["interfaces"][1]["mtu"] == 9000 && host.commits() == 2
    });
    host.change(|current| current["interfaces"][0]["mtu"] = json!(1400));
    stage
        .patch(
            Kind::State,
            "node01",
            &json!({ "spec": { "desiredState": with_mtu(8000) } }),
        )
        .accepted();
    until("the new desired state", &host, |host| host.commits() == 3);
    let applied = host.applied();
    assert_eq!(applied, [with_mtu(9000), with_mtu(9000), with_mtu(8000)]);
}

// nmstate#89
#[test]
fn failed_desired_state_is_retried_until_it_changes() {
    let stage = Stage::start();
    let (host, refusing) = (Host::new(host::two_nics()), Host::new(host::two_nics()));
    let _enforcers = [
        enforcer(&stage, "node01", &host),
        enforcer(&stage, "node02", &refusing),
    ];
    refusing.refuse(host::error("NotSupportedError", "no such card"));
    create(
        &stage,
        &state("node02", json!({ "desiredState": with_mtu(7000) })),
    );
    let failed = wait_for_condition(&stage, "node02", "Failing", "no such card");
    let conditions = &failed["status"]["conditions"];
    assert_eq!(conditions[1]["reason"], "FailedToConfigure");
    assert_eq!(fixture::status_of(&failed, "Available"), "False");
    assert_eq!(failed["status"]["observedGeneration"], 1);

    host.refuse(host::error("VerificationError", "the kernel said no"));
    create(
        &stage,
        &state("node01", json!({ "desiredState": with_mtu(9000) })),
    );
    wait_for_condition(&stage, "node01", "Failing", "the kernel said no");
    until("more attempts", &host, |host| host.applied().len() > 3);
    assert_eq!(
        refusing.applied(),
        [with_mtu(7000)],
        "what no attempt can change is not tried again"
    );
    host.on_apply(|_| Ok(()));
    wait_for_condition(&stage, "node01", "Available", "");
    assert_eq!(host.current()["interfaces"][1]["mtu"], 9000);
    refusing.on_apply(|_| Ok(()));
    stage
        .patch(
            Kind::State,
            "node02",
            &json!({ "spec": { "desiredState": with_mtu(9000) } }),
        )
        .accepted();
    let mended = wait_for_condition(&stage, "node02", "Available", "");
    assert_eq!(mended["status"]["observedGeneration"], 2);
}

#[test]
fn malformed_objects_are_reported_and_block_nothing() {
    let stage = Stage::start();
    let host = Host::new(host::two_nics());
    let _enforcer = enforcer(&stage, "node01", &host);
    let spec = |spec: Value| stage.patch(Kind::State, "node01", &json!({ "spec": spec }));
    create(
        &stage,
        &state(
            "node01",
            json!({ "nodeName": "node02", "desiredState": with_mtu(9000) }),
        ),
    );
    wait_for_condition(
        &stage,
        "node01",
        "Failing",
        "spec.nodeName is node02, but the object is named after node node01: nothing is applied",
    );
    // Our definition forbids it; definitions of older installations may not.
    for (strange, text) in [
        (
            json!({ "nodeName": null, "managed": "no", "desiredState": with_mtu(9000) }),
            "spec.managed is not true or false",
        ),
        (
            json!({ "nodeName": null, "managed": null, "desiredState": ["eth1"] }),
            "spec.desiredState is not an object",
        ),
    ] {
        if spec(strange).status == StatusCode::OK {
            wait_for_condition(&stage, "node01", "Failing", text);
        }
    }
    assert_eq!(host.applied(), Vec::<Value>::new());
    spec(json!({ "nodeName": null, "managed": null, "desiredState": with_mtu(9000) })).accepted();
    wait_for_condition(&stage, "node01", "Available", "");
}

#[test]
fn original_design_can_be_disabled() {
    let stage = Stage::start();
    let (off, on) = (Host::new(host::two_nics()), Host::new(host::two_nics()));
    let settings = Settings {
        original_design: false,
        ..fixture::settings()
    };
    for node in ["node01", "node02"] {
        create(&stage, &state(node, json!({ "desiredState": with_mtu(9000) })));
    }
    let ended = enforcer_with(&stage, "node01", &off, settings);
    let _on = enforcer(&stage, "node02", &on);
    wait_for_condition(&stage, "node02", "Available", "");
    let object = stage.get(Kind::State, "node01").expect("a state");
    assert_eq!((object.get("status"), off.applied().len()), (None, 0));
    assert!(!ended.has_ended());
}

/// A host that never reaches the desired state, and the number of attempts.
fn stubborn(left: Arc<AtomicUsize>) -> (Engine, Arc<AtomicUsize>, Arc<AtomicUsize>) {
    let (engine, mut requests) = Engine::channel();
    let (applied, compared) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let counted = (Arc::clone(&applied), Arc::clone(&compared));
    std::thread::spawn(move || {
        while let Some(request) = requests.blocking_recv() {
            match request {
                Request::Apply(_, back) => {
                    counted.0.fetch_add(1, Ordering::SeqCst);
                    let _ = back.send(Ok(()));
                }
                Request::Diff(_, back) => {
                    counted.1.fetch_add(1, Ordering::SeqCst);
                    let left = left.load(Ordering::SeqCst);
                    let _ = back.send(Ok(json!({ "interfaces": [{ "name": "eth1", "mtu": left }] })));
                }
                Request::Commit(back) | Request::Rollback(back) | Request::Close(back) => {
                    drop(back.send(Ok(())));
                }
                _ => {}
            }
        }
    });
    (engine, applied, compared)
}

#[test]
fn persistent_difference_is_not_applied_again() {
    let stage = Stage::start();
    let left = Arc::new(AtomicUsize::new(1));
    let (engine, applied, compared) = stubborn(Arc::clone(&left));
    create(
        &stage,
        &state("node01", json!({ "desiredState": with_mtu(9000) })),
    );
    let _task = stage.task(move |client, shutdown| async move {
        let settings = Settings {
            resync: Duration::from_millis(50),
            ..fixture::settings()
        };
        let shared = Shared::new("node01", client, engine, settings);
        tokio::select! {
            () = enforce(shared) => {}
            () = shutdown.wait() => {}
        }
    });
    let times = |counter: &AtomicUsize, least: usize| {
        wait::until("a reading of the host", DEADLINE, || {
            match counter.load(Ordering::SeqCst) {
                times if times >= least => Ok(()),
                times => Err(format!("{times} of {least}")),
            }
        })
        .unwrap_or_else(|error| panic!("{error}"));
    };
    times(&compared, 8);
    assert_eq!(applied.load(Ordering::SeqCst), 1);
    left.store(2, Ordering::SeqCst);
    times(&applied, 2);
    times(&compared, 16);
    assert_eq!(applied.load(Ordering::SeqCst), 2);
}
