//! The pod network on a new cluster without any network.

use std::fs;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use cluster::{Cluster, Home, Options, Quiet, run, wait};
use conformance::{Excluded, Outcome, Parts, QUICK_FOCUS, Wanted};
use serde_json::{Value, json};

use crate::pods::pod;
use crate::{egress_router, mtu_migration, routed_nodes};

/// The image in the published manifests.
const PLACEHOLDER: &str = "registry.example/weft:v0.1.0";
pub(crate) const NODES: [&str; 2] = ["node01", "node02"];
/// Default gateway of the nodes.
pub(crate) const GATEWAY: &str = "10.10.0.1";
/// The network of the nodes.
pub(crate) const SUBNET: &str = "10.10.0.0/24";
/// Length of its prefix.
pub(crate) const SUBNET_LENGTH: u8 = 24;
pub(crate) const CONFIG: &str = "/etc/cni/net.d/10-weft.conflist";
const MULTUS_CONFIG: &str = "/etc/cni/net.d/00-multus.conf";
/// Configuration of another pod network.
const OTHER: &str = "/etc/cni/net.d/10-other.conflist";
pub(crate) const PORT: u16 = 8_080;
pub(crate) const HOST_PORT: u16 = 18_080;
const ECHO_PORT: u16 = 7_777;
const DAEMON_SET: &str = "daemonset/weft-pod-network";
/// Parts of command lines.
pub(crate) const DAEMON: &str = "/weft pod-network --node-name";
const OPERATOR: &str = "cluster-network-operator start";
const PROXY: &str = "kube-proxy --config=/config/";
/// The program of the nodes, as long as no pod runs kube-proxy.
const PROXY_OF_NODES: &str = "kube-proxy";
/// The pods with kube-proxy.
const PROXY_NAMESPACE: &str = "openshift-kube-proxy";
const PROXY_SET: &str = "daemonset/openshift-kube-proxy";
/// The end of the names of kube-proxy's tables.
const PROXY_TABLES: &str = " kube-proxy";
const PAGE: &str = "the page of the pod";
/// The endpoint of the checks with a name. This cluster has no DNS server yet.
const NAMED: &str = "network-check-target-service-cluster";
/// Endpoints of the checks: the API server, its service, and a target on each node.
const ENDPOINTS: usize = 2 + NODES.len();
/// Number of Kubernetes' specs that [`QUICK_FOCUS`] selects.
const QUICK_SPECS: usize = 13;
const DEADLINE: Duration = Duration::from_mins(5);
/// Number of kills of each program.
const KILLS: usize = 3;
/// A kill follows the start of a program within this time, at random: it may meet the start.
const LIFE: Duration = Duration::from_secs(2);

/// A cluster of this test alone, removed at the end.
pub(crate) struct Own(pub(crate) Cluster);

impl Drop for Own {
    fn drop(&mut self) {
        let _ = self.0.down(&mut Quiet);
    }
}

impl Own {
    fn up(archive: &Path) -> Self {
        let options = Options {
            name: format!("pods-{}", std::process::id()),
            pod_network: false,
            ..Options::from_env().unwrap()
        };
        let own = Self(Cluster::new(options).unwrap());
        own.0.down(&mut Quiet).unwrap();
        own.0.claim(&mut Quiet).unwrap();
        own.0.up(&mut Quiet).unwrap();
        own.0.load(archive).unwrap();
        own
    }

    /// Applies a file of `deploy/` for an image.
    pub(crate) fn apply(&self, manifest: &str, image: &str) {
        self.try_apply(manifest, image)
            .unwrap_or_else(|error| panic!("{manifest}: {error}\n{}", self.evidence()));
    }

    pub(crate) fn try_apply(&self, manifest: &str, image: &str) -> Result<(), String> {
        let text = fs::read_to_string(repository().join("deploy").join(manifest)).unwrap();
        self.try_apply_text(&text.replace(PLACEHOLDER, image))
    }

