//! Per-node client certificates: multus authenticates at the API server by a certificate of its node instead of a
//! service account (multus.md §7.8).
//!
//! ```text
//! kubeconfig of the node ──> CertificateSigningRequest ──approver, signer──> <dir>/multus-client-<time>.pem
//!   (bootstrap)                  ▲                                             ▲
//!                                └── renewal, by the certificate itself    <dir>/multus-client-current.pem
//! ```
//!
//! A certificate is renewed after 70 to 90 % of its lifetime, at a random time so that nodes do not renew together. A
//! client of [`Rotator::client`] uses the new certificate from its next request on.

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
use linux::backoff::Backoff;
use request::RequestError;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use store::{NodeCertificate, Store};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

/// Timeout of the first certificate.
const FIRST_TIMEOUT: Duration = Duration::from_mins(2);
/// Timeout of a renewal; then a new request is created.
const RENEWAL_TIMEOUT: Duration = Duration::from_mins(15);
/// Back-off after failures.
const BACKOFF: Backoff = Backoff::new(Duration::from_secs(1), Duration::from_mins(1));
/// Interval of clock reads while waiting: clocks are set, and hosts are suspended.
const CLOCK_POLL: Duration = Duration::from_secs(30);
/// Default of `certDuration`.
const DEFAULT_DURATION: Duration = Duration::from_mins(10);
/// Part of the lifetime after which a certificate is renewed: the minimum, and the random addition.
const EARLIEST: f64 = 0.7;
const SPREAD: f64 = 0.2;

