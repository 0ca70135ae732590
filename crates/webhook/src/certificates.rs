//! A certificate for a webhook's server and the bundle by which the API server trusts it, issued and rotated without
//! help from outside.
//!
//! ```text
//!   Secret of the authority ──┐
//!   Secret of the server ─────┼─> plan: what to issue, what to write, when to look again
//!   bundles of the webhooks ──┘         │
//!                                       ▼
//!            authority's Secret ──> bundles ──> server's Secret        (each compared, then written)
//! ```
//!
//! The order is what keeps clients trusting: an authority is in every bundle before anything that it signed is
//! served, and stays there until it expires. After every single write the rest can be found out from what is there, so
//! that an interruption costs nothing.
//!
//! Repairs back off while another client reverts each ([`kube_kit::apply::Upkeep`]); first certificates and renewals do
//! not.
//!
//! The layout of the Secrets is that of the established certificate managers (kubemacpool §15, nmstate §8): `ca.crt`
//! and `ca.key`, `tls.crt` and `tls.key`, RSA 2048 with keys in PKCS#1. What they left is used on, and they can use
//! what is written here.

mod bundle;
mod carry_out;
pub mod free;
mod issue;
mod plan;
mod read;

use std::{
    fmt,
    time::{Duration, SystemTime},
};

pub use carry_out::{Error, Objects, keep};
pub use issue::Error as IssueError;
pub use plan::{Plan, Step, plan};

/// The shortest life of a certificate: they count in seconds, and pods learn of a new one after a while.
const SHORTEST_LIFE: Duration = Duration::from_secs(10);

/// Whom certificates are for.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub struct Identity {
    /// Common name of the authority.
    pub authority: String,
    /// Name of the Service in front of the server.
    pub service: String,
    /// Its namespace.
    pub namespace: String,
}

impl Identity {
    /// The name by which the API server calls the server.
    pub fn host(&self) -> String {
        format!("{}.{}.svc", self.service, self.namespace)
    }

    /// All names of the server, in the order in which they stand in its certificate.
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

    /// Common name of the server: that of the established certificate managers, unless it is longer than a common name
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

/// How long certificates live, and how long before their end they are renewed.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct Intervals {
    /// Life of an authority.
    pub ca_rotate: Duration,
    /// Before the end of its life, a new authority is trusted beside it.
    pub ca_overlap: Duration,
    /// Life of the server's certificate.
    pub cert_rotate: Duration,
    /// Before the end of its life, a new one is served.
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

/// A certificate, or several with the one that counts first, and its private key, both as PEM.
#[derive(Clone, Default, Eq, PartialEq)]
pub struct Pair {
    /// Certificates.
    pub certificate: Vec<u8>,
    /// The key of the first of them.
    pub key: Vec<u8>,
}

impl fmt::Debug for Pair {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pair")
            .field("certificate", &String::from_utf8_lossy(&self.certificate))
            .finish_non_exhaustive()
    }
}

/// What there is, good or bad.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct State {
    /// What the authority's Secret holds.
    pub authority: Option<Pair>,
    /// What the server's Secret holds.
    pub serving: Option<Pair>,
    /// The bundle of each webhook, as PEM; empty where there is none.
    pub bundles: Vec<Vec<u8>>,
}

/// Waits until the clock on the wall shows this time, or jumps back: then too things have to be looked at.
pub async fn wait_until(time: SystemTime) {
    /// How long a jump of the clock may go unnoticed.
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
