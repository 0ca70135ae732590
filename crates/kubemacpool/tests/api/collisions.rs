//! Collisions with a complete manager: from objects to events and metrics.

use std::{net::SocketAddr, sync::mpsc};

use clap::Parser;
use kubemacpool::{manager::Manager, metrics::Bind, settings::Settings};
use serde_json::{Value, json};

use crate::{
    fixture::{NAMESPACE, POD, Stage, Task},
    metrics::Scraper,
    notices::wait_for_events,
    objects::{Kind, Nic, PODS_WEBHOOK, instance, pod, running},
};

#[derive(Parser)]
struct Program {
    #[command(flatten)]
    args: kubemacpool::Args,
}

/// A manager with configured webhooks, and a scraper.
pub(crate) struct Running {
    scraper: Scraper,
    metrics: SocketAddr,
    _task: Task,
}

impl Running {
    fn start(stage: &Stage) -> Self {
        Self::with_range(stage, ["02:00:00:00:00:00", "02:FF:FF:FF:FF:FF"])
    }

    /// Starts with the ConfigMap's range.
    pub(crate) fn with_range(stage: &Stage, [start, end]: [&'static str; 2]) -> Self {
        stage.set_range(start, end);
        let args = Program::parse_from(["kubemacpool"]).args;
        let environment = move |name: &str| {
            let value = match name {
                "POD_NAMESPACE" => NAMESPACE,
                "POD_NAME" => POD,
                "RANGE_START" => start,
                "RANGE_END" => end,
                _ => return None,
            };
            Some(value.to_owned())
        };
        let mut settings = Settings::read(&args, environment).expect("settings");
        settings.webhooks.bind = SocketAddr::from(([127, 0, 0, 1], 0)).into();
        settings.webhooks.certificates = stage.certificate().dir().to_owned();
        settings.metrics = Bind::At("127.0.0.1".to_owned(), 0);
        let (at, addresses) = mpsc::channel();
        let task = stage.task(async move |client, shutdown| {
            let manager = Manager::new(settings).expect("a manager");
            let manager = manager.start(client).await.expect("it starts");
            let metrics = manager.metrics_address().expect("metrics");
            at.send((manager.address(), metrics)).expect("a test");
            shutdown.wait().await;
            manager.stop().await;
        });
        let (webhooks, metrics) = addresses.recv().expect("addresses");
        stage.configure(webhooks.port());
        Self {
            scraper: Scraper::allowed(stage),
            metrics,
            _task: task,
        }
    }

    /// Waits until exactly these series have the prefix.
    pub(crate) fn wait_for_series(&self, beginning: &str, lines: &[&str]) {
        self.scraper.wait_for_series(self.metrics, beginning, lines);
    }

    /// The value of a series, which is an integer.
    pub(crate) fn series(&self, name: &str) -> u64 {
        let (_, text) = self.scraper.scrape(self.metrics).expect("metrics");
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("{name} is not in\n{text}"))
    }

    /// Waits until the gauge has exactly these series.
    fn wait_for_gauge(&self, series: &[(&str, usize)]) {
        let line = |(mac, objects): &(&str, usize)| format!("{GAUGE}{{mac=\"{mac}\"}} {objects}");
        let lines: Vec<_> = series.iter().map(line).collect();
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        self.wait_for_series(GAUGE, &lines);
    }
}

const GAUGE: &str = "kmp_mac_collisions";
const M1: &str = "02:00:00:00:00:50";
const M2: &str = "02:00:00:00:00:51";
/// An address outside of the range: a marker that everything before it was observed.
const LAST: &str = "0a:00:00:00:00:ff";

/// An instance that runs with these addresses on networks of multus.
fn run(stage: &Stage, namespace: &str, name: &str, macs: &[&str]) {
    let interfaces: Vec<_> = (0..macs.len()).map(|number| format!("net{number}")).collect();
    let nics: Vec<_> = interfaces.iter().map(|name| Nic::multus(name)).collect();
    stage.create(Kind::Instance, namespace, &instance(name, &nics));
    let addresses: Vec<_> = interfaces
        .iter()
        .map(String::as_str)
        .zip(macs.iter().copied())
        .collect();
    stage.report(Kind::Instance, namespace, name, &running(&addresses));
}

