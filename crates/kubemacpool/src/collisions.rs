//! Running objects that share an address (kubemacpool §13). Pure: no clock, no client.
//!
//! ```text
//! instances, pods: set, remove ──> holders of an address ──> parties of a collision ──> gauge
//! managed namespaces: recheck ──>                              └──> notices, if a party is new or changed
//! ```
//!
//! The collisions depend on the objects alone, not on the order of their observation. The cost of a change depends on
//! the number of holders of the object's addresses, not on the number of objects.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use cni::mac::Mac;

use crate::pool;

#[cfg(test)]
mod tests;

/// Kind of an object that may collide. Displayed as the prefix of references.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Kind {
    /// A pod that belongs to no virtual machine.
    Pod,
    /// A running virtual machine (`VirtualMachineInstance`).
    Instance,
}

impl Kind {
    /// The kind whose webhook determines the managed namespaces.
    pub fn managed_as(self) -> pool::Kind {
        match self {
            Self::Pod => pool::Kind::Pod,
            Self::Instance => pool::Kind::Machine,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Pod => "pod",
            Self::Instance => "vmi",
        })
    }
}

/// A reference to an object. Displayed as `pod/<namespace>/<name>` or `vmi/<namespace>/<name>`.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Reference {
    /// Kind of the object.
    pub kind: Kind,
    /// Namespace.
    pub namespace: Arc<str>,
    /// Name.
    pub name: Arc<str>,
}

impl Reference {
    /// A pod.
    pub fn pod(namespace: &str, name: &str) -> Self {
        Self::new(Kind::Pod, namespace, name)
    }

    /// A virtual machine that runs.
    pub fn instance(namespace: &str, name: &str) -> Self {
        Self::new(Kind::Instance, namespace, name)
    }

    fn new(kind: Kind, namespace: &str, name: &str) -> Self {
        Self {
            kind,
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl fmt::Display for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}", self.kind, self.namespace, self.name)
    }
}

/// The migrations of an instance; both are `None` if it does not migrate.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Migration {
    /// `status.migrationState.sourceState.migrationUID`, if it is not empty.
    pub source: Option<Box<str>>,
    /// `status.migrationState.targetState.migrationUID`, if it is not empty.
    pub target: Option<Box<str>>,
}

impl Migration {
    /// Reads both UIDs; an empty one counts as missing.
    pub fn new(source: Option<&str>, target: Option<&str>) -> Self {
        let uid = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(Box::from);
        Self {
            source: uid(source),
            target: uid(target),
        }
    }

    /// Whether both are sides of one migration, and so share their addresses rightly.
    fn is_shared_with(&self, other: &Self) -> bool {
        let same = |one: &Option<Box<str>>, other| one.is_some() && one == other;
        same(&self.source, &other.source) || same(&self.target, &other.target)
    }
}

/// The parts of an object that collisions depend on.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Facts {
    uid: Box<str>,
    /// Sorted and unique.
    macs: Box<[Mac]>,
    migration: Migration,
}

impl Facts {
    /// The facts about a pod; `None` while it cannot collide. `macs` are the addresses of its networks annotation in
    /// any order; they count once multus has attached the networks.
    pub fn of_pod(pod: &Pod<'_>, macs: impl IntoIterator<Item = Mac>) -> Option<Self> {
        let counts = pod.phase == RUNNING && pod.attached && !pod.launcher;
        counts.then(|| Self::new(pod.uid, macs, Migration::default()))?
    }

    /// The facts about an instance; `None` while it cannot collide. `macs` are those of [`instance_macs`].
    pub fn of_instance(
        uid: &str,
        phase: &str,
        macs: impl IntoIterator<Item = Mac>,
        migration: Migration,
    ) -> Option<Self> {
        (phase == RUNNING).then(|| Self::new(uid, macs, migration))?
    }

    fn new(uid: &str, macs: impl IntoIterator<Item = Mac>, migration: Migration) -> Option<Self> {
        let macs: BTreeSet<Mac> = macs.into_iter().collect();
        (!macs.is_empty()).then(|| Self {
            uid: uid.into(),
            macs: macs.into_iter().collect(),
            migration,
        })
    }
}

/// The parts of a pod that decide whether it can collide.
#[derive(Clone, Copy, Debug)]
pub struct Pod<'a> {
    /// Its UID.
    pub uid: &'a str,
    /// `status.phase`.
    pub phase: &'a str,
    /// Whether its label marks it as the pod of a virtual machine, which counts itself.
    pub launcher: bool,
    /// Whether it has a `network-status` annotation.
    pub attached: bool,
}

/// Phase of objects that can collide.
pub(crate) const RUNNING: &str = "Running";

