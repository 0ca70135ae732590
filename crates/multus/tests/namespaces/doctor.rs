//! `weft doctor` on a node with real attachments: drift, leftovers, and their removal.

use crate::built::weft_cni;
use crate::runtime::Runtime;
use cni::args::CniArgs;
use cni::cache::Cache;
use cni::chain::{Attachment, Chain};
use cni::config::NetworkList;
use cni::exec::Invoker;
use cni::json::Object;
use linux::link::{BridgeSpec, LinkChange};
use linux::netns::{NetNs, unshare_network};
use linux::nft::{self, Family, Table, Transaction};
use linux::route::Socket;
use multus::config::DaemonConfig;
use multus::doctor::Node;
use multus::doctor::report::{Check, Kind, Report};
use multus::execution::in_process::Plugins;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use serde_json::json;
use std::fs::{self, File};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

const BIN: &str = "/run/plugins";
const CRI: &str = "/run/cri.sock";
const LEASES: &str = "/var/lib/cni/networks";
const RECORDS: &str = "/run/cni/weft";
/// The runtime's cache, and that of multus.
const CACHES: [&str; 2] = ["/var/lib/cni", "/var/lib/cni/multus"];
const LAN: &str = "lan";

/// A host with a container runtime.
struct Host {
    socket: Socket,
    runtime: Runtime,
    plugins: Plugins,
    pods: Vec<NetNs>,
}

