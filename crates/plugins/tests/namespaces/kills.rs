//! Every plugin killed at random moments of ADD and DEL: a DEL that follows, or a GC that does not list the attachment,
//! restores the state of before.
//!
//! ```text
//! snapshot ──> ADD, or DEL of a whole ADD ── kill -9 ──> DEL, or GC ──> the same snapshot
//! ```

use std::{fs, path::Path};

use linux::{
    address::Family,
    link::{Link, LinkKind, LinkSpec},
    route::Socket,
    routes::{LOCAL_TABLE, Route},
};
use serde_json::{Value, json};

use crate::{
    killer::Killer,
    stage::{Host, LEASES, Pod, l2, l3, on_a_host, with},
    testing::ruleset,
};

/// Number of kills for each plugin, and the variable that sets another one.
const KILLS: u32 = 6;
const KILLS_VARIABLE: &str = "WEFT_TEST_KILLS";
/// Folders of our plugins: records and backups, leases.
const FOLDERS: [&str; 2] = ["/run/cni", LEASES];

/// An attachment whose calls are killed.
struct Scene {
    pod: Pod,
    config: Value,
    /// Another attachment to the network, by its own config, which nothing may touch.
    neighbour: Option<(Pod, Value)>,
}

/// A plugin, and its scene.
type Subject = (&'static str, fn(&mut Host) -> Scene);

const SUBJECTS: [Subject; 13] = [
    ("bridge", bridge),
    ("ptp", |host| {
        link(host, &json!({ "type": "ptp", "ipMasq": true }))
    }),
    ("macvlan", macvlan),
    ("egress-router", egress_router),
    ("dummy", |host| link(host, &json!({ "type": "dummy" }))),
    ("tap", |host| link(host, &json!({ "type": "tap" }))),
    ("host-device", host_device),
    ("tuning", |host| chained(host, |_| tuning())),
    ("sbr", |host| chained(host, |_| json!({ "type": "sbr" }))),
    ("portmap", |host| chained(host, portmap)),
    ("bandwidth", |host| chained(host, |_| bandwidth())),
    ("firewall", |host| chained(host, |_| firewall())),
    ("host-local", |host| link(host, &json!({ "type": "host-local" }))),
];

/// The config with more keys.
fn and(config: &Value, keys: &Value) -> Value {
    let mut config = config.clone();
    for (key, value) in keys.as_object().unwrap() {
        config[key] = value.clone();
    }
    config
}

/// A scene of a plugin that makes a link or leases addresses.
fn link(host: &mut Host, keys: &Value) -> Scene {
    let ranges = json!([[{ "subnet": "10.1.2.0/24" }]]);
    let ipam = json!({ "type": "host-local", "dataDir": LEASES, "ranges": ranges });
    let config = json!({ "cniVersion": "1.1.0", "name": "test-net", "ipam": ipam });
    let config = and(&config, keys);
    Scene {
        pod: host.pod(),
        neighbour: Some((host.pod(), config.clone())),
        config,
    }
}

fn bridge(host: &mut Host) -> Scene {
    let keys = json!({ "isDefaultGateway": true, "ipMasq": true, "macspoofchk": true });
    link(host, &and(&l2("1.1.0"), &keys))
}

/// One end of a pair on the host, both up.
fn device(host: &mut Host, name: &str) -> Link {
    let kind = LinkKind::Veth {
        peer_name: "wire",
        peer_ns: None,
    };
    host.socket.create_link(&LinkSpec::new(name, kind)).unwrap();
    for name in [name, "wire"] {
        let link = host.link(name).unwrap();
        host.socket.set_up(&link).unwrap();
    }
    host.link(name).unwrap()
}

fn macvlan(host: &mut Host) -> Scene {
    device(host, "eth0");
    link(host, &json!({ "type": "macvlan", "master": "eth0" }))
}

/// Pods with `eth0` in the network of the cluster.
fn egress_router(host: &mut Host) -> Scene {
    device(host, "uplink");
    let mut attached = |number: u16| {
        let pod = host.pod();
        let ipam = json!({
            "type": "static", "routes": [{ "dst": "0.0.0.0/0" }],
            "addresses": [{ "address": format!("10.244.0.{number}/24"), "gateway": "10.244.0.1" }],
        });
        let network = json!({ "cniVersion": "1.1.0", "name": "cluster", "type": "ptp", "ipam": ipam });
        host.call_with("ADD", &pod, "eth0", "", &network).success();
        let ip = json!({
            "addresses": [format!("192.0.2.{number}/24")], "gateway": "192.0.2.1",
            "destinations": ["8080 TCP 203.0.113.26 80"], "fallbackIP": "203.0.113.9",
        });
        let config = json!({
            "cniVersion": "1.1.0", "name": "test-net", "type": "egress-router", "interfaceArgs": { "master": "uplink" },
            "ip": ip,
        });
        (pod, config)
    };
    let neighbour = attached(2);
    let (pod, config) = attached(3);
    Scene {
        pod,
        config,
        neighbour: Some(neighbour),
    }
}

/// The device is one container's alone: there is no neighbour.
fn host_device(host: &mut Host) -> Scene {
    device(host, "eth1");
    let scene = link(host, &json!({ "type": "host-device", "device": "eth1" }));
    Scene {
        neighbour: None,
        ..scene
    }
}

/// A scene of a plugin that is chained after bridge. `keys` are for the container with that number.
fn chained(host: &mut Host, keys: fn(u16) -> Value) -> Scene {
    let mut attached = |number: u16| {
        let pod = host.pod();
        let address = format!("10.1.2.{number}");
        let ipam = json!({
            "type": "static", "addresses": [{ "address": format!("{address}/24"), "gateway": "10.1.2.1" }],
            "routes": [{ "dst": "10.99.0.0/16" }],
        });
        let network = with(&l3("1.1.0", &[]), "ipam", ipam);
        let result = host.add(&pod, &with(&network, "isGateway", true.into()));
        let config = json!({ "cniVersion": "1.1.0", "name": "test-net", "prevResult": result });
        (pod, and(&config, &keys(number)))
    };
    let neighbour = attached(2);
    let (pod, config) = attached(3);
    Scene {
        pod,
        config,
        neighbour: Some(neighbour),
    }
}

fn tuning() -> Value {
    json!({
        "type": "tuning", "mac": "02:00:00:00:00:0b", "mtu": 1400, "promisc": true, "allmulti": true, "txQLen": 7,
        "sysctl": { "net.ipv4.conf.IFNAME.arp_filter": "1", "net.ipv4.conf.IFNAME.arp_notify": "1" },
    })
}

fn portmap(number: u16) -> Value {
    let mapping =
        |protocol: &str| json!({ "hostPort": 8000 + number, "containerPort": 80, "protocol": protocol });
    json!({
        "type": "portmap", "capabilities": { "portMappings": true }, "conditionsV4": ["ip saddr != 10.9.0.0/16"],
        "runtimeConfig": { "portMappings": [mapping("tcp"), mapping("udp")] },
    })
}

fn bandwidth() -> Value {
    json!({
        "type": "bandwidth", "ingressRate": 8000, "ingressBurst": 16000, "egressRate": 8000, "egressBurst": 16000,
    })
}

fn firewall() -> Value {
    json!({ "type": "firewall", "backend": "nftables", "ingressPolicy": "isolated" })
}

/// Links, their addresses and limits, routes, rules and settings of a namespace: the one of the thread, and of the socket.
fn namespace(socket: &mut Socket) -> Vec<String> {
    let mut lines = Vec::new();
    for link in socket.links().unwrap() {
        lines.push(described(&link));
        for address in socket.addresses(&link, None).unwrap() {
            // Link-local addresses come and go with the link's state.
            if address.global {
                lines.push(format!("  address {}", address.net));
            }
        }
        let limit = socket.bucket(&link).unwrap();
        let to = socket.redirected_to(&link).unwrap();
        lines.push(format!("  sends by {limit:?}, is redirected to {to:?}"));
    }
    for family in [Family::V4, Family::V6] {
        let routes = socket.routes(family).unwrap();
        let mut routes: Vec<_> = routes.iter().filter(|route| is_of_plugins(route)).collect();
        routes.sort_by_key(ToString::to_string);
        lines.extend(routes.iter().map(|route| format!("{route:?}")));
        let rules = socket.rules(family).unwrap();
        lines.extend(rules.iter().map(|rule| format!("{rule:?}")));
    }
    lines.extend(settings());
    lines
}

/// One line with everything about a link that a plugin may change. The address of a bridge is the lowest of its ports.
fn described(link: &Link) -> String {
    let mac = link.mac.filter(|_| !link.is_kind("bridge"));
    format!(
        "link {} {} {:?} of {:?}, alias {:?}, mac {mac:?}, mtu {}, queue {}, up {}, promiscuous {} ({}), multicast {}, {:?}",
        link.index,
        link.name,
        link.kind,
        link.master,
        link.alias,
        link.mtu,
        link.tx_queue_len,
        link.is_up(),
        link.is_promiscuous(),
        link.promiscuity,
        link.is_all_multicast(),
        link.port,
    )
}

/// Whether the kernel did not add this route by itself.
fn is_of_plugins(route: &Route) -> bool {
    let dst = route.dst.to_string();
    route.table != Some(LOCAL_TABLE) && !dst.starts_with("fe80:") && !dst.starts_with("ff00:")
}

/// The settings of the thread's namespace that plugins change.
fn settings() -> Vec<String> {
    let mut lines = Vec::new();
    for (family, names) in [
        (
            "ipv4",
            &["forwarding", "route_localnet", "arp_filter", "arp_notify"][..],
        ),
        ("ipv6", &["forwarding"]),
    ] {
        let folder = format!("/proc/sys/net/{family}/conf");
        for link in fs::read_dir(folder).unwrap() {
            for name in names {
                let path = link.as_ref().unwrap().path().join(name);
                let value = fs::read_to_string(&path).unwrap();
                lines.push(format!("{}: {}", path.display(), value.trim()));
            }
        }
    }
    lines.sort();
    lines
}

/// Folders and files below a folder, with their content. The index of leases is no state, nor is the place where the next
/// search for an address begins. GC removes half-written backups of tuning when they are old.
fn tree(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let is_half_written = name.starts_with('.') && folder.ends_with("tuning");
        if path.ends_with("weft/host-local") || name.starts_with("last_reserved_ip") || is_half_written {
            continue;
        }
        if path.is_dir() {
            found.push(path.display().to_string());
            found.extend(tree(&path));
        } else {
            let content = fs::read_to_string(&path).unwrap();
            found.push(format!("{}: {content:?}", path.display()));
        }
    }
    found.sort();
    found
}

