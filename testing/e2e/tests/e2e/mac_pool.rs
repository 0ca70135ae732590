//! The MAC pool: deployed by the operator, called by the API server, observed on the wire.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cluster::{Kubectl, run};
use serde_json::{Value, json};

use crate::pods::{ReadyPod, TestNamespace, network, pod};
use crate::support::{NODES, OPERATOR_NAMESPACE, Stage};

const MANAGER: &str = "kubemacpool-mac-controller-manager";
const CERTIFICATES: &str = "kubemacpool-cert-manager";
/// Label of namespaces whose pods get addresses.
const OPTED_IN: &str = "mutatepods.kubemacpool.io=allocate";

/// The pool on the cluster. A drop removes it.
struct MacPool<'a>(&'a Stage);

impl<'a> MacPool<'a> {
    /// Deploys it, with additional parts of the specification.
    fn deploy(stage: &'a Stage, pool: &Value, beside: &Value) -> Self {
        let pool_of_stage = Self(stage);
        pool_of_stage.configure(pool, beside);
        for name in [MANAGER, CERTIFICATES] {
            pool_of_stage.rolled_out(name);
        }
        stage.available();
        pool_of_stage
    }

    fn configure(&self, pool: &Value, beside: &Value) {
        let mut spec = usual();
        spec["kubeMacPool"] = pool.clone();
        for (key, value) in beside.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        self.0.configure(&spec);
    }

    /// Waits until the newest version of a Deployment runs.
    fn rolled_out(&self, name: &str) {
        self.0.wait(&format!("Deployment {name} runs"), || {
            let found = self.0.kubectl.get(["-n", OPERATOR_NAMESPACE, "deployment", name]);
            let deployment = found.ok()??;
            let status = &deployment["status"];
            let seen = deployment["metadata"]["generation"] == status["observedGeneration"];
            let all = ["replicas", "updatedReplicas", "availableReplicas"];
            (seen && all.map(|field| status[field].as_u64()) == [Some(1); 3]).then_some(())
        });
    }

    /// The single pod of the manager.
    fn manager(&self) -> Value {
        self.0.wait("the manager has one pod", || {
            let selector = "--selector=control-plane=mac-controller-manager";
            let pods = self.0.json(&["-n", OPERATOR_NAMESPACE, "get", "pods", selector]);
            match pods["items"].as_array().map(Vec::as_slice) {
                Some([pod]) => Some(pod.clone()),
                _ => None,
            }
        })
    }

    /// The host's process number of the manager.
    fn manager_pid(&self) -> u32 {
        self.0.wait("the manager's process", || {
            let pids = NODES.iter().flat_map(|node| self.0.weft_pids(node));
            let mut managers = pids.filter(|pid| {
                let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
                let environment = String::from_utf8_lossy(&environment).into_owned();
                let is_set = |name: &str| environment.split('\0').any(|variable| variable.starts_with(name));
                is_set("RANGE_START=") && !is_set("RUN_CERT_MANAGER=")
            });
            managers.next()
        })
    }
}

impl Drop for MacPool<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The evidence of a failure is kept. The next test applies its own specification.
            return;
        }
        self.0.configure(&usual());
        for name in [MANAGER, CERTIFICATES] {
            self.0.wait_gone("deployment", name);
        }
        self.0.available();
    }
}

fn usual() -> Value {
    json!({ "multus": {}, "linuxBridge": {}, "imagePullPolicy": "IfNotPresent" })
}

/// A namespace whose pods get addresses, with a network on the bridge of both nodes.
fn opted_in<'a>(stage: &'a Stage, name: &'static str) -> TestNamespace<'a> {
    let ns = TestNamespace::create(stage, name);
    stage.kubectl(&["label", "namespace", name, OPTED_IN]);
    let config = json!({
        "cniVersion": "1.0.0", "name": "lan", "type": "cnv-bridge", "bridge": "br1",
        "capabilities": { "ips": true, "mac": true }, "ipam": { "type": "static" },
    });
    ns.apply(&network("lan", &config.to_string()));
    ns
}

/// The pool's address in a pod.
fn allocated(ns: &TestNamespace, pod: &ReadyPod) -> String {
    let path = "jsonpath={.metadata.annotations.k8s\\.v1\\.cni\\.cncf\\.io/networks}";
    let text = ns.kubectl(&["get", "pod", &pod.name, "-o", path]);
    let networks: Value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
    let mac = networks[0]["mac"].as_str();
    mac.unwrap_or_else(|| panic!("no address in {text}")).to_owned()
}

