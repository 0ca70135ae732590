//! Reconciles one pod: applies the steps from its network status to its networks annotation (multus.md §13.2).
//!
//! ```text
//! pod, live read ──> steps ──> sandbox (CRI) ──> each step: the daemon, then the current status
//!                                                 │ the first failure stops, and only it is rolled back
//!                                                 └──> reports ──> events, each once per change
//! ```

use crate::cluster::{self, Cluster, WriteError};
use crate::daemon::{self, Daemon};
use crate::messages;
use crate::names;
use crate::plan::{self, Attachment, DesiredNetwork, Step};
use cni::json::{self, Object};
use cni::names::key;
use cni::status::StatusError;
use kube_kit::cri::{self, Cri, Sandbox};
use kube_kit::events::Kind;
use kube_kit::watch::Name;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::mpsc;

/// Reconciling failed. The pod is requeued.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A request to the API server failed.
    #[error("{0}")]
    Cluster(#[from] cluster::Error),
    /// A request to the container runtime failed.
    #[error("{0}")]
    Sandbox(#[from] cri::Error),
    /// The multus daemon or a plugin failed.
    #[error("{0}")]
    Daemon(#[from] daemon::Error),
    /// The definition does not exist.
    #[error("cannot find a network-attachment-definition ({name}) in namespace ({namespace})")]
    Missing { namespace: String, name: String },
    /// The definition's configuration is malformed.
    #[error("the network-attachment-definition {network}: {cause}")]
    Config {
        /// Namespace and name.
        network: String,
        cause: json::Error,
    },
    /// The status was not written, or the outcome is unknown.
    #[error("error setting the networks status: {0}")]
    Status(#[from] WriteError),
}

impl Error {
    /// Whether the daemon did not answer in time: it may still be working, so an early retry is useless.
    pub(crate) fn is_late(&self) -> bool {
        matches!(self, Self::Daemon(daemon::Error::Late))
    }

    /// Whether a failed network may be attached without an entry in the status, so that it must be rolled back.
    ///
    /// Not so if the status may have been written: a rollback would detach a working network that the status lists. A
    /// repeated call to the daemon returns the same result.
    fn needs_rollback(&self) -> bool {
        match self {
            Self::Daemon(error) => error.may_have_begun(),
            Self::Status(WriteError::Denied(_)) => true,
            _ => false,
        }
    }
}

/// The outcome of a reconciliation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Reconciled, or the pod changed in the meantime, or is gone.
    Done,
    /// The request is impossible, and an event reports that.
    Rejected,
}

/// The last reported text for each interface of a pod since its last change: attempts are repeated, events are not.
#[derive(Debug, Default)]
pub(crate) struct ReportedEvents(BTreeMap<String, String>);

/// An event about a pod, to be published if it is new.
#[derive(Debug)]
struct Report {
    /// The interface; `None` for the whole pod.
    ifname: Option<String>,
    kind: Kind,
    reason: &'static str,
    text: String,
    /// Whether it reports the rollback of the previous failure, and is published only if that was.
    is_rollback: bool,
}

/// Reconciles pods.
pub(crate) struct Reconciler {
    /// Source of pods and definitions.
    pub cluster: Cluster,
    pub cri: Cri,
    pub daemon: Daemon,
    /// How long status writes are retried.
    pub status_timeout: Duration,
}

/// The reconciliation of one pod.
struct Job<'a> {
    name: &'a Name,
    /// `namespace/name`
    text: String,
    uid: &'a str,
    networks: &'a str,
    sandbox: &'a Sandbox,
    reports: mpsc::UnboundedSender<Report>,
}

impl Job<'_> {
    fn pod(&self) -> daemon::Pod<'_> {
        daemon::Pod {
            namespace: &self.name.namespace,
            name: &self.name.name,
            uid: self.uid,
            sandbox: self.sandbox,
        }
    }

    /// Published concurrently, because events may be slow.
    fn report(&self, report: Report) {
        // Fails only when the reconciliation is cancelled.
        let _ = self.reports.send(report);
    }

    fn report_added(&self, desired: &DesiredNetwork) {
        self.report(Report {
            ifname: Some(desired.ifname.clone()),
            kind: Kind::Normal,
            reason: names::REASON_ADDED,
            text: messages::added(&self.text, &desired.ifname, &desired.element),
            is_rollback: false,
        });
    }

    fn report_failed(&self, desired: &DesiredNetwork) {
        self.report(Report {
            ifname: Some(desired.ifname.clone()),
            kind: Kind::Warning,
            reason: names::REASON_FAILED_ADDING,
            text: messages::failed_adding(&self.text, &desired.ifname, &desired.element),
            is_rollback: false,
        });
    }

    fn report_removed<E>(&self, gone: &Attachment, outcome: &Result<(), E>, is_rollback: bool) {
        let (_, network) = gone.definition();
        let (kind, reason, text) = match outcome {
            Ok(()) => (
                Kind::Normal,
                names::REASON_REMOVED,
                messages::removed(&self.text, &gone.ifname, network),
            ),
            Err(_) => (
                Kind::Warning,
                names::REASON_FAILED_REMOVING,
                messages::failed_removing(&self.text, &gone.ifname, network),
            ),
        };
        self.report(Report {
            ifname: Some(gone.ifname.clone()),
            kind,
            reason,
            text,
            is_rollback,
        });
    }
}

