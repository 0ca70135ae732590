//! Promises of every plugin that gives a container a link.

use serde_json::{Value, json};

use crate::{
    killer::Killer,
    stage::{Host, LEASES, Pod, with},
};

/// Number of kills for each plugin.
const KILLS: u32 = 12;

/// The config with addresses out of these subnets by `host-local`.
fn leased(config: &Value, subnets: &[&str]) -> Value {
    let ranges: Vec<_> = subnets
        .iter()
        .map(|subnet| json!([{ "subnet": subnet }]))
        .collect();
    let routes = json!([{ "dst": "10.9.0.0/16", "gw": "10.1.2.1" }]);
    let ipam = json!({ "type": "host-local", "dataDir": LEASES, "ranges": ranges, "routes": routes });
    with(config, "ipam", ipam)
}

/// The config with an address that a fake IPAM plugin assigns, and an impossible route: ADD fails at its last step.
fn failing(host: &Host, config: &Value) -> Value {
    host.fake_ipam(&json!({
        "cniVersion": "1.0.0", "ips": [{ "address": "10.1.2.3/24", "gateway": "10.1.2.1" }],
        "routes": [{ "dst": "10.9.0.0/16", "gw": "192.0.2.1" }]
    }));
    with(config, "ipam", json!({ "type": "fake" }))
}

/// The whole contract, for a config of version 1.1.0 without addresses of its own.
pub(crate) fn holds(host: &mut Host, config: &Value) {
    begin(host, config);
    survives_being_killed(host, &leased(config, &["10.1.2.0/24"]));
    holds_unless_killed(host, config);
}

/// The contract without kills at any moment, which do not depend on the kind of link.
pub(crate) fn holds_unless_killed(host: &mut Host, config: &Value) {
    begin(host, config);
    // An IPv6 address is waited for until it is known to be unique.
    comes_and_goes(host, &leased(config, &["10.1.2.0/24", "fd00::/64"]));
    let leased = leased(config, &["10.1.2.0/24"]);
    repeated_add_changes_nothing(host, &leased);
    a_failed_add_leaves_nothing(host, config);
    check_detects_changes(host, &leased);
    is_collected(host, &leased);
    // At the end: the kernel removes a namespace late, and its links are visible at their parents until then.
    goes_without_its_namespace(host, &leased);
}

/// Creates the common state of all attachments of a network: it exists from the first one on.
fn begin(host: &mut Host, config: &Value) {
    let first = host.pod();
    let leased = leased(config, &["10.1.2.0/24"]);
    host.add(&first, &leased);
    host.del(&first, &leased);
}

fn comes_and_goes(host: &mut Host, config: &Value) {
    let pod = host.pod();
    let before = host.state(&pod);
    let result = host.add(&pod, config);
    assert!(pod.net1().is_up());
    assert_eq!(pod.addresses().len(), 2, "{:?}", pod.addresses());
    let interfaces = result["interfaces"].as_array().unwrap();
    let index = interfaces
        .iter()
        .position(|interface| interface["sandbox"] == pod.path)
        .unwrap();
    let mac = pod.net1().mac.map(|mac| mac.to_string());
    assert_eq!(interfaces[index]["name"], "net1");
    assert_eq!(interfaces[index]["mac"].as_str(), mac.as_deref());
    assert_eq!(interfaces[index]["mtu"], pod.net1().mtu);
    for ip in result["ips"].as_array().unwrap() {
        assert_eq!(ip["interface"], index, "{result}");
    }
    host.check(&pod, config, &result).success();
    assert_eq!(host.records().len(), 1, "{:?}", host.records());
    host.del(&pod, config);
    assert_eq!(host.state(&pod), before);
    host.del(&pod, config);
}

fn repeated_add_changes_nothing(host: &mut Host, config: &Value) {
    let pod = host.pod();
    host.add(&pod, config);
    let before = host.state(&pod);
    let message = host.call("ADD", &pod, config).message();
    assert!(message.contains("\"net1\""), "{message}");
    assert_eq!(host.state(&pod), before);
    host.del(&pod, config);
}

fn a_failed_add_leaves_nothing(host: &mut Host, config: &Value) {
    let pod = host.pod();
    let before = host.state(&pod);
    let config = failing(host, config);
    let message = host.call("ADD", &pod, &config).message();
    assert!(
        message.starts_with("failed to add route '10.9.0.0/16"),
        "{message}"
    );
    assert_eq!(host.fake_calls(), ["ADD", "DEL"]);
    assert_eq!(host.state(&pod), before);
    host.fake_ipam(&json!({ "cniVersion": "1.0.0" }));
    let message = host.call("ADD", &pod, &config).message();
    assert_eq!(message, "IPAM plugin returned missing IP config");
    assert_eq!(host.fake_calls(), ["ADD", "DEL"]);
    assert_eq!(host.state(&pod), before);
    // An interface with another owner is kept.
    let foreign = linux::link::BridgeSpec {
        name: "net1",
        mtu: None,
        mac: None,
        vlan_filtering: false,
    };
    pod.with(|socket| socket.create_bridge(&foreign));
    let before = host.state(&pod);
    let message = host.call("ADD", &pod, &config).message();
    assert!(message.contains("exists"), "{message}");
    assert_eq!(host.state(&pod), before);
}

