//! The steps that complete the pod template of a workload, and its containers.

use api::placement::Placement;
use serde_json::{Map, Value, json};

use super::{Error, Manifest, object_at};
use crate::images::Image;

/// The pod template of a workload.
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

    /// The labels of the pods, created if they are absent.
    pub fn labels_mut(&mut self) -> Result<&mut Map<String, Value>, Error> {
        let missing = self.missing("labels");
        let metadata = object_at(self.template, "metadata");
        metadata
            .and_then(|metadata| object_at(metadata, "labels"))
            .ok_or(missing)
    }

    pub(crate) fn annotate(&mut self, key: &str, value: &str) -> Result<(), Error> {
        let missing = self.missing("annotations");
        let metadata = object_at(self.template, "metadata");
        let annotations = metadata
            .and_then(|metadata| object_at(metadata, "annotations"))
            .ok_or(missing)?;
        annotations.insert(key.to_owned(), json!(value));
        Ok(())
    }

    /// Removes an annotation of the pods.
    pub fn without_annotation(&mut self, key: &str) {
        let annotations = self.template.get_mut("metadata");
        let annotations = annotations.and_then(|metadata| metadata.get_mut("annotations"));
        if let Some(Value::Object(annotations)) = annotations {
            annotations.shift_remove(key);
        }
    }

    /// Sets a field of the pod specification.
    pub fn set(&mut self, key: &str, value: Value) -> Result<(), Error> {
        self.spec()?.insert(key.to_owned(), value);
        Ok(())
    }

    /// Removes a field of the pod specification.
    pub fn without(&mut self, key: &str) -> Result<(), Error> {
        self.spec()?.shift_remove(key);
        Ok(())
    }

    pub(crate) fn service_account(&mut self, name: &str) -> Result<(), Error> {
        self.spec()?.insert("serviceAccountName".into(), json!(name));
        Ok(())
    }

    /// Replaces the scheduling constraints of the pods. Empty ones except the affinity are left out, because the API
    /// server does not store them.
    pub(crate) fn place(&mut self, placement: &Placement) -> Result<(), Error> {
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

    /// Prefers nodes without another pod of these labels, unless the placement has rules about pods of its own.
    pub(crate) fn spread(&mut self, labels: &Value) -> Result<(), Error> {
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

    /// Removes the user of the pods: security context constraints set it.
    pub(crate) fn without_user(&mut self) -> Result<(), Error> {
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

    /// Sets the path of a hostPath volume.
    pub(crate) fn host_path(&mut self, volume: &str, path: &str) -> Result<(), Error> {
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

    /// Sets the Secret of a volume.
    pub(crate) fn secret(&mut self, volume: &str, name: &str) -> Result<(), Error> {
        let missing = self.missing(format!("Secret of volume {volume}"));
        let secret = self.volume(volume)?.get_mut("secret");
        let slot = secret.and_then(|secret| secret.get_mut("secretName"));
        *slot.ok_or(missing)? = json!(name);
        Ok(())
    }

    /// Sets the user of all containers.
    pub(crate) fn run_as_user(&mut self, user: u32) -> Result<(), Error> {
        self.security_context()?.insert("runAsUser".into(), json!(user));
        Ok(())
    }

    /// Changes the hostPath volume of a file into the volume of an existing directory.
    pub(crate) fn host_directory(&mut self, volume: &str, path: &str) -> Result<(), Error> {
        let found = self.volume(volume)?;
        found.insert("hostPath".into(), json!({ "path": path, "type": "Directory" }));
        Ok(())
    }

    /// Adds a hostPath volume.
    pub(crate) fn add_host_path(&mut self, volume: &str, path: &str) -> Result<(), Error> {
        self.add_volume(json!({ "name": volume, "hostPath": { "path": path } }))
    }

    /// Adds an emptyDir volume.
    pub(crate) fn add_empty_dir(&mut self, volume: &str) -> Result<(), Error> {
        self.add_volume(json!({ "name": volume, "emptyDir": {} }))
    }

    /// Appends a container.
    pub(crate) fn add_container(&mut self, container: Value) -> Result<(), Error> {
        let missing = self.missing("containers");
        let containers = self.spec()?.get_mut("containers").and_then(Value::as_array_mut);
        containers.ok_or(missing)?.push(container);
        Ok(())
    }

    /// Removes a container.
    pub(crate) fn without_container(&mut self, name: &str) -> Result<(), Error> {
        let missing = self.missing("containers");
        let containers = self.spec()?.get_mut("containers").and_then(Value::as_array_mut);
        containers
            .ok_or(missing)?
            .retain(|container| container["name"] != name);
        Ok(())
    }

    /// Appends a volume.
    pub(crate) fn add_volume(&mut self, volume: Value) -> Result<(), Error> {
        let missing = self.missing("volumes");
        let volumes = self.spec()?.get_mut("volumes").and_then(Value::as_array_mut);
        volumes.ok_or(missing)?.push(volume);
        Ok(())
    }

    /// Mounts no token of the service account: the programs do not use the API server.
    pub(crate) fn without_token(&mut self) -> Result<(), Error> {
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

/// A container of a pod template.
pub struct Container<'a>(&'a mut Map<String, Value>);

impl Container<'_> {
    fn missing(&self, part: impl Into<String>) -> Error {
        let name = self.0.get("name").and_then(Value::as_str).unwrap_or_default();
        Error::Missing {
            object: format!("container {name}"),
            part: part.into(),
        }
    }

    /// Sets the image. Sets the pull policy of native containers, and of other containers if their file has one.
    pub fn run(&mut self, image: Image<'_>, pull_policy: &str) -> &mut Self {
        if image.is_native() || self.0.contains_key("imagePullPolicy") {
            self.0.insert("imagePullPolicy".into(), json!(pull_policy));
        }
        self.set("image", json!(image.reference()))
    }

    /// Sets the command, and keeps the arguments.
    pub(crate) fn command(&mut self, command: &[&str]) -> &mut Self {
        self.set("command", json!(command))
    }

    /// Sets the ConfigMap whose keys become environment variables.
    pub(crate) fn env_from_config_map(&mut self, name: &str) -> Result<&mut Self, Error> {
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
    pub(crate) fn startup_command(&mut self, command: &[&str]) -> &mut Self {
        self.set(
            "startupProbe",
            json!({ "exec": { "command": command }, "periodSeconds": 1, "failureThreshold": 300 }),
        )
    }

    /// Replaces the command of a probe, and keeps its times.
    pub(crate) fn probe_command(&mut self, probe: &str, command: &[&str]) -> Result<&mut Self, Error> {
        let missing = self.missing(probe);
        let slot = self
            .0
            .get_mut(probe)
            .and_then(|probe| probe.pointer_mut("/exec/command"));
        *slot.ok_or(missing)? = json!(command);
        Ok(self)
    }

    /// Removes the initial delay of a probe, and keeps its period.
    pub(crate) fn probe_at_once(&mut self, probe: &str) -> Result<&mut Self, Error> {
        let missing = self.missing(probe);
        let found = self.0.get_mut(probe).and_then(Value::as_object_mut);
        found.ok_or(missing)?.shift_remove("initialDelaySeconds");
        Ok(self)
    }

    /// Sets the mount path of a volume.
    pub(crate) fn mount_at(&mut self, volume: &str, path: &str) -> Result<&mut Self, Error> {
        let missing = self.missing(format!("mount of {volume}"));
        let mounts = self.0.get_mut("volumeMounts").and_then(Value::as_array_mut);
        let found = mounts.into_iter().flatten().find(|mount| mount["name"] == volume);
        let slot = found.and_then(|mount| mount.get_mut("mountPath"));
        *slot.ok_or(missing)? = json!(path);
        Ok(self)
    }

    /// Adds the mount of a volume.
    pub(crate) fn also_mount(&mut self, volume: &str, path: &str) -> Result<&mut Self, Error> {
        let missing = self.missing("mounts");
        let mounts = self.0.get_mut("volumeMounts").and_then(Value::as_array_mut);
        mounts
            .ok_or(missing)?
            .push(json!({ "name": volume, "mountPath": path }));
        Ok(self)
    }

    /// Appends the mount of a volume that the container only reads.
    pub(crate) fn mount_read_only(&mut self, volume: &str, path: &str) -> &mut Self {
        let all = self.0.entry("volumeMounts").or_insert_with(|| json!([]));
        if let Some(all) = all.as_array_mut() {
            all.push(json!({ "name": volume, "mountPath": path, "readOnly": true }));
        }
        self
    }

    /// Probes liveness and readiness without initial delay, every ten seconds.
    pub(crate) fn eager_probes(&mut self) -> &mut Self {
        for probe in ["readinessProbe", "livenessProbe"] {
            if let Some(probe) = self.0.get_mut(probe).and_then(Value::as_object_mut) {
                probe.shift_remove("initialDelaySeconds");
                probe.insert("periodSeconds".into(), json!(10));
            }
        }
        self
    }

    /// Probes readiness without initial delay, every second.
    pub(crate) fn eager_readiness(&mut self) -> &mut Self {
        if let Some(probe) = self.0.get_mut("readinessProbe").and_then(Value::as_object_mut) {
            probe.shift_remove("initialDelaySeconds");
            probe.insert("periodSeconds".into(), json!(1));
        }
        self
    }

    /// Appends a port.
    pub(crate) fn add_port(&mut self, port: Value) -> Result<&mut Self, Error> {
        let missing = self.missing("ports");
        let ports = self.0.get_mut("ports").and_then(Value::as_array_mut);
        ports.ok_or(missing)?.push(port);
        Ok(self)
    }

    /// Appends arguments.
    pub fn add_arguments(&mut self, arguments: &[String]) -> &mut Self {
        let all = self.0.entry("args").or_insert_with(|| json!([]));
        if let Some(all) = all.as_array_mut() {
            all.extend(arguments.iter().map(|argument| json!(argument)));
        }
        self
    }

    /// Sets an existing environment variable of the container.
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

    /// Appends an environment variable.
    pub fn add_variable(&mut self, name: &str, value: &str) -> Result<&mut Self, Error> {
        let missing = self.missing("environment");
        let variables = self.0.get_mut("env").and_then(Value::as_array_mut);
        variables
            .ok_or(missing)?
            .push(json!({ "name": name, "value": value }));
        Ok(self)
    }

    /// Makes the root file system read-only (operands §13.2).
    pub(crate) fn read_only_root(&mut self) -> Result<&mut Self, Error> {
        self.security("readOnlyRootFilesystem", json!(true))
    }

    /// Drops all privileges (operands §13.2): no capability, no privilege escalation, the container runtime's default
    /// seccomp profile, a read-only root file system.
    pub(crate) fn without_privileges(&mut self) -> Result<&mut Self, Error> {
        self.security_context()?.shift_remove("privileged");
        self.read_only_root()?
            .security("allowPrivilegeEscalation", json!(false))?
            .security("capabilities", json!({ "drop": ["ALL"] }))?
            .security("seccompProfile", json!({ "type": "RuntimeDefault" }))
    }

    /// Adds one capability after [`without_privileges`](Self::without_privileges).
    pub(crate) fn with_capability(&mut self, capability: &str) -> Result<&mut Self, Error> {
        let missing = self.missing("capabilities");
        let capabilities = self.security_context()?.get_mut("capabilities");
        let capabilities = capabilities.and_then(Value::as_object_mut).ok_or(missing)?;
        capabilities.insert("add".to_owned(), json!([capability]));
        Ok(self)
    }

    /// Runs the program as the node's root, with access to the files of that root: sets its user, and the SELinux type
    /// of privileged containers.
    pub(crate) fn as_root_of_the_host(&mut self) -> Result<&mut Self, Error> {
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

    /// Sets a field of the container.
    pub fn set(&mut self, key: &str, value: Value) -> &mut Self {
        self.0.insert(key.to_owned(), value);
        self
    }

    /// Removes a field of the container.
    pub(crate) fn without(&mut self, key: &str) -> &mut Self {
        self.0.shift_remove(key);
        self
    }
}
