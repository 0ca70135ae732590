mod cases;
mod model;
mod random;
mod size;

use std::time::Instant;

use super::*;

fn mac(text: &str) -> Mac {
    Mac::parse(text).unwrap()
}

fn range(start: &str, end: &str) -> Range {
    Range::new(mac(start), mac(end)).unwrap()
}

fn holding(mac: Mac, key: &str) -> Holding {
    Holding { mac, key: key.into() }
}

/// A time, in nanoseconds after an arbitrary one.
fn moment(nanoseconds: u64) -> Timestamp {
    let start = Timestamp::parse("2026-01-02T03:04:05Z").unwrap();
    start.plus(nanoseconds)
}

/// Creation of a named object.
fn creation(owner: &Owner, timestamp: u64, admitted: Instant) -> Pending {
    Pending {
        claimant: Claimant::Named(owner.clone()),
        timestamp: moment(timestamp),
        uid: None,
        admitted,
        client: std::net::Ipv4Addr::LOCALHOST.into(),
    }
}

fn update(owner: &Owner, uid: &str, timestamp: u64, admitted: Instant) -> Pending {
    Pending {
        uid: Some(uid.into()),
        ..creation(owner, timestamp, admitted)
    }
}

fn unnamed(kind: Kind, namespace: &str, request: &str, timestamp: u64, admitted: Instant) -> Pending {
    Pending {
        claimant: Claimant::Unnamed {
            kind,
            namespace: namespace.into(),
            request: request.into(),
        },
        timestamp: moment(timestamp),
        uid: None,
        admitted,
        client: std::net::Ipv4Addr::LOCALHOST.into(),
    }
}
