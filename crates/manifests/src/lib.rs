//! Installation of the operator: namespace, definition, operator, example (operator §13).
//!
//! ```text
//! yaml files ─┬─> parts ─┬─> files, flat and as a tree by version, bundle for OLM   (release, csv)
//! rules ──────┘          ├─> templates of the Helm chart                            (chart)
//!                        ├─> the MAC pool alone                                     (mac_pool)
//!                        ├─> the node state operator alone                          (node_state)
//!                        ├─> multus alone                                           (multus_alone)
//!                        ├─> the pod network                                        (pod_network)
//!                        └─> data for the templates of parent operators             (templator)
//! ```

use std::{collections::BTreeMap, fs, path::PathBuf};

use anyhow::Context as _;
use clap::builder::NonEmptyStringValueParser;
use program::terminal;
use serde::Serialize;
use serde_json::{Value, json};

mod chart;
mod csv;
pub(crate) mod mac_pool;
pub(crate) mod multus_alone;
pub(crate) mod node_state;
pub(crate) mod pod_network;
mod release;
mod template;
pub mod templator;

use operator::{
    admission_policy::{self, Action},
    images::{self, Image},
    labels,
    manifest::{self, Manifest},
    names::{self, env},
    rbac,
};

/// Files of an installation, in the order in which they are applied.
pub(crate) const FILES: [&str; 4] = [
    "namespace.yaml",
    "network-addons-config.crd.yaml",
    "operator.yaml",
    "network-addons-config-example.cr.yaml",
];

/// A file of a release: its path below the directory of the release, and its content.
type File = (String, String);

/// The parameters of an installation.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Install<'a> {
    /// Reference of the image, which contains all programs.
    pub image: &'a str,
    /// Namespace of the operator and of its operands.
    pub namespace: &'a str,
    /// Version in status and labels.
    pub version: &'a str,
    /// Pull policy of the operator's image.
    pub pull_policy: &'a str,
}

/// An installation that cannot be rendered, because of a defect of the operator's own files.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file lacks the target of a step.
    #[error(transparent)]
    Manifest(#[from] manifest::Error),
    /// A definition cannot be generated.
    #[error(transparent)]
    Definition(#[from] api::Error),
    /// A file has no object.
    #[error("{file} holds no object")]
    Empty {
        /// Name of the file.
        file: &'static str,
    },
    /// The version is not a semantic version.
    #[error("version {0:?} is not like 1.2.3 or 1.2.3-rc.1")]
    Version(String),
    /// The version and the one that it replaces are one version for OLM.
    #[error("version {version:?} cannot replace {replaces:?}: both have the name {name}")]
    Replaces {
        /// The version.
        version: String,
        /// The version that it replaces.
        replaces: String,
        /// The name of both.
        name: String,
    },
    /// An object cannot be written as YAML.
    #[error("cannot write {file}: {cause}")]
    Yaml {
        /// Name of the file.
        file: &'static str,
        /// Error of the serializer.
        cause: String,
    },
}

/// Options of the generators beyond an [`Install`].
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Choice {
    /// Images of operands by their [variable](images::variables). A missing variable is empty: the operator's own image.
    pub(crate) images: BTreeMap<&'static str, String>,
    /// Whether the operator may deploy multus.
    pub(crate) allow_multus: bool,
}

impl Default for Choice {
    fn default() -> Self {
        Self {
            images: BTreeMap::new(),
            allow_multus: true,
        }
    }
}

/// The objects of the operator itself.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Parts {
    /// Service account, roles and their bindings, in the order in which they are applied.
    pub(crate) accounts: Vec<Manifest>,
    /// A role and its binding with the rights that only upstream's images need.
    pub(crate) upstream: Vec<Manifest>,
    pub(crate) deployment: Manifest,
    /// Roles of operands with rights that the operator does not hold, and so cannot grant.
    pub(crate) granted: Vec<Manifest>,
}

pub(crate) fn parts(install: &Install<'_>, choice: &Choice) -> Result<Parts, Error> {
    let file = FILES[2];
    let mut accounts = in_namespace(file, include_str!("accounts.yaml"), install)?;
    for object in &mut accounts {
        let rules = match object.kind() {
            "ClusterRole" => rbac::cluster_rules(choice.allow_multus),
            "Role" => rbac::namespace_rules(),
            _ => continue,
        };
        set_rules(object, rules);
    }
    let mut upstream = in_namespace(file, include_str!("established.yaml"), install)?;
    for role in upstream
        .iter_mut()
        .filter(|object| object.kind() == "ClusterRole")
    {
        set_rules(role, rbac::upstream_rules(choice.allow_multus));
    }
    let mut deployments = in_namespace(file, include_str!("operator.yaml"), install)?;
    let mut deployment = deployments.pop().ok_or(Error::Empty { file })?;
    complete(&mut deployment, install, choice)?;
    Ok(Parts {
        accounts,
        upstream,
        deployment,
        granted: manifest::parse(file, include_str!("nmstate-role.yaml"))?,
    })
}

