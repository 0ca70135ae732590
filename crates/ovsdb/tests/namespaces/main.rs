//! The client and the real daemons of Open vSwitch, in a new network namespace.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "helpers of tests fail as tests do"
)]

use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use cluster::OpenVswitch;
use linux::netns::unshare_network;
use ovsdb::{Address, Client, Error, map, map_of, named_uuid, set, set_of, uuid_of};
use serde_json::{Value, json};

const TIMEOUT: Duration = Duration::from_mins(1);

/// Runs the test with both daemons on a thread in a new network namespace. Without root, prints the reason and returns.
fn in_a_namespace(test: impl FnOnce(&OpenVswitch) + Send + 'static) {
    let packages = OpenVswitch::packages().unwrap();
    let thread = thread::spawn(move || match unshare_network() {
        Ok(()) => {
            let dir = tempfile::tempdir().unwrap();
            let switch = OpenVswitch::start(&packages, dir.path()).unwrap();
            switch.add_bridge("br0").unwrap();
            test(&switch);
        }
        Err(error) => println!("skipped: it needs root to make namespaces: {error}"),
    });
    if let Err(panic) = thread.join() {
        std::panic::resume_unwind(panic);
    }
}

fn start_database(dir: &Path) -> OpenVswitch {
    OpenVswitch::start_database(&OpenVswitch::packages().unwrap(), dir).unwrap()
}

fn connect(switch: &OpenVswitch) -> Client {
    Client::connect(&Address::Unix(switch.socket()), TIMEOUT).unwrap()
}

/// Operations that add an internal interface to the bridge `br0`.
fn add_port(name: &str, tag: u16) -> Vec<Value> {
    let id = format!("{name}_interface");
    vec![
        json!({"op": "insert", "table": "Interface", "uuid-name": id, "row": {"name": name, "type": "internal"}}),
        json!({"op": "insert", "table": "Port", "uuid-name": name, "row": {
            "name": name, "tag": tag, "interfaces": set([named_uuid(&id)]),
            "external_ids": map([("owner", "test"), ("empty", "")]),
        }}),
        json!({"op": "mutate", "table": "Bridge", "where": [["name", "==", "br0"]],
            "mutations": [["ports", "insert", set([named_uuid(name)])]]}),
    ]
}

fn ports(client: &mut Client) -> Vec<Value> {
    let select = json!({"op": "select", "table": "Port", "where": [["name", "!=", "br0"]]});
    let replies = client.transact(&[select]).unwrap();
    replies[0]["rows"].as_array().unwrap().clone()
}

#[test]
fn port_is_created_and_listed_and_an_invalid_one_refused() {
    in_a_namespace(|switch| {
        let mut client = connect(switch);
        let replies = client.transact(&add_port("p1", 100)).unwrap();
        let created = uuid_of(&replies[1]["uuid"]).unwrap();
        assert_eq!(replies[2], json!({"count": 1}));

        let found = ports(&mut client);
        assert_eq!(found.len(), 1);
        assert_eq!(uuid_of(&found[0]["_uuid"]), Some(created));
        assert_eq!(set_of(&found[0]["tag"]), [json!(100)]);
        assert_eq!(set_of(&found[0]["trunks"]), [] as [Value; 0]);
        let ids: Vec<_> = map_of(&found[0]["external_ids"]).collect();
        assert_eq!(ids, [("empty", ""), ("owner", "test")]);

        // cni-plugins#54 (the database's half)
        let error = client.transact(&add_port("p2", 9999)).unwrap_err();
        let text = error.to_string();
        assert!(
            text.starts_with("OVS Transaction failed err constraint violation Details: "),
            "{text}"
        );
        let unknown = json!({"op": "select", "table": "Nothing", "where": []});
        assert!(matches!(
            client.transact(&[unknown]),
            Err(Error::Transaction { .. })
        ));
        assert_eq!(ports(&mut client), found, "a refused transaction changes nothing");
    });
}

#[test]
fn monitor_reports_an_interface_that_the_switch_set_up() {
    in_a_namespace(|switch| {
        let mut client = connect(switch);
        let rows = client
            .monitor(json!({"Interface": {"columns": ["name", "ofport"]}}))
            .unwrap();
        let rows: Vec<&Value> = rows["Interface"].as_object().unwrap().values().collect();
        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0]["new"]["name"], "br0");
        client.transact(&add_port("p1", 100)).unwrap();
        let deadline = Instant::now() + TIMEOUT;
        let is_up = |update: &Value| {
            let rows = update["Interface"].as_object().unwrap();
            rows.values()
                .any(|row| row["new"]["name"] == "p1" && row["new"]["ofport"].is_u64())
        };
        while !client
            .next_update(Some(TIMEOUT))
            .unwrap()
            .is_some_and(|update| is_up(&update))
        {
            assert!(Instant::now() < deadline, "no port number:\n{}", switch.log());
        }
    });
}

#[test]
fn client_fails_when_the_server_ends_and_can_connect_again() {
    let dir = tempfile::tempdir().unwrap();
    let mut switch = start_database(dir.path());
    let mut client = connect(&switch);
    client.echo().unwrap();
    switch.kill_database().unwrap();
    assert!(matches!(client.next_update(Some(TIMEOUT)), Err(Error::Closed)));
    let error = Client::connect(&Address::Unix(switch.socket()), TIMEOUT).unwrap_err();
    assert!(matches!(error, Error::Connect { .. }), "{error}");
    switch.start_database_again().unwrap();
    connect(&switch).echo().unwrap();
}

#[test]
fn table_longer_than_many_packets_is_complete() {
    let dir = tempfile::tempdir().unwrap();
    let switch = start_database(dir.path());
    let mut client = connect(&switch);
    let name = |number| format!("bridge-{number}");
    let insert = |number| {
        let id = format!("b{number}");
        let row = json!({"name": name(number), "external_ids": map([("filler", "}[\"".repeat(300))])});
        let bridge = json!({"op": "insert", "table": "Bridge", "uuid-name": id, "row": row});
        let keep = json!({"op": "mutate", "table": "Open_vSwitch", "where": [],
            "mutations": [["bridges", "insert", set([named_uuid(&id)])]]});
        [bridge, keep]
    };
    let operations: Vec<Value> = (0..1000).flat_map(insert).collect();
    assert_eq!(client.transact(&operations).unwrap().len(), operations.len());
    let rows = client
        .monitor(json!({"Bridge": {"columns": ["name", "external_ids"]}}))
        .unwrap();
    let rows = rows["Bridge"].as_object().unwrap();
    let mut found: Vec<&str> = rows
        .values()
        .filter_map(|row| row["new"]["name"].as_str())
        .collect();
    let mut expected: Vec<String> = (0..1000).map(name).collect();
    found.sort_unstable();
    expected.sort_unstable();
    assert_eq!(found, expected);
}
