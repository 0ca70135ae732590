//! One pod, from what it asks for to what it has (multus.md §13.2).
//!
//! ```text
//! pod, read now ──> plan ──> sandbox (CRI) ──> adds in order ──> removals in order ──> status, on what it is now
//!                                                 │ the first failure stops, and is undone alone
//!                                                 └── events, each once a change
//! ```

use crate::cluster::{self, Cluster, Pod};
use crate::daemon::{self, Daemon};
use crate::messages;
use crate::names;
use crate::plan::{self, Attachment, Change, Wanted, entry, merged, plan};
use cni::json::{self, Object};
use cni::names::key;
use cni::status::{NetworkStatus, render};
use kube_kit::cri::{self, Cri, Sandbox};
use kube_kit::events::Kind;
use kube_kit::watch::Name;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Mutex, PoisonError};

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
    /// The status was not written, and what was plugged in was taken out again.
    #[error("error setting the networks status: {0}")]
    Status(#[source] cluster::Error),
}

/// What has happened to a pod and is not in its status yet.
#[derive(Debug, Default)]
struct Done {
    added: Vec<(Wanted, NetworkStatus)>,
    removed: Vec<Attachment>,
}

/// Works on pods.
pub struct Reconciler {
    /// Pods, definitions, events.
    pub cluster: Cluster,
    /// Sandboxes.
    pub cri: Cri,
    /// Attachments.
    pub daemon: Daemon,
    told: Told,
}

/// Who an event is about.
struct About<'a> {
    name: &'a Name,
    /// `namespace/name`
    text: String,
    uid: &'a str,
    sandbox: &'a Sandbox,
}

impl About<'_> {
    fn pod(&self) -> daemon::Pod<'_> {
        daemon::Pod {
            namespace: &self.name.namespace,
            name: &self.name.name,
            uid: self.uid,
            sandbox: self.sandbox,
        }
    }
}

impl Reconciler {
    /// Works with these.
    pub fn new(cluster: Cluster, cri: Cri, daemon: Daemon) -> Self {
        Self {
            cluster,
            cri,
            daemon,
            told: Told::default(),
        }
    }

    /// What is told about this pod from now on is about another wish.
    pub fn begin(&self, name: &Name) {
        self.told.forget(name);
    }

    /// Brings one pod to what it asks for. Its name must not be worked on by anybody else.
    pub async fn reconcile(&self, name: &Name) -> Result<(), Error> {
        let Some(pod) = self.cluster.pod(name).await? else {
            return Ok(());
        };
        if !pod.needs_work(&name.namespace) {
            return Ok(());
        }
        let text = format!("{}/{}", name.namespace, name.name);
        if pod.host_network {
            let text = messages::host_networked(&text);
            self.reject(name, &pod, text).await;
            return Ok(());
        }
        let change = match plan(&pod.networks, &pod.status, &name.namespace) {
            Ok(change) => change,
            // Only another annotation helps.
            Err(error) => {
                let text = messages::unreadable(&text, &error);
                self.reject(name, &pod, text).await;
                return Ok(());
            }
        };
        let sandbox = self.cri.sandbox(&pod.uid).await?;
        let about = About {
            name,
            text,
            uid: &pod.uid,
            sandbox: &sandbox,
        };
        let mut done = Done::default();
        let outcome = self.carry_out(&about, change, &mut done).await;
        self.write(&about, done).await?;
        outcome
    }

    async fn carry_out(&self, about: &About<'_>, change: Change, done: &mut Done) -> Result<(), Error> {
        for wanted in change.add {
            match self.add(about, &wanted).await {
                Ok(entry) => done.added.push((wanted, entry)),
                Err(error) => {
                    let text = messages::failed_adding(&about.text, &wanted.ifname, &wanted.element);
                    self.tell(about, Kind::Warning, names::REASON_FAILED_ADDING, text)
                        .await;
                    if matches!(error, Error::Daemon(_)) {
                        // What a plugin left behind, or a daemon that ended at its work.
                        let left = attachment(&wanted);
                        let undone = self.remove(about, &left).await;
                        if let Err(error) = undone {
                            tracing::warn!(pod = about.text, %error, "cannot undo the attachment");
                        }
                    }
                    return Err(error);
                }
            }
        }
        for gone in change.remove {
            self.remove(about, &gone).await?;
            done.removed.push(gone);
        }
        Ok(())
    }

