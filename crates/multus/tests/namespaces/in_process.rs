//! Plugins of ours as a part of this process, against the same plugins as programs.

use crate::built::weft_cni;
use cni::Error;
use cni::chain::Runner;
use cni::env::Variables;
use cni::exec::{Invoker, Prepare};
use linux::link::BridgeSpec;
use linux::netns::{NetNs, unshare_network};
use linux::route::Socket;
use multus::execution::in_process::Plugins;
use rustix::mount::{MountFlags, mount, mount_bind, mount_bind_recursive};
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// Root directory of plugins: the machine's, but for one directory of its own.
const ROOT: &str = "/run/root";
/// Directory of leases, seen from the root.
const LEASES: &str = "/run/leases";
const BIN: &str = "/run/plugins";
const NETNS: &str = "/run/netns/pod";
const VERSIONS: [&str; 7] = ["0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"];

/// Execution of plugins, by the files on the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Way {
    /// All as programs: they are of another build.
    Programs,
    /// As a part of the daemon: they are of its own.
    Daemon,
}

/// Names of programs.
type Started = Arc<Mutex<Vec<String>>>;

/// A host with a root for plugins, and one pod.
struct Host {
    plugins: Plugins,
    /// Programs that were started.
    started: Started,
    socket: Socket,
    pod: NetNs,
    log: Vec<String>,
}

