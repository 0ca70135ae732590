//! The state of the add-ons, a pure function of the objects in the cluster.

use api::network_addons::Condition;
use k8s_openapi::jiff::Timestamp;
use kube_kit::object::ObjectId;
use serde_json::Value;

use super::{
    Observed,
    components::{self, Workload, component_of, is_rolling, workload},
    next,
    pods::{self, Trouble},
    report::{Line, Operator, Problem, Report, find, has_status},
    warnings::{self, is_reported},
};
use operator::{names::condition, resource, workloads};

/// Evaluates the objects.
pub(super) fn report(observed: &Observed, now: Timestamp) -> Report {
    let mut report = Report {
        operator: operator(observed),
        notes: observed.notes.clone(),
        ..Report::default()
    };
    let troubles: Vec<_> = observed
        .pods
        .iter()
        .filter_map(|pod| Some((pods::workload(pod), pods::trouble(pod, now)?)))
        .collect();
    if let Some(configuration) = &observed.configuration {
        let status = resource::read_status(configuration.get("status").cloned().unwrap_or_default());
        report.configured = true;
        report.operator.version = status.operator_version;
        report.operator.target_version = status.target_version;
        report.operator.observed_version = status.observed_version;
        let (own, of_components): (Vec<_>, Vec<_>) = status
            .conditions
            .iter()
            .partition(|found| component_of(&found.kind).is_none());
        report.conditions = own.into_iter().map(|found| line(found, now)).collect();
        report.conditions.sort_by_key(|found| rank(&found.kind));
        report.available =
            has_status(&report, condition::AVAILABLE, "True") && !is_unready(&report, observed);
        report.components = components::components(configuration, observed, &of_components);
        report.in_progress = in_progress(&report, observed, &of_components);
        report.problems = problems(&report, observed, &of_components, &troubles);
        report.warnings = warnings::warnings(observed, now);
        report
            .warnings
            .retain(|warning| !is_reported(warning, &status.conditions));
    }
    let all = report
        .components
        .iter()
        .flat_map(|component| &component.workloads);
    let is_ours = |(workload, trouble): &&(Option<(&str, String)>, Trouble)| {
        let is_of = |it: &Workload| {
            let owner = workload.as_ref().map(|(kind, name)| (*kind, name.as_str()));
            it.namespace == trouble.namespace && owner == Some((it.kind.as_str(), it.name.as_str()))
        };
        all.clone().any(is_of)
    };
    let first = troubles.iter().find(is_ours).map(|(_, trouble)| trouble);
    report.next = next::step(&report, observed.operator.is_some(), first);
    report
}

/// Whether the operator exists and is not ready.
fn is_unready(report: &Report, observed: &Observed) -> bool {
    observed.operator.is_some() && report.operator.ready == 0
}

fn operator(observed: &Observed) -> Operator {
    let Some(deployment) = &observed.operator else {
        return Operator::default();
    };
    let workload = workload(deployment);
    Operator {
        namespace: workload.namespace,
        ready: workload.ready,
        desired: workload.desired,
        ..Operator::default()
    }
}

fn line(found: &Condition, now: Timestamp) -> Line {
    Line {
        kind: found.kind.clone(),
        status: found.status.clone(),
        reason: found.reason.clone(),
        message: found.message.clone(),
        age: found
            .last_transition_time
            .as_ref()
            .map(|since| (now.as_second() - since.0.as_second()).max(0)),
    }
}

/// Sort key of a condition: the result first, then its causes.
fn rank(kind: &str) -> usize {
    const ORDER: [&str; 3] = [condition::AVAILABLE, condition::PROGRESSING, condition::DEGRADED];
    ORDER
        .iter()
        .position(|known| *known == kind)
        .unwrap_or(ORDER.len())
}

