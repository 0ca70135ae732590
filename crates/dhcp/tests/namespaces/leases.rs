//! ADD, CHECK, DEL, STATUS and GC.

use std::fs;

use serde_json::json;

use crate::stage::{config, message, on_a_host, records, run, server_leases, server_log, success, wait_for};

const RANGE: &str = "10.77.0.10,10.77.0.19";

#[test]
fn a_lease_sets_address_routes_and_dns_until_it_is_released() {
    // cni-plugins#45
    on_a_host("a lease", |host| {
        let options = ["--dhcp-option=6,10.77.0.53", "--dhcp-option=15,pods.example"];
        let _server = host.server(RANGE, &options);
        let _daemon = host.daemon(&[]);
        let pod = host.pod();
        let named = json!({ "provide": [{ "option": "host-name", "fromArg": "K8S_POD_NAME" }] });
        let ipam = config(&named);
        let result = pod.add(&ipam);
        let address = result["ips"][0]["address"].as_str().unwrap().to_owned();
        assert!(
            address.starts_with("10.77.0.1") && address.ends_with("/24"),
            "{result}"
        );
        assert_eq!(result["ips"][0]["gateway"], "10.77.0.1");
        assert_eq!(
            result["routes"],
            json!([{ "dst": "0.0.0.0/0", "gw": "10.77.0.1" }])
        );
        let dns = json!({ "domain": "pods.example", "nameservers": ["10.77.0.53"] });
        assert_eq!(result["dns"], dns, "{result}");
        assert_eq!(pod.addresses(), [address]);
        assert_eq!(pod.routes(), ["0.0.0.0/0 via 10.77.0.1"]);
        assert!(server_leases().contains("pod-name"), "{}", server_leases());
        // A second ADD of the IPAM plugin gets the same lease.
        let mut alone = ipam.clone();
        alone["type"] = "dhcp".into();
        let again = success(&pod.call("ADD", "net1", &alone));
        assert_eq!(again["dns"], dns);
        assert_eq!(again["ips"][0]["address"], result["ips"][0]["address"]);
        let mut check = ipam.clone();
        check["prevResult"] = result;
        success(&pod.call("CHECK", "net1", &check));
        pod.del(&ipam);
        wait_for("the release", || server_leases().is_empty().then_some(()));
        assert!(records().is_empty());
        pod.del(&ipam);
    });
}

#[test]
fn two_interfaces_of_a_container_get_two_leases() {
    // cni-plugins#45
    on_a_host("two leases", |host| {
        let _server = host.server(RANGE, &[]);
        let _daemon = host.daemon(&[]);
        let pod = host.pod();
        let ipam = config(&json!({}));
        let one = pod.add(&ipam);
        let two = success(&pod.call("ADD", "net2", &ipam));
        assert_ne!(one["ips"][0]["address"], two["ips"][0]["address"]);
        assert_eq!(server_leases().lines().count(), 2, "{}", server_leases());
    });
}

#[test]
fn classless_routes_replace_the_route_by_the_router() {
    // cni-plugins#45
    on_a_host("classless routes", |host| {
        let option = "--dhcp-option=121,10.88.0.0/16,10.77.0.2";
        let _server = host.server(RANGE, &[option]);
        let _daemon = host.daemon(&[]);
        let pod = host.pod();
        let result = pod.add(&config(
            &json!({ "request": [{ "option": "121" }], "priority": 7 }),
        ));
        assert_eq!(
            result["routes"],
            json!([{ "dst": "10.88.0.0/16", "gw": "10.77.0.2", "priority": 7 }])
        );
        assert_eq!(pod.routes(), ["10.88.0.0/16 via 10.77.0.2"]);
    });
}

#[test]
fn a_silent_server_fails_add_and_leaves_nothing() {
    // cni-plugins#45
    on_a_host("a silent server", |host| {
        let _daemon = host.daemon(&["--timeout=300ms", "--resendtimeout=1s"]);
        let pod = host.pod();
        let ipam = config(&json!({}));
        let text = message(&pod.call("ADD", "net1", &ipam));
        assert_eq!(text, "error calling DHCP.Allocate: no more tries");
        assert!(!pod.has_link("net1"));
        assert!(records().is_empty());
        pod.del(&ipam);
    });
}

#[test]
fn a_server_that_starts_late_is_found_by_a_retry() {
    on_a_host("a late server", |host| {
        let _daemon = host.daemon(&["--timeout=200ms"]);
        let pod = host.pod();
        std::thread::scope(|scope| {
            let add = scope.spawn(|| pod.add(&config(&json!({}))));
            wait_for("the link", || pod.has_link("net1").then_some(()));
            let _server = host.server(RANGE, &[]);
            let result = add.join().unwrap();
            assert_eq!(result["ips"][0]["gateway"], "10.77.0.1");
        });
    });
}

#[test]
fn a_call_without_the_daemon_names_it() {
    // cni-plugins#45
    on_a_host("no daemon", |host| {
        let pod = host.pod();
        let ipam = config(&json!({}));
        let text = message(&pod.call("ADD", "net1", &ipam));
        assert!(text.starts_with("error dialing DHCP daemon: "), "{text}");
        assert!(!pod.has_link("net1"));
        let variables = [("CNI_COMMAND", "STATUS"), ("CNI_PATH", "/nowhere")];
        let status = run(&variables, &ipam);
        assert!(status.stdout.contains("\"code\": 50"), "{status:?}");
        let daemon = host.daemon(&[]);
        success(&run(&variables, &ipam));
        assert!(daemon.terminate());
        assert!(!fs::exists(crate::stage::SOCKET).unwrap());
    });
}

#[test]
fn gc_releases_the_leases_of_attachments_that_are_not_valid() {
    on_a_host("garbage collection", |host| {
        let _server = host.server(RANGE, &[]);
        let _daemon = host.daemon(&[]);
        let (kept, stale) = (host.pod(), host.pod());
        let mut ipam = config(&json!({}));
        let address = |pod: &crate::stage::Pod| {
            let result = pod.add(&ipam);
            let address = result["ips"][0]["address"].as_str().unwrap();
            address.trim_end_matches("/24").to_owned()
        };
        let (kept_address, stale_address) = (address(&kept), address(&stale));
        ipam["type"] = "dhcp".into();
        ipam["cni.dev/valid-attachments"] = json!([kept.valid()]);
        success(&run(&[("CNI_COMMAND", "GC"), ("CNI_PATH", "/nowhere")], &ipam));
        wait_for("the release", || {
            (!server_leases().contains(&format!("{stale_address} "))).then_some(())
        });
        assert!(server_leases().contains(&kept_address), "{}", server_log());
        assert_eq!(records().len(), 1);
    });
}
