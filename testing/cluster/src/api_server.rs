//! An etcd and an API server, for tests without nodes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::cluster::answers;
use crate::control_plane;
use crate::debian::Packages;
use crate::error::{At, Error, Result};
use crate::home::Home;
use crate::kubectl::Kubectl;
use crate::kubernetes::{Program, Programs};
use crate::network;
use crate::pki::Pki;
use crate::port::free_port;
use crate::progress::Quiet;
use crate::run;
use crate::wait;

const TIMEOUT: Duration = Duration::from_mins(2);
/// Number of attempts of a start: another process may take a port between its choice and its use.
const ATTEMPTS: usize = 3;
/// Logs the metadata of every answer, and before it those of each write: its effect is visible before its answer is logged.
const AUDIT_POLICY: &str = r#"{"apiVersion":"audit.k8s.io/v1","kind":"Policy","rules":[{"level":"Metadata","verbs":["create","update","patch","delete","deletecollection"]},{"level":"Metadata","omitStages":["RequestReceived"]}]}"#;
/// Kubeconfig of the garbage collector.
const COLLECTOR: &str = "collector.kubeconfig";

/// A running API server with an empty etcd. A drop, or the end of this process, stops both.
///
/// It needs no root. Authorisation is RBAC. The user of the kubeconfig has all permissions.
#[derive(Debug)]
pub struct ApiServer {
    dir: PathBuf,
    url: String,
    /// The port of etcd for clients, without TLS.
    store: u16,
    kubectl: Kubectl,
    /// A close of the channel stops the processes.
    stop: Option<Sender<()>>,
    keeper: Option<JoinHandle<()>>,
}