fn set_rules(role: &mut Manifest, rules: Vec<rbac::Rule>) {
    role.set("rules", rules.into_iter().map(rbac::Rule::to_value).collect());
}

impl Parts {
    /// One cluster role with all rights, for installations that have a single one.
    fn whole_cluster_role(&self) -> Option<Manifest> {
        let is_role = |object: &&Manifest| object.kind() == "ClusterRole";
        let mut role = self.accounts.iter().find(is_role)?.clone();
        let more = self.upstream.iter().filter(is_role);
        let rules = [&role]
            .into_iter()
            .chain(more)
            .filter_map(|role| role.value()["rules"].as_array())
            .flatten();
        let rules = rules.cloned().collect();
        role.set("rules", rules);
        Some(role)
    }
}

/// Renders the files of an installation: pairs of [file name](FILES) and YAML.
pub fn render_install(install: &Install<'_>) -> Result<Vec<(&'static str, String)>, Error> {
    render_files(install, &Choice::default())
}

fn render_files(install: &Install<'_>, choice: &Choice) -> Result<Vec<(&'static str, String)>, Error> {
    let [namespace, definition, operator, example] = FILES;
    let mut namespaces = in_namespace(namespace, include_str!("namespace.yaml"), install)?;
    for object in &mut namespaces {
        object
            .labels_mut()?
            .insert("name".into(), json!(install.namespace));
    }
    let Parts {
        accounts,
        upstream,
        deployment,
        granted,
    } = parts(install, choice)?;
    Ok(vec![
        (namespace, documents(namespace, &namespaces)?),
        (definition, in_order(definition, &api::network_addons::crd()?)?),
        (
            operator,
            documents(
                operator,
                &[accounts, upstream, vec![deployment], granted].concat(),
            )?,
        ),
        (example, documents(example, &example_objects()?)?),
    ])
}

/// The objects of the example.
fn example_objects() -> Result<Vec<Manifest>, Error> {
    Ok(manifest::parse(FILES[3], include_str!("example.yaml"))?)
}

/// Reads the objects of a file, and sets the namespace of the installation.
fn in_namespace(file: &'static str, yaml: &str, install: &Install<'_>) -> Result<Vec<Manifest>, Error> {
    let mut objects = manifest::parse(file, yaml)?;
    for object in &mut objects {
        object.set_namespace(install.namespace);
    }
    Ok(objects)
}

/// Reads the objects of a file, and runs the image of the installation in these containers of its workloads, each of
/// which has some of them.
fn with_image(
    file: &'static str,
    yaml: &str,
    containers: &[&str],
    install: &Install<'_>,
) -> Result<Vec<Manifest>, Error> {
    let mut objects = manifest::parse(file, yaml)?;
    for object in objects.iter_mut().filter(|object| object.has_pods()) {
        let mut pods = object.pods()?;
        for container in containers {
            if let Ok(mut container) = pods.container(container) {
                container.run(Image::Native(install.image), install.pull_policy);
            }
        }
    }
    Ok(objects)
}

/// Files of which one may be applied in addition to the [others](FILES): the admission policy, which warns of invalid
/// configurations or refuses them.
pub(crate) const ADMISSION_FILES: [(&str, Action); 2] = [
    ("admission-policy.yaml", Action::Warn),
    ("admission-policy-deny.yaml", Action::Deny),
];

/// File that may be applied in addition: the admission policies that restrict programs on nodes to their own node.
pub const NODES_FILE: &str = "admission-policy-nodes.yaml";

/// Renders the [admission](ADMISSION_FILES) [policies](NODES_FILE): pairs of file name and YAML.
pub fn render_admission() -> Result<Vec<(&'static str, String)>, Error> {
    let nodes = manifest::parse(NODES_FILE, include_str!("nodes-policy.yaml"))?;
    ADMISSION_FILES
        .into_iter()
        .map(|(name, action)| (name, admission_policy::objects(action).to_vec()))
        .chain([(NODES_FILE, nodes)])
        .map(|(name, objects)| Ok((name, documents(name, &objects)?)))
        .collect()
}

fn complete(deployment: &mut Manifest, install: &Install<'_>, choice: &Choice) -> Result<(), Error> {
    deployment.set_metadata(
        "annotations",
        json!({ api::names::VERSION_LABEL: labels::label_safe(install.version) }),
    )?;
    let mut pods = deployment.pods()?;
    pods.container(names::OPERATOR)?
        .set("image", json!(install.image))
        .set("imagePullPolicy", json!(install.pull_policy))
        .set("env", environment(install, choice));
    Ok(())
}

