//! The metrics as a scraper gets them (nmstate §9).

#![allow(
    clippy::needless_pass_by_value,
    reason = "objects are made where they are used"
)]

use std::net::SocketAddr;
use std::sync::mpsc;

use axum::http::Method;
use cluster::wait;
use kube_kit::metrics::Requests;
use kube_kit::tls::Profile;
use rustls::version;
use serde_json::{Value, json};
use tls_client::Peer;
use weft_nmstate::metrics::{Running, Settings};

use crate::fixture::{DEADLINE, Kind, METRICS, NAMESPACE, Stage, Task};

/// Starts the metrics, and returns their address.
fn start(stage: &Stage, guarded: bool) -> (SocketAddr, Task) {
    let settings = Settings {
        bind: SocketAddr::from(([127, 0, 0, 1], 0)).into(),
        certificates: None,
        namespace: NAMESPACE.to_owned(),
        profile: Profile::read("VersionTLS12", &[""; 0]),
        guarded,
    };
    let (at, address) = mpsc::channel();
    let task = stage.task_as(METRICS, move |client, shutdown| async move {
        let running = Running::start(settings, client, &Requests::default()).await;
        let running = running.expect("it starts");
        at.send(running.address().expect("an address")).expect("a test");
        shutdown.wait().await;
        running.stop().await;
    });
    (address.recv().expect("it starts"), task)
}

fn scrape(address: SocketAddr, token: Option<&str>) -> Result<(u16, String), String> {
    let peer = Peer {
        versions: vec![&version::TLS12, &version::TLS13],
        trusted: None,
        timeout: DEADLINE,
    };
    let bearer = token
        .map(|token| format!("Authorization: Bearer {token}\r\n"))
        .unwrap_or_default();
    let request = format!("GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{bearer}\r\n");
    peer.ask(address, request.as_bytes())
}

