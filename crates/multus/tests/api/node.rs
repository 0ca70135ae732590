//! A node in a directory: a daemon, plugins that record their calls, sandboxes, and the shim.

use crate::built;
use cluster::{ApiServer, wait};
use kube_kit::shutdown::Shutdown;
use linux::netns::NetNs;
use multus::OwnPod;
use multus::config::DaemonConfig;
use multus::networks::device_info::DeviceInfo;
use multus::{Stop, serve};
use serde_json::{Value, json};
use std::fs;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

pub(crate) const DEADLINE: Duration = Duration::from_secs(60);

/// The API server of this test run, with the NAD definition and the daemon's role.
pub(crate) fn api() -> &'static ApiServer {
    static READY: OnceLock<&'static ApiServer> = OnceLock::new();
    READY.get_or_init(|| {
        let api = ApiServer::shared().unwrap();
        let crd = serde_json::to_string(&api::net_attach_def::crd().unwrap()).unwrap();
        api.kubectl().apply(&crd).unwrap();
        let args = [
            "wait",
            "--for=condition=Established",
            "crd/network-attachment-definitions.k8s.cni.cncf.io",
        ];
        api.kubectl().run(args).unwrap();
        // operands.md §1, object 3, as the operator deploys it with this program
        let role = include_str!("../../../operator/src/components/multus/native-role.yaml");
        api.kubectl().apply(role).unwrap();
        api
    })
}

/// A daemon that runs in this process.
struct Running {
    shutdown: Shutdown,
    killed: Shutdown,
    thread: JoinHandle<Option<Result<(), Stop>>>,
}

/// A node, its namespace in the API server, and its processes.
pub(crate) struct Node {
    dir: tempfile::TempDir,
    /// Namespace of its pods; also the name of the node and of the daemon's service account.
    pub(crate) name: String,
    running: Option<Running>,
    /// Timeout of the daemon's calls.
    pub(crate) call_timeout: Duration,
    /// The pod that the daemon's token is bound to.
    pub(crate) own: Option<&'static str>,
}

