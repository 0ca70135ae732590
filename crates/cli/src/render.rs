//! `weft render`: the objects that the operator would apply, without a cluster.
//!
//! Validation, defaults, components and labels are those of the operator. Flags replace the facts that the operator
//! would read from a cluster.

use std::{path::PathBuf, sync::Arc};

use api::names::NETWORK_ADDONS_KIND;
use kube_kit::{connection::Answer, object::ObjectId};
use serde_json::{Value, json};

use super::{
    environment::{self, Flags},
    input,
};
use operator::{
    cluster_facts::{Cluster, NMStateObject, NodeState, NodeStateDefinition, OpenShiftNetwork, Platform},
    manifest,
    plan::{Observed, Plan, Rejection},
    record::Record,
    render::Group,
    resource::Resource,
    settings::Settings,
};

/// Start of the text of `weft render --help`.
pub(super) const ABOUT: &str = "\
Print the objects that the operator would apply, without a cluster

Reads a NetworkAddonsConfig (v1 or v1alpha1; YAML or JSON; other documents in
the file are skipped) and prints the objects that the operator would apply for
it, in the order in which it would apply them: for review, for GitOps, or to see
the effect of a setting. The same input gives the same bytes.

The output has no owner references, because they contain the uid of an object in
a cluster, and not the ConfigMap with the operator's own record. A specification
that the operator would reject is rejected with the operator's text.";

/// End of the text of `weft render --help`.
const EXAMPLES: &str = "\
Examples:
  weft render -f cr.yaml --image registry.example/weft:1.0
  weft render -f cr.yaml --images-from operator.yaml --openshift
  kubectl get networkaddonsconfig cluster -o yaml | weft render -f - -o json
  MULTUS_IMAGE=ghcr.io/k8snetworkplumbingwg/multus-cni:v4.2.3-thick \\
    weft render -f cr.yaml --image registry.example/weft:1.0

Without --images-from, the variables of the operator are taken from this
program's environment: MULTUS_IMAGE, LINUX_BRIDGE_IMAGE, OPERATOR_IMAGE, ...
The defaults are those of the shipped Deployment: namespace
cluster-network-addons, the version of this program, monitoring in
openshift-monitoring.

Exit code: 0 printed, 1 rejected or unusable.";

/// Arguments of `weft render`.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File with the NetworkAddonsConfig; - is standard input
    #[arg(short, long, value_name = "FILE")]
    pub(crate) filename: PathBuf,
    /// Format of the output: a stream of YAML documents, or one JSON list
    #[arg(short, long, value_name = "FORMAT", value_enum, default_value_t)]
    pub(crate) output: Output,
    /// For plain Kubernetes; the default
    #[arg(long, conflicts_with = "openshift")]
    pub(crate) kubernetes: bool,
    /// For OpenShift 4: its directories, its DNS and certificates, its own multus
    #[arg(long)]
    pub(crate) openshift: bool,
    /// Whether there are security context constraints [default: on OpenShift]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) scc: Option<bool>,
    /// Whether there is the Prometheus operator [default: on OpenShift]
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub(crate) monitoring: Option<bool>,
    /// Settings of the operator.
    #[command(flatten)]
    pub(crate) operator: Flags,
}

#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, clap::ValueEnum)]
pub(crate) enum Output {
    /// One document per object.
    #[default]
    Yaml,
    Json,
}

/// A rendering that fails. Each text has the next step.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Input(#[from] input::Error),
    /// The settings of the operator are unknown.
    #[error(transparent)]
    Environment(#[from] environment::Error),
    #[error(transparent)]
    Rejected(#[from] Rejection),
    /// An image is unknown.
    #[error("{0}\nSet it with --image REF, or with --images-from FILE and a manifest of the operator.")]
    Image(manifest::Error),
    /// A defect of the operator's own files.
    #[error(transparent)]
    Manifest(manifest::Error),
    /// The operator would draw a random range.
    #[error(
        "spec.kubeMacPool has no range: the operator would choose one at random once and keep it, so that no two \
         renderings would be the same\nWrite rangeStart and rangeEnd into the specification. In a cluster that has \
         one, read it with:\n  kubectl get configmap kubemacpool-mac-range-config -n {namespace} -o yaml"
    )]
    RandomRange { namespace: String },
    /// An object cannot be written as YAML.
    #[error("cannot write {object} as YAML: {cause}")]
    Yaml { object: String, cause: String },
}