/// The environment, in upstream's order. An empty image is the operator's own.
fn environment(install: &Install<'_>, choice: &Choice) -> Value {
    let value = environment_value;
    let field =
        |name: &str, path: &str| json!({ "name": name, "valueFrom": { "fieldRef": { "fieldPath": path } } });
    let images = images::variables().into_iter().map(|name| {
        let image = choice.images.get(name).map_or("", String::as_str);
        value(name, image)
    });
    let rest = [
        value(env::OPERATOR_IMAGE, install.image),
        value(env::OPERATOR_NAME, names::OPERATOR),
        value(env::OPERATOR_VERSION, install.version),
        field(env::OPERATOR_NAMESPACE, "metadata.namespace"),
        field(env::OPERAND_NAMESPACE, "metadata.namespace"),
        field(env::POD_NAME, "metadata.name"),
        value(env::WATCH_NAMESPACE, ""),
        value(env::MONITORING_NAMESPACE, names::MONITORING_NAMESPACE),
        value(env::MONITORING_SERVICE_ACCOUNT, "prometheus-k8s"),
        value(
            env::RUNBOOK_URL_TEMPLATE,
            "https://kubevirt.io/monitoring/runbooks/%s",
        ),
        value(env::LOG_LEVEL, "0"),
    ];
    images.chain(rest).collect()
}

fn environment_value(name: &str, value: &str) -> Value {
    json!({ "name": name, "value": value })
}

fn documents(file: &'static str, objects: &[Manifest]) -> Result<String, Error> {
    let documents: Result<Vec<_>, _> = objects.iter().map(|object| yaml(file, object.value())).collect();
    Ok(documents?.join("---\n"))
}

/// An object as text with sorted keys, because their order depends on the steps of rendering.
fn yaml(file: &'static str, object: &Value) -> Result<String, Error> {
    let mut sorted = object.clone();
    sorted.sort_all_objects();
    in_order(file, &sorted)
}

/// A definition as text, in the order of its fields.
fn in_order(file: &'static str, object: &impl Serialize) -> Result<String, Error> {
    serde_saphyr::to_string(object).map_err(|error| Error::Yaml {
        file,
        cause: error.to_string(),
    })
}

/// End of the text of `weft manifests --help`.
const EXAMPLES: &str = "\
Examples:
  weft manifests --image registry.example/weft:1.0 | kubectl apply -f -
  weft manifests --image registry.example/weft:1.0 --dir release
  helm install weft release/chart -n cluster-network-addons --create-namespace";

/// Arguments of `weft manifests`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Reference of the image to install.
    #[arg(long, value_name = "REF", value_parser = NonEmptyStringValueParser::new())]
    pub image: String,
    /// Directory to write a release to: the files to apply, the same by version, an OLM bundle and a Helm chart.
    /// Without it the files to apply go to standard output as one.
    #[arg(long, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    /// Namespace of the operator, and of what it deploys.
    #[arg(long, value_name = "NAMESPACE", default_value = names::DEFAULT_NAMESPACE)]
    pub namespace: String,
    /// Version of the operator, for status and labels.
    #[arg(long, value_name = "VERSION", default_value = env!("CARGO_PKG_VERSION"))]
    pub version: String,
    /// Version that this one replaces, for OLM.
    #[arg(long, value_name = "VERSION")]
    pub(crate) version_replaces: Option<String>,
    /// Image of upstream to deploy instead of Weft's own, as a variable of the operator: `MULTUS_IMAGE=quay.io/…`. Can
    /// be given several times.
    #[arg(long, value_name = "VARIABLE=REF", value_parser = operand_image)]
    pub(crate) operand_image: Vec<(&'static str, String)>,
    /// When the image of the operator is pulled.
    #[arg(long, value_name = "POLICY", default_value = "IfNotPresent", value_parser = ["Always", "IfNotPresent", "Never"])]
    pub(crate) image_pull_policy: String,
}

/// Parses the argument of an image variable.
fn operand_image(text: &str) -> Result<(&'static str, String), String> {
    let (name, image) = text.split_once('=').unwrap_or((text, ""));
    let known = images::variables().into_iter().find(|variable| *variable == name);
    let variable = known.ok_or_else(|| format!("not one of {}", images::variables().join(", ")))?;
    if image.is_empty() {
        return Err("it names no image".to_owned());
    }
    Ok((variable, image.to_owned()))
}

/// Writes the files of an installation. The example is written to a directory only: on standard output it would be
/// applied with the rest.
pub fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        image,
        dir,
        namespace,
        version,
        version_replaces,
        operand_image,
        image_pull_policy,
    } = args;
    let install = Install {
        image: &image,
        namespace: &namespace,
        version: &version,
        pull_policy: &image_pull_policy,
    };
    let choice = Choice {
        images: operand_image.into_iter().collect(),
        allow_multus: true,
    };
    if let Some(dir) = dir {
        for (name, content) in release::release(&install, &choice, version_replaces.as_deref())? {
            let path = dir.join(name);
            let parent = path.parent().unwrap_or(&dir);
            fs::create_dir_all(parent).with_context(|| format!("cannot create {}", parent.display()))?;
            fs::write(&path, content).with_context(|| format!("cannot write {}", path.display()))?;
        }
    } else {
        let texts: Vec<_> = render_files(&install, &choice)?
            .into_iter()
            .filter(|(name, _)| *name != FILES[3])
            .map(|(_, yaml)| yaml)
            .collect();
        return print(&texts.join("---\n"));
    }
    Ok(())
}

fn print(text: &str) -> anyhow::Result<()> {
    terminal::print(text).context("cannot write to standard output")
}

#[cfg(test)]
mod tests;
