//! The lifecycle of clusters: start, kills at critical moments, repair, removal.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

use std::fs::{self, File};
use std::io::{Read as _, Seek as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use cluster::{Cluster, Options, Quiet, wait};

/// Set in the process to be killed. Names the cluster that it starts.
const VICTIM: &str = "WEFT_TEST_VICTIM";
const TIMEOUT: Duration = Duration::from_mins(5);

/// A cluster of this test alone, removed at the end. The next run of the tests removes the cluster of a killed one.
struct Own(Cluster);

impl Own {
    fn new(name: &str, nodes: usize) -> Self {
        let options = Options {
            name: name.to_owned(),
            nodes,
            ..Options::from_env().unwrap()
        };
        let own = Self(Cluster::new(options).unwrap());
        own.0.down(&mut Quiet).unwrap();
        own.0.claim(&mut Quiet).unwrap();
        own
    }

    fn dir(&self) -> PathBuf {
        self.0.kubeconfig().parent().unwrap().to_owned()
    }

    fn runs(&self, program: &str) -> bool {
        self.0
            .components()
            .iter()
            .any(|component| component.program == program && component.runs)
    }
}

impl Drop for Own {
    fn drop(&mut self) {
        let _ = self.0.down(&mut Quiet);
    }
}

#[test]
fn up_works_after_a_kill_at_any_point_and_down_leaves_nothing() {
    if !is_root() {
        println!("skipped: a cluster needs root");
        return;
    }
    if let Ok(name) = std::env::var(VICTIM) {
        let options = Options {
            name,
            nodes: 2,
            ..Options::from_env().unwrap()
        };
        Cluster::new(options).unwrap().up(&mut Quiet).unwrap();
        return;
    }
    let links_before = host_links();
    let name = format!("killed-{}", std::process::id());
    let own = Own::new(&name, 2);
    let dir = own.dir();

    let exists = |path: &str| dir.join(path).exists();
    let points: [(&str, &dyn Fn() -> bool); 6] = [
        ("the creation of the first namespaces", &|| {
            exists("control/space.sh")
        }),
        ("the first namespaces", &|| exists("control/pid")),
        ("the start of etcd", &|| exists("logs/control-etcd.log")),
        ("the network of the first node", &|| exists("node01/pid")),
        ("the start of the second node's runtime", &|| {
            exists("logs/node02-containerd.log")
        }),
        ("the start of the second node's kubelet", &|| {
            exists("logs/node02-kubelet.log")
        }),
    ];
    for (what, reached) in points {
        let test = "up_works_after_a_kill_at_any_point_and_down_leaves_nothing";
        kill_when(&mut victim(test, &name), what, reached);
    }

    own.0.up(&mut Quiet).unwrap();
    assert!(own.0.is_up());
    let began = Instant::now();
    own.0.up(&mut Quiet).unwrap();
    println!("measured: up when up {} ms", began.elapsed().as_millis());

    // `up` restarts killed programs and machines, and the cluster keeps its objects.
    own.0
        .kubectl()
        .run(["create", "namespace", "remembered"])
        .unwrap();
    for program in ["kubelet", "containerd", "kube-scheduler"] {
        let node = if program == "kube-scheduler" {
            "control"
        } else {
            "node01"
        };
        kill(&own.0, node, program);
        wait::until("its end", TIMEOUT, || {
            if all_run(&own.0) { Err(program) } else { Ok(()) }
        })
        .unwrap();
        own.0.up(&mut Quiet).unwrap();
        assert!(own.0.is_up(), "{program} killed");
    }
    // An API server that ends at its start is started again.
    own.0.crash("control", "kube-apiserver").unwrap();
    let starts = || {
        let log = fs::read_to_string(dir.join("logs/control-kube-apiserver.log"));
        log.unwrap_or_default().matches("Serving securely").count()
    };
    let before = starts();
    thread::scope(|scope| {
        let up = scope.spawn(|| own.0.up(&mut Quiet));
        wait::until("the start of the API server", TIMEOUT, || {
            if starts() > before { Ok(()) } else { Err("not yet") }
        })
        .unwrap();
        kill(&own.0, "control", "kube-apiserver");
        up.join().unwrap().unwrap();
    });
    assert!(own.0.is_up(), "an API server killed at its start");
    for space in ["node02", "control"] {
        let first = fs::read_to_string(dir.join(space).join("pid")).unwrap();
        let first = first.split_whitespace().next().unwrap();
        Command::new("kill").args(["-9", first]).status().unwrap();
        wait::until("its end", TIMEOUT, || {
            if all_run(&own.0) { Err(space) } else { Ok(()) }
        })
        .unwrap();
        own.0.up(&mut Quiet).unwrap();
        assert!(own.0.is_up(), "{space} killed");
    }
    assert!(
        own.0
            .kubectl()
            .get(["namespace", "remembered"])
            .unwrap()
            .is_some()
    );

    own.0.down(&mut Quiet).unwrap();
    assert_eq!(own.0.remains(), [] as [String; 0]);
    assert_eq!(processes_of(&dir), [] as [String; 0]);
    assert_eq!(host_links(), links_before);
    assert!(!own.runs("etcd"));
    own.0.down(&mut Quiet).unwrap();
}

#[test]
fn cluster_whose_owner_is_killed_is_abandoned_and_removed() {
    if !is_root() {
        println!("skipped: a cluster needs root");
        return;
    }
    let options = |name: String| Options {
        name,
        ..Options::from_env().unwrap()
    };
    if let Ok(name) = std::env::var(VICTIM) {
        let cluster = Cluster::new(options(name)).unwrap();
        cluster.claim(&mut Quiet).unwrap();
        cluster.up(&mut Quiet).unwrap();
        return;
    }
    let name = format!("orphan-{}", std::process::id());
    let options = options(name.clone());
    let orphan = Cluster::new(options.clone()).unwrap();
    let test = "cluster_whose_owner_is_killed_is_abandoned_and_removed";
    let mut owner = victim(test, &name);
    let first = orphan.kubeconfig().with_file_name("control").join("pid");
    kill_when(&mut owner, "the first namespaces", &|| first.exists());
    for cluster in Cluster::abandoned(&options.home).unwrap() {
        if cluster.name() == name {
            cluster.down_if_abandoned(&mut Quiet).unwrap();
        }
    }
    assert_eq!(orphan.remains(), [] as [String; 0]);
    assert!(!orphan.down_if_abandoned(&mut Quiet).unwrap());
}

#[test]
fn clusters_coexist_and_pods_communicate_inside_each() {
    if !is_root() {
        println!("skipped: a cluster needs root");
        return;
    }
    if std::env::var_os(VICTIM).is_some() {
        return;
    }
    let one = Own::new(&format!("one-{}", std::process::id()), 2);
    let two = Own::new(&format!("two-{}", std::process::id()), 1);
    one.0.up(&mut Quiet).unwrap();
    two.0.up(&mut Quiet).unwrap();
    assert_ne!(
        fs::read(one.0.kubeconfig()).unwrap(),
        fs::read(two.0.kubeconfig()).unwrap()
    );
    assert_eq!(
        one.0.kubectl().json(["get", "nodes"]).unwrap()["items"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
    assert_eq!(
        two.0.kubectl().json(["get", "nodes"]).unwrap()["items"]
            .as_array()
            .unwrap()
            .len(),
        1
    );

    let kubectl = one.0.kubectl();
    for (name, node) in [("a", "node01"), ("b", "node02")] {
        kubectl.apply(&pod(name, node)).unwrap();
    }
    let address = |name: &str| {
        kubectl.wait_for(&["pod", name], "a running pod", TIMEOUT, |pod| {
            let address = pod["status"]["podIP"]
                .as_str()
                .filter(|_| pod["status"]["phase"] == "Running");
            address
                .map(str::to_owned)
                .ok_or_else(|| kubectl.explain("default"))
        })
    };
    let (a, b) = (address("a").unwrap(), address("b").unwrap());
    assert_ne!(a, b);
    let ping = ["exec", "b", "--", "ping", "-c1", "-W5", &a];
    let answer = wait::until("an answer to a ping", TIMEOUT, || kubectl.run(ping)).unwrap();
    assert!(answer.contains("1 packets received"), "{answer}");

    // A node can reach only devices and programs of the host.
    let seen = one
        .0
        .node_command("node01", ["ls", "/root"])
        .unwrap()
        .output()
        .unwrap();
    assert!(seen.status.success());
    assert!(
        !String::from_utf8_lossy(&seen.stdout)
            .lines()
            .any(|line| line == ".cache"),
        "{seen:?}"
    );

    one.0.down(&mut Quiet).unwrap();
    assert!(two.0.is_up());
    two.0.down(&mut Quiet).unwrap();
    assert_eq!(two.0.remains(), [] as [String; 0]);
}

/// A process to be killed, with its output.
struct Victim {
    process: Child,
    output: File,
}

/// Starts a cluster in a process to be killed. The process runs the same test, with the variable set.
fn victim(test: &str, cluster: &str) -> Victim {
    let output = tempfile::tempfile().unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", test, "--nocapture"])
        .env(VICTIM, cluster)
        .stdout(Stdio::null())
        .stderr(output.try_clone().unwrap());
    Victim {
        process: command.spawn().unwrap(),
        output,
    }
}

fn kill_when(victim: &mut Victim, what: &str, reached: &dyn Fn() -> bool) {
    let waited = wait::until(what, TIMEOUT, || {
        if reached() {
            return Ok(true);
        }
        match victim.process.try_wait() {
            Ok(None) => Err("not yet"),
            _ => Ok(false),
        }
    });
    victim.process.kill().unwrap();
    victim.process.wait().unwrap();
    let mut said = String::new();
    victim.output.rewind().unwrap();
    victim.output.read_to_string(&mut said).unwrap();
    assert!(waited.unwrap(), "the process ended before {what}:\n{said}");
}

fn pod(name: &str, node: &str) -> String {
    serde_json::json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": name },
        "spec": {
            "nodeName": node,
            "terminationGracePeriodSeconds": 0,
            "containers": [{ "name": "c", "image": cluster::image::BUSYBOX, "command": ["sleep", "infinity"] }]
        }
    })
    .to_string()
}

fn is_root() -> bool {
    fs::read_dir("/proc/1/fd").is_ok()
}

fn all_run(cluster: &Cluster) -> bool {
    cluster.components().iter().all(|component| component.runs)
}

/// Numbers, as the host sees them, of the processes of `program` on `node`.
/// Kills a program without waiting for its end.
fn kill(cluster: &Cluster, node: &str, program: &str) {
    let mut kill = Command::new("sh");
    kill.args(["-c", "kill -9 \"$@\"", "sh"])
        .args(pids(cluster, node, program));
    kill.status().unwrap();
}

fn pids(cluster: &Cluster, node: &str, program: &str) -> Vec<String> {
    let named = |pid: &i32| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        program.starts_with(comm.trim()) && !comm.trim().is_empty()
    };
    cluster
        .processes(node)
        .into_iter()
        .filter(named)
        .map(|pid| pid.to_string())
        .collect()
}

fn host_links() -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir("/sys/class/net")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        // Other clusters come and go meanwhile.
        .filter(|name| !name.starts_with("weft-"))
        .collect();
    names.sort();
    names
}

/// Command lines of the processes that work in `dir`.
fn processes_of(dir: &Path) -> Vec<String> {
    let dir = dir.to_string_lossy().into_owned() + "/";
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let lines = entries.filter_map(|entry| fs::read_to_string(entry.path().join("cmdline")).ok());
    lines.filter(|line| line.contains(&dir)).collect()
}
