//! The ovs plugin and its mirror plugins, against the daemons of Open vSwitch with a switch in user space.

use std::{
    fs, io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use cluster::{OpenVswitch, Packages};
use cni::{exec::Resident, plugin::run_resident};
use linux::{link::Mac, packet::PacketSocket};
use rustix::mount::{MountFlags, mount};
use serde_json::{Value, json};

use crate::stage::{Host, Pod, on_a_host, variables, with};

const BRIDGE: &str = "br1";
const DAEMONS: &str = "/run/ovs";
/// The port of the packets that pods exchange.
const PORT: u16 = 7777;
const CACHE: &str = "/var/lib/cni/ovs-cni/cache";

/// A host with a switch that has the bridge. The plugins' files below `/var/lib` stay in it.
fn on_a_switch(name: &str, test: impl FnOnce(&mut Host, &mut OpenVswitch) + Send + 'static) {
    let packages: Packages = OpenVswitch::packages().unwrap();
    on_a_host(name, move |host| {
        mount("tmpfs", "/var/lib", "tmpfs", MountFlags::empty(), None).unwrap();
        fs::create_dir_all(DAEMONS).unwrap();
        let mut switch = OpenVswitch::start(&packages, Path::new(DAEMONS)).unwrap();
        switch.add_bridge(BRIDGE).unwrap();
        test(host, &mut switch);
    });
}

fn ovs() -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "test-net", "type": "ovs", "bridge": BRIDGE,
        "socket_file": format!("unix:{DAEMONS}/db.sock"), "link_state_check_retries": 100
    })
}

/// The config with an address by `static`.
fn at(config: &Value, address: &str) -> Value {
    with(
        config,
        "ipam",
        json!({ "type": "static", "addresses": [{ "address": address }] }),
    )
}

/// The ports of the bridge.
fn ports(switch: &OpenVswitch) -> Vec<String> {
    let listed = switch.vsctl(["list-ports", BRIDGE]).unwrap();
    listed.lines().map(str::to_owned).collect()
}

/// A column of a row, without quotes.
fn get(switch: &OpenVswitch, table: &str, row: &str, column: &str) -> String {
    switch
        .vsctl(["get", table, row, column])
        .unwrap()
        .trim()
        .replace('"', "")
}

fn outer(result: &Value) -> String {
    result["interfaces"][0]["name"].as_str().unwrap().to_owned()
}

/// A packet socket on the link of a pod. The switch of the test reads frames before a kernel has completed their checksums,
/// so that UDP sockets would receive nothing from each other.
fn station(pod: &Pod) -> PacketSocket {
    let link = pod.net1();
    pod.ns
        .run(|| PacketSocket::open(link.index, PORT))
        .unwrap()
        .unwrap()
}

/// An IPv4 packet of UDP from and to [`PORT`].
fn datagram(word: &str) -> Vec<u8> {
    let length = |header: usize| u16::try_from(header + word.len()).unwrap().to_be_bytes();
    let mut packet = vec![0x45, 0];
    packet.extend(length(28));
    packet.extend([0, 0, 0, 0, 64, 17, 0, 0, 10, 1, 2, 3, 10, 1, 2, 4]);
    packet.extend(PORT.to_be_bytes());
    packet.extend(PORT.to_be_bytes());
    packet.extend(length(8));
    packet.extend([0, 0]);
    packet.extend(word.as_bytes());
    packet
}

