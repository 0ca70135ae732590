//! Dry runs of policies: the enactment reports the changes that a policy would cause, and nothing is applied.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::engine::Engine;
use crate::failure::Failure;
use crate::{apply, secrets};

/// Maximum number of interfaces named in a message.
const NAMES: usize = 8;

/// Result of a dry run on this host.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The part of the desired state that the host lacks, for `status.diff` of the enactment; empty if nothing would
    /// change.
    pub diff: Value,
    /// The same in one line, for the condition.
    pub message: String,
}

/// Whether a policy's annotations request a dry run.
pub fn is_requested(annotations: &BTreeMap<String, String>) -> bool {
    annotations
        .get(crate::names::DRY_RUN)
        .is_some_and(|value| value == "true")
}

/// Determines what a rendered document would change.
///
/// # Errors
/// If the document is refused, or the host cannot be read.
pub async fn outcome(engine: &Engine, desired: &Value) -> Result<Outcome, Failure> {
    let diff = if apply::is_empty(desired) {
        json!({})
    } else {
        let diff = engine.diff(desired.clone()).await;
        diff.map_err(|error| Failure::of_unchanged(&error, desired))?
    };
    let diff = secrets::hidden(&diff);
    Ok(Outcome {
        message: message(&diff),
        diff,
    })
}

/// A difference in one line.
fn message(diff: &Value) -> String {
    match summary(diff) {
        None => "dry run: nothing would change".to_owned(),
        Some(parts) => format!("dry run, nothing was applied; would change: {parts}"),
    }
}

/// The interfaces of a difference by name, and its other sections. `None` if there is no difference.
pub(crate) fn summary(diff: &Value) -> Option<String> {
    let sections = diff.as_object().into_iter().flatten();
    // A name server configuration with empty lists removes all name servers.
    let is_there = |section: &Value| match section {
        Value::Null => false,
        Value::Array(items) => !items.is_empty(),
        Value::Object(members) => !members.is_empty(),
        _ => true,
    };
    let sections = sections.filter(|(_, section)| is_there(section));
    let parts: Vec<String> = sections
        .map(|(name, section)| match section.as_array() {
            Some(interfaces) if name == "interfaces" => {
                let names = interfaces
                    .iter()
                    .filter_map(|interface| interface["name"].as_str());
                let shown: Vec<&str> = names.clone().take(NAMES).collect();
                let more = names.count().saturating_sub(shown.len());
                let more = if more > 0 {
                    format!(" and {more} more")
                } else {
                    String::new()
                };
                format!("{name} {}{more}", shown.join(", "))
            }
            _ => name.clone(),
        })
        .collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_fits_one_line() {
        assert_eq!(message(&json!({})), "dry run: nothing would change");
        assert_eq!(
            message(&json!({"interfaces": []})),
            "dry run: nothing would change"
        );
        assert_eq!(
            message(&json!({"interfaces": [], "dns-resolver": {"config": {}}})),
            "dry run, nothing was applied; would change: dns-resolver"
        );
        assert_eq!(
            message(&json!({
                "interfaces": [{"name": "br1"}, {"name": "eth1"}],
                "routes": {"config": [{"destination": "0.0.0.0/0"}]},
                "dns-resolver": {"config": {"server": ["192.0.2.1"]}}})),
            "dry run, nothing was applied; would change: interfaces br1, eth1; routes; dns-resolver"
        );
        let many: Vec<Value> = (0..12)
            .map(|index| json!({"name": format!("eth{index}")}))
            .collect();
        assert_eq!(
            summary(&json!({"interfaces": many})).as_deref(),
            Some("interfaces eth0, eth1, eth2, eth3, eth4, eth5, eth6, eth7 and 4 more")
        );
    }

    #[test]
    fn dry_run_needs_the_value_true() {
        let annotations = |value: &str| [("nmstate.io/dry-run".to_owned(), value.to_owned())].into();
        assert!(is_requested(&annotations("true")));
        assert!(!is_requested(&annotations("false")));
        assert!(!is_requested(&BTreeMap::new()));
    }

    #[tokio::test]
    async fn dry_run_hides_secrets() {
        let (engine, mut requests) = Engine::channel();
        tokio::spawn(async move {
            while let Some(request) = requests.recv().await {
                if let crate::engine::Request::Diff(desired, back) = request {
                    drop(back.send(Ok(desired)));
                }
            }
        });
        let desired = json!({"interfaces": [{"name": "eth1", "802.1x": {"password": "hunter2"}}]});
        let outcome = outcome(&engine, &desired).await.expect("an outcome");
        assert_eq!(
            outcome.diff["interfaces"][0]["802.1x"]["password"],
            secrets::HIDDEN
        );
        assert_eq!(
            outcome.message,
            "dry run, nothing was applied; would change: interfaces eth1"
        );
    }
}