/// Runs `work` on a host of its own, which ends with it.
fn on_a_host<T: Send + 'static>(way: Way, work: impl FnOnce(&mut Host) -> T + Send + 'static) -> T {
    // Built before the machine's files are hidden.
    weft_cni();
    let thread = std::thread::spawn(move || work(&mut Host::new(way)));
    thread
        .join()
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

impl Host {
    fn new(way: Way) -> Self {
        unshare_network().unwrap();
        linux::process::unshare_mounts().unwrap();
        for folder in ["/run", "/etc"] {
            mount("tmpfs", folder, "tmpfs", MountFlags::empty(), None).unwrap();
        }
        for folder in ["/run/netns", BIN, ROOT, LEASES] {
            fs::create_dir_all(folder).unwrap();
        }
        for name in [
            "bridge",
            "cnv-bridge",
            "tuning",
            "host-local",
            "static",
            "loopback",
            "passthru",
        ] {
            let program = match way {
                Way::Programs => other_build(),
                Way::Daemon => weft_cni().to_owned(),
            };
            symlink(program, Path::new(BIN).join(name)).unwrap();
        }
        let ipam = r#"echo '{"cniVersion": "0.4.0", "ips": [{"version": "4", "address": "10.9.0.5/24"}]}'"#;
        script(
            "foreign-ipam",
            &format!("[ $CNI_COMMAND = ADD ] || exit 0\n{ipam}"),
        );
        let pod = NetNs::create_anonymous().unwrap();
        fs::write(NETNS, "").unwrap();
        mount_bind(format!("/proc/thread-self/fd/{}", pod.as_fd().as_raw_fd()), NETNS).unwrap();
        mount_bind_recursive("/", ROOT).unwrap();
        let own = below_root(LEASES);
        mount("tmpfs", &own, "tmpfs", MountFlags::empty(), None).unwrap();

        let mut socket = Socket::open().unwrap();
        let bridge = BridgeSpec {
            name: "br0",
            mtu: None,
            mac: Some("02:00:00:00:00:01".parse().unwrap()),
            vlan_filtering: false,
        };
        socket.create_bridge(&bridge).unwrap();
        let started = Started::default();
        let noted = Arc::clone(&started);
        let prepare: Prepare = Arc::new(move |command| {
            let name = Path::new(command.get_program()).file_name().unwrap();
            noted.lock().unwrap().push(name.to_str().unwrap().to_owned());
        });
        let plugins = Plugins {
            invoker: Invoker {
                dirs: vec!["/nowhere".into(), BIN.into()],
                base: [("PATH".to_owned(), "/usr/bin:/bin".to_owned())].into(),
                prepare: Some(prepare),
                limit: None,
            },
            given_up: Arc::default(),
            repeats_dels: false,
            root: Some(ROOT.into()),
            own_binaries: Arc::default(),
        };
        Self {
            plugins,
            started,
            socket,
            pod,
            log: Vec::new(),
        }
    }

    /// Names of the programs that the daemon's process started.
    fn started(&self) -> Vec<String> {
        self.started.lock().unwrap().clone()
    }

    /// Calls a plugin and logs its answer and the resulting state.
    fn call(&mut self, verb: &str, config: &Value) -> Value {
        self.call_with(verb, config["type"].as_str().unwrap(), &config.to_string(), &[])
    }

    fn call_with(&mut self, verb: &str, plugin: &str, config: &str, more: &[(&str, &str)]) -> Value {
        let mut variables: Variables = [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", NETNS),
            ("CNI_IFNAME", "net1"),
            ("CNI_ARGS", "IgnoreUnknown=1;K8S_POD_NAME=p"),
            ("CNI_PATH", BIN),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
        for (name, value) in more {
            variables.insert((*name).to_owned(), (*value).to_owned());
        }
        let outcome = self.plugins.run(plugin, &variables, config.as_bytes());
        let printed = outcome
            .as_ref()
            .map(|text| String::from_utf8_lossy(text).into_owned());
        let output = match &printed {
            Ok(text) => format!("printed {text}"),
            Err(Error { code, msg, details }) => format!("failed with {code}: {msg}; {details}"),
        };
        let state = self.state();
        self.log.push(without_chance(&format!(
            "{verb} {plugin} {config} {output}\n{state}"
        )));
        printed.map_or(Value::Null, |text| {
            serde_json::from_str(&text).unwrap_or_default()
        })
    }

    /// The state of an attachment: links, leases, records.
    fn state(&mut self) -> String {
        let links = |socket: &mut Socket| {
            let links = socket.links().unwrap().into_iter().map(|link| {
                let (kind, up, mtu) = (link.kind.clone().unwrap_or_default(), link.is_up(), link.mtu);
                format!(
                    "{} {kind} up={up} mtu={mtu} port={}",
                    link.name,
                    link.master.is_some()
                )
            });
            let mut links: Vec<_> = links.collect();
            links.sort();
            links.join(", ")
        };
        let mut inside = self.pod.run(Socket::open).unwrap().unwrap();
        let mut files = Vec::new();
        for folder in [
            below_root(LEASES),
            below_root("/run/cni/weft/bridge"),
            LEASES.into(),
        ] {
            list(&folder, &mut files);
        }
        format!(
            "host {}\npod {}\nfiles {}\n",
            links(&mut self.socket),
            links(&mut inside),
            files.join(" ")
        )
    }
}

/// `weft-cni`, with the mark of another build.
fn other_build() -> PathBuf {
    let path = Path::new("/run/other-build");
    if !path.exists() {
        let mut program = fs::read(weft_cni()).unwrap();
        let mark = plugins::mark::MARK.as_bytes();
        let place = program.windows(mark.len()).position(|part| part == mark).unwrap();
        program[place + mark.len() - 2] ^= 1;
        fs::write(path, program).unwrap();
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
    path.to_owned()
}

fn below_root(path: &str) -> PathBuf {
    Path::new(ROOT).join(path.trim_start_matches('/'))
}

fn list(folder: &Path, files: &mut Vec<String>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    let mut paths: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            list(&path, files);
        } else {
            files.push(path.display().to_string());
        }
    }
}

fn script(name: &str, text: &str) {
    let path = Path::new(BIN).join(name);
    fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
}

/// A text without random values: MAC addresses, except those of tests (`02:00:…`), and names of pairs.
fn without_chance(text: &str) -> String {
    let mut kept = String::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let digits = |from: usize, to: usize| {
            rest.get(from..to)
                .is_some_and(|part| part.chars().all(|c| c.is_ascii_hexdigit()))
        };
        let colon = |at: usize| rest.as_bytes().get(at) == Some(&b':');
        if rest.starts_with("veth") && digits(4, 12) {
            kept.push_str("VETH");
            rest = &rest[12..];
        } else if (0..6).all(|n| digits(3 * n, 3 * n + 2) && (n == 5 || colon(3 * n + 2)))
            && !rest.starts_with("02:00:")
        {
            kept.push_str("MAC");
            rest = &rest[17..];
        } else {
            kept.push(first);
            rest = &rest[first.len_utf8()..];
        }
    }
    kept
}

