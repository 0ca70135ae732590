//! Holders of addresses, and admissions.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use cni::mac::Mac;

use super::runs::Runs;
use crate::timestamp::Timestamp;

/// Kind of an object with addresses.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Kind {
    /// A pod; its keys are network names.
    Pod,
    /// A virtual machine; its keys are interface names.
    Machine,
}

/// An object with addresses. Displayed as `pod/<namespace>/<name>` or `vm/<namespace>/<name>`.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Owner {
    /// Kind of the object.
    pub kind: Kind,
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl Owner {
    /// A pod.
    pub fn pod(namespace: &str, name: &str) -> Self {
        Self {
            kind: Kind::Pod,
            namespace: namespace.into(),
            name: name.into(),
        }
    }

    /// A virtual machine.
    pub fn machine(namespace: &str, name: &str) -> Self {
        Self {
            kind: Kind::Machine,
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Pod => "pod",
            Kind::Machine => "vm",
        };
        write!(f, "{kind}/{}/{}", self.namespace, self.name)
    }
}

/// An address of an object, with the name of its interface or network.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Holding {
    /// The address.
    pub mac: Mac,
    /// Interface of a virtual machine, or network of a pod.
    pub key: Arc<str>,
}

/// The object of an admitted request.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Claimant {
    /// A named object.
    Named(Owner),
    /// An object whose name the API server will generate, identified by the UID of the request.
    Unnamed {
        /// Kind of the object.
        kind: Kind,
        /// Namespace.
        namespace: Arc<str>,
        /// UID of the admission request.
        request: Arc<str>,
    },
}

/// The addresses of a request that is not admitted yet: kept and newly allocated ones. Dropping it releases them.
///
/// An update registers every address of the object, including those that it already has: the stored object may have
/// lost them by the time the update is stored.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    holdings: Vec<Holding>,
    pub(super) taken: Runs,
}

impl Draft {
    /// An empty draft.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an address that the object brings or already has.
    pub fn register(&mut self, mac: Mac, key: &str) {
        if let Some(number) = mac.number() {
            self.taken.insert(number);
        }
        self.holdings.push(Holding { mac, key: key.into() });
    }

    /// All addresses, in the order in which they were added.
    pub fn holdings(&self) -> &[Holding] {
        &self.holdings
    }

    pub(super) fn into_holdings(self) -> Vec<Holding> {
        self.holdings
    }
}

/// An admission whose object is not observed yet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pending {
    /// The object.
    pub claimant: Claimant,
    /// Time of the admission, as annotated on the object. For an update later than the time on the old object
    /// ([`Timestamp::or_after`]).
    pub timestamp: Timestamp,
    /// UID of the object, for an update.
    pub uid: Option<Arc<str>>,
    /// Time of the admission by a monotonic clock.
    pub admitted: Instant,
    /// Address of the client.
    pub client: IpAddr,
}

/// A holder of an address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Holder {
    /// The object.
    pub claimant: Claimant,
    /// Interface or network.
    pub key: Arc<str>,
    /// Whether the object is not observed with it yet.
    pub pending: bool,
}

/// Usage of a range. Each address counts once, for its first holder.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    /// Allocatable addresses, without multicast and reserved ones.
    pub size: u64,
    /// Of these, held by objects of managed namespaces.
    pub used: u64,
    /// Of these, admitted for objects that are not observed yet.
    pub pending: u64,
    /// Of these, held by objects of other namespaces; they are not allocated either.
    pub reserved: u64,
}

impl Usage {
    /// Number of free addresses.
    pub fn free(&self) -> u64 {
        self.size
            .saturating_sub(self.used)
            .saturating_sub(self.pending)
            .saturating_sub(self.reserved)
    }
}
