//! The steps that complete the pods of a workload, and their containers.

use api::placement::Placement;
use serde_json::{Map, Value, json};

use super::{Error, Manifest, object_at};
use crate::images::Image;

/// Pods of a workload: its pod template.
pub struct Pods<'a> {
    pub(super) object: String,
    pub(super) template: &'a mut Map<String, Value>,
}

impl Pods<'_> {
    fn missing(&self, part: impl Into<String>) -> Error {
        Error::Missing {
            object: self.object.clone(),
            part: part.into(),
        }
    }

    fn spec(&mut self) -> Result<&mut Map<String, Value>, Error> {
        let missing = self.missing("pod specification");
        self.template
            .get_mut("spec")
            .and_then(Value::as_object_mut)
            .ok_or(missing)
    }

    /// Labels of the pods.
    pub fn labels_mut(&mut self) -> Result<&mut Map<String, Value>, Error> {
        let missing = self.missing("labels");
        let metadata = object_at(self.template, "metadata");
        metadata
            .and_then(|metadata| object_at(metadata, "labels"))
            .ok_or(missing)
    }

    /// Adds an annotation.
    pub fn annotate(&mut self, key: &str, value: &str) -> Result<(), Error> {
        let missing = self.missing("annotations");
        let metadata = object_at(self.template, "metadata");
        let annotations = metadata
            .and_then(|metadata| object_at(metadata, "annotations"))
            .ok_or(missing)?;
        annotations.insert(key.to_owned(), json!(value));
        Ok(())
    }

    /// Takes an annotation away.
    pub fn without_annotation(&mut self, key: &str) {
        let annotations = self.template.get_mut("metadata");
        let annotations = annotations.and_then(|metadata| metadata.get_mut("annotations"));
        if let Some(Value::Object(annotations)) = annotations {
            annotations.shift_remove(key);
        }
    }

    /// Sets any member of the pods' specification.
    pub fn set(&mut self, key: &str, value: Value) -> Result<(), Error> {
        self.spec()?.insert(key.to_owned(), value);
        Ok(())
    }

    /// Takes a member of the pods' specification away.
    pub fn without(&mut self, key: &str) -> Result<(), Error> {
        self.spec()?.shift_remove(key);
        Ok(())
    }

    /// Runs the pods under a service account.
    pub fn service_account(&mut self, name: &str) -> Result<(), Error> {
        self.spec()?.insert("serviceAccountName".into(), json!(name));
        Ok(())
    }

    /// Replaces the scheduling constraints of the pods. What is empty is left out, as the API server
    /// stores it, but for the affinity.
    pub fn place(&mut self, placement: &Placement) -> Result<(), Error> {
        let placement = Manifest::of("Placement", placement)?.into_value();
        let spec = self.spec()?;
        for key in ["nodeSelector", "affinity", "tolerations"] {
            match placement.get(key) {
                Some(value) => spec.insert(key.to_owned(), value.clone()),
                None => spec.shift_remove(key),
            };
        }
        Ok(())
    }

    /// Has the pods prefer nodes where none of them is, unless their placement says how they are to be spread.
    pub fn spread(&mut self, labels: &Value) -> Result<(), Error> {
        let affinity = self.spec()?.entry("affinity").or_insert_with(|| json!({}));
        let term = json!({
            "weight": 100,
            "podAffinityTerm": {
                "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": labels },
            },
        });
        if let Some(affinity) = affinity.as_object_mut() {
            affinity
                .entry("podAntiAffinity")
                .or_insert_with(|| json!({ "preferredDuringSchedulingIgnoredDuringExecution": [term] }));
        }
        Ok(())
    }

    /// Leaves the user of the pods to the security context constraints.
    pub fn without_user(&mut self) -> Result<(), Error> {
        let context = self.security_context()?;
        context.shift_remove("runAsNonRoot");
        context.shift_remove("runAsUser");
        Ok(())
    }

    fn security_context(&mut self) -> Result<&mut Map<String, Value>, Error> {
        let missing = self.missing("security context");
        let context = self.spec()?.get_mut("securityContext");
        context.and_then(Value::as_object_mut).ok_or(missing)
    }

    /// Sets the path on the host of a volume.
    pub fn host_path(&mut self, volume: &str, path: &str) -> Result<(), Error> {
        let missing = self.missing(format!("host path of volume {volume}"));
        let host_path = self.volume(volume)?.get_mut("hostPath");
        let slot = host_path.and_then(|host_path| host_path.get_mut("path"));
        *slot.ok_or(missing)? = json!(path);
        Ok(())
    }

    fn volume(&mut self, name: &str) -> Result<&mut Map<String, Value>, Error> {
        let missing = self.missing(format!("volume {name}"));
        let volumes = self.spec()?.get_mut("volumes").and_then(Value::as_array_mut);
        let found = volumes
            .into_iter()
            .flatten()
            .find(|volume| volume["name"] == name);
        found.and_then(Value::as_object_mut).ok_or(missing)
    }

    /// Sets which Secret is in a volume.
    pub fn secret(&mut self, volume: &str, name: &str) -> Result<(), Error> {
        let missing = self.missing(format!("Secret of volume {volume}"));
        let secret = self.volume(volume)?.get_mut("secret");
        let slot = secret.and_then(|secret| secret.get_mut("secretName"));
        *slot.ok_or(missing)? = json!(name);
        Ok(())
    }

    /// Sets the user that all containers run as.
    pub fn run_as_user(&mut self, user: u32) -> Result<(), Error> {
        self.security_context()?.insert("runAsUser".into(), json!(user));
        Ok(())
    }

    /// Turns a volume of a file on the host into one of a directory that has to be there.
    pub fn host_directory(&mut self, volume: &str, path: &str) -> Result<(), Error> {
        let found = self.volume(volume)?;
        found.insert("hostPath".into(), json!({ "path": path, "type": "Directory" }));
        Ok(())
    }

    /// Adds a volume: a directory of the host.
    pub fn add_host_path(&mut self, volume: &str, path: &str) -> Result<(), Error> {
        self.add_volume(json!({ "name": volume, "hostPath": { "path": path } }))
    }

    /// Adds a volume: a directory that begins empty and ends with the pod.
    pub fn add_empty_dir(&mut self, volume: &str) -> Result<(), Error> {
        self.add_volume(json!({ "name": volume, "emptyDir": {} }))
    }

    /// Adds a container after those that are there.
    pub fn add_container(&mut self, container: Value) -> Result<(), Error> {
        let missing = self.missing("containers");
        let containers = self.spec()?.get_mut("containers").and_then(Value::as_array_mut);
        containers.ok_or(missing)?.push(container);
        Ok(())
    }

    fn add_volume(&mut self, volume: Value) -> Result<(), Error> {
        let missing = self.missing("volumes");
        let volumes = self.spec()?.get_mut("volumes").and_then(Value::as_array_mut);
        volumes.ok_or(missing)?.push(volume);
        Ok(())
    }

    /// Gives the pods no token: their programs do not talk to the API server.
    pub fn without_token(&mut self) -> Result<(), Error> {
        self.set("automountServiceAccountToken", json!(false))
    }

    /// A container, or an init container.
    pub fn container(&mut self, name: &str) -> Result<Container<'_>, Error> {
        let missing = self.missing(format!("container {name}"));
        let spec = self.spec()?;
        let mut found = None;
        for (key, list) in spec.iter_mut() {
            if key == "containers" || key == "initContainers" {
                let named = list
                    .as_array_mut()
                    .into_iter()
                    .flatten()
                    .find(|container| container["name"] == name);
                found = found.or(named);
            }
        }
        found.and_then(Value::as_object_mut).map(Container).ok_or(missing)
    }
}

