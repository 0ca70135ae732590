//! Persistent addresses on networks whose plugin has no pool (kubevirt-ipam §16).

use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use stage::Hold;

use crate::manager::Managing;
use crate::stage::{
    NAMESPACE, NS, Stage, claims, instance, instances, launcher, machines, owner, pods, until,
};

const LAN: &str =
    r#"{"name":"lan","allowPersistentIPs":true,"persistentIPRanges":[{"subnet":"10.0.0.0/29"}]}"#;

fn start(config: &str) -> (Stage, Managing) {
    let stage = Stage::start().granted();
    stage.network("supadupanet", config);
    let manager = Managing::start(&stage);
    (stage, manager)
}

/// An instance on the network only.
fn on_lan(name: &str) -> Value {
    let mut vmi = instance(name);
    vmi["spec"]["networks"] = json!([{ "name": "lan", "multus": { "networkName": "ns1/supadupanet" } }]);
    vmi
}

/// Waits until a claim has addresses, and returns them.
fn addresses(stage: &Stage, claim: &str) -> Vec<String> {
    stage.wait_for_claim(claim, |claim| {
        serde_json::from_value(claim?["status"]["ips"].clone()).ok()
    })
}

// kubevirt-ipam#101
#[test]
fn machines_get_free_addresses() {
    let stage = Stage::start().granted();
    stage.network(
        "supadupanet",
        r#"{"name":"lan","allowPersistentIPs":true,
            "persistentIPRanges":[{"subnet":"10.0.0.0/24","rangeStart":"10.0.0.50"},{"subnet":"fd00::/64"}]}"#,
    );
    let mark = stage.mark();
    let manager = Managing::start(&stage);
    // This claim is in another namespace and has no virtual machine, on a network of the same name.
    stage.namespace("ns2", &[]);
    let foreign = json!({
        "apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim", "metadata": { "name": "foreign" },
        "spec": { "network": "lan", "interface": "" },
    });
    stage.create(&claims("ns2"), &foreign);
    let status = json!({ "ips": ["10.0.0.51/24"] });
    stage.report(&format!("{}/foreign", claims("ns2")), &status);
    until("the address to be known", || {
        let state = kubevirt_ipam::state::lock(&manager.shared);
        let id = kube_kit::watch::Name::new("ns2", "foreign");
        let claim = kubevirt_ipam::mutate::Lookup::claim(&*state, &id);
        if claim.is_some_and(|claim| !claim.ips.is_empty()) {
            Ok(())
        } else {
            Err("not yet")
        }
    });
    stage.create(&instances(NS), &on_lan("vm1"));
    assert_eq!(addresses(&stage, "vm1.lan"), ["10.0.0.50/24", "fd00::2/64"]);
    stage.create(&instances(NS), &on_lan("vm2"));
    assert_eq!(addresses(&stage, "vm2.lan"), ["10.0.0.52/24", "fd00::3/64"]);
    stage.assert_never_refused(mark);
    stage.delete(&format!("{}/foreign", claims("ns2")));
    stage.delete("/api/v1/namespaces/ns2");
    let free = json!({
        "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "ns2" }, "spec": { "finalizers": [] },
    });
    stage
        .send(
            crate::stage::Method::PUT,
            "/api/v1/namespaces/ns2/finalize",
            Some(&free),
        )
        .accepted();
}

// kubevirt-ipam#100, kubevirt-ipam#102
#[test]
fn address_outlives_the_pod_and_not_the_machine() {
    let (stage, manager) = start(LAN);
    stage.configure(manager.port);
    let vm = stage.machine("vm1");
    let mut vmi = on_lan("vm1");
    vmi["metadata"]["ownerReferences"] = json!([owner(&vm)]);
    stage.create(&instances(NS), &vmi);
    assert_eq!(addresses(&stage, "vm1.lan"), ["10.0.0.2/29"]);
    let expected = r#"[{"name":"supadupanet","namespace":"ns1","ips":["10.0.0.2/29"],"ipam-claim-reference":"vm1.lan"}]"#;
    until("the webhook to be called", || {
        let path = format!("{}?dryRun=All", pods(NS));
        let pod = stage
            .try_create(&path, &launcher("pod1", "vm1", "ns1/supadupanet"))
            .object;
        let networks = pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"].clone();
        if networks == expected {
            Ok(())
        } else {
            Err(networks.to_string())
        }
    });
    // The virtual machine is stopped, and started again beside another one.
    stage.delete(&format!("{}/vm1", instances(NS)));
    stage.create(&instances(NS), &on_lan("vm2"));
    assert_eq!(addresses(&stage, "vm2.lan"), ["10.0.0.3/29"]);
    stage.create(&instances(NS), &vmi);
    assert_eq!(addresses(&stage, "vm1.lan"), ["10.0.0.2/29"]);

    stage.delete(&format!("{}/vm1", instances(NS)));
    stage.delete(&format!("{}/vm1", machines(NS)));
    stage.wait_until_held("vm1.lan", false);
    stage.delete(&format!("{}/vm1.lan", claims(NS)));
    stage.create(&instances(NS), &on_lan("vm3"));
    assert_eq!(addresses(&stage, "vm3.lan"), ["10.0.0.2/29"]);
}