impl Reconciler {
    /// Reconciles one pod. No other worker may reconcile the same name.
    pub(crate) async fn reconcile(
        &self,
        name: &Name,
        reported: &mut ReportedEvents,
    ) -> Result<Outcome, Error> {
        let Some(pod) = self.cluster.pod(name).await? else {
            return Ok(Outcome::Done);
        };
        let (reports, outgoing) = mpsc::unbounded_channel();
        let steps = match pod.steps(name) {
            Ok(steps) if steps.is_empty() => return Ok(Outcome::Done),
            Ok(steps) => steps,
            Err(text) => {
                let rejection = Report {
                    ifname: None,
                    kind: Kind::Warning,
                    reason: names::REASON_REJECTED,
                    text,
                    is_rollback: false,
                };
                let _ = reports.send(rejection);
                drop(reports);
                self.publish(name, &pod.uid, reported, outgoing).await;
                return Ok(Outcome::Rejected);
            }
        };
        let sandbox = self.cri.sandbox(&pod.runtime_uid).await?;
        let job = Job {
            name,
            text: format!("{}/{}", name.namespace, name.name),
            uid: &pod.uid,
            networks: &pod.networks,
            sandbox: &sandbox,
            reports,
        };
        let (outcome, ()) = tokio::join!(
            self.apply(job, steps),
            self.publish(name, &pod.uid, reported, outgoing)
        );
        outcome.map(|()| Outcome::Done)
    }

    async fn apply(&self, job: Job<'_>, steps: Vec<Step>) -> Result<(), Error> {
        for step in steps {
            let is_current = match step {
                Step::Plug(desired) => self.plug(&job, &desired).await?,
                Step::Unplug(gone) => self.unplug(&job, &gone).await?,
            };
            if !is_current {
                tracing::debug!(pod = job.text, "the pod's annotation changed, stopping");
                break;
            }
        }
        Ok(())
    }

    /// Plugs a network. Returns whether the annotation is unchanged.
    async fn plug(&self, job: &Job<'_>, desired: &DesiredNetwork) -> Result<bool, Error> {
        let error = match self.attach(job, desired).await {
            Ok(is_current) => {
                job.report_added(desired);
                return Ok(is_current);
            }
            // The outcome is unknown: the next attempt determines and reports it.
            Err(error @ Error::Status(WriteError::Unknown(_))) => return Err(error),
            Err(error) => error,
        };
        job.report_failed(desired);
        if error.needs_rollback() {
            let left = desired.attachment();
            let undone = self.detach(job, &left).await;
            job.report_removed(&left, &undone, true);
            if let Err(error) = undone {
                tracing::warn!(pod = job.text, %error, "rollback: cannot detach the network");
            }
        }
        Err(error)
    }

