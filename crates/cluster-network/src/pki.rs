//! Certificates that the operator issues and renews for other components, each from its own certificate authority
//! (§17.4).
//!
//! ```text
//! OperatorPKI ──> next: what to issue ──> Secret NAME-ca, ConfigMap NAME-ca, Secret NAME-cert
//!                  ▲                                        │
//!                  └─────────────── observed ───────────────┘
//! ```
//!
//! The bundle contains an authority before a server uses a certificate of that authority. An interrupted renewal
//! continues from the observed objects.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use webhook::certificates::standalone::{
    Facts, Subject, Usage, facts, new_authority, new_certificate, renewed_bundle,
};
use webhook::certificates::{IssueError, Pair};

pub mod controller;
#[cfg(test)]
mod tests;

const DAY: Duration = Duration::from_hours(24);
const YEAR: Duration = Duration::from_hours(365 * 24);
/// Lifetime of a certificate authority: 10 years.
const AUTHORITY_LIFE: Duration = YEAR.saturating_mul(10);
/// Age at which a certificate authority is renewed: 9 years.
const AUTHORITY_AGE: Duration = YEAR.saturating_mul(9);
/// Lifetime of a certificate: half a year.
const LIFE: Duration = DAY.saturating_mul(180);
/// Age at which a certificate is renewed: a quarter of a year.
const AGE: Duration = DAY.saturating_mul(90);

/// Observed objects of an `OperatorPKI`.
#[derive(Clone, Debug, Default)]
pub struct Found {
    /// The certificate authority.
    pub authority: Option<Pair>,
    /// The bundle of certificate authorities that clients trust.
    pub bundle: String,
    /// The certificate.
    pub certificate: Option<Pair>,
}

/// Objects to write, in this order. `None` means no change.
#[derive(Clone, Debug, Default)]
pub struct Next {
    /// A new certificate authority.
    pub authority: Option<Pair>,
    /// The new bundle.
    pub bundle: Option<String>,
    /// A new certificate.
    pub certificate: Option<Pair>,
}

impl Next {
    /// True if there is no change.
    pub fn is_nothing(&self) -> bool {
        self.authority.is_none() && self.bundle.is_none() && self.certificate.is_none()
    }
}

fn is_due(facts: &Facts, age: Duration, now: SystemTime) -> bool {
    let is_old = now
        .duration_since(facts.not_before)
        .is_ok_and(|lived| lived >= age);
    // A certificate of the future is not valid yet.
    is_old || facts.not_before > now || facts.not_after <= now
}

/// Decides the objects to write for an `OperatorPKI`. `owner` is its namespace and name. Generating a key takes a
/// while.
///
/// # Errors
/// If a certificate cannot be issued.
pub fn next(found: &Found, owner: &str, common_name: &str, now: SystemTime) -> Result<Next, IssueError> {
    let known = found.authority.as_ref().filter(|pair| {
        facts(pair).is_some_and(|facts| facts.is_authority && !is_due(&facts, AUTHORITY_AGE, now))
    });
    let new = if known.is_some() {
        None
    } else {
        let since = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        // The names of authorities are unique, because clients distinguish their certificates by name.
        Some(new_authority(
            &format!("{owner}-ca@{since}"),
            AUTHORITY_LIFE,
            now,
        )?)
    };
    let Some(authority) = new.as_ref().or(known) else {
        return Err(IssueError::NoAuthority);
    };
    let signer = facts(authority).ok_or(IssueError::NoAuthority)?;
    let is_fine = |pair: &Pair| {
        facts(pair).is_some_and(|facts| {
            facts.common_name == common_name && facts.is_signed_by(&signer) && !is_due(&facts, AGE, now)
        })
    };
    let certificate = match &found.certificate {
        Some(pair) if is_fine(pair) => None,
        _ => {
            let usages = vec![Usage::ClientAuth, Usage::ServerAuth];
            let subject = Subject { common_name, usages };
            Some(new_certificate(authority, &subject, LIFE, now)?)
        }
    };
    Ok(Next {
        bundle: renewed_bundle(&found.bundle, authority, now),
        authority: new,
        certificate,
    })
}