/// Addresses of an instance that count: those of named interfaces in its status that its spec has too, and that are
/// `supported` (§10.1). Interfaces inside of the guest have no name there: its bridges and containers may have
/// addresses that repeat in other guests. Empty and malformed addresses are skipped.
pub fn instance_macs<'a>(
    status: impl IntoIterator<Item = (&'a str, &'a str)>,
    supported: impl Fn(&str) -> bool,
) -> Vec<Mac> {
    let counting = status.into_iter().filter(|(name, mac)| {
        let named = !name.is_empty() && !mac.is_empty();
        named && supported(name)
    });
    counting.filter_map(|(_, mac)| readable(mac)).collect()
}

/// Well-formed addresses of a pod's networks; empty ones are skipped.
pub fn pod_macs<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<Mac> {
    let given = texts.into_iter().filter(|text| !text.is_empty());
    given.filter_map(readable).collect()
}

fn readable(text: &str) -> Option<Mac> {
    match Mac::parse(text) {
        Ok(mac) => Some(mac),
        Err(error) => {
            tracing::debug!(%error, "ignoring malformed MAC address");
            None
        }
    }
}

/// A party of a collision.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Party {
    /// The object.
    pub reference: Reference,
    /// Its UID.
    pub uid: Box<str>,
}

/// A collision, to be reported on each of its parties.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Notice {
    /// The address.
    pub mac: Mac,
    /// Holders of the address, sorted by reference; at least two.
    pub parties: Vec<Party>,
}

/// Whether a namespace is managed for the webhook of this kind. Unknown namespaces count as managed.
pub type IsManaged<'a> = &'a dyn Fn(pool::Kind, &str) -> bool;

/// All running objects by address, and their collisions.
#[derive(Debug, Default)]
pub struct Collisions {
    objects: BTreeMap<Reference, Facts>,
    /// Holders of an address, managed or not.
    holders: HashMap<Mac, Vec<Reference>>,
    namespaces: HashMap<(Kind, Arc<str>), Namespace>,
    colliding: BTreeMap<Mac, usize>,
    begun: bool,
}

#[derive(Debug)]
struct Namespace {
    managed: bool,
    objects: usize,
}

impl Collisions {
    /// No objects. There are no notices before [`Collisions::begin`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Called once the initial objects are set: returns the notices of all collisions, each once, and enables those of
    /// later changes.
    pub fn begin(&mut self) -> Vec<Notice> {
        self.begun = true;
        let colliding = self.colliding.keys();
        colliding.filter_map(|mac| self.notice(*mac, &|_| true)).collect()
    }

    /// Sets an object; `None` if it cannot collide. Returns notices of its collisions if something about it is new.
    /// `managed` is called for the first object of a kind in a namespace.
    pub fn set(&mut self, object: &Reference, facts: Option<Facts>, managed: IsManaged<'_>) -> Vec<Notice> {
        let Some(facts) = facts else {
            self.remove(object);
            return Vec::new();
        };
        if self.objects.get(object) == Some(&facts) {
            return Vec::new();
        }
        let before = self.take(object);
        let namespace = self.enter(object, managed);
        let object = Reference {
            namespace,
            ..object.clone()
        };
        for mac in &facts.macs {
            match self.holders.get_mut(mac) {
                Some(holders) => holders.push(object.clone()),
                // Nearly all addresses have one holder for ever: no capacity is reserved for more.
                None => drop(self.holders.insert(*mac, vec![object.clone()])),
            }
        }
        let now = facts.macs.clone();
        self.objects.insert(object.clone(), facts);
        self.count(before.iter().flat_map(|facts| facts.macs.iter()).chain(&now));
        self.notices(now.iter().copied(), &|party| *party == object)
    }

    /// Removes an object.
    pub fn remove(&mut self, object: &Reference) {
        if let Some(facts) = self.take(object) {
            self.count(&facts.macs);
        }
    }

    /// Checks again whether namespaces are managed: the one that changed, or all. Returns notices of the collisions of
    /// newly managed objects.
    pub fn recheck(&mut self, namespace: Option<&str>, managed: IsManaged<'_>) -> Vec<Notice> {
        let affected: Vec<_> = match namespace {
            Some(name) => [Kind::Pod, Kind::Instance]
                .map(|kind| (kind, Arc::from(name)))
                .into(),
            None => self.namespaces.keys().cloned().collect(),
        };
        let mut changed = BTreeSet::new();
        for key in affected {
            let Some(namespace) = self.namespaces.get_mut(&key) else {
                continue;
            };
            let now = managed(key.0.managed_as(), &key.1);
            if now != namespace.managed {
                namespace.managed = now;
                changed.insert(key);
            }
        }
        let mut macs = BTreeSet::new();
        for (kind, namespace) in &changed {
            let first = Reference {
                kind: *kind,
                namespace: Arc::clone(namespace),
                name: "".into(),
            };
            let following = self.objects.range(first..);
            let objects =
                following.take_while(|(object, _)| object.kind == *kind && object.namespace == *namespace);
            macs.extend(objects.flat_map(|(_, facts)| facts.macs.iter().copied()));
        }
        self.count(&macs);
        let came_in = |party: &Reference| {
            let namespace = (party.kind, Arc::clone(&party.namespace));
            changed.contains(&namespace)
        };
        self.notices(macs, &came_in)
    }