/// A container of a pod.
pub struct Container<'a>(&'a mut Map<String, Value>);

impl Container<'_> {
    fn missing(&self, part: impl Into<String>) -> Error {
        let name = self.0.get("name").and_then(Value::as_str).unwrap_or_default();
        Error::Missing {
            object: format!("container {name}"),
            part: part.into(),
        }
    }

    /// Sets the image, and when it is pulled where the container says so at all. Native containers
    /// always do.
    pub fn run(&mut self, image: Image<'_>, pull_policy: &str) -> &mut Self {
        if image.is_native() || self.0.contains_key("imagePullPolicy") {
            self.0.insert("imagePullPolicy".into(), json!(pull_policy));
        }
        self.set("image", json!(image.reference()))
    }

    /// Sets the command; arguments stay.
    pub fn command(&mut self, command: &[&str]) -> &mut Self {
        self.set("command", json!(command))
    }

    /// Names the ConfigMap whose keys become environment variables.
    pub fn env_from_config_map(&mut self, name: &str) -> Result<&mut Self, Error> {
        let missing = self.missing("ConfigMap to take the environment from");
        let sources = self.0.get_mut("envFrom").and_then(Value::as_array_mut);
        let slot = sources
            .into_iter()
            .flatten()
            .find_map(|source| source.pointer_mut("/configMapRef/name"));
        *slot.ok_or(missing)? = json!(name);
        Ok(self)
    }

    /// Sets the startup probe: a command, once a second, for five minutes at most.
    pub fn startup_command(&mut self, command: &[&str]) -> &mut Self {
        self.set(
            "startupProbe",
            json!({ "exec": { "command": command }, "periodSeconds": 1, "failureThreshold": 300 }),
        )
    }

    /// Replaces the command of a probe; its times stay.
    pub fn probe_command(&mut self, probe: &str, command: &[&str]) -> Result<&mut Self, Error> {
        let missing = self.missing(probe);
        let slot = self
            .0
            .get_mut(probe)
            .and_then(|probe| probe.pointer_mut("/exec/command"));
        *slot.ok_or(missing)? = json!(command);
        Ok(self)
    }

    /// Lets a probe begin at the first moment; its period stays.
    pub fn probe_at_once(&mut self, probe: &str) -> Result<&mut Self, Error> {
        let missing = self.missing(probe);
        let found = self.0.get_mut(probe).and_then(Value::as_object_mut);
        found.ok_or(missing)?.shift_remove("initialDelaySeconds");
        Ok(self)
    }

    /// Sets where a volume is mounted.
    pub fn mount_at(&mut self, volume: &str, path: &str) -> Result<&mut Self, Error> {
        let missing = self.missing(format!("mount of {volume}"));
        let mounts = self.0.get_mut("volumeMounts").and_then(Value::as_array_mut);
        let found = mounts.into_iter().flatten().find(|mount| mount["name"] == volume);
        let slot = found.and_then(|mount| mount.get_mut("mountPath"));
        *slot.ok_or(missing)? = json!(path);
        Ok(self)
    }

    /// Mounts one volume more.
    pub fn also_mount(&mut self, volume: &str, path: &str) -> Result<&mut Self, Error> {
        let missing = self.missing("mounts");
        let mounts = self.0.get_mut("volumeMounts").and_then(Value::as_array_mut);
        mounts
            .ok_or(missing)?
            .push(json!({ "name": volume, "mountPath": path }));
        Ok(self)
    }

    /// Probes from the first moment on, every ten seconds.
    pub fn eager_probes(&mut self) -> &mut Self {
        for probe in ["readinessProbe", "livenessProbe"] {
            if let Some(probe) = self.0.get_mut(probe).and_then(Value::as_object_mut) {
                probe.shift_remove("initialDelaySeconds");
                probe.insert("periodSeconds".into(), json!(10));
            }
        }
        self
    }

    /// Probes readiness from the first moment on, every second.
    pub fn eager_readiness(&mut self) -> &mut Self {
        if let Some(probe) = self.0.get_mut("readinessProbe").and_then(Value::as_object_mut) {
            probe.shift_remove("initialDelaySeconds");
            probe.insert("periodSeconds".into(), json!(1));
        }
        self
    }

    /// Adds a port after those that are there.
    pub fn add_port(&mut self, port: Value) -> Result<&mut Self, Error> {
        let missing = self.missing("ports");
        let ports = self.0.get_mut("ports").and_then(Value::as_array_mut);
        ports.ok_or(missing)?.push(port);
        Ok(self)
    }

    /// Adds arguments after those that are there.
    pub fn add_arguments(&mut self, arguments: &[String]) -> &mut Self {
        let all = self.0.entry("args").or_insert_with(|| json!([]));
        if let Some(all) = all.as_array_mut() {
            all.extend(arguments.iter().map(|argument| json!(argument)));
        }
        self
    }

    /// Sets an environment variable, which the container has already.
    pub fn variable(&mut self, name: &str, value: &str) -> Result<&mut Self, Error> {
        let missing = self.missing(format!("environment variable {name}"));
        let variables = self.0.get_mut("env").and_then(Value::as_array_mut);
        let variable = variables
            .into_iter()
            .flatten()
            .find(|variable| variable["name"] == name);
        *variable.ok_or(missing)? = json!({ "name": name, "value": value });
        Ok(self)
    }

    /// Adds an environment variable after those that are there.
    pub fn add_variable(&mut self, name: &str, value: &str) -> Result<&mut Self, Error> {
        let missing = self.missing("environment");
        let variables = self.0.get_mut("env").and_then(Value::as_array_mut);
        variables
            .ok_or(missing)?
            .push(json!({ "name": name, "value": value }));
        Ok(self)
    }

    /// Lets the program write into volumes alone (operands §13.2).
    pub fn read_only_root(&mut self) -> Result<&mut Self, Error> {
        self.security("readOnlyRootFilesystem", json!(true))
    }

    /// Takes every privilege away (operands §13.2): no capability, none to be gained, no system calls but those that the
    /// container runtime allows to everybody, no file to write outside of volumes.
    pub fn without_privileges(&mut self) -> Result<&mut Self, Error> {
        self.security_context()?.shift_remove("privileged");
        self.read_only_root()?
            .security("allowPrivilegeEscalation", json!(false))?
            .security("capabilities", json!({ "drop": ["ALL"] }))?
            .security("seccompProfile", json!({ "type": "RuntimeDefault" }))
    }

    /// Leaves one capability to a program that [`without_privileges`](Self::without_privileges) took all from.
    pub fn with_capability(&mut self, capability: &str) -> Result<&mut Self, Error> {
        let missing = self.missing("capabilities");
        let capabilities = self.security_context()?.get_mut("capabilities");
        let capabilities = capabilities.and_then(Value::as_object_mut).ok_or(missing)?;
        capabilities.insert("add".to_owned(), json!([capability]));
        Ok(self)
    }

    /// Runs the program as the host's root, with the files of the host that root owns: by its user, and by the type that
    /// SELinux gives to privileged containers.
    pub fn as_root_of_the_host(&mut self) -> Result<&mut Self, Error> {
        self.security("runAsUser", json!(0))?
            .security("seLinuxOptions", json!({ "type": "spc_t" }))
    }

    fn security(&mut self, key: &str, value: Value) -> Result<&mut Self, Error> {
        self.security_context()?.insert(key.to_owned(), value);
        Ok(self)
    }

    fn security_context(&mut self) -> Result<&mut Map<String, Value>, Error> {
        let missing = self.missing("security context");
        let context = self.0.get_mut("securityContext");
        context.and_then(Value::as_object_mut).ok_or(missing)
    }

    /// Sets any member.
    pub fn set(&mut self, key: &str, value: Value) -> &mut Self {
        self.0.insert(key.to_owned(), value);
        self
    }

    /// Takes a member away.
    pub fn without(&mut self, key: &str) -> &mut Self {
        self.0.shift_remove(key);
        self
    }
}
