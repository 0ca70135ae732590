//! Operand objects: read from the YAML files beside each component, completed by structural steps.
//!
//! The files are valid objects, complete but for what depends on the cluster and on the configuration;
//! a step that does not find what it is to complete is an error, never a silent omission.

use api::placement::Placement;
use k8s_openapi::serde::Serialize;
use serde_json::{Map, Value, json};

use crate::images::Image;

/// Why an operand could not be rendered. All of these are defects of the operator's own files, but for
/// the image.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file is no YAML, or an object no JSON.
    #[error("{file} is not a list of objects: {cause}")]
    Syntax {
        /// File name, or kind of the object.
        file: &'static str,
        /// What the parser says.
        cause: String,
    },
    /// An object lacks what a step completes.
    #[error("{object} has no {part}")]
    Missing {
        /// Kind and name of the object.
        object: String,
        /// What it lacks.
        part: String,
    },
    /// The TLS profile means nothing: the text for the condition.
    #[error("{0}")]
    Tls(String),
    /// There is nothing to run in a container that only our own image can run.
    #[error(
        "the operator's own image is unknown: set environment variable {} or {}",
        crate::names::env::POD_NAME,
        crate::names::env::OPERATOR_IMAGE
    )]
    OwnImage,
    /// There is nothing to run in a container.
    #[error(transparent)]
    Image(#[from] crate::images::UnknownImage),
}

/// An object to deploy.
#[derive(Clone, Debug, PartialEq)]
pub struct Manifest(Value);

/// Reads the objects of a file, in order. `file` is its name in messages.
pub fn parse(file: &'static str, yaml: &str) -> Result<Vec<Manifest>, Error> {
    let values: Vec<Value> = serde_saphyr::from_multiple(yaml).map_err(|cause| Error::Syntax {
        file,
        cause: cause.to_string(),
    })?;
    Ok(values.into_iter().map(Manifest).collect())
}

impl Manifest {
    /// Makes a manifest of a typed object; `kind` names it in messages.
    pub fn of(kind: &'static str, object: &impl Serialize) -> Result<Self, Error> {
        let value = serde_json::to_value(object);
        value.map(Self).map_err(|cause| Error::Syntax {
            file: kind,
            cause: cause.to_string(),
        })
    }

    /// Makes a manifest of an object as it stands in JSON.
    pub fn from_value(object: Value) -> Self {
        Self(object)
    }

    /// Kind of the object.
    pub fn kind(&self) -> &str {
        self.text("/kind")
    }

    /// Name of the object.
    pub fn name(&self) -> &str {
        self.text("/metadata/name")
    }

    /// The object as JSON.
    pub fn value(&self) -> &Value {
        &self.0
    }

    /// The object as JSON.
    pub fn into_value(self) -> Value {
        self.0
    }

    fn text(&self, pointer: &str) -> &str {
        self.0
            .pointer(pointer)
            .and_then(Value::as_str)
            .unwrap_or_default()
    }

    fn missing(&self, part: &str) -> Error {
        Error::Missing {
            object: format!("{} {}", self.kind(), self.name()),
            part: part.to_owned(),
        }
    }

