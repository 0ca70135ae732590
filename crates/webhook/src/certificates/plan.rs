//! Decides what to issue and what to write, from what there is and the time.

use std::time::{Duration, SystemTime};

use super::{
    Identity, Intervals, State, bundle,
    read::{self, Certificate},
};

/// Something to write. Steps are taken in their order, each with what the ones before it made.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Step {
    /// Issue a new authority, into its Secret.
    Authority,
    /// Put the authority before whatever else each webhook's bundle holds, and take out what has expired.
    Bundles,
    /// Issue a new certificate for the server, signed by the authority, into the server's Secret.
    Serving,
}

/// What to do now, and when to look again if nothing changes.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Plan {
    /// What to do; once it is done, there is nothing to do until the time to look again.
    pub steps: Vec<Step>,
    /// When to look again; only of a meaning when there is nothing to do.
    pub look_again: SystemTime,
}

/// What clients make of the server's certificate.
struct Served {
    certificate: Certificate,
    /// Until when all clients trust it.
    until: SystemTime,
}

/// Decides.
///
/// What is broken is renewed as a whole, as the established certificate managers do: a Secret that is deleted is a way
/// to renew everything. A bundle that lost the authority gets it back first of all: the pods still serve what it signed.
/// What merely nears its end is renewed alone: a new authority signs when the server's next certificate is due, and is
/// known everywhere by then.
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
            look_again: now,
        };
    };

    let serving_due = served.certificate.renewal(served.until, intervals.cert_overlap);
    let serving_is_due = serving_due <= now;
    let authority_due = authority
        .as_ref()
        .map(|authority| authority.renewal(authority.not_after, intervals.ca_overlap));
    // One that would end before what it is about to sign is replaced early, but not again and again.
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
        // Its last second is still within.
        certificate.not_after + Duration::from_secs(1)
    });
    let times = expiries.chain(authority_due).chain([serving_due]);
    Plan {
        steps,
        look_again: times.min().unwrap_or(now),
    }
}
