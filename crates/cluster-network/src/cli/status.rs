//! `weft network status`: the conditions of the network, its workloads and their failures.

use api::cluster_network::operator::{Condition, NetworkStatus};
use kube_kit::{
    cache::Cache,
    connection::{self, Answer, Flags},
    object::ObjectId,
    workload,
};
use serde_json::Value;

use super::{Error, named, observe, settings};
use crate::{names, observe as observed};

/// Last text of `weft network status --help`.
const EXAMPLES: &str = "\
Examples:
  weft network status
  until weft network status; do sleep 5; done   wait until all is available

Exit code: 0 available without a problem, 1 otherwise, 2 no answer.";

/// Arguments of `weft network status`.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    #[command(flatten)]
    cluster: Flags,
}

/// Runs the command. The caller prints the answer.
pub fn answer(args: &Args) -> Answer {
    connection::answer(async {
        let client = connection::connect(&args.cluster).await?;
        let cache = observe(&client, &settings(None)).await?;
        let operator =
            observed::operator_config(&cache).map_err(|error| Error::Unreadable(error.to_string()))?;
        let Some(operator) = operator else {
            let text = "there is no operator configuration (networks.operator.openshift.io/cluster)\n\
                        Apply a cluster configuration, such as deploy/cluster-network/example.cr.yaml\n";
            return Ok::<_, Error>(Answer {
                text: text.to_owned(),
                code: 1,
                ..Answer::default()
            });
        };
        Ok(report(&operator.object, &workloads(&cache)))
    })
}

/// Workloads of the network, each with the progress of its rollout. `None` for a complete rollout.
fn workloads(cache: &Cache) -> Vec<(String, Option<String>)> {
    let all = observed::workloads(cache).into_values();
    let ours = all.filter(|it| it["metadata"]["labels"].get(names::PART_LABEL).is_some());
    let mut lines: Vec<_> = ours
        .map(|object| {
            let id = ObjectId::of(&object);
            let subject = named(&id);
            let progress = workload::progress(&id.kind, &subject, &object);
            (subject, progress)
        })
        .collect();
    lines.sort();
    lines
}

fn report(operator: &Value, workloads: &[(String, Option<String>)]) -> Answer {
    let spec = &operator["spec"];
    let status: NetworkStatus = serde_json::from_value(operator["status"].clone()).unwrap_or_default();
    let text = |value: &Value| value.as_str().unwrap_or("-").to_owned();
    let mut lines = vec![
        format!("network      {}", text(&spec["defaultNetwork"]["type"])),
        format!(
            "version      {}",
            if status.version.is_empty() {
                "-"
            } else {
                &status.version
            }
        ),
    ];
    for kind in ["Available", "Progressing", "Degraded"] {
        let condition = status.conditions.iter().find(|condition| condition.kind == kind);
        lines.push(format!("{kind:<12} {}", text_of(condition)));
    }
    lines.push(String::new());
    for (subject, progress) in workloads {
        lines.push(format!(
            "{subject}: {}",
            progress.as_deref().unwrap_or("all pods are available")
        ));
    }
    let is = |kind: &str, value: &str| {
        let mut conditions = status.conditions.iter();
        conditions.any(|condition| condition.kind == kind && condition.status == value)
    };
    let is_well = is("Available", "True") && is("Degraded", "False");
    Answer {
        text: format!("{}\n", lines.join("\n").trim_end()),
        code: u8::from(!is_well),
        ..Answer::default()
    }
}

fn text_of(condition: Option<&Condition>) -> String {
    let Some(condition) = condition else {
        return "Unknown: the operator has not reported yet".to_owned();
    };
    let message = condition.message.replace('\n', "\n             ");
    match (condition.reason.as_str(), message.as_str()) {
        ("", "") => condition.status.clone(),
        (reason, message) => format!("{} ({reason}): {message}", condition.status),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::report;

    #[test]
    fn status_prints_conditions_and_workloads() {
        let operator = |degraded: &str, message: &str| {
            json!({
                "spec": { "defaultNetwork": { "type": "Weft" } },
                "status": { "version": "1.2.3", "conditions": [
                    { "type": "Available", "status": "True" },
                    { "type": "Degraded", "status": degraded, "reason": if message.is_empty() { "" } else { "RenderError" },
                        "message": message },
                ] },
            })
        };
        let workloads = [
            ("DaemonSet ns/a".to_owned(), None),
            ("DaemonSet ns/b".to_owned(), Some("rolling out".to_owned())),
        ];
        let answer = report(&operator("False", ""), &workloads);
        let expected = "network      Weft
version      1.2.3
Available    True
Progressing  Unknown: the operator has not reported yet
Degraded     False

DaemonSet ns/a: all pods are available
DaemonSet ns/b: rolling out
";
        assert_eq!((answer.text.as_str(), answer.code), (expected, 0));
        let answer = report(&operator("True", "a\nb"), &[]);
        assert!(
            answer
                .text
                .contains("Degraded     True (RenderError): a\n             b\n"),
            "{}",
            answer.text
        );
        assert_eq!(answer.code, 1);
    }
}