/// The status of an instance while it migrates.
fn migrates(stage: &Stage, namespace: &str, name: &str, state: &Value) {
    let status = json!({ "migrationState": state });
    stage.report(Kind::Instance, namespace, name, &status);
}

/// A pod with an address on a network, in a namespace of its kind.
fn pod_with(name: &str, mac: &str) -> Value {
    pod(name, Some(&json!([{ "name": "net", "mac": mac }]).to_string()))
}

/// Marks a pod's networks as attached by Multus.
fn attach(stage: &Stage, namespace: &str, name: &str) {
    let annotations = json!({ "metadata": { "annotations": { "k8s.v1.cni.cncf.io/network-status": "[]" } } });
    stage.patch(Kind::Pod, namespace, name, &annotations).accepted();
}

fn reported(on: &str, count: usize, mac: &str, parties: &str) -> String {
    format!("Warning MACCollision {on} x{count}: MAC {mac}: Collision between {parties}")
}

// kubemacpool#73-77
#[test]
fn instances_sharing_an_address_get_events_and_a_series() {
    let stage = Stage::start();
    for namespace in ["a", "b"] {
        stage.namespace(namespace, &[]);
    }
    stage.namespace("out", &[("mutatevirtualmachines.kubemacpool.io", "ignore")]);
    let manager = Running::start(&stage);
    manager.wait_for_gauge(&[]);

    run(&stage, "out", "v0", &[M1]);
    run(&stage, "a", "v1", &[M1, M2]);
    run(&stage, "b", "v2", &["02-00-00-00-00-50", "02:00:00:00:00:52"]);
    manager.wait_for_gauge(&[(M1, 2)]);
    let two = "vmi/a/v1, vmi/b/v2";
    let on = |name: &str| format!("VirtualMachineInstance/{name}");
    wait_for_events(&stage, "a", &[&reported(&on("v1"), 1, M1, two)]);
    wait_for_events(&stage, "b", &[&reported(&on("v2"), 1, M1, two)]);

    // Irrelevant changes cause no event.
    let label = json!({ "metadata": { "labels": { "some": "label" } } });
    stage.patch(Kind::Instance, "a", "v1", &label).accepted();
    run(&stage, "a", "v3", &[M1]);
    manager.wait_for_gauge(&[(M1, 3)]);
    let three = "vmi/a/v1, vmi/a/v3, vmi/b/v2";
    wait_for_events(
        &stage,
        "a",
        &[
            &reported(&on("v1"), 1, M1, two),
            &reported(&on("v1"), 1, M1, three),
            &reported(&on("v3"), 1, M1, three),
        ],
    );
    wait_for_events(
        &stage,
        "b",
        &[
            &reported(&on("v2"), 1, M1, two),
            &reported(&on("v2"), 1, M1, three),
        ],
    );

    stage.report(Kind::Instance, "a", "v3", &json!({ "phase": "Succeeded" }));
    manager.wait_for_gauge(&[(M1, 2)]);
    // It is back: the same events again.
    stage.report(Kind::Instance, "a", "v3", &json!({ "phase": "Running" }));
    manager.wait_for_gauge(&[(M1, 3)]);
    wait_for_events(
        &stage,
        "b",
        &[
            &reported(&on("v2"), 1, M1, two),
            &reported(&on("v2"), 2, M1, three),
        ],
    );
    stage.delete(Kind::Instance, "a", "v3");
    manager.wait_for_gauge(&[(M1, 2)]);

    // Both become sides of one migration, and then of two.
    migrates(
        &stage,
        "a",
        "v1",
        &json!({ "sourceState": { "migrationUID": "m1" } }),
    );
    manager.wait_for_gauge(&[(M1, 2)]);
    migrates(
        &stage,
        "b",
        "v2",
        &json!({ "sourceState": { "migrationUID": "m1" } }),
    );
    manager.wait_for_gauge(&[]);
    migrates(
        &stage,
        "b",
        "v2",
        &json!({ "sourceState": { "migrationUID": "m2" } }),
    );
    manager.wait_for_gauge(&[(M1, 2)]);
    stage.delete(Kind::Instance, "b", "v2");
    manager.wait_for_gauge(&[]);
    assert!(stage.events("out").is_empty(), "{:#?}", stage.events("out"));
    // Its namespace becomes managed.
    stage.label("out", "mutatevirtualmachines.kubemacpool.io", None);
    manager.wait_for_gauge(&[(M1, 2)]);
    wait_for_events(
        &stage,
        "out",
        &[&reported(&on("v0"), 1, M1, "vmi/a/v1, vmi/out/v0")],
    );
}