    fn try_apply_text(&self, text: &str) -> Result<(), String> {
        // Definitions are too long for the annotation of a client-side apply.
        let apply = ["apply", "--server-side", "--force-conflicts", "--filename", "-"];
        let mut apply = self.0.kubectl().command(apply);
        run::output_with_input(&mut apply, text.as_bytes())
            .map(drop)
            .map_err(|error| error.to_string())
    }

    pub(crate) fn kubectl(&self, args: &[&str]) -> String {
        self.0
            .kubectl()
            .run(args)
            .unwrap_or_else(|error| panic!("{error}\n{}", self.evidence()))
    }

    pub(crate) fn node(&self, node: &str, argv: &[&str]) -> String {
        run::output(&mut self.0.node_command(node, argv).unwrap()).unwrap()
    }

    #[track_caller]
    pub(crate) fn wait<T>(&self, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
        let waited = wait::until(what, DEADLINE, || look().ok_or("not yet"));
        waited.unwrap_or_else(|error| panic!("{error}\n{}", self.evidence()))
    }

    fn evidence(&self) -> String {
        let kubectl = self.0.kubectl();
        let mut text = String::new();
        for (namespace, set) in [("kube-system", DAEMON_SET), (PROXY_NAMESPACE, PROXY_SET)] {
            let logs = [
                "-n",
                namespace,
                "logs",
                set,
                "--all-containers",
                "--all-pods",
                "--tail=200",
            ];
            let logs = kubectl.run(logs).unwrap_or_else(|error| error.to_string());
            text.push_str(&format!("{}\n{logs}", kubectl.explain(namespace)));
        }
        text
    }

    /// Returns true if the operator reports the condition with this status.
    pub(crate) fn operator_is(&self, kind: &str, status: &str) -> bool {
        let Ok(Some(operator)) = self.0.kubectl().get(["clusteroperator", "network"]) else {
            return false;
        };
        let mut conditions = operator["status"]["conditions"].as_array().into_iter().flatten();
        conditions.any(|condition| condition["type"] == kind && condition["status"] == status)
    }

    /// Waits until the pod network's daemons are rolled out.
    pub(crate) fn daemons_are_rolled_out(&self) {
        self.is_rolled_out("kube-system", DAEMON_SET);
    }

    /// Waits until a workload is rolled out.
    fn is_rolled_out(&self, namespace: &str, workload: &str) {
        self.wait(&format!("{workload} to be rolled out"), || {
            let is_done = self.0.kubectl().is_rolled_out(namespace, workload);
            is_done.ok()?.then_some(())
        });
    }

    /// Waits until a pod is ready.
    pub(crate) fn pod_is_ready(&self, pod: &str) {
        self.wait(&format!("pod {pod} to be ready"), || {
            let found = self.0.kubectl().get(["pod", pod]).ok()??;
            cluster::is_ready(&found).then_some(())
        });
    }

    fn nodes_are_ready(&self) {
        self.wait("the nodes to be ready", || {
            (self.ready() == [true, true]).then_some(())
        });
    }

    /// Returns true for each ready node.
    fn ready(&self) -> Vec<bool> {
        let nodes = self.0.kubectl().json(["get", "nodes"]).unwrap();
        let is_ready = |node: &Value| cluster::is_ready(node);
        nodes["items"]
            .as_array()
            .into_iter()
            .flatten()
            .map(is_ready)
            .collect()
    }

    /// The host's process number of a program of a node, by a part of its command line.
    fn process(&self, node: &str, part: &str) -> Option<i32> {
        self.0.processes(node).into_iter().find(|pid| {
            let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let command = String::from_utf8_lossy(&command).replace('\0', " ");
            command.contains(part)
        })
    }

    /// Kills a program that kubelet restarts, at a random moment, and waits for its successor. Returns its memory
    /// before: Pss and anonymous, KiB.
    pub(crate) fn kill(&self, node: &str, part: &str) -> [u64; 2] {
        let process = self.wait(part, || self.process(node, part));
        let figures = ["Pss", "Anonymous"].map(|of| memory(process, of));
        let thousandths = RandomState::new().build_hasher().finish() % 1_000;
        let life = LIFE * u32::try_from(thousandths).unwrap() / 1_000;
        thread::sleep(life);
        println!("kills {part} of {node} after {} ms", life.as_millis());
        run::output(Command::new("kill").args(["-9", &process.to_string()])).unwrap();
        self.wait("its successor", || {
            self.process(node, part).filter(|next| *next != process)
        });
        figures
    }

