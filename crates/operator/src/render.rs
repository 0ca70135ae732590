//! From a complete specification to the objects that have to be there, in order (operator §8).

use api::network_addons::{Container, NetworkAddonsConfigSpec};
use kube_kit::{
    inventory::Inventory,
    object::{self, Kind, ObjectId},
};
use serde_json::Value;

use crate::{
    components::{self, Component, Context, Leftover, Place},
    labels::Stamp,
    manifest::Error,
};

/// The objects of one component.
#[derive(Clone, Debug)]
pub struct Group {
    /// Name of the component.
    pub component: &'static str,
    /// Its objects in the order in which they are applied.
    pub objects: Vec<Value>,
}

/// The objects of all components that are deployed, complete with labels and owners.
pub fn render(context: &Context<'_>, stamp: &Stamp) -> Result<Vec<Group>, Error> {
    deployed(context)
        .map(|component| group(component, context, stamp))
        .collect()
}

fn group(component: &dyn Component, context: &Context<'_>, stamp: &Stamp) -> Result<Group, Error> {
    let mut objects = component.render(context)?;
    for object in &mut objects {
        stamp.put_on(object)?;
    }
    let objects = objects
        .into_iter()
        .map(crate::manifest::Manifest::into_value)
        .collect();
    Ok(Group {
        component: component.name(),
        objects,
    })
}

fn enabled<'a>(context: &'a Context<'_>) -> impl Iterator<Item = &'static dyn Component> + 'a {
    components::ALL
        .into_iter()
        .filter(|component| component.enabled(context.spec))
}

fn deployed<'a>(context: &'a Context<'_>) -> impl Iterator<Item = &'static dyn Component> + 'a {
    enabled(context).filter(|component| component.has_programs(context))
}

/// Components that the specification asks for, and that this version does not deploy. What belongs to any specification
/// was not asked for.
pub fn not_deployed(context: &Context<'_>) -> Vec<&'static str> {
    let nothing = NetworkAddonsConfigSpec::default();
    enabled(context)
        .filter(|component| !component.enabled(&nothing))
        .filter(|component| !component.has_programs(context))
        .map(Component::name)
        .collect()
}

/// Objects of earlier versions that have to go before the enabled components are applied.
pub fn leftovers(context: &Context<'_>) -> Vec<ObjectId> {
    deployed(context)
        .flat_map(|component| component.leftovers(context.cluster))
        .map(|leftover| leftover.id(context.namespace))
        .collect()
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

/// Objects that operators before ours left behind, and that go if the configuration resource owns them
/// (operator §9.2): the old node state component, the passt binding, and what else was forgotten; of the secondary DNS
/// nothing where it is asked for, also not while its program is still to come. What stands in the way of a component is
/// among them: it is not removed before the component is applied when nobody asks for that any more.
pub fn legacy(context: &Context<'_>) -> Vec<ObjectId> {
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
    const LEGACY: [Leftover; 15] = [
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
        Leftover {
            kind: object::NETWORK_ATTACHMENT_DEFINITION,
            place: Place::Namespace("default"),
            name: "primary-udn-kubevirt-binding",
        },
        // Of the first generation's kubemacpool (operands §12).
        operands(object::POD_DISRUPTION_BUDGET, "mac-controller-manager"),
    ];
    // Of releases that forgot them when the secondary DNS was given up (secondary-dns §1).
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
        .flat_map(|component| component.leftovers(context.cluster));
    LEGACY
        .iter()
        .chain(forgotten)
        .chain(renamed)
        .map(|leftover| leftover.id(context.namespace))
        .collect()
}

/// What is recorded of the objects: all that may have to be pruned one day. Definitions and namespaces
/// are kept for ever (operator §9.2).
pub fn inventory(groups: &[Group]) -> Inventory {
    let ids = groups.iter().flat_map(|group| &group.objects).map(ObjectId::of);
    Inventory::of(ids.filter(|id| !is_kept(id)))
}

/// Whether an object is never pruned.
pub fn is_kept(id: &ObjectId) -> bool {
    id.kind == object::CUSTOM_RESOURCE_DEFINITION.kind || id.kind == object::NAMESPACE.kind
}

/// Whether an object is a DaemonSet or a Deployment.
pub fn is_workload(id: &ObjectId) -> bool {
    id.group == "apps" && matches!(id.kind.as_str(), "DaemonSet" | "Deployment")
}

/// Workloads among the objects, in order.
pub fn workloads(groups: &[Group]) -> Vec<ObjectId> {
    let ids = groups.iter().flat_map(|group| &group.objects).map(ObjectId::of);
    ids.filter(is_workload).collect()
}

/// Containers for the status: of each DaemonSet and Deployment the init containers, then the others.
pub fn containers(groups: &[Group]) -> Vec<Container> {
    let mut all = Vec::new();
    for object in groups.iter().flat_map(|group| &group.objects) {
        let text = |value: &Value, pointer: &str| {
            value
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let kind = text(object, "/kind");
        if !is_workload(&ObjectId::of(object)) {
            continue;
        }
        for list in ["initContainers", "containers"] {
            let list = object
                .pointer(&format!("/spec/template/spec/{list}"))
                .and_then(Value::as_array);
            for container in list.into_iter().flatten() {
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