/// The calls that compare both executions.
fn corpus(host: &mut Host) {
    let mac = json!({"mac": "02:00:00:00:00:02"});
    for version in VERSIONS {
        let of = |plugin: &str, keys: Value| {
            let mut config = json!({"cniVersion": version, "name": "blue", "type": plugin});
            config
                .as_object_mut()
                .unwrap()
                .extend(keys.as_object().cloned().unwrap());
            config
        };
        let ranges = json!([[{"subnet": "10.8.0.0/29"}]]);
        let leases = json!({"type": "host-local", "ranges": ranges, "dataDir": LEASES});
        let fixed =
            json!({"type": "static", "addresses": [{"address": "10.7.0.2/24", "gateway": "10.7.0.1"}]});
        let foreign = json!({"type": "foreign-ipam"});
        for ipam in [json!({}), leases.clone(), fixed.clone(), foreign] {
            let mut config = of(
                "bridge",
                json!({"bridge": "br0", "ipam": ipam, "args": {"cni": mac}}),
            );
            let result = host.call("ADD", &config);
            config["prevResult"] = result;
            host.call("CHECK", &config);
            host.call("ADD", &config);
            let mut tuning = of(
                "tuning",
                json!({"mtu": 1400, "sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1"}}),
            );
            tuning["prevResult"] = config["prevResult"].clone();
            host.call("ADD", &tuning);
            host.call("CHECK", &tuning);
            host.call("DEL", &tuning);
            host.call("STATUS", &config);
            host.call("DEL", &config);
            host.call("DEL", &config);
            host.call("CHECK", &config);
        }
        for ipam in [leases, fixed] {
            let plugin = ipam["type"].as_str().unwrap();
            let mut config = of(plugin, json!({"ipam": ipam}));
            let result = host.call("ADD", &config);
            config["prevResult"] = result;
            host.call("CHECK", &config);
            config["cni.dev/valid-attachments"] = json!([]);
            host.call("GC", &config);
            host.call("DEL", &config);
        }
        for plugin in ["loopback", "passthru"] {
            for verb in ["ADD", "CHECK", "DEL", "STATUS", "GC"] {
                host.call(verb, &of(plugin, json!({})));
            }
        }
        let mut left = of("cnv-bridge", json!({"bridge": "br0"}));
        host.call("ADD", &left);
        host.call("GC", &left);
        left["cni.dev/valid-attachments"] = json!([]);
        host.call("GC", &left);
    }
    let good = json!({"cniVersion": "1.0.0", "name": "blue", "type": "bridge", "bridge": "br0"});
    for broken in [
        "",
        "{",
        "[]",
        "null",
        "{}",
        r#"{"name": "-"}"#,
        r#"{"name": "blue", "cniVersion": "9.9.9"}"#,
        r#"{"name": "blue", "cniVersion": "1.0.0", "bridge": "lo"}"#,
        r#"{"name": "blue", "cniVersion": "1.0.0", "vlan": 5000}"#,
        r#"{"name": "blue", "cniVersion": "1.0.0", "bridge": 7}"#,
        r#"{"name": "blue", "cniVersion": "1.0.0", "ipam": {"type": "no-such-ipam"}}"#,
        r#"{"name": "blue", "cniVersion": "1.0.0", "ipam": {"type": "tuning"}}"#,
    ] {
        for verb in ["ADD", "DEL", "CHECK"] {
            host.call_with(verb, "bridge", broken, &[]);
        }
    }
    for (name, value) in [
        ("CNI_NETNS", "/run/netns/none"),
        ("CNI_NETNS", "/proc/thread-self/ns/net"),
        ("CNI_NETNS", ""),
        ("CNI_IFNAME", "a/b"),
        ("CNI_CONTAINERID", "a b"),
        ("CNI_COMMAND", "DANCE"),
        ("CNI_COMMAND", "VERSION"),
        ("CNI_COMMAND", ""),
        ("CNI_ARGS", "MAC=nonsense"),
        ("CNI_ARGS", "nonsense"),
    ] {
        for verb in ["ADD", "DEL"] {
            host.call_with(verb, "bridge", &good.to_string(), &[(name, value)]);
        }
    }
}

#[test]
fn plugins_behave_like_programs() {
    // multus#74 (the root), multus#100 (the same)
    let log = |way| {
        on_a_host(way, move |host| {
            corpus(host);
            (std::mem::take(&mut host.log), host.started())
        })
    };
    let (programs, started) = log(Way::Programs);
    assert_eq!(started.len(), programs.len());
    let (daemon, started) = log(Way::Daemon);
    // None of our plugins was started as a process. Their own children are outside the daemon's memory limit, too.
    let others: BTreeSet<_> = started.iter().map(String::as_str).collect();
    assert_eq!(others, BTreeSet::from(["foreign-ipam"]));
    for (program, daemon) in programs.iter().zip(&daemon) {
        assert_eq!(program, daemon);
    }
    assert_eq!(programs.len(), daemon.len());
    let all = daemon.join("\n");
    for seen in [
        // The root's own directory, not the machine's.
        "/run/root/run/leases/blue/10.8.0.2",
        "net1 veth up=true mtu=1400",
        "10.9.0.5/24",
        "failed with 7:",
        "failed with 4:",
        "failed with 1:",
    ] {
        assert!(all.contains(seen), "{seen} in\n{all}");
    }
    assert!(!all.contains(" /run/leases/blue"), "{all}");
}