    pub(crate) fn start(&self, pod: &str, script: &str) -> Child {
        let args = ["exec", pod, "--", "sh", "-c", script];
        let mut command = self.0.kubectl().command(args);
        command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
    }

    pub(crate) fn pod_ip(&self, pod: &str) -> String {
        self.kubectl(&["get", "pod", pod, "--output=jsonpath={.status.podIP}"])
    }

    fn cluster_ip(&self, service: &str) -> String {
        self.kubectl(&["get", "service", service, "--output=jsonpath={.spec.clusterIP}"])
    }

    /// Waits until a pod gets the page of the server.
    #[track_caller]
    pub(crate) fn page_comes(&self, what: &str, from: &str, address: &str, port: u16) {
        let request = format!("printf 'GET / HTTP/1.0\\r\\n\\r\\n' | nc -w 5 {address} {port}");
        let came = wait::until(what, DEADLINE, || {
            let exec = ["exec", from, "--", "sh", "-c", &request];
            let page = self.0.kubectl().run(exec).map_err(|error| error.to_string())?;
            if page.contains(PAGE) { Ok(()) } else { Err(page) }
        });
        came.unwrap_or_else(|error| panic!("{address}:{port}: {error}\n{}", self.evidence()));
    }
}

/// The command line for users.
fn weft() -> Command {
    let cni = std::env::var(e2e::CNI_BINARY_VARIABLE).unwrap();
    Command::new(Path::new(&cni).with_file_name("weft"))
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

pub(crate) fn plain(name: &str, node: &str) -> Value {
    let mut pod = pod(name, Some(node), &json!([]));
    pod["metadata"]["annotations"] = json!({});
    pod["spec"]["containers"][0]["volumeMounts"] = json!([{ "name": "tmp", "mountPath": "/tmp" }]);
    pod["spec"]["volumes"] = json!([{ "name": "tmp", "emptyDir": {} }]);
    pod
}

/// A pod that answers HTTP, also on a port of its node, and echoes on another port.
fn server(node: &str) -> Value {
    let mut server = plain("server", node);
    server["metadata"]["labels"] = json!({ "app": "server" });
    let container = &mut server["spec"]["containers"][0];
    let serve = format!(
        "echo '{PAGE}' > /tmp/index.html; nc -ll -p {ECHO_PORT} -e cat & exec httpd -f -p {PORT} -h /tmp"
    );
    container["command"] = json!(["sh", "-c", serve]);
    container["ports"] = json!([{ "containerPort": PORT, "hostPort": HOST_PORT }]);
    container["readinessProbe"] = json!({ "tcpSocket": { "port": PORT }, "periodSeconds": 1 });
    server
}

// cluster-network#75, cluster-network#84-85, cluster-network#103, cluster-network#108, cluster-network#117
// cluster-network#207-208
// multus#125
#[test]
fn cluster_without_a_network_gets_one_that_passes_kubernetes_tests() {
    let (Ok(image), Ok(archive)) = (
        std::env::var(e2e::IMAGE_VARIABLE),
        std::env::var(e2e::ARCHIVE_VARIABLE),
    ) else {
        println!("skipped: no image of the product; run `cargo xtask test e2e`");
        return;
    };
    let began = Instant::now();
    let own = Own::up(Path::new(&archive));
    println!(
        "measured: cluster without a network up {} ms",
        began.elapsed().as_millis()
    );
    assert_eq!(own.ready(), [false, false]);
    install(&own, &image);
    let addresses = pods_talk(&own);
    daemons_die_under_traffic(&own, &addresses[0]);
    routed_nodes::pods_keep_their_connections(&own, &addresses[0]);
    assert_eq!(["server", "client"].map(|pod| own.pod_ip(pod)), addresses);
    // Without a network, the runtime cannot end these pods.
    own.kubectl(&["delete", "pod", "server", "client"]);
    remove(&own, &image);
    other_network(&own);
    services_end(&own);
    let server = operator_brings_it(&own, &image);
    connection_through_a_service_outlives_all_kills(&own);
    egress_router::redirects_pods_to_an_external_server(&own);
    mtu_migration::is_carried_out(&own, &image, &server);
    kubernetes_tests_pass(&own);
}

/// Installs the network and waits until the nodes are ready.
fn install(own: &Own, image: &str) {
    let began = Instant::now();
    own.apply("pod-network/pod-network.yaml", image);
    own.nodes_are_ready();
    println!("measured: nodes ready after {} ms", began.elapsed().as_millis());
    own.daemons_are_rolled_out();
    let binary = std::env::var(e2e::CNI_BINARY_VARIABLE).unwrap();
    let ours = run::output(Command::new("sha256sum").arg(binary)).unwrap();
    let ours = ours.split_whitespace().next().unwrap();
    for node in NODES {
        for plugin in ["cnv-ptp", "cnv-portmap", "cnv-bandwidth", "loopback"] {
            let digest = own.node(node, &["sha256sum", &format!("/opt/cni/bin/{plugin}")]);
            assert!(
                digest.starts_with(ours),
                "{plugin} on {node} is not ours: {digest}"
            );
        }
    }
}

/// A Service of the server.
fn service(name: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service", "metadata": { "name": name },
        "spec": { "selector": { "app": "server" }, "ports": [
            { "name": "http", "port": 80, "targetPort": PORT },
            { "name": "echo", "port": ECHO_PORT, "targetPort": ECHO_PORT },
        ] },
    })
}

