//! Hosts with NetworkManager that a change cuts off, or that are left in the middle of one.

use std::fs;

use serde_json::{Value, json};
use weft_nmstate::dry_run::outcome;
use weft_nmstate::engine::{Backend, Engine};
use zbus::zvariant::OwnedObjectPath;

use crate::beyond::{Beyond, GATEWAY, Lease, apply};
use crate::host::{Host, interface, wait};
use crate::kernel::takeover;
use crate::victim;

/// A host whose wire leads to a gateway and name server, which gives it its address too.
struct Connected {
    host: Host,
    engine: Engine,
    state: tempfile::TempDir,
    _dhcp: Lease,
    _beyond: Beyond,
}

impl Connected {
    /// A host whose address comes from DHCP, as configured in NetworkManager.
    fn enter() -> Self {
        let host = Host::enter();
        let beyond = Beyond::new();
        let there = beyond.path();
        host.script(&format!("ip link set wire netns {there}")).unwrap();
        beyond.serve();
        let state = tempfile::tempdir().unwrap();
        let dhcp = beyond.lease(state.path());
        let engine = Engine::start_in(Backend::NetworkManager, state.path()).unwrap();
        let connected = Self {
            host,
            engine,
            state,
            _dhcp: dhcp,
            _beyond: beyond,
        };
        let automatic = json!({"interfaces": [{"name": "eth1", "type": "ethernet", "state": "up",
            "ipv4": {"enabled": true, "dhcp": true}, "ipv6": {"enabled": false}}]});
        apply(&connected.engine, Backend::NetworkManager, &automatic)
            .unwrap_or_else(|error| panic!("{error}\n{}", connected.host.log()));
        connected.wait_for("DHCP", is_connected);
        connected
    }

    fn report(&self) -> Value {
        self.host.report(&self.engine)
    }

    /// Waits until the report satisfies a condition.
    fn wait_for(&self, what: &str, such: impl Fn(&Value) -> bool) -> Value {
        self.host.wait_for(&self.engine, what, such)
    }

    /// Applies a change that must fail, and returns the cause.
    fn refused(&self, desired: &Value) -> String {
        let outcome = apply(&self.engine, Backend::NetworkManager, desired);
        let failure = outcome.expect_err("rolled back");
        assert!(failure.retry);
        assert!(
            failure
                .text
                .contains("rolling back desired state configuration: ")
                && !failure.text.contains("still fails"),
            "{failure}\n{}",
            self.host.log()
        );
        failure.text
    }

    /// A handler is killed after its change and before the commit.
    fn leave_uncommitted(&self) {
        let mut victim = victim::start(self.state.path(), Backend::NetworkManager);
        victim::kill_once_there_is(&mut victim, &self.state.path().join(victim::APPLIED));
    }

    /// The next handler starts, and first rolls back the uncommitted change.
    fn succeed(&self) {
        let successor = Engine::start_in(Backend::NetworkManager, self.state.path()).unwrap();
        self.host.report(&successor);
    }

    /// NetworkManager is killed and starts again.
    fn restart(&mut self) {
        self.host.kill().unwrap();
        self.host.start_again().unwrap();
    }

    /// Asserts that the host has its former state, and keeps it.
    fn is_as_before(&self) {
        self.wait_for("connection", is_connected);
        wait(self.engine.rollback()).expect_err("nothing is pending");
        assert!(is_connected(&self.report()));
        assert!(!self.state.path().join("uncommitted").exists());
    }
}

/// Whether a host has address, gateway and name server by DHCP, and no bridge.
fn is_connected(report: &Value) -> bool {
    let eth1 = interface(report, "eth1").cloned().unwrap_or_default();
    let address = eth1["ipv4"]["address"][0]["ip"].as_str().unwrap_or_default();
    let mut routes = report["routes"]["running"].as_array().into_iter().flatten();
    eth1["ipv4"]["dhcp"] == true
        && address.starts_with("192.0.2.1")
        && routes.any(|route| route["destination"] == "0.0.0.0/0" && route["next-hop-address"] == GATEWAY)
        && report["dns-resolver"]["running"]["server"] == json!([GATEWAY])
        && interface(report, "br1").is_none()
}

