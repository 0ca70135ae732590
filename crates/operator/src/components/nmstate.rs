//! Node state: interfaces of nodes by policies (operands §15, operator §15).
//!
//! ```text
//! spec.nmstate ──> node state operator ──┐
//!                  NMState nmstate ──────┴──> handlers, webhook, ... , owned by the NMState
//! ```
//!
//! If another operator has installed the API, only the object is created, and that operator reconciles it.

use kube_kit::{cache::Object, document::list, object};
use serde_json::Value;

use super::Context;
use crate::{
    cluster_facts::{NMStateObject, NodeStateDefinition},
    images::Image,
    manifest::{self, Error, Manifest},
    names::condition,
    workloads::{State, Workload},
};

/// Name of the component.
pub(crate) const NAME: &str = "nmstate";

/// Name of our `NMState`.
const OBJECT: &str = "nmstate";

pub(crate) fn render(context: &Context<'_>) -> Result<Vec<Manifest>, Error> {
    let mut objects = context.namespace_object()?;
    if context.node_state.definition != NodeStateDefinition::Foreign {
        objects.push(Manifest::definition(api::node_state::crd())?);
        let mut operator = context.in_namespace(operator()?);
        for workload in operator.iter_mut().filter(|object| object.has_pods()) {
            complete(workload, context)?;
        }
        objects.extend(operator);
    }
    let settings = match &context.node_state.object {
        NMStateObject::NotServed | NMStateObject::Foreign => return Ok(objects),
        NMStateObject::None => None,
        NMStateObject::Ours(settings) => Some(settings),
    };
    let mut nmstate = context.in_namespace(default_object()?);
    if let Some(settings) = settings {
        // An existing object is the user's; the configuration does not change it.
        for object in &mut nmstate {
            object.set("spec", settings.clone());
        }
    }
    objects.extend(nmstate);
    Ok(objects)
}

/// The objects of the node state operator, without the values that depend on the installation.
pub fn operator() -> Result<Vec<Manifest>, Error> {
    manifest::parse("nmstate/operator.yaml", include_str!("nmstate/operator.yaml"))
}

/// The `NMState` for clusters without one.
pub fn default_object() -> Result<Vec<Manifest>, Error> {
    manifest::parse("nmstate/nmstate.yaml", include_str!("nmstate/nmstate.yaml"))
}

/// Progress of handlers, webhook and metrics. The node state operator deploys them, and reports them in the conditions
/// of the `NMState`. `objects` are all objects of the kind, `None` if the API is not served.
pub(crate) fn second_step(definition: NodeStateDefinition, nmstates: Option<&[Object]>) -> Workload {
    let chosen = nmstates.and_then(chosen);
    let name = chosen.and_then(|nmstate| nmstate.pointer("/metadata/name")?.as_str());
    let id = object::NMSTATE.object(None, name.unwrap_or(OBJECT));
    let subject = format!("{} \"{}\"", object::NMSTATE.kind, id.name);
    let served = object::NMSTATE.api_version();
    let state = match (chosen, definition) {
        (Some(nmstate), _) => state(&subject, definition, nmstate),
        (None, NodeStateDefinition::Foreign) if nmstates.is_none() => State::Progressing(format!(
            "{subject} cannot be created: the definition of its kind, which is not the operator's, serves no {served}"
        )),
        (None, _) if nmstates.is_none() => {
            State::Progressing(format!("{subject} is not created yet: {served} is not served"))
        }
        (None, _) => State::Progressing(format!("{subject} is not created yet")),
    };
    Workload { id, state }
}

/// The `NMState` that a node state operator reconciles: the oldest, and among several with the same creation second one
/// with a status.
fn chosen(nmstates: &[Object]) -> Option<&Value> {
    let text = |nmstate: &Value, pointer: &str| {
        let text = nmstate.pointer(pointer).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let all = nmstates.iter().map(|nmstate| &**nmstate);
    all.filter(|nmstate| nmstate.pointer("/metadata/deletionTimestamp").is_none())
        .min_by_key(|&nmstate| {
            (
                text(nmstate, "/metadata/creationTimestamp"),
                nmstate.pointer("/status/conditions").is_none(),
                text(nmstate, "/metadata/name"),
            )
        })
}

/// The state in the conditions of an `NMState`. Weft's operator always writes conditions; releases of other operators
/// wrote none for a long time.
fn state(subject: &str, definition: NodeStateDefinition, nmstate: &Value) -> State {
    let reported = |kind: &str| {
        let found = list(nmstate, "/status/conditions").find(|found| found["type"] == kind)?;
        let message = found["message"].as_str().unwrap_or_default();
        Some((found["status"] == "True", message))
    };
    let (available, message) = match reported(condition::AVAILABLE) {
        Some(found) => found,
        None if definition == NodeStateDefinition::Foreign => return State::Ready,
        None => return State::Progressing(format!("{subject} is not taken up by its operator yet")),
    };
    if available {
        return State::Ready;
    }
    let message = match reported(condition::PROGRESSING) {
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
    const SERVED_BY_OTHERS: NodeStateDefinition = NodeStateDefinition::Foreign;

    fn nmstate(name: &str, created: &str, conditions: &Value) -> Object {
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
    fn second_step_follows_conditions_of_nmstate() {
        let of = |conditions: &Value| {
            let nmstates = [nmstate("nmstate", "2026-01-01T00:00:00Z", conditions)];
            second_step(SERVED_BY_US, Some(&nmstates[..])).state
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
        // The object is Degraded, because a part of the TLS profile is not served, and Available anyway.
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
        let of = |definition, nmstates: Option<&[Object]>| second_step(definition, nmstates).state;
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
        // Another operator may write no conditions at all.
        let silent = [nmstate("theirs", "2026-01-01T00:00:00Z", &json!([]))];
        assert_eq!(
            second_step(SERVED_BY_OTHERS, Some(&silent[..])).state,
            State::Ready
        );
    }

    #[test]
    fn second_step_uses_nmstate_that_operator_keeps() {
        let available = json!([{ "type": "Available", "status": "True" }]);
        let nmstates = [
            nmstate("younger", "2026-01-02T00:00:00Z", &json!([])),
            nmstate("older", "2026-01-01T00:00:00Z", &available),
        ];
        let workload = second_step(SERVED_BY_US, Some(&nmstates[..]));
        assert_eq!(
            (workload.id.name.as_str(), workload.state),
            ("older", State::Ready)
        );
        let mut deleted = Value::clone(&nmstates[1]);
        deleted["metadata"]["deletionTimestamp"] = json!("2026-01-03T00:00:00Z");
        let workload = second_step(SERVED_BY_US, Some(&[nmstates[0].clone(), deleted.into()]));
        assert_eq!(workload.id.name, "younger");
    }
}
