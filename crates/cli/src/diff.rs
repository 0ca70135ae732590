//! `weft diff`: the changes that the operator would make in the cluster.
//!
//! ```text
//! file or cluster ── configuration resource ──┐
//! cluster ── record, platform, Deployment ────┴──> plan ──> objects to apply, objects to delete
//! cluster ── live objects ───────────────────────────────────────┴──> compare ──> text
//! ```

mod text;

use std::{path::PathBuf, sync::Arc, time::Duration};

use api::names::NETWORK_ADDONS_KIND;
use kube::core::params::ListParams;
use kube_kit::{
    connection::Answer,
    merge::{self, Difference, Policy},
    object::{self, ObjectId},
};
use serde_json::Value;

use super::{
    connection::{self, named},
    environment::{self, Deployment},
    input,
    render::flat,
};
use operator::{
    cluster_facts::{Cluster, NodeState},
    detect,
    plan::{Observed, Plan, Rejection},
    record::{self, Record},
    resource::{self, Resource},
    settings::Settings,
    watches,
};

/// Start of the text of `weft diff --help`.
pub(super) const ABOUT: &str = "\
Show what the operator would change in the cluster

With -f, compares with the objects of that NetworkAddonsConfig; without it, with
those of the one in the cluster. This shows drift, and the effect of another
operator version or image (--images-from, --image). Compares as the operator
does: defaults of the API server and fields of other clients are no difference.

Nothing is written. The contents of Secrets, bundles of certificates and the
operator's own record are not shown.";

/// End of the text of `weft diff --help`.
const EXAMPLES: &str = "\
Examples:
  weft diff                              drift in the cluster
  weft diff -f cr.yaml                   before a change is applied
  weft diff --images-from operator.yaml  before an upgrade of the operator

The environment of the operator is read from its Deployment in the cluster; the
flags above override it.

Marks: + created, ~ changed, -/+ recreated, - deleted, ! cannot be applied.

Exit code: 0 no difference, 1 differences, 2 the cluster cannot be compared.";

/// Arguments of `weft diff`.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// File with the NetworkAddonsConfig; - is standard input [default: the one in the cluster]
    #[arg(short, long, value_name = "FILE")]
    pub(crate) filename: Option<PathBuf>,
    /// Settings of the operator; by default those of its Deployment in the cluster.
    #[command(flatten)]
    pub(crate) operator: environment::Flags,
    /// Access to the cluster.
    #[command(flatten)]
    pub(crate) cluster: kube_kit::connection::Flags,
}

