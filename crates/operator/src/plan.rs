//! The plan of one reconcile, a pure function of the observed state (operator §4).
//!
//! ```text
//! Observed ──> validate ──> defaults ──> change_safe ──> render ──> Plan ──> reconcile executes, in this order:
//!                 └────────────┴────────────┴─ Rejection    │                leftovers, own labels, freed networks,
//!                                                           │                record, objects, pruned
//!                                                           └──> weft diff, render and status print
//! ```

use std::sync::Arc;

use api::{names::NETWORK_ADDONS_KIND, network_addons::NetworkAddonsConfigSpec};
use kube_kit::{
    inventory::Inventory,
    object::{self, ObjectId},
};
use serde_json::{Value, json};

use crate::{
    cluster_facts::{Cluster, NodeState},
    components::{Context, kube_mac_pool},
    configuration, general,
    images::Images,
    labels::{NOT_ON_OWN_NAMESPACE, Stamp},
    manifest, messages,
    names::reason,
    record::{self, Record},
    render::{self, Group},
    resource::Resource,
    settings::Settings,
    watches,
};

/// The input of a plan.
pub struct Observed<'a> {
    /// The configuration resource.
    pub resource: &'a Resource,
    /// Settings of the operator.
    pub settings: &'a Settings,
    /// Facts about the cluster.
    pub cluster: Cluster,
    /// State of the `NMState` API.
    pub node_state: NodeState,
    /// The record of the last reconcile, or the reason why it cannot be read.
    pub applied: Result<Record, String>,
    /// The operator's own namespace.
    pub own_namespace: Option<Arc<Value>>,
    /// The definition of networks; `None` if it is known to have no owner.
    pub networks: Option<Value>,
    /// Random bytes for a range of MAC addresses, if the specification has none.
    pub random: [u8; 2],
}

/// The work of one reconcile.
#[derive(Debug)]
pub struct Plan {
    /// Objects of earlier versions that are deleted before their component is applied, with any owner.
    pub leftovers: Vec<(&'static str, ObjectId)>,
    /// Labels that are removed from the operator's own namespace.
    pub own_labels: Vec<String>,
    /// The definition of networks without the owner that the first generation set. With that owner, the garbage
    /// collector would delete the networks of all users together with the configuration resource.
    pub freed: Option<Value>,
    /// The ConfigMap that records the specification and the inventory.
    pub record: Value,
    /// All rendered objects, and those of earlier reconciles.
    pub inventory: Inventory,
    /// The objects of each component, in the order in which they are applied.
    pub groups: Vec<Group>,
    /// Objects that are deleted last, if the configuration resource owns them.
    pub pruned: Vec<ObjectId>,
    /// Deployed components with their workloads, including those that cannot be rendered.
    pub deployed: Vec<(&'static str, Vec<ObjectId>)>,
    /// Components that cannot be rendered.
    pub unrendered: Vec<(&'static str, manifest::Error)>,
    /// Whether the plan contains a range of MAC addresses from [`Observed::random`].
    pub draws_range: bool,
}

/// The configuration as a whole is rejected.
#[derive(Debug, thiserror::Error)]
pub enum Rejection {
    /// The specification is invalid, for these reasons.
    #[error("{}", messages::failed_to_validate(.0))]
    Invalid(Vec<String>),
    /// The record of the last reconcile cannot be read.
    #[error("{}", messages::previous_configuration(.0))]
    UnreadableRecord(String),
    /// The change is not allowed, for these reasons.
    #[error("{}", messages::unsafe_change(.0))]
    Unsafe(Vec<String>),
    /// The objects of the previous specification, which an earlier operator applied, cannot be rendered.
    #[error(transparent)]
    History(manifest::Error),
    /// The record cannot be rendered.
    #[error("{0}")]
    Record(String),
}

impl Rejection {
    /// The reason of the condition and of the event.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::Invalid(_) => reason::VALIDATE,
            Self::UnreadableRecord(_) | Self::Unsafe(_) => reason::PREVIOUS_CONFIG,
            Self::History(_) => reason::RENDER_DELETE,
            Self::Record(_) => reason::APPLY,
        }
    }

    /// Whether only a change of the configuration can resolve it.
    pub(crate) fn is_final(&self) -> bool {
        !matches!(self, Self::History(_) | Self::Record(_))
    }
}

impl Plan {
    /// Decides the work. A component that cannot be rendered does not block the others.
    pub fn of(observed: &Observed<'_>) -> Result<Self, Rejection> {
        let Observed {
            resource, settings, ..
        } = observed;
        let asked = resource
            .validated(&observed.cluster)
            .map_err(Rejection::Invalid)?;
        let applied = observed.applied.as_ref();
        let applied = applied.map_err(|cause| Rejection::UnreadableRecord(cause.clone()))?;
        let spec = complete(&asked, applied, observed)?;
        let context = context(&spec, observed);
        let stamp = resource.stamp(settings);

        let rendered = Rendered::of(&context, &stamp);
        let recorded = recorded(applied, &context, &stamp, observed).map_err(Rejection::History)?;
        let inventory = render::inventory(&rendered.groups).union(&recorded);
        let failed: Vec<_> = rendered.failed.iter().map(|(component, _)| *component).collect();
        let record =
            record(&spec, &inventory, &stamp, &settings.operator_namespace).map_err(Rejection::Record)?;
        Ok(Self {
            leftovers: render::leftovers(&context),
            own_labels: own_labels(observed.own_namespace.as_deref()),
            freed: freed(observed.networks.as_ref(), &rendered.groups),
            record,
            pruned: render::superfluous(&inventory, &rendered.groups, &failed),
            inventory,
            groups: rendered.groups,
            deployed: rendered.deployed,
            unrendered: rendered.failed,
            draws_range: draws_range(&asked, applied),
        })
    }
}

/// The complete specification, if the change from the previous one is allowed.
fn complete(
    asked: &NetworkAddonsConfigSpec,
    applied: &Record,
    observed: &Observed<'_>,
) -> Result<NetworkAddonsConfigSpec, Rejection> {
    let previous = applied.spec.as_ref();
    let spec = configuration::complete(asked, previous, observed.cluster.platform, observed.random);
    let errors = previous
        .map(|previous| general::change_safe(previous, &spec))
        .unwrap_or_default();
    if errors.is_empty() {
        Ok(spec)
    } else {
        Err(Rejection::Unsafe(errors))
    }
}

/// Whether the plan needs a random range of MAC addresses: neither the specification nor the record has one.
fn draws_range(asked: &NetworkAddonsConfigSpec, applied: &Record) -> bool {
    let is_open = |spec: &NetworkAddonsConfigSpec| {
        let pool = spec.kube_mac_pool.as_ref();
        pool.is_some_and(|pool| pool.range_start.is_empty() && pool.range_end.is_empty())
    };
    is_open(asked) && kube_mac_pool::kept_range(applied.spec.as_ref()).is_none()
}

fn context<'a>(spec: &'a NetworkAddonsConfigSpec, observed: &'a Observed<'_>) -> Context<'a> {
    Context {
        spec,
        cluster: &observed.cluster,
        images: &observed.settings.images,
        namespace: &observed.settings.operand_namespace,
        prometheus: &observed.settings.prometheus,
        node_state: &observed.node_state,
    }
}