impl ApiServer {
    /// Starts a server, and waits until it is ready.
    pub fn start() -> Result<Self> {
        let home = Home::from_env()?;
        let programs = Programs::ensure(&home, &Program::API, &mut Quiet)?;
        clear_dead(&home.dir("api")?);
        let mut last = Error::Missing(String::new());
        for _ in 0..ATTEMPTS {
            match Self::try_start(&home, &programs) {
                Ok(server) => return Ok(server),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Returns the server that all tests of this process share. The first caller starts it.
    pub fn shared() -> Result<&'static Self> {
        static SHARED: OnceLock<std::result::Result<ApiServer, String>> = OnceLock::new();
        SHARED
            .get_or_init(|| Self::start().map_err(|error| error.to_string()))
            .as_ref()
            .map_err(|error| Error::Missing(error.clone()))
    }

    /// `https://127.0.0.1:PORT`
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The URL of etcd, for tests that change the store themselves.
    pub fn store_url(&self) -> String {
        format!("http://127.0.0.1:{}", self.store)
    }

    /// The kubeconfig of an administrator.
    pub fn kubeconfig(&self) -> &Path {
        self.kubectl.kubeconfig()
    }

    /// Certificate and key of the certificate authority for clients, for tests that sign certificates.
    pub fn authority(&self) -> [PathBuf; 2] {
        ["ca.crt", "ca.key"].map(|name| self.dir.join("pki").join(name))
    }

    /// The audit log, one JSON object per line: the answer of each request, and before it the start of each write.
    pub fn audit_log(&self) -> PathBuf {
        self.dir.join("audit.log")
    }

    /// A client of this server.
    pub fn kubectl(&self) -> &Kubectl {
        &self.kubectl
    }

    /// Starts the garbage collector, which runs until the returned value is dropped. It deletes objects of missing
    /// owners, of all users of this server. The calling thread must outlive the value.
    pub fn collect_garbage(&self) -> Result<GarbageCollector> {
        let programs = Programs::ensure(&Home::from_env()?, &[Program::ControllerManager], &mut Quiet)?;
        let program = programs.path(Program::ControllerManager).display().to_string();
        let argv = control_plane::garbage_collector(&program, &self.dir.join(COLLECTOR));
        spawn(&self.dir, "kube-controller-manager", &argv).map(GarbageCollector)
    }

    fn try_start(home: &Home, programs: &Programs) -> Result<Self> {
        static COUNT: Mutex<u32> = Mutex::new(0);
        let number = COUNT.lock().map_or(0, |mut count| {
            *count += 1;
            *count
        });
        let dir = home.dir(&format!("api/{}-{number}", std::process::id()))?;
        let pki = Pki::new(&dir.join("pki"), &Packages::present(home))?;
        pki.certificate(
            "apiserver",
            "/CN=kube-apiserver",
            &["IP:127.0.0.1".to_owned(), "DNS:localhost".to_owned()],
        )?;
        let tokens = pki.token_file(control_plane::USERS)?;
        let policy = dir.join("audit-policy.json");
        fs::write(&policy, AUDIT_POLICY).at("write", &policy)?;
        let [client, peer, port] = [free_port()?, free_port()?, free_port()?];
        let url = format!("https://127.0.0.1:{port}");
        let kubeconfig = dir.join("kubeconfig");
        pki.kubeconfig(&kubeconfig, &url, control_plane::ADMIN)?;
        pki.kubeconfig(&dir.join(COLLECTOR), &url, control_plane::CONTROLLER_MANAGER)?;

        let etcd = control_plane::etcd(
            &programs.path(Program::Etcd).display().to_string(),
            &dir.join("etcd"),
            client,
            peer,
        );
        let program = programs.path(Program::ApiServer).display().to_string();
        let mut api =
            control_plane::api_server(&program, &pki, &tokens, &policy, &dir.join("audit.log"), client);
        api.extend([
            format!("--secure-port={port}"),
            control_plane::service_range(network::SERVICES),
            "--bind-address=127.0.0.1".to_owned(),
            // Endpoints may not contain a loopback address. No connection uses this address.
            "--advertise-address=192.0.2.1".to_owned(),
            "--authorization-mode=RBAC".to_owned(),
            // No controller creates service accounts, and pods of tests need none.
            "--disable-admission-plugins=ServiceAccount".to_owned(),
        ]);
        let kubectl = Kubectl::new(&programs.path(Program::Kubectl), &kubeconfig);
        let (stop, stopped) = channel();
        let (started, start) = channel();
        let files = dir.clone();
        let client_of_server = kubectl.clone();
        let keeper = std::thread::spawn(move || {
            keep(&files, &etcd, client, &api, &client_of_server, &started, &stopped);
        });
        let server = Self {
            dir,
            url,
            store: client,
            kubectl,
            stop: Some(stop),
            keeper: Some(keeper),
        };
        start
            .recv()
            .unwrap_or_else(|_| Err(Error::Missing("the thread of the API server ended".to_owned())))?;
        // The namespace appears shortly after readiness, and most tests need it.
        server.kubectl.wait_for(
            &["namespace", "default"],
            "the default namespace",
            TIMEOUT,
            |_| Ok(()),
        )?;
        Ok(server)
    }
}

/// A running garbage collector.
#[derive(Debug)]
pub struct GarbageCollector(Child);

impl Drop for GarbageCollector {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for ApiServer {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(keeper) = self.keeper.take() {
            let _ = keeper.join();
        }
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Starts both processes and runs them until the channel closes.
///
/// The kernel kills them when the thread that started them ends, so they need a thread that lives as long. The thread
/// of a test does not.
fn keep(
    dir: &Path,
    etcd: &[String],
    port: u16,
    api: &[String],
    kubectl: &Kubectl,
    started: &Sender<Result<()>>,
    stopped: &Receiver<()>,
) {
    let mut children = Vec::new();
    let begin = |children: &mut Vec<(&'static str, Child)>| -> Result<()> {
        children.push(("etcd", spawn(dir, "etcd", etcd)?));
        wait::until("etcd", TIMEOUT, || {
            if let Some(ended) = ended(dir, children) {
                return Ok(Err(ended));
            }
            if answers(port) {
                Ok(Ok(()))
            } else {
                Err(format!("port {port} does not answer"))
            }
        })??;
        children.push(("kube-apiserver", spawn(dir, "kube-apiserver", api)?));
        wait::until("the API server", TIMEOUT, || {
            let ready = kubectl.run(["get", "--raw", "/readyz"]);
            // Another server may have taken one of the ports first. If its etcd answers, two API servers would share
            // one store, and each test would see the objects of the other.
            if let Some(ended) = ended(dir, children) {
                return Ok(Err(ended));
            }
            ready
                .map(|_| Ok(()))
                .map_err(|error| format!("{error}{}", tail_of_log(dir, "kube-apiserver")))
        })?
    };
    let _ = started.send(begin(&mut children));
    // The receiver returns an error when the sender is dropped.
    let _ = stopped.recv();
    for (_, child) in children.iter_mut().rev() {
        let _ = child.kill();
        let _ = child.wait();
    }
}

/// Returns the error of the first program that ended.
fn ended(dir: &Path, children: &mut [(&'static str, Child)]) -> Option<Error> {
    children
        .iter_mut()
        .find_map(|(name, child)| match child.try_wait() {
            Ok(None) => None,
            _ => Some(Error::Missing(format!("{name} ended:{}", tail_of_log(dir, name)))),
        })
}

fn tail_of_log(dir: &Path, name: &str) -> String {
    run::tail(&fs::read_to_string(dir.join(format!("{name}.log"))).unwrap_or_default())
}

fn spawn(dir: &Path, name: &str, argv: &[String]) -> Result<Child> {
    let log = dir.join(format!("{name}.log"));
    let file = fs::File::create(&log).at("create", &log)?;
    let copy = file.try_clone().at("write", &log)?;
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "KILL"]).args(argv);
    command.stdin(Stdio::null()).stdout(file).stderr(copy);
    command.spawn().at("start", Path::new(name))
}

/// Removes the files of servers whose process was killed.
fn clear_dead(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.split('-').next().unwrap_or_default();
        if !Path::new("/proc").join(pid).exists() {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}