/// The unfinished steps of the components, from their conditions, else from their workloads.
fn in_progress(report: &Report, observed: &Observed, of_components: &[&Condition]) -> Vec<Problem> {
    let mut all = Vec::new();
    for component in &report.components {
        let is_of = |object: &&Value| {
            let id = ObjectId::of(object);
            component.workloads.iter().any(|it| {
                id.namespace.as_ref() == Some(&it.namespace) && id.kind == it.kind && id.name == it.name
            })
        };
        let mut conditions = of_components.iter();
        let lines = match conditions.find(|found| component_of(&found.kind) == Some(component.name)) {
            Some(found) if is_rolling(found) => found.message.lines().map(str::to_owned).collect(),
            Some(_) => Vec::new(),
            None => workloads::unfinished(&observed.workloads.iter().filter(is_of).collect::<Vec<_>>()),
        };
        all.extend(lines.into_iter().map(|message| Problem {
            about: component.name.to_owned(),
            message,
        }));
    }
    all
}

fn problems(
    report: &Report,
    observed: &Observed,
    of_components: &[&Condition],
    troubles: &[(Option<(&'static str, String)>, Trouble)],
) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut add = |about: &str, message: String| {
        let problem = Problem {
            about: about.to_owned(),
            message,
        };
        if !problems.contains(&problem) {
            problems.push(problem);
        }
    };
    let joined = |reason: &str, message: &str| match (reason, message) {
        ("", message) => message.to_owned(),
        (reason, "") => reason.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    };
    if is_unready(report, observed) {
        add("operator", "it is not ready: this report may be stale".to_owned());
    }
    let failed = of_components
        .iter()
        .filter(|found| found.status != "True" && !is_rolling(found));
    let failed: Vec<_> = failed.collect();
    if let Some(degraded) = find(report, condition::DEGRADED).filter(|found| found.status == "True") {
        // It often only repeats the messages of the components.
        let is_reported = |line: &str| failed.iter().any(|found| found.message.contains(line));
        if degraded.message.is_empty() || !degraded.message.lines().all(is_reported) {
            add("configuration", joined(&degraded.reason, &degraded.message));
        }
    }
    for found in failed {
        add(
            component_of(&found.kind).unwrap_or_default(),
            joined(&found.reason, &found.message),
        );
    }
    for component in &report.components {
        let is_of = |namespace: &str, kind: &str, name: &str| {
            let mut workloads = component.workloads.iter();
            workloads.any(|it| it.namespace == namespace && it.kind == kind && it.name == name)
        };
        let ours = troubles.iter().filter(|(workload, trouble)| {
            let is_ours = |(kind, name): &(&str, String)| is_of(&trouble.namespace, kind, name);
            workload.as_ref().is_some_and(is_ours)
        });
        let mut seen: Vec<(&Trouble, usize)> = Vec::new();
        for (_, trouble) in ours {
            let same = |(first, _): &&mut (&Trouble, usize)| {
                (&first.container, &first.reason) == (&trouble.container, &trouble.reason)
            };
            match seen.iter_mut().find(same) {
                Some((_, count)) => *count += 1,
                None => seen.push((trouble, 0)),
            }
        }
        for (trouble, more) in seen {
            add(component.name, described(trouble, more));
        }
    }
    problems
}

/// The problem of a pod in a sentence; `more` pods have the same.
fn described(trouble: &Trouble, more: usize) -> String {
    let mut text = format!("pod {}", trouble.pod);
    if !trouble.node.is_empty() {
        text.push_str(&format!(" on node {}", trouble.node));
    }
    match more {
        0 => {}
        1 => text.push_str(" and 1 more pod"),
        more => text.push_str(&format!(" and {more} more pods")),
    }
    if !trouble.container.is_empty() {
        text.push_str(&format!(", container {}", trouble.container));
    }
    text.push_str(&format!(": {}", trouble.reason));
    if !trouble.message.is_empty() {
        text.push_str(&format!(": {}", trouble.message));
    }
    text
}