    async fn attach(&self, job: &Job<'_>, desired: &DesiredNetwork) -> Result<bool, Error> {
        let (namespace, name) = (&desired.element.namespace, &desired.element.name);
        let missing = || Error::Missing {
            namespace: namespace.clone(),
            name: name.clone(),
        };
        let config = self.config(namespace, name).await?.ok_or_else(missing)?;
        let result = self.daemon.add(&job.pod(), desired, &config).await?;
        let entry = plan::entry(desired, &result);
        self.write(job, |now| plan::with(now, &entry)).await
    }

    /// Unplugs a network. Returns whether the annotation is unchanged.
    async fn unplug(&self, job: &Job<'_>, gone: &Attachment) -> Result<bool, Error> {
        let detached = self.detach(job, gone).await;
        job.report_removed(gone, &detached, false);
        detached?;
        self.write(job, |now| plan::without(now, gone)).await
    }

    /// Detaches a network. Sends the definition's current configuration for daemons without records.
    async fn detach(&self, job: &Job<'_>, gone: &Attachment) -> Result<(), Error> {
        let (namespace, name) = gone.definition();
        let config = self.config(namespace, name).await.unwrap_or_else(|error| {
            tracing::debug!(pod = job.text, %error, "cannot read the definition, unplugging by the daemon's records");
            None
        });
        Ok(self.daemon.del(&job.pod(), gone, config.as_deref()).await?)
    }

    /// A definition's configuration, with the definition's name as the default; `None` without a definition.
    async fn config(&self, namespace: &str, name: &str) -> Result<Option<String>, Error> {
        let Some(text) = self.cluster.config(namespace, name).await? else {
            return Ok(None);
        };
        named(&text, name).map(Some).map_err(|cause| Error::Config {
            network: format!("{namespace}/{name}"),
            cause,
        })
    }

    /// Writes the status at once, because this process has no other record of the step.
    async fn write(
        &self,
        job: &Job<'_>,
        change: impl Fn(&str) -> Result<String, StatusError>,
    ) -> Result<bool, Error> {
        let written = self
            .cluster
            .change_status(job.name, job.uid, self.status_timeout, change);
        let networks = written.await?;
        Ok(networks.is_some_and(|networks| networks == job.networks))
    }

    /// Publishes the new reports. A report that could not be published stays new.
    async fn publish(
        &self,
        name: &Name,
        uid: &str,
        reported: &mut ReportedEvents,
        mut reports: mpsc::UnboundedReceiver<Report>,
    ) {
        let mut is_new = false;
        while let Some(report) = reports.recv().await {
            let about = report.ifname.unwrap_or_default();
            if !report.is_rollback {
                is_new = reported.0.get(&about) != Some(&report.text);
            }
            if !is_new {
                continue;
            }
            let published = self
                .cluster
                .event(name, uid, report.kind, report.reason, &report.text)
                .await;
            if published && !report.is_rollback {
                reported.0.insert(about, report.text);
            }
        }
    }
}

fn named(config: &str, name: &str) -> Result<String, json::Error> {
    let mut object = Object::parse(config.as_bytes())?;
    if object.text(key::NAME).is_none_or(|name| name.is_empty()) {
        object.set(key::NAME, &name)?;
    }
    Ok(object.to_json())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_name_defaults_to_definition() {
        // multus#19 (of a network that is plugged in)
        assert_eq!(
            named(r#"{"type":"bridge","big":9007199254740993}"#, "net").unwrap(),
            r#"{"type":"bridge","big":9007199254740993,"name":"net"}"#
        );
        assert_eq!(named(r#"{"name":"own"}"#, "net").unwrap(), r#"{"name":"own"}"#);
        assert!(named("", "net").is_err());
    }
}
