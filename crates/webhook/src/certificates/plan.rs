//! Decides what to issue and write, from the stored certificates and the time.

use std::time::{Duration, SystemTime};

use super::{
    Identity, Intervals, State, bundle,
    read::{self, Certificate},
};

/// A write. Steps run in order, each with the results of the earlier ones.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step {
    /// Issue a new CA into its Secret.
    Authority,
    /// Prepend the CA to each webhook's bundle, and remove expired certificates.
    Bundles,
    /// Issue a new server certificate, signed by the CA, into the server's Secret.
    Serving,
}

/// Steps to run now, and the time of the next check.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Plan {
    /// After these steps, nothing is left to do until the next check.
    pub steps: Vec<Step>,
    /// Only meaningful without steps.
    pub next_check: SystemTime,
}

/// A server certificate that clients accept.
struct Served {
    certificate: Certificate,
    until: SystemTime,
}

/// Decides what to issue and write.
///
/// Broken certificates cause a renewal of everything, like with the upstream certificate managers: users delete a
/// Secret to renew everything. A bundle that lost the CA gets it back first, because the pods still serve a certificate
/// that it signed. Certificates close to their expiry are renewed individually: a new CA first signs the server's next
/// certificate, and is in every bundle by then.
pub fn plan(state: &State, identity: &Identity, intervals: &Intervals, now: SystemTime) -> Plan {
    let host = identity.host();
    let authority = state
        .authority
        .as_ref()
        .and_then(|pair| read::authority(pair, now));
    let bundles: Vec<_> = state.bundles.iter().map(|pem| read::certificates(pem)).collect();
    let fits = |bundle: &Vec<Certificate>| bundle::extended(authority.as_ref(), bundle, now) == *bundle;
    let all_fit = bundles.iter().all(fits);
    let chain = state
        .serving
        .as_ref()
        .and_then(read::with_key)
        .unwrap_or_default();
    let alone = authority.as_slice();
    let signed_until = read::trusted_until(&chain, alone, &host, now);

    let until = if bundles.is_empty() {
        signed_until
    } else {
        let ends = bundles
            .iter()
            .map(|bundle| read::trusted_until(&chain, bundle, &host, now));
        ends.min().flatten()
    };
    let served = until
        .zip(chain.into_iter().next())
        .map(|(until, certificate)| Served { certificate, until });
    let Some(served) = served else {
        let renewal = [Step::Authority, Step::Bundles, Step::Serving];
        let first = (signed_until.is_some() && !all_fit).then_some(Step::Bundles);
        return Plan {
            steps: first.into_iter().chain(renewal).collect(),
            next_check: now,
        };
    };

    let serving_due = served.certificate.renewal(served.until, intervals.cert_overlap);
    let serving_is_due = serving_due <= now;
    let authority_due = authority
        .as_ref()
        .map(|authority| authority.renewal(authority.not_after, intervals.ca_overlap));
    // A CA that would expire before the certificate to sign is replaced early, but not repeatedly.
    let too_short = authority.as_ref().is_some_and(|authority| {
        authority.not_after < now + intervals.cert_life() && !authority.is_fresh_at(now)
    });
    let mut steps = Vec::new();
    if authority_due.is_none_or(|due| due <= now) || (serving_is_due && too_short) {
        steps.extend([Step::Authority, Step::Bundles]);
    } else if !all_fit {
        steps.push(Step::Bundles);
    }
    if serving_is_due {
        steps.push(Step::Serving);
    }
    let expiries = bundles.iter().flatten().map(|certificate| {
        // The certificate is valid in its last second.
        certificate.not_after + Duration::from_secs(1)
    });
    let times = expiries.chain(authority_due).chain([serving_due]);
    Plan {
        steps,
        next_check: times.min().unwrap_or(now),
    }
}