/// A diff that cannot be made. Each text has the next step.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error(transparent)]
    Input(#[from] input::Error),
    /// There is no configuration resource in the cluster.
    #[error(
        "there is no {NETWORK_ADDONS_KIND} in the cluster\nShow what one would do by `weft diff -f cr.yaml`; `weft status` \
         shows what one looks like."
    )]
    NoConfiguration,
    #[error("the {NETWORK_ADDONS_KIND} in the cluster is being deleted, and all that it owns with it")]
    Deleted,
    /// The settings of the operator are unknown.
    #[error(transparent)]
    Environment(#[from] environment::Error),
    #[error(transparent)]
    Cluster(#[from] connection::Error),
    #[error("the operator would change nothing: {0}")]
    Rejected(#[from] Rejection),
    /// An object can never be applied.
    #[error("{object}: {cause}")]
    Refused { object: String, cause: merge::Error },
}

impl From<kube_kit::connection::Error> for Error {
    fn from(error: kube_kit::connection::Error) -> Self {
        Self::Cluster(error.into())
    }
}

/// The operator's change of an object.
#[derive(Clone, Debug, PartialEq)]
enum Change {
    Created,
    Changed(Vec<Difference>),
    /// Deleted and created, because an immutable field differs.
    Recreated(Vec<Difference>),
    Deleted,
    /// The cluster does not serve the kind.
    NotServed,
}

/// An object that would be changed.
#[derive(Clone, Debug, PartialEq)]
struct ObjectDiff {
    id: ObjectId,
    change: Change,
    /// The rendered object; null for a deletion.
    wanted: Value,
    /// The live object; null for a creation.
    live: Value,
}

/// Reads the cluster, and compares.
///
/// # Errors
/// If the cluster cannot be read, or the operator would reject the specification.
pub(super) async fn run(args: &Args) -> Result<Answer, Error> {
    let input = args.filename.as_deref().map(input::read).transpose()?;
    let cluster = connection::Cluster::connect(&args.cluster).await?;
    let live = cluster.configuration().await?;
    let (cr, mut notes) = match input {
        Some(input) => (proposed(input.object, live.as_ref()), input.notes),
        None => (live.ok_or(Error::NoConfiguration)?, Vec::new()),
    };
    let uid = cr
        .pointer("/metadata/uid")
        .and_then(Value::as_str)
        .unwrap_or_default();
    let cr = Resource {
        uid: uid.to_owned(),
        object: Arc::new(cr),
    };
    let settings = settings(&args.operator, &cluster).await?;
    let observed = observe(&cluster, &cr, &settings).await?;
    let plan = Plan::of(&observed)?;
    notes.extend(remarks(&plan));

    // In the order of the operator's steps.
    let leftovers: Vec<_> = plan.leftovers.iter().map(|(_, id)| id.clone()).collect();
    let mut diffs = gone(&cluster, &leftovers, |_| true).await?;
    let rendered = flat(plan.groups.clone());
    let own_namespace = object::NAMESPACE.object(None, &settings.operator_namespace);
    diffs.extend(unlabelled(
        &own_namespace,
        &plan,
        &rendered,
        observed.own_namespace.as_deref(),
    ));
    let mut unchanged = 0;
    for wanted in plan.freed.iter().chain(&rendered) {
        let id = ObjectId::of(wanted);
        let live = cluster.get(&id).await?;
        let is_served = live.is_some() || defines(&rendered, &id) || cluster.serves(&id).await?;
        let stale: &[String] = if id == own_namespace {
            &plan.own_labels
        } else {
            &[]
        };
        match compare(wanted, live, is_served, stale)? {
            Some(diff) => diffs.push(diff),
            None => unchanged += 1,
        }
    }
    let is_owned = |live: &Value| object::owned_by(live, NETWORK_ADDONS_KIND);
    diffs.extend(gone(&cluster, &plan.pruned, is_owned).await?);
    Ok(Answer::new(
        text::print(&diffs, unchanged),
        notes,
        diffs.is_empty() && plan.unrendered.is_empty(),
    ))
}

/// Notes on a plan.
fn remarks(plan: &Plan) -> Vec<String> {
    let unrendered = plan.unrendered.iter();
    let unrendered =
        unrendered.map(|(component, error)| format!("spec.{component} cannot be rendered: {error}"));
    let drawn = "the operator would choose a range of MAC addresses for spec.kubeMacPool at random";
    let drawn = plan.draws_range.then(|| drawn.to_owned());
    unrendered.chain(drawn).collect()
}

/// Whether a rendered definition defines the kind of an object.
fn defines(rendered: &[Value], id: &ObjectId) -> bool {
    let defines = |object: &Value| {
        object["kind"] == object::CUSTOM_RESOURCE_DEFINITION.kind
            && object.pointer("/spec/group").and_then(Value::as_str) == Some(&id.group)
            && object.pointer("/spec/names/kind").and_then(Value::as_str) == Some(&id.kind)
    };
    rendered.iter().any(defines)
}

/// The labels that the operator's own namespace loses, if that is not rendered.
fn unlabelled(id: &ObjectId, plan: &Plan, rendered: &[Value], live: Option<&Value>) -> Option<ObjectDiff> {
    let live = live.filter(|_| !plan.own_labels.is_empty())?;
    let is_rendered = rendered.iter().any(|object| ObjectId::of(object) == *id);
    (!is_rendered).then(|| ObjectDiff {
        id: id.clone(),
        change: Change::Changed(stale_labels(live, &plan.own_labels)),
        wanted: Value::Null,
        live: live.clone(),
    })
}

/// The existing objects of a list that the operator may delete.
async fn gone(
    cluster: &connection::Cluster,
    ids: &[ObjectId],
    may: impl Fn(&Value) -> bool,
) -> Result<Vec<ObjectDiff>, Error> {
    let mut diffs = Vec::new();
    for id in ids {
        if let Some(live) = cluster.get(id).await?.filter(&may) {
            diffs.push(ObjectDiff {
                id: id.clone(),
                change: Change::Deleted,
                wanted: Value::Null,
                live,
            });
        }
    }
    Ok(diffs)
}

/// The configuration resource of a file in the form that the cluster would have.
fn proposed(mut object: Value, live: Option<&Value>) -> Value {
    let Some(metadata) = live.and_then(|live| live.get("metadata")) else {
        return object;
    };
    let mut merged = metadata.clone();
    let labels = object.pointer("/metadata/labels").and_then(Value::as_object);
    for (key, value) in labels.into_iter().flatten() {
        merged["labels"][key] = value.clone();
    }
    object["metadata"] = merged;
    object
}

/// The settings of the operator: from the file in the flags, else from its Deployment in the cluster; single flags
/// override both.
async fn settings(flags: &environment::Flags, cluster: &connection::Cluster) -> Result<Settings, Error> {
    if let Some(deployment) = flags.deployment()? {
        return Ok(flags.settings(Some(&deployment), |_| None)?);
    }
    match cluster.operator(flags.namespace.as_deref()).await? {
        Some(live) => {
            // The Deployment is already found, and it names the namespace of the operands.
            let flags = environment::Flags {
                namespace: None,
                ..flags.clone()
            };
            let settings = flags.settings(Some(&Deployment::of(&live)), |_| None)?;
            // The layout of the nodes comes from the node of the operator's pod.
            let namespace = Some(settings.operator_namespace.as_str());
            let named = ListParams::default().labels(&format!("name={}", operator::names::OPERATOR));
            let pods = cluster.list(object::POD, namespace, &named).await?;
            let pod_name = pods.first().map(|pod| ObjectId::of(pod).name);
            Ok(Settings { pod_name, ..settings })
        }
        None if flags.image.is_some() => Ok(flags.settings(None, |name| std::env::var(name).ok())?),
        None => Err(connection::Error::NoOperator {
            place: match &flags.namespace {
                Some(namespace) => format!("namespace {namespace}"),
                None => "any namespace".to_owned(),
            },
        }
        .into()),
    }
}

async fn observe<'a>(
    cluster: &connection::Cluster,
    cr: &'a Resource,
    settings: &'a Settings,
) -> Result<Observed<'a>, Error> {
    let client = cluster.client();
    let asked = |what: &str| {
        let what = what.to_owned();
        move |error: kube::Error| connection::Error::of(&what, &error)
    };
    let found = detect::at_start(client, settings, Duration::ZERO).await;
    let platform = found.map_err(connection::Error::from)?.platform;
    let openshift_network = if platform.openshift4 {
        detect::openshift_network(client)
            .await
            .map_err(asked("OpenShift's network configuration"))?
    } else {
        None
    };
    let definition = if cr.wants_node_state() {
        cluster.get(&watches::definition(object::NMSTATE)).await?
    } else {
        None
    };
    let node_state = match definition {
        Some(definition) => {
            let nmstates = detect::node_states(client).await;
            let nmstates = nmstates.map_err(asked("NMState objects"))?;
            NodeState {
                definition: detect::node_state_definition(&definition),
                object: detect::nmstate_object(nmstates.as_deref()),
            }
        }
        None => NodeState::default(),
    };
    let record = cluster.get(&record::id(&settings.operator_namespace)).await?;
    if resource::is_given_up(&cr.object, record.as_ref()) {
        return Err(Error::Deleted);
    }
    let applied = match record {
        Some(record) => record::read_under(&record, &cr.uid).map_err(|error| error.to_string()),
        None => Ok(Record::default()),
    };
    let own_namespace = object::NAMESPACE.object(None, &settings.operator_namespace);
    let networks = watches::definition(object::NETWORK_ATTACHMENT_DEFINITION);
    Ok(Observed {
        resource: cr,
        settings,
        cluster: Cluster {
            platform,
            openshift_network,
        },
        node_state,
        applied,
        own_namespace: cluster.get(&own_namespace).await?.map(Arc::new),
        networks: cluster.get(&networks).await?,
        // The operator draws others; these octets are not printed.
        random: [0; 2],
    })
}