/// Everything that a call may change: host, container and neighbour, and files.
fn snapshot(host: &mut Host, scene: &Scene) -> String {
    let mut lines = namespace(&mut host.socket);
    lines.push(ruleset());
    for pod in [Some(&scene.pod), scene.neighbour.as_ref().map(|(pod, _)| pod)]
        .into_iter()
        .flatten()
    {
        lines.push(format!("in {}:", pod.id));
        lines.extend(pod.ns.run(|| namespace(&mut pod.socket.borrow_mut())).unwrap());
    }
    lines.extend(FOLDERS.iter().flat_map(|folder| tree(Path::new(folder))));
    lines.join("\n")
}

/// The feature that the kernel lacks for the plugin.
fn missing_feature(host: &Host, scene: &Scene) -> Option<String> {
    let outcome = host.call("ADD", &scene.pod, &scene.config);
    if outcome.code == 0 {
        host.del(&scene.pod, &scene.config);
        return None;
    }
    let details = outcome.json()["details"].as_str().unwrap_or_default().to_owned();
    assert!(details.starts_with("the kernel lacks"), "{outcome:?}");
    Some(details)
}

/// GC whose list has the neighbour alone.
fn collect(host: &Host, scene: &Scene) {
    let valid = scene.neighbour.iter().map(|(pod, _)| pod);
    let valid: Value = valid
        .map(|pod| json!({ "containerID": pod.id, "ifname": "net1" }))
        .collect();
    let mut config = with(&scene.config, "cni.dev/valid-attachments", valid);
    config.as_object_mut().unwrap().shift_remove("prevResult");
    let outcome = host.gc(&config);
    assert_eq!((outcome.code, outcome.stdout.as_str()), (0, ""), "{outcome:?}");
}

