//! The start of a cluster, step by step. Every step skips work that is already done.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::{Cluster, DUAL_STACK, POD_NETWORK, fnv, kube_proxy};
use crate::control_plane;
use crate::debian::Packages;
use crate::error::{At, Error, Result};
use crate::image;
use crate::kubectl::Kubectl;
use crate::kubernetes::{Program, Programs};
use crate::network::{self, Families, HostLink};
use crate::network_manager;
use crate::node;
use crate::pki::Pki;
use crate::progress::Progress;
use crate::run;
use crate::space::{Blueprint, Space};
use crate::wait;

/// Loopback ports of etcd, in the control plane's network namespace.
const ETCD: (u16, u16) = (2379, 2380);
/// Generous, because machines differ by a factor of ten.
const TIMEOUT: Duration = Duration::from_mins(5);

/// A cluster with the parts for its start.
pub(super) struct Assembly<'a> {
    cluster: &'a Cluster,
    packages: Packages,
    /// Programs of NetworkManager, if the nodes have it.
    network_manager: Option<Packages>,
    programs: Programs,
    link: HostLink,
    families: Families,
    pki: Pki,
    /// URL of the API server for the cluster's programs.
    server: String,
}

impl<'a> Assembly<'a> {
    /// Downloads the parts, chooses addresses, and creates certificates.
    pub(super) fn prepare(cluster: &'a Cluster, progress: &mut dyn Progress) -> Result<Self> {
        let packages = Packages::ensure(&cluster.options.home, progress)?;
        let network_manager = if cluster.options.network_manager {
            Some(Packages::ensure_network_manager(&cluster.options.home, progress)?)
        } else {
            None
        };
        let programs = Programs::ensure(&cluster.options.home, &Program::ALL, progress)?;
        raise_watch_limit(progress)?;
        progress.step("creating namespaces, bridges and certificates");
        fs::create_dir_all(&cluster.dir).at("create", &cluster.dir)?;
        let link = choose_link(cluster, &packages)?;
        write_record(cluster, &link, &programs)?;
        let pki = make_certificates(cluster, &packages, &link)?;
        let server = control_plane::server();
        Ok(Self {
            cluster,
            packages,
            network_manager,
            programs,
            link,
            families: cluster.families(),
            pki,
            server,
        })
    }

    /// Creates and starts missing parts, and waits until the nodes are ready.
    pub(super) fn run(&self, progress: &mut dyn Progress) -> Result<()> {
        let control = &self.cluster.control;
        self.create_control()?;
        progress.step("starting etcd and the API server");
        self.start_store_and_api()?;
        // The nodes are created while the API server starts.
        for (index, node) in (1..).zip(&self.cluster.nodes) {
            self.create_node(index, node)?;
        }
        let kubectl = self.cluster.kubectl();
        wait::until("the API server", TIMEOUT, || {
            progress.tick("waiting for the API server");
            let answer = kubectl.run(["get", "--raw", "/readyz"]);
            answer.map_err(|error| {
                let error = format!("{error}{}", control.evidence(Program::ApiServer.name()));
                self.revive_api_server(error, progress)
            })
        })?;
        progress.step("starting controllers, scheduler and the nodes' programs");
        let mut before = heartbeats(self.cluster).unwrap_or_default();
        self.start_controllers()?;
        for (index, node) in (1..).zip(&self.cluster.nodes) {
            let started = self.start_node(index, node)?;
            // Kubelets that kept running need not send a new heartbeat.
            if !started && let Some(beat) = before.get_mut(index - 1) {
                *beat = Heartbeat::Unknown;
            }
        }
        self.import_base_images(progress)?;
        progress.step(&format!("waiting for {} nodes", self.cluster.nodes.len()));
        wait::until("the nodes to be ready", TIMEOUT, || {
            progress.tick("waiting for the nodes");
            // A kubelet that ended never becomes ready.
            if let Some(node) = self.cluster.nodes.iter().find(|node| !node.runs("kubelet")) {
                return Ok(Err(Error::Missing(format!(
                    "a program of {} died{}",
                    node.name(),
                    node.evidence("kubelet")
                ))));
            }
            let ready = self.ready_since(&before);
            ready
                .map(Ok)
                .map_err(|error| self.revive_api_server(error, progress))
        })??;
        if !self.cluster.has_pod_network() {
            self.assign_ranges(&kubectl)?;
        }
        let account = ["serviceaccount", "--namespace", "default", "default"];
        kubectl.wait_for(&account, "the default service account", TIMEOUT, |_| Ok(()))
    }