/// Whether a packet of `from` arrives at `to` within a minute; one that must not arrive has been overtaken then.
fn hears(from: &Pod, to: &Pod, word: &str) -> bool {
    let (sender, receiver) = (station(from), station(to));
    let (packet, mac) = (datagram(word), to.net1().mac.unwrap());
    let deadline = Instant::now() + Duration::from_mins(1);
    while Instant::now() < deadline {
        sender.send(&packet, mac).unwrap();
        let mut heard = [0; 256];
        match receiver.receive(&mut heard) {
            Ok((length, _)) if heard[..length] == packet => return true,
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        thread::sleep(Duration::from_millis(10));
    }
    false
}

fn collect(host: &Host, config: &Value, valid: &[&Pod]) {
    let valid: Vec<_> = valid
        .iter()
        .map(|pod| json!({ "containerID": pod.id, "ifname": "net1" }))
        .collect();
    host.gc(&with(config, "cni.dev/valid-attachments", valid.into()))
        .success();
}

/// Calls the plugin as the multus daemon does.
fn call_in_a_daemon(verb: &str, pod: &Pod, config: &Value, deadline: Instant) -> Result<Vec<u8>, cni::Error> {
    let variables = variables(verb, pod, "net1", "")
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    let resident = Resident {
        prepare: None,
        deadline,
        repeats_dels: true,
    };
    let plugin = plugins::plugin_by_name("ovs").unwrap();
    run_resident(plugin, &variables, config.to_string().as_bytes(), resident)
}

// cni-plugins#53
#[test]
fn port_of_vlan_has_upstreams_columns() {
    on_a_switch("ovs access port", |host, switch| {
        let pod = host.pod();
        let mut config = with(&ovs(), "vlan", 100.into());
        config["mtu"] = 1400.into();
        config["ofport_request"] = 77.into();
        config["interface_type"] = "system".into();
        let args = "IgnoreUnknown=1;K8S_POD_UID=uid-1;OvnPort=port-1;MAC=02:00:00:00:00:77";
        let result = host.call_with("ADD", &pod, "net1", args, &config).success();
        let name = outer(&result);
        assert_eq!(ports(switch), std::slice::from_ref(&name));
        assert_eq!(get(switch, "Port", &name, "tag"), "100");
        assert_eq!(get(switch, "Port", &name, "vlan_mode"), "access");
        assert_eq!(get(switch, "Port", &name, "trunks"), "[]");
        assert_eq!(
            get(switch, "Port", &name, "external_ids"),
            format!(
                "{{contIface=net1, contNetns={}, contPodUid=uid-1, owner=ovs-cni.network.kubevirt.io}}",
                pod.path
            )
        );
        // cni-plugins#56
        assert_eq!(get(switch, "Interface", &name, "external_ids:iface-id"), "port-1");
        assert_eq!(get(switch, "Interface", &name, "type"), "system");
        assert_eq!(get(switch, "Interface", &name, "ofport_request"), "77");
        let inner = pod.net1();
        assert_eq!((inner.mtu, host.link(&name).unwrap().mtu), (1400, 1400));
        assert!(inner.is_up() && host.link(&name).unwrap().is_up());
        assert_eq!(inner.mac.unwrap().to_string(), "02:00:00:00:00:77");
        assert_eq!(result["interfaces"][1]["mac"], "02:00:00:00:00:77");
        host.check(&pod, &config, &result).success();
        host.del(&pod, &config);
        assert_eq!(ports(switch), Vec::<String>::new());
        assert!(pod.link("net1").is_none() && host.veths().is_empty());
        assert!(host.records().is_empty(), "{:?}", host.records());
        assert_eq!(fs::read_dir(CACHE).unwrap().count(), 0);
        host.del(&pod, &config);
    });
}

// cni-plugins#53
#[test]
fn trunk_is_sorted_and_precedes_vlan() {
    on_a_switch("ovs trunks", |host, switch| {
        let pod = host.pod();
        let trunk = json!([{ "id": 42 }, { "minID": 5, "maxID": 7 }]);
        for (config, mode, tag, trunks) in [
            (
                with(&ovs(), "trunk", trunk.clone()),
                "trunk",
                "[]",
                "[5, 6, 7, 42]",
            ),
            (
                with(&with(&ovs(), "trunk", trunk), "vlan", 9.into()),
                "trunk",
                "[]",
                "[5, 6, 7, 42]",
            ),
            (ovs(), "trunk", "[]", "[]"),
        ] {
            let name = outer(&host.add(&pod, &config));
            assert_eq!(get(switch, "Port", &name, "vlan_mode"), mode);
            assert_eq!(get(switch, "Port", &name, "tag"), tag);
            assert_eq!(get(switch, "Port", &name, "trunks"), trunks);
            host.del(&pod, &config);
        }
    });
}

// cni-plugins#54, cni-plugins#59
#[test]
fn failed_add_leaves_nothing() {
    on_a_switch("ovs failures", |host, switch| {
        let pod = host.pod();
        let before = host.state(&pod);
        let vlan = host
            .call("ADD", &pod, &with(&ovs(), "vlan", 9999.into()))
            .message();
        assert!(
            vlan.starts_with("OVS Transaction failed err constraint violation Details: "),
            "{vlan}"
        );
        let ipam = host
            .call("ADD", &pod, &with(&ovs(), "ipam", json!({ "type": "nothing" })))
            .message();
        assert!(
            ipam.starts_with("failed to set up IPAM plugin type \"nothing\": "),
            "{ipam}"
        );
        let bridge = host
            .call("ADD", &pod, &with(&ovs(), "bridge", "br9".into()))
            .message();
        assert_eq!(bridge, "failed to find bridge br9");
        let socket = host
            .call("ADD", &pod, &with(&ovs(), "socket_file", "unix:/run/none".into()))
            .message();
        assert!(
            socket.starts_with("failed to connect to ovsdb socket unix:/run/none: error: "),
            "{socket}"
        );
        let nameless = host
            .call("ADD", &pod, &with(&ovs(), "bridge", "".into()))
            .message();
        assert_eq!(nameless, "failed to get bridge name");
        assert_eq!(ports(switch), Vec::<String>::new());
        assert_eq!(host.state(&pod), before);
        assert_eq!(fs::read_dir(CACHE).map_or(0, Iterator::count), 0);
    });
}

// cni-plugins#55
#[test]
fn mac_is_derived_from_the_address_and_pods_of_one_vlan_connect() {
    on_a_switch("ovs packets", |host, switch| {
        let (first, second, other) = (host.pod(), host.pod(), host.pod());
        let vlan = with(&ovs(), "vlan", 100.into());
        let result = host.add(&first, &at(&vlan, "10.1.2.3/24"));
        assert_eq!(first.net1().mac.unwrap().to_string(), "0a:58:0a:01:02:03");
        assert_eq!(result["interfaces"][1]["mac"], "0a:58:0a:01:02:03");
        assert_eq!(result["ips"][0]["interface"], 1);
        host.add(&second, &at(&vlan, "10.1.2.4/24"));
        host.add(&other, &at(&with(&ovs(), "vlan", 200.into()), "10.1.2.5/24"));
        assert!(hears(&first, &second, "one"), "{}", switch.log());
        // The broadcast frame arrives in the same VLAN, and was not passed to the other one before.
        let silent = station(&other);
        station(&first).send(&datagram("secret"), Mac([0xff; 6])).unwrap();
        assert!(hears(&first, &second, "two"));
        assert_eq!(
            silent.receive(&mut [0; 64]).unwrap_err().kind(),
            io::ErrorKind::WouldBlock
        );
        host.check(&first, &at(&vlan, "10.1.2.3/24"), &result).success();
    });
}

// cni-plugins#57
#[test]
fn del_finds_the_port_without_namespace_link_cache_and_record() {
    on_a_switch("ovs DEL", |host, switch| {
        let config = ovs();
        let ways: [fn(&mut Host, &Pod); 4] = [
            |_, pod| pod.lose_path(),
            |_, pod| {
                let link = pod.net1();
                pod.with(|socket| socket.delete_link(&link));
            },
            |host, _| host.lose_records_of("ovs"),
            |host, _| {
                host.lose_records_of("ovs");
                fs::remove_dir_all(CACHE).unwrap();
            },
        ];
        for spoil in ways {
            let (pod, neighbour) = (host.pod(), host.pod());
            host.add(&neighbour, &config);
            host.add(&pod, &config);
            spoil(host, &pod);
            for _ in 0..2 {
                host.call("DEL", &pod, &config).success();
            }
            assert_eq!(ports(switch).len(), 1);
            host.del(&neighbour, &config);
            assert!(ports(switch).is_empty() && host.veths().is_empty());
        }
    });
}

// cni-plugins#57
#[test]
fn upstream_attachment_is_removed_with_its_cache_file() {
    on_a_switch("an upstream attachment", |host, switch| {
        let pod = host.pod();
        host.add(&pod, &ovs());
        let file = format!("{CACHE}/{}-net1", pod.id);
        let cached: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        assert_eq!(cached["Netconf"]["bridge"], BRIDGE);
        assert_eq!(cached["OrigIfName"], "");
        assert_eq!(cached["UserspaceMode"], false);
        host.lose_records_of("ovs");
        // The config has another database by now.
        host.call("DEL", &pod, &with(&ovs(), "socket_file", "unix:/run/none".into()))
            .success();
        assert!(ports(switch).is_empty() && pod.link("net1").is_none());
        assert!(!fs::exists(&file).unwrap());
    });
}

// cni-plugins#92
#[test]
fn cache_file_without_the_plugins_keys_counts_as_none() {
    on_a_switch("an old upstream attachment", |host, switch| {
        let pod = host.pod();
        let result = host.add(&pod, &ovs());
        let file = format!("{CACHE}/{}-net1", pod.id);
        let mut cached: Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
        let netconf = cached["Netconf"].as_object_mut().unwrap();
        for key in ["bridge", "socket_file"] {
            netconf.shift_remove(key).unwrap();
        }
        fs::write(&file, cached.to_string()).unwrap();
        host.check(&pod, &ovs(), &result).success();
        host.lose_records_of("ovs");
        host.del(&pod, &ovs());
        assert!(ports(switch).is_empty() && pod.link("net1").is_none());
        assert!(!fs::exists(&file).unwrap());
    });
}

// cni-plugins#58
#[test]
fn our_dead_ports_are_removed_and_foreign_ones_kept() {
    on_a_switch("dead ports", |host, switch| {
        let (healthy, last) = (host.pod(), host.pod());
        let config = ovs();
        host.add(&healthy, &config);
        host.add(&last, &config);
        // A node that was started again has the ports, and none of their links.
        let name = "vethdead".to_owned();
        let ids = [
            "owner=ovs-cni.network.kubevirt.io",
            "contNetns=/gone",
            "contIface=net1",
        ];
        let add = ["--no-wait", "add-port", BRIDGE, &name, "--", "set", "Port", &name];
        let ids = ids.map(|id| format!("external_ids:{id}"));
        switch
            .vsctl(add.into_iter().chain(ids.iter().map(String::as_str)))
            .unwrap();
        switch
            .vsctl(["--no-wait", "add-port", BRIDGE, "foreign0"])
            .unwrap();
        for dead in [&*name, "foreign0"] {
            switch
                .vsctl(["wait-until", "Interface", dead, "error!=[]"])
                .unwrap();
        }
        let last = host.pod_without_path(&last);
        host.call("DEL", &last, &config).success();
        let left = ports(switch);
        assert!(!left.contains(&name), "{left:?}");
        assert!(
            left.contains(&"foreign0".to_owned()) && left.len() == 2,
            "{left:?}"
        );
    });
}

#[test]
fn del_without_database_succeeds_and_gc_removes_the_port() {
    on_a_switch("ovs without its database", |host, switch| {
        let (gone, valid) = (host.pod(), host.pod());
        let config = ovs();
        let name = outer(&host.add(&gone, &config));
        let kept = outer(&host.add(&valid, &config));
        switch.kill_database().unwrap();
        let outcome = host.call("DEL", &gone, &config);
        outcome.success();
        assert!(
            outcome.stderr.contains("failed to connect to ovsdb socket"),
            "{outcome:?}"
        );
        assert!(gone.link("net1").is_none() && host.link(&name).is_none());
        assert_eq!(host.records().len(), 2);
        let status = host.run(
            "ovs",
            &[("CNI_COMMAND", "STATUS"), ("CNI_PATH", "/x")],
            &config.to_string(),
        );
        assert_eq!(status.failure().0, 50);
        switch.start_database_again().unwrap();
        collect(host, &config, &[&valid]);
        assert_eq!(ports(switch), [kept]);
        assert_eq!(host.records().len(), 1);
    });
}

#[test]
fn del_in_a_daemon_fails_without_database_and_is_repeated() {
    on_a_switch("ovs in a daemon without its database", |host, switch| {
        let pod = host.pod();
        let config = ovs();
        host.add(&pod, &config);
        switch.kill_database().unwrap();
        let del = || call_in_a_daemon("DEL", &pod, &config, Instant::now() + Duration::from_mins(2));
        let error = del().unwrap_err();
        assert!(
            error.msg.starts_with("failed to connect to ovsdb socket"),
            "{error}"
        );
        switch.start_database_again().unwrap();
        del().unwrap();
        assert_eq!(ports(switch), Vec::<String>::new());
        assert!(host.records().is_empty(), "{:?}", host.records());
    });
}

#[test]
fn add_in_a_daemon_fails_before_its_deadline() {
    let packages: Packages = OpenVswitch::packages().unwrap();
    on_a_host("ovs in a daemon", move |host| {
        mount("tmpfs", "/var/lib", "tmpfs", MountFlags::empty(), None).unwrap();
        fs::create_dir_all(DAEMONS).unwrap();
        // Without the switch itself no link comes up.
        let database = OpenVswitch::start_database(&packages, Path::new(DAEMONS)).unwrap();
        database.vsctl(["--no-wait", "add-br", BRIDGE]).unwrap();
        let pod = host.pod();
        let before = host.state(&pod);
        let config = at(
            &with(&ovs(), "link_state_check_interval", 2000.into()),
            "10.1.2.3/24",
        );
        let wait = Duration::from_secs(200);
        let began = Instant::now();
        let error = call_in_a_daemon("ADD", &pod, &config, began).unwrap_err();
        assert!(
            error.msg.ends_with("number of retries/interval config parameter"),
            "{error}"
        );
        assert!(began.elapsed() < wait, "{:?}", began.elapsed());
        assert_eq!(ports(&database), Vec::<String>::new());
        assert_eq!(host.state(&pod), before);
    });
}

#[test]
fn foreign_port_of_the_recorded_name_stays() {
    on_a_switch("a foreign port", |host, switch| {
        let pod = host.pod();
        let name = outer(&host.add(&pod, &ovs()));
        switch
            .vsctl(["set", "Port", &name, "external_ids:owner=another"])
            .unwrap();
        host.call("DEL", &pod, &ovs()).success();
        assert_eq!(ports(switch), [name]);
    });
}

#[test]
fn killed_calls_leave_no_port() {
    on_a_switch("killed ovs", |host, switch| {
        let pod = host.pod();
        let config = ovs();
        let began = std::time::Instant::now();
        host.add(&pod, &config);
        let whole = began.elapsed();
        host.del(&pod, &config);
        let before = host.state(&pod);
        for round in 0..24_u32 {
            let after = whole * round / 24;
            host.call_and_kill("ADD", &pod, &config, after);
            if round % 2 == 0 {
                host.call("DEL", &pod, &config).success();
            } else {
                collect(host, &config, &[]);
            }
            assert_eq!(ports(switch), Vec::<String>::new(), "killed after {after:?}");
            assert_eq!(host.state(&pod), before, "killed after {after:?}");
        }
    });
}

// cni-plugins#60
#[test]
fn flat_file_sets_missing_keys_in_upstreams_order() {
    on_a_switch("the flat file", |host, switch| {
        let pod = host.pod();
        let own =
            json!({ "cniVersion": "1.1.0", "name": "test-net", "type": "ovs", "bridge": BRIDGE, "vlan": 7 });
        let socket = format!("unix:{DAEMONS}/db.sock");
        let file = json!({ "SOCKET_FILE": socket, "bridge": "br9", "mtu": 1400 });
        fs::create_dir_all("/etc/cni/net.d/ovs.d").unwrap();
        fs::write("/etc/cni/net.d/ovs.d/ovs.conf", file.to_string()).unwrap();
        let name = outer(&host.add(&pod, &own));
        assert_eq!(ports(switch), [name]);
        assert_eq!(pod.net1().mtu, 1400);
        host.del(&pod, &own);
        fs::create_dir_all("/etc/kubernetes/cni/net.d/ovs.d").unwrap();
        fs::write("/etc/kubernetes/cni/net.d/ovs.d/ovs.conf", "{").unwrap();
        let broken = host.call("ADD", &pod, &own).message();
        assert!(
            broken.starts_with("parse ovs config file /etc/kubernetes/cni/net.d/ovs.d/ovs.conf: error: "),
            "{broken}"
        );
        fs::write(
            "/run/first.conf",
            json!({ "socket_file": socket, "mtu": 1300 }).to_string(),
        )
        .unwrap();
        let own = with(&own, "configuration_path", "/run/first.conf".into());
        host.add(&pod, &own);
        assert_eq!(pod.net1().mtu, 1300);
        host.del(&pod, &own);
    });
}

fn mirror(role: &str, previous: &Value, mirrors: impl Into<Value>) -> Value {
    json!({
        "cniVersion": "1.1.0", "name": "test-net", "type": format!("ovs-mirror-{role}"), "bridge": BRIDGE,
        "socket_file": format!("unix:{DAEMONS}/db.sock"), "mirrors": mirrors.into(), "prevResult": previous
    })
}

/// The mirrors of the switch.
fn mirrors(switch: &OpenVswitch) -> Vec<String> {
    let listed = switch
        .vsctl(["--bare", "--columns=name", "list", "Mirror"])
        .unwrap();
    listed
        .lines()
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect()
}

// cni-plugins#61
#[test]
fn consumer_sees_packets_of_the_producer() {
    on_a_switch("mirrors", |host, switch| {
        let (producer, peer, consumer, second) = (host.pod(), host.pod(), host.pod(), host.pod());
        let result = host.add(&producer, &at(&ovs(), "10.1.2.3/24"));
        host.add(&peer, &at(&ovs(), "10.1.2.4/24"));
        let consuming = host.add(&consumer, &at(&ovs(), "10.1.2.5/24"));
        let other = host.add(&second, &ovs());
        let producing = mirror(
            "producer",
            &result,
            json!([{ "name": "m", "ingress": true, "egress": true }]),
        );
        let output = mirror("consumer", &consuming, json!([{ "name": "m" }]));
        assert_eq!(host.add(&producer, &producing), result);
        host.add(&consumer, &output);
        let refused = host
            .call(
                "ADD",
                &second,
                &mirror("consumer", &other, json!([{ "name": "m" }])),
            )
            .message();
        assert!(
            refused.contains("to mirror m because there is already another port. Error: "),
            "{refused}"
        );
        for (pod, config) in [(&producer, &producing), (&consumer, &output)] {
            host.call("CHECK", pod, config).success();
        }

        let received = || {
            let read = || fs::read_to_string("/proc/thread-self/net/dev");
            let text = consumer.ns.run(read).unwrap().unwrap();
            let line = text
                .lines()
                .find(|line| line.trim_start().starts_with("net1:"))
                .unwrap()
                .to_owned();
            line.split_whitespace().nth(2).unwrap().parse::<u64>().unwrap()
        };
        let count = received();
        assert!(hears(&producer, &peer, "copied"), "{}", switch.log());
        let mut seen = received();
        for _ in 0..60 {
            if seen > count {
                break;
            }
            assert!(hears(&producer, &peer, "again"));
            seen = received();
        }
        assert!(seen > count, "the consumer received nothing");

        host.del(&producer, &producing);
        assert_eq!(mirrors(switch), ["m"], "the consumer still uses it");
        host.del(&consumer, &output);
        assert_eq!(mirrors(switch), Vec::<String>::new());
        host.del(&consumer, &output);
    });
}

// cni-plugins#61
#[test]
fn our_empty_mirrors_are_removed_and_foreign_ones_kept() {
    on_a_switch("empty mirrors", |host, switch| {
        let pod = host.pod();
        let result = host.add(&pod, &ovs());
        for (id, name, owner) in [
            ("a", "empty", "ovs-cni.network.kubevirt.io"),
            ("b", "foreign", "another"),
        ] {
            let create = format!("--id=@{id} create mirror name={name} external_ids:owner={owner}");
            let add = format!("-- add bridge {BRIDGE} mirrors @{id}");
            switch.vsctl(create.split(' ').chain(add.split(' '))).unwrap();
        }
        let config = mirror(
            "producer",
            &result,
            json!([{ "name": "m1", "ingress": true }, { "name": "m2", "egress": true }]),
        );
        host.add(&pod, &config);
        let mut left = mirrors(switch);
        left.sort();
        assert_eq!(left, ["foreign", "m1", "m2"]);
        let port = get(switch, "Port", &outer(&result), "_uuid");
        assert_eq!(
            get(switch, "Mirror", "m1", "select_src_port"),
            format!("[{port}]")
        );
        assert_eq!(get(switch, "Mirror", "m1", "select_dst_port"), "[]");
        assert_eq!(
            get(switch, "Mirror", "m2", "select_dst_port"),
            format!("[{port}]")
        );
        let idle = host
            .call(
                "ADD",
                &pod,
                &mirror("producer", &result, json!([{ "name": "m3" }])),
            )
            .message();
        assert_eq!(
            idle,
            "a mirror producer must have either a ingress or an egress or both"
        );
        collect(host, &config, &[]);
        assert_eq!(mirrors(switch), ["foreign"]);
        let mut elsewhere = result.clone();
        elsewhere["interfaces"][0]["name"] = "veth0".into();
        let unknown = mirror("producer", &elsewhere, json!([{ "name": "m", "egress": true }]));
        assert_eq!(
            host.call("ADD", &pod, &unknown).message(),
            "cannot get existing portUuid from db cannot find port in db"
        );
    });
}
