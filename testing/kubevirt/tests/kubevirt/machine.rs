//! A virtual machine of a test, and what becomes of it.

use serde_json::{Value, json};

use crate::stage::Stage;

/// Annotation of a pod: what multus is to plug into it, and what it has plugged in.
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const NETWORK_STATUS: &str = "k8s.v1.cni.cncf.io/network-status";

/// A virtual machine with an interface on the pod network and one on each of some secondary networks.
pub struct Machine<'a> {
    stage: &'a Stage,
    name: &'static str,
}

/// A launcher pod.
#[derive(Debug, Clone)]
pub struct Launcher(pub Value);

impl<'a> Machine<'a> {
    /// Creates it, to run always.
    pub fn create(stage: &'a Stage, name: &'static str, secondary: &[&str]) -> Self {
        let mut interfaces = vec![json!({ "name": "default", "masquerade": {} })];
        let mut networks = vec![json!({ "name": "default", "pod": {} })];
        for network in secondary {
            interfaces.push(interface(network));
            networks.push(multus(network));
        }
        stage.apply(&definition(name, &interfaces, &networks));
        Self { stage, name }
    }

    /// Creates it, and waits until it runs.
    pub fn running(stage: &'a Stage, name: &'static str, secondary: &[&str]) -> Self {
        let machine = Self::create(stage, name, secondary);
        machine.wait_until_running(None);
        machine
    }

    /// The warnings to a user who creates another VM with the same addresses. None is created.
    pub fn warnings_about_another(&self, macs: &[(String, String)]) -> String {
        let with_address = |(name, mac): &(String, String)| {
            let kind = if name == "default" { "masquerade" } else { "bridge" };
            json!({ "name": name, kind: {}, "macAddress": mac })
        };
        let interfaces: Vec<Value> = macs.iter().map(with_address).collect();
        let network = |(name, _): &(String, String)| match name.as_str() {
            "default" => json!({ "name": name, "pod": {} }),
            name => multus(name),
        };
        let networks: Vec<Value> = macs.iter().map(network).collect();
        self.stage
            .warnings(&definition("another", &interfaces, &networks))
    }

    /// Waits until it runs, in another instance than that of this UID.
    pub fn wait_until_running(&self, but: Option<&str>) -> Value {
        self.stage.wait(&format!("VM {} runs", self.name), || {
            let instance = self.instance()?;
            let other = but.is_none_or(|uid| instance["metadata"]["uid"] != uid);
            let runs = instance["status"]["phase"] == "Running" && cluster::is_ready(&instance);
            (other && runs && self.object()["status"]["printableStatus"] == "Running").then_some(instance)
        })
    }

    pub fn object(&self) -> Value {
        self.stage.get("vm", self.name).expect("the VM")
    }

    pub fn instance(&self) -> Option<Value> {
        self.stage.get("vmi", self.name)
    }

    /// MAC of each interface in the VM.
    pub fn macs(&self) -> Vec<(String, String)> {
        let object = self.object();
        macs(
            &object["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"],
            "macAddress",
        )
    }

    /// MAC of each interface of the guest, from the instance's status.
    pub fn guest_macs(&self) -> Vec<(String, String)> {
        let instance = self.instance().unwrap_or_default();
        let mut macs = macs(&instance["status"]["interfaces"], "mac");
        macs.sort();
        macs
    }

    /// The launcher pods, whatever has become of them.
    pub fn launchers(&self) -> Vec<Launcher> {
        let mut pods = self.stage.list("pods");
        pods.retain(|pod| pod["metadata"]["labels"]["vm.kubevirt.io/name"] == self.name);
        pods.into_iter().map(Launcher).collect()
    }

    /// The launcher pod that runs on the instance's node.
    pub fn launcher(&self) -> Launcher {
        self.stage.wait(&format!("VM {} has a launcher", self.name), || {
            let node = self.instance()?["status"]["nodeName"].clone();
            let mut launchers = self.launchers();
            launchers
                .retain(|launcher| launcher.0["spec"]["nodeName"] == node && launcher.phase() == "Running");
            launchers.pop()
        })
    }

    /// Changes the VM by a JSON patch of its template's specification: (operation, path, value).
    pub fn patch(&self, changes: &[(&str, &str, Value)]) {
        let changes: Vec<Value> = changes
            .iter()
            .map(|(op, path, value)| json!({ "op": op, "path": format!("/spec/template/spec{path}"), "value": value }))
            .collect();
        let patch = json!(changes).to_string();
        self.stage
            .run(&["patch", "vm", self.name, "--type=json", "--patch", &patch]);
    }

    /// Plugs in an interface while the guest runs.
    pub fn plug(&self, network: &str) {
        self.patch(&[
            ("add", "/networks/-", multus(network)),
            ("add", "/domain/devices/interfaces/-", interface(network)),
        ]);
    }

