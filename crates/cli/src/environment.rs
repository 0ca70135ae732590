//! The environment of an operator, for commands that act in its place.
//!
//! ```text
//! flags ──> Deployment of an operator (file or cluster), else variables of this process ──> shipped values
//! ```

use std::{collections::BTreeMap, path::PathBuf};

use kube_kit::object::{self, ObjectId};
use program::terminal;
use serde_json::Value;

use operator::{
    names::{self, env},
    settings::{self, Settings},
};

use super::input;

/// Flags for the environment of the operator.
#[derive(Clone, Debug, Default, clap::Args)]
#[group(skip)]
#[command(next_help_heading = "Environment of the operator")]
pub(crate) struct Flags {
    /// Image of the operator, which runs in all containers that have no image of their own.
    #[arg(long, value_name = "REF")]
    pub(crate) image: Option<String>,
    /// Manifest with the operator's Deployment: its image, its *_IMAGE and other variables, its namespace.
    #[arg(long, value_name = "FILE")]
    pub(crate) images_from: Option<PathBuf>,
    /// Namespace of the operator
    #[arg(short, long, value_name = "NAMESPACE")]
    pub(crate) namespace: Option<String>,
    /// Version of the operator, which labels every object
    #[arg(long, value_name = "VERSION")]
    pub(crate) operator_version: Option<String>,
    /// Namespace of the monitoring stack
    #[arg(long, value_name = "NAMESPACE")]
    pub(crate) monitoring_namespace: Option<String>,
}

/// Settings that cannot be determined. Each text has the next step.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot use {file} for --images-from: {cause}")]
    File { file: String, cause: String },
    #[error("the operator would not start: {0}")]
    Settings(#[from] settings::Error),
}

/// The settings in a Deployment of an operator.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Deployment {
    namespace: String,
    image: Option<String>,
    variables: BTreeMap<String, String>,
}

impl Deployment {
    pub(crate) fn of(object: &Value) -> Self {
        let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str);
        let containers = object
            .pointer("/spec/template/spec/containers")
            .and_then(Value::as_array);
        let containers = containers.map(Vec::as_slice).unwrap_or_default();
        let container = containers
            .iter()
            .find(|container| container["name"] == names::OPERATOR)
            .or(containers.first());
        let namespace = text("/metadata/namespace").unwrap_or(names::DEFAULT_NAMESPACE);
        let variables = container
            .and_then(|container| container.get("env"))
            .and_then(Value::as_array);
        let variables = variables.into_iter().flatten().filter_map(|variable| {
            let name = variable.get("name")?.as_str()?.to_owned();
            let field = variable
                .pointer("/valueFrom/fieldRef/fieldPath")
                .and_then(Value::as_str);
            let value = match field {
                Some("metadata.namespace") => namespace,
                // A value from another object, such as the name of the pod, is unknown here.
                Some(_) => return None,
                None => variable.get("value").and_then(Value::as_str).unwrap_or_default(),
            };
            Some((name, value.to_owned()))
        });
        let image = container.and_then(|container| container.get("image")?.as_str());
        Self {
            namespace: namespace.to_owned(),
            image: image.map(str::to_owned),
            variables: variables.collect(),
        }
    }
}

impl Flags {
    /// The Deployment in the file of `--images-from`.
    ///
    /// # Errors
    /// If the file cannot be read, or has no Deployment of an operator.
    pub(crate) fn deployment(&self) -> Result<Option<Deployment>, Error> {
        let Some(path) = &self.images_from else {
            return Ok(None);
        };
        let failed = |cause: String| Error::File {
            file: path.display().to_string(),
            cause,
        };
        let text = terminal::read(path).map_err(|error| failed(error.to_string()))?;
        let documents = input::documents(&text).map_err(failed)?;
        let objects = documents.into_iter().flat_map(input::items);
        let mut deployments = objects.filter(|object| {
            let id = ObjectId::of(object);
            id.kind == object::DEPLOYMENT.kind && id.name == names::OPERATOR
        });
        let found = deployments
            .next()
            .ok_or_else(|| failed(format!("there is no Deployment {} in it", names::OPERATOR)))?;
        Ok(Some(Deployment::of(&found)))
    }