    /// Starts an API server again that has ended, as a kubelet does: Kubernetes 1.34 may crash at its start, while it
    /// collects the documents of custom resources. Returns the error, or that of the start.
    fn revive_api_server(&self, error: String, progress: &mut dyn Progress) -> String {
        if self.cluster.control.runs(Program::ApiServer.name()) {
            return error;
        }
        progress.step("starting the API server again, which has ended");
        match self.start_store_and_api() {
            Ok(()) => error,
            Err(failed) => failed.to_string(),
        }
    }

    /// Assigns each node its ranges of pod addresses, like a controller manager that allocates them. Installed networks
    /// read the ranges; the cluster's own network has them in its configuration.
    fn assign_ranges(&self, kubectl: &Kubectl) -> Result<()> {
        for (index, node) in (1..).zip(&self.cluster.nodes) {
            let ranges = self.families.pod_ranges(index);
            let patch = json!({ "spec": { "podCIDR": ranges.first(), "podCIDRs": ranges } }).to_string();
            kubectl.run(["patch", "node", node.name(), "--patch", &patch])?;
        }
        Ok(())
    }

    fn create_control(&self) -> Result<()> {
        let Cluster {
            control, dir, tag, ..
        } = self.cluster;
        if control.pid().is_none() {
            let mut binds = vec![(dir.clone(), dir.display().to_string())];
            binds.extend(
                self.programs
                    .iter()
                    .map(|(program, path)| (path.to_owned(), inside(program))),
            );
            control.create(&Blueprint {
                layers: self.packages.layer().into_iter().collect(),
                binds,
                parent: None,
            })?;
        }
        network::create_bridges(control, self.families)?;
        network::connect_host(control, tag, &self.link)
    }

    fn start_store_and_api(&self) -> Result<()> {
        let Cluster {
            control, dir, nodes, ..
        } = self.cluster;
        let etcd = control_plane::etcd(&inside(Program::Etcd), &dir.join("etcd"), ETCD.0, ETCD.1);
        control.start("etcd", &etcd)?;
        control.wait_listening("etcd", ETCD.0, TIMEOUT)?;

        let policy = dir.join("audit-policy.json");
        fs::write(&policy, control_plane::AUDIT_POLICY).at("write", &policy)?;
        let users: Vec<String> = nodes.iter().map(|node| node::user(node.name())).collect();
        let mut all = control_plane::USERS.to_vec();
        all.extend(users.iter().map(|user| (user.as_str(), "system:nodes")));
        let tokens = self.pki.token_file(&all)?;
        let (program, audit) = (inside(Program::ApiServer), self.cluster.audit_log());
        let mut api = control_plane::api_server(&program, &self.pki, &tokens, &policy, &audit, ETCD.0);
        api.extend(control_plane::api_server_of_cluster(&self.pki, self.families));
        control.start(Program::ApiServer.name(), &api).map(drop)
    }

    fn start_controllers(&self) -> Result<()> {
        let control = &self.cluster.control;
        let kubeconfig = |user: &str| -> Result<PathBuf> {
            let file = self.pki.file(&format!("{}.kubeconfig", user.replace(':', "-")));
            self.pki.kubeconfig(&file, &self.server, user)?;
            Ok(file)
        };
        let manager = kubeconfig(control_plane::CONTROLLER_MANAGER)?;
        let program = inside(Program::ControllerManager);
        let manager = control_plane::controller_manager(&program, &self.pki, &manager, self.families);
        control.start("kube-controller-manager", &manager)?;
        let scheduler = kubeconfig("system:kube-scheduler")?;
        let scheduler = control_plane::scheduler(&inside(Program::Scheduler), &scheduler);
        control.start("kube-scheduler", &scheduler).map(drop)
    }

