//! Who holds addresses, and what was admitted for whom.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use super::runs::Runs;
use crate::mac::Mac;
use crate::timestamp::Timestamp;

/// What holds addresses.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Kind {
    /// A pod; its keys are names of networks.
    Pod,
    /// A virtual machine; its keys are names of interfaces.
    Machine,
}

/// An object that holds addresses. Shown as `pod/<namespace>/<name>` or `vm/<namespace>/<name>`.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Owner {
    /// What it is.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
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

/// An address of an object, by the name of the interface or network that has it.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Holding {
    /// The address.
    pub mac: Mac,
    /// Interface of a virtual machine, or network of a pod.
    pub key: Arc<str>,
}

/// Whose request was admitted.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
pub enum Claimant {
    /// An object with a name.
    Named(Owner),
    /// An object that gets its name from the API server later; known by the UID of the request.
    Unnamed {
        /// What it is.
        kind: Kind,
        /// Its namespace.
        namespace: Arc<str>,
        /// UID of the admission request.
        request: Arc<str>,
    },
}

/// A request that is to be admitted, so far: addresses that it keeps or gets anew. Dropping it undoes everything.
///
/// An update registers every address that the object is to have, those too that it has already: what it has may be
/// gone from what is stored by the time the update is.
#[derive(Clone, Debug, Default)]
pub struct Draft {
    holdings: Vec<Holding>,
    pub(super) taken: Runs,
}

impl Draft {
    /// Nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// The object brings this address itself, or has it already.
    pub fn register(&mut self, mac: Mac, key: &str) {
        if let Some(number) = mac.number() {
            self.taken.insert(number);
        }
        self.holdings.push(Holding { mac, key: key.into() });
    }

    /// All so far, in the order in which they came.
    pub fn holdings(&self) -> &[Holding] {
        &self.holdings
    }

    pub(super) fn into_holdings(self) -> Vec<Holding> {
        self.holdings
    }
}

/// An admission whose object was not seen yet.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Pending {
    /// Whose.
    pub claimant: Claimant,
    /// When, as the object will tell. Of an update: later than what its old object tells
    /// ([`Timestamp::or_after`]).
    pub timestamp: Timestamp,
    /// UID of the object, where it existed already (an update).
    pub uid: Option<Arc<str>>,
    /// When, by a clock that never jumps.
    pub admitted: Instant,
    /// Address of the client that asked.
    pub client: IpAddr,
}

/// One who holds an address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Holder {
    /// Whose it is.
    pub claimant: Claimant,
    /// Interface or network.
    pub key: Arc<str>,
    /// Whether the object was not seen with it yet.
    pub pending: bool,
}

/// How full a range is. Each address counts once, for the first who holds it.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct Usage {
    /// Addresses that can be handed out: without multicast and reserved ones.
    pub size: u64,
    /// Of these, held by objects of managed namespaces.
    pub used: u64,
    /// Of these, admitted for objects that were not seen yet.
    pub pending: u64,
    /// Of these, held by objects of other namespaces; never handed out, like the others.
    pub reserved: u64,
}

impl Usage {
    /// How many are left.
    pub fn free(&self) -> u64 {
        self.size
            .saturating_sub(self.used)
            .saturating_sub(self.pending)
            .saturating_sub(self.reserved)
    }
}
