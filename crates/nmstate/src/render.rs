//! Renders a policy for one node: variables, captures, and defaults (nmstate §5.5-6, §6).

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::apply::is_empty;
use crate::engine::{self, Engine, INVALID, MALFORMED};
use crate::legacy::normalise;
use crate::{bridge_vlans, secrets, variables};

pub use crate::variables::NodeFacts;

/// The parts of a policy that are rendered.
#[derive(Clone, Debug, Default, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PolicySpec {
    /// Expressions by name.
    pub capture: Map<String, Value>,
    /// The desired state with references to captures. Null if the policy has none.
    pub desired_state: Value,
}

impl PolicySpec {
    /// A desired state without captures.
    pub fn only(desired_state: Value) -> Self {
        Self {
            desired_state,
            ..Self::default()
        }
    }

    /// Reads a policy's spec. Null members count as missing.
    ///
    /// # Errors
    /// If it is malformed: then nothing of the policy is applied.
    pub fn read(spec: &Value) -> Result<Self, engine::Error> {
        let members = spec.as_object().into_iter().flatten();
        let there = members.filter(|(_, value)| !value.is_null());
        let there: Map<String, Value> = there.map(|(key, value)| (key.clone(), value.clone())).collect();
        let invalid = |error: serde_json::Error| engine::Error::new(INVALID, format!("{INVALID}: {error}"));
        Self::deserialize(Value::Object(there)).map_err(invalid)
    }
}

/// A policy rendered for one node.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rendered {
    /// The complete desired state. Null or empty if there is nothing to do.
    pub desired: Value,
    /// Results of the captures by name, to be stored and passed to the next rendering.
    pub captured: Map<String, Value>,
    /// Names of the engine's features that the desired state uses.
    pub features: Vec<String>,
    /// Whether there is nothing to do because no interface of the node matches.
    pub is_unmatched: bool,
}

impl Rendered {
    /// The desired state without secrets, for `status.desiredState` of the enactment.
    pub fn shown(&self) -> Value {
        secrets::hidden(&self.desired)
    }
}

