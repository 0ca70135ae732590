//! One pod, from what it asks for to what it has (multus.md §13.2).
//!
//! ```text
//! pod, read now ──> steps ──> sandbox (CRI) ──> each step: the daemon, then the status, on what it is now
//!                                                 │ the first failure stops, and is undone alone
//!                                                 └──> news ──> events, each once a change
//! ```

use crate::cluster::{self, Cluster, WriteError};
use crate::daemon::{self, Daemon};
use crate::messages;
use crate::names;
use crate::plan::{self, Attachment, Step, Wanted};
use cni::json::{self, Object};
use cni::names::key;
use cni::status::StatusError;
use kube_kit::cri::{self, Cri, Sandbox};
use kube_kit::events::Kind;
use kube_kit::watch::Name;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::sync::mpsc;

/// Why a pod is not as it asks to be. It is tried again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server.
    #[error("{0}")]
    Cluster(#[from] cluster::Error),
    /// The container runtime.
    #[error("{0}")]
    Sandbox(#[from] cri::Error),
    /// The multus daemon, or a plugin.
    #[error("{0}")]
    Daemon(#[from] daemon::Error),
    /// A network without definition.
    #[error("cannot find a network-attachment-definition ({name}) in namespace ({namespace})")]
    Missing {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A definition that defines nothing.
    #[error("the network-attachment-definition {network}: {cause}")]
    Config {
        /// Namespace and name.
        network: String,
        /// What is wrong with it.
        cause: json::Error,
    },
    /// The status was not written, as far as is known.
    #[error("error setting the networks status: {0}")]
    Status(#[from] WriteError),
}

impl Error {
    /// Whether the daemon is still at work, as far as is known: then it is of no use to ask again soon.
    pub fn is_late(&self) -> bool {
        matches!(self, Self::Daemon(daemon::Error::Late))
    }

    /// Whether a network that failed to come may be there nevertheless, and nobody would know of it.
    ///
    /// A status that may have been written is another matter: a network that works would be taken out, and the status
    /// would list it. The daemon tells what it has done once more.
    fn leaves_something(&self) -> bool {
        match self {
            Self::Daemon(error) => error.may_have_begun(),
            Self::Status(WriteError::Denied(_)) => true,
            _ => false,
        }
    }
}

/// How it ended with a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is as it asks to be, or asks for something else by now, or is gone.
    Done,
    /// It can't be, and was told so.
    Rejected,
}

/// What was told last about each interface of a pod since the pod last asked for something else: attempts repeat,
/// events do not.
#[derive(Debug, Default)]
pub struct Told(BTreeMap<String, String>);

/// Something to tell about a pod.
#[derive(Debug)]
struct News {
    /// What it is about, `None` for the pod as a whole.
    ifname: Option<String>,
    kind: Kind,
    reason: &'static str,
    text: String,
    /// Whether it is the end of what was told before, and told only if that was.
    undoes: bool,
}

/// Works on pods.
pub struct Reconciler {
    /// Pods, definitions, events.
    pub cluster: Cluster,
    /// Sandboxes.
    pub cri: Cri,
    /// Attachments.
    pub daemon: Daemon,
    /// How long the status is tried to be written.
    pub patience: Duration,
}

/// The work on one pod.
struct Job<'a> {
    name: &'a Name,
    /// `namespace/name`
    text: String,
    uid: &'a str,
    /// What it asks for.
    networks: &'a str,
    sandbox: &'a Sandbox,
    news: mpsc::UnboundedSender<News>,
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

    /// Told beside the work: events may take their time.
    fn tell(&self, news: News) {
        // Nobody hears it only when the work is cut off.
        let _ = self.news.send(news);
    }

    fn tell_added(&self, wanted: &Wanted) {
        self.tell(News {
            ifname: Some(wanted.ifname.clone()),
            kind: Kind::Normal,
            reason: names::REASON_ADDED,
            text: messages::added(&self.text, &wanted.ifname, &wanted.element),
            undoes: false,
        });
    }

    fn tell_failed(&self, wanted: &Wanted) {
        self.tell(News {
            ifname: Some(wanted.ifname.clone()),
            kind: Kind::Warning,
            reason: names::REASON_FAILED_ADDING,
            text: messages::failed_adding(&self.text, &wanted.ifname, &wanted.element),
            undoes: false,
        });
    }

    fn tell_removed<E>(&self, gone: &Attachment, outcome: &Result<(), E>, undoes: bool) {
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
        self.tell(News {
            ifname: Some(gone.ifname.clone()),
            kind,
            reason,
            text,
            undoes,
        });
    }
}

impl Reconciler {
    /// Brings one pod to what it asks for. Its name must not be worked on by anybody else.
    pub async fn reconcile(&self, name: &Name, told: &mut Told) -> Result<Outcome, Error> {
        let Some(pod) = self.cluster.pod(name).await? else {
            return Ok(Outcome::Done);
        };
        let (news, to_tell) = mpsc::unbounded_channel();
        let steps = match pod.steps(name) {
            Ok(steps) if steps.is_empty() => return Ok(Outcome::Done),
            Ok(steps) => steps,
            Err(text) => {
                let rejection = News {
                    ifname: None,
                    kind: Kind::Warning,
                    reason: names::REASON_REJECTED,
                    text,
                    undoes: false,
                };
                let _ = news.send(rejection);
                drop(news);
                self.publish(name, &pod.uid, told, to_tell).await;
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
            news,
        };
        let (outcome, ()) = tokio::join!(
            self.carry_out(job, steps),
            self.publish(name, &pod.uid, told, to_tell)
        );
        outcome.map(|()| Outcome::Done)
    }

    async fn carry_out(&self, job: Job<'_>, steps: Vec<Step>) -> Result<(), Error> {
        for step in steps {
            let goes_on = match step {
                Step::Plug(wanted) => self.plug(&job, &wanted).await?,
                Step::Unplug(gone) => self.unplug(&job, &gone).await?,
            };
            if !goes_on {
                tracing::debug!(pod = job.text, "the pod asks for something else by now");
                break;
            }
        }
        Ok(())
    }

    /// Plugs a network in. Whether the pod still asks for the same.
    async fn plug(&self, job: &Job<'_>, wanted: &Wanted) -> Result<bool, Error> {
        let error = match self.attach(job, wanted).await {
            Ok(goes_on) => {
                job.tell_added(wanted);
                return Ok(goes_on);
            }
            // In the status, perhaps, and in the pod: to be found out, not to be told yet.
            Err(error @ Error::Status(WriteError::Unknown(_))) => return Err(error),
            Err(error) => error,
        };
        job.tell_failed(wanted);
        if error.leaves_something() {
            let left = wanted.attachment();
            let undone = self.detach(job, &left).await;
            job.tell_removed(&left, &undone, true);
            if let Err(error) = undone {
                tracing::warn!(pod = job.text, %error, "cannot undo the attachment");
            }
        }
        Err(error)
    }

    async fn attach(&self, job: &Job<'_>, wanted: &Wanted) -> Result<bool, Error> {
        let (namespace, name) = (&wanted.element.namespace, &wanted.element.name);
        let missing = || Error::Missing {
            namespace: namespace.clone(),
            name: name.clone(),
        };
        let config = self.config(namespace, name).await?.ok_or_else(missing)?;
        let result = self.daemon.add(&job.pod(), wanted, &config).await?;
        let entry = plan::entry(wanted, &result);
        self.write(job, |now| plan::with(now, &entry)).await
    }

    /// Takes a network out. Whether the pod still asks for the same.
    async fn unplug(&self, job: &Job<'_>, gone: &Attachment) -> Result<bool, Error> {
        let detached = self.detach(job, gone).await;
        job.tell_removed(gone, &detached, false);
        detached?;
        self.write(job, |now| plan::without(now, gone)).await
    }

    /// Asks the daemon for a removal; what the definition says by now is told to daemons that kept no record.
    async fn detach(&self, job: &Job<'_>, gone: &Attachment) -> Result<(), Error> {
        let (namespace, name) = gone.definition();
        let config = self.config(namespace, name).await.unwrap_or_else(|error| {
            tracing::debug!(pod = job.text, %error, "unplugging by what the daemon knows");
            None
        });
        Ok(self.daemon.del(&job.pod(), gone, config.as_deref()).await?)
    }

    /// A definition's configuration, with the definition's name where it names none; `None` without definition.
    async fn config(&self, namespace: &str, name: &str) -> Result<Option<String>, Error> {
        let Some(text) = self.cluster.config(namespace, name).await? else {
            return Ok(None);
        };
        named(&text, name).map(Some).map_err(|cause| Error::Config {
            network: format!("{namespace}/{name}"),
            cause,
        })
    }

    /// Writes what has happened, at once: what stands nowhere is known to nobody should this process end now.
    async fn write(
        &self,
        job: &Job<'_>,
        change: impl Fn(&str) -> Result<String, StatusError>,
    ) -> Result<bool, Error> {
        let written = self
            .cluster
            .change_status(job.name, job.uid, self.patience, change);
        let networks = written.await?;
        Ok(networks.is_some_and(|networks| networks == job.networks))
    }

    /// Publishes what is new among the news. What could not be published is new the next time.
    async fn publish(
        &self,
        name: &Name,
        uid: &str,
        told: &mut Told,
        mut news: mpsc::UnboundedReceiver<News>,
    ) {
        let mut is_new = false;
        while let Some(news) = news.recv().await {
            let about = news.ifname.unwrap_or_default();
            if !news.undoes {
                is_new = told.0.get(&about) != Some(&news.text);
            }
            if !is_new {
                continue;
            }
            let published = self
                .cluster
                .event(name, uid, news.kind, news.reason, &news.text)
                .await;
            if published && !news.undoes {
                told.0.insert(about, news.text);
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
    fn the_definitions_name_is_the_networks_where_it_has_none() {
        // multus#19 (of a network that is plugged in)
        assert_eq!(
            named(r#"{"type":"bridge","big":9007199254740993}"#, "net").unwrap(),
            r#"{"type":"bridge","big":9007199254740993,"name":"net"}"#
        );
        assert_eq!(named(r#"{"name":"own"}"#, "net").unwrap(), r#"{"name":"own"}"#);
        assert!(named("", "net").is_err());
    }
}