// nmstate#45
#[test]
fn wrong_default_gateway_is_rolled_back_to_the_leased_one() {
    let host = Connected::enter();
    let cause = host.refused(&json!({
        "interfaces": [{"name": "eth1", "type": "ethernet", "state": "up",
            "ipv4": {"enabled": true, "dhcp": false, "address": [{"ip": "192.0.2.2", "prefix-length": 24}]}}],
        "routes": {"config": [
            {"destination": "0.0.0.0/0", "next-hop-address": "192.0.2.77", "next-hop-interface": "eth1"}]},
        "dns-resolver": {"config": {"server": [GATEWAY]}},
    }));
    assert!(
        cause.starts_with("default gateway 192.0.2.77 on eth1: "),
        "{cause}"
    );
    host.is_as_before();
}

// nmstate#46
#[test]
fn gateway_of_another_table_is_kept() {
    let host = Connected::enter();
    host.host
        .script("ip link add eth2 type veth peer name wire2; ip link set wire2 up; ip link set eth2 up")
        .unwrap();
    let desired = json!({
        "interfaces": [{"name": "eth2", "type": "ethernet", "state": "up",
            "ipv4": {"enabled": true, "dhcp": false, "address": [{"ip": "198.51.100.2", "prefix-length": 24}]}}],
        "routes": {"config": [{"destination": "0.0.0.0/0", "next-hop-address": "198.51.100.77",
            "next-hop-interface": "eth2", "table-id": 200}]},
    });
    let done = apply(&host.engine, Backend::NetworkManager, &desired);
    assert_eq!(
        done.as_deref(),
        Ok("successfully reconciled"),
        "{}",
        host.host.log()
    );
    let report = host.report();
    let mut routes = report["routes"]["running"].as_array().unwrap().iter();
    assert!(
        routes.any(|route| route["table-id"] == 200 && route["next-hop-address"] == "198.51.100.77"),
        "{report:#}"
    );
    assert!(is_connected(&report), "{report:#}");
}

// nmstate#47
#[test]
fn broken_or_removed_name_servers_are_rolled_back() {
    let host = Connected::enter();
    let of_interface = |servers: Value, auto: bool| {
        json!({
            "interfaces": [{"name": "eth1", "type": "ethernet", "state": "up",
                "ipv4": {"enabled": true, "dhcp": true, "auto-dns": auto}}],
            "dns-resolver": {"config": {"server": servers}},
        })
    };
    let cause = host.refused(&of_interface(json!(["192.0.2.77"]), false));
    assert!(cause.starts_with("root-servers.net from 192.0.2.77: "), "{cause}");
    host.is_as_before();
    let cause = host.refused(&of_interface(json!([]), false));
    assert!(cause.starts_with("no name servers"), "{cause}");
    host.is_as_before();
    let global = json!({"dns-resolver": {"config": {"server": ["192.0.2.77"]}}});
    let cause = host.refused(&global);
    assert!(cause.starts_with("root-servers.net from 192.0.2.77: "), "{cause}");
    host.is_as_before();
}

// The checkpoint has no host name.
#[test]
fn host_name_is_rolled_back() {
    let host = Connected::enter();
    host.host.script("echo node01 >/etc/hostname").unwrap();
    let mut desired = takeover();
    desired["hostname"] = json!({"config": "node02"});
    wait(host.engine.apply(desired)).unwrap_or_else(|error| panic!("{error}\n{}", host.host.log()));
    assert_eq!(host.report()["hostname"]["config"], "node02");
    wait(host.engine.rollback()).unwrap_or_else(|error| panic!("{error}\n{}", host.host.log()));
    assert_eq!(host.report()["hostname"]["config"], "node01");
    host.is_as_before();
    // The library rolls back a change that fails by itself.
    let impossible = json!({
        "hostname": {"config": "node02"},
        "interfaces": [{"name": "eth7", "type": "ethernet", "state": "up"}],
    });
    wait(host.engine.apply(impossible)).expect_err("there is no such interface");
    assert_eq!(host.report()["hostname"]["config"], "node01");
    host.is_as_before();
}

