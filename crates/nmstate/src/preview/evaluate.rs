//! Evaluates a policy for a node with the handler's code, on the node's report instead of the node.

use serde_json::{Map, Value};

use super::Policy;
use super::changes::{self, Change};
use super::gather::ReportedNode;
use crate::engine::{self, Backend, Engine, Error, Filled, Request, Tool};
use crate::legacy::{self, matching, normalise};
use crate::policy::selection;
use crate::render::{self, PolicySpec};
use crate::{apply, secrets};

/// Effect of a policy on a node.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Outcome {
    /// The policy does not select the node, which lacks these labels.
    NotSelected(Vec<String>),
    /// The effect is unknown, with the reason.
    Unknown(String),
    /// The policy would fail, with the error.
    Fails(String),
    /// The changes, if any, and notes about them.
    Changes(Vec<Change>, Vec<&'static str>),
}

/// Note about rules with VLANs without LLDP.
const NO_LLDP: &str =
    "LLDP is not enabled everywhere: which interfaces match by VLANs is known when the policy is applied";
/// Note about sections that reports do not include.
const UNREPORTED: &str =
    "reports have no host name, route rules or ovs-db: those changes may be there already";

/// Evaluates a policy for a node. The library only computes, and reads no host.
pub(super) async fn outcome(
    library: &Engine,
    policy: &Policy,
    node: &ReportedNode,
    captured: Option<&Map<String, Value>>,
) -> Outcome {
    let lacking = selection::unmatched(&selection::selector(&policy.spec), &node.facts.labels);
    if !lacking.is_empty() {
        return Outcome::NotSelected(lacking);
    }
    let Some(report) = &node.report else {
        return Outcome::Unknown("no report: no handler runs there".to_owned());
    };
    let engine = engine_for_report(library.clone(), report.clone());
    match evaluated(&engine, policy, node, report, captured).await {
        Ok((diff, notes)) => Outcome::Changes(changes::of(&diff, report), notes),
        Err(text) => Outcome::Fails(text),
    }
}

async fn evaluated(
    engine: &Engine,
    policy: &Policy,
    node: &ReportedNode,
    report: &Value,
    captured: Option<&Map<String, Value>>,
) -> Result<(Value, Vec<&'static str>), String> {
    let mut notes = Vec::new();
    let mut captured = captured.cloned().unwrap_or_default();
    let refused = |error: Error| secrets::hidden_in(&error.text, &policy.spec);
    let mut spec = PolicySpec::read(&policy.spec).map_err(refused)?;
    // Reports do not include the backend of a node.
    let document = legacy::document(engine, None, &policy.spec, Backend::default()).await;
    if let Some(document) = document.map_err(|error| error.to_string())? {
        captured.clear();
        let old = legacy::policy::OriginalPolicy::of(&policy.spec).ok().flatten();
        if old.is_some_and(|old| !matching::has_neighbours(&old, report)) {
            notes.push(NO_LLDP);
        }
        spec = PolicySpec::only(document.desired);
    }
    let rendered = render::render(engine, &spec, &node.facts, captured).await;
    let rendered = rendered.map_err(refused)?;
    if apply::is_empty(&rendered.desired) {
        return Ok((Value::Null, notes));
    }
    let diff = engine.diff(rendered.desired.clone()).await;
    let diff = diff.map_err(|error| secrets::hidden_in(&error.text, &rendered.desired))?;
    if ["hostname", "route-rules", "ovs-db"]
        .iter()
        .any(|section| diff.get(section).is_some_and(normalise::has_content))
    {
        notes.push(UNREPORTED);
    }
    Ok((secrets::hidden(&diff), notes))
}

/// An engine whose host is a report.
fn engine_for_report(library: Engine, report: Value) -> Engine {
    let (engine, mut requests) = Engine::channel();
    tokio::spawn(async move {
        // A caller that has gone needs no answer.
        while let Some(request) = requests.recv().await {
            let current = Some(report.clone());
            match request {
                Request::Report(back) => drop(back.send(Ok(report.clone()))),
                Request::Fill(template, back) => {
                    let policy =
                        serde_json::json!({ "capture": template.capture, "desiredState": template.desired });
                    let captured = template.captured;
                    let filled = library.tool(Tool::Policy {
                        policy,
                        current,
                        captured,
                    });
                    drop(back.send(filled.await.map(filled_in)));
                }
                Request::Diff(desired, back) => {
                    drop(back.send(library.tool(Tool::Diff { desired, current }).await));
                }
                Request::Features(_, back) => drop(back.send(Ok(Vec::new()))),
                Request::Tool(tool, back) => drop(back.send(library.tool(tool).await)),
                Request::Versions(back) => drop(back.send(Err(untouchable()))),
                Request::Apply(_, back)
                | Request::Commit(back)
                | Request::Rollback(back)
                | Request::Close(back) => {
                    drop(back.send(Err(untouchable())));
                }
            }
        }
    });
    engine
}

fn filled_in(mut filled: Value) -> Filled {
    Filled {
        desired: filled["desired"].take(),
        captured: match filled["captured"].take() {
            Value::Object(captured) => captured,
            _ => Map::new(),
        },
    }
}

fn untouchable() -> Error {
    Error::new(engine::BUG, "a report cannot be changed")
}

#[cfg(test)]
mod tests;