// kubemacpool#73: out of the range
#[test]
fn unsupported_interfaces_do_not_collide() {
    let stage = Stage::start();
    stage.namespace("a", &[]);
    let manager = Running::start(&stage);
    for name in ["v1", "v2"] {
        let nics = [Nic::unsupported("default"), Nic::masquerade("net")];
        stage.create(Kind::Instance, "a", &instance(name, &nics));
        let status = running(&[("default", M1), ("docker0", M2), ("", M2), ("net", LAST)]);
        stage.report(Kind::Instance, "a", name, &status);
    }
    manager.wait_for_gauge(&[(LAST, 2)]);
}

// kubemacpool#79, kubemacpool#80: with KubeVirt
#[test]
fn pod_and_instance_sharing_an_address_get_events() {
    let stage = Stage::start();
    stage.namespace("a", &[(PODS_WEBHOOK, "allocate")]);
    let manager = Running::start(&stage);
    run(&stage, "a", "v1", &[M1]);
    // The instance's own pod, and a pod without networks.
    let mut launcher = pod_with("virt-launcher-v1", M1);
    launcher["metadata"]["labels"] = json!({ "kubevirt.io": "virt-launcher" });
    stage.run_pod("a", &launcher);
    attach(&stage, "a", "virt-launcher-v1");
    stage.run_pod("a", &pod_with("p1", M1));
    for name in ["p2", "p3"] {
        stage.run_pod("a", &pod_with(name, LAST));
        attach(&stage, "a", name);
    }
    manager.wait_for_gauge(&[(LAST, 2)]);
    attach(&stage, "a", "p1");
    manager.wait_for_gauge(&[(M1, 2), (LAST, 2)]);
    let (parties, others) = ("pod/a/p1, vmi/a/v1", "pod/a/p2, pod/a/p3");
    wait_for_events(
        &stage,
        "a",
        &[
            &reported("Pod/p1", 1, M1, parties),
            &reported("Pod/p2", 1, LAST, others),
            &reported("Pod/p3", 1, LAST, others),
            &reported("VirtualMachineInstance/v1", 1, M1, parties),
        ],
    );
    stage.delete(Kind::Pod, "a", "p1");
    manager.wait_for_gauge(&[(LAST, 2)]);
}

// kubemacpool#80: without KubeVirt; kubemacpool#81
#[test]
fn pods_collide_without_kubevirt_and_after_restart() {
    let stage = Stage::without_kubevirt();
    stage.namespace("a", &[(PODS_WEBHOOK, "allocate")]);
    let manager = Running::start(&stage);
    manager.wait_for_gauge(&[]);
    let start = |name: &str| {
        stage.run_pod("a", &pod_with(name, M1));
        attach(&stage, "a", name);
    };
    let events = |parties: &str, names: &[&str]| -> Vec<String> {
        let on = |name: &&str| reported(&format!("Pod/{name}"), 1, M1, parties);
        names.iter().map(on).collect()
    };
    let expect = |events: &[String]| {
        let events: Vec<_> = events.iter().map(String::as_str).collect();
        wait_for_events(&stage, "a", &events);
    };
    start("p1");
    start("p2");
    let two = events("pod/a/p1, pod/a/p2", &["p1", "p2"]);
    expect(&two);
    start("p3");
    let three = events("pod/a/p1, pod/a/p2, pod/a/p3", &["p1", "p2", "p3"]);
    expect(&[two, three.clone()].concat());
    manager.wait_for_gauge(&[(M1, 3)]);

    drop(manager);
    for event in stage.list(Kind::Event, "a") {
        let name = event["metadata"]["name"].as_str().expect("a name");
        stage.delete(Kind::Event, "a", name);
    }
    let manager = Running::start(&stage);
    manager.wait_for_gauge(&[(M1, 3)]);
    // One event for all of them.
    expect(&three);
}