/// All components of a specification.
#[derive(Default)]
struct Rendered {
    groups: Vec<Group>,
    deployed: Vec<(&'static str, Vec<ObjectId>)>,
    failed: Vec<(&'static str, manifest::Error)>,
}

impl Rendered {
    fn of(context: &Context<'_>, stamp: &Stamp) -> Self {
        let mut all = Self::default();
        for (component, group) in render::each(context, stamp) {
            match group {
                // Another operator deploys the component, or the cluster has no monitoring.
                Ok(group) if group.objects.is_empty() => {}
                Ok(group) => {
                    all.deployed.push((component, render::workloads(&group)));
                    all.groups.push(group);
                }
                Err(error) => {
                    all.deployed.push((component, Vec::new()));
                    all.failed.push((component, error));
                }
            }
        }
        all
    }
}

/// The recorded inventory. If the record has none, an earlier operator wrote it: then the objects of its specification,
/// with today's images and with upstream's, whose objects differ, and the leftovers of even earlier operators.
fn recorded(
    applied: &Record,
    context: &Context<'_>,
    stamp: &Stamp,
    observed: &Observed<'_>,
) -> Result<Inventory, manifest::Error> {
    if let Some(inventory) = &applied.inventory {
        return Ok(inventory.clone());
    }
    let Some(previous) = &applied.spec else {
        return Ok(Inventory::default());
    };
    let platform = observed.cluster.platform;
    let previous = configuration::complete(previous, Some(previous), platform, observed.random);
    let before = Context {
        spec: &previous,
        ..*context
    };
    let groups = render::render(&before, stamp)?;
    let images = &Images::of_upstream();
    let of_upstream = Context { images, ..before };
    // A component with fields that upstream lacks cannot be rendered, and was not deployed that way.
    let established: Vec<_> = render::each(&of_upstream, stamp)
        .filter_map(|(_, group)| group.ok())
        .collect();
    Ok(render::inventory(&groups)
        .union(&render::inventory(&established))
        .union(&Inventory::of(render::legacy(context))))
}

fn record(
    spec: &NetworkAddonsConfigSpec,
    inventory: &Inventory,
    stamp: &Stamp,
    operator_namespace: &str,
) -> Result<Value, String> {
    let record = record::render(spec, inventory, operator_namespace);
    let mut record = record.map_err(|error| error.to_string())?;
    stamp.put_on(&mut record).map_err(|error| error.to_string())?;
    Ok(record.into_value())
}

/// Labels that earlier versions set on the operator's own namespace.
fn own_labels(namespace: Option<&Value>) -> Vec<String> {
    let labels = namespace.and_then(|namespace| namespace.pointer("/metadata/labels")?.as_object());
    let keys = labels.into_iter().flat_map(|labels| labels.keys());
    keys.filter(|key| NOT_ON_OWN_NAMESPACE.contains(&key.as_str()))
        .cloned()
        .collect()
}

/// The definition of networks without an owner, if the configuration resource owns it and it is not rendered.
fn freed(networks: Option<&Value>, groups: &[Group]) -> Option<Value> {
    let id = watches::definition(object::NETWORK_ATTACHMENT_DEFINITION);
    let networks = networks.filter(|definition| object::owned_by(definition, NETWORK_ADDONS_KIND))?;
    let mut rendered = groups.iter().flat_map(|group| &group.objects);
    let is_rendered = rendered.any(|object| ObjectId::of(object) == id);
    // Other owners stay.
    let free = json!({
        "apiVersion": id.api_version(), "kind": id.kind,
        "metadata": { "name": id.name }, "spec": networks["spec"],
    });
    (!is_rendered).then_some(free)
}

#[cfg(test)]
mod tests;