impl From<manifest::Error> for Error {
    fn from(error: manifest::Error) -> Self {
        match error {
            manifest::Error::OwnImage | manifest::Error::Image(_) => Self::Image(error),
            other => Self::Manifest(other),
        }
    }
}

#[derive(Debug)]
pub(super) struct Rendered {
    /// The objects, by component, in order.
    pub(crate) groups: Vec<Group>,
}

/// Renders the objects.
///
/// # Errors
/// If the operator would reject the specification, or a fact is missing that the operator would know.
pub(super) fn run(args: &Args) -> Result<Answer, Error> {
    let input = input::read(&args.filename)?;
    let deployment = args.operator.deployment()?;
    let settings = args
        .operator
        .settings(deployment.as_ref(), |name| std::env::var(name).ok())?;
    let rendered = render(input.object, &settings, args)?;
    let objects = flat(rendered.groups);
    let text = match args.output {
        Output::Yaml => yaml(&objects)?,
        Output::Json => format!(
            "{:#}\n",
            json!({ "apiVersion": "v1", "kind": "List", "items": objects })
        ),
    };
    Ok(Answer::new(text, input.notes, true))
}

/// The cluster that the flags describe.
fn cluster(args: &Args) -> Cluster {
    let openshift = args.openshift;
    Cluster {
        platform: platform(
            Platform::default(),
            openshift,
            args.scc.unwrap_or(openshift),
            args.monitoring.unwrap_or(openshift),
        ),
        openshift_network: openshift.then(OpenShiftNetwork::default),
    }
}

fn platform(mut platform: Platform, openshift4: bool, scc: bool, monitoring: bool) -> Platform {
    platform.openshift4 = openshift4;
    platform.scc = scc;
    platform.monitoring = monitoring;
    platform
}

/// Renders a configuration resource as the operator would on a new cluster.
///
/// # Errors
/// If the operator would reject the specification, or a fact is missing that the operator would know.
pub(super) fn render(object: Value, settings: &Settings, args: &Args) -> Result<Rendered, Error> {
    let cluster = cluster(args);
    let cr = Resource {
        object: Arc::new(object),
        uid: String::new(),
    };
    let plan = Plan::of(&Observed {
        resource: &cr,
        settings,
        cluster,
        // The state after everything is applied.
        node_state: NodeState {
            definition: NodeStateDefinition::Ours,
            object: NMStateObject::None,
        },
        applied: Ok(Record::default()),
        own_namespace: None,
        networks: None,
        random: [0; 2],
    })?;
    if let Some((_, error)) = plan.unrendered.into_iter().next() {
        return Err(error.into());
    }
    let mut groups = plan.groups;
    if plan.draws_range {
        return Err(Error::RandomRange {
            namespace: settings.operand_namespace.clone(),
        });
    }
    for object in groups.iter_mut().flat_map(|group| &mut group.objects) {
        disown(object);
    }
    Ok(Rendered { groups })
}

/// Removes the reference to the configuration resource, whose uid is unknown.
fn disown(object: &mut Value) {
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else {
        return;
    };
    if let Some(owners) = metadata.get_mut("ownerReferences").and_then(Value::as_array_mut) {
        owners.retain(|owner| owner["kind"] != NETWORK_ADDONS_KIND);
        if owners.is_empty() {
            metadata.shift_remove("ownerReferences");
        }
    }
}

/// All objects in order, each once: many tools refuse a file with an object twice. An object of several components gets
/// the labels of all, as if they were applied one after the other.
pub(super) fn flat(groups: Vec<Group>) -> Vec<Value> {
    let mut objects: Vec<Value> = Vec::new();
    for object in groups.into_iter().flat_map(|group| group.objects) {
        let id = ObjectId::of(&object);
        match objects.iter_mut().find(|known| ObjectId::of(known) == id) {
            Some(known) => add_labels(known, &object),
            None => objects.push(object),
        }
    }
    objects
}