    /// Colliding addresses with their numbers of objects, for the gauge.
    pub fn colliding(&self) -> impl Iterator<Item = (Mac, usize)> {
        self.colliding.iter().map(|(mac, parties)| (*mac, *parties))
    }

    /// Removes an object without updating the gauge.
    fn take(&mut self, object: &Reference) -> Option<Facts> {
        let facts = self.objects.remove(object)?;
        for mac in &facts.macs {
            if let Some(holders) = self.holders.get_mut(mac) {
                holders.retain(|holder| holder != object);
                if holders.is_empty() {
                    self.holders.remove(mac);
                }
            }
        }
        let namespace = (object.kind, Arc::clone(&object.namespace));
        if let Some(known) = self.namespaces.get_mut(&namespace) {
            known.objects -= 1;
            if known.objects == 0 {
                self.namespaces.remove(&namespace);
            }
        }
        Some(facts)
    }

    /// Counts an object in its namespace; returns the shared copy of the namespace's name.
    fn enter(&mut self, object: &Reference, managed: IsManaged<'_>) -> Arc<str> {
        let key = (object.kind, Arc::clone(&object.namespace));
        if let Some(((_, name), _)) = self.namespaces.get_key_value(&key) {
            let name = Arc::clone(name);
            if let Some(known) = self.namespaces.get_mut(&key) {
                known.objects += 1;
            }
            return name;
        }
        let managed = managed(object.kind.managed_as(), &object.namespace);
        self.namespaces.insert(key, Namespace { managed, objects: 1 });
        Arc::clone(&object.namespace)
    }

    /// Updates the gauge.
    fn count<'a>(&mut self, macs: impl IntoIterator<Item = &'a Mac>) {
        for mac in macs {
            match self.parties(*mac).len() {
                0 => drop(self.colliding.remove(mac)),
                parties => drop(self.colliding.insert(*mac, parties)),
            }
        }
    }

    fn notices(
        &self,
        macs: impl IntoIterator<Item = Mac>,
        is_new: &dyn Fn(&Reference) -> bool,
    ) -> Vec<Notice> {
        let affected = macs.into_iter().filter(|_| self.begun);
        affected.filter_map(|mac| self.notice(mac, is_new)).collect()
    }

    /// The notice of a colliding address, if a party is new.
    fn notice(&self, mac: Mac, is_new: &dyn Fn(&Reference) -> bool) -> Option<Notice> {
        let parties = self.parties(mac);
        if !parties.iter().any(|(object, _)| is_new(object)) {
            return None;
        }
        let mut parties: Vec<_> = parties
            .into_iter()
            .map(|(reference, facts)| Party {
                reference: reference.clone(),
                uid: facts.uid.clone(),
            })
            .collect();
        parties.sort_by_cached_key(|party| party.reference.to_string());
        Some(Notice { mac, parties })
    }

    /// Objects in managed namespaces that have the address, except sides of one migration with all others that have it.
    fn parties(&self, mac: Mac) -> Vec<(&Reference, &Facts)> {
        let holders = self.holders.get(&mac).map_or(&[][..], Vec::as_slice);
        if holders.len() < 2 {
            return Vec::new();
        }
        let candidates: Vec<_> = holders
            .iter()
            .filter(|object| self.is_managed(object))
            .filter_map(|object| self.objects.get_key_value(object))
            .collect();
        let collides = |one: &(&Reference, &Facts)| candidates.iter().any(|other| collide(*one, *other));
        candidates.iter().copied().filter(collides).collect()
    }

    fn is_managed(&self, object: &Reference) -> bool {
        let namespace = (object.kind, Arc::clone(&object.namespace));
        self.namespaces.get(&namespace).is_none_or(|known| known.managed)
    }
}

/// Whether two objects with one address collide (§13.4).
fn collide(one: (&Reference, &Facts), other: (&Reference, &Facts)) -> bool {
    let instances = one.0.kind == Kind::Instance && other.0.kind == Kind::Instance;
    one.0 != other.0 && !(instances && one.1.migration.is_shared_with(&other.1.migration))
}