    fn create_node(&self, index: usize, node: &Space) -> Result<()> {
        let Cluster { control, nodes, .. } = self.cluster;
        // A node that was created without NetworkManager lacks the program.
        let without = self.network_manager.is_some() && !network_manager::is_installed(node);
        if node.pid().is_none() || without {
            let wanted = [Program::Kubelet, Program::Proxy];
            let binds = wanted
                .map(|program| (self.programs.path(program), inside(program)))
                .into();
            let packages = self.network_manager.iter().chain([&self.packages]);
            node.create(&Blueprint {
                layers: packages.filter_map(Packages::layer).collect(),
                binds,
                parent: Some(control),
            })?;
        }
        let pod_network = self.cluster.has_pod_network();
        let others = if pod_network { nodes.len() } else { 0 };
        network::connect_node(control, node, index, others, self.families)?;
        node::write_files(node, index, self.families, &self.pki, &self.server)?;
        if pod_network {
            node::write_pod_network(node, index, self.families, &self.packages)?;
        }
        if self.network_manager.is_some() {
            network_manager::start_on(node)?;
        }
        let [(name, argv), ..] = node::programs(node.name(), index, self.families);
        node.start(name, &argv).map(drop)
    }

    /// Starts the programs of a node. Returns true if the kubelet was started.
    fn start_node(&self, index: usize, node: &Space) -> Result<bool> {
        let mut kubelet = false;
        for (program, argv) in node::programs(node.name(), index, self.families) {
            if program == Program::Proxy.name() && !self.cluster.has_kube_proxy() {
                continue;
            }
            let started = node.start(program, &argv)?;
            if program == "containerd" {
                wait::until(&format!("containerd on {}", node.name()), TIMEOUT, || {
                    let answer = node
                        .command(["ctr", "version"])
                        .and_then(|mut command| run::output(&mut command));
                    answer.map_err(|error| format!("{error}{}", node.evidence("containerd")))
                })?;
            }
            kubelet |= started && program == "kubelet";
        }
        Ok(kubelet)
    }

    fn import_base_images(&self, progress: &mut dyn Progress) -> Result<()> {
        let home = &self.cluster.options.home;
        let _lock = home.lock("images", progress)?;
        let archives = image::of_busybox(&self.packages.file("usr/bin/busybox"), &home.dir("images")?)?;
        archives
            .iter()
            .try_for_each(|archive| self.cluster.load(archive).map(drop))
    }

    /// Returns an error unless all nodes are ready, with heartbeats newer than `before`.
    fn ready_since(&self, before: &[Heartbeat]) -> std::result::Result<(), String> {
        let now = heartbeats(self.cluster).map_err(|error| error.to_string())?;
        let mut complaints = Vec::new();
        for (index, (node, beat)) in self.cluster.nodes.iter().zip(&now).enumerate() {
            if !self.cluster.accepts(beat) || beat.is_ready() && before.get(index) == Some(beat) {
                complaints.push(format!(
                    "    {}: {beat:?}{}",
                    node.name(),
                    node.evidence("kubelet")
                ));
            }
        }
        if complaints.is_empty() {
            Ok(())
        } else {
            Err(complaints.join("\n"))
        }
    }
}

/// Limit of inotify instances of root, which all clusters of the machine share. Each cluster needs about 30.
const WATCHES: u32 = 1024;

/// Raises a kernel limit whose default suits desktops. The limit stays raised, because other programs may rely on it by
/// then.
fn raise_watch_limit(progress: &mut dyn Progress) -> Result<()> {
    let file = Path::new("/proc/sys/fs/inotify/max_user_instances");
    let now = fs::read_to_string(file).at("read", file)?;
    if now.trim().parse().is_ok_and(|now: u32| now >= WATCHES) {
        return Ok(());
    }
    progress.step(&format!(
        "raising fs.inotify.max_user_instances from {} to {WATCHES}",
        now.trim()
    ));
    // If the write is forbidden, one cluster still works with the existing limit.
    let _ = fs::write(file, WATCHES.to_string());
    Ok(())
}

/// Path of a program in every space.
fn inside(program: Program) -> String {
    format!("/kubernetes/{}", program.name())
}

/// Returns the link to the host: the link of an earlier start, or a new one without collisions.
fn choose_link(cluster: &Cluster, packages: &Packages) -> Result<HostLink> {
    let record = cluster.record();
    if let (Some(host), Some(control)) = (record["host"].as_str(), record["control"].as_str()) {
        return Ok(HostLink {
            host: host.to_owned(),
            control: control.to_owned(),
        });
    }
    let ip = |args: &[&str]| run::output(packages.command("usr/bin/ip").args(args));
    let taken = ip(&["-4", "address", "show"])? + &ip(&["-4", "route", "show"])?;
    let free = HostLink::free(fnv(&cluster.tag), &taken);
    free.ok_or_else(|| Error::Missing("all of 169.254.0.0/16 is in use".to_owned()))
}