/// The operator's change of a rendered object, which also loses the labels `stale`; `None` without a change.
fn compare(
    rendered: &Value,
    live: Option<Value>,
    is_served: bool,
    stale: &[String],
) -> Result<Option<ObjectDiff>, Error> {
    let id = ObjectId::of(rendered);
    let policy = Policy::owned_by(NETWORK_ADDONS_KIND);
    let refused = |cause| Error::Refused {
        object: named(&id),
        cause,
    };
    let plan = merge::plan(rendered, live.as_ref(), &policy).map_err(refused)?;
    let live = live.unwrap_or_default();
    let differences = || merge::differences(rendered, &live, &policy);
    let mut change = match plan {
        _ if !is_served => Some(Change::NotServed),
        merge::Change::Unchanged => None,
        merge::Change::Create(_) => Some(Change::Created),
        merge::Change::Update(_) => Some(Change::Changed(differences().map_err(refused)?)),
        merge::Change::Recreate(_) => Some(Change::Recreated(differences().map_err(refused)?)),
    };
    let stale = stale_labels(&live, stale);
    match &mut change {
        Some(Change::Changed(differences)) => differences.extend(stale),
        None if !stale.is_empty() => change = Some(Change::Changed(stale)),
        _ => {}
    }
    Ok(change.map(|change| ObjectDiff {
        id,
        change,
        wanted: rendered.clone(),
        live,
    }))
}

/// Labels that the operator removes from its own namespace.
fn stale_labels(namespace: &Value, keys: &[String]) -> Vec<Difference> {
    let difference = |key: &String| {
        Some(Difference {
            path: format!("metadata.labels.{key}"),
            wanted: None,
            found: Some(namespace.get("metadata")?.get("labels")?.get(key)?.clone()),
        })
    };
    keys.iter().filter_map(difference).collect()
}

#[cfg(test)]
mod tests;
