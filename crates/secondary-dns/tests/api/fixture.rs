//! An API server with instances, the secondary DNS, and a resolver.

use std::io;
use std::net::UdpSocket;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use hickory_proto::op::{Message, Query};
use hickory_proto::rr::{Name, RecordType};
use kube::{Client, Config};
use kube_kit::serve::Readiness;
use kube_kit::shutdown::Shutdown;
use secondary_dns::answer::SharedZones;
use secondary_dns::configuration::Configuration;
use secondary_dns::everything;
use secondary_dns::metrics::Metrics;
use secondary_dns::monitor::{self, Monitor, Places};
use secondary_dns::query_log::QueryLog;
use secondary_dns::server::{Desk, Limits, Server as DnsServer};
use secondary_dns::settings::Settings;
use serde_json::{Value, json};
use stage::{Admin, Server, Task, config, until};

/// The account of the secondary DNS.
pub(crate) const ACCOUNT: &str = "system:serviceaccount:dns:secondary";
/// Namespace of most instances.
pub(crate) const NAMESPACE: &str = "vms";
const INSTANCES: &str = "/apis/kubevirt.io/v1/virtualmachineinstances";

/// The API server of one test.
pub(crate) struct Stage(Server);

impl Deref for Stage {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.0
    }
}

impl Stage {
    /// A server with KubeVirt's kind.
    pub(crate) fn start() -> Self {
        Self(Server::take(|admin| {
            install(admin);
            define_kubevirt(admin);
        }))
    }

    /// A server with KubeVirt's kind that no other test gets, for further definitions and rights.
    pub(crate) fn unshared() -> Self {
        let stage = Self::without_kubevirt();
        stage.define_kubevirt();
        stage
    }

    /// A server without KubeVirt's kind until [`define_kubevirt`].
    pub(crate) fn without_kubevirt() -> Self {
        Self(Server::take(install))
    }

    pub(crate) fn define_kubevirt(&self) {
        define_kubevirt(self);
    }

