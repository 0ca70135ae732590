//! Pods in a crash loop, or without their image (§11.2).

use std::{collections::BTreeMap, time::Duration};

use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::ListParams};
use kube_kit::{cache::Lookup, client, object::ObjectId, pages::Pages};
use serde_json::Value;
use tokio::time::Instant;

use super::Reconciler;
use crate::{
    failures::Level,
    messages,
    workloads::{Assessment, title},
};

/// Interval of lists of pods, while some are unavailable: pods are not watched.
const PAUSE: Duration = Duration::from_secs(30);

/// The reason after a failed pull, in turns with [`PULL_DELAYED`].
const PULL_FAILED: &str = "ErrImagePull";
/// The reason between two pulls that fail.
const PULL_DELAYED: &str = "ImagePullBackOff";
/// Reasons of a container that waits for its image.
const WITHOUT_IMAGE: [&str; 4] = [PULL_FAILED, PULL_DELAYED, "ErrImageNeverPull", "InvalidImageName"];

/// The last check of the pods.
#[derive(Default)]
pub(super) struct Crashes {
    /// The findings, by workload.
    found: BTreeMap<ObjectId, Found>,
    /// Time of the next check.
    check: Option<Instant>,
}

/// What the pods of a workload report.
#[derive(Debug, Default, PartialEq)]
struct Found {
    /// A line for each pod in a crash loop.
    crashing: Vec<String>,
    /// The first image that a node cannot get, with the reason.
    image: Option<String>,
}

impl Crashes {
    /// Names missing images in the lines of their workloads, while pods of these are unavailable.
    pub(super) fn explain(&self, assessment: &mut Assessment) {
        for (id, found) in &self.found {
            if let Some(cause) = &found.image
                && assessment.unavailable.contains(id)
            {
                assessment.explain(id, cause);
            }
        }
    }
}

impl Reconciler {
    /// Checks the pods of these workloads, and records those in a crash loop. Returns the time of the next check.
    pub(super) async fn note_crashes(&mut self, unavailable: &[ObjectId]) -> Option<Instant> {
        let now = Instant::now();
        if unavailable.is_empty() {
            self.crashes = Crashes::default();
        } else if self.crashes.check.is_some_and(|check| now < check) {
            return self.crashes.check;
        } else {
            let mut all = BTreeMap::new();
            for id in unavailable {
                let found = self.pods_of(id).await;
                // Without an answer, the former one counts.
                let found = found.or_else(|| self.crashes.found.remove(id));
                all.insert(id.clone(), found.unwrap_or_default());
            }
            self.crashes = Crashes {
                found: all,
                check: Some(now + PAUSE),
            };
        }
        let lines: Vec<&str> = self
            .crashes
            .found
            .values()
            .flat_map(|found| &found.crashing)
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

    /// The findings about the pods of a workload. `None` without an answer of the API server.
    async fn pods_of(&self, id: &ObjectId) -> Option<Found> {
        let applier = self.applier_of(id);
        let Lookup::Present(workload) = applier.cache().lookup(id) else {
            return Some(Found::default());
        };
        let namespace = id.namespace.as_deref().unwrap_or_default();
        let pods: Api<Pod> = Api::namespaced(applier.client().clone(), namespace);
        let mut pages = Pages::new(pods, ListParams::default().labels(&selector(&workload)));
        let title = title(&workload);
        let mut found = Found::default();
        loop {
            match pages.next().await {
                Ok(Some(page)) => {
                    for pod in &page {
                        found.add(pod, &title);
                    }
                }
                Ok(None) => return Some(found),
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

impl Found {
    /// Adds what a pod of the workload with this title reports.
    fn add(&mut self, pod: &Pod, title: &str) {
        if waiting(pod).any(|(_, reason)| reason == "CrashLoopBackOff") {
            let name = pod.metadata.name.as_deref().unwrap_or_default();
            self.crashing.push(messages::crash_loop(title, name));
        }
        if self.image.is_none() {
            let missing = waiting(pod).find(|(_, reason)| WITHOUT_IMAGE.contains(reason));
            self.image = missing.map(|(image, reason)| {
                // One reason for both, or each turn would change the condition.
                let reason = if reason == PULL_FAILED {
                    PULL_DELAYED
                } else {
                    reason
                };
                messages::missing_image(image, reason)
            });
        }
    }
}

/// Image and reason of each container of a pod that waits.
fn waiting(pod: &Pod) -> impl Iterator<Item = (&str, &str)> {
    let all = pod.status.iter().flat_map(|status| {
        let first = status.init_container_statuses.iter().flatten();
        first.chain(status.container_statuses.iter().flatten())
    });
    all.filter_map(|container| {
        let waiting = container.state.as_ref()?.waiting.as_ref()?;
        Some((container.image.as_str(), waiting.reason.as_deref()?))
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    // cluster-network#202
    #[test]
    fn workload_that_is_available_again_keeps_no_cause() {
        let id = ObjectId::of(&json!({
            "apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": { "name": "a", "namespace": "ns" },
        }));
        let found = Found {
            image: Some("cause".to_owned()),
            ..Found::default()
        };
        let crashes = Crashes {
            found: BTreeMap::from([(id.clone(), found)]),
            check: None,
        };
        for (unavailable, line) in [(vec![id.clone()], "line: cause"), (Vec::new(), "line")] {
            let mut assessment = Assessment {
                progressing: vec![(Some(id.clone()), "line".to_owned())],
                unavailable,
                ..Assessment::default()
            };
            crashes.explain(&mut assessment);
            assert_eq!(assessment.progress(), line);
        }
    }

    // cluster-network#202
    #[test]
    fn pods_name_crash_loops_and_the_first_missing_image() {
        let pod = |name: &str, first: Value, second: Value| -> Pod {
            let status = |state: Value| {
                json!([{
                    "name": "c", "image": format!("image-of-{name}"), "imageID": "", "ready": false,
                    "restartCount": 0, "state": state,
                }])
            };
            serde_json::from_value(json!({
                "metadata": { "name": name },
                "status": { "initContainerStatuses": status(first), "containerStatuses": status(second) },
            }))
            .expect("a pod")
        };
        let waits = |reason: &str| json!({ "waiting": { "reason": reason } });
        let runs = || json!({ "running": {} });
        let mut found = Found::default();
        found.add(&pod("a", runs(), waits("PodInitializing")), "T");
        assert_eq!(found, Found::default());
        found.add(&pod("b", waits("ErrImagePull"), waits("PodInitializing")), "T");
        found.add(&pod("c", runs(), waits("ImagePullBackOff")), "T");
        found.add(&pod("d", runs(), waits("CrashLoopBackOff")), "T");
        found.add(&Pod::default(), "T");
        assert_eq!(found.image.as_deref(), Some("image image-of-b: ImagePullBackOff"));
        assert_eq!(
            found.crashing,
            ["T rollout is not making progress - pod d is in CrashLoopBackOff State"]
        );
    }
}