/// Starts a server and a client on different nodes, and connects them in all ways. Returns their addresses.
fn pods_talk(own: &Own) -> [String; 2] {
    let [here, there] = NODES;
    for object in [server(here), plain("client", there), service("server")] {
        own.0.kubectl().apply(&object.to_string()).unwrap();
    }
    for pod in ["server", "client"] {
        own.pod_is_ready(pod);
    }
    let addresses = ["server", "client"].map(|pod| own.pod_ip(pod));
    let [server, _] = &addresses;
    let cluster_ip = own.cluster_ip("server");
    let host_ip = own.kubectl(&["get", "pod", "server", "--output=jsonpath={.status.hostIP}"]);
    for (from, what, address, port) in [
        ("client", "pod to pod", server, PORT),
        ("client", "pod to service", &cluster_ip, 80),
        ("client", "pod to port of the host", &host_ip, HOST_PORT),
        ("server", "pod to its own service", &cluster_ip, 80),
        ("server", "pod to its own port of the host", &host_ip, HOST_PORT),
    ] {
        own.page_comes(what, from, address, port);
    }
    addresses
}

/// Kills daemons while TCP lines and pings are echoed: none may be lost.
fn daemons_die_under_traffic(own: &Own, server: &str) {
    let lines = Lines::start(own, server);
    let datagrams = own.start("client", &format!("ping -q -i 0.02 -W 5 {server}"));
    for round in 0..KILLS {
        for node in NODES {
            let daemon = own.kill(node, DAEMON);
            if round == 0 {
                let [pss, anonymous] = daemon;
                println!("measured: daemon of {node} {pss} KiB Pss, {anonymous} KiB anonymous");
            }
        }
    }
    own.daemons_are_rolled_out();
    own.kubectl(&["exec", "client", "--", "killall", "-INT", "ping"]);
    let lines = lines.end(own);
    let datagrams = datagrams.wait_with_output().unwrap();
    let summary = String::from_utf8_lossy(&datagrams.stdout);
    let line = summary.lines().find(|line| line.contains("packet loss"));
    let line = line.unwrap_or_default();
    let mut numbers = line.split(' ').filter_map(|word| word.parse::<u32>().ok());
    let counts = numbers.next().zip(numbers.next());
    // The answer to the last one may be under way at the end. The percentage is rounded.
    let is_complete = counts.is_some_and(|(sent, received)| sent > 100 && received + 1 >= sent);
    assert!(is_complete, "{summary}");
    println!("measured: {lines} lines, and {line}");
}