    /// Creates an instance with these addresses of its interfaces.
    pub(crate) fn run(&self, name: &str, nics: &[(&str, &str)]) {
        let vmi = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
            "metadata": { "name": name, "namespace": NAMESPACE },
            "spec": { "networks": [{ "name": "default", "pod": {} }, { "name": "nic1", "multus": { "networkName": "n" } }] },
        });
        self.create(&of(""), &vmi);
        self.set(name, nics);
    }

    /// Creates a launcher pod whose first interface has this address.
    pub(crate) fn launch(&self, pod: &str, instance: &str, address: &str) {
        // KubeVirt derives this from the name `nic1`.
        let status = json!([{ "name": "vms/n", "interface": "podbaffdcb099b", "ips": [address] }]);
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": pod, "namespace": NAMESPACE, "labels": { "kubevirt.io": "virt-launcher" },
                "annotations": {
                    "kubevirt.io/domain": instance, "k8s.v1.cni.cncf.io/network-status": status.to_string(),
                },
            },
            "spec": { "containers": [{ "name": "compute", "image": "registry.example/none" }] },
        });
        self.create(&pods(""), &pod);
    }

    /// Allows the account to read pods.
    pub(crate) fn grant_pods(&self) {
        let rule = json!({ "apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"] });
        self.grant("pods", &rule);
    }

    /// Defines claims, and allows the account to read them.
    pub(crate) fn define_claims(&self) {
        self.apply(&serde_json::to_value(api::ipam_claim::crd().expect("a definition")).expect("JSON"));
        self.wait_until_served("/apis/k8s.cni.cncf.io/v1alpha1/ipamclaims");
        let rule = json!({
            "apiGroups": ["k8s.cni.cncf.io"], "resources": ["ipamclaims"], "verbs": ["list", "watch"],
        });
        self.grant("claims", &rule);
    }

    fn grant(&self, role: &str, rule: &Value) {
        grant(self, role, rule);
    }

    /// Creates a claim for the first interface of an instance.
    pub(crate) fn claim(&self, instance: &str, address: &str) {
        let claims = format!("/apis/k8s.cni.cncf.io/v1alpha1/namespaces/{NAMESPACE}/ipamclaims");
        let name = format!("{instance}.nic1");
        self.create(
            &claims,
            &json!({
                "apiVersion": "k8s.cni.cncf.io/v1alpha1", "kind": "IPAMClaim", "metadata": { "name": name },
                "spec": { "network": "n", "interface": "" },
            }),
        );
        self.report(&format!("{claims}/{name}"), &json!({ "ips": [address] }));
    }

    /// Changes the addresses of an instance's interfaces.
    pub(crate) fn set(&self, name: &str, nics: &[(&str, &str)]) {
        let nic = |(name, address): &(&str, &str)| json!({ "name": name, "ipAddresses": [address] });
        let nics: Vec<Value> = nics.iter().map(nic).collect();
        self.report(&of(name), &json!({ "phase": "Running", "interfaces": nics }));
    }

    pub(crate) fn end(&self, name: &str) {
        self.delete(&of(name));
    }

    /// Starts only the monitor, which writes zone files.
    pub(crate) fn monitor(&self, variables: &'static [(&'static str, &'static str)], zones: &Path) -> Task {
        let (kubeconfig, directory) = (self.kubeconfig().to_owned(), Some(zones.to_owned()));
        Task::start(async move |shutdown: Shutdown| {
            let client = Client::try_from(config(&kubeconfig, Some(ACCOUNT)).await).expect("a client");
            let places = Places {
                memory: None,
                directory,
            };
            let settings = Settings::read(lookup(variables)).expect("settings");
            let monitor = Monitor::new(settings, places, Readiness::new(), Metrics::default());
            tokio::select! {
                () = monitor.run(client) => {}
                () = shutdown.wait() => {}
            }
        })
    }

    /// Starts the secondary DNS in one process.
    pub(crate) fn dns(&self, variables: &[(&'static str, &'static str)], zones: Option<&Path>) -> Dns {
        self.dns_over(variables, zones, None)
    }

    /// Like [`Self::dns`], with another address of the API server.
    pub(crate) fn dns_over(
        &self,
        variables: &[(&'static str, &'static str)],
        zones: Option<&Path>,
        line: Option<&Line>,
    ) -> Dns {
        self.dns_with(variables, zones, line, None)
    }

    /// Like [`Self::dns`], with a mounted `ConfigMap`.
    pub(crate) fn dns_with(
        &self,
        variables: &[(&'static str, &'static str)],
        zones: Option<&Path>,
        line: Option<&Line>,
        mounted: Option<&Path>,
    ) -> Dns {
        let mounted = mounted.map(PathBuf::from);
        let variables = variables.to_vec();
        let directory = zones.map(PathBuf::from);
        let (kubeconfig, url) = (self.kubeconfig().to_owned(), line.map(Line::url));
        let readiness = Readiness::new();
        let (ready, (at, port)) = (readiness.clone(), mpsc::channel());
        let task = Task::start(async move |shutdown: Shutdown| {
            let mut config: Config = config(&kubeconfig, Some(ACCOUNT)).await;
            if let Some(url) = url {
                config.cluster_url = url.parse().expect("a URL");
            }
            let client = Client::try_from(config).expect("a client");
            let memory = SharedZones::default();
            let places = Places {
                memory: Some(Arc::clone(&memory)),
                directory,
            };
            let configuration = Configuration::read(mounted);
            let environment = lookup(&variables);
            let settings = Settings::read(configuration.lookup(&environment)).expect("settings");
            let monitor = Monitor::new(settings, places, ready, Metrics::default());
            let desk = Desk {
                site: Arc::new(Mutex::new(everything(memory))),
                metrics: Metrics::default(),
                log: QueryLog::to(std::io::sink()).expect("a thread"),
            };
            let server = DnsServer::start(0, &desk, Limits::default()).expect("a server");
            at.send(server.port()).expect("a test");
            tokio::select! {
                () = monitor::run(monitor, client, configuration, environment) => {}
                () = shutdown.wait() => {}
            }
            server.stop().await;
        });
        Dns {
            resolver: Resolver::of(port.recv().expect("a port")),
            readiness,
            task,
        }
    }
}

