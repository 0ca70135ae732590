//! Renders a complete specification into the ordered objects of the deployment (operator §8).

use api::network_addons::Container;
use kube_kit::{
    document,
    inventory::Inventory,
    object::{self, Kind, ObjectId},
};
use serde_json::Value;

use crate::{
    components::{self, Component, Context, Leftover, Place},
    labels::Stamp,
    manifest::Error,
};

/// The rendered objects of one component.
#[derive(Clone, Debug)]
pub struct Group {
    /// Name of the component.
    pub component: &'static str,
    /// The objects in the order in which they are applied.
    pub objects: Vec<Value>,
    /// Objects of the component that are not rendered, such as Secrets: their content depends on the observed state.
    pub issued: Vec<ObjectId>,
}

/// The objects of all deployed components, with labels and owners.
pub fn render(context: &Context<'_>, stamp: &Stamp) -> Result<Vec<Group>, Error> {
    each(context, stamp).map(|(_, group)| group).collect()
}

/// Renders each component by itself, and returns the results by name. A component that cannot be rendered does not
/// affect the others.
pub(crate) fn each<'a>(
    context: &'a Context<'_>,
    stamp: &'a Stamp,
) -> impl Iterator<Item = (&'static str, Result<Group, Error>)> + 'a {
    enabled(context).map(|component| (component.name, group(&component, context, stamp)))
}

fn group(component: &Component, context: &Context<'_>, stamp: &Stamp) -> Result<Group, Error> {
    let mut objects = (component.render)(context)?;
    for object in &mut objects {
        stamp.put_on(object)?;
    }
    let mut objects: Vec<Value> = objects
        .into_iter()
        .map(crate::manifest::Manifest::into_value)
        .collect();
    // The sort is stable: objects of one rank keep the order of the component.
    objects.sort_by_key(rank);
    Ok(Group {
        component: component.name,
        objects,
        issued: (component.issued)(context)?,
    })
}

/// Rank of an object: prerequisites are applied first. Namespaces and definitions come before accounts and their
/// rights: the API server refuses a pod before its account exists, and refuses the requests of a pod before its rights
/// exist.
fn rank(object: &Value) -> u8 {
    const FOUNDATIONS: [Kind; 2] = [object::NAMESPACE, object::CUSTOM_RESOURCE_DEFINITION];
    const ACCESS: [Kind; 6] = [
        object::SERVICE_ACCOUNT,
        object::SECURITY_CONTEXT_CONSTRAINTS,
        object::CLUSTER_ROLE,
        object::CLUSTER_ROLE_BINDING,
        object::ROLE,
        object::ROLE_BINDING,
    ];
    let is_one_of = |kinds: &[Kind]| kinds.iter().any(|kind| object["kind"] == kind.kind);
    if is_one_of(&FOUNDATIONS) {
        0
    } else if is_one_of(&ACCESS) {
        1
    } else {
        2
    }
}

fn enabled<'a>(context: &'a Context<'_>) -> impl Iterator<Item = Component> + 'a {
    components::ALL
        .into_iter()
        .filter(|component| (component.enabled)(context.spec))
}

/// Objects of earlier versions that must be gone before the enabled components are applied, each with its component.
pub(crate) fn leftovers(context: &Context<'_>) -> Vec<(&'static str, ObjectId)> {
    let of = |component: Component| {
        let leftovers = (component.leftovers)(context.cluster).iter();
        leftovers.map(move |leftover| (component.name, leftover.id(context.namespace)))
    };
    enabled(context).flat_map(of).collect()
}

impl Leftover {
    fn id(&self, operand_namespace: &str) -> ObjectId {
        let namespace = match self.place {
            Place::Operands => Some(operand_namespace),
            Place::Namespace(namespace) => Some(namespace),
            Place::Cluster => None,
        };
        self.kind.object(namespace, self.name)
    }
}

/// Leftovers of earlier operators, which are deleted if the configuration resource owns them (operator §9.2): the old
/// node state component, the passt binding, and other forgotten objects. Leftovers of the secondary DNS are kept if it
/// is requested, even before its program is deployed. Objects that conflict with a component are included: if the
/// component is no longer requested, no other step deletes them.
pub(crate) fn legacy(context: &Context<'_>) -> Vec<ObjectId> {
    const fn operands(kind: Kind, name: &'static str) -> Leftover {
        Leftover {
            kind,
            place: Place::Operands,
            name,
        }
    }
    const fn cluster(kind: Kind, name: &'static str) -> Leftover {
        Leftover {
            kind,
            place: Place::Cluster,
            name,
        }
    }
    const LEGACY: [Leftover; 17] = [
        operands(object::SERVICE_ACCOUNT, "nmstate-handler"),
        operands(object::DAEMON_SET, "nmstate-handler"),
        operands(object::ROLE, "nmstate-handler"),
        operands(object::ROLE_BINDING, "nmstate-handler"),
        operands(object::SERVICE, "nmstate-webhook"),
        operands(object::DEPLOYMENT, "nmstate-webhook"),
        operands(object::POD_DISRUPTION_BUDGET, "nmstate-webhook"),
        operands(object::CONFIG_MAP, "nmstate-config"),
        operands(object::DEPLOYMENT, "nmstate-cert-manager"),
        cluster(object::CLUSTER_ROLE, "nmstate-handler"),
        cluster(object::CLUSTER_ROLE_BINDING, "nmstate-handler"),
        cluster(object::MUTATING_WEBHOOK_CONFIGURATION, "nmstate"),
        operands(object::DAEMON_SET, "passt-binding-cni"),
        // OpenShift only.
        operands(object::SERVICE_ACCOUNT, "passt-binding-cni"),
        cluster(object::SECURITY_CONTEXT_CONSTRAINTS, "passt-binding-cni"),
        Leftover {
            kind: object::NETWORK_ATTACHMENT_DEFINITION,
            place: Place::Namespace("default"),
            name: "primary-udn-kubevirt-binding",
        },
        // Objects of the first generation's kubemacpool (operands §12).
        operands(object::POD_DISRUPTION_BUDGET, "mac-controller-manager"),
    ];
    // Leftovers of releases that did not delete them with the secondary DNS (secondary-dns §1).
    const SECONDARY_DNS: [Leftover; 6] = [
        operands(object::CONFIG_MAP, "secondary-dns"),
        cluster(object::CLUSTER_ROLE, "secondary"),
        cluster(object::CLUSTER_ROLE_BINDING, "secondary"),
        operands(object::SERVICE_ACCOUNT, "secondary"),
        operands(object::DEPLOYMENT, "secondary-dns"),
        operands(object::NETWORK_POLICY, "allow-ingress-to-secondary-dns"),
    ];
    let forgotten: &[Leftover] = if context.spec.kube_secondary_dns.is_none() {
        &SECONDARY_DNS
    } else {
        &[]
    };
    let renamed = components::ALL
        .into_iter()
        .flat_map(|component| (component.leftovers)(context.cluster));
    LEGACY
        .iter()
        .chain(forgotten)
        .chain(renamed)
        .map(|leftover| leftover.id(context.namespace))
        .collect()
}

/// The inventory of the objects: the candidates for later pruning. Definitions and namespaces are never pruned
/// (operator §9.2).
pub(crate) fn inventory(groups: &[Group]) -> Inventory {
    groups.iter().fold(Inventory::default(), |all, group| {
        let rendered = group.objects.iter().map(ObjectId::of);
        let ids = rendered.chain(group.issued.iter().cloned());
        all.union(&Inventory::of_component(
            group.component,
            ids.filter(|id| !is_kept(id)),
        ))
    })
}

/// The objects to delete: recorded, no longer rendered, and not of a component that currently cannot be rendered. While
/// such a component exists, entries without a component, which an earlier version recorded, are kept.
pub(crate) fn superfluous(planned: &Inventory, groups: &[Group], unrendered: &[&str]) -> Vec<ObjectId> {
    planned.prune(&inventory(groups), |id| {
        let is_held = |component: Option<&str>| match component {
            Some(component) => unrendered.contains(&component),
            None => !unrendered.is_empty(),
        };
        is_kept(id) || is_held(planned.component(id))
    })
}

/// Whether an object is never pruned.
pub(crate) fn is_kept(id: &ObjectId) -> bool {
    id.kind == object::CUSTOM_RESOURCE_DEFINITION.kind || id.kind == object::NAMESPACE.kind
}

pub(crate) fn is_workload(id: &ObjectId) -> bool {
    id.group == "apps" && matches!(id.kind.as_str(), "DaemonSet" | "Deployment")
}

pub(crate) fn workloads(group: &Group) -> Vec<ObjectId> {
    group
        .objects
        .iter()
        .map(ObjectId::of)
        .filter(is_workload)
        .collect()
}

/// Containers for the status: the init containers of each DaemonSet and Deployment, then its containers.
pub(crate) fn containers(groups: &[Group]) -> Vec<Container> {
    let mut all = Vec::new();
    for object in groups.iter().flat_map(|group| &group.objects) {
        let text = |value: &Value, pointer: &str| document::text(value, pointer).to_owned();
        let kind = text(object, "/kind");
        if !is_workload(&ObjectId::of(object)) {
            continue;
        }
        for list in ["initContainers", "containers"] {
            for container in document::list(object, &format!("/spec/template/spec/{list}")) {
                all.push(Container {
                    parent_kind: kind.clone(),
                    parent_name: text(object, "/metadata/name"),
                    name: text(container, "/name"),
                    image: text(container, "/image"),
                });
            }
        }
    }
    all
}

#[cfg(test)]
mod tests;
