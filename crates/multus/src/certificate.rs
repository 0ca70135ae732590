//! A certificate for each node, by which multus is known to the API server instead of a service account (multus.md §7.8).
//!
//! ```text
//! kubeconfig of the node ──> CertificateSigningRequest ──approver, signer──> <dir>/multus-client-<time>.pem
//!   (bootstrap)                  ▲                                             ▲
//!                                └── renewal, by the certificate itself    <dir>/multus-client-current.pem
//! ```
//!
//! A certificate is replaced when 70 to 90 % of its life are over, at a moment that differs from node to node. Whoever uses
//! [`Keeper::client`] goes on with the new one by its next request.

pub mod approval;
pub mod approver;
pub mod generator;
pub mod request;
pub mod store;

use crate::names;
use kube::{Client, Config};
use kube_kit::client::{chain, following};
use kube_kit::duration::GoDuration;
use kube_kit::metrics::Requests;
use request::RequestError;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use store::{Store, Stored};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// How long the first certificate may take.
const FIRST: Duration = Duration::from_mins(2);
/// How long one that replaces another may take until it is asked for again.
const RENEWAL: Duration = Duration::from_mins(15);
/// Pauses after failures: the first, and the longest.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_mins(1);
/// How often the clock is looked at: it may be set, and hosts sleep.
const LOOK: Duration = Duration::from_secs(30);
/// What a certificate is good for when nothing is said.
const DEFAULT_DURATION: Duration = Duration::from_mins(10);
/// Part of a certificate's life after which it is replaced: at least, and how much more at most.
const EARLIEST: f64 = 0.7;
const SPREAD: f64 = 0.2;

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The pod does not say which node it is on.
    #[error("error getting node name for perNodeCertificate, please check manifest to have MULTUS_NODE_NAME")]
    NoNode,
    /// Where the first identity is, or where certificates are kept, is not said.
    #[error("perNodeCertificate needs bootstrapKubeconfig and certDir")]
    Incomplete,
    /// The duration can't be read.
    #[error("certDuration")]
    Duration(#[source] kube_kit::duration::Error),
    /// Nobody approved or signed in time.
    #[error("certificate was not signed, is there somebody who approves the requests of {0}?")]
    NotSigned(String),
    /// The way to the cluster.
    #[error("cannot use the bootstrap kubeconfig")]
    Bootstrap(#[source] kube_kit::client::Error),
    /// A client by the certificate.
    #[error("cannot use the certificate")]
    Client(#[source] Box<kube::Error>),
    /// The certificate can't be had.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// It can't be kept.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// Which certificate, and where it comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// The node.
    pub node: String,
    /// Kubeconfig with an identity of the node, by which the first certificate is asked for.
    pub bootstrap: PathBuf,
    /// Where certificates are kept.
    pub dir: PathBuf,
    /// How long one is to be valid.
    pub duration: Duration,
}

impl Settings {
    /// Checks what configuration and environment say. No duration means 10 minutes.
    pub fn new(node: Option<&str>, bootstrap: &str, dir: &str, duration: &str) -> Result<Self, Error> {
        let node = node.filter(|node| !node.is_empty()).ok_or(Error::NoNode)?;
        if bootstrap.is_empty() || dir.is_empty() {
            return Err(Error::Incomplete);
        }
        let duration = match duration {
            "" => DEFAULT_DURATION,
            text => GoDuration::parse(text).map_err(Error::Duration)?.length(),
        };
        Ok(Self {
            node: node.to_owned(),
            bootstrap: bootstrap.into(),
            dir: dir.into(),
            duration,
        })
    }

    /// What the node is called by its certificate.
    fn common_name(&self) -> String {
        format!("{}:{}", names::CERTIFICATE_GROUP, self.node)
    }
}

/// When a certificate is to be replaced, in seconds since 1970. `random` is between 0 and 1.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "seconds, and a part of them"
)]
fn replaced_at(not_before: i64, not_after: i64, random: f64) -> i64 {
    let life = (not_after - not_before).max(0) as f64;
    not_before + (life * (EARLIEST + SPREAD * random)).round() as i64
}

/// Has a certificate and replaces it in time.
pub struct Keeper {
    settings: Settings,
    store: Store,
    current: Stored,
    clients: watch::Sender<Client>,
}

impl Keeper {
    /// Takes the certificate that is there, or asks for the first one.
    pub async fn start(settings: Settings) -> Result<Self, Error> {
        let store = Store::new(&settings.dir);
        let there = store.load(&settings.common_name());
        let current = if let Some(found) = there.filter(|found| found.not_after > now()) {
            found
        } else {
            let first = timeout(FIRST, first(&settings, &store)).await;
            first.map_err(|_| Error::NotSigned(settings.common_name()))??
        };
        let client = by_certificate(&settings, &current).await?;
        Ok(Self {
            clients: watch::Sender::new(client),
            settings,
            store,
            current,
        })
    }

    /// A client that always has the certificate of now.
    pub fn client(&self) -> Client {
        following(self.clients.subscribe())
    }