/// A lookup in these variables.
fn lookup(variables: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
    move |name| {
        let set = variables.iter().find(|(variable, _)| *variable == name);
        set.map(|(_, value)| (*value).to_owned())
    }
}

/// Path of an instance, or of all instances of the namespace.
fn of(name: &str) -> String {
    format!("/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachineinstances/{name}")
        .trim_end_matches('/')
        .to_owned()
}

/// Creates a namespace, and the account's role in the shipped manifest.
fn install(admin: &Admin) {
    admin.namespace(NAMESPACE, &[]);
    let rule = json!({
        "apiGroups": ["kubevirt.io"], "resources": ["virtualmachineinstances"], "verbs": ["get", "list", "watch"],
    });
    grant(admin, "secondary", &rule);
}

/// Grants the account a rule, with a role of this name.
fn grant(admin: &Admin, role: &str, rule: &Value) {
    admin.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": role },
            "rules": [rule],
        },
        {
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding", "metadata": { "name": role },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
            "subjects": [{ "kind": "ServiceAccount", "name": "secondary", "namespace": "dns" }],
        },
    ] }));
}

/// Path of a pod, or of all pods of the namespace.
pub(crate) fn pods(name: &str) -> String {
    format!("/api/v1/namespaces/{NAMESPACE}/pods/{name}")
        .trim_end_matches('/')
        .to_owned()
}

fn define_kubevirt(admin: &Admin) {
    let anything = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    admin.apply(&json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "virtualmachineinstances.kubevirt.io" },
        "spec": {
            "group": "kubevirt.io", "scope": "Namespaced",
            "names": {
                "kind": "VirtualMachineInstance", "listKind": "VirtualMachineInstanceList",
                "singular": "virtualmachineinstance", "plural": "virtualmachineinstances", "shortNames": ["vmi"],
            },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": {
                    "type": "object", "properties": { "spec": anything, "status": anything },
                } },
            }],
        },
    }));
    admin.wait_until_served(INSTANCES);
}

/// A running secondary DNS. It ends when it is dropped.
pub(crate) struct Dns {
    resolver: Resolver,
    readiness: Readiness,
    task: Task,
}

impl Dns {
    pub(crate) fn is_ready(&self) -> bool {
        self.readiness.is_ready()
    }

    #[track_caller]
    pub(crate) fn wait_ready(&self) {
        until(
            "ready",
            || if self.is_ready() { Ok(()) } else { Err("not ready") },
        );
    }

    /// Ends the program without a shutdown, like SIGKILL.
    pub(crate) fn kill(self) {
        self.task.kill();
    }
}

impl Deref for Dns {
    type Target = Resolver;

    fn deref(&self) -> &Resolver {
        &self.resolver
    }
}

/// A client of the server on a local port.
pub(crate) struct Resolver {
    port: u16,
}

impl Resolver {
    pub(crate) fn of(port: u16) -> Self {
        Self { port }
    }

    /// The answer to a question.
    pub(crate) fn ask(&self, name: &str, kind: RecordType) -> Message {
        self.try_ask(name, kind).expect("an answer")
    }

    /// Like [`Self::ask`], with an error if no server answers.
    pub(crate) fn try_ask(&self, name: &str, kind: RecordType) -> io::Result<Message> {
        let socket = UdpSocket::bind("127.0.0.1:0")?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        socket.connect(("127.0.0.1", self.port))?;
        let mut query = Message::query();
        query.add_query(Query::query(Name::from_ascii(name).expect("a name"), kind));
        socket.send(&query.to_vec().expect("a query"))?;
        let mut room = [0; 1232];
        let length = socket.recv(&mut room)?;
        Ok(Message::from_vec(&room[..length]).expect("a message"))
    }