fn check_detects_changes(host: &mut Host, config: &Value) {
    let mut after = |spoil: &dyn Fn(&Pod)| {
        let pod = host.pod();
        let result = host.add(&pod, config);
        spoil(&pod);
        let message = host.check(&pod, config, &result).message();
        host.del(&pod, config);
        message
    };
    let down = after(&|pod| {
        let net1 = pod.net1();
        pod.with(|socket| socket.set_down(&net1));
    });
    assert_eq!(down, "Interface net1 is down");
    let address = after(&|pod| {
        let (net1, first) = (pod.net1(), pod.addresses()[0].parse().unwrap());
        pod.with(|socket| socket.delete_address(&net1, first));
    });
    assert!(address.starts_with("Failed to match addr 10.1.2."), "{address}");
    let route = after(&|pod| {
        let route = linux::routes::Route::to("10.9.0.0/16".parse().unwrap());
        pod.with(|socket| socket.delete_route(&route));
    });
    assert_eq!(
        route,
        "Expected Route 10.9.0.0/16 via 10.1.2.1 not found in routing table"
    );
    let pod = host.pod();
    let result = host.add(&pod, config);
    let other = host.pod_like(&pod);
    let elsewhere = host.check(&other, config, &result).message();
    assert!(elsewhere.contains("Sandbox in prevResult"), "{elsewhere}");
    let without = host.call("CHECK", &pod, config).message();
    assert_eq!(without, "Required prevResult missing");
    host.del(&pod, config);
}

fn goes_without_its_namespace(host: &mut Host, config: &Value) {
    let pod = host.pod();
    host.add(&pod, config);
    pod.lose_path();
    host.del(&pod, config);
    let state = host.state(&pod);
    assert!(!state.contains(&pod.id), "{state}");
    // The first container's namespace is still there, without a path.
    let (pod, config) = (host.pod(), &beside(config));
    host.add(&pod, config);
    // The runtime does not know the path any more, the record does.
    let without_path = host.pod_without_path(&pod);
    host.del(&without_path, config);
    let state = host.state(&pod);
    assert!(!state.contains(&pod.id) && !state.contains("net1"), "{state}");
}

fn collect(host: &Host, config: &Value, valid: &[&Pod]) {
    let valid: Vec<_> = valid
        .iter()
        .map(|pod| json!({ "containerID": pod.id, "ifname": "net1" }))
        .collect();
    let outcome = host.gc(&with(config, "cni.dev/valid-attachments", valid.into()));
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, ""), "{outcome:?}");
}

/// A config of the same network for another attachment at the same time: a parent has one VLAN of a tag, in whatever
/// namespace.
fn beside(config: &Value) -> Value {
    match config["vlanId"].as_u64() {
        Some(tag) => with(config, "vlanId", (tag + 1).into()),
        None => config.clone(),
    }
}

fn is_collected(host: &mut Host, config: &Value) {
    let (keep, lose) = (host.pod(), host.pod());
    let before = host.state(&lose);
    host.add(&keep, &beside(config));
    host.add(&lose, config);
    let outcome = host.gc(config);
    assert!(outcome.stderr.contains("removed nothing"), "{outcome:?}");
    collect(host, config, &[&keep, &lose]);
    assert!(lose.link("net1").is_some());
    collect(host, config, &[&keep]);
    assert!(lose.link("net1").is_none() && keep.link("net1").is_some());
    collect(host, config, &[]);
    assert_eq!(host.state(&lose), before);
    assert!(keep.link("net1").is_none());
}

fn survives_being_killed(host: &mut Host, config: &Value) {
    let (neighbour, pod) = (host.pod(), host.pod());
    host.add(&neighbour, config);
    let before = host.state(&pod);
    let mut killer = Killer::new(host, &pod, config, KILLS);
    while let Some(round) = killer.kill(host, &pod, config) {
        // An ADD after it begins anew, unless the link exists.
        if round.number % 4 == 0 && pod.link("net1").is_none() {
            host.add(&pod, config);
        }
        if round.number % 3 == 0 {
            collect(host, config, &[&neighbour]);
        } else {
            host.del(&pod, config);
        }
        assert_eq!(host.state(&pod), before, "{round}");
    }
    host.add(&pod, config);
    host.del(&pod, config);
    host.del(&neighbour, config);
}
