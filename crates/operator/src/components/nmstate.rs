//! Node state: interfaces of nodes by policies (operands §15, operator §15).
//!
//! ```text
//! spec.nmstate ──> node state operator ──┐
//!                  NMState nmstate ──────┴──> handlers, webhook, ... : they belong to the NMState
//! ```
//!
//! Where somebody else brought the API, his operator does the work, and only the object is created.

use api::network_addons::NetworkAddonsConfigSpec;
use kube_kit::{cache::Object, object};
use serde_json::Value;

use super::{Component, Context};
use crate::{
    cluster_facts::{NodeStateDefinition, NodeStateWish},
    images::Image,
    manifest::{Error, Manifest},
    names::condition,
    workloads::{State, Workload},
};

/// Name of our `NMState`.
const WISH: &str = "nmstate";

/// See the module.
pub struct NMState;

impl Component for NMState {
    fn name(&self) -> &'static str {
        "nmstate"
    }

    fn enabled(&self, spec: &NetworkAddonsConfigSpec) -> bool {
        spec.nmstate.is_some()
    }

    fn render(&self, context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
        let mut objects = context.namespace_object()?;
        if context.node_state.definition != NodeStateDefinition::SomebodyElses {
            objects.push(Manifest::definition(api::node_state::crd())?);
            let mut operator =
                context.objects("nmstate/operator.yaml", include_str!("nmstate/operator.yaml"))?;
            for workload in operator.iter_mut().filter(|object| object.has_pods()) {
                complete(workload, context)?;
            }
            objects.extend(operator);
        }
        let settings = match &context.node_state.wish {
            NodeStateWish::NotServed | NodeStateWish::SomebodyElses => return Ok(objects),
            NodeStateWish::None => None,
            NodeStateWish::Ours(settings) => Some(settings),
        };
        let mut wish = context.objects("nmstate/wish.yaml", include_str!("nmstate/wish.yaml"))?;
        if let Some(settings) = settings {
            // What is set up there is the user's: this configuration has nothing to say about it.
            for object in &mut wish {
                object.set("spec", settings.clone());
            }
        }
        objects.extend(wish);
        Ok(objects)
    }
}

/// How far handlers, webhook and metrics are. They are deployed by the node state operator, which says in the conditions
/// of the `NMState` how they are. `wishes` are all objects of the kind, `None` where the API is not served.
pub fn second_step(definition: NodeStateDefinition, wishes: Option<&[Object]>) -> Workload {
    let chosen = wishes.and_then(chosen);
    let name = chosen.and_then(|wish| wish.pointer("/metadata/name")?.as_str());
    let id = object::NMSTATE.object(None, name.unwrap_or(WISH));
    let subject = format!("{} \"{}\"", object::NMSTATE.kind, id.name);
    let served = object::NMSTATE.api_version();
    let state = match (chosen, definition) {
        (Some(wish), _) => state(&subject, definition, wish),
        (None, NodeStateDefinition::SomebodyElses) if wishes.is_none() => State::Progressing(format!(
            "{subject} cannot be created: the definition of its kind, which is not the operator's, serves no {served}"
        )),
        (None, _) if wishes.is_none() => {
            State::Progressing(format!("{subject} is not created yet: {served} is not served"))
        }
        (None, _) => State::Progressing(format!("{subject} is not created yet")),
    };
    Workload { id, state }
}