impl Node {
    /// A node with a primary network of plugin `a` and no daemon.
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("node{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let dir = tempfile::tempdir().unwrap();
        for sub in ["net.d", "bin"] {
            fs::create_dir(dir.path().join(sub)).unwrap();
        }
        let node = Self {
            dir,
            name,
            running: None,
            call_timeout: multus::JOB_TIMEOUT,
            own: None,
        };
        let primary = json!({"cniVersion": "0.3.1", "name": "cluster-net", "plugins": [{"type": "a"}]});
        fs::write(node.path("net.d/10-a.conflist"), primary.to_string()).unwrap();
        for plugin in ["a", "b", "c"] {
            node.plugin(plugin);
        }
        symlink(built::weft_cni(), node.path("bin/multus-shim")).unwrap();
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": node.name}});
        let account = json!({"apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": {"name": "multus", "namespace": node.name}});
        let binding = json!({"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": {"name": node.name},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "multus"},
            "subjects": [{"kind": "ServiceAccount", "name": "multus", "namespace": node.name}]});
        for object in [namespace, account, binding] {
            api().kubectl().apply(&object.to_string()).unwrap();
        }
        node
    }

    /// A node with a running daemon.
    pub(crate) fn started() -> Self {
        let mut node = Self::new();
        node.start(&json!({}));
        node
    }

    /// Starts the daemon with more keys in its configuration, and waits until it serves.
    pub(crate) fn start(&mut self, keys: &Value) {
        self.launch(keys, &self.name.clone());
        self.wait_until_serving();
    }

    /// The condition of the daemon's own probe.
    pub(crate) fn wait_until_serving(&self) {
        wait::until("the daemon serves", DEADLINE, || {
            plugins::multus_shim::probe(&self.path("run/multus.sock")).map_err(|error| error.to_string())?;
            if self.conf().exists() {
                Ok(())
            } else {
                Err("no 00-multus.conf".to_owned())
            }
        })
        .unwrap();
    }

    /// Waits for a daemon that ends by itself.
    pub(crate) fn join(&mut self) -> Result<(), Stop> {
        self.running.take().unwrap().thread.join().unwrap().unwrap()
    }

    /// Starts the daemon, watching the pods of `watched`.
    pub(crate) fn launch(&mut self, keys: &Value, watched: &str) {
        let mut config = json!({"cniVersion": "0.3.1", "cniConfigDir": self.path("net.d"),
            "multusAutoconfigDir": self.path("net.d"), "socketDir": self.path("run"),
            "daemonSocketDir": self.path("run"), "cniDir": self.path("cni"), "binDir": self.path("bin"),
            "confDir": self.path("conf"), "kubeletRootDir": self.path("kubelet"),
            "criSocketPath": self.path("cri.sock")});
        config
            .as_object_mut()
            .unwrap()
            .extend(keys.as_object().cloned().unwrap());
        fs::write(self.path("daemon-config.json"), config.to_string()).unwrap();
        let mut config = DaemonConfig::parse(config.to_string().as_bytes()).unwrap();
        config.call_timeout = self.call_timeout;
        config.device_info = DeviceInfo::below(self.path("devinfo"));
        let (kubeconfig, watched) = (self.kubeconfig(), watched.to_owned());
        let own = OwnPod::of_token(&self.token());
        let shutdown = Shutdown::new();
        let ends = shutdown.clone();
        let killed = Shutdown::new();
        let dies = killed.clone();
        let thread = std::thread::spawn(move || {
            let main = async {
                let client = kube_kit::client::client_from("multus", Some(&kubeconfig))
                    .await
                    .unwrap();
                tokio::select! {
                    ended = serve(config, client, Some(&watched), own.as_ref(), ends) => Some(ended),
                    () = dies.wait() => None,
                }
            };
            kube_kit::process::run(main).unwrap()
        });
        self.running = Some(Running {
            shutdown,
            killed,
            thread,
        });
    }

    /// Ends the daemon as `kill -9` does: in the middle of its work. Only running plugins continue.
    pub(crate) fn kill(&mut self) {
        let running = self.running.take().unwrap();
        running.killed.trigger();
        assert!(running.thread.join().unwrap().is_none(), "it ended by itself");
    }

    /// Sends SIGTERM to the daemon, without waiting.
    pub(crate) fn terminate(&self) {
        self.running.as_ref().unwrap().shutdown.trigger();
    }

    /// Ends the daemon and waits for it.
    pub(crate) fn stop(&mut self) -> Result<(), Stop> {
        self.terminate();
        self.join()
    }

    /// A file of the node.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The generated configuration.
    pub(crate) fn conf(&self) -> PathBuf {
        self.path("net.d/00-multus.conf")
    }

    /// The daemon's access to the API server: its service account, and no more.
    pub(crate) fn kubeconfig(&self) -> PathBuf {
        let mut config = api().kubectl().json(["config", "view", "--raw"]).unwrap();
        config["users"][0]["user"] = json!({"token": self.token().trim()});
        let path = self.path("kubeconfig");
        fs::write(&path, config.to_string()).unwrap();
        path
    }

    /// A token of its service account, bound to its pod if it has one.
    fn token(&self) -> String {
        let mut args = vec!["create", "token", "multus", "--namespace", &self.name];
        if let Some(own) = &self.own {
            args.extend(["--bound-object-kind=Pod", "--bound-object-name", own]);
        }
        api().kubectl().run(args).unwrap()
    }

    /// A plugin that records its call. It then waits at its gate or fails if the test requests that, and attaches
    /// otherwise.
    fn plugin(&self, name: &str) {
        let dir = self.dir.path().display();
        let script = format!(
            r#"#!/bin/sh
name=${{0##*/}}
call={dir}/call.$CNI_CONTAINERID.$CNI_COMMAND.$name
cat > $call.json
env > $call.env
echo "$CNI_COMMAND $name $CNI_IFNAME $CNI_CONTAINERID" >> {dir}/calls
[ -p $call.gate ] && read go < $call.gate
[ -f {dir}/fail.$CNI_COMMAND.$name ] && cat {dir}/fail.$CNI_COMMAND.$name && exit 1
[ -f {dir}/stderr.$CNI_COMMAND.$name ] && cat {dir}/stderr.$CNI_COMMAND.$name >&2 && exit 1
[ $CNI_COMMAND = ADD ] || exit 0
case $name in b) last=2 ;; c) last=3 ;; *) last=1 ;; esac
echo '{{"cniVersion":"0.3.1","interfaces":[{{"name":"'$CNI_IFNAME'","mac":"02:00:00:00:00:0'$name'","sandbox":"'$CNI_NETNS'"}}],
  "ips":[{{"version":"4","interface":0,"address":"10.0.0.'$last'/24"}}]}}'
