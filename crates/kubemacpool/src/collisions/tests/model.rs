//! A literal implementation of §13: checks all objects at each change.

use super::*;

/// Kind, namespace and name of an object.
pub(super) type Object = (bool, u8, u8);

#[derive(Clone, Debug)]
pub(super) enum Change {
    Set {
        object: Object,
        running: bool,
        uid: u8,
        macs: BTreeSet<u8>,
        /// 0 means none.
        migration: (u8, u8),
    },
    Remove(Object),
    Toggle {
        machines: bool,
        namespace: u8,
    },
    Begin,
}

#[derive(Clone, Debug, PartialEq)]
struct Known {
    running: bool,
    uid: u8,
    macs: BTreeSet<u8>,
    migration: (u8, u8),
}

#[derive(Debug, Default)]
pub(super) struct World {
    objects: BTreeMap<Object, Known>,
    unmanaged: BTreeSet<(bool, u8)>,
    begun: bool,
}

/// Addresses with the objects that collide.
pub(super) type Notices = BTreeMap<Mac, BTreeSet<String>>;

fn reference((instance, namespace, name): Object) -> Reference {
    let (namespace, name) = (format!("n{namespace}"), format!("o{name}"));
    if instance {
        Reference::instance(&namespace, &name)
    } else {
        Reference::pod(&namespace, &name)
    }
}

fn address(number: u8) -> Mac {
    Mac::from_number(0x0200_0000_0000 + u64::from(number))
}

impl World {
    fn is_managed(&self, kind: pool::Kind, namespace: &str) -> bool {
        let number = namespace[1..].parse().expect("a number");
        !self.unmanaged.contains(&(kind == pool::Kind::Machine, number))
    }

    fn toggled(&self, machines: bool, namespace: u8) -> BTreeSet<(bool, u8)> {
        let change = BTreeSet::from([(machines, namespace)]);
        &self.unmanaged ^ &change
    }

    /// Notices of the index about a change. Called before [`World::check`], which applies the change.
    pub(super) fn index(&self, collisions: &mut Collisions, change: &Change) -> Notices {
        let managed = |kind: pool::Kind, namespace: &str| self.is_managed(kind, namespace);
        let notices = match change {
            Change::Set {
                object,
                running,
                uid,
                macs,
                migration,
            } => {
                let uid = format!("u{uid}");
                let phase = if *running { "Running" } else { "Pending" };
                let macs = macs.iter().map(|number| address(*number));
                let side = |number: u8| (number > 0).then(|| number.to_string());
                let (source, target) = (side(migration.0), side(migration.1));
                let facts = if object.0 {
                    let migration = Migration::new(source.as_deref(), target.as_deref());
                    Facts::of_instance(&uid, phase, macs, migration)
                } else {
                    let pod = Pod {
                        uid: &uid,
                        phase,
                        launcher: false,
                        attached: true,
                    };
                    Facts::of_pod(&pod, macs)
                };
                collisions.set(&reference(*object), facts, &managed)
            }
            Change::Remove(object) => {
                collisions.remove(&reference(*object));
                Vec::new()
            }
            Change::Toggle { machines, namespace } => {
                let after = World {
                    unmanaged: self.toggled(*machines, *namespace),
                    ..World::default()
                };
                let managed = |kind: pool::Kind, namespace: &str| after.is_managed(kind, namespace);
                // Rechecking one namespace or all gives the same result.
                let name = format!("n{namespace}");
                let one = machines.then_some(name.as_str());
                collisions.recheck(one, &managed)
            }
            Change::Begin => collisions.begin(),
        };
        let mut reported = Notices::new();
        for notice in notices {
            let mut written: Vec<_> = notice
                .parties
                .iter()
                .map(|party| party.reference.to_string())
                .collect();
            assert!(written.is_sorted(), "{written:?}");
            let parties = written.drain(..).collect();
            assert!(
                reported.insert(notice.mac, parties).is_none(),
                "one notice an address"
            );
        }
        reported
    }

    /// Applies a change, and returns the expected notices.
    pub(super) fn check(&mut self, change: &Change) -> Notices {
        let triggered: BTreeSet<Object> = match change {
            Change::Set {
                object,
                running,
                uid,
                macs,
                migration,
            } => {
                let migration = if object.0 { *migration } else { (0, 0) };
                let known = Known {
                    running: *running,
                    uid: *uid,
                    macs: macs.clone(),
                    migration,
                };
                let before = self.objects.insert(*object, known.clone());
                let changed = before.as_ref() != Some(&known);
                changed.then_some(*object).into_iter().collect()
            }
            Change::Remove(object) => {
                self.objects.remove(object);
                BTreeSet::new()
            }
            Change::Toggle { machines, namespace } => {
                self.unmanaged = self.toggled(*machines, *namespace);
                let there = self.objects.keys();
                there
                    .filter(|object| (object.0, object.1) == (*machines, *namespace))
                    .copied()
                    .collect()
            }
            Change::Begin => {
                self.begun = true;
                self.objects.keys().copied().collect()
            }
        };
        let mut expected = Notices::new();
        for mac in 0..3 {
            let parties = self.parties(mac);
            if self.begun && parties.iter().any(|party| triggered.contains(party)) {
                let written = parties.iter().map(|party| reference(*party).to_string());
                expected.insert(address(mac), written.collect());
            }
        }
        expected
    }

    pub(super) fn counts(&self) -> BTreeSet<(Mac, usize)> {
        let counts = (0..3).map(|mac| (address(mac), self.parties(mac).len()));
        counts.filter(|(_, parties)| *parties > 1).collect()
    }

    fn parties(&self, mac: u8) -> Vec<Object> {
        let counts = |object: &Object, known: &Known| {
            let managed = !self.unmanaged.contains(&(object.0, object.1));
            managed && known.running && known.macs.contains(&mac)
        };
        let real = |one: (&Object, &Known), other: (&Object, &Known)| {
            if one.0 == other.0 {
                return false;
            }
            let ((s, t), (others_s, others_t)) = (one.1.migration, other.1.migration);
            if !one.0.0 || !other.0.0 || (s == 0 && t == 0) {
                return true;
            }
            !((s != 0 && s == others_s) || (t != 0 && t == others_t))
        };
        let all: Vec<_> = self.objects.iter().filter(|(o, k)| counts(o, k)).collect();
        let colliding = all
            .iter()
            .filter(|one| all.iter().any(|other| real(**one, *other)));
        colliding.map(|(object, _)| **object).collect()
    }
}
