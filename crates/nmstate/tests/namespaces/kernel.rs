//! Hosts without NetworkManager: the roll-back is our own.

use std::fs;
use std::os::fd::AsFd as _;
use std::path::PathBuf;

use linux::link::{LinkChange, VethSpec};
use linux::route::Socket;
use rustix::mount::MountFlags;
use serde_json::{Value, json};
use weft_nmstate::dry_run::outcome;
use weft_nmstate::engine::{Backend, Engine};

use crate::beyond::{Beyond, apply};
use crate::host::{interface, wait};
use crate::victim;

/// A host that is a namespace: `eth1` with an address and a default route; its other end is in another namespace.
pub(crate) struct Host {
    _beyond: Beyond,
    directory: tempfile::TempDir,
}

impl Host {
    /// Makes one, and puts the calling thread onto it.
    pub(crate) fn enter() -> Self {
        linux::process::unshare_mounts().unwrap();
        linux::netns::unshare_network().unwrap();
        let directory = tempfile::tempdir().unwrap();
        let resolv_conf = directory.path().join("resolv.conf");
        fs::write(&resolv_conf, "nameserver 192.0.2.1\n").unwrap();
        rustix::mount::mount_bind(&resolv_conf, "/etc/resolv.conf").unwrap();
        // Automatic IPv6 addresses would make two reports of the same host differ.
        for which in ["all", "default"] {
            let _ = fs::write(format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6"), "1");
        }
        let beyond = Beyond::new();
        let mut socket = Socket::open().unwrap();
        let veth = VethSpec {
            name: "eth1",
            mac: None,
            mtu: None,
            peer_name: "wire",
            peer_ns: Some(beyond.0.as_fd()),
        };
        socket.create_veth(&veth).unwrap();
        let up = |socket: &mut Socket, name: &str, net: &str| {
            let link = socket.link_by_name(name).unwrap();
            socket.add_address(&link, net.parse().unwrap()).unwrap();
            socket.set_up(&link).unwrap();
        };
        beyond.serve();
        up(&mut socket, "eth1", "192.0.2.2/24");
        let eth1 = socket.link_by_name("eth1").unwrap();
        let lo = socket.link_by_name("lo").unwrap();
        socket.set_up(&lo).unwrap();
        let mut route = linux::routes::Route::to("0.0.0.0/0".parse().unwrap());
        route.gateway = Some("192.0.2.1".parse().unwrap());
        route.link = Some(eth1.index);
        socket.add_route(&route).unwrap();
        Self {
            _beyond: beyond,
            directory,
        }
    }

    /// A pair of interfaces, up.
    fn pair(&self, name: &str, peer: &str) {
        let mut socket = Socket::open().unwrap();
        let veth = VethSpec {
            name,
            mac: None,
            mtu: None,
            peer_name: peer,
            peer_ns: None,
        };
        socket.create_veth(&veth).unwrap();
        for name in [name, peer] {
            let link = socket.link_by_name(name).unwrap();
            socket.set_up(&link).unwrap();
        }
    }

    /// Directory of the roll-back record.
    fn state(&self) -> PathBuf {
        let state = self.directory.path().join("state");
        fs::create_dir_all(&state).unwrap();
        state
    }

    pub(crate) fn engine(&self) -> Engine {
        Engine::start_in(Backend::Kernel, &self.state()).unwrap()
    }

    fn uncommitted(&self) -> PathBuf {
        self.state().join("uncommitted")
    }
}

fn report(engine: &Engine) -> Value {
    wait(engine.report()).unwrap()
}

/// A bridge that takes over the address and the routes of `eth1`.
pub(crate) fn takeover() -> Value {
    json!({
        "interfaces": [
            {"name": "br1", "type": "linux-bridge", "state": "up",
             "ipv4": {"enabled": true, "dhcp": false, "address": [{"ip": "192.0.2.2", "prefix-length": 24}]},
             "bridge": {"options": {"stp": {"enabled": false}}, "port": [{"name": "eth1", "vlan": {}}]}},
            {"name": "eth1", "type": "ethernet", "state": "up", "ipv4": {"enabled": false}},
        ],
        "routes": {"config": [
            {"destination": "0.0.0.0/0", "next-hop-interface": "eth1", "state": "absent"},
            {"destination": "0.0.0.0/0", "next-hop-address": "192.0.2.1", "next-hop-interface": "br1"},
            {"destination": "198.51.100.0/24", "next-hop-address": "192.0.2.1", "next-hop-interface": "br1"},
        ]},
    })
}

fn has_taken_over(report: &Value) {
    let bridge = interface(report, "br1").unwrap_or_else(|| panic!("{report:#}"));
    assert_eq!(bridge["ipv4"]["address"][0]["ip"], "192.0.2.2", "{report:#}");
    assert_eq!(bridge["bridge"]["port"][0]["name"], "eth1", "{report:#}");
    let routes = report["routes"]["running"].as_array().unwrap();
    let over = |destination: &str| {
        let mut routes = routes.iter();
        routes
            .find(|route| route["destination"] == destination)
            .map(|route| &route["next-hop-interface"])
    };
    assert_eq!(over("0.0.0.0/0"), Some(&json!("br1")), "{report:#}");
    assert_eq!(over("198.51.100.0/24"), Some(&json!("br1")), "{report:#}");
}

#[test]
fn committed_change_stays_without_an_undo_record() {
    let host = Host::enter();
    let engine = host.engine();
    wait(engine.apply(takeover())).unwrap();
    assert!(host.uncommitted().exists());
    wait(engine.commit()).unwrap();
    assert!(!host.uncommitted().exists());
    has_taken_over(&report(&engine));
    assert_eq!(wait(engine.rollback()).unwrap_err().kind, "NothingPending");
    assert_eq!(wait(engine.commit()).unwrap_err().kind, "NothingPending");
    // Nor does a successor find one.
    drop(engine);
    has_taken_over(&report(&host.engine()));
}

#[test]
fn rolled_back_host_is_as_before() {
    let host = Host::enter();
    let engine = host.engine();
    let before = report(&engine);
    wait(engine.apply(takeover())).unwrap();
    has_taken_over(&report(&engine));
    wait(engine.rollback()).unwrap();
    is_as_before(&before, &engine);
    assert!(!host.uncommitted().exists());
}

/// Waits until the engine reports the host as it was before. The kernel reports a carrier up to a second late.
fn is_as_before(before: &Value, engine: &Engine) {
    stage::until("the report of before", || {
        let after = report(engine);
        if after == *before {
            return Ok(());
        }
        Err(format!("before: {before:#}\nafter: {after:#}"))
    });
}

#[test]
fn removed_interfaces_are_recreated() {
    let host = Host::enter();
    let engine = host.engine();
    host.pair("veth1", "veth2");
    let built = json!({"interfaces": [
        {"name": "br1", "type": "linux-bridge", "state": "up",
         "ipv4": {"enabled": true, "dhcp": false, "address": [{"ip": "203.0.113.1", "prefix-length": 24}]},
         "bridge": {"options": {"stp": {"enabled": false}}, "port": [{"name": "veth1"}]}}]});
    wait(engine.apply(built)).unwrap();
    wait(engine.commit()).unwrap();
    let parts = |report: &Value| {
        ["br1", "veth1", "veth2"].map(|name| {
            let interface = interface(report, name).unwrap_or_else(|| panic!("no {name} in {report:#}"));
            let keys = ["type", "state", "mac-address", "controller", "mtu", "ipv4"];
            keys.map(|key| interface.get(key).cloned())
        })
    };
    // The kernel reports a carrier up to a second late.
    let before = stage::until("the bridge with a carrier", || {
        let report = report(&engine);
        let bridge = interface(&report, "br1").unwrap();
        if bridge["state"] == "up" {
            return Ok(parts(&report));
        }
        Err(format!("{bridge:#}"))
    });
    let removed = json!({"interfaces": [
        {"name": "br1", "type": "linux-bridge", "state": "absent"},
        {"name": "veth2", "type": "veth", "state": "absent"}]});
    wait(engine.apply(removed)).unwrap();
    let gone = report(&engine);
    for name in ["br1", "veth1", "veth2"] {
        assert_eq!(interface(&gone, name), None, "{gone:#}");
    }
    wait(engine.rollback()).unwrap();
    stage::until("the interfaces of before", || {
        let after = parts(&report(&engine));
        if after == before {
            return Ok(());
        }
        Err(format!("before: {before:?}\nafter: {after:?}"))
    });
}

#[test]
fn partially_failed_change_is_rolled_back() {
    let host = Host::enter();
    let engine = host.engine();
    let before = report(&engine);
    let mut desired = takeover();
    // The library does not set it without NetworkManager, and finds that out when everything else is done.
    desired["interfaces"][0]["mtu"] = json!(1400);
    let error = wait(engine.apply(desired)).unwrap_err();
    assert_eq!(error.kind, "VerificationError", "{error}");
    is_as_before(&before, &engine);
    assert!(!host.uncommitted().exists());
}

// nmstate#125
#[test]
fn mtu_of_existing_interfaces_is_set_and_rolled_back() {
    let host = Host::enter();
    let engine = host.engine();
    wait(engine.apply(takeover())).unwrap();
    wait(engine.commit()).unwrap();
    // A report also has timers of the bridge.
    let parts = |report: &Value| {
        let of = |name: &str| {
            let interface = interface(report, name).cloned().unwrap_or_default();
            ["state", "mtu", "controller", "ipv4"].map(|key| interface.get(key).cloned())
        };
        (of("br1"), of("eth1"), report["routes"].clone())
    };
    let before = parts(&report(&engine));
    let is_restored = || {
        stage::until("the state of before", || {
            let after = parts(&report(&engine));
            if after == before {
                return Ok(());
            }
            Err(format!("before: {before:?}\nafter: {after:?}"))
        });
    };
    let mtu = |mtu: u32| {
        json!({"interfaces": [
            {"name": "br1", "type": "linux-bridge", "state": "up", "mtu": mtu},
            {"name": "eth1", "type": "ethernet", "state": "up", "mtu": mtu},
        ]})
    };
    let tried = wait(outcome(&engine, &mtu(1400))).unwrap();
    assert_eq!(
        tried.message,
        "dry run, nothing was applied; would change: interfaces br1, eth1"
    );
    for larger in [1400, 9000] {
        wait(engine.apply(mtu(larger))).unwrap();
        let now = report(&engine);
        for name in ["br1", "eth1"] {
            assert_eq!(interface(&now, name).unwrap()["mtu"], larger, "{now:#}");
        }
        let address = &interface(&now, "br1").unwrap()["ipv4"]["address"][0]["ip"];
        assert_eq!(address, "192.0.2.2");
        wait(engine.rollback()).unwrap();
        is_restored();
    }
    let error = wait(engine.apply(mtu(70_000))).unwrap_err();
    assert!(error.text.contains("MTU of link"), "{error}");
    is_restored();
}

#[test]
fn change_that_cannot_be_restored_is_refused() {
    let host = Host::enter();
    let engine = host.engine();
    let before = report(&engine);
    let tagged = json!({"interfaces": [{"name": "br1", "type": "linux-bridge", "state": "up",
        "bridge": {"port": [{"name": "eth1", "vlan": {"mode": "access", "tag": 10}}]}}]});
    let error = wait(engine.apply(tagged)).unwrap_err();
    assert_eq!(
        error.text,
        "NotSupportedError: bridge br1: VLANs of ports need NetworkManager on this host"
    );
    let removed = json!({"interfaces": [{"name": "lo", "type": "loopback", "state": "absent"}]});
    let error = wait(engine.apply(removed)).unwrap_err();
    assert!(error.text.contains("could not be brought back"), "{error}");
    is_as_before(&before, &engine);
    assert!(!host.uncommitted().exists());
}

fn killed_once_there_is(file: &str) {
    let host = Host::enter();
    let engine = host.engine();
    let before = report(&engine);
    drop(engine);
    let mut victim = victim::start(&host.state(), Backend::Kernel);
    victim::kill_once_there_is(&mut victim, &host.state().join(file));
    assert!(host.uncommitted().exists());
    let successor = host.engine();
    is_as_before(&before, &successor);
    assert!(!host.uncommitted().exists());
}

#[test]
fn next_start_rolls_back_an_uncommitted_change() {
    killed_once_there_is(victim::APPLIED);
}

#[test]
fn next_start_rolls_back_a_partial_change() {
    killed_once_there_is("uncommitted");
}

#[test]
fn failed_rollback_is_retried() {
    let host = Host::enter();
    let engine = host.engine();
    let before = fs::read_to_string("/etc/resolv.conf").unwrap();
    wait(engine.apply(json!({"dns-resolver": {"config": {"server": ["198.51.100.53"]}}}))).unwrap();
    let remount = |flags| rustix::mount::mount_remount("/etc/resolv.conf", flags, "").unwrap();
    remount(MountFlags::BIND | MountFlags::RDONLY);
    let error = wait(engine.rollback()).unwrap_err();
    assert!(error.text.contains("/etc/resolv.conf: "), "{error}");
    assert!(host.uncommitted().exists());
    remount(MountFlags::BIND);
    // No request causes it.
    cluster::wait::until("another attempt", victim::DEADLINE, || {
        let left = fs::read_to_string(host.uncommitted());
        left.map_or(Ok(()), |left| Err(format!("to be undone: {left}")))
    })
    .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(fs::read_to_string("/etc/resolv.conf").unwrap(), before);
}

#[test]
fn close_rolls_back_an_uncommitted_change() {
    let host = Host::enter();
    let engine = host.engine();
    let before = report(&engine);
    wait(engine.apply(takeover())).unwrap();
    wait(engine.close()).unwrap();
    assert!(!host.uncommitted().exists());
    let error = wait(engine.apply(takeover())).unwrap_err();
    assert_eq!(error.text, "the engine's thread has ended");
    let successor = host.engine();
    is_as_before(&before, &successor);
    apply(&successor, Backend::Kernel, &takeover()).unwrap();
    wait(successor.close()).unwrap();
    has_taken_over(&report(&host.engine()));
}

#[test]
fn undo_record_of_an_earlier_boot_is_ignored() {
    let host = Host::enter();
    let engine = host.engine();
    wait(engine.apply(takeover())).unwrap();
    drop(engine);
    let text = fs::read_to_string(host.uncommitted()).unwrap();
    let mut undo_record: Value = serde_json::from_str(&text).unwrap();
    undo_record["kernel"]["boot"] = json!("another");
    fs::write(host.uncommitted(), undo_record.to_string()).unwrap();
    has_taken_over(&report(&host.engine()));
    assert!(!host.uncommitted().exists());
}

#[test]
fn changes_of_others_stay() {
    let host = Host::enter();
    let engine = host.engine();
    wait(engine.apply(takeover())).unwrap();
    host.pair("pod1", "pod2");
    let mut socket = Socket::open().unwrap();
    let pod = socket.link_by_name("pod1").unwrap();
    socket
        .add_address(&pod, "203.0.113.9/24".parse().unwrap())
        .unwrap();
    let change = LinkChange {
        mtu: Some(1300),
        ..LinkChange::default()
    };
    socket.change_link(&pod, "set MTU of link", &change).unwrap();
    wait(engine.rollback()).unwrap();
    let after = report(&engine);
    let pod = interface(&after, "pod1").unwrap_or_else(|| panic!("{after:#}"));
    assert_eq!(
        (&pod["mtu"], &pod["ipv4"]["address"][0]["ip"]),
        (&json!(1300), &json!("203.0.113.9"))
    );
    let over = after["routes"]["running"].to_string();
    assert_eq!(interface(&after, "br1"), None, "{over}");
}

#[test]
fn routes_without_interface_affect_links_that_lose_a_route() {
    let host = Host::enter();
    host.pair("pod1", "pod2");
    host.pair("pod3", "pod4");
    host.pair("veth1", "veth2");
    let mut socket = Socket::open().unwrap();
    let mut add = |destination: &str, over: &str| {
        let mut route = linux::routes::Route::to(destination.parse().unwrap());
        route.link = Some(socket.link_by_name(over).unwrap().index);
        socket.add_route(&route).unwrap();
    };
    add("198.51.100.0/24", "veth1");
    add("198.51.100.0/24", "pod3");
    let engine = host.engine();
    let everywhere = json!({"routes": {"config": [{"destination": "198.51.100.0/24", "state": "absent"}]}});
    wait(engine.apply(everywhere)).unwrap();
    let over = |report: &Value| -> Vec<String> {
        let routes = report["routes"]["running"].as_array().unwrap().iter();
        let routes = routes.filter(|route| route["destination"].as_str().unwrap().starts_with("198.51.100."));
        let mut links: Vec<String> = routes
            .map(|route| route["next-hop-interface"].as_str().unwrap().to_owned())
            .collect();
        links.sort();
        links
    };
    assert_eq!(over(&report(&engine)), [] as [&str; 0]);
    // Meanwhile one pod begins and others end.
    add("198.51.100.9/32", "pod1");
    let mut socket = Socket::open().unwrap();
    let pod = socket.link_by_name("pod3").unwrap();
    socket.delete_link(&pod).unwrap();
    wait(engine.rollback()).unwrap();
    let after = report(&engine);
    assert_eq!(over(&after), ["pod1", "veth1"], "{after:#}");
    for gone in ["pod3", "pod4"] {
        assert_eq!(interface(&after, gone), None, "{after:#}");
    }
    assert!(!host.uncommitted().exists());
}

#[test]
fn unnamed_port_that_disappears_is_no_failure() {
    let host = Host::enter();
    host.pair("pod1", "pod2");
    host.pair("veth1", "veth2");
    let engine = host.engine();
    let bridge = |address: &str| {
        json!({"interfaces": [
            {"name": "br1", "type": "linux-bridge", "state": "up",
             "ipv4": {"enabled": true, "dhcp": false, "address": [{"ip": address, "prefix-length": 24}]},
             "bridge": {"options": {"stp": {"enabled": false}}, "port": [{"name": "veth1"}]}}]})
    };
    wait(engine.apply(bridge("203.0.113.1"))).unwrap();
    wait(engine.commit()).unwrap();
    let mut socket = Socket::open().unwrap();
    let index = socket.link_by_name("br1").unwrap().index;
    let pod = socket.link_by_name("pod1").unwrap();
    socket.set_master(&pod, index).unwrap();
    let mut other = bridge("203.0.113.2");
    let only_address = other["interfaces"][0].as_object_mut().unwrap();
    only_address.shift_remove("bridge");
    wait(engine.apply(other)).unwrap();
    socket.delete_link(&pod).unwrap();
    wait(engine.rollback()).unwrap();
    let after = report(&engine);
    assert_eq!(interface(&after, "pod1"), None, "{after:#}");
    let bridge = interface(&after, "br1").unwrap();
    assert_eq!(bridge["ipv4"]["address"][0]["ip"], "203.0.113.1", "{after:#}");
    assert!(!host.uncommitted().exists());
}

#[test]
fn rollback_restores_name_servers() {
    let host = Host::enter();
    let engine = host.engine();
    let before = fs::read_to_string("/etc/resolv.conf").unwrap();
    let desired =
        json!({"dns-resolver": {"config": {"server": ["198.51.100.53"], "search": ["example.com"]}}});
    wait(engine.apply(desired)).unwrap();
    assert!(
        fs::read_to_string("/etc/resolv.conf")
            .unwrap()
            .contains("198.51.100.53")
    );
    wait(engine.rollback()).unwrap();
    assert_eq!(fs::read_to_string("/etc/resolv.conf").unwrap(), before);
}

// nmstate#51
#[test]
fn change_with_passing_probes_is_committed() {
    let host = Host::enter();
    let engine = host.engine();
    let before = report(&engine);
    apply(&engine, Backend::Kernel, &json!({})).unwrap();
    is_as_before(&before, &engine);
    let done = apply(&engine, Backend::Kernel, &takeover()).unwrap();
    assert_eq!(
        done,
        "successfully reconciled, until the host restarts: without NetworkManager nothing is persistent"
    );
    has_taken_over(&report(&engine));
}

// nmstate#47
#[test]
fn lost_gateway_or_name_servers_are_rolled_back() {
    let host = Host::enter();
    let engine = host.engine();
    let before = report(&engine);
    let gateway = json!({"routes": {"config": [
        {"destination": "0.0.0.0/0", "next-hop-interface": "eth1", "state": "absent"},
        {"destination": "0.0.0.0/0", "next-hop-address": "192.0.2.77", "next-hop-interface": "eth1"}]}});
    let failure = apply(&engine, Backend::Kernel, &gateway).unwrap_err();
    assert!(
        failure.text.starts_with("default gateway 192.0.2.77 on eth1: ")
            && failure
                .text
                .contains(": rolling back desired state configuration: ")
            && failure
                .text
                .ends_with("failed runnig probe 'ping' with after network reconfiguration"),
        "{failure}"
    );
    is_as_before(&before, &engine);
    for (servers, cause) in [
        (json!(["192.0.2.77"]), "root-servers.net from 192.0.2.77: "),
        (json!([]), "no name servers (for 15 s): rolling back"),
    ] {
        let names = json!({"dns-resolver": {"config": {"server": servers}}});
        let failure = apply(&engine, Backend::Kernel, &names).unwrap_err();
        assert!(failure.text.starts_with(cause), "{failure}");
        is_as_before(&before, &engine);
    }
}

// nmstate#46
#[test]
fn gateway_of_another_table_is_not_probed() {
    let host = Host::enter();
    let engine = host.engine();
    let desired = json!({"routes": {"config": [
        {"destination": "0.0.0.0/0", "next-hop-address": "192.0.2.77", "next-hop-interface": "eth1", "table-id": 200}]}});
    apply(&engine, Backend::Kernel, &desired).unwrap();
    let after = report(&engine);
    let mut routes = after["routes"]["running"].as_array().unwrap().iter();
    assert!(routes.any(|route| route["table-id"] == 200), "{after:#}");
}

#[test]
fn diff_is_empty_until_the_host_changes() {
    let host = Host::enter();
    let engine = host.engine();
    let tried = || wait(outcome(&engine, &takeover())).unwrap();
    let before = report(&engine);
    let first = tried();
    assert_eq!(
        first.message,
        "dry run, nothing was applied; would change: routes; interfaces br1, eth1"
    );
    is_as_before(&before, &engine);
    apply(&engine, Backend::Kernel, &takeover()).unwrap();
    let second = tried();
    assert_eq!(
        second.message, "dry run: nothing would change",
        "{:#}",
        second.diff
    );
    let mut socket = Socket::open().unwrap();
    let bridge = socket.link_by_name("br1").unwrap();
    socket
        .delete_address(&bridge, "192.0.2.2/24".parse().unwrap())
        .unwrap();
    let third = tried();
    assert!(
        third
            .message
            .starts_with("dry run, nothing was applied; would change: "),
        "{:#}",
        third.diff
    );
    assert!(third.message.contains("br1"), "{:#}", third.diff);
}