/// Kills the operator, a daemon and kube-proxy while lines are echoed through a Service: none may be lost. Packet rules
/// outlive kube-proxy, so that only a new Service proves its restart.
fn connection_through_a_service_outlives_all_kills(own: &Own) {
    let lines = Lines::start(own, &own.cluster_ip("server"));
    let [_, of_client] = NODES;
    let of_operator = own.wait("the operator", || {
        NODES
            .into_iter()
            .find(|node| own.process(node, OPERATOR).is_some())
    });
    for round in 0..KILLS {
        own.kill(of_operator, OPERATOR);
        own.kill(of_client, DAEMON);
        let [pss, anonymous] = own.kill(of_client, PROXY);
        if round == 0 {
            println!("measured: kube-proxy of {of_client} {pss} KiB Pss, {anonymous} KiB anonymous");
        }
    }
    own.0.kubectl().apply(&service("later").to_string()).unwrap();
    for service in ["later", "server"] {
        let address = own.cluster_ip(service);
        own.page_comes("pod to service after a restart", "client", &address, 80);
    }
    own.is_rolled_out(PROXY_NAMESPACE, PROXY_SET);
    println!("measured: {} lines through a Service", lines.end(own));
}

/// A connection of the client that carries numbered lines to the echo port of an address, and back.
pub(crate) struct Lines(Child);

impl Lines {
    pub(crate) fn start(own: &Own, address: &str) -> Self {
        let script = format!(
            "rm -f /tmp/end; (i=0; while [ ! -e /tmp/end ]; do echo $i; i=$((i+1)); sleep 0.02; done) \
             | nc {address} {ECHO_PORT}"
        );
        Self(own.start("client", &script))
    }

    /// Ends the connection, checks that no line is missing, and returns their number.
    pub(crate) fn end(self, own: &Own) -> usize {
        own.kubectl(&["exec", "client", "--", "touch", "/tmp/end"]);
        let output = self.0.wait_with_output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let numbers: Vec<usize> = text.lines().map(|line| line.parse().unwrap()).collect();
        assert!(
            numbers.len() > 100 && numbers.iter().copied().eq(0..numbers.len()),
            "{text}\n{}",
            String::from_utf8_lossy(&output.stderr)
        );
        numbers.len()
    }
}

/// Checks that only the files of the plugins remain.
fn remove(own: &Own, image: &str) {
    own.apply("pod-network/remove.yaml", image);
    own.daemons_are_rolled_out();
    for node in NODES {
        let list = format!(
            "ip route show proto 87; ip link show weft.vxlan 2>/dev/null; ls {CONFIG} 2>/dev/null || :"
        );
        let left = own.node(node, &["sh", "-c", &list]);
        assert_eq!(left.trim(), "", "{node}");
        let rules = own.node(node, &["nft", "list", "tables"]);
        assert!(!rules.contains("weft_pod_network"), "{node}: {rules}");
    }
    own.wait("the nodes to notice", || {
        (own.ready() == [false, false]).then_some(())
    });
}

/// Gives the nodes another pod network.
fn other_network(own: &Own) {
    for node in NODES {
        let range = own.kubectl(&["get", "node", node, "--output=jsonpath={.spec.podCIDR}"]);
        let config = json!({ "cniVersion": "1.0.0", "name": "other", "plugins": [
            { "type": "cnv-ptp", "ipam": { "type": "host-local", "subnet": range } },
        ] });
        fs::write(own.0.node_file(node, OTHER).unwrap(), config.to_string()).unwrap();
    }
    own.nodes_are_ready();
}

