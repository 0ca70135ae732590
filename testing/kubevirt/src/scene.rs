//! Two virtual machines of `examples/virtual-machines.yaml`: one migrates to another node while the other pings it by
//! name.
//!
//! No guest boots. The interface of a machine's pod has the machine's MAC and address, and answers for the guest. A
//! container in beta's pod pings for beta.

use std::path::Path;
use std::time::Duration;

use cluster::{Cluster, Kubectl, Progress, run, wait};
use serde_json::{Value, json};

use crate::error::Result;

/// Names of the machines. The first one migrates.
pub const MACHINES: [&str; 2] = ["alpha", "beta"];
/// Their network.
pub const NETWORK: &str = "lan";
/// Their namespace.
const NAMESPACE: &str = "default";
/// Generous, because machines differ by a factor of ten.
const TIMEOUT: Duration = Duration::from_mins(5);
/// Number of answers before the migration, and after it.
const ANSWERS: usize = 10;
/// The container that pings.
const PINGER: &str = "guest";
/// Resolves the name and pings its address, for some minutes. Its arguments are the name and the name server.
const PING: &str = r#"
trap exit TERM
for i in $(seq 1500); do
  address=$(nslookup -type=a "$0" "$1" 2>/dev/null | awk '/^Address/ { found = $NF } END { print found }')
  if ping -c 1 -W 1 "$address" >/dev/null 2>&1; then echo "answer $address"; else echo "silence $address"; fi
  sleep 0.1
done"#;

/// A virtual machine on its network.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// Name of the machine.
    pub name: &'static str,
    /// The node of its pod.
    pub node: String,
    /// The MAC address, assigned by the MAC pool.
    pub mac: String,
    /// The IP address in its `IPAMClaim`.
    pub address: String,
}

impl Machine {
    /// Returns the DNS name of its interface in the secondary DNS.
    pub fn domain(&self) -> String {
        format!("{NETWORK}.{}.{NAMESPACE}.vm", self.name)
    }
}

/// The result of the scene.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Story {
    /// The machines before the migration.
    pub before: [Machine; 2],
    /// The machines after the migration.
    pub after: [Machine; 2],
    /// Pings from before until after the migration.
    pub pings: Pings,
}

/// Results of pings by name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pings {
    /// Answering addresses, in order.
    pub answers: Vec<String>,
    /// Number of pings without an answer.
    pub silent: usize,
}

impl Pings {
    fn read(log: &str) -> Self {
        let mut pings = Self::default();
        for line in log.lines() {
            match line.split_once(' ') {
                Some(("answer", address)) => pings.answers.push(address.to_owned()),
                Some(("silence", _)) => pings.silent += 1,
                _ => {}
            }
        }
        pings
    }
}

/// Creates the machines of a file, and migrates the first one. The cluster needs KubeVirt, the components for virtual
/// machines, and the bridge of the file's network on each node.
///
/// # Errors
/// If a step fails or times out.
pub fn play(cluster: &Cluster, file: &Path, progress: &mut dyn Progress) -> Result<Story> {
    let scene = Scene {
        kubectl: cluster.kubectl(),
    };
    progress.step("creating two virtual machines and their network: examples/virtual-machines.yaml");
    scene.kubectl.apply_file(file)?;
    progress.step("waiting until both run");
    let before = scene.machines()?;
    progress.step("pinging alpha from beta, by name");
    let pod = scene.pod("beta")?;
    scene.ping(&pod, &before[0].domain())?;
    scene.answers(&pod, ANSWERS)?;
    progress.step("migrating alpha to the other node");
    scene.migrate("alpha")?;
    let answered = scene.pings(&pod)?.answers.len();
    progress.step("pinging again");
    scene.answers(&pod, answered + ANSWERS)?;
    Ok(Story {
        before,
        after: scene.machines()?,
        pings: scene.pings(&pod)?,
    })
}

struct Scene {
    kubectl: Kubectl,
}