fn write_record(cluster: &Cluster, link: &HostLink, programs: &Programs) -> Result<()> {
    let record = json!({
        "host": link.host,
        "control": link.control,
        "kubectl": programs.path(Program::Kubectl),
        POD_NETWORK: cluster.has_pod_network(),
        kube_proxy::RECORDED: cluster.has_kube_proxy(),
        DUAL_STACK: cluster.has_dual_stack(),
    });
    let (unfinished, file) = (cluster.dir.join("cluster.new"), cluster.dir.join("cluster.json"));
    fs::write(&unfinished, record.to_string()).at("write", &unfinished)?;
    fs::rename(&unfinished, &file).at("create", &file)
}

fn make_certificates(cluster: &Cluster, packages: &Packages, link: &HostLink) -> Result<Pki> {
    let pki = cluster.pki(packages)?;
    let mut addresses = cluster.families().control();
    addresses.extend([network::KUBERNETES, "127.0.0.1", &link.control]);
    let mut names: Vec<String> = addresses.iter().map(|address| format!("IP:{address}")).collect();
    let hosts = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "localhost",
    ];
    names.extend(hosts.iter().map(|host| format!("DNS:{host}")));
    pki.certificate("apiserver", "/CN=kube-apiserver", &names)?;
    pki.certificate(
        "kubelet-client",
        "/O=system:masters/CN=kube-apiserver-kubelet-client",
        &[],
    )?;
    pki.authority(
        control_plane::FRONT_PROXY_AUTHORITY,
        "/CN=weft-test-cluster-front-proxy",
    )?;
    pki.certificate_of(
        control_plane::FRONT_PROXY_AUTHORITY,
        control_plane::FRONT_PROXY,
        &format!("/CN={}", control_plane::FRONT_PROXY),
        &[],
    )?;
    let server = format!("https://{}:{}", link.control, control_plane::PORT);
    pki.kubeconfig(&cluster.kubeconfig(), &server, control_plane::ADMIN)?;
    Ok(pki)
}

/// Part of the message of a kubelet whose runtime has no network configuration.
const NO_NETWORK: &str = "cni plugin not initialized";

/// The last report of a node, with its time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Heartbeat {
    /// Ready, reported at this time.
    Ready(String),
    /// Not ready, with the reason.
    NotReady(String),
    /// No report.
    Unknown,
}

impl Heartbeat {
    pub(super) fn is_ready(&self) -> bool {
        matches!(self, Self::Ready(_))
    }

    /// The node lacks only a pod network.
    pub(super) fn lacks_network(&self) -> bool {
        matches!(self, Self::NotReady(message) if message.contains(NO_NETWORK))
    }

    fn of(node: &str, list: &Value) -> Self {
        let mut items = list["items"].as_array().into_iter().flatten();
        let Some(object) = items.find(|item| item["metadata"]["name"] == node) else {
            return Self::Unknown;
        };
        let mut conditions = object["status"]["conditions"].as_array().into_iter().flatten();
        let Some(ready) = conditions.find(|condition| condition["type"] == "Ready") else {
            return Self::Unknown;
        };
        let text = |key: &str| ready[key].as_str().unwrap_or_default().to_owned();
        if ready["status"] == "True" {
            Self::Ready(text("lastHeartbeatTime"))
        } else {
            Self::NotReady(text("message"))
        }
    }
}

/// Returns the last report of each node.
pub(super) fn heartbeats(cluster: &Cluster) -> Result<Vec<Heartbeat>> {
    let list = cluster.kubectl().json(["get", "nodes"])?;
    Ok(cluster
        .nodes
        .iter()
        .map(|node| Heartbeat::of(node.name(), &list))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_is_ready_if_its_condition_is_true() {
        let list = json!({ "items": [
            { "metadata": { "name": "node01" },
              "status": { "conditions": [{ "type": "Ready", "status": "True", "lastHeartbeatTime": "t" }] } },
            { "metadata": { "name": "node02" },
              "status": { "conditions": [{ "type": "Ready", "status": "Unknown", "message": "silent" }] } },
        ] });
        assert_eq!(Heartbeat::of("node01", &list), Heartbeat::Ready("t".to_owned()));
        assert_eq!(
            Heartbeat::of("node02", &list),
            Heartbeat::NotReady("silent".to_owned())
        );
        assert_eq!(Heartbeat::of("node03", &list), Heartbeat::Unknown);
    }
}