/// Restarts of the pool's containers, as `pod/container: times`.
fn restarts(stage: &Stage) -> BTreeSet<String> {
    let pods = stage.json(&[
        "-n",
        OPERATOR_NAMESPACE,
        "get",
        "pods",
        "--selector=app=kubemacpool",
    ]);
    let mut restarted = BTreeSet::new();
    for pod in pods["items"].as_array().into_iter().flatten() {
        let containers = pod["status"]["containerStatuses"]
            .as_array()
            .into_iter()
            .flatten();
        for container in containers.filter(|container| container["restartCount"] != 0) {
            let (pod, name) = (&pod["metadata"]["name"], &container["name"]);
            restarted.insert(format!(
                "{}/{}: {}",
                pod.as_str().unwrap_or_default(),
                name.as_str().unwrap_or_default(),
                container["restartCount"]
            ));
        }
    }
    restarted
}

/// A sequence of dry-run requests for pods, which are reviewed and not stored.
struct Load {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Outcome>>,
}

/// Results of the requests.
#[derive(Debug, Default)]
struct Outcome {
    answered: usize,
    failures: Vec<String>,
    /// The longest time without a successful answer.
    longest: Duration,
}

impl Load {
    fn start(kubectl: &Kubectl, namespace: &'static str) -> Self {
        let (kubectl, stop) = (kubectl.clone(), Arc::new(AtomicBool::new(false)));
        let stopped = Arc::clone(&stop);
        let body = pod("load", None, &json!([{ "name": "lan" }])).to_string();
        let thread = std::thread::spawn(move || {
            let mut outcome = Outcome::default();
            let mut last = Instant::now();
            while !stopped.load(Ordering::Relaxed) {
                let args = [
                    "-n",
                    namespace,
                    "create",
                    "--dry-run=server",
                    "--output=json",
                    "-f",
                    "-",
                ];
                let answer = run::output_with_input(&mut kubectl.command(args), body.as_bytes());
                match answer {
                    Ok(answer) if answer.contains("\\\"mac\\\":") => {
                        outcome.answered += 1;
                        outcome.longest = outcome.longest.max(last.elapsed());
                        last = Instant::now();
                    }
                    Ok(answer) => outcome.failures.push(format!("no address: {answer}")),
                    Err(error) => outcome.failures.push(error.to_string()),
                }
            }
            outcome.longest = outcome.longest.max(last.elapsed());
            outcome
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }

    fn stop(mut self) -> Outcome {
        self.stop.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it runs");
        thread.join().expect("the load ends without a panic")
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

// kubemacpool#50, kubemacpool#57, kubemacpool#68
#[test]
fn pods_use_addresses_of_the_pool_and_a_new_range_needs_no_restart() {
    let Some(stage) = Stage::enter() else { return };
    let first = json!({ "rangeStart": "02:00:00:a0:00:00", "rangeEnd": "02:00:00:a0:ff:ff" });
    let pool = MacPool::deploy(&stage, &first, &json!({}));
    let ns = opted_in(&stage, "e2e-mac-pool");
    for (index, node) in NODES.iter().enumerate() {
        let networks = json!([{ "name": "lan", "ips": [format!("10.79.0.{}/24", index + 1)] }]);
        ns.apply(&pod(&format!("p{index}"), Some(node), &networks));
    }
    let pods = [ns.ready("p0"), ns.ready("p1")];
    let macs = pods.each_ref().map(|pod| allocated(&ns, pod));
    assert_ne!(macs[0], macs[1]);
    for (pod, mac) in pods.iter().zip(&macs) {
        assert!(mac.starts_with("02:00:00:a0:"), "{mac} is not of the range");
        assert_eq!(pod.network_status("lan")["mac"], mac.as_str());
        let inside = ns.exec(&pod.name, &["cat", "/sys/class/net/net1/address"]);
        assert_eq!(inside.trim(), mac);
    }
    ns.ping("p0", "10.79.0.2");
    let neighbours = ns.exec("p0", &["ip", "neigh", "show", "dev", "net1"]);
    assert!(
        neighbours
            .lines()
            .any(|line| line.contains("10.79.0.2") && line.contains(&macs[1])),
        "the neighbour entry holds {}:\n{neighbours}",
        macs[1]
    );

    let plain = TestNamespace::create(&stage, "e2e-mac-pool-out");
    plain.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": [pod("free", None, &json!([]))] }));
    plain.ready("free");
    let path = "jsonpath={.metadata.annotations.k8s\\.v1\\.cni\\.cncf\\.io/networks}";
    assert_eq!(
        plain.kubectl(&["get", "pod", "free", "-o", path]),
        "[]",
        "it is unchanged"
    );

    let before = pool.manager();
    let second = json!({ "rangeStart": "02:00:00:b0:00:00", "rangeEnd": "02:00:00:b0:ff:ff" });
    let changed = Instant::now();
    pool.configure(&second, &json!({}));
    let body = pod("probe", None, &json!([{ "name": "lan" }])).to_string();
    stage.wait("addresses of the new range", || {
        let args = [
            "-n",
            "e2e-mac-pool",
            "create",
            "--dry-run=server",
            "--output=json",
            "-f",
            "-",
        ];
        let answer = run::output_with_input(&mut stage.kubectl.command(args), body.as_bytes());
        answer
            .is_ok_and(|answer| answer.contains("02:00:00:b0:"))
            .then_some(())
    });
    println!(
        "measured: a range changed in the NetworkAddonsConfig is handed out of after {:.2} s",
        changed.elapsed().as_secs_f64()
    );
    stage.available();
    ns.apply(&pod(
        "p2",
        None,
        &json!([{ "name": "lan", "ips": ["10.79.0.3/24"] }]),
    ));
    let third = allocated(&ns, &ns.ready("p2"));
    assert!(third.starts_with("02:00:00:b0:"), "{third}");
    let after = pool.manager();
    assert_eq!(
        after["metadata"]["uid"], before["metadata"]["uid"],
        "the same pod"
    );
    assert_eq!(restarts(&stage), BTreeSet::new());
    assert_eq!(
        allocated(&ns, &ns.ready("p0")),
        macs[0],
        "who has an address keeps it"
    );
}

// kubemacpool#85
#[test]
fn certificates_rotate_under_load_without_a_failed_request() {
    let Some(stage) = Stage::enter() else { return };
    // The kubelets of this cluster may take twenty seconds to update the files of a Secret: overlaps are longer.
    let intervals = json!({ "selfSignConfiguration": {
        "caRotateInterval": "2m30s", "caOverlapInterval": "1m45s",
        "certRotateInterval": "1m45s", "certOverlapInterval": "1m15s",
    } });
    let pool = MacPool::deploy(&stage, &json!({}), &intervals);
    let _ns = opted_in(&stage, "e2e-mac-rotation");
    let bundle = || {
        let path = "jsonpath={.webhooks[0].clientConfig.caBundle}";
        stage.kubectl(&[
            "get",
            "mutatingwebhookconfiguration",
            "kubemacpool-mutator",
            "-o",
            path,
        ])
    };
    let serving = || {
        let path = "jsonpath={.data.tls\\.crt}";
        stage.kubectl(&[
            "-n",
            OPERATOR_NAMESPACE,
            "get",
            "secret",
            "kubemacpool-service",
            "-o",
            path,
        ])
    };
    let load = Load::start(&stage.kubectl, "e2e-mac-rotation");
    let (mut bundles, mut certificates) = (BTreeSet::new(), BTreeSet::new());
    stage.wait(
        "a rotation of the authority's certificate, and two of the server's",
        || {
            bundles.insert(bundle());
            certificates.insert(serving());
            (bundles.len() > 1 && certificates.len() > 2).then_some(())
        },
    );
    // The server also has the newest certificate, because the API server sent requests for a while longer.
    stage.pass(Duration::from_secs(30));
    let outcome = load.stop();
    println!(
        "measured: {} requests across {} rotations, {} failed; longest time without an answer {:.2} s",
        outcome.answered,
        bundles.len() + certificates.len() - 2,
        outcome.failures.len(),
        outcome.longest.as_secs_f64()
    );
    assert!(outcome.answered > 0);
    assert_eq!(outcome.failures, Vec::<String>::new());
    assert_eq!(restarts(&stage), BTreeSet::new());
    drop(pool);
}

#[test]
fn killed_manager_restarts_soon_and_alone() {
    let Some(stage) = Stage::enter() else { return };
    let pool = MacPool::deploy(&stage, &json!({}), &json!({}));
    let ns = opted_in(&stage, "e2e-mac-killed");
    ns.apply(&pod(
        "before",
        None,
        &json!([{ "name": "lan", "ips": ["10.79.2.1/24"] }]),
    ));
    let kept = allocated(&ns, &ns.ready("before"));
    let name = pool.manager()["metadata"]["name"]
        .as_str()
        .expect("a name")
        .to_owned();

    let load = Load::start(&stage.kubectl, "e2e-mac-killed");
    stage.kill_9(pool.manager_pid());
    // The Deployment notices the restart later than the pod.
    stage.wait("the manager restarted and is ready", || {
        let pod = pool.manager();
        let containers = pod["status"]["containerStatuses"].as_array()?;
        containers
            .iter()
            .any(|container| container["restartCount"] == 1 && container["ready"] == true)
            .then_some(())
    });
    pool.rolled_out(MANAGER);
    stage.pass(Duration::from_secs(5));
    let outcome = load.stop();
    println!(
        "measured: manager killed under load: {} requests answered, {} failed, longest outage {:.2} s",
        outcome.answered,
        outcome.failures.len(),
        outcome.longest.as_secs_f64()
    );
    assert!(outcome.answered > 0, "{:#?}", outcome.failures);
    assert_eq!(restarts(&stage), BTreeSet::from([format!("{name}/manager: 1")]));

    let after = pod(
        "after",
        None,
        &json!([{ "name": "lan", "ips": ["10.79.2.2/24"] }]),
    );
    // The Service may lack the endpoint for a moment.
    stage.wait_for("the manager admits a pod", || ns.try_apply(&after));
    let new = allocated(&ns, &ns.ready("after"));
    assert_ne!(new, kept, "what was handed out before the kill is known after it");
}