// kubevirt-ipam#113
#[test]
fn claim_of_an_earlier_machine_gives_no_addresses() {
    let stage = Stage::start().granted();
    stage.network("supadupanet", LAN);
    let run = || {
        let mut vmi = on_lan("vm1");
        vmi["metadata"]["ownerReferences"] = json!([owner(&stage.machine("vm1"))]);
        stage.create(&instances(NS), &vmi);
    };
    let manager = Managing::start(&stage);
    stage.create(&instances(NS), &on_lan("vm2"));
    assert_eq!(addresses(&stage, "vm2.lan"), ["10.0.0.2/29"]);
    run();
    assert_eq!(addresses(&stage, "vm1.lan"), ["10.0.0.3/29"]);
    drop(manager);
    for path in [
        format!("{}/vm1", instances(NS)),
        format!("{}/vm1", machines(NS)),
        format!("{}/vm2", instances(NS)),
    ] {
        stage.delete(&path);
    }
    // Garbage collection has deleted one claim, and is late with the other.
    stage.let_go(&claims(NS), "vm2.lan");
    stage.delete(&format!("{}/vm2.lan", claims(NS)));
    run();
    // This replica answers reviews, and another one that does nothing holds the Lease.
    stage.create(
        &format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"),
        &json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": { "name": "71d89df3" },
            "spec": { "holderIdentity": "other", "leaseDurationSeconds": 3600 },
        }),
    );
    let follower = Managing::elected(&stage, "follower");
    stage.configure(follower.port);
    let path = format!("{}?dryRun=All", pods(NS));
    let admit = || stage.try_create(&path, &launcher("pod1", "vm1", "ns1/supadupanet"));
    let text = until("the webhook to be called", || {
        let answer = admit();
        let networks = &answer.object["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"];
        if networks == "ns1/supadupanet" {
            return Err("not yet");
        }
        Ok(answer.refused())
    });
    assert!(
        text.ends_with("IPAMClaim \"ns1/vm1.lan\" has no addresses yet: try again"),
        "{text}"
    );
    let _manager = Managing::start(&stage);
    stage.delete(&format!("{}/vm1.lan", claims(NS)));
    let expected = r#"[{"name":"supadupanet","namespace":"ns1","ips":["10.0.0.2/29"],"ipam-claim-reference":"vm1.lan"}]"#;
    until("the claim to be the new machine's", || {
        let answer = admit().object;
        let networks = answer["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"].clone();
        if networks == expected {
            Ok(())
        } else {
            Err(answer.to_string())
        }
    });
}

