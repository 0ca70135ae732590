//! Certificates of webhooks' servers, and the CA bundles that the API server trusts: issued and rotated here.
//!
//! ```text
//!   Secret of the CA ─────────┐
//!   Secret of the server ─────┼─> plan: what to issue and write, time of the next check
//!   bundles of the webhooks ──┘         │
//!                                       ▼
//!            CA's Secret ──> bundles ──> server's Secret        (each written if it differs)
//! ```
//!
//! The order keeps clients trusting: a CA is in every bundle before a certificate that it signed is served, and stays
//! there until it expires. After each write, the rest follows from the stored objects, so that interruptions are
//! harmless.
//!
//! Repairs back off while another client reverts them ([`kube_kit::apply::Upkeep`]); first certificates and renewals do
//! not.
//!
//! The layout of the Secrets is that of the upstream certificate managers (kubemacpool §15, nmstate §8): `ca.crt`
//! and `ca.key`, `tls.crt` and `tls.key`, RSA 2048 with keys in PKCS#1. Each can use the other's Secrets.

mod apply_plan;
mod bundle;
mod issue;
mod plan;
mod read;
pub mod standalone;

use std::{
    fmt,
    time::{Duration, SystemTime},
};

pub use apply_plan::{Error, Objects, keep};
pub use issue::Error as IssueError;
pub use plan::{Plan, Step, plan};

/// Shortest lifetime of a certificate: their resolution is a second, and pods see a new one after a delay.
const SHORTEST_LIFE: Duration = Duration::from_secs(10);

/// Names in the certificates.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Identity {
    /// Common name of the CA.
    pub authority: String,
    /// The Service in front of the server.
    pub service: String,
    /// Namespace of the Service.
    pub namespace: String,
}

impl Identity {
    /// The host name that the API server connects to.
    pub fn host(&self) -> String {
        format!("{}.{}.svc", self.service, self.namespace)
    }

    /// All host names of the server, in the order of its certificate.
    pub fn hosts(&self) -> [String; 4] {
        let Self {
            service, namespace, ..
        } = self;
        [
            service.clone(),
            format!("{service}.{namespace}"),
            self.host(),
            format!("{service}.{namespace}.svc.cluster.local"),
        ]
    }

    /// Common name of the server: that of the upstream certificate managers, unless it is longer than a common name
    /// may be (RFC 5280, appendix A.1).
    fn common_name(&self) -> String {
        const LONGEST: usize = 64;
        let Self {
            service, namespace, ..
        } = self;
        let name = format!("{service}.{namespace}.pod.cluster.local");
        if name.len() <= LONGEST {
            name
        } else {
            service.clone()
        }
    }
}

/// Lifetimes of certificates, and how long before their expiry they are renewed.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Intervals {
    /// Lifetime of a CA.
    pub ca_rotate: Duration,
    /// How long before its expiry a new CA is trusted too.
    pub ca_overlap: Duration,
    /// Lifetime of the server's certificate.
    pub cert_rotate: Duration,
    /// How long before its expiry a new one is served.
    pub cert_overlap: Duration,
}

impl Intervals {
    fn ca_life(&self) -> Duration {
        self.ca_rotate.max(SHORTEST_LIFE)
    }

    fn cert_life(&self) -> Duration {
        self.cert_rotate.max(SHORTEST_LIFE)
    }
}

/// A certificate, optionally followed by others, and its private key, both as PEM.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Pair {
    /// One or more certificates.
    pub certificate: Vec<u8>,
    /// The key of the first certificate.
    pub key: Vec<u8>,
}

impl fmt::Debug for Pair {
    /// Omits the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair")
            .field("certificate", &String::from_utf8_lossy(&self.certificate))
            .finish_non_exhaustive()
    }
}

/// The stored certificates, valid or not.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct State {
    /// The CA's Secret.
    pub authority: Option<Pair>,
    /// The server's Secret.
    pub serving: Option<Pair>,
    /// The bundle of each webhook as PEM; empty if it has none.
    pub bundles: Vec<Vec<u8>>,
}

/// Waits for a time of the system clock, or for a backward jump of that clock: both need a check.
pub async fn wait_until(time: SystemTime) {
    /// How often the clock is checked for jumps.
    const NOTICED: Duration = Duration::from_secs(30);
    let mut before = SystemTime::now();
    while let Ok(left) = time.duration_since(before) {
        tokio::time::sleep(left.min(NOTICED)).await;
        let now = SystemTime::now();
        if now < before {
            return;
        }
        before = now;
    }
}

#[cfg(test)]
mod tests;
