//! Which running objects share an address (kubemacpool §13). Pure: no clock, no client.
//!
//! ```text
//! instances, pods: set, remove ──> who has an address ──> parties of a collision ──> gauge
//! managed namespaces: reconsider ──>                              └──> notices, when a party is new or changed
//! ```
//!
//! What collides depends on the objects alone, not on the order in which they were seen. A change costs as much as the
//! addresses of what changed have owners, however many objects there are.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::Arc;

use crate::mac::Mac;
use crate::pool;

#[cfg(test)]
mod tests;

/// What may collide. Shown as the word that references begin with.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Kind {
    /// A pod that is no virtual machine's.
    Pod,
    /// A virtual machine that runs (`VirtualMachineInstance`).
    Instance,
}

impl Kind {
    /// Whose webhook says whether a namespace is managed.
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

/// An object by its name. Shown as `pod/<namespace>/<name>` or `vmi/<namespace>/<name>`.
#[derive(Clone, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Reference {
    /// What it is.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
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

/// The migrations that an instance takes part in; `None` on both sides when it does not migrate.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Migration {
    /// `status.migrationState.sourceState.migrationUID`, if it is not empty.
    pub source: Option<Box<str>>,
    /// `status.migrationState.targetState.migrationUID`, if it is not empty.
    pub target: Option<Box<str>>,
}

impl Migration {
    /// Reads both UIDs; an empty one is none.
    pub fn new(source: Option<&str>, target: Option<&str>) -> Self {
        let uid = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(Box::from);
        Self {
            source: uid(source),
            target: uid(target),
        }
    }

    /// Both sides of one migration share their addresses rightly.
    fn is_shared_with(&self, other: &Self) -> bool {
        let same = |one: &Option<Box<str>>, other| one.is_some() && one == other;
        same(&self.source, &other.source) || same(&self.target, &other.target)
    }
}

/// What is known of an object; everything else about it changes nothing.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Facts {
    uid: Box<str>,
    /// Sorted, each once.
    macs: Box<[Mac]>,
    migration: Migration,
}

impl Facts {
    /// What is known of a pod: `None` while it can't collide. `macs` are those of its networks annotation, in the order
    /// and as often as they stand there; they count when multus has attached the networks.
    pub fn of_pod(pod: &Pod<'_>, macs: impl IntoIterator<Item = Mac>) -> Option<Self> {
        let counts = pod.phase == RUNNING && pod.attached && !pod.launcher;
        counts.then(|| Self::new(pod.uid, macs, Migration::default()))?
    }

    /// What is known of an instance: `None` while it can't collide. `macs` are those of [`instance_macs`].
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

/// What decides whether a pod can collide.
#[derive(Clone, Copy, Debug)]
pub struct Pod<'a> {
    /// Its UID.
    pub uid: &'a str,
    /// `status.phase`.
    pub phase: &'a str,
    /// Whether its label says that it runs a virtual machine, which counts itself.
    pub launcher: bool,
    /// Whether it has a `network-status` annotation.
    pub attached: bool,
}

/// Phase of what can collide.
pub(crate) const RUNNING: &str = "Running";

/// Addresses of an instance that count: those of its interfaces by name, as its status tells them, which its
/// specification has too and which are `supported` (§10.1). What only the guest knows has no name there: bridges and
/// containers inside of it may have addresses that repeat from guest to guest. Unreadable ones are left out, empty ones
/// too.
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

/// Addresses of a pod's networks that can be read; empty ones are none.
pub fn pod_macs<'a>(texts: impl IntoIterator<Item = &'a str>) -> Vec<Mac> {
    let given = texts.into_iter().filter(|text| !text.is_empty());
    given.filter_map(readable).collect()
}

fn readable(text: &str) -> Option<Mac> {
    match Mac::parse(text) {
        Ok(mac) => Some(mac),
        Err(error) => {
            tracing::debug!(%error, "an address that cannot be read cannot collide");
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

/// A collision that users are to be told of, on every party of it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Notice {
    /// The address.
    pub mac: Mac,
    /// Who has it, sorted as their references are written; two at least.
    pub parties: Vec<Party>,
}

/// Whether a namespace is managed for the webhook of this kind. A namespace that nothing can be said about is.
pub type IsManaged<'a> = &'a dyn Fn(pool::Kind, &str) -> bool;

/// All running objects by their addresses, and which of them collide.
#[derive(Debug, Default)]
pub struct Collisions {
    objects: BTreeMap<Reference, Facts>,
    /// Who has an address, managed or not.
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
    /// Nothing is known. No notices are given before [`Collisions::begin`].
    pub fn new() -> Self {
        Self::default()
    }

    /// Everything that was there at the start has been set: gives the notices of all collisions, each of them once, and
    /// from now on those of every change.
    pub fn begin(&mut self) -> Vec<Notice> {
        self.begun = true;
        let colliding = self.colliding.keys();
        colliding.filter_map(|mac| self.notice(*mac, &|_| true)).collect()
    }

    /// An object was seen: `None` when it can't collide. Gives notices of the collisions it takes part in if something
    /// about it is new; `managed` is asked about its namespace when nothing else of that kind there is known.
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
                // Nearly all addresses have one holder for ever: no room is kept for more.
                None => drop(self.holders.insert(*mac, vec![object.clone()])),
            }
        }
        let now = facts.macs.clone();
        self.objects.insert(object.clone(), facts);
        self.count(before.iter().flat_map(|facts| facts.macs.iter()).chain(&now));
        self.notices(now.iter().copied(), &|party| *party == object)
    }

    /// An object is gone.
    pub fn remove(&mut self, object: &Reference) {
        if let Some(facts) = self.take(object) {
            self.count(&facts.macs);
        }
    }

    /// Namespaces are managed from now on, or no more: the one that changed, or any of them. Gives notices of the
    /// collisions of objects that came in.
    pub fn reconsider(&mut self, namespace: Option<&str>, managed: IsManaged<'_>) -> Vec<Notice> {
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

    /// Addresses that collide, and how many objects have each of them; the gauge's content.
    pub fn colliding(&self) -> impl Iterator<Item = (Mac, usize)> {
        self.colliding.iter().map(|(mac, parties)| (*mac, *parties))
    }

    /// Takes an object out; its addresses are to be counted anew.
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

    /// Counts an object in its namespace, whose name is kept once.
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

    /// Brings the gauge's content up to date.
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
        let told = macs.into_iter().filter(|_| self.begun);
        told.filter_map(|mac| self.notice(mac, is_new)).collect()
    }

    /// The notice of an address that collides, if a party is new.
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

    /// Objects in managed namespaces that have the address and are no side of one migration with all others that do.
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

/// Whether two objects with one address are in each other's way (§13.4).
fn collide(one: (&Reference, &Facts), other: (&Reference, &Facts)) -> bool {
    let instances = one.0.kind == Kind::Instance && other.0.kind == Kind::Instance;
    one.0 != other.0 && !(instances && one.1.migration.is_shared_with(&other.1.migration))
}