/// Runs `work` on a host of its own whose runtime has these sandboxes.
fn on_a_host(own_binaries: &'static [&str], work: impl FnOnce(&mut Host) + Send + 'static) {
    // Built before the machine's files are hidden.
    weft_cni();
    let thread = std::thread::spawn(move || work(&mut Host::new(own_binaries)));
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

impl Host {
    fn new(own_binaries: &[&str]) -> Self {
        unshare_network().unwrap();
        linux::process::unshare_mounts().unwrap();
        for folder in ["/run", "/etc", "/var/lib"] {
            mount("tmpfs", folder, "tmpfs", MountFlags::empty(), None).unwrap();
        }
        for folder in ["/run/netns", BIN] {
            fs::create_dir_all(folder).unwrap();
        }
        for name in ["bridge", "tuning", "portmap", "host-local"] {
            symlink(weft_cni(), Path::new(BIN).join(name)).unwrap();
        }
        let mut socket = Socket::open().unwrap();
        let lo = socket.link_by_name("lo").unwrap();
        socket.set_up(&lo).unwrap();
        let plugins = Plugins {
            invoker: Invoker {
                dirs: vec![BIN.into()],
                base: cni::env::variables(),
                ..Invoker::default()
            },
            root: None,
            own_binaries: Arc::default(),
            given_up: Arc::default(),
            repeats_dels: false,
        };
        let runtime = Runtime::at(Path::new(CRI), own_binaries);
        stage::until("the runtime listens", || {
            Path::new(CRI).exists().then_some(()).ok_or("no socket")
        });
        Self {
            socket,
            runtime,
            plugins,
            pods: Vec::new(),
        }
    }

    /// Attaches a new pod to a network; returns the port on the host.
    fn attach(&mut self, cache: &str, id: &str, network: &serde_json::Value, host_port: u16) -> String {
        let ns = NetNs::create_anonymous().unwrap();
        let path = format!("/run/netns/{id}");
        fs::write(&path, "").unwrap();
        mount_bind(format!("/proc/thread-self/fd/{}", ns.as_fd().as_raw_fd()), &path).unwrap();
        self.pods.push(ns);
        let ports =
            json!({"portMappings": [{"hostPort": host_port, "containerPort": 80, "protocol": "tcp"}]});
        let attachment = Attachment {
            container_id: id.into(),
            netns: path,
            ifname: "net1".into(),
            args: CniArgs::parse(&format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME={id}")).unwrap(),
            capability_args: Object::parse(ports.to_string().as_bytes()).unwrap(),
        };
        let cache = Cache::new(Path::new(cache));
        let chain = Chain {
            runner: &self.plugins,
            cache: &cache,
        };
        let network = NetworkList::parse_any(network.to_string().as_bytes()).unwrap();
        let result = chain.add(&network, &attachment).unwrap();
        let port = result.interfaces.iter().find(|it| it.name.starts_with("veth"));
        port.unwrap().name.clone()
    }

    /// Removes the path of a pod's network namespace, as the end of a sandbox does.
    fn lose_namespace(id: &str) {
        let path = format!("/run/netns/{id}");
        unmount(&path, UnmountFlags::DETACH).unwrap();
        fs::remove_file(path).unwrap();
    }

    fn enslave(&mut self, port: &str, bridge: &str) {
        let bridge = self.socket.link_by_name(bridge).unwrap().index;
        let port = self.socket.link_by_name(port).unwrap();
        let change = LinkChange {
            master: Some(bridge),
            ..LinkChange::default()
        };
        self.socket.change_link(&port, "move", &change).unwrap();
    }

    fn pod(&self, number: usize) -> &NetNs {
        &self.pods[number]
    }
}

fn node() -> Node {
    let config = json!({"criSocketPath": CRI, "binDir": BIN});
    let config = DaemonConfig::parse(config.to_string().as_bytes()).unwrap();
    Node::new("node01", Some(Path::new("/")), config).unwrap()
}

fn examine() -> Report {
    kube_kit::process::run(node().examine()).unwrap().unwrap()
}

fn repair() -> Report {
    kube_kit::process::run(node().repair()).unwrap().unwrap()
}

fn lan(version: &str) -> serde_json::Value {
    json!({"cniVersion": version, "name": LAN, "plugins": [
        {"type": "bridge", "bridge": "br0",
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.9.0.0/24"}]]}},
        {"type": "tuning", "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}},
        {"type": "portmap", "capabilities": {"portMappings": true}, "backend": "nftables"},
    ]})
}

fn checks(report: &Report) -> Vec<(&str, Check)> {
    let rows = report.attachments.iter();
    rows.map(|row| (&*row.pod, row.check)).collect()
}

fn plugins_of<'a>(report: &'a Report, pod: &str) -> Vec<&'a str> {
    let findings = report.findings.iter().filter(|finding| finding.pod == pod);
    let drifted = findings.filter(|finding| finding.kind == Kind::Drifted);
    drifted.map(|finding| &*finding.plugin).collect()
}

/// The names of the files in a folder, sorted.
fn names(folder: &str) -> Vec<String> {
    let listed = fs::read_dir(folder).into_iter().flatten();
    let mut names: Vec<_> = listed
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn write_old(path: &str, text: &str) {
    fs::create_dir_all(Path::new(path).parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
    let long_ago = SystemTime::now() - Duration::from_hours(1);
    File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_modified(long_ago)
        .unwrap();
}

#[test]
fn drifted_attachment_is_reported_with_plugin() {
    on_a_host(&["c0", "c1", "c2", "c3"], |host| {
        let ports: Vec<_> = (0..4_u16)
            .map(|number| {
                let cache = CACHES[usize::from(number % 2)];
                host.attach(cache, &format!("c{number}"), &lan("1.0.0"), 8000 + number)
            })
            .collect();
        let healthy = examine();
        assert_eq!(healthy.findings, [], "{healthy:?}");
        let all_ok: Vec<_> = ["ns/c0", "ns/c1", "ns/c2", "ns/c3"]
            .map(|pod| (pod, Check::Ok))
            .into();
        assert_eq!(checks(&healthy), all_ok);

        // A port on another bridge, and one on none.
        let other = BridgeSpec {
            name: "br1",
            mtu: None,
            mac: None,
            vlan_filtering: false,
        };
        host.socket.create_bridge(&other).unwrap();
        host.enslave(&ports[0], "br1");
        let report = examine();
        assert_eq!(plugins_of(&report, "ns/c0"), ["bridge"], "{report:?}");
        assert_eq!(report.findings.len(), 1, "{report:?}");
        host.enslave(&ports[0], "br0");
        assert_eq!(examine().findings, []);

        // A sysctl. The plugins behind it are checked all the same.
        let write = || fs::write("/proc/sys/net/ipv4/conf/net1/arp_filter", "0");
        host.pod(1).run(write).unwrap().unwrap();
        let report = examine();
        assert_eq!(plugins_of(&report, "ns/c1"), ["tuning"], "{report:?}");
        assert_eq!(report.findings.len(), 1, "{report:?}");

        // The rules that lead ports to pods.
        let mut changes = Transaction::new();
        changes.delete_table(Table {
            family: Family::Ipv4,
            name: "cni_hostport",
        });
        nft::Socket::open().unwrap().commit(&changes).unwrap();
        let report = examine();
        assert_eq!(plugins_of(&report, "ns/c1"), ["portmap", "tuning"], "{report:?}");
        for pod in ["ns/c0", "ns/c2", "ns/c3"] {
            assert_eq!(plugins_of(&report, pod), ["portmap"], "{report:?}");
        }
        assert!(
            report
                .findings
                .iter()
                .all(|finding| finding.network == LAN && finding.interface == "net1")
        );
    });
}

#[test]
fn repair_removes_only_leftovers() {
    on_a_host(&["c0", "c1"], |host| {
        for (number, id) in (0_u16..).zip(["c0", "c1", "c2", "c3", "c4"]) {
            host.attach(CACHES[usize::from(number % 2)], id, &lan("1.0.0"), 8000 + number);
        }
        // Gone in the runtime's cache and in that of multus. The runtime still has c1; the namespace of c4 exists.
        for id in ["c1", "c2", "c3"] {
            Host::lose_namespace(id);
        }
        // State in no cache: old state, state of a running ADD, and state of another program's network.
        write_old(&format!("{LEASES}/{LAN}/10.9.0.200"), "old\r\nnet1");
        write_old(&format!("{RECORDS}/portmap/{LAN}/old:net1"), "");
        fs::write(format!("{LEASES}/{LAN}/10.9.0.201"), "new\r\nnet1").unwrap();
        write_old(&format!("{LEASES}/podman/10.88.0.2"), "foreign\r\neth0");

        let report = examine();
        let left: Vec<_> = report.findings.iter().map(|it| (it.kind, &*it.sandbox)).collect();
        let expected = ["old", "old", "c2", "c3"].map(|id| (Kind::LeftOver, id));
        assert_eq!(left, expected, "{report:?}");
        assert!(
            report.notes.iter().any(|note| note.contains("podman")),
            "{report:?}"
        );
        assert_eq!(names("/var/lib/cni/results").len(), 3);

        let repaired = repair();
        let done = repaired.repair.as_ref().unwrap();
        assert_eq!((done.removed.len(), done.failed.len()), (4, 0), "{repaired:?}");
        assert_eq!(done.refused, None);
        assert_eq!(repaired.findings, [], "{repaired:?}");
        assert_eq!(
            names("/var/lib/cni/results"),
            ["lan-c0-net1", "lan-c4-net1"],
            "c2 is gone"
        );
        assert_eq!(
            names("/var/lib/cni/multus/results"),
            ["lan-c1-net1"],
            "c3 is gone"
        );
        for plugin in ["bridge", "portmap"] {
            let records = names(&format!("{RECORDS}/{plugin}/{LAN}"));
            assert_eq!(records, ["c0:net1", "c1:net1", "c4:net1"], "{plugin}");
        }
        let leases = names(&format!("{LEASES}/{LAN}"));
        let addresses: Vec<_> = leases.iter().filter(|name| name.starts_with("10.")).collect();
        assert_eq!(addresses, ["10.9.0.2", "10.9.0.201", "10.9.0.3", "10.9.0.6"]);
        assert_eq!(names(&format!("{LEASES}/podman")), ["10.88.0.2"]);

        let again = repair();
        assert_eq!(again.repair.as_ref().unwrap().removed, Vec::<String>::new());
        assert_eq!(checks(&again)[0], ("ns/c0", Check::Ok), "{:?}", again.attachments);
    });
}

#[test]
fn repair_without_runtime_is_refused() {
    on_a_host(&["c0"], |host| {
        host.attach(CACHES[0], "c1", &lan("1.0.0"), 8000);
        Host::lose_namespace("c1");
        fs::remove_file(CRI).unwrap();
        let report = repair();
        let refused = report.repair.unwrap().refused.unwrap();
        assert!(
            refused.contains("the sandboxes of the container runtime are unknown"),
            "{refused}"
        );
        assert_eq!(names("/var/lib/cni/results"), ["lan-c1-net1"]);
        assert_eq!(report.findings[0].kind, Kind::LeftOver);
    });
}

#[test]
fn configuration_without_check_is_no_finding() {
    on_a_host(&["c0"], |host| {
        host.attach(CACHES[1], "c0", &lan("0.3.1"), 8000);
        host.runtime.knows(&["c0", "other"]);
        let report = examine();
        assert_eq!(report.findings, [], "{report:?}");
        assert_eq!(checks(&report), [("ns/c0", Check::NotChecked)]);
        assert!(report.attachments[0].reason.contains("0.3.1"), "{report:?}");
    });
}

#[test]
fn broken_cache_file_is_reported() {
    on_a_host(&["c0"], |host| {
        host.attach(CACHES[0], "c0", &lan("1.0.0"), 8000);
        fs::write("/var/lib/cni/results/lan-c9-net1", "{\"kind\":").unwrap();
        let report = examine();
        assert_eq!(checks(&report), [("ns/c0", Check::Ok)]);
        let [finding] = &report.findings[..] else {
            panic!("{report:?}");
        };
        assert_eq!(finding.kind, Kind::Unreadable);
        assert!(finding.problem.contains("lan-c9-net1"), "{finding:?}");
    });
}