/// Ends kube-proxy of the nodes and removes its packet rules: no Service works until the operator deploys kube-proxy.
fn services_end(own: &Own) {
    for node in NODES {
        own.0.crash(node, PROXY_OF_NODES).unwrap();
        // A program that kube-proxy had started ends later, and may have created the tables again.
        let script = format!(
            "grep -sqx nft /proc/[0-9]*/comm && exit 1\n\
             nft list tables | grep '{PROXY_TABLES}$' | sed 's/^/delete /' | nft -f -\n\
             ! nft list tables | grep '{PROXY_TABLES}$'"
        );
        own.wait("a node without tables of kube-proxy", || {
            let mut ends = own.0.node_command(node, ["sh", "-uc", &script]).ok()?;
            run::output(&mut ends).ok()
        });
    }
}

/// Takes the steps of docs/cluster-network-migration.md: each node keeps the other network until its file is gone.
fn other_network_is_replaced(own: &Own) {
    for node in NODES {
        let waits = ["get", "events", "--field-selector"];
        let selector = format!("reason=OtherPodNetwork,involvedObject.name={node}");
        own.wait("the daemon waits for the end of the other network", || {
            let events = own
                .0
                .kubectl()
                .run(waits.iter().copied().chain([selector.as_str()]));
            events.ok()?.contains(OTHER).then_some(())
        });
        let conf = own.0.node_file(node, MULTUS_CONFIG).unwrap();
        let uses = |file: &str| fs::read_to_string(&conf).is_ok_and(|text| text.contains(file));
        own.wait("multus with the other network", || {
            uses("10-other.conflist").then_some(())
        });
        fs::remove_file(own.0.node_file(node, OTHER).unwrap()).unwrap();
        own.wait("multus with the new network", || {
            uses("10-weft.conflist").then_some(())
        });
    }
    // These pods have addresses of the other network.
    for namespace in ["openshift-network-diagnostics", "openshift-multus"] {
        let selector = "app in (network-check-source,network-check-target,multus-admission-controller)";
        own.kubectl(&["-n", namespace, "delete", "pod", "-l", selector]);
    }
    // Their results are those of the other network.
    own.kubectl(&[
        "delete",
        "podnetworkconnectivitychecks",
        "--all",
        "--all-namespaces",
    ]);
}

/// The cluster network operator does the same on nodes with another network and without kube-proxy, which it deploys too,
/// and checks the connections. Returns the address of the server.
fn operator_brings_it(own: &Own, image: &str) -> String {
    own.kubectl(&["-n", "kube-system", "delete", "daemonset", "weft-pod-network"]);
    let kube_proxy = own.0.load_kube_proxy(&mut Quiet).unwrap();
    let began = Instant::now();
    let mut manifests = weft();
    manifests.args(["network", "manifests", "--image", image]);
    manifests.args(["--kube-proxy-image", &kube_proxy]);
    manifests.args(["--api-server", &own.0.api_server()]);
    let manifests = run::output(&mut manifests).unwrap();
    own.try_apply_text(&manifests).unwrap();
    let network = repository().join("examples/cluster-network-with-kube-proxy.yaml");
    own.wait("the kinds to be known", || {
        own.0.kubectl().apply_file(&network).ok()
    });
    other_network_is_replaced(own);
    own.wait("the operator to be Available", || {
        let conditions = [
            ("Available", "True"),
            ("Progressing", "False"),
            ("Degraded", "False"),
        ];
        conditions
            .iter()
            .all(|(kind, status)| own.operator_is(kind, status))
            .then_some(())
    });
    // A kubelet reports a network after some seconds.
    own.nodes_are_ready();
    println!(
        "measured: operator Available after {} ms",
        began.elapsed().as_millis()
    );
    let [server, _] = pods_talk(own);
    for node in NODES {
        let tables = own.node(node, &["nft", "list", "tables"]);
        assert!(tables.contains(PROXY_TABLES), "{node}: {tables}");
    }
    own.wait("checks that reach all endpoints", || {
        let checks = own
            .0
            .kubectl()
            .json(["get", "podnetworkconnectivitychecks", "--all-namespaces"]);
        let checks = checks.ok()?;
        let checks = checks["items"].as_array()?;
        let (mut endpoints, mut missing) = (0, 0);
        for check in checks {
            let name = check["metadata"]["name"].as_str().unwrap_or_default();
            let endpoint = name.split_once("-to-").map_or(name, |(_, endpoint)| endpoint);
            let mut conditions = check["status"]["conditions"].as_array().into_iter().flatten();
            let is_reached = conditions.any(|it| it["type"] == "Reachable" && it["status"] == "True");
            if endpoint != NAMED {
                missing += usize::from(!is_reached);
                endpoints += usize::from(is_reached);
            }
        }
        (endpoints >= ENDPOINTS && missing == 0).then_some(())
    });
    each_node_checks(own);
    server
}