/// Waits until a metric has these series and no others.
#[track_caller]
fn wait_for(address: SocketAddr, figure: &str, expected: &[&str]) {
    let beginning = format!("{figure}{{");
    wait::until(&format!("{expected:#?}"), DEADLINE, || {
        let (code, text) = scrape(address, None)?;
        let lines = text.lines().filter(|line| line.starts_with(&beginning));
        let found: Vec<_> = lines.collect();
        let described = text.contains(&format!("# TYPE {figure} gauge"));
        if (code, described) == (200, true) && found == expected {
            Ok(())
        } else {
            Err(format!("{code} {text}"))
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
}

fn state(interfaces: Value, routes: Value) -> Value {
    json!({ "currentState": { "interfaces": interfaces, "routes": routes } })
}

fn object(kind: &str, name: &str, labels: Value) -> Value {
    let version = if kind == "NodeNetworkConfigurationPolicy" {
        "v1"
    } else {
        "v1beta1"
    };
    json!({
        "apiVersion": format!("nmstate.io/{version}"), "kind": kind, "metadata": { "name": name, "labels": labels },
    })
}

fn delete(stage: &Stage, kind: Kind, name: &str) {
    stage
        .send(Method::DELETE, &format!("{}/{name}", kind.path()), None)
        .accepted();
}

// nmstate#81, nmstate#82
#[test]
fn metrics_of_interfaces_and_routes_follow_the_reports() {
    const INTERFACES: &str = "kubernetes_nmstate_network_interfaces";
    const ROUTES: &str = "kubernetes_nmstate_routes";
    let stage = Stage::start();
    let (address, _task) = start(&stage, false);
    wait_for(address, INTERFACES, &[]);
    let nics = json!([{ "name": "eth0", "type": "ethernet" }, { "name": "eth1", "type": "ethernet" }]);
    let default = json!({ "destination": "0.0.0.0/0", "next-hop-interface": "eth0" });
    for node in ["node01", "node02"] {
        stage.create(Kind::State, &object("NodeNetworkState", node, json!({})));
        stage.report(
            Kind::State,
            node,
            &state(nics.clone(), json!({ "config": [], "running": [default] })),
        );
    }
    let both = [
        "kubernetes_nmstate_network_interfaces{node=\"node01\",type=\"ethernet\"} 2",
        "kubernetes_nmstate_network_interfaces{node=\"node02\",type=\"ethernet\"} 2",
    ];
    wait_for(address, INTERFACES, &both);
    let one = "kubernetes_nmstate_routes{ip_stack=\"ipv4\",node=\"node01\",type=\"dynamic\"} 1";
    let two = "kubernetes_nmstate_routes{ip_stack=\"ipv4\",node=\"node02\",type=\"dynamic\"} 1";
    wait_for(address, ROUTES, &[one, two]);

    // A bridge and two configured routes are added and removed.
    let mut more = nics.as_array().expect("interfaces").clone();
    more.push(json!({ "name": "br1", "type": "linux-bridge" }));
    let four = json!({ "destination": "198.51.100.0/24", "next-hop-interface": "br1" });
    let six = json!({ "destination": "2001:db8::/32", "next-hop-interface": "br1" });
    let routes = json!({ "config": [four, six], "running": [default, four, six] });
    stage.report(Kind::State, "node01", &state(json!(more), routes));
    let bridge = "kubernetes_nmstate_network_interfaces{node=\"node01\",type=\"linux-bridge\"} 1";
    wait_for(address, INTERFACES, &[both[0], bridge, both[1]]);
    let four = "kubernetes_nmstate_routes{ip_stack=\"ipv4\",node=\"node01\",type=\"static\"} 1";
    let six = "kubernetes_nmstate_routes{ip_stack=\"ipv6\",node=\"node01\",type=\"static\"} 1";
    wait_for(address, ROUTES, &[one, four, six, two]);
    stage.report(
        Kind::State,
        "node01",
        &state(nics, json!({ "config": [], "running": [default] })),
    );
    wait_for(address, INTERFACES, &both);
    wait_for(address, ROUTES, &[one, two]);
    delete(&stage, Kind::State, "node02");
    wait_for(address, INTERFACES, &both[..1]);
    wait_for(address, ROUTES, &[one]);
    // A malformed report does not affect other reports.
    stage.create(Kind::State, &object("NodeNetworkState", "odd", json!({})));
    stage.report(
        Kind::State,
        "odd",
        &json!({ "currentState": { "interfaces": "none" } }),
    );
    stage.report(Kind::State, "node01", &state(json!([]), json!({})));
    wait_for(address, INTERFACES, &[]);
}

// nmstate#80, nmstate#83
#[test]
fn metrics_of_policies_and_enactments_follow_their_status() {
    const FEATURES: &str = "kubernetes_nmstate_features_applied";
    const POLICIES: &str = "kubernetes_nmstate_policies_status";
    const ENACTMENTS: &str = "kubernetes_nmstate_enactments_status";
    let stage = Stage::start();
    let (address, _task) = start(&stage, false);
    let policies = |counts: [u8; 4]| {
        let kinds = ["Available", "Degraded", "Ignored", "Progressing"];
        let lines = kinds.iter().zip(counts);
        let lines = lines.map(|(kind, count)| format!("{POLICIES}{{status=\"{kind}\"}} {count}"));
        let lines: Vec<_> = lines.collect();
        wait_for(
            address,
            POLICIES,
            &lines.iter().map(String::as_str).collect::<Vec<_>>(),
        );
    };
    let enactments = |counts: Option<[u8; 5]>| {
        let kinds = ["Aborted", "Available", "Failing", "Pending", "Progressing"];
        let lines = counts.into_iter().flat_map(|counts| kinds.iter().zip(counts));
        let lines =
            lines.map(|(kind, count)| format!("{ENACTMENTS}{{node=\"node01\",status=\"{kind}\"}} {count}"));
        let lines: Vec<_> = lines.collect();
        wait_for(
            address,
            ENACTMENTS,
            &lines.iter().map(String::as_str).collect::<Vec<_>>(),
        );
    };
    policies([0, 0, 0, 0]);
    enactments(None);
    wait_for(address, FEATURES, &[]);

    stage.create(
        Kind::Policy,
        &object("NodeNetworkConfigurationPolicy", "p", json!({})),
    );
    let labels = json!({ "nmstate.io/policy": "p", "nmstate.io/node": "node01" });
    stage.create(
        Kind::Enactment,
        &object("NodeNetworkConfigurationEnactment", "node01.p", labels),
    );
    enactments(Some([0, 0, 0, 0, 0]));
    let is = |kind: &str| json!([{ "type": "Other", "status": "False" }, { "type": kind, "status": "True" }]);
    for (kind, counts) in [
        ("Progressing", [0, 0, 0, 1]),
        ("Available", [1, 0, 0, 0]),
        ("Degraded", [0, 1, 0, 0]),
        ("Ignored", [0, 0, 1, 0]),
    ] {
        stage.report(Kind::Policy, "p", &json!({ "conditions": is(kind) }));
        policies(counts);
    }
    for (kind, counts) in [
        ("Progressing", [0, 0, 0, 0, 1]),
        ("Failing", [0, 0, 1, 0, 0]),
        ("Aborted", [1, 0, 0, 0, 0]),
        ("Pending", [0, 0, 0, 1, 0]),
        ("Available", [0, 1, 0, 0, 0]),
    ] {
        let features = if kind == "Available" {
            json!(["static-route", "lldp"])
        } else {
            json!([])
        };
        stage.report(
            Kind::Enactment,
            "node01.p",
            &json!({ "conditions": is(kind), "features": features }),
        );
        enactments(Some(counts));
    }
    wait_for(
        address,
        FEATURES,
        &[
            "kubernetes_nmstate_features_applied{name=\"lldp\"} 1",
            "kubernetes_nmstate_features_applied{name=\"static-route\"} 1",
        ],
    );
    stage.report(Kind::Enactment, "node01.p", &json!({ "features": ["lldp"] }));
    wait_for(
        address,
        FEATURES,
        &["kubernetes_nmstate_features_applied{name=\"lldp\"} 1"],
    );
    delete(&stage, Kind::Enactment, "node01.p");
    wait_for(address, FEATURES, &[]);
    enactments(None);
    delete(&stage, Kind::Policy, "p");
    policies([0, 0, 0, 0]);
}

#[test]
fn metrics_on_openshift_need_the_right_to_read() {
    let stage = Stage::start();
    let (address, _task) = start(&stage, true);
    for stranger in [None, Some("invented")] {
        assert_eq!(scrape(address, stranger), Ok((401, "Unauthorized".to_owned())));
    }
    let kubectl = stage.kubectl();
    let account = "nmstate-test-prometheus";
    let run = |arguments: &[&str]| kubectl.run(arguments).expect("it works");
    run(&["create", "serviceaccount", account, "-n", NAMESPACE]);
    let token = run(&["create", "token", account, "-n", NAMESPACE]);
    let denied = format!("Authorization denied for user system:serviceaccount:{NAMESPACE}:{account}");
    assert_eq!(scrape(address, Some(token.trim())), Ok((403, denied)));
    run(&[
        "create",
        "clusterrole",
        account,
        "--verb=get",
        "--non-resource-url=/metrics",
    ]);
    let bound = format!("--serviceaccount={NAMESPACE}:{account}");
    run(&[
        "create",
        "clusterrolebinding",
        account,
        &format!("--clusterrole={account}"),
        &bound,
    ]);
    wait::until("the right to count", DEADLINE, || {
        match scrape(address, Some(token.trim())) {
            Ok((200, text)) if text.contains("# TYPE kubernetes_nmstate_policies_status gauge") => Ok(()),
            other => Err(format!("{other:?}")),
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
    run(&["delete", "clusterrolebinding", account]);
    run(&["delete", "clusterrole", account]);
    run(&["delete", "serviceaccount", account, "-n", NAMESPACE]);
}