impl Scene {
    fn get(&self, kind: &str, name: &str) -> Result<Value> {
        Ok(self
            .kubectl
            .get(["--namespace", NAMESPACE, kind, name])?
            .unwrap_or_default())
    }

    fn machines(&self) -> Result<[Machine; 2]> {
        let [one, other] = MACHINES.map(|name| {
            wait::until(&format!("{name} runs, with MAC and address"), TIMEOUT, || {
                self.machine(name).map_err(|error| error.to_string())?
            })
        });
        Ok([one?, other?])
    }

    /// Returns the machine, or the reason why it is incomplete.
    fn machine(&self, name: &'static str) -> Result<std::result::Result<Machine, String>> {
        let instance = self.get("vmi", name)?;
        let object = self.get("vm", name)?;
        let claim = self.get("ipamclaim", &format!("{name}.{NETWORK}"))?;
        Ok(machine(name, &object, &instance, &claim))
    }

    /// Returns the running pod of a machine.
    fn pod(&self, machine: &str) -> Result<String> {
        let of_machine = format!("vm.kubevirt.io/name={machine}");
        let args = ["--namespace", NAMESPACE, "get", "pods", "--selector", &of_machine];
        let phase = "--field-selector=status.phase=Running";
        wait::until(&format!("the pod of {machine}"), TIMEOUT, || {
            let list = self.kubectl.json(args.iter().chain([&phase]));
            let list = list.map_err(|error| error.to_string())?;
            let name = list["items"][0]["metadata"]["name"].as_str();
            name.map(str::to_owned).ok_or_else(|| "none runs".to_owned())
        })
        .map_err(Into::into)
    }

    /// Adds the pinging container to a pod, unless an earlier run did.
    fn ping(&self, pod: &str, domain: &str) -> Result<()> {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/pods/{pod}/ephemeralcontainers");
        let service = [
            "--namespace",
            "cluster-network-addons",
            "service",
            "secondary-dns",
        ];
        let service = self.kubectl.get(service)?.unwrap_or_default();
        let server = service["spec"]["clusterIP"].clone();
        wait::until("a container in the pod of beta", TIMEOUT, || {
            let mut object = self.get("pod", pod).map_err(|error| error.to_string())?;
            let containers = object["spec"]["ephemeralContainers"].as_array();
            let mut containers = containers.cloned().unwrap_or_default();
            if !containers.is_empty() {
                return Ok(());
            }
            containers.push(json!({
                "name": PINGER, "image": "localhost/busybox:weft", "imagePullPolicy": "IfNotPresent",
                "command": ["sh", "-c", PING, domain, server],
                "securityContext": { "runAsUser": 0, "runAsNonRoot": false, "capabilities": { "add": ["NET_RAW"] } },
            }));
            object["spec"]["ephemeralContainers"] = Value::Array(containers);
            let mut replace = self
                .kubectl
                .command(["replace", "--raw", &path, "--filename", "-"]);
            let replaced = run::output_with_input(&mut replace, object.to_string().as_bytes());
            replaced.map(drop).map_err(|error| error.to_string())
        })?;
        Ok(())
    }

    fn pings(&self, pod: &str) -> Result<Pings> {
        let log = ["--namespace", NAMESPACE, "logs", pod, "--container", PINGER];
        Ok(Pings::read(&self.kubectl.run(log)?))
    }

    /// Waits for so many answers in all.
    fn answers(&self, pod: &str, wanted: usize) -> Result<()> {
        wait::until(&format!("{wanted} answers of alpha"), TIMEOUT, || {
            let pings = self.pings(pod).map_err(|error| error.to_string())?;
            if pings.answers.len() >= wanted {
                Ok(())
            } else {
                Err(format!(
                    "{} answers, and {} pings without one",
                    pings.answers.len(),
                    pings.silent
                ))
            }
        })?;
        Ok(())
    }