    async fn add(&self, about: &About<'_>, wanted: &Wanted) -> Result<NetworkStatus, Error> {
        let (namespace, name) = (&wanted.element.namespace, &wanted.element.name);
        let missing = || Error::Missing {
            namespace: namespace.clone(),
            name: name.clone(),
        };
        let config = self.config(namespace, name).await?.ok_or_else(missing)?;
        let result = self.daemon.add(&about.pod(), wanted, &config).await?;
        let text = messages::added(&about.text, &wanted.ifname, &wanted.element);
        self.tell(about, Kind::Normal, names::REASON_ADDED, text).await;
        Ok(entry(wanted, &result))
    }

    /// Takes a network out of a pod; what its definition says by now is told to daemons that kept no record.
    async fn remove(&self, about: &About<'_>, gone: &Attachment) -> Result<(), Error> {
        let (namespace, name) = gone.definition();
        let detached = async {
            let config = self.config(namespace, name).await.unwrap_or_else(|error| {
                tracing::debug!(pod = about.text, %error, "unplugging by what the daemon knows");
                None
            });
            Ok(self.daemon.del(&about.pod(), gone, config.as_deref()).await?)
        };
        let detached: Result<(), Error> = detached.await;
        let (kind, reason, text) = match &detached {
            Ok(()) => (
                Kind::Normal,
                names::REASON_REMOVED,
                messages::removed(&about.text, &gone.ifname, name),
            ),
            Err(_) => (
                Kind::Warning,
                names::REASON_FAILED_REMOVING,
                messages::failed_removing(&about.text, &gone.ifname, name),
            ),
        };
        self.tell(about, kind, reason, text).await;
        detached
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

    /// Writes what has happened. If that can't be, what was plugged in is taken out again: nobody would know of it.
    async fn write(&self, about: &About<'_>, done: Done) -> Result<(), Error> {
        let Done { added, removed } = done;
        if added.is_empty() && removed.is_empty() {
            return Ok(());
        }
        let entries: Vec<_> = added.iter().map(|(_, entry)| entry.clone()).collect();
        let change =
            |now: &str| -> Result<String, plan::Unreadable> { Ok(render(&merged(now, &entries, &removed)?)) };
        let written = self.cluster.change_status(about.name, about.uid, change).await;
        let Err(error) = written else {
            return Ok(());
        };
        for (wanted, _) in added.iter().rev() {
            if let Err(error) = self.remove(about, &attachment(wanted)).await {
                tracing::warn!(pod = about.text, %error, "cannot undo the attachment");
            }
        }
        Err(Error::Status(error))
    }

    async fn reject(&self, name: &Name, pod: &Pod, text: String) {
        if self.told.is_new(name, &text) {
            self.cluster
                .event(name, &pod.uid, Kind::Warning, names::REASON_REJECTED, &text)
                .await;
        }
    }

    async fn tell(&self, about: &About<'_>, kind: Kind, reason: &str, text: String) {
        if self.told.is_new(about.name, &text) {
            self.cluster
                .event(about.name, about.uid, kind, reason, &text)
                .await;
        }
    }
}

fn attachment(wanted: &Wanted) -> Attachment {
    Attachment {
        network: wanted.network(),
        ifname: wanted.ifname.clone(),
    }
}

fn named(config: &str, name: &str) -> Result<String, json::Error> {
    let mut object = Object::parse(config.as_bytes())?;
    if object.text(key::NAME).is_none_or(|name| name.is_empty()) {
        object.set(key::NAME, &name)?;
    }
    Ok(object.to_json())
}

/// What was told about each pod since it last asked for something else: attempts repeat, events do not.
#[derive(Debug, Default)]
struct Told(Mutex<BTreeMap<Name, BTreeSet<String>>>);

impl Told {
    fn is_new(&self, name: &Name, text: &str) -> bool {
        let mut told = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        told.entry(name.clone()).or_default().insert(text.to_owned())
    }

    fn forget(&self, name: &Name) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(name);
    }
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

    #[test]
    fn each_event_is_told_once_a_change() {
        let (told, name) = (Told::default(), Name::new("ns", "web"));
        assert!(told.is_new(&name, "a") && told.is_new(&name, "b"));
        assert!(!told.is_new(&name, "a"));
        assert!(told.is_new(&Name::new("ns", "other"), "a"));
        told.forget(&name);
        assert!(told.is_new(&name, "a"));
    }
}