/// Renders a policy for a node. `captured` are earlier results of its captures, which are not evaluated again.
///
/// # Errors
/// If an expression or a reference is invalid or finds nothing, the desired state is malformed, or the host cannot be
/// read.
pub async fn render(
    engine: &Engine,
    spec: &PolicySpec,
    facts: &NodeFacts,
    captured: Map<String, Value>,
) -> Result<Rendered, engine::Error> {
    let mut desired = spec.desired_state.clone();
    normalise::document(&mut desired);
    if is_empty(&desired) {
        return Ok(Rendered::default());
    }
    let mut capture = Value::Object(spec.capture.clone());
    for (value, kind) in [
        (&mut capture, variables::Kind::Captures),
        (&mut desired, variables::Kind::State),
    ] {
        let malformed = |error: variables::Error| engine::Error::new(MALFORMED, error.to_string());
        variables::fill(value, facts, kind).map_err(malformed)?;
    }
    let Value::Object(capture) = capture else {
        return Ok(Rendered::default());
    };
    let filled = engine.fill(engine::Template {
        capture,
        desired,
        captured,
    });
    let engine::Filled {
        mut desired,
        captured,
    } = filled.await?;
    bridge_vlans::fill(&mut desired);
    let features = match engine.features(desired.clone()).await {
        Ok(features) => features,
        Err(error) => {
            // The features are for statistics only.
            tracing::warn!(%error, "cannot determine the features of a desired state");
            Vec::new()
        }
    };
    Ok(Rendered {
        desired,
        captured,
        features,
        is_unmatched: false,
    })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use serde_json::json;

    use super::*;
    use crate::engine::{Filled, Request, Template};

    /// An engine that returns documents unchanged, and records the templates.
    fn engine(features: Result<Vec<String>, engine::Error>) -> (Engine, Arc<Mutex<Vec<Template>>>) {
        let (engine, mut requests) = Engine::channel();
        let asked = Arc::new(Mutex::new(Vec::new()));
        let templates = Arc::clone(&asked);
        tokio::spawn(async move {
            while let Some(request) = requests.recv().await {
                match request {
                    Request::Fill(template, back) => {
                        let filled = Filled {
                            desired: template.desired.clone(),
                            captured: template.captured.clone(),
                        };
                        templates.lock().unwrap().push(template);
                        drop(back.send(Ok(filled)));
                    }
                    Request::Features(_, back) => drop(back.send(features.clone())),
                    other => panic!("not expected: {other:?}"),
                }
            }
        });
        (engine, asked)
    }

    fn spec(spec: Value) -> PolicySpec {
        serde_json::from_value(spec).unwrap()
    }

    // nmstate#51
    #[tokio::test]
    async fn empty_document_needs_no_engine() {
        let (engine, asked) = engine(Ok(Vec::new()));
        for empty in [
            json!({}),
            json!({"desiredState": {}}),
            json!({"desiredState": {"interfaces": null}}),
        ] {
            let rendered = render(&engine, &spec(empty), &NodeFacts::default(), Map::new()).await;
            assert_eq!(rendered, Ok(Rendered::default()));
        }
        assert_eq!(*asked.lock().unwrap(), []);
    }

    #[tokio::test]
    async fn variables_captures_and_vlans_are_filled_in() {
        let (engine, asked) = engine(Ok(vec!["lldp".to_owned()]));
        let policy = spec(json!({
            "capture": {"nic": "interfaces.name==\"{{ node.labels.nic }}\""},
            "desiredState": {"interfaces": [
                {"name": "br1", "type": "linux-bridge", "state": "up", "description": "{{ node.name }}",
                 "bridge": {"slaves": [{"name": "eth1"}]}}]}}));
        let facts = NodeFacts {
            name: "node01".to_owned(),
            labels: [("nic".to_owned(), "eth7".to_owned())].into(),
            ..NodeFacts::default()
        };
        let before: Map<String, Value> = [("nic".to_owned(), json!({"interfaces": []}))]
            .into_iter()
            .collect();
        let rendered = render(&engine, &policy, &facts, before.clone()).await.unwrap();
        assert_eq!(
            rendered.desired,
            json!({"interfaces": [
                {"name": "br1", "type": "linux-bridge", "state": "up", "description": "node01",
                 "bridge": {"port": [{"name": "eth1",
                    "vlan": {"mode": "trunk", "trunk-tags": [{"id-range": {"min": 2, "max": 4094}}]}}]}}]})
        );
        assert_eq!(
            (rendered.captured, rendered.features),
            (before.clone(), vec!["lldp".to_owned()])
        );
        let asked = asked.lock().unwrap();
        assert_eq!(asked[0].capture["nic"], json!("interfaces.name==\"eth7\""));
        assert_eq!(asked[0].captured, before);
    }

    #[tokio::test]
    async fn unknown_features_are_no_failure() {
        let error = engine::Error::new(engine::BUG, "no");
        let (engine, _) = engine(Err(error));
        let policy =
            spec(json!({"desiredState": {"interfaces": [{"name": "eth1", "802.1x": {"password": "x1"}}]}}));
        let rendered = render(&engine, &policy, &NodeFacts::default(), Map::new())
            .await
            .unwrap();
        assert_eq!(rendered.features, [] as [&str; 0]);
        assert_eq!(
            rendered.shown()["interfaces"][0]["802.1x"]["password"],
            secrets::HIDDEN
        );
        assert_eq!(rendered.desired["interfaces"][0]["802.1x"]["password"], "x1");
    }

    #[tokio::test]
    async fn missing_node_value_is_an_error() {
        let (engine, _) = engine(Ok(Vec::new()));
        let policy = spec(json!({"desiredState": {"interfaces": [{"name": "{{ node.labels.nic }}"}]}}));
        let error = render(&engine, &policy, &NodeFacts::default(), Map::new())
            .await
            .unwrap_err();
        assert_eq!(error.kind, "Malformed");
        assert!(error.text.contains("interfaces[0].name"), "{error}");
    }
}