    /// Has a machine move, and waits until nothing of it is left on the former node.
    fn migrate(&self, machine: &str) -> Result<()> {
        let migration = json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
            "metadata": { "generateName": "demo-", "namespace": NAMESPACE }, "spec": { "vmiName": machine },
        });
        let mut create = self
            .kubectl
            .command(["create", "--filename", "-", "--output", "name"]);
        let name = run::output_with_input(&mut create, migration.to_string().as_bytes())?;
        let name = name.trim().rsplit('/').next().unwrap_or_default().to_owned();
        wait::until("the migration of alpha", TIMEOUT, || {
            let migration = self.get("vmim", &name).map_err(|error| error.to_string())?;
            match migration["status"]["phase"].as_str() {
                Some("Succeeded") => Ok(()),
                phase => Err(format!("the migration is {}", phase.unwrap_or("new"))),
            }
        })?;
        let of_machine = format!("vm.kubevirt.io/name={machine}");
        let args = ["--namespace", NAMESPACE, "get", "pods", "--selector", &of_machine];
        let phase = "--field-selector=status.phase=Running";
        wait::until("the end of alpha's former pod", TIMEOUT, || {
            let list = self.kubectl.json(args.iter().chain([&phase]));
            let list = list.map_err(|error| error.to_string())?;
            match list["items"].as_array().map(Vec::len) {
                Some(1) => Ok(()),
                pods => Err(format!("{} run", pods.unwrap_or_default())),
            }
        })?;
        Ok(())
    }
}

/// Returns a machine from its objects, or the missing part.
fn machine(
    name: &'static str,
    object: &Value,
    instance: &Value,
    claim: &Value,
) -> std::result::Result<Machine, String> {
    let phase = instance["status"]["phase"].as_str().unwrap_or("absent");
    if phase != "Running" {
        return Err(format!("the instance of {name} is {phase}"));
    }
    let interfaces = object["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"].as_array();
    let mut interfaces = interfaces.into_iter().flatten();
    let interface = interfaces.find(|interface| interface["name"] == NETWORK);
    let mac = interface.and_then(|interface| interface["macAddress"].as_str());
    let address = claim["status"]["ips"][0].as_str();
    let address = address.and_then(|address| address.split('/').next());
    Ok(Machine {
        name,
        node: instance["status"]["nodeName"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        mac: mac.ok_or_else(|| format!("{name} has no MAC"))?.to_owned(),
        address: address
            .ok_or_else(|| format!("{name} has no address"))?
            .to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pings_log_with_both_outcomes_is_counted() {
        let pings = Pings::read("answer 10.84.0.50\nsilence 10.96.0.9:53\n\nanswer 10.84.0.50\nanswe");
        assert_eq!(pings.answers, ["10.84.0.50"; 2]);
        assert_eq!(pings.silent, 1);
    }

    #[test]
    fn machine_is_complete_with_mac_and_address() {
        let object = json!({ "spec": { "template": { "spec": { "domain": { "devices": { "interfaces": [
            { "name": "default", "macAddress": "02:00:00:00:00:01" },
            { "name": "lan", "macAddress": "02:00:00:00:00:02" },
        ] } } } } } });
        let instance = json!({ "status": { "phase": "Running", "nodeName": "node01" } });
        let claim = json!({ "status": { "ips": ["10.84.0.50/24"] } });
        let whole = machine("alpha", &object, &instance, &claim).unwrap();
        assert_eq!(
            (whole.mac.as_str(), whole.address.as_str()),
            ("02:00:00:00:00:02", "10.84.0.50")
        );
        assert_eq!(whole.domain(), "lan.alpha.default.vm");
        let nothing = Value::Null;
        for (object, instance, claim, missing) in [
            (&object, &nothing, &claim, "the instance of alpha is absent"),
            (&nothing, &instance, &claim, "alpha has no MAC"),
            (&object, &instance, &nothing, "alpha has no address"),
        ] {
            assert_eq!(machine("alpha", object, instance, claim).unwrap_err(), missing);
        }
    }
}