/// The node has no certificate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The environment does not name the node.
    #[error("error getting node name for perNodeCertificate, please check manifest to have MULTUS_NODE_NAME")]
    NoNode,
    /// The bootstrap kubeconfig or the directory of certificates is not configured.
    #[error("perNodeCertificate needs bootstrapKubeconfig and certDir")]
    Incomplete,
    /// The duration is malformed.
    #[error("certDuration")]
    Duration(#[source] kube_kit::duration::Error),
    /// The request was not approved and signed in time.
    #[error("the certificate was not signed in time: check that an approver handles the requests of {0}")]
    NotSigned(String),
    /// The bootstrap kubeconfig is unusable.
    #[error("cannot use the bootstrap kubeconfig")]
    Bootstrap(#[source] kube_kit::client::Error),
    /// No client can be made with the certificate.
    #[error("cannot use the certificate")]
    Client(#[source] Box<kube::Error>),
    /// The certificate cannot be obtained.
    #[error(transparent)]
    Request(#[from] RequestError),
    /// The certificate cannot be stored.
    #[error(transparent)]
    Store(#[from] store::Error),
}

/// Settings of a node's certificate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Name of the node.
    pub node: String,
    /// Kubeconfig with an identity of the node, for the first request.
    pub bootstrap: PathBuf,
    /// Directory of the certificates.
    pub dir: PathBuf,
    /// Requested lifetime.
    pub duration: Duration,
}

impl Settings {
    /// Validates the values of configuration and environment. An empty duration means 10 minutes.
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

    /// The certificate's common name.
    fn common_name(&self) -> String {
        format!("{}:{}", names::CERTIFICATE_GROUP, self.node)
    }
}

/// The time of renewal, in seconds since 1970. `random` is between 0 and 1.
#[allow(
    clippy::cast_possible_truncation,
    clippy::cast_precision_loss,
    reason = "seconds, and a part of them"
)]
fn renewal_time(not_before: i64, not_after: i64, random: f64) -> i64 {
    let life = (not_after - not_before).max(0) as f64;
    not_before + (life * (EARLIEST + SPREAD * random)).round() as i64
}

/// Holds the node's certificate and renews it in time.
pub struct Rotator {
    settings: Settings,
    store: Store,
    current: NodeCertificate,
    clients: watch::Sender<Client>,
}

impl Rotator {
    /// Loads the stored certificate, or requests the first one.
    pub async fn start(settings: Settings) -> Result<Self, Error> {
        let store = Store::new(&settings.dir);
        let stored = store.load(&settings.common_name());
        let current = if let Some(found) = stored.filter(|found| found.not_after > now()) {
            found
        } else {
            let first = timeout(FIRST_TIMEOUT, first(&settings, &store)).await;
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

    /// A client that always uses the current certificate.
    pub fn client(&self) -> Client {
        following(self.clients.subscribe())
    }

    /// The file with the current certificate and its key.
    pub fn file(&self) -> PathBuf {
        self.store.current()
    }

    /// Renews the certificate whenever it is due. Never returns.
    pub async fn keep(mut self) {
        loop {
            let NodeCertificate {
                not_before,
                not_after,
                ..
            } = self.current;
            let due = renewal_time(not_before, not_after, random());
            while let Some(left) = u64::try_from(due - now()).ok().filter(|left| *left > 0) {
                sleep(Duration::from_secs(left).min(CLOCK_POLL)).await;
            }
            let mut backoff = BACKOFF;
            while let Err(error) = self.renew().await {
                tracing::error!(error = %chain(&error), "cannot renew the certificate of this node");
                sleep(backoff.next_delay()).await;
            }
        }
    }

    /// Requests a certificate with the current one, or with the bootstrap kubeconfig if that fails: the certificate
    /// may have expired, or the authority may have changed.
    async fn renew(&mut self) -> Result<(), Error> {
        let current = self.clients.borrow().clone();
        let by_itself = if self.current.not_after > now() {
            self.ask(&current).await
        } else {
            Err(Error::NotSigned(self.settings.common_name()))
        };
        let renewed = match by_itself {
            Err(error) if !matches!(error, Error::Request(RequestError::Refused(_))) => {
                tracing::warn!(error = %chain(&error), "cannot renew the certificate by itself, using the bootstrap kubeconfig");
                let bootstrap =
                    kube_kit::client::client_from(names::COMPONENT, Some(&self.settings.bootstrap));
                self.ask(&bootstrap.await.map_err(Error::Bootstrap)?).await
            }
            other => other,
        }?;
        self.clients
            .send_replace(by_certificate(&self.settings, &renewed).await?);
        tracing::info!(file = %self.file().display(), "renewed the certificate of this node");
        self.current = renewed;
        Ok(())
    }

    async fn ask(&self, client: &Client) -> Result<NodeCertificate, Error> {
        let asked = timeout(RENEWAL_TIMEOUT, ask(&self.settings, &self.store, client));
        asked
            .await
            .map_err(|_| Error::NotSigned(self.settings.common_name()))?
    }
}

async fn first(settings: &Settings, store: &Store) -> Result<NodeCertificate, Error> {
    let mut backoff = BACKOFF;
    loop {
        let attempt = async {
            let client = kube_kit::client::client_from(names::COMPONENT, Some(&settings.bootstrap)).await;
            ask(settings, store, &client.map_err(Error::Bootstrap)?).await
        };
        match attempt.await {
            Ok(stored) => return Ok(stored),
            Err(error) => {
                tracing::warn!(error = %chain(&error), "cannot get the first certificate of this node, retrying");
            }
        }
        sleep(backoff.next_delay()).await;
    }
}

async fn ask(settings: &Settings, store: &Store, client: &Client) -> Result<NodeCertificate, Error> {
    let pem = request::obtain(client, &settings.common_name(), settings.duration).await?;
    Ok(store.save(&pem)?)
}

/// A client for the bootstrap kubeconfig's API server that authenticates by the certificate alone.
async fn by_certificate(settings: &Settings, stored: &NodeCertificate) -> Result<Client, Error> {
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

#[allow(clippy::cast_precision_loss, reason = "jitter needs no precise distribution")]
fn random() -> f64 {
    RandomState::new().build_hasher().finish() as f64 / u64::MAX as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_is_replaced_between_70_and_90_percent_of_its_life() {
        assert_eq!(renewal_time(1000, 2000, 0.0), 1700);
        assert_eq!(renewal_time(1000, 2000, 0.25), 1750);
        assert_eq!(renewal_time(1000, 2000, 1.0), 1900);
        assert_eq!(
            renewal_time(2000, 1000, 1.0),
            2000,
            "a certificate that makes no sense is replaced at once"
        );
        assert!((0..100).all(|_| (0.0..=1.0).contains(&random())));
    }

    #[test]
    fn incomplete_settings_are_refused() {
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