"#
        );
        let path = self.path("bin").join(name);
        fs::write(&path, script).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// All calls of plugins so far: verb, plugin, interface, sandbox.
    pub(crate) fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// The calls for one sandbox: verb and plugin.
    pub(crate) fn calls_of(&self, sandbox: &str) -> Vec<String> {
        let of = |call: &String| {
            let words: Vec<_> = call.split(' ').collect();
            (words[3] == sandbox).then(|| format!("{} {}", words[0], words[1]))
        };
        self.calls().iter().filter_map(of).collect()
    }

    /// The configuration that a plugin was called with.
    pub(crate) fn config_of(&self, sandbox: &str, verb: &str, plugin: &str) -> Value {
        let text = fs::read_to_string(self.path(&format!("call.{sandbox}.{verb}.{plugin}.json"))).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    /// A variable that a plugin was called with.
    pub(crate) fn variable_of(&self, sandbox: &str, verb: &str, plugin: &str, name: &str) -> String {
        let text = fs::read_to_string(self.path(&format!("call.{sandbox}.{verb}.{plugin}.env"))).unwrap();
        let value = text
            .lines()
            .find_map(|line| line.strip_prefix(&format!("{name}=")));
        value.unwrap_or_else(|| panic!("{name} not in {text}")).to_owned()
    }

    /// Makes a plugin wait when it is called.
    pub(crate) fn gate(&self, sandbox: &str, verb: &str, plugin: &str) -> Gate {
        let path = self.path(&format!("call.{sandbox}.{verb}.{plugin}.gate"));
        assert!(Command::new("mkfifo").arg(&path).status().unwrap().success());
        Gate(path)
    }

    /// A NAD in the node's namespace.
    pub(crate) fn nad(&self, name: &str, config: &Value) {
        self.annotated_nad(name, config, &json!({}));
    }

    /// A NAD of networks that need a device of a resource.
    pub(crate) fn device_nad(&self, name: &str, resource: &str, config: &Value) {
        self.annotated_nad(
            name,
            config,
            &json!({"k8s.v1.cni.cncf.io/resourceName": resource}),
        );
    }

    fn annotated_nad(&self, name: &str, config: &Value, annotations: &Value) {
        let nad = json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": name, "namespace": self.name, "annotations": annotations},
            "spec": {"config": config.to_string()}});
        api().kubectl().apply(&nad.to_string()).unwrap();
    }

    /// A pod on this node. Returns its UID.
    pub(crate) fn pod(&self, name: &str, annotations: &Value) -> String {
        let pod = json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": self.name, "annotations": annotations, "labels": {"app": "test"}},
            "spec": {"nodeName": self.name, "containers": [{"name": "c", "image": "none"}],
                "terminationGracePeriodSeconds": 0}});
        api().kubectl().apply(&pod.to_string()).unwrap();
        self.get_pod(name)["metadata"]["uid"].as_str().unwrap().to_owned()
    }

    /// The pod as it is now.
    pub(crate) fn get_pod(&self, name: &str) -> Value {
        api()
            .kubectl()
            .get(["pod", name, "--namespace", &self.name])
            .unwrap()
            .expect("a pod")
    }

    /// The network status of a pod.
    pub(crate) fn status(&self, pod: &str) -> Option<Value> {
        let pod = self.get_pod(pod);
        let text = pod["metadata"]["annotations"]["k8s.v1.cni.cncf.io/network-status"].as_str()?;
        Some(serde_json::from_str(text).unwrap())
    }

    /// Waits for an event about a pod.
    pub(crate) fn event(&self, pod: &str, reason: &str) -> String {
        let kind = if reason == "AddedInterface" {
            "Normal"
        } else {
            "Warning"
        };
        let selector = format!("involvedObject.name={pod},reason={reason},type={kind}");
        let args = [
            "get",
            "events",
            "--namespace",
            &self.name,
            "--field-selector",
            &selector,
        ];
        wait::until("the event", DEADLINE, || {
            let events = api().kubectl().json(args).map_err(|error| error.to_string())?;
            let found = events["items"][0]["message"].as_str().map(str::to_owned);
            found.ok_or_else(|| format!("no {reason} about {pod}"))
        })
        .unwrap()
    }

    /// Calls the shim as a runtime does, with the configuration that lies in the directory.
    pub(crate) fn call(&self, verb: &str, sandbox: &Sandbox) -> Output {
        self.begin(verb, sandbox).wait_with_output().unwrap()
    }

    /// Like [`Node::call`], without waiting for the end.
    pub(crate) fn begin(&self, verb: &str, sandbox: &Sandbox) -> Child {
        let conf = fs::read_to_string(self.conf()).unwrap();
        self.begin_with(&self.path("bin/multus-shim"), verb, sandbox, &conf)
    }

    /// Calls a plugin as a runtime does, with any configuration.
    pub(crate) fn begin_with(&self, plugin: &Path, verb: &str, sandbox: &Sandbox, conf: &str) -> Child {
        let mut conf: Value = serde_json::from_str(conf).unwrap();
        if let Some(version) = &sandbox.version {
            conf["cniVersion"] = json!(version);
        }
        if let Some(valid) = &sandbox.valid {
            conf["cni.dev/valid-attachments"] = valid.clone();
        }
        let keys = sandbox.keys.as_object().into_iter().flatten();
        conf.as_object_mut()
            .unwrap()
            .extend(keys.map(|(key, value)| (key.clone(), value.clone())));
        let mut shim = Command::new(plugin);
        shim.env("CNI_COMMAND", verb)
            .env("CNI_PATH", self.path("bin"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        if !matches!(verb, "STATUS" | "GC") {
            shim.env("CNI_CONTAINERID", &sandbox.id)
                .env("CNI_NETNS", &sandbox.netns)
                .env("CNI_IFNAME", "eth0")
                .env("CNI_ARGS", &sandbox.args);
        }
        let mut child = shim.spawn().unwrap();
        child
            .stdin
            .take()
            .unwrap()
            .write_all(conf.to_string().as_bytes())
            .unwrap();
        child
    }

    /// Calls and expects success; the result.
    pub(crate) fn succeed(&self, verb: &str, sandbox: &Sandbox) -> Value {
        let output = self.call(verb, sandbox);
        assert!(output.status.success(), "{verb} failed: {}", text(&output));
        serde_json::from_slice(&output.stdout).unwrap_or_default()
    }

    /// Calls, expects an error, and returns it.
    pub(crate) fn fail(&self, verb: &str, sandbox: &Sandbox) -> Value {
        let output = self.call(verb, sandbox);
        assert!(!output.status.success(), "{verb} succeeded: {}", text(&output));
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Posts a call to the daemon, as a shim without fall-backs would, and returns the answer's status.
    pub(crate) fn post(&self, verb: &str, sandbox: &Sandbox) -> u16 {
        use base64::Engine as _;
        let env = json!({"CNI_COMMAND": verb, "CNI_CONTAINERID": sandbox.id, "CNI_NETNS": sandbox.netns,
            "CNI_IFNAME": "eth0", "CNI_ARGS": sandbox.args});
        let conf = base64::engine::general_purpose::STANDARD.encode(fs::read(self.conf()).unwrap());
        let body = json!({"env": env, "config": conf}).to_string();
        let mut stream = UnixStream::connect(self.path("run/multus.sock")).unwrap();
        write!(
            stream,
            "POST /cni HTTP/1.1\r\nHost: dummy\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split(' ').nth(1).unwrap().parse().unwrap()
    }

    /// Waits until a condition holds.
    pub(crate) fn wait(&self, what: &str, is_so: impl Fn() -> bool) {
        wait::until(what, DEADLINE, || {
            if is_so() {
                Ok(())
            } else {
                Err(format!("{:?}", self.calls()))
            }
        })
        .unwrap();
    }

    /// Number of connections to the daemon that it has not closed.
    pub(crate) fn connections(&self) -> usize {
        const CONNECTED: &str = "03";
        // The daemon binds the socket under another name.
        let run = self.path("run");
        let all = fs::read_to_string("/proc/net/unix").unwrap();
        let ours = all.lines().filter(|line| {
            let mut fields = line.split_whitespace();
            fields.nth(5) == Some(CONNECTED)
                && fields
                    .nth(1)
                    .is_some_and(|path| Path::new(path).parent() == Some(&run))
        });
        ours.count()
    }

    /// The files in a directory of the node, sorted; none where there is no directory.
    pub(crate) fn files(&self, dir: &str) -> Vec<String> {
        let Ok(files) = fs::read_dir(self.path(dir)) else {
            return Vec::new();
        };
        let mut names: Vec<_> = files
            .map(|file| file.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    /// A sandbox for a pod of this node.
    pub(crate) fn sandbox(&self, id: &str, pod: &str, uid: Option<&str>) -> Sandbox {
        let uid = uid.map(|uid| format!(";K8S_POD_UID={uid}")).unwrap_or_default();
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={};K8S_POD_NAME={pod};K8S_POD_INFRA_CONTAINER_ID={id}{uid}",
            self.name
        );
        let held = NetNs::create_anonymous().unwrap();
        let netns = format!("/proc/{}/fd/{}", std::process::id(), held.as_fd().as_raw_fd());
        Sandbox {
            id: id.to_owned(),
            args,
            netns,
            version: None,
            valid: None,
            keys: Value::Null,
            _held: held,
        }
    }

    /// A sandbox whose namespace exists until [`Node::lose`].
    pub(crate) fn losable(&self, id: &str, pod: &str, uid: &str) -> Sandbox {
        let mut sandbox = self.sandbox(id, pod, Some(uid));
        let path = self.path(&format!("netns.{id}"));
        symlink(&sandbox.netns, &path).unwrap();
        sandbox.netns = path.display().to_string();
        sandbox
    }

    /// Deletes the namespace of a sandbox.
    pub(crate) fn lose(&self, id: &str) {
        fs::remove_file(self.path(&format!("netns.{id}"))).unwrap();
    }

    /// Waits until a plugin was called for a sandbox.
    pub(crate) fn called(&self, sandbox: &str, what: &str) {
        wait::until(&format!("{what} of {sandbox}"), DEADLINE, || {
            let calls = self.calls_of(sandbox);
            if calls.iter().any(|call| call == what) {
                Ok(())
            } else {
                Err(format!("{calls:?}"))
            }
        })
        .unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(running) = self.running.take() {
            running.shutdown.trigger();
            let _ = running.thread.join();
        }
    }
}

/// A sandbox with a network namespace of its own.
pub(crate) struct Sandbox {
    pub(crate) id: String,
    pub(crate) args: String,
    pub(crate) netns: String,
    /// CNI version of the runtime's configuration, if not the daemon's.
    pub(crate) version: Option<String>,
    /// The runtime's list of attachments in use, if it sends one.
    pub(crate) valid: Option<Value>,
    /// More keys of the runtime's configuration.
    pub(crate) keys: Value,
    _held: NetNs,
}

/// Where a plugin waits.
pub(crate) struct Gate(PathBuf);

impl Gate {
    /// Lets the plugin continue. Waits until it is at the gate.
    pub(crate) fn open(self) {
        fs::write(&self.0, "go\n").unwrap();
    }
}

/// The program of all daemons of this build.
pub(crate) fn weft() -> &'static Path {
    static WEFT: OnceLock<PathBuf> = OnceLock::new();
    WEFT.get_or_init(|| built::program("weft", "weft"))
}

/// The output of a process.
pub(crate) fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

impl Node {
    /// A root directory with a shell, and a plugin `a` that can only work inside of it.
    pub(crate) fn populate_root(&self, root: &Path) {
        let plugin = self.path("bin/a");
        fs::write(&plugin, "#!/bin/sh\npwd > /marker\necho no luck >&2\nexit 1\n").unwrap();
        let listed = Command::new("ldd").arg("/bin/sh").output().unwrap();
        let libraries = String::from_utf8(listed.stdout).unwrap();
        let libraries = libraries.split_whitespace().filter(|word| word.starts_with('/'));
        for file in libraries.chain(["/bin/sh", plugin.to_str().unwrap()]) {
            let target = root.join(file.trim_start_matches('/'));
            fs::create_dir_all(target.parent().unwrap()).unwrap();
            fs::copy(file, target).unwrap();
        }
    }
}