fn add_labels(object: &mut Value, more: &Value) {
    let more = more.pointer("/metadata/labels").and_then(Value::as_object);
    for (key, value) in more.into_iter().flatten() {
        object["metadata"]["labels"][key] = value.clone();
    }
}

fn yaml(objects: &[Value]) -> Result<String, Error> {
    let mut text = String::new();
    for object in objects {
        let mut sorted = object.clone();
        sorted.sort_all_objects();
        let document = serde_saphyr::to_string(&sorted).map_err(|error| Error::Yaml {
            object: ObjectId::of(object).to_string(),
            cause: error.to_string(),
        })?;
        text.push_str("---\n");
        text.push_str(&document);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::fs;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    /// Runs the command on a configuration with this specification.
    fn rendered(spec: &Value, flags: &[&str]) -> Result<(String, String), Error> {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("cr.yaml");
        let cr = json!({
            "apiVersion": "networkaddonsoperator.network.kubevirt.io/v1", "kind": "NetworkAddonsConfig",
            "metadata": { "name": "cluster", "labels": { "app.kubernetes.io/part-of": "hyper" } }, "spec": spec,
        });
        fs::write(&file, cr.to_string()).expect("a file");
        let file = file.display().to_string();
        let arguments = ["render", "-f", &file].into_iter().chain(flags.iter().copied());
        let answer = run(&Command::try_parse_from(arguments).expect("arguments").args)?;
        Ok((answer.text, answer.remarks))
    }

    fn objects(text: &str) -> Vec<Value> {
        serde_saphyr::from_multiple(text).expect("YAML")
    }

    fn names(text: &str) -> Vec<String> {
        let name = |object: &Value| {
            let text = |pointer: &str| {
                object
                    .pointer(pointer)
                    .and_then(Value::as_str)
                    .unwrap_or_default()
                    .to_owned()
            };
            format!("{} {}", text("/kind"), text("/metadata/name"))
        };
        objects(text).iter().map(name).collect()
    }

    const IMAGE: [&str; 2] = ["--image", "weft:1"];

    #[test]
    fn render_prints_objects_in_order_of_application() {
        let (text, notes) = rendered(&json!({ "multus": {}, "linuxBridge": {} }), &IMAGE).expect("objects");
        assert_eq!(notes, "");
        assert_eq!(
            names(&text),
            [
                "Namespace cluster-network-addons",
                "CustomResourceDefinition network-attachment-definitions.k8s.cni.cncf.io",
                "ClusterRole multus",
                "ClusterRoleBinding multus",
                "ServiceAccount multus",
                "ConfigMap multus-daemon-config",
                "DaemonSet multus",
                "ClusterRole bridge-marker-cr",
                "ClusterRoleBinding bridge-marker-crb",
                "ServiceAccount bridge-marker",
                "DaemonSet kube-cni-linux-bridge-plugin",
                "DaemonSet bridge-marker",
                "NetworkPolicy cnao-allow-egress-to-cluster-api",
                "NetworkPolicy cnao-allow-egress-to-cluster-dns",
            ]
        );
        let labels = |object: &Value| object["metadata"]["labels"].clone();
        for object in &objects(&text)[1..] {
            assert_eq!(labels(object)["app.kubernetes.io/part-of"], "hyper");
            assert_eq!(
                labels(object)["networkaddonsoperator.network.kubevirt.io/version"],
                env!("CARGO_PKG_VERSION")
            );
        }
        assert!(!text.contains("ownerReferences"), "{text}");
    }

    #[test]
    fn render_of_same_input_is_identical_in_both_formats() {
        let spec = json!({ "multus": {}, "linuxBridge": {}, "ovs": {} });
        let (first, _) = rendered(&spec, &IMAGE).expect("objects");
        let (second, _) = rendered(&spec, &IMAGE).expect("objects");
        assert_eq!(first, second);
        let (json, _) = rendered(&spec, &[&IMAGE[..], &["-o", "json"]].concat()).expect("objects");
        let list: Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(list["kind"], "List");
        assert_eq!(list["items"], json!(objects(&first)));
    }

    #[test]
    fn render_reports_rejection_with_texts_of_operator() {
        let spec =
            json!({ "imagePullPolicy": "Sometimes", "kubeMacPool": { "rangeStart": "02:00:00:00:00:00" } });
        let error = rendered(&spec, &IMAGE).expect_err("an error").to_string();
        assert_eq!(
            error,
            "failed to validate NetworkConfig.Spec: invalid configuration:\n\
             both or none of the KubeMacPool ranges needs to be configured\n\
             requested imagePullPolicy 'Sometimes' is not valid"
        );
        let error = rendered(&json!({ "multus": 7 }), &IMAGE)
            .expect_err("an error")
            .to_string();
        assert!(
            error.starts_with("failed to validate NetworkConfig.Spec: invalid configuration:\n"),
            "{error}"
        );
    }

    #[test]
    fn render_refuses_pool_without_range() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("operator.yaml");
        let deployment = json!({
            "apiVersion": "apps/v1", "kind": "Deployment",
            "metadata": { "name": "cluster-network-addons-operator", "namespace": "addons" },
            "spec": { "template": { "spec": { "containers": [{
                "image": "weft:1", "env": [{ "name": "KUBEMACPOOL_IMAGE", "value": "pool:1" }],
            }] } } },
        });
        fs::write(&file, deployment.to_string()).expect("a file");
        let file = file.display().to_string();
        let from = ["--images-from", file.as_str()];
        let error = rendered(&json!({ "kubeMacPool": {} }), &from)
            .expect_err("an error")
            .to_string();
        assert!(error.starts_with("spec.kubeMacPool has no range: "), "{error}");
        assert!(
            error.ends_with("kubemacpool-mac-range-config -n addons -o yaml"),
            "{error}"
        );
        let range = json!({ "rangeStart": "02:00:00:00:00:00", "rangeEnd": "02:00:00:00:00:ff" });
        let (text, _) = rendered(&json!({ "kubeMacPool": range }), &from).expect("objects");
        assert!(
            text.contains("image: pool:1") && text.contains("namespace: addons"),
            "{text}"
        );
    }

    #[test]
    fn render_prints_shared_object_once() {
        let namespace = |labels: Value| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "a", "labels": labels } });
        let group = |component, object| Group {
            component,
            objects: vec![object],
            issued: Vec::new(),
        };
        let groups = vec![
            group("multus", namespace(json!({ "a": "1" }))),
            group("multus", json!({ "kind": "Pod" })),
            group("ovs", namespace(json!({ "b": "2" }))),
        ];
        assert_eq!(
            flat(groups),
            [namespace(json!({ "a": "1", "b": "2" })), json!({ "kind": "Pod" })]
        );
    }

    #[test]
    fn render_without_needed_image_names_flags() {
        let error = rendered(&json!({ "multus": {} }), &[])
            .expect_err("an error")
            .to_string();
        assert!(error.contains("MULTUS_IMAGE is not set"), "{error}");
        assert!(error.contains("--image REF"), "{error}");
        assert!(
            rendered(&json!({}), &[]).is_ok(),
            "an empty specification needs none"
        );
    }

    #[test]
    fn render_for_openshift_omits_its_own_components() {
        let flags = |more: &[&'static str]| [&IMAGE[..], more].concat();
        let (text, _) = rendered(
            &json!({ "multus": {}, "linuxBridge": {} }),
            &flags(&["--openshift"]),
        )
        .expect("objects");
        let all = names(&text);
        assert!(
            !all.contains(&"DaemonSet multus".to_owned()),
            "OpenShift has its own: {all:?}"
        );
        assert!(
            all.iter()
                .any(|name| name.starts_with("SecurityContextConstraints")),
            "{all:?}"
        );
        let (without, _) = rendered(
            &json!({ "linuxBridge": {} }),
            &flags(&["--openshift", "--scc=false"]),
        )
        .expect("objects");
        assert!(!without.contains("SecurityContextConstraints"), "{without}");
        let (with, _) =
            rendered(&json!({ "linuxBridge": {} }), &flags(&["--kubernetes", "--scc"])).expect("objects");
        assert!(with.contains("SecurityContextConstraints"), "{with}");
    }
}