    /// Unplugs an interface while the guest runs.
    pub fn unplug(&self, network: &str) {
        let place = self
            .macs()
            .iter()
            .position(|(name, _)| name == network)
            .expect("the interface");
        let path = format!("/domain/devices/interfaces/{place}/state");
        self.patch(&[("add", &path, json!("absent"))]);
    }

    /// The instance's status of an interface.
    pub fn guest_interface(&self, name: &str) -> Option<Value> {
        let instance = self.instance()?;
        let mut interfaces = instance["status"]["interfaces"].as_array()?.iter();
        interfaces.find(|interface| interface["name"] == name).cloned()
    }

    /// Asks virt-api for a restart, by way of the API server.
    pub fn restart(&self) {
        let path = format!(
            "/apis/subresources.kubevirt.io/v1/namespaces/{}/virtualmachines/{}/restart",
            self.stage.namespace, self.name
        );
        self.stage.send("replace", &path, &json!({})).unwrap();
    }

    /// Migrates the guest to another node, and waits for the end of the migration.
    pub fn migrate(&self) {
        self.stage.apply(&json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
            "metadata": { "name": "move" }, "spec": { "vmiName": self.name },
        }));
        self.stage.wait_for("the migration succeeds", || {
            let migration = self.stage.get("vmim", "move").unwrap_or_default();
            match migration["status"]["phase"].as_str() {
                Some("Succeeded") => Ok(()),
                phase => Err(format!("{phase:?}")),
            }
        });
    }
}

impl Launcher {
    pub fn name(&self) -> &str {
        self.0["metadata"]["name"].as_str().unwrap_or_default()
    }

    pub fn node(&self) -> &str {
        self.0["spec"]["nodeName"].as_str().unwrap_or_default()
    }

    pub fn phase(&self) -> &str {
        self.0["status"]["phase"].as_str().unwrap_or_default()
    }

    /// KubeVirt's requests to multus: (network, MAC, interface of the pod).
    pub fn requested(&self) -> Vec<[String; 3]> {
        self.elements(NETWORKS, ["name", "mac", "interface"])
    }

    /// The attachments of multus beside the pod network: (network without its namespace, MAC, interface of the pod).
    pub fn plugged(&self) -> Vec<[String; 3]> {
        let mut all = self.elements(NETWORK_STATUS, ["name", "mac", "interface"]);
        all.retain(|[_, _, interface]| interface != "eth0");
        for [name, _, _] in &mut all {
            *name = name.rsplit('/').next().unwrap_or_default().to_owned();
        }
        all
    }

    /// Addresses that multus has given to the interface of a network.
    pub fn addresses(&self, network: &str) -> Vec<String> {
        let text = self.0["metadata"]["annotations"][NETWORK_STATUS].as_str();
        let entries: Vec<Value> = serde_json::from_str(text.unwrap_or("[]")).unwrap();
        let is_of = |entry: &&Value| {
            let name = entry["name"].as_str().unwrap_or_default();
            name.rsplit('/').next() == Some(network)
        };
        let entry = entries.iter().find(is_of).cloned().unwrap_or_default();
        let addresses = entry["ips"].as_array().into_iter().flatten();
        addresses
            .filter_map(|address| address.as_str().map(str::to_owned))
            .collect()
    }

    fn elements(&self, annotation: &str, fields: [&str; 3]) -> Vec<[String; 3]> {
        let text = self.0["metadata"]["annotations"][annotation]
            .as_str()
            .unwrap_or("[]");
        let elements: Vec<Value> = serde_json::from_str(text).unwrap();
        let mut all: Vec<_> = elements
            .iter()
            .map(|element| fields.map(|field| element[field].as_str().unwrap_or_default().to_owned()))
            .collect();
        all.sort();
        all
    }
}

fn definition(name: &str, interfaces: &[Value], networks: &[Value]) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": { "name": name },
        "spec": { "runStrategy": "Always", "template": { "spec": {
            "evictionStrategy": "LiveMigrate",
            "terminationGracePeriodSeconds": 0,
            "domain": { "memory": { "guest": "64Mi" }, "devices": { "interfaces": interfaces } },
            "networks": networks,
        } } },
    })
}

fn interface(network: &str) -> Value {
    json!({ "name": network, "bridge": {} })
}

fn multus(network: &str) -> Value {
    json!({ "name": network, "multus": { "networkName": network } })
}

/// Name and MAC of each interface of a list.
fn macs(interfaces: &Value, field: &str) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let interfaces = interfaces.as_array().into_iter().flatten();
    interfaces
        .map(|interface| (text(&interface["name"]), text(&interface[field])))
        .collect()
}