    /// The file that always is the certificate of now, and its key.
    pub fn file(&self) -> PathBuf {
        self.store.current()
    }

    /// Replaces the certificate again and again. Never ends.
    pub async fn keep(mut self) {
        loop {
            let Stored {
                not_before,
                not_after,
                ..
            } = self.current;
            let due = replaced_at(not_before, not_after, random());
            while let Some(left) = u64::try_from(due - now()).ok().filter(|left| *left > 0) {
                sleep(Duration::from_secs(left).min(LOOK)).await;
            }
            let mut pause = FIRST_PAUSE;
            while let Err(error) = self.renew().await {
                tracing::error!(error = %chain(&error), "cannot replace the certificate of this node");
                sleep(pause).await;
                pause = (pause * 2).min(LONGEST_PAUSE);
            }
        }
    }

    /// By the certificate itself, or by the identity that the first one was asked for with, when that does not work: it has
    /// ended, or another authority counts by now.
    async fn renew(&mut self) -> Result<(), Error> {
        let current = self.clients.borrow().clone();
        let by_itself = if self.current.not_after > now() {
            self.ask(&current).await
        } else {
            Err(Error::NotSigned(self.settings.common_name()))
        };
        let renewed = match by_itself {
            Err(error) if !matches!(error, Error::Request(RequestError::Refused(_))) => {
                tracing::warn!(error = %chain(&error), "asking for a certificate by the bootstrap kubeconfig");
                let bootstrap =
                    kube_kit::client::client_from(names::COMPONENT, Some(&self.settings.bootstrap));
                self.ask(&bootstrap.await.map_err(Error::Bootstrap)?).await
            }
            other => other,
        }?;
        self.clients
            .send_replace(by_certificate(&self.settings, &renewed).await?);
        tracing::info!(file = %self.file().display(), "replaced the certificate of this node");
        self.current = renewed;
        Ok(())
    }

    async fn ask(&self, client: &Client) -> Result<Stored, Error> {
        let asked = timeout(RENEWAL, ask(&self.settings, &self.store, client));
        asked
            .await
            .map_err(|_| Error::NotSigned(self.settings.common_name()))?
    }
}

async fn first(settings: &Settings, store: &Store) -> Result<Stored, Error> {
    let mut pause = FIRST_PAUSE;
    loop {
        let attempt = async {
            let client = kube_kit::client::client_from(names::COMPONENT, Some(&settings.bootstrap)).await;
            ask(settings, store, &client.map_err(Error::Bootstrap)?).await
        };
        match attempt.await {
            Ok(stored) => return Ok(stored),
            Err(error) => tracing::warn!(error = %chain(&error), "no certificate for this node yet"),
        }
        sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

async fn ask(settings: &Settings, store: &Store, client: &Client) -> Result<Stored, Error> {
    let pem = request::obtain(client, &settings.common_name(), settings.duration).await?;
    Ok(store.save(&pem)?)
}

/// To where the bootstrap kubeconfig leads, with nothing but the certificate.
async fn by_certificate(settings: &Settings, stored: &Stored) -> Result<Client, Error> {
    let config = kube_kit::client::configuration(names::COMPONENT, Some(&settings.bootstrap)).await;
    let mut config: Config = config.map_err(Error::Bootstrap)?;
    config.auth_info = stored.auth_info();
    kube_kit::client::counted(config, &Requests::default()).map_err(|error| Error::Client(Box::new(error)))
}

/// Seconds since 1970.
fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

#[allow(
    clippy::cast_precision_loss,
    reason = "nobody counts on the last bits of chance"
)]
fn random() -> f64 {
    RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_replaced_between_70_and_90_percent_of_its_life() {
        assert_eq!(replaced_at(1000, 2000, 0.0), 1700);
        assert_eq!(replaced_at(1000, 2000, 0.25), 1750);
        assert_eq!(replaced_at(1000, 2000, 1.0), 1900);
        assert_eq!(
            replaced_at(2000, 1000, 1.0),
            2000,
            "a certificate that makes no sense is replaced at once"
        );
        assert!((0..100).all(|_| (0.0..=1.0).contains(&random())));
    }

    #[test]
    fn settings_are_complete_or_refused() {
        let settings = Settings::new(Some("n1"), "/k", "/c", "1h30m").unwrap();
        assert_eq!(
            (settings.common_name().as_str(), settings.duration.as_secs()),
            ("system:multus:n1", 5400)
        );
        assert_eq!(
            Settings::new(Some("n1"), "/k", "/c", "")
                .unwrap()
                .duration
                .as_secs(),
            600
        );
        let refused =
            |node, bootstrap, duration| chain(&Settings::new(node, bootstrap, "/c", duration).unwrap_err());
        assert_eq!(
            refused(None, "/k", ""),
            "error getting node name for perNodeCertificate, please check manifest to have MULTUS_NODE_NAME"
        );
        assert_eq!(
            refused(Some("n1"), "", ""),
            "perNodeCertificate needs bootstrapKubeconfig and certDir"
        );
        assert!(refused(Some("n1"), "/k", "soon").starts_with("certDuration: time: invalid duration"));
    }
}