// kubevirt-ipam#103, kubevirt-ipam#99
#[test]
fn full_range_and_refused_requests_are_reported_and_retried() {
    let (stage, _manager) = start(
        r#"{"name":"lan","allowPersistentIPs":true,
            "persistentIPRanges":[{"subnet":"10.0.0.0/29","exclude":["10.0.0.4/30"]}]}"#,
    );
    let mut asks = on_lan("asks");
    asks["metadata"]["annotations"] = json!({ "network.kubevirt.io/addresses": r#"{"lan":["10.0.0.3"]}"# });
    stage.create(&instances(NS), &asks);
    assert_eq!(addresses(&stage, "asks.lan"), ["10.0.0.3/29"]);
    let mut late = asks.clone();
    late["metadata"]["name"] = json!("late");
    stage.create(&instances(NS), &late);
    stage.wait_for_event(
        "Warning IPAMClaimWithoutAddress VirtualMachineInstance/late x1: IPAMClaim \"late.lan\" gets no addresses on \
         network \"lan\": the requested address 10.0.0.3 is taken by IPAMClaim \"ns1/asks.lan\"",
    );
    stage.create(&instances(NS), &on_lan("second"));
    assert_eq!(addresses(&stage, "second.lan"), ["10.0.0.2/29"]);
    stage.create(&instances(NS), &on_lan("third"));
    stage.wait_for_event(
        "Warning IPAMClaimWithoutAddress VirtualMachineInstance/third x1: IPAMClaim \"third.lan\" gets no addresses on \
         network \"lan\": all IPv4 addresses of the network's range are taken",
    );
    // The back-off doubles: the next attempt is more than four seconds away then.
    thread::sleep(Duration::from_secs(6));
    stage.delete(&format!("{}/second", instances(NS)));
    stage.wait_until_held("second.lan", false);
    let freed = Instant::now();
    stage.delete(&format!("{}/second.lan", claims(NS)));
    assert_eq!(addresses(&stage, "third.lan"), ["10.0.0.2/29"]);
    assert!(freed.elapsed() < Duration::from_secs(2), "{:?}", freed.elapsed());
}

// kubevirt-ipam#104
#[test]
fn odd_addresses_are_reported() {
    let (stage, _manager) = start(LAN);
    stage.create(&instances(NS), &on_lan("vm1"));
    assert_eq!(addresses(&stage, "vm1.lan"), ["10.0.0.2/29"]);
    let both = json!({ "ips": ["10.0.0.2/29", "10.9.9.9/24"] });
    stage.existing_claim("vm2.lan", "vm2", |claim| {
        claim["metadata"]["finalizers"] = json!([]);
        claim["metadata"]["labels"] = json!({});
        claim["spec"]["network"] = json!("lan");
    });
    stage.report(&format!("{}/vm2.lan", claims(NS)), &both);
    let touched = json!({ "metadata": { "annotations": { "network.kubevirt.io/addresses": "{}" } } });
    stage
        .patch(&format!("{}/vm1", instances(NS)), &touched)
        .accepted();
    stage.wait_for_event(
        "Warning IPAMClaimAddress VirtualMachineInstance/vm1 x1: address 10.0.0.2 of IPAMClaim \"vm1.lan\" is held by \
         IPAMClaim \"ns1/vm2.lan\" too",
    );
    stage.network(
        "other",
        r#"{"name":"wan","allowPersistentIPs":true,"persistentIPRanges":[{"subnet":"10.0.0.0/24"}]}"#,
    );
    stage.network(
        "supadupanet",
        r#"{"name":"lan","allowPersistentIPs":true,"persistentIPRanges":[{"subnet":"10.0.0.128/25"}]}"#,
    );
    stage.wait_for_event(
        "Warning IPAMClaimAddress VirtualMachineInstance/vm1 x1: address 10.0.0.2 of IPAMClaim \"vm1.lan\" is not in the \
         range of network \"lan\"; it is kept",
    );
    stage.wait_for_event(
        "Warning IPAMClaimAddress VirtualMachineInstance/vm1 x1: networks \"lan\" and \"wan\" have ranges that overlap",
    );
    assert_eq!(addresses(&stage, "vm1.lan"), ["10.0.0.2/29"]);
}

// kubevirt-ipam#105
#[test]
fn new_leader_gives_no_address_twice_though_its_watch_is_late() {
    let stage = Stage::start().granted();
    stage.network("supadupanet", LAN);
    let first = Managing::elected(&stage, "first");
    stage.create(&instances(NS), &on_lan("before"));
    assert_eq!(addresses(&stage, "before.lan"), ["10.0.0.2/29"]);
    let hold = Hold::watches_of("ipamclaims");
    // The second replica lists before the next allocation, and its watch is silent.
    let second = Managing::launch(&stage, Some(hold.clone()), "second", |settings| {
        settings.elect = true;
    });
    stage.create(&instances(NS), &on_lan("vm1"));
    assert_eq!(addresses(&stage, "vm1.lan"), ["10.0.0.3/29"]);
    drop(first);
    until("the lease", || {
        if second.leadership.may_write() {
            Ok(())
        } else {
            Err("not yet")
        }
    });
    for (name, address) in [("vm2", "10.0.0.4/29"), ("vm3", "10.0.0.5/29")] {
        stage.create(&instances(NS), &on_lan(name));
        assert_eq!(addresses(&stage, &format!("{name}.lan")), [address]);
    }
    hold.release();
}

// kubevirt-ipam#108
#[test]
fn claim_follows_the_name_of_its_network_until_it_has_addresses() {
    let (stage, _manager) = start(
        r#"{"name":"old","allowPersistentIPs":true,"persistentIPRanges":[{"subnet":"10.0.0.0/30","gateway":"10.0.0.2"}]}"#,
    );
    stage.create(&instances(NS), &on_lan("vm1"));
    assert_eq!(addresses(&stage, "vm1.lan"), ["10.0.0.1/30"]);
    // The range has no address for another instance.
    stage.create(&instances(NS), &on_lan("vm2"));
    stage.wait_for_event(
        "Warning IPAMClaimWithoutAddress VirtualMachineInstance/vm2 x1: IPAMClaim \"vm2.lan\"",
    );
    stage.network(
        "supadupanet",
        r#"{"name":"new","allowPersistentIPs":true,"persistentIPRanges":[{"subnet":"10.0.0.0/29"}]}"#,
    );
    let network = |claim: &str| stage.claim(claim).expect("a claim")["spec"]["network"].clone();
    assert_eq!(addresses(&stage, "vm2.lan"), ["10.0.0.2/29"]);
    assert_eq!(network("vm2.lan"), "new");
    // The addresses of this instance's claim are taken by other claims.
    stage.create(&instances(NS), &on_lan("vm3"));
    assert_eq!(addresses(&stage, "vm3.lan"), ["10.0.0.3/29"]);
    stage.wait_for_event(
        "Warning IPAMClaimAddress VirtualMachineInstance/vm1 x1: IPAMClaim \"vm1.lan\" holds addresses of network \"old\", \
         and the virtual machine's network is \"new\" now; they are kept",
    );
    assert_eq!(
        (network("vm1.lan"), addresses(&stage, "vm1.lan")),
        (json!("old"), vec!["10.0.0.1/30".to_owned()])
    );
}

// kubevirt-ipam#107
#[test]
fn requested_address_in_no_subnet_is_reported() {
    let stage = Stage::start().granted();
    let _manager = Managing::start(&stage);
    stage.both_networks();
    let mut vmi = instance("vm1");
    vmi["metadata"]["annotations"] =
        json!({ "network.kubevirt.io/addresses": r#"{"podnet":["192.168.1.10","fd20:1234::200"]}"# });
    stage.create(&instances(NS), &vmi);
    stage.wait_until_held("vm1.podnet", true);
    let text = "Warning IPAMClaimAddress VirtualMachineInstance/vm1 x1: requested address fd20:1234::200 is in no subnet of \
                network \"primarynet\" (192.168.0.0/16,fd12:1234::123/64)";
    stage.wait_for_event(text);
    let about = |event: &&String| event.contains("requested address");
    assert_eq!(stage.events(NS).iter().filter(about).count(), 1);
}

// kubevirt-ipam#111
#[test]
fn instances_that_start_at_once_get_addresses_of_their_own() {
    let (stage, manager) =
        start(r#"{"name":"lan","allowPersistentIPs":true,"persistentIPRanges":[{"subnet":"10.0.0.0/26"}]}"#);
    let names: Vec<_> = (0..40).map(|number| format!("vm{number}")).collect();
    std::thread::scope(|scope| {
        for some in names.chunks(10) {
            let stage = &stage;
            scope.spawn(move || {
                for name in some {
                    stage.create(&instances(NS), &on_lan(name));
                }
            });
        }
    });
    let given: std::collections::BTreeSet<_> = names
        .iter()
        .flat_map(|name| addresses(&stage, &format!("{name}.lan")))
        .collect();
    assert_eq!(given.len(), names.len(), "{given:?}");
    manager.wait_until_idle();
    // The lowest addresses are allocated: none is lost.
    let expected: std::collections::BTreeSet<_> =
        (2..42).map(|number| format!("10.0.0.{number}/26")).collect();
    assert_eq!(given, expected);
}