#[test]
fn other_build_runs_as_program() {
    // multus#100 (other builds, other content)
    on_a_host(Way::Daemon, |host| {
        let config = json!({"cniVersion": "1.0.0", "name": "blue", "type": "passthru"});
        let place = Path::new(BIN).join("passthru");
        host.call("ADD", &config);
        assert_eq!(host.started().len(), 0);
        // A platform's plugin under our name.
        fs::remove_file(&place).unwrap();
        script(
            "passthru",
            r#"echo '{"cniVersion": "1.0.0", "dns": {"domain": "platform"}}'"#,
        );
        let result = host.call("ADD", &config);
        assert_eq!(
            (host.started().len(), &result["dns"]["domain"]),
            (1, &json!("platform"))
        );
        // Another version of ours, put in its place as the installer does.
        let mut program = fs::read(weft_cni()).unwrap();
        let mark = plugins::mark::MARK.as_bytes();
        let at = program.windows(mark.len()).position(|part| part == mark).unwrap();
        program[at + mark.len() - 2] ^= 1;
        let staged = Path::new(BIN).join(".staged");
        fs::write(&staged, program).unwrap();
        fs::set_permissions(&staged, fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(&staged, &place).unwrap();
        let result = host.call("ADD", &config);
        assert_eq!(
            (host.started().len(), &result["cniVersion"]),
            (2, &json!("1.0.0"))
        );
        // And ours again, as a copy.
        fs::copy(weft_cni(), &staged).unwrap();
        fs::rename(&staged, &place).unwrap();
        host.call("ADD", &config);
        assert_eq!(host.started().len(), 2);
    });
}

#[test]
fn thread_returns_to_its_root_and_namespace() {
    // multus#100 (the roll-back)
    let place = || {
        let directories = ["/", "."].map(|path| fs::metadata(path).unwrap());
        directories.map(|directory| (directory.dev(), directory.ino()))
    };
    on_a_host(Way::Daemon, move |host| {
        let before = (NetNs::current().unwrap(), place());
        let config = json!({"cniVersion": "1.0.0", "name": "blue", "type": "bridge", "bridge": "br0"});
        let result = host.call("ADD", &config);
        assert_eq!(
            result["interfaces"].as_array().map(Vec::len),
            Some(3),
            "{:?}",
            host.log
        );
        host.call("DEL", &config);
        assert!(NetNs::current().unwrap().same_as(&before.0));
        assert_eq!(place(), before.1);
    });
}

/// A cgroup of the machine, without a process. It ends with the test.
struct Cgroup(PathBuf);

impl Cgroup {
    fn create() -> Self {
        let hierarchies = Path::new("/sys/fs/cgroup");
        let memory = hierarchies.join("memory");
        let hierarchy = if memory.is_dir() { &memory } else { hierarchies };
        let cgroup = hierarchy.join(format!("weft-test-{}", std::process::id()));
        fs::create_dir(&cgroup).unwrap();
        Self(cgroup)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn program_moves_to_cgroup_if_possible() {
    on_a_host(Way::Programs, |host| {
        script(
            "where",
            "cat /proc/self/cgroup > /run/where\necho '{\"cniVersion\": \"1.0.0\"}'",
        );
        let config = json!({"cniVersion": "1.0.0", "name": "blue", "type": "where"});
        let cgroup = Cgroup::create();
        let name = format!("/{}\n", cgroup.0.file_name().unwrap().display());
        host.call("ADD", &config);
        let without = fs::read_to_string("/run/where").unwrap();
        assert!(!without.contains(&name), "{without}");

        let door = Arc::new(linux::process::Door::open(&cgroup.0.join("cgroup.procs")).unwrap());
        host.plugins.invoker.prepare = Some(Arc::new(move |command| door.lead(command)));
        host.call("ADD", &config);
        let within = fs::read_to_string("/run/where").unwrap();
        assert!(within.contains(&name), "{within}");

        // A file that accepts no data.
        let full = Arc::new(linux::process::Door::open(Path::new("/dev/full")).unwrap());
        host.plugins.invoker.prepare = Some(Arc::new(move |command| full.lead(command)));
        host.call("ADD", &config);
        assert_eq!(fs::read_to_string("/run/where").unwrap(), without);
    });
}