/// The `NMState` that a node state operator goes by: the oldest, and among several of one second one with a status.
fn chosen(wishes: &[Object]) -> Option<&Value> {
    let text = |wish: &Value, pointer: &str| {
        let text = wish.pointer(pointer).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let all = wishes.iter().map(|wish| &**wish);
    all.filter(|wish| wish.pointer("/metadata/deletionTimestamp").is_none())
        .min_by_key(|&wish| {
            (
                text(wish, "/metadata/creationTimestamp"),
                wish.pointer("/status/conditions").is_none(),
                text(wish, "/metadata/name"),
            )
        })
}

/// What the conditions of an `NMState` say. Ours always gets some; operators of other people wrote none for a long time.
fn state(subject: &str, definition: NodeStateDefinition, wish: &Value) -> State {
    let says = |kind: &str| {
        let conditions = wish.pointer("/status/conditions").and_then(Value::as_array);
        let mut conditions = conditions.into_iter().flatten();
        let found = conditions.find(|found| found["type"] == kind)?;
        let message = found["message"].as_str().unwrap_or_default();
        Some((found["status"] == "True", message))
    };
    let (available, message) = match says(condition::AVAILABLE) {
        Some(said) => said,
        None if definition == NodeStateDefinition::SomebodyElses => return State::Ready,
        None => return State::Progressing(format!("{subject} is not taken up by its operator yet")),
    };
    if available {
        return State::Ready;
    }
    let message = match says(condition::PROGRESSING) {
        Some((true, lines)) => lines,
        _ => message,
    };
    let lines: Vec<_> = message.lines().collect();
    State::Progressing(format!("{subject} is not available ({})", lines.join("; ")))
}

fn complete(workload: &mut Manifest, context: &Context<'_>) -> Result<(), Error> {
    let image = context.images.own().ok_or(Error::OwnImage)?;
    let mut pods = workload.pods()?;
    pods.place(&context.infra())?;
    if context.cluster.platform.scc {
        pods.without_user()?;
    }
    pods.container("nmstate-operator")?
        .run(Image::Native(image), context.pull_policy())
        .variable("MONITORING_NAMESPACE", &context.prometheus.namespace)?
        .variable("RELATED_IMAGE_HANDLER_IMAGE", image)?
        .variable("HANDLER_IMAGE_PULL_POLICY", context.pull_policy())?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const SERVED_BY_US: NodeStateDefinition = NodeStateDefinition::Ours;
    const SERVED_BY_OTHERS: NodeStateDefinition = NodeStateDefinition::SomebodyElses;

    fn wish(name: &str, created: &str, conditions: &Value) -> Object {
        let object = json!({
            "apiVersion": "nmstate.io/v1", "kind": "NMState",
            "metadata": { "name": name, "creationTimestamp": created },
            "status": { "conditions": conditions },
        });
        object.into()
    }

    fn progressing(line: &str) -> State {
        State::Progressing(line.to_owned())
    }

    // operator#85
    #[test]
    fn second_step_is_as_far_as_the_conditions_of_the_nmstate_say() {
        let of = |conditions: &Value| {
            let wishes = [wish("nmstate", "2026-01-01T00:00:00Z", conditions)];
            second_step(SERVED_BY_US, Some(&wishes[..])).state
        };
        let deploying = json!([
            { "type": "Available", "status": "False", "message": "Deploying is in progress" },
            { "type": "Progressing", "status": "True",
              "message": "DaemonSet \"nmstate-handler\" is not available (awaiting 1 nodes)\nanother" },
        ]);
        assert_eq!(
            of(&deploying),
            progressing(
                "NMState \"nmstate\" is not available \
                 (DaemonSet \"nmstate-handler\" is not available (awaiting 1 nodes); another)"
            )
        );
        let failed = json!([
            { "type": "Available", "status": "False", "message": "no image" },
            { "type": "Progressing", "status": "False", "message": "no image" },
        ]);
        assert_eq!(
            of(&failed),
            progressing("NMState \"nmstate\" is not available (no image)")
        );
        // Degraded, for a part of the TLS profile is not served, and available all the same.
        let deployed = json!([
            { "type": "Available", "status": "True" }, { "type": "Degraded", "status": "True" },
        ]);
        assert_eq!(of(&deployed), State::Ready);
        assert_eq!(
            of(&json!([])),
            progressing("NMState \"nmstate\" is not taken up by its operator yet")
        );
    }

    // operator#85
    #[test]
    fn second_step_waits_for_the_kind_and_its_object() {
        let of = |definition, wishes: Option<&[Object]>| second_step(definition, wishes).state;
        for definition in [NodeStateDefinition::None, SERVED_BY_US] {
            assert_eq!(
                of(definition, None),
                progressing("NMState \"nmstate\" is not created yet: nmstate.io/v1 is not served")
            );
        }
        assert_eq!(
            of(SERVED_BY_US, Some(&[])),
            progressing("NMState \"nmstate\" is not created yet")
        );
    }

    // operator#86
    #[test]
    fn second_step_is_never_ready_where_others_serve_no_v1() {
        assert_eq!(
            second_step(SERVED_BY_OTHERS, None).state,
            progressing(
                "NMState \"nmstate\" cannot be created: the definition of its kind, which is not the operator's, \
                 serves no nmstate.io/v1"
            )
        );
        // Their operator may write no conditions at all.
        let silent = [wish("theirs", "2026-01-01T00:00:00Z", &json!([]))];
        assert_eq!(
            second_step(SERVED_BY_OTHERS, Some(&silent[..])).state,
            State::Ready
        );
    }

    #[test]
    fn second_step_goes_by_the_nmstate_that_the_operator_keeps() {
        let available = json!([{ "type": "Available", "status": "True" }]);
        let wishes = [
            wish("younger", "2026-01-02T00:00:00Z", &json!([])),
            wish("older", "2026-01-01T00:00:00Z", &available),
        ];
        let workload = second_step(SERVED_BY_US, Some(&wishes[..]));
        assert_eq!(
            (workload.id.name.as_str(), workload.state),
            ("older", State::Ready)
        );
        let mut deleted = Value::clone(&wishes[1]);
        deleted["metadata"]["deletionTimestamp"] = json!("2026-01-03T00:00:00Z");
        let workload = second_step(SERVED_BY_US, Some(&[wishes[0].clone(), deleted.into()]));
        assert_eq!(workload.id.name, "younger");
    }
}
