//! What installs the operator: namespace, definition, operator, example (operator §13).

use std::{fs, path::PathBuf};

use anyhow::Context as _;
use serde::Serialize;
use serde_json::{Value, json};

use crate::{
    labels,
    manifest::{self, Manifest},
    names::{self, env},
    rbac,
};

/// Where the monitoring stack is expected unless told otherwise.
pub const MONITORING_NAMESPACE: &str = "openshift-monitoring";

/// Files of an installation, in the order in which they are applied.
pub const FILES: [&str; 4] = [
    "namespace.yaml",
    "network-addons-config.crd.yaml",
    "operator.yaml",
    "network-addons-config-example.cr.yaml",
];

/// What an installation is made of.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Install<'a> {
    /// Reference of the image with everything in it.
    pub image: &'a str,
    /// Namespace of the operator, and of what it deploys.
    pub namespace: &'a str,
    /// Version for status and labels.
    pub version: &'a str,
    /// When the image of the operator is pulled.
    pub pull_policy: &'a str,
}

/// An installation could not be rendered: a defect of the operator's own files.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file lacks what is to be completed.
    #[error(transparent)]
    Manifest(#[from] manifest::Error),
    /// The definition.
    #[error(transparent)]
    Definition(#[from] api::Error),
    /// Something is not to be written as YAML.
    #[error("cannot write {file}: {cause}")]
    Yaml {
        /// Name of the file.
        file: &'static str,
        /// What the serialiser says.
        cause: String,
    },
}

/// Renders the files of an installation: pairs of [file name](FILES) and YAML.
pub fn render_install(install: &Install<'_>) -> Result<Vec<(&'static str, String)>, Error> {
    let in_namespace = |file, yaml| -> Result<Vec<Manifest>, Error> {
        let mut objects = manifest::parse(file, yaml)?;
        for object in &mut objects {
            object.set_namespace(install.namespace);
        }
        Ok(objects)
    };
    let [namespace, definition, operator, example] = FILES;
    let mut namespaces = in_namespace(namespace, include_str!("manifests/namespace.yaml"))?;
    for object in &mut namespaces {
        object
            .labels_mut()?
            .insert("name".into(), json!(install.namespace));
    }
    let mut accounts = in_namespace(operator, include_str!("manifests/accounts.yaml"))?;
    for object in &mut accounts {
        let rules = match object.kind() {
            "ClusterRole" => rbac::cluster_rules(),
            "Role" => rbac::namespace_rules(),
            _ => continue,
        };
        object.set("rules", rules.into_iter().map(rbac::Rule::to_value).collect());
    }
    let mut deployment = in_namespace(operator, include_str!("manifests/operator.yaml"))?;
    for object in &mut deployment {
        complete(object, install)?;
    }
    // Rights of what the operator deploys, and could not grant.
    let granted = manifest::parse(operator, include_str!("manifests/nmstate-role.yaml"))?;
    let example_objects = manifest::parse(example, include_str!("manifests/example.yaml"))?;
    Ok(vec![
        (namespace, documents(namespace, &namespaces)?),
        (definition, yaml(definition, &api::network_addons::crd()?)?),
        (
            operator,
            documents(operator, &[accounts, deployment, granted].concat())?,
        ),
        (example, documents(example, &example_objects)?),
    ])
}

fn complete(deployment: &mut Manifest, install: &Install<'_>) -> Result<(), Error> {
    deployment.set_metadata(
        "annotations",
        json!({ api::names::VERSION_LABEL: labels::label_safe(install.version) }),
    )?;
    let mut pods = deployment.pods()?;
    pods.container(names::OPERATOR)?
        .set("image", json!(install.image))
        .set("imagePullPolicy", json!(install.pull_policy))
        .set("env", environment(install));
    Ok(())
}

/// The environment, in the established order. All images are native: the operator's own.
fn environment(install: &Install<'_>) -> Value {
    let value = |name: &str, value: &str| json!({ "name": name, "value": value });
    let field =
        |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let images = env::IMAGES.into_iter().map(|name| value(name, ""));
    let rest = [
        value(env::OPERATOR_IMAGE, install.image),
        value(env::OPERATOR_NAME, names::OPERATOR),
        value(env::OPERATOR_VERSION, install.version),
        field(env::OPERATOR_NAMESPACE, "metadata.namespace"),
        field(env::OPERAND_NAMESPACE, "metadata.namespace"),
        field(env::POD_NAME, "metadata.name"),
        value(env::WATCH_NAMESPACE, ""),
        value(env::MONITORING_NAMESPACE, MONITORING_NAMESPACE),
        value(env::MONITORING_SERVICE_ACCOUNT, "prometheus-k8s"),
        value(
            env::RUNBOOK_URL_TEMPLATE,
            "https://kubevirt.io/monitoring/runbooks/%s",
        ),
        value(env::LOG_LEVEL, "0"),
    ];
    images.chain(rest).collect()
}

fn documents(file: &'static str, objects: &[Manifest]) -> Result<String, Error> {
    let documents: Result<Vec<_>, _> = objects.iter().map(|object| yaml(file, object.value())).collect();
    Ok(documents?.join("---\n"))
}

fn yaml(file: &'static str, object: &impl Serialize) -> Result<String, Error> {
    serde_saphyr::to_string(object).map_err(|error| Error::Yaml {
        file,
        cause: error.to_string(),
    })
}

/// Arguments of `weft manifests`.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Reference of the image to install.
    #[arg(long, value_name = "REF")]
    pub image: String,
    /// Directory to write the files to; without it they go to standard output as one.
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Namespace of the operator, and of what it deploys.
    #[arg(long, value_name = "NAMESPACE", default_value = names::DEFAULT_NAMESPACE)]
    pub namespace: String,
    /// Version of the operator, for status and labels.
    #[arg(long, value_name = "VERSION", default_value = env!("CARGO_PKG_VERSION"))]
    pub version: String,
    /// When the image of the operator is pulled.
    #[arg(long, value_name = "POLICY", default_value = "IfNotPresent", value_parser = ["Always", "IfNotPresent", "Never"])]
    pub image_pull_policy: String,
}

/// Writes the files of an installation. The example goes to a directory only: on standard output it
/// would be applied with the rest.
pub fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        image,
        dir,
        namespace,
        version,
        image_pull_policy,
    } = args;
    let install = Install {
        image: &image,
        namespace: &namespace,
        version: &version,
        pull_policy: &image_pull_policy,
    };
    let files = render_install(&install)?;
    if let Some(dir) = dir {
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        for (name, yaml) in files {
            let path = dir.join(name);
            fs::write(&path, yaml).with_context(|| format!("cannot write {}", path.display()))?;
        }
    } else {
        let texts: Vec<_> = files
            .into_iter()
            .filter(|(name, _)| *name != FILES[3])
            .map(|(_, yaml)| yaml)
            .collect();
        std::io::Write::write_all(&mut std::io::stdout(), texts.join("---\n").as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