    /// The settings that the operator would have. `variable` reads the environment of this process, which is used
    /// without a Deployment.
    ///
    /// # Errors
    /// If the operator would not start with these settings.
    pub(crate) fn settings(
        &self,
        deployment: Option<&Deployment>,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Settings, Error> {
        let flag = |name: &str| match name {
            env::OPERATOR_NAMESPACE | env::OPERAND_NAMESPACE => self.namespace.clone(),
            env::OPERATOR_VERSION => self.operator_version.clone(),
            env::MONITORING_NAMESPACE => self.monitoring_namespace.clone(),
            _ => None,
        };
        let value = |name: &str| match deployment {
            Some(deployment) => deployment.variables.get(name).cloned(),
            None => variable(name)
                .filter(|value| !value.is_empty())
                .or_else(|| shipped(name)),
        };
        let missing = |name: &str| match name {
            env::OPERATOR_NAMESPACE => Some(deployment.map_or_else(
                || names::DEFAULT_NAMESPACE.to_owned(),
                |deployment| deployment.namespace.clone(),
            )),
            env::WATCH_NAMESPACE => Some(String::new()),
            _ => None,
        };
        let settings = Settings::read(|name| flag(name).or_else(|| value(name)).or_else(|| missing(name)))?;
        let running = deployment.and_then(|deployment| deployment.image.clone());
        let own = self
            .image
            .clone()
            .or(running)
            .or_else(|| settings.operator_image.clone());
        Ok(Settings {
            images: settings.images.clone().with_own(own),
            ..settings
        })
    }
}

/// The value of a variable in the shipped Deployment, if it is the same for all installations.
fn shipped(name: &str) -> Option<String> {
    match name {
        env::OPERATOR_VERSION => Some(env!("CARGO_PKG_VERSION").to_owned()),
        env::MONITORING_NAMESPACE => Some(names::MONITORING_NAMESPACE.to_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn deployment() -> Deployment {
        Deployment::of(&json!({
            "metadata": { "namespace": "addons" },
            "spec": { "template": { "spec": { "containers": [
                { "name": "proxy", "image": "proxy:1" },
                { "name": "cluster-network-addons-operator", "image": "weft:2", "env": [
                    { "name": "MULTUS_IMAGE", "value": "multus:4" },
                    { "name": "OVS_CNI_IMAGE", "value": "" },
                    { "name": "OPERATOR_IMAGE", "value": "weft:1" },
                    { "name": "OPERATOR_VERSION", "value": "9" },
                    { "name": "OPERATOR_NAMESPACE", "valueFrom": { "fieldRef": { "fieldPath": "metadata.namespace" } } },
                    { "name": "POD_NAME", "valueFrom": { "fieldRef": { "fieldPath": "metadata.name" } } },
                    { "name": "WATCH_NAMESPACE" },
                ] },
            ] } } },
        }))
    }

    #[test]
    fn settings_of_deployment_equal_those_of_its_pod() {
        let settings = Flags::default()
            .settings(Some(&deployment()), |_| Some("of this process".into()))
            .expect("settings");
        assert_eq!(settings.operator_namespace, "addons");
        assert_eq!(settings.operand_namespace, "addons");
        assert_eq!(settings.operator_version, "9");
        assert_eq!(
            settings.prometheus.namespace, "monitoring",
            "the environment of this process is ignored"
        );
        assert_eq!(settings.pod_name, None);
        let image = |variable| {
            settings
                .images
                .of(variable)
                .expect("an image")
                .reference()
                .to_owned()
        };
        assert_eq!(image(env::MULTUS_IMAGE), "multus:4");
        assert_eq!(image(env::LINUX_BRIDGE_IMAGE), "weft:2", "what runs counts");
    }

    #[test]
    fn deployment_is_found_in_a_file_of_many_documents() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let deployment = "---\nkind: Deployment\napiVersion: apps/v1\nmetadata:\n  name: cluster-network-addons-operator\n";
        let others = "---\nkind: ConfigMap\napiVersion: v1\n".repeat(2000);
        std::fs::write(file.path(), others + deployment).expect("written");
        let flags = Flags {
            images_from: Some(file.path().to_owned()),
            ..Flags::default()
        };
        assert!(flags.deployment().expect("a deployment").is_some());
    }

    #[test]
    fn settings_of_flags_override_deployment() {
        let flags = Flags {
            image: Some("weft:3".into()),
            namespace: Some("other".into()),
            operator_version: Some("10".into()),
            monitoring_namespace: Some("watchers".into()),
            images_from: None,
        };
        let settings = flags.settings(Some(&deployment()), |_| None).expect("settings");
        assert_eq!(settings.operator_namespace, "other");
        assert_eq!(settings.operand_namespace, "other");
        assert_eq!(settings.operator_version, "10");
        assert_eq!(settings.prometheus.namespace, "watchers");
        assert_eq!(settings.images.own(), Some("weft:3"));
    }

    #[test]
    fn settings_default_to_shipped_deployment() {
        let settings = Flags::default().settings(None, |_| None).expect("settings");
        assert_eq!(settings.operator_namespace, "cluster-network-addons");
        assert_eq!(settings.operator_version, env!("CARGO_PKG_VERSION"));
        assert_eq!(settings.prometheus.namespace, "openshift-monitoring");
        assert_eq!(settings.images.own(), None);
        let from_process = Flags::default()
            .settings(None, |name| {
                (name == env::OPERATOR_IMAGE).then(|| "weft:4".into())
            })
            .expect("settings");
        assert_eq!(from_process.images.own(), Some("weft:4"));
    }
}
