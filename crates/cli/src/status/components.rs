//! The components with their states and workloads.

use api::network_addons::Condition;
use kube_kit::{document, object::ObjectId};
use serde::Serialize;
use serde_json::{Map, Value, json};

use super::{Observed, pods::text};
use operator::{
    cluster_facts::{Cluster, NodeState, NodeStateDefinition},
    components, configuration,
    images::Images,
    names::{self, condition, reason},
    plan::{self, Plan},
    record::Record,
    resource::{self, Resource},
    settings::Settings,
    workloads,
};

/// A requested component.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Component {
    pub(super) name: &'static str,
    pub(super) state: State,
    pub(super) workloads: Vec<Workload>,
}

/// State of a component.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum State {
    Available,
    Progressing,
    Degraded,
    /// It has no workload and no condition.
    #[default]
    NotDeployed,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Workload {
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) ready: i64,
    pub(super) desired: i64,
    /// Images of its containers, without duplicates.
    pub(super) images: Vec<String>,
}

/// The component of a condition: `MultusAvailable` belongs to multus.
pub(super) fn component_of(kind: &str) -> Option<&'static str> {
    components::names().find(|name| condition::of_component(name) == kind)
}

pub(super) fn components(
    configuration: &Value,
    observed: &Observed,
    conditions: &[&Condition],
) -> Vec<Component> {
    let spec = configuration.get("spec").cloned().unwrap_or_default();
    // A condition reports an unreadable specification.
    let spec = configuration::read(spec).unwrap_or_default();
    let nothing = configuration::read(Value::Null).unwrap_or_default();
    let (wanted, always) = (components::enabled(&spec), components::enabled(&nothing));
    let known = known_workloads();
    let described = components::names().filter_map(|name| {
        let names = known.iter().find(|(known, _)| *known == name).map(|(_, ids)| ids);
        let live: Vec<&Value> = observed
            .workloads
            .iter()
            .filter(|object| is_owned(object, configuration))
            .filter(|object| {
                let id = ObjectId::of(object);
                names.is_some_and(|names| {
                    names
                        .iter()
                        .any(|known| known.kind == id.kind && known.name == id.name)
                })
            })
            .collect();
        let condition = conditions
            .iter()
            .find(|found| component_of(&found.kind) == Some(name));
        let is_wanted = wanted.contains(&name) && !always.contains(&name);
        // Components of any configuration are shown only if they have a problem. Components that are no longer
        // requested are shown while they run on because the configuration is rejected.
        let is_shown = is_wanted || !live.is_empty() || condition.is_some_and(|found| found.status != "True");
        is_shown.then(|| Component {
            name,
            state: state(condition.copied(), &live),
            workloads: live.into_iter().map(workload).collect(),
        })
    });
    described.collect()
}

/// Whether this configuration resource owns a workload, and not an earlier one.
fn is_owned(object: &Value, configuration: &Value) -> bool {
    let uid = configuration.pointer("/metadata/uid").and_then(Value::as_str);
    uid.is_none() || resource::owner_uid(object) == uid
}

/// State of a component: from its condition, else from its workloads.
fn state(condition: Option<&Condition>, live: &[&Value]) -> State {
    match condition {
        Some(found) if found.status == "True" => State::Available,
        Some(found) if is_rolling(found) => State::Progressing,
        Some(_) => State::Degraded,
        None if live.is_empty() => State::NotDeployed,
        None if workloads::unfinished(live).is_empty() => State::Available,
        None => State::Progressing,
    }
}

/// Whether a component is not available because it is being rolled out.
pub(super) fn is_rolling(found: &Condition) -> bool {
    found.status != "True" && [reason::STARTUP, reason::DEPLOYING].contains(&found.reason.as_str())
}

/// The workloads of every component, as rendered with all components enabled.
fn known_workloads() -> Vec<(&'static str, Vec<ObjectId>)> {
    let names = components::names();
    let all: Map<String, Value> = names.map(|name| (name.to_owned(), json!({}))).collect();
    let resource = Resource {
        object: json!({ "spec": all }).into(),
        uid: String::new(),
    };
    let settings = Settings {
        images: Images::read(|_| None).with_own(Some(names::OPERATOR.to_owned())),
        operand_namespace: names::DEFAULT_NAMESPACE.to_owned(),
        ..Settings::default()
    };
    let plan = Plan::of(&plan::Observed {
        resource: &resource,
        settings: &settings,
        cluster: Cluster::default(),
        node_state: NodeState {
            definition: NodeStateDefinition::Ours,
            ..NodeState::default()
        },
        applied: Ok(Record::default()),
        own_namespace: None,
        networks: None,
        random: [0; 2],
    });
    plan.map(|plan| plan.deployed).unwrap_or_default()
}

pub(super) fn workload(object: &Value) -> Workload {
    let id = ObjectId::of(object);
    let number = |pointer: &str| object.pointer(pointer).and_then(Value::as_i64);
    let (ready, desired) = if id.kind == "DaemonSet" {
        (
            number("/status/numberReady"),
            number("/status/desiredNumberScheduled"),
        )
    } else {
        (
            number("/status/readyReplicas"),
            Some(number("/spec/replicas").unwrap_or(1)),
        )
    };
    let mut images = Vec::new();
    for list in ["initContainers", "containers"] {
        for container in document::list(object, &format!("/spec/template/spec/{list}")) {
            let image = text(container, "/image");
            if !images.contains(&image) {
                images.push(image);
            }
        }
    }
    Workload {
        kind: id.kind,
        namespace: id.namespace.unwrap_or_default(),
        name: id.name,
        ready: ready.unwrap_or(0),
        desired: desired.unwrap_or(0),
        images,
    }
}