    /// Moves the object, and the service accounts that it binds and the webhook services that it names, into
    /// the namespace. A Namespace gets its name; an object without a namespace has none.
    pub fn set_namespace(&mut self, namespace: &str) {
        if self.kind() == "Namespace" {
            self.0["metadata"]["name"] = json!(namespace);
        }
        if let Some(own) = self.0.pointer_mut("/metadata/namespace") {
            *own = json!(namespace);
        }
        for subject in self
            .0
            .get_mut("subjects")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if let Some(bound) = subject.get_mut("namespace") {
                *bound = json!(namespace);
            }
        }
        for webhook in self
            .0
            .get_mut("webhooks")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
        {
            if let Some(served) = webhook.pointer_mut("/clientConfig/service/namespace") {
                *served = json!(namespace);
            }
        }
    }

    /// Labels of the object.
    pub fn labels_mut(&mut self) -> Result<&mut Map<String, Value>, Error> {
        let missing = self.missing("labels");
        object_at(self.metadata()?, "labels").ok_or(missing)
    }

    /// Annotations of the object.
    pub fn annotations(&self) -> Option<&Map<String, Value>> {
        self.0.pointer("/metadata/annotations").and_then(Value::as_object)
    }

    /// Adds an annotation to the object.
    pub fn annotate(&mut self, key: &str, value: &str) -> Result<(), Error> {
        let missing = self.missing("annotations");
        let annotations = object_at(self.metadata()?, "annotations").ok_or(missing)?;
        annotations.insert(key.to_owned(), json!(value));
        Ok(())
    }

    fn metadata(&mut self) -> Result<&mut Map<String, Value>, Error> {
        let missing = self.missing("metadata");
        self.0
            .get_mut("metadata")
            .and_then(Value::as_object_mut)
            .ok_or(missing)
    }

    /// Puts a member into the object's metadata.
    pub fn set_metadata(&mut self, key: &str, value: Value) -> Result<(), Error> {
        self.metadata()?.insert(key.to_owned(), value);
        Ok(())
    }

    /// Sets a member of the object's specification.
    pub fn set_spec(&mut self, key: &str, value: Value) -> Result<(), Error> {
        let missing = self.missing("specification");
        let spec = self.0.get_mut("spec").and_then(Value::as_object_mut);
        spec.ok_or(missing)?.insert(key.to_owned(), value);
        Ok(())
    }

    /// Sets any member of the object.
    pub fn set(&mut self, key: &str, value: Value) {
        if let Some(members) = self.0.as_object_mut() {
            members.insert(key.to_owned(), value);
        }
    }

    /// Replaces what is at a JSON pointer.
    pub fn replace(&mut self, pointer: &str, value: Value) -> Result<(), Error> {
        let missing = self.missing(pointer);
        *self.0.pointer_mut(pointer).ok_or(missing)? = value;
        Ok(())
    }

    /// The pods of a workload.
    pub fn pods(&mut self) -> Result<Pods<'_>, Error> {
        let missing = self.missing("pod template");
        let object = format!("{} {}", self.kind(), self.name());
        let template = self
            .0
            .pointer_mut("/spec/template")
            .and_then(Value::as_object_mut)
            .ok_or(missing)?;
        Ok(Pods { object, template })
    }

    /// Binds the role of a binding to one service account.
    pub fn bind_to(&mut self, namespace: &str, account: &str) {
        self.set(
            "subjects",
            json!([{ "kind": "ServiceAccount", "name": account, "namespace": namespace }]),
        );
    }

    /// Sets an entry of a ConfigMap, which has it already.
    pub fn set_data(&mut self, key: &str, value: &str) -> Result<(), Error> {
        let missing = self.missing(&format!("entry {key}"));
        let entry = self.0.get_mut("data").and_then(|data| data.get_mut(key));
        *entry.ok_or(missing)? = json!(value);
        Ok(())
    }

    /// The rules of a `PrometheusRule`, of all its groups.
    pub fn prometheus_rules(&mut self) -> impl Iterator<Item = &mut Map<String, Value>> {
        let groups = self.0.pointer_mut("/spec/groups").and_then(Value::as_array_mut);
        groups
            .into_iter()
            .flatten()
            .filter_map(|group| group.get_mut("rules").and_then(Value::as_array_mut))
            .flatten()
            .filter_map(Value::as_object_mut)
    }

    /// Whether the object is a workload, with a template of its pods.
    pub fn has_pods(&self) -> bool {
        matches!(
            self.kind(),
            "DaemonSet" | "Deployment" | "ReplicaSet" | "StatefulSet"
        )
    }
}

/// The object under a key, made if it is not there.
fn object_at<'a>(map: &'a mut Map<String, Value>, key: &str) -> Option<&'a mut Map<String, Value>> {
    map.entry(key).or_insert_with(|| json!({})).as_object_mut()
}

/// Pods of a workload: its pod template.
pub struct Pods<'a> {
    object: String,
    template: &'a mut Map<String, Value>,
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
                None => spec.remove(key),
            };
        }
        Ok(())
    }

    /// Leaves the user of the pods to the security context constraints.
    pub fn without_user(&mut self) -> Result<(), Error> {
        let missing = self.missing("security context");
        let context = self.spec()?.get_mut("securityContext");
        let context = context.and_then(Value::as_object_mut).ok_or(missing)?;
        context.remove("runAsNonRoot");
        context.remove("runAsUser");
        Ok(())
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
        let missing = self.missing("security context");
        let context = self.spec()?.get_mut("securityContext");
        let context = context.and_then(Value::as_object_mut).ok_or(missing)?;
        context.insert("runAsUser".into(), json!(user));
        Ok(())
    }

    /// Turns a volume of a file on the host into one of a directory that has to be there.
    pub fn host_directory(&mut self, volume: &str, path: &str) -> Result<(), Error> {
        let found = self.volume(volume)?;
        found.insert("hostPath".into(), json!({ "path": path, "type": "Directory" }));
        Ok(())
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
        found.ok_or(missing)?.remove("initialDelaySeconds");
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

    /// Probes from the first moment on, every ten seconds.
    pub fn eager_probes(&mut self) -> &mut Self {
        for probe in ["readinessProbe", "livenessProbe"] {
            if let Some(probe) = self.0.get_mut(probe).and_then(Value::as_object_mut) {
                probe.remove("initialDelaySeconds");
                probe.insert("periodSeconds".into(), json!(10));
            }
        }
        self
    }

    /// Probes readiness from the first moment on, every second.
    pub fn eager_readiness(&mut self) -> &mut Self {
        if let Some(probe) = self.0.get_mut("readinessProbe").and_then(Value::as_object_mut) {
            probe.remove("initialDelaySeconds");
            probe.insert("periodSeconds".into(), json!(1));
        }
        self
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
        let container = self.0.get("name").and_then(Value::as_str).unwrap_or_default();
        let missing = Error::Missing {
            object: format!("container {container}"),
            part: format!("environment variable {name}"),
        };
        let variables = self.0.get_mut("env").and_then(Value::as_array_mut);
        let variable = variables
            .into_iter()
            .flatten()
            .find(|variable| variable["name"] == name);
        *variable.ok_or(missing)? = json!({ "name": name, "value": value });
        Ok(self)
    }

    /// Sets any member.
    pub fn set(&mut self, key: &str, value: Value) -> &mut Self {
        self.0.insert(key.to_owned(), value);
        self
    }

    /// Takes a member away.
    pub fn without(&mut self, key: &str) -> &mut Self {
        self.0.remove(key);
        self
    }
}