/// Each node checks the endpoints, and a path that fails between two nodes is named.
fn each_node_checks(own: &Own) {
    let matrix = |more: &[&str]| {
        let mut check = weft();
        check.args(["network", "check", "--matrix"]).args(more);
        let output = check
            .env("KUBECONFIG", own.0.kubectl().kubeconfig())
            .output()
            .unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let remarks = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.code(),
            Some(1),
            "one endpoint needs DNS: {text}{remarks}"
        );
        text
    };
    let is_whole = |text: &str| {
        let count = |of: &str| text.lines().filter(|line| line.trim().starts_with(of)).count();
        count("ok ") == ENDPOINTS * NODES.len() && count(&format!("FAIL  {NAMED} ")) == NODES.len()
    };
    own.wait("each node to reach all endpoints", || {
        let text = matrix(&[]);
        println!("{text}");
        is_whole(&text).then_some(())
    });

    let [here, there] = NODES;
    let selector = format!("--field-selector=spec.nodeName={there}");
    let address = own.kubectl(&[
        "get",
        "pods",
        "--namespace=openshift-network-diagnostics",
        "--selector=app=network-check-target",
        &selector,
        "--output=jsonpath={.items[0].status.podIP}",
    ]);
    let rules = format!(
        "table inet cut {{ chain forward {{ type filter hook forward priority 0; ip daddr {address} drop; }}; }}"
    );
    own.node(here, &["nft", &rules]);
    let text = matrix(&["--node", here, "--failures"]);
    own.node(here, &["nft", "delete table inet cut"]);
    let cut = format!("FAIL  network-check-target-{there} ");
    let line = text.lines().find(|line| line.trim().starts_with(&cut));
    assert!(line.is_some_and(|line| line.ends_with(": i/o timeout")), "{text}");
    assert!(!text.contains(&format!("{there}: ")), "{text}");
}

/// Quick specs of Kubernetes' own tests pass.
fn kubernetes_tests_pass(own: &Own) {
    let home = Home::from_env().unwrap();
    let parts = Parts::ensure(&home, &mut Quiet).unwrap();
    let wanted = Wanted {
        focus: QUICK_FOCUS.map(str::to_owned).into(),
        excluded: Excluded::all().unwrap(),
        processes: 4,
    };
    let began = Instant::now();
    let run = conformance::run(&own.0, &home, &parts, &wanted, &mut Quiet).unwrap();
    let evidence = || format!("{}\n{}", run.results.table(), own.evidence());
    assert!(run.results.is_success(), "{}", evidence());
    let passed = |spec: &&conformance::Spec| spec.outcome == Outcome::Passed;
    let passed = run.results.specs.iter().filter(passed).count();
    assert_eq!(passed, QUICK_SPECS, "{}", evidence());
    // A failed run keeps its log.
    fs::remove_dir_all(run.log.parent().unwrap()).unwrap();
    println!(
        "measured: Kubernetes' tests took {} ms",
        began.elapsed().as_millis()
    );
}

/// Returns a value of a process' memory, KiB.
fn memory(pid: i32, of: &str) -> u64 {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
    let mut lines = rollup.lines().filter_map(|line| line.split_once(':'));
    let figure = lines.find(|(name, _)| *name == of).map(|(_, figure)| figure);
    let number = figure.and_then(|figure| figure.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or_default()
}