// nmstate#44
#[test]
fn foreign_checkpoint_is_rolled_back_before_a_change() {
    let host = Connected::enter();
    // Another client of the library neither commits nor rolls back.
    let other = host.host.engine();
    let bridge = json!({"interfaces": [{"name": "br7", "type": "linux-bridge", "state": "up"}]});
    wait(other.apply(bridge)).unwrap();
    let desired = json!({"interfaces": [{"name": "br8", "type": "linux-bridge", "state": "up"}]});
    let done = apply(&host.engine, Backend::NetworkManager, &desired);
    assert_eq!(
        done.as_deref(),
        Ok("successfully reconciled"),
        "{}",
        host.host.log()
    );
    let report = host.report();
    assert!(interface(&report, "br8").is_some(), "{report:#}");
    assert!(interface(&report, "br7").is_none(), "{report:#}");
}

/// The bridge has the wire, and neither gateway nor name server.
fn is_taken_over(report: &Value) -> bool {
    interface(report, "br1").is_some_and(|bridge| bridge["ipv4"]["address"][0]["ip"] == "192.0.2.2")
}

#[test]
fn uncommitted_change_ends_with_the_checkpoint_timeout() {
    let host = Connected::enter();
    wait(host.engine.apply(takeover())).unwrap_or_else(|error| panic!("{error}\n{}", host.host.log()));
    assert!(is_taken_over(&host.report()));
    // Instead of waiting for eight minutes, the test shortens the checkpoint's timeout.
    wait(checkpoints("CheckpointAdjustRollbackTimeout", |checkpoint| {
        (checkpoint, 1_u32)
    }))
    .unwrap();
    host.wait_for("roll back", is_connected);
    // A later rollback finds it done.
    wait(host.engine.rollback()).unwrap();
    host.is_as_before();
}

/// Calls a method of NetworkManager with the one checkpoint that there is.
async fn checkpoints<B>(method: &str, body: impl Fn(OwnedObjectPath) -> B) -> zbus::Result<()>
where
    B: serde::Serialize + zbus::zvariant::DynamicType,
{
    const NAME: &str = "org.freedesktop.NetworkManager";
    const PATH: &str = "/org/freedesktop/NetworkManager";
    let bus = zbus::Connection::system().await?;
    let manager = zbus::Proxy::new(&bus, NAME, PATH, NAME).await?;
    let checkpoints: Vec<OwnedObjectPath> = manager.get_property("Checkpoints").await?;
    assert_eq!(checkpoints.len(), 1);
    for checkpoint in checkpoints {
        manager.call::<_, _, ()>(method, &body(checkpoint)).await?;
    }
    Ok(())
}

/// From now on the bus of NetworkManager refuses every commit, and nothing else.
fn refuse_commits() {
    const FILE: &str = "/etc/dbus-1/weft.conf";
    const DENIED: &str = r#"<policy context="mandatory">
    <deny send_destination="org.freedesktop.NetworkManager" send_interface="org.freedesktop.NetworkManager"
      send_member="CheckpointDestroy"/>
  </policy>
</busconfig>"#;
    const NAME: &str = "org.freedesktop.DBus";
    let config = fs::read_to_string(FILE).unwrap();
    fs::write(FILE, config.replace("</busconfig>", DENIED)).unwrap();
    let reloaded: zbus::Result<()> = wait(async {
        let bus = zbus::Connection::system().await?;
        let daemon = zbus::Proxy::new(&bus, NAME, "/org/freedesktop/DBus", NAME).await?;
        daemon.call("ReloadConfig", &()).await
    });
    reloaded.unwrap();
}

// nmstate#50
#[test]
fn change_with_failed_commit_is_rolled_back() {
    let host = Connected::enter();
    wait(host.engine.apply(takeover())).unwrap_or_else(|error| panic!("{error}\n{}", host.host.log()));
    assert!(is_taken_over(&host.report()));
    refuse_commits();
    let error = wait(host.engine.commit()).expect_err("the bus refuses it");
    println!("the commit failed: {error}");
    assert!(
        host.state.path().join("uncommitted").exists(),
        "the roll-back record is kept until the change is undone"
    );
    // The engine rolls back by itself.
    host.wait_for("roll back", is_connected);
    host.is_as_before();
}

