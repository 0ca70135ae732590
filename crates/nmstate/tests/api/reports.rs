//! The reported state of nodes, and the number of writes.

use std::time::{Duration, Instant};

use cluster::wait;
use serde_json::{Value, json};

use crate::fixture::{DEADLINE, Kind, NAMESPACE, Stage, settings};
use crate::host::{self, Host};

const NODE: &str = "node01";
/// Another node, whose handler does its work while that of [`NODE`] should do nothing.
const OTHER: &str = "node02";

fn reported(stage: &Stage, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
    reported_of(stage, NODE, what, condition)
}

fn reported_of(stage: &Stage, node: &str, what: &str, condition: impl Fn(&Value) -> bool) -> Value {
    stage.wait_for(what, (Kind::State, node), |state| {
        let state = state?;
        condition(&state["status"]["currentState"]).then(|| state.clone())
    })
}

fn mtu(name: &'static str, mtu: u32) -> impl Fn(&Value) -> bool {
    move |state| {
        let interfaces = state["interfaces"].as_array();
        let mut interfaces = interfaces.into_iter().flatten();
        interfaces.any(|interface| interface["name"] == name && interface["mtu"] == mtu)
    }
}

/// Waits until the host was read so many times more.
fn wait_for_readings(host: &Host, more: usize) {
    let before = host.reports();
    wait::until("readings of the host", DEADLINE, || {
        let now = host.reports();
        if now >= before + more {
            Ok(())
        } else {
            Err(format!("{now} of {}", before + more))
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
}

fn label(value: &Value) -> Value {
    json!({ "metadata": { "labels": { "nmstate.io/force-nns-refresh": value } } })
}

// nmstate#1, nmstate#14
#[test]
fn starting_handler_reports_its_node() {
    let stage = Stage::start();
    let node = stage.node(NODE, &[]);
    let mut state = host::two_nics();
    for name in ["0042", "1e3"] {
        let nic = json!({ "name": name, "type": "ethernet", "state": "up" });
        state["interfaces"].as_array_mut().expect("a list").push(nic);
    }
    let host = Host::new(state);
    let mut settings = settings();
    settings
        .labels
        .insert("app.kubernetes.io/part-of".to_owned(), "hco".to_owned());
    let mark = stage.mark();
    let handler = stage.handler_with(NODE, &host, settings);
    let state = reported(&stage, "a report", |state| state["interfaces"].is_array());
    assert_eq!(
        state["metadata"]["ownerReferences"],
        json!([{
            "apiVersion": "v1", "kind": "Node", "name": NODE, "uid": node["metadata"]["uid"],
        }])
    );
    assert_eq!(
        state["metadata"]["labels"],
        json!({ "app.kubernetes.io/part-of": "hco" })
    );
    assert_eq!(state.get("spec"), None);
    let status = &state["status"];
    assert_eq!(status["handlerNmstateVersion"], "nmstatectl 2.2.62");
    assert_eq!(status["hostNetworkManagerVersion"], "1.48.10");
    let current = &status["currentState"];
    let names: Vec<&Value> = current["interfaces"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|interface| &interface["name"])
        .collect();
    assert_eq!(names, ["eth0", "eth1", "lo", "0042", "1e3"]);
    assert_eq!(current["ovn"], json!({}));
    assert_eq!(current.get("route-rules"), None);
    assert_eq!(current["routes"]["running"][0]["next-hop-interface"], "eth0");
    drop(handler);
    let writes: Vec<String> = stage
        .writes_since(mark)
        .iter()
        .map(|write| format!("{} {}", write.verb, write.uri))
        .collect();
    assert_eq!(
        writes,
        [
            "create /apis/nmstate.io/v1beta1/nodenetworkstates?",
            "update /apis/nmstate.io/v1beta1/nodenetworkstates/node01/status?",
        ]
    );
}

// nmstate#2
#[test]
fn unreadable_host_is_reported_once_it_is_readable() {
    let stage = Stage::start();
    stage.node(NODE, &[]);
    let host = Host::new(host::two_nics());
    host.unreadable(Some(host::error("PluginFailure", "NetworkManager is gone")));
    let mark = stage.mark();
    let _handler = stage.handler(NODE, &host);
    wait_for_readings(&host, 2);
    assert!(stage.get(Kind::State, NODE).is_none());
    let writes = stage.writes_since(mark);
    assert!(writes.is_empty(), "{writes:?}");
    host.unreadable(None);
    reported(&stage, "a report", mtu("eth1", 1500));
}

// nmstate#112
#[test]
fn host_is_reported_when_network_manager_returns() {
    let stage = Stage::start();
    stage.node(NODE, &[]);
    let host = Host::new(host::two_nics());
    let _handler = stage.handler(NODE, &host);
    reported(&stage, "a report", mtu("eth1", 1500));
    host.lose_network_manager();
    host.change(|state| state["interfaces"][1]["mtu"] = json!(9000));
    // By then the pause before the next attempt is 16 s.
    wait_for_readings(&host, 5);
    let began = Instant::now();
    host.regain_network_manager();
    reported(&stage, "the host", mtu("eth1", 9000));
    let took = began.elapsed();
    assert!(took < Duration::from_secs(12), "reported after {took:?}");
}

// nmstate#3
#[test]
fn unchanged_host_causes_no_request() {
    let stage = Stage::start();
    stage.node(NODE, &[]);
    let host = Host::new(host::two_nics());
    let settings = weft_nmstate::handler::Settings {
        resync: Duration::from_millis(50),
        ..settings()
    };
    let _handler = stage.handler_with(NODE, &host, settings);
    let before = reported(&stage, "a report", mtu("eth1", 1500));
    // The events after the creation of the object are over by then.
    wait_for_readings(&host, 3);
    let mark = stage.mark();
    wait_for_readings(&host, 5);
    // Notifications without a change, and keys in another order.
    host.change(|state| {
        let Some(old) = state.as_object().cloned() else {
            return;
        };
        *state = old.into_iter().rev().collect();
    });
    wait_for_readings(&host, 2);
    let requests = stage.requests_since(mark);
    assert!(requests.is_empty(), "{requests:?}");
    let after = stage.get(Kind::State, NODE).expect("a report");
    assert_eq!(
        after["metadata"]["resourceVersion"],
        before["metadata"]["resourceVersion"]
    );
    assert_eq!(
        after["status"]["lastSuccessfulUpdateTime"],
        before["status"]["lastSuccessfulUpdateTime"]
    );
}

// nmstate#4
#[test]
fn changed_host_is_reported_with_one_write() {
    let stage = Stage::start();
    stage.node(NODE, &[]);
    let host = Host::new(host::two_nics());
    let _handler = stage.handler(NODE, &host);
    let before = reported(&stage, "a report", mtu("eth1", 1500));
    let mark = stage.mark();
    for mtu in 9000..9020 {
        host.change(|state| state["interfaces"][1]["mtu"] = json!(mtu));
    }
    let after = reported(&stage, "the change", mtu("eth1", 9019));
    assert_eq!(before["metadata"]["uid"], after["metadata"]["uid"]);
    let writes = stage.writes_since(mark);
    assert!(writes.len() <= 2, "a burst is one change: {writes:?}");
}

#[test]
fn changed_version_is_reported() {
    let stage = Stage::start();
    stage.node(NODE, &[]);
    let host = Host::new(host::two_nics());
    let _handler = stage.handler(NODE, &host);
    let before = reported(&stage, "a report", mtu("eth1", 1500));
    host.upgrade("1.52.0");
    let after = stage.wait_for("the version", (Kind::State, NODE), |state| {
        let state = state?;
        (state["status"]["hostNetworkManagerVersion"] == "1.52.0").then(|| state.clone())
    });
    let at = "lastSuccessfulUpdateTime";
    assert_eq!(after["status"][at], before["status"][at]);
}

// nmstate#6
#[test]
fn new_label_value_causes_a_read() {
    let stage = Stage::start();
    stage.node(NODE, &[]);
    stage.node(OTHER, &[]);
    let (host, other) = (Host::new(host::two_nics()), Host::new(host::two_nics()));
    let _handlers = [stage.handler(NODE, &host), stage.handler(OTHER, &other)];
    reported(&stage, "a report", mtu("eth1", 1500));
    reported_of(&stage, OTHER, "a report of the other node", mtu("eth1", 1500));
    // The events after the creation of the object are over by then.
    wait::until("the second reading", DEADLINE, || {
        (host.reports() >= 2)
            .then_some(())
            .ok_or_else(|| host.reports().to_string())
    })
    .unwrap_or_else(|error| panic!("{error}"));
    let change = |patch: Value| stage.patch(Kind::State, NODE, &patch).accepted();
    let read = |what: &str, readings: usize| {
        wait::until(what, DEADLINE, || {
            (host.reports() == readings)
                .then_some(())
                .ok_or_else(|| format!("{} readings", host.reports()))
        })
        .unwrap_or_else(|error| panic!("{error}"));
    };
    let before = host.reports();
    change(label(&json!("1700000000000000001")));
    read("a label that is new", before + 1);
    change(json!({ "metadata": { "labels": { "other": "1" } } }));
    change(label(&json!(null)));
    // A later request to the other handler is done: this one has had time to do too much.
    other.change_quietly(|state| state["interfaces"][1]["mtu"] = json!(3000));
    let ask = label(&json!("1700000000000000001"));
    stage.patch(Kind::State, OTHER, &ask).accepted();
    reported_of(&stage, OTHER, "the other host", mtu("eth1", 3000));
    assert_eq!(host.reports(), before + 1, "removing the label requests nothing");
    change(label(&json!("1700000000000000002")));
    read("a label that is back", before + 2);
    change(label(&json!("1700000000000000003")));
    read("a label that changes", before + 3);
    // The change itself is reported so: no event reported it.
    host.change_quietly(|state| state["interfaces"][1]["mtu"] = json!(4000));
    change(label(&json!("1700000000000000004")));
    let state = reported(&stage, "what changed quietly", mtu("eth1", 4000));
    assert_eq!(
        state["metadata"]["labels"],
        json!({ "other": "1", "nmstate.io/force-nns-refresh": "1700000000000000004" })
    );
    assert_eq!(host.reports(), before + 4);
}

// nmstate#7
#[test]
fn deleted_report_is_created_again() {
    let stage = Stage::start();
    let node = stage.node(NODE, &[]);
    let host = Host::new(host::two_nics());
    let _handler = stage.handler(NODE, &host);
    let before = reported(&stage, "a report", mtu("eth1", 1500));
    stage.delete(Kind::State, NODE);
    let after = reported(&stage, "another report", mtu("eth1", 1500));
    assert_ne!(before["metadata"]["uid"], after["metadata"]["uid"]);
    assert_eq!(
        after["metadata"]["ownerReferences"][0]["uid"],
        node["metadata"]["uid"]
    );
}

// nmstate#8
#[test]
fn missing_node_gets_no_report() {
    let stage = Stage::start();
    let host = Host::new(host::two_nics());
    let mark = stage.mark();
    let hurried = weft_nmstate::handler::Settings {
        resync: Duration::from_millis(20),
        ..settings()
    };
    let _handler = stage.handler_with(NODE, &host, hurried);
    // After its lists, the handler knows that the node does not exist.
    wait::until("the watches", DEADLINE, || {
        let requests = stage.requests_since(mark);
        let asked = |what: &str| requests.iter().any(|request| request.uri.contains(what));
        if asked("/nodes?") && asked("/nodenetworkstates?") {
            Ok(())
        } else {
            Err(format!("{requests:?}"))
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
    // Another handler, on an existing node, shows how long a change takes to be reported.
    stage.node(OTHER, &[]);
    stage.node("node03", &[]);
    let other = Host::new(host::two_nics());
    let _other = stage.handler(OTHER, &other);
    reported_of(&stage, OTHER, "a report of the other node", mtu("eth1", 1500));
    for host in [&host, &other] {
        host.change(|state| state["interfaces"][1]["mtu"] = json!(9000));
    }
    reported_of(&stage, OTHER, "the change of the other node", mtu("eth1", 9000));
    let nodes: Vec<Value> = stage
        .list(Kind::State)
        .iter()
        .map(|state| state["metadata"]["name"].clone())
        .collect();
    assert_eq!((nodes, host.reports()), (vec![json!(OTHER)], 0));
    stage.node(NODE, &[]);
    reported(&stage, "a report", mtu("eth1", 9000));
    assert!(stage.get(Kind::State, "node03").is_none());
}

#[test]
fn fields_of_other_writers_stay() {
    let stage = Stage::start();
    let node = stage.node(NODE, &[]);
    let spec = json!({ "managed": false, "desiredState": { "interfaces": [], "later": { "a": [1] } } });
    stage.create(
        Kind::State,
        &json!({
            "apiVersion": "nmstate.io/v1beta1", "kind": "NodeNetworkState",
            "metadata": { "name": NODE, "labels": { "mine": "1" }, "annotations": { "a": "b" } },
            "spec": spec,
        }),
    );
    let conditions = json!([{ "type": "Mine", "status": "True" }]);
    stage.report(
        Kind::State,
        NODE,
        &json!({ "conditions": conditions, "handlerNetworkManagerVersion": "1.20" }),
    );
    let host = Host::new(host::two_nics());
    let _handler = stage.handler(NODE, &host);
    let state = reported(&stage, "a report", mtu("eth1", 1500));
    assert_eq!(state["spec"], spec);
    assert_eq!(state["metadata"]["labels"], json!({ "mine": "1" }));
    assert_eq!(state["metadata"]["annotations"], json!({ "a": "b" }));
    assert_eq!(
        state["metadata"]["ownerReferences"][0]["uid"],
        node["metadata"]["uid"]
    );
    assert_eq!(state["metadata"]["generation"], 1);
    assert_eq!(state["status"]["conditions"], conditions);
    assert_eq!(state["status"]["handlerNetworkManagerVersion"], "1.20");
}

#[test]
fn large_report_is_pruned_with_a_condition() {
    let stage = Stage::start();
    stage.node(NODE, &[]);
    let vlan = |id: u32| {
        let features: serde_json::Map<String, Value> = (0..20)
            .map(|feature| (format!("a-rather-long-name-of-a-feature-{feature}"), json!(true)))
            .collect();
        json!({
            "name": format!("eth1.{id}"), "type": "vlan", "state": "up",
            "vlan": { "base-iface": "eth1", "id": id }, "ethtool": { "feature": features },
        })
    };
    let mut state = host::two_nics();
    let small = state.clone();
    let interfaces = state["interfaces"].as_array_mut().expect("a list");
    interfaces.extend((2..3000).map(vlan));
    assert!(state.to_string().len() > 2_000_000);
    let host = Host::new(state);
    let _handler = stage.handler(NODE, &host);
    let state = reported(&stage, "a report", |state| state["interfaces"].is_array());
    let current = &state["status"]["currentState"];
    assert_eq!(current["interfaces"].as_array().map(Vec::len), Some(3 + 2998));
    assert_eq!(current["interfaces"][3]["vlan"]["id"], 2);
    assert_eq!(current["interfaces"][3].get("ethtool"), None);
    let condition = &state["status"]["conditions"][0];
    assert_eq!(condition["type"], "Pruned");
    assert_eq!(condition["status"], "True");
    assert_eq!(condition["reason"], "ReportTooLarge");
    assert_eq!(
        condition["message"],
        "the report is too large to be stored; left out: features of drivers"
    );
    host.change(|state| *state = small);
    let state = reported(&stage, "a small report", |state| {
        state["interfaces"].as_array().map(Vec::len) == Some(3)
    });
    assert_eq!(state["status"]["conditions"], json!([]));
}

#[test]
fn filter_of_older_releases_hides_interfaces() {
    let stage = Stage::start();
    stage.node(NODE, &[]);
    stage.create(
        Kind::ConfigMap,
        &json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "nmstate-config", "namespace": NAMESPACE },
            "data": { "nmstate.yaml": "interfaces_filter: \"{eth1*,veth*}\"\n" },
        }),
    );
    let host = Host::new(host::two_nics());
    let _handler = stage.handler(NODE, &host);
    let state = reported(&stage, "a report", |state| state["interfaces"].is_array());
    let interfaces = &state["status"]["currentState"]["interfaces"];
    assert_eq!(
        (&interfaces[0]["name"], &interfaces[1]["name"]),
        (&json!("eth0"), &json!("lo"))
    );
}

// nmstate#123
#[test]
fn version_is_read_once_for_each_start_of_network_manager() {
    let stage = Stage::start();
    stage.node(NODE, &[]);
    let host = Host::new(host::two_nics());
    let _handler = stage.handler(NODE, &host);
    reported(&stage, "a report", mtu("eth1", 1500));
    for next in [9000, 9001] {
        host.change(|state| state["interfaces"][1]["mtu"] = json!(next));
        reported(&stage, "another report", mtu("eth1", next));
    }
    assert_eq!(host.version_reads(), 1);
    host.upgrade("1.52.0");
    stage.wait_for("the version", (Kind::State, NODE), |state| {
        (state?["status"]["hostNetworkManagerVersion"] == "1.52.0").then_some(())
    });
    assert_eq!(host.version_reads(), 2);
}