fn kills() -> u32 {
    match std::env::var(KILLS_VARIABLE) {
        Ok(kills) => kills
            .parse()
            .unwrap_or_else(|error| panic!("{KILLS_VARIABLE}: {error}")),
        Err(_) => KILLS,
    }
}

fn survives_kills(host: &mut Host, plugin: &str, scene: &Scene) {
    if let Some(feature) = missing_feature(host, scene) {
        println!("left out: {plugin}: {feature}");
        return;
    }
    if let Some((pod, config)) = &scene.neighbour {
        host.add(pod, config);
    }
    println!("killing {plugin}");
    let mut killer = Killer::new(host, &scene.pod, &scene.config, kills());
    collect(host, scene);
    let before = snapshot(host, scene);
    while let Some(round) = killer.kill(host, &scene.pod, &scene.config) {
        let is_gc = round.number % 4 >= 2;
        // GC of tuning leaves an existing namespace to DEL.
        if !is_gc || plugin == "tuning" {
            host.del(&scene.pod, &scene.config);
        }
        // DEL of portmap leaves maps without elements to GC.
        if is_gc || plugin == "portmap" {
            collect(host, scene);
        }
        assert_eq!(snapshot(host, scene), before, "{plugin}, {round}, GC {is_gc}");
    }
    host.add(&scene.pod, &scene.config);
}

// cni-plugins#81, cluster-network#119
#[test]
fn randomly_killed_plugins_are_undone_by_del_or_gc() {
    for (plugin, prepare) in SUBJECTS {
        on_a_host("killed plugins", move |host| {
            let scene = prepare(host);
            survives_kills(host, plugin, &scene);
        });
    }
}