    /// The address of a name, or the response code of an answer without an address.
    pub(crate) fn address(&self, name: &str) -> String {
        let answer = self.ask(name, RecordType::A);
        match answer.answers.first() {
            Some(record) => record.data.to_string(),
            None => format!("{:?}", answer.response_code),
        }
    }

    /// Waits until a name has this address, and returns the duration.
    #[track_caller]
    pub(crate) fn wait_for(&self, name: &str, expected: &str) -> Duration {
        let began = Instant::now();
        until(name, || match self.address(name) {
            found if found == expected => Ok(()),
            found => Err(found),
        });
        began.elapsed()
    }
}

/// A connection to the API server that can be cut.
pub(crate) struct Line {
    address: std::net::SocketAddr,
    cut: Arc<AtomicBool>,
    /// Number of open directions.
    open: Arc<AtomicUsize>,
}

impl Line {
    pub(crate) fn to(admin: &Admin) -> Self {
        let kubeconfig = std::fs::read_to_string(admin.kubeconfig()).expect("a kubeconfig");
        let (_, server) = kubeconfig.split_once("https://").expect("a server");
        let end = server.find(['"', '\n', ' ', ',']).unwrap_or(server.len());
        let server = server[..end].to_owned();
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let cut = Arc::new(AtomicBool::new(false));
        let open = Arc::<AtomicUsize>::default();
        let (state, count) = (Arc::clone(&cut), Arc::clone(&open));
        // The thread lives as long as the process: no client connects after the test.
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let server = std::net::TcpStream::connect(&server).expect("the API server");
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (
                        from.try_clone().expect("a stream"),
                        to.try_clone().expect("a stream"),
                    );
                    let (cut, open) = (Arc::clone(&state), Arc::clone(&count));
                    open.fetch_add(1, Ordering::SeqCst);
                    std::thread::spawn(move || {
                        carry(&from, &to, &cut);
                        open.fetch_sub(1, Ordering::SeqCst);
                    });
                }
            }
        });
        Self { address, cut, open }
    }

    fn url(&self) -> String {
        format!("https://{}", self.address)
    }

    /// Closes all connections and refuses new ones, or allows connections again.
    pub(crate) fn cut(&self, cut: bool) {
        self.cut.store(cut, Ordering::SeqCst);
        if cut {
            until("the end of all connections", || {
                match self.open.load(Ordering::SeqCst) {
                    0 => Ok(()),
                    open => Err(open),
                }
            });
        }
    }
}

/// Copies bytes until the line is cut or one side ends.
fn carry(mut from: &std::net::TcpStream, mut to: &std::net::TcpStream, cut: &AtomicBool) {
    use std::io::{ErrorKind, Read as _, Write as _};
    from.set_read_timeout(Some(Duration::from_millis(50)))
        .expect("a limit");
    let mut room = [0; 16 << 10];
    while !cut.load(Ordering::SeqCst) {
        match from.read(&mut room) {
            Ok(0) => break,
            Ok(length) if to.write_all(&room[..length]).is_ok() => {}
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Ok(_) | Err(_) => break,
        }
    }
    for side in [from, to] {
        // The side may already have ended.
        let _ = side.shutdown(std::net::Shutdown::Both);
    }
}

/// The exit code and the output of a command.
pub(crate) fn said(answer: &kube_kit::connection::Answer) -> (u8, &str, &str) {
    (answer.code, &answer.text, &answer.remarks)
}

/// Whether a serial is newer than another one (RFC 1982 §3.2).
pub(crate) fn is_newer(serial: u32, than: u32) -> bool {
    let ahead = serial.wrapping_sub(than);
    ahead != 0 && ahead < 1 << 31
}