#[test]
fn next_handler_rolls_back_the_change_of_a_killed_one() {
    let host = Connected::enter();
    host.leave_uncommitted();
    assert!(is_taken_over(&host.report()));
    host.succeed();
    host.is_as_before();
}

#[test]
fn killed_network_manager_loses_the_checkpoint_but_not_the_undo_record() {
    let mut host = Connected::enter();
    wait(host.engine.apply(takeover())).unwrap_or_else(|error| panic!("{error}\n{}", host.host.log()));
    host.restart();
    wait(host.engine.rollback()).unwrap_or_else(|error| panic!("{error}\n{}", host.host.log()));
    host.is_as_before();
}

#[test]
fn killed_handler_and_network_manager_leave_an_undo_record() {
    let mut host = Connected::enter();
    host.leave_uncommitted();
    host.restart();
    host.succeed();
    host.is_as_before();
}

#[test]
fn network_manager_on_another_bus_is_another_owner() {
    let host = Connected::enter();
    host.leave_uncommitted();
    // As after a restart of the machine: no checkpoint, another bus, and new names on it.
    wait(checkpoints("CheckpointDestroy", |checkpoint| (checkpoint,))).unwrap();
    let file = host.state.path().join("uncommitted");
    let mut undo_record: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let owner = &mut undo_record["network-manager"]["owner"];
    let (bus, name) = owner.as_str().unwrap().split_once(' ').unwrap();
    assert!(name.starts_with(":1."), "{bus} {name}");
    *owner = json!(format!("0123456789abcdef0123456789abcdef {name}"));
    fs::write(&file, undo_record.to_string()).unwrap();
    host.succeed();
    host.is_as_before();
}

#[test]
fn network_manager_killed_before_the_commit_keeps_the_change() {
    let mut host = Connected::enter();
    wait(host.engine.apply(takeover())).unwrap_or_else(|error| panic!("{error}\n{}", host.host.log()));
    host.restart();
    wait(host.engine.commit()).unwrap_or_else(|error| panic!("{error}\n{}", host.host.log()));
    assert!(!host.state.path().join("uncommitted").exists());
    wait(host.engine.rollback()).expect_err("nothing is pending");
    host.wait_for("bridge", is_taken_over);
}

#[test]
fn diff_is_empty_until_the_host_changes() {
    let host = Connected::enter();
    let desired = json!({
        "interfaces": [
            {"name": "br1", "type": "linux-bridge", "state": "up",
             "ipv4": {"enabled": true, "dhcp": false, "address": [{"ip": "198.51.100.2", "prefix-length": 24}]},
             "bridge": {"options": {"stp": {"enabled": false}}, "port": []}}],
        "routes": {"config": [
            {"destination": "203.0.113.0/24", "next-hop-address": "198.51.100.1", "next-hop-interface": "br1"}]},
    });
    let tried = || wait(outcome(&host.engine, &desired)).unwrap();
    assert_eq!(
        tried().message,
        "dry run, nothing was applied; would change: routes; interfaces br1"
    );
    assert!(is_connected(&host.report()));
    apply(&host.engine, Backend::NetworkManager, &desired)
        .unwrap_or_else(|error| panic!("{error}\n{}", host.host.log()));
    let after = tried();
    assert_eq!(after.message, "dry run: nothing would change", "{:#}", after.diff);
    host.host
        .script("ip address del 198.51.100.2/24 dev br1")
        .unwrap();
    let changed = tried();
    assert!(changed.message.contains("would change: "), "{:#}", changed.diff);
    // Applied again, as drift is repaired.
    apply(&host.engine, Backend::NetworkManager, &desired)
        .unwrap_or_else(|error| panic!("{error}\n{}", host.host.log()));
    assert_eq!(tried().message, "dry run: nothing would change");
}
