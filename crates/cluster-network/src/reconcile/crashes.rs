//! Pods in a crash loop (§11.2).

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use kube_kit::{cache::Lookup, client, object::ObjectId, pages::Pages};
use serde_json::Value;
use tokio::time::Instant;

use super::Reconciler;
use crate::{failures::Level, messages, workloads::title};

/// Interval of lists of pods, while some are unavailable: pods are not watched.
const PAUSE: Duration = Duration::from_secs(30);

/// The last check for crash loops.
#[derive(Default)]
pub(super) struct Crashes {
    /// Lines of the condition, by workload.
    lines: BTreeMap<ObjectId, Vec<String>>,
    /// Time of the next check.
    check: Option<Instant>,
}

impl Reconciler {
    /// Records the pods of these workloads that are in a crash loop. Returns the time of the next check.
    pub(super) async fn note_crashes(&mut self, unavailable: &[ObjectId]) -> Option<Instant> {
        let now = Instant::now();
        if unavailable.is_empty() {
            self.crashes = Crashes::default();
        } else if self.crashes.check.is_some_and(|check| now < check) {
            return self.crashes.check;
        } else {
            let mut lines = BTreeMap::new();
            for id in unavailable {
                let found = self.crashes_of(id).await;
                // Without an answer, the former one counts.
                let found = found.or_else(|| self.crashes.lines.remove(id));
                lines.insert(id.clone(), found.unwrap_or_default());
            }
            self.crashes = Crashes {
                lines,
                check: Some(now + PAUSE),
            };
        }
        let lines: Vec<&str> = self
            .crashes
            .lines
            .values()
            .flatten()
            .map(String::as_str)
            .collect();
        let level = Level::PodCrashLoopBackOff;
        if lines.is_empty() {
            self.failures.clear(level);
        } else {
            self.failures
                .debounced(level, "CrashLoopBackOff", lines.join("\n"), now);
        }
        self.crashes.check
    }

    /// A line for each pod of a workload that is in a crash loop. `None` without an answer of the API server.
    async fn crashes_of(&self, id: &ObjectId) -> Option<Vec<String>> {
        let applier = self.applier_of(id);
        let Lookup::Present(workload) = applier.cache().lookup(id) else {
            return Some(Vec::new());
        };
        let namespace = id.namespace.as_deref().unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(applier.client().clone(), namespace);
        let mut pages = Pages::new(pods, ListParams::default().labels(&selector(&workload)));
        let mut lines = Vec::new();
        loop {
            match pages.next().await {
                Ok(Some(page)) => {
                    let crashing = page.iter().filter(|pod| is_crashing(pod));
                    let name = |pod: &Pod| pod.metadata.name.clone().unwrap_or_default();
                    lines.extend(crashing.map(|pod| messages::crash_loop(&title(&workload), &name(pod))));
                }
                Ok(None) => return Some(lines),
                Err(error) => {
                    tracing::warn!(%id, error = client::message(&error), "cannot list the pods");
                    return None;
                }
            }
        }
    }
}

/// Label selector of the pods of a workload.
fn selector(workload: &Value) -> String {
    let labels = workload["spec"]["selector"]["matchLabels"].clone();
    let labels: BTreeMap<String, String> = serde_json::from_value(labels).unwrap_or_default();
    let labels: Vec<String> = labels
        .iter()
        .map(|(key, value)| format!("{key}={value}"))
        .collect();
    labels.join(",")
}

fn is_crashing(pod: &Pod) -> bool {
    let Some(status) = &pod.status else { return false };
    let first = status.init_container_statuses.iter().flatten();
    let mut all = first.chain(status.container_statuses.iter().flatten());
    all.any(|container| {
        let waiting = container.state.as_ref().and_then(|state| state.waiting.as_ref());
        waiting.and_then(|waiting| waiting.reason.as_deref()) == Some("CrashLoopBackOff")
    })
}
