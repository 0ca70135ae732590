//! State that survives restarts of the daemon, and changes at a renewal.

use std::{fs, path::Path, time::Duration};

use linux::monitor::HostEvent;
use serde_json::{Value, json};

use crate::stage::{
    ACTIVATED, Host, Pod, Process, SOCKET, config, forget_server_leases, on_a_host, records, server_leases,
    server_log, wait_for,
};

const RANGE: &str = "10.77.0.10,10.77.0.19";
/// The route of another plugin.
const FOREIGN: &str = "10.8.0.0/16 via 10.77.0.9";
/// More than half of the server's lease time of two minutes.
const PAST_RENEWAL: Duration = Duration::from_secs(70);

/// Kills the daemon and ages its only lease, as after a long absence.
fn kill_and_age(daemon: Process) {
    daemon.kill();
    let path = &records()[0];
    let mut record: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let since = record["since"]["secs"].as_u64().unwrap();
    assert!(
        since > PAST_RENEWAL.as_secs(),
        "the machine has just been started"
    );
    record["since"]["secs"] = (since - PAST_RENEWAL.as_secs()).into();
    fs::write(path, record.to_string()).unwrap();
}

/// Waits until the link has one address, of the second server's range.
fn wait_for_new_address(pod: &Pod) {
    wait_for("the new address", || {
        let addresses = pod.addresses();
        (addresses.len() == 1 && addresses[0].starts_with("10.77.0.5")).then_some(())
    });
}

/// A new pod with a lease and the route [`FOREIGN`], whose lease another server with other addresses, and with this option,
/// has renewed: the pod, that server and the daemon.
fn renewed_by_another_server(host: &mut Host, ipam: &Value, option: &str) -> (Pod, Process, Process) {
    let server = host.server(RANGE, &[]);
    let daemon = host.daemon(&[]);
    let pod = host.pod();
    pod.add(&config(ipam));
    pod.add_route("10.8.0.0/16", "10.77.0.9");
    server.kill();
    forget_server_leases();
    let server = host.server("10.77.0.50,10.77.0.59", &[option]);
    kill_and_age(daemon);
    let daemon = host.daemon(&[]);
    wait_for_new_address(&pod);
    (pod, server, daemon)
}

/// Counts lines of the server's log.
fn logged(kind: &str) -> usize {
    let log = server_log();
    log.lines().filter(|line| line.contains(kind)).count()
}

#[test]
fn killed_daemon_continues_with_its_leases() {
    // cni-plugins#45
    on_a_host("a killed daemon", |host| {
        let _server = host.server(RANGE, &[]);
        let daemon = host.daemon(&[]);
        let pod = host.pod();
        let ipam = config(&json!({}));
        pod.add(&ipam);
        let addresses = pod.addresses();
        let (searches, leases) = (logged("DHCPDISCOVER("), logged("DHCPACK("));
        assert!(leases > 0, "{}", server_log());
        kill_and_age(daemon);
        let _daemon = host.daemon(&[]);
        wait_for("the renewal", || (logged("DHCPACK(") > leases).then_some(()));
        assert_eq!(logged("DHCPDISCOVER("), searches, "{}", server_log());
        assert_eq!(pod.addresses(), addresses);
        pod.del(&ipam);
        wait_for("the release", || server_leases().is_empty().then_some(()));
        assert!(records().is_empty());
    });
}

#[test]
fn a_lease_whose_container_ended_is_forgotten_at_the_start() {
    on_a_host("a container that ended", |host| {
        let _server = host.server(RANGE, &[]);
        let daemon = host.daemon(&[]);
        let mut ended = host.pod();
        let lives = host.pod();
        let ipam = config(&json!({}));
        ended.add(&ipam);
        lives.add(&ipam);
        assert_eq!(records().len(), 2);
        assert!(daemon.terminate());
        assert_eq!(records().len(), 2);
        ended.end();
        let _daemon = host.daemon(&[]);
        wait_for("the end of a record", || (records().len() == 1).then_some(()));
        let record = fs::read_to_string(&records()[0]).unwrap();
        assert!(record.contains("container-2"), "{record}");
    });
}

#[test]
fn another_address_at_a_renewal_is_set_on_the_link() {
    on_a_host("another address", |host| {
        let (pod, _server, _daemon) =
            renewed_by_another_server(host, &json!({}), "--dhcp-option=3,10.77.0.2");
        wait_for("the new route beside the foreign one", || {
            (pod.routes() == ["0.0.0.0/0 via 10.77.0.2", FOREIGN]).then_some(())
        });
    });
}

#[test]
fn a_change_of_the_link_that_failed_is_made_by_the_next_daemon_alone() {
    on_a_host("a failed change", |host| {
        // The second gateway is in no subnet of the link, so that the kernel refuses its route.
        let (pod, _server, daemon) = renewed_by_another_server(
            host,
            &json!({ "request": [{ "option": "121" }] }),
            "--dhcp-option=121,0.0.0.0/0,10.77.0.1,10.9.0.0/16,10.99.0.1",
        );
        let usual = "0.0.0.0/0 via 10.77.0.1";
        wait_for("the usual route", || {
            (pod.routes() == [usual, FOREIGN]).then_some(())
        });
        let lacking = || {
            fs::read_to_string(&records()[0])
                .unwrap()
                .matches("addRoute")
                .count()
        };
        wait_for("the record of the failure", || (lacking() == 1).then_some(()));
        kill_and_age(daemon);
        pod.add_address("10.99.0.2/24");
        let mut events = pod.events();
        let _daemon = host.daemon(&[]);
        wait_for("the new route", || {
            (pod.routes() == [usual, FOREIGN, "10.9.0.0/16 via 10.99.0.1"]).then_some(())
        });
        wait_for("the record of the change", || (lacking() == 0).then_some(()));
        while let Some(event) = events.pending().unwrap() {
            let is_usual = matches!(&event, HostEvent::Route(route) if route.dst.prefix_len() == 0);
            assert!(!is_usual, "{event:?}");
        }
    });
}

#[test]
fn the_socket_of_a_service_manager_is_used() {
    on_a_host("socket activation", |host| {
        let _server = host.server(RANGE, &[]);
        let daemon = host.activated_daemon();
        let pod = host.pod();
        let ipam = config(&json!({ "daemonSocketPath": ACTIVATED }));
        pod.add(&ipam);
        assert_eq!(pod.addresses().len(), 1);
        assert!(!Path::new(SOCKET).exists());
        pod.del(&ipam);
        assert!(daemon.terminate());
        assert!(Path::new(ACTIVATED).exists(), "the file is the manager's");
    });
}

#[test]
fn a_daemon_that_is_killed_before_it_changes_the_link_is_continued() {
    on_a_host("a kill before a change", |host| {
        let _server = host.server(RANGE, &[]);
        let daemon = host.daemon(&[]);
        let pod = host.pod();
        pod.add(&config(&json!({})));
        daemon.kill();
        let path = &records()[0];
        let mut record: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
        let (old, new) = (record["lease"]["address"].clone(), "10.77.0.55/24");
        let route = record["lease"]["routes"][0].clone();
        record["lacking"] = json!([
            { "removeRoute": route }, { "removeAddress": old }, { "addAddress": new }, { "addRoute": route },
        ]);
        record["lease"]["address"] = new.into();
        fs::write(path, record.to_string()).unwrap();
        let _daemon = host.daemon(&[]);
        wait_for_new_address(&pod);
        wait_for("the route", || {
            (pod.routes() == ["0.0.0.0/0 via 10.77.0.1"]).then_some(())
        });
    });
}
