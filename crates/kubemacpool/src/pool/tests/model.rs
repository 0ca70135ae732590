//! Exhaustive model of the API server with one or two managers and few objects: requests that are stored, denied or
//! overtaken, late or repeated events, relists, restarts, recreated objects, and look-ups whose answer is used late.
//!
//! After each step:
//! - addresses of stored objects, and of objects that may still be stored, are taken in the manager that admitted them
//!   and in each one that observed them (a restarted manager learns of its admissions by observing them);
//! - allocated addresses were free, wherever they were allocated before;
//! - without pending requests and after all waits, exactly the stored objects' addresses are taken.
//!
//! The pool is the real one. Bugs can be planted around it; the model must find each.

use std::collections::hash_map::DefaultHasher;
use std::collections::{BTreeMap, HashSet, VecDeque};
use std::hash::{Hash, Hasher};
use std::time::Instant;

use super::*;

/// A planted bug.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Bug {
    /// Admitted addresses are recorded only when the object is observed.
    AdmissionsAreForgotten,
    /// Admitting an update frees the addresses that it removes.
    UpdatesFreeAtOnce,
    /// Observing an object settles all its admissions.
    AnySightSettles,
    /// Deletion ends the admissions of another object of the name.
    EndsFreeTheName,
    /// Deletion frees shared addresses.
    EndsFreeTheAddress,
    /// Deletion is ignored.
    EndsAreOverlooked,
    /// After the wait, the object is not looked up.
    WaitsEndUnasked,
    /// A look-up counts as an observation, ahead of the watch.
    AnswersAreSights,
    /// A look-up's object is taken for the observed one of the name.
    NamesAreObjects,
    /// The end of the wait is ignored.
    WaitsNeverEnd,
    /// Each observation is treated as the first.
    SightsAreFirst,
    /// An update's timestamp ignores the object's, which may be from a clock that is ahead.
    ClocksAreTrusted,
    /// Two managers allocate from the same range.
    RangesAreShared,
    /// A starting manager does not list existing objects first.
    StartsAreBlind,
}

/// Limits of events.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
struct Budget {
    creates: u8,
    updates: u8,
    deletes: u8,
    repeats: u8,
    lists: u8,
    looks: u8,
    restarts: u8,
}

#[derive(Clone, Copy, Debug)]
struct Setup {
    kind: Kind,
    /// Names of objects; empty if the API server generates them.
    names: &'static [&'static str],
    /// Whether objects may have an explicit address: the first of the range.
    explicit: bool,
    managers: usize,
    budget: Budget,
}

const NONE: Budget = Budget {
    creates: 0,
    updates: 0,
    deletes: 0,
    repeats: 0,
    lists: 0,
    looks: 0,
    restarts: 0,
};

const FIRST: u64 = 0x0200_0000_0010;
const ADDRESSES: u64 = 4;

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct Nic {
    address: u64,
    /// The manager that allocated it; `None` for explicit ones.
    from: Option<usize>,
}

type Nics = BTreeMap<&'static str, Nic>;

/// A manager and the number of its start.
type By = (usize, u32);

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct Stored {
    uid: u64,
    version: u64,
    nics: Nics,
    transaction: Timestamp,
    by: By,
}

/// An admitted request that is not decided yet.
#[derive(Clone, Debug, Eq, Hash, PartialEq)]
struct Request {
    name: Option<String>,
    nics: Nics,
    transaction: Timestamp,
    by: By,
    number: u64,
    /// For updates: object and version that it changes.
    base: Option<(u64, u64)>,
}

#[derive(Clone, Debug, Hash)]
enum Event {
    Seen(Stored),
    Gone,
}

#[derive(Clone, Debug)]
struct Manager {
    pool: Pool,
    starts: u32,
    /// Undelivered events of each object.
    events: BTreeMap<String, VecDeque<Event>>,
    /// The last delivered state.
    seen: BTreeMap<String, Stored>,
    /// An undelivered answer of the API server.
    answer: Option<(u64, Option<Stored>)>,
}

#[derive(Clone, Debug, Eq, Hash, PartialEq)]
enum Step {
    Create(usize, Option<&'static str>, bool),
    Add(usize, String),
    Take(usize, String),
    Drop(usize, String),
    Store(usize),
    Refuse(usize),
    Delete(String),
    Tell(usize, String),
    Repeat(usize, String),
    List(usize),
    Look(usize, u64),
    Answer(usize),
    Restart(usize),
}

#[derive(Clone, Debug)]
struct World {
    setup: Setup,
    bug: Option<Bug>,
    started: Instant,
    left: Budget,
    clock: u64,
    uids: u64,
    versions: u64,
    objects: BTreeMap<String, Stored>,
    requests: Vec<Request>,
    managers: Vec<Manager>,
}

/// A violated invariant.
type Wrong = String;

impl World {
    fn new(setup: Setup, bug: Option<Bug>) -> Self {
        let mut world = Self {
            setup,
            bug,
            started: Instant::now(),
            left: setup.budget,
            clock: 0,
            uids: 0,
            versions: 0,
            objects: BTreeMap::new(),
            requests: Vec::new(),
            managers: Vec::new(),
        };
        for ordinal in 0..setup.managers {
            let pool = Pool::new(world.range(ordinal), 0);
            world.managers.push(Manager {
                pool,
                starts: 0,
                events: BTreeMap::new(),
                seen: BTreeMap::new(),
                answer: None,
            });
        }
        world
    }

    fn range(&self, ordinal: usize) -> Range {
        let last = FIRST + ADDRESSES - 1;
        let whole = Range::new(Mac::from_number(FIRST), Mac::from_number(last)).unwrap();
        if self.bug == Some(Bug::RangesAreShared) {
            return whole;
        }
        whole.share(ordinal as u64, self.setup.managers as u64).unwrap()
    }

    fn owner(&self, name: &str) -> Owner {
        Owner {
            kind: self.setup.kind,
            namespace: "ns".into(),
            name: name.into(),
        }
    }

    /// All possible next steps.
    fn steps(&self) -> Vec<Step> {
        let mut steps = Vec::new();
        for manager in 0..self.managers.len() {
            if self.left.creates > 0 {
                let named = self.setup.names.iter().map(|name| Some(*name));
                let unnamed = self.setup.names.is_empty().then_some(None);
                for name in named.chain(unnamed) {
                    steps.push(Step::Create(manager, name, false));
                    if self.setup.explicit {
                        steps.push(Step::Create(manager, name, true));
                    }
                }
            }
            if self.left.updates > 0 {
                for (name, object) in &self.objects {
                    if object.nics.contains_key("two") {
                        steps.push(Step::Drop(manager, name.clone()));
                    } else {
                        steps.push(Step::Add(manager, name.clone()));
                        if self.setup.explicit {
                            steps.push(Step::Take(manager, name.clone()));
                        }
                    }
                }
            }
            self.steps_of(manager, &mut steps);
        }
        for request in 0..self.requests.len() {
            steps.push(Step::Store(request));
            steps.push(Step::Refuse(request));
        }
        if self.left.deletes > 0 {
            steps.extend(self.objects.keys().cloned().map(Step::Delete));
        }
        steps
    }

    fn steps_of(&self, index: usize, steps: &mut Vec<Step>) {
        let manager = &self.managers[index];
        steps.extend(manager.events.keys().map(|name| Step::Tell(index, name.clone())));
        if self.left.repeats > 0 {
            steps.extend(manager.seen.keys().map(|name| Step::Repeat(index, name.clone())));
        }
        if self.left.lists > 0 && !manager.events.is_empty() {
            steps.push(Step::List(index));
        }
        if self.left.restarts > 0 {
            steps.push(Step::Restart(index));
        }
        if manager.answer.is_some() {
            steps.push(Step::Answer(index));
        } else if self.left.looks > 0 {
            for (number, _) in manager.pool.overdue(self.started) {
                // No request is pending longer than the wait. The watch may be later for machines, which can be looked up by
                // name and have their transaction.
                let on_its_way = self
                    .requests
                    .iter()
                    .any(|request| request.by == (index, manager.starts) && request.number <= number);
                let behind = !manager.events.is_empty();
                let is_definite = self.setup.kind == Kind::Machine && !self.setup.names.is_empty();
                if !on_its_way && (is_definite || !behind) {
                    steps.push(Step::Look(index, number));
                }
            }
        }
    }

    fn step(&mut self, step: &Step) -> Result<(), Wrong> {
        match step {
            Step::Create(manager, name, explicit) => {
                self.left.creates -= 1;
                self.create(*manager, *name, *explicit)?;
            }
            Step::Add(manager, name) => self.update(*manager, name, |world, draft, nics| {
                nics.extend(world.hand_out(*manager, draft, "two")?);
                Ok(())
            })?,
            Step::Take(manager, name) => self.update(*manager, name, |_, draft, nics| {
                draft.register(Mac::from_number(FIRST), "two");
                let nic = Nic {
                    address: FIRST,
                    from: None,
                };
                nics.insert("two", nic);
                Ok(())
            })?,
            Step::Drop(manager, name) => self.update(*manager, name, |_, _, _| Ok(()))?,
            Step::Store(request) => self.persist(*request),
            Step::Refuse(request) => {
                self.requests.remove(*request);
            }
            Step::Delete(name) => {
                self.left.deletes -= 1;
                self.objects.remove(name);
                self.tell_all(name, &Event::Gone);
            }
            Step::Tell(manager, name) => {
                let events = self.managers[*manager].events.get_mut(name).unwrap();
                let event = events.pop_front().unwrap();
                if events.is_empty() {
                    self.managers[*manager].events.remove(name);
                }
                self.deliver(*manager, name, event);
            }
            Step::Repeat(manager, name) => {
                self.left.repeats -= 1;
                let seen = self.managers[*manager].seen[name].clone();
                self.deliver(*manager, name, Event::Seen(seen));
            }
            Step::List(manager) => {
                self.left.lists -= 1;
                self.list(*manager);
            }
            Step::Look(manager, number) => {
                self.left.looks -= 1;
                self.look(*manager, *number);
            }
            Step::Answer(manager) => self.answer(*manager),
            Step::Restart(index) => {
                self.left.restarts -= 1;
                let pool = Pool::new(self.range(*index), 0);
                let manager = &mut self.managers[*index];
                manager.pool = pool;
                manager.starts += 1;
                manager.answer = None;
                if self.bug == Some(Bug::StartsAreBlind) {
                    return Ok(());
                }
                manager.seen.clear();
                self.list(*index);
            }
        }
        Ok(())
    }

    fn create(&mut self, manager: usize, name: Option<&'static str>, explicit: bool) -> Result<(), Wrong> {
        let claimant = match name {
            Some(name) => Claimant::Named(self.owner(name)),
            None => Claimant::Unnamed {
                kind: self.setup.kind,
                namespace: "ns".into(),
                request: format!("request-{}", self.clock).into(),
            },
        };
        if let Claimant::Named(owner) = &claimant
            && self.managers[manager].pool.stored(owner).is_some()
            && self.objects.contains_key(&*owner.name)
        {
            return Ok(()); // It exists already; nothing is handed out.
        }
        let mut draft = Draft::new();
        let nics = if explicit {
            draft.register(Mac::from_number(FIRST), "one");
            Nics::from([(
                "one",
                Nic {
                    address: FIRST,
                    from: None,
                },
            )])
        } else {
            self.hand_out(manager, &mut draft, "one")?
        };
        if !nics.is_empty() {
            self.admit(manager, claimant, draft, nics, None, None);
        }
        Ok(())
    }

    fn update(
        &mut self,
        manager: usize,
        name: &str,
        change: impl FnOnce(&mut Self, &mut Draft, &mut Nics) -> Result<(), Wrong>,
    ) -> Result<(), Wrong> {
        self.left.updates -= 1;
        let old = self.objects[name].clone();
        let mut nics = old.nics.clone();
        nics.remove("two");
        let mut draft = Draft::new();
        for (key, nic) in &nics {
            draft.register(Mac::from_number(nic.address), key);
        }
        change(self, &mut draft, &mut nics)?;
        let owner = self.owner(name);
        if self.bug == Some(Bug::UpdatesFreeAtOnce) {
            let holdings = draft.holdings().to_vec();
            let pool = &mut self.managers[manager].pool;
            pool.store(&owner, &old.uid.to_string(), holdings, None);
        }
        let base = Some((old.uid, old.version));
        let claimant = Claimant::Named(owner);
        self.admit(manager, claimant, draft, nics, base, Some(old.transaction));
        Ok(())
    }

    /// The next free address, if there is one; an error if it is taken.
    fn hand_out(&mut self, manager: usize, draft: &mut Draft, key: &'static str) -> Result<Nics, Wrong> {
        let Ok(mac) = self.managers[manager].pool.allocate(draft, key) else {
            return Ok(Nics::new());
        };
        let address = mac.number().unwrap();
        let is_known = |nics: &Nics, by: By, seen: bool| {
            nics.values().filter(|nic| nic.address == address).any(|nic| {
                by == (manager, self.managers[manager].starts)
                    || seen
                    || nic.from.is_some_and(|from| from != manager)
            })
        };
        for (name, object) in &self.objects {
            let seen = self.managers[manager].seen.get(name);
            let seen = seen.is_some_and(|seen| seen.version == object.version);
            if is_known(&object.nics, object.by, seen) {
                return Err(format!("manager {manager} hands out {mac}, which {name} has"));
            }
        }
        for request in self.requests.iter().filter(|request| self.is_viable(request)) {
            if is_known(&request.nics, request.by, false) {
                return Err(format!(
                    "manager {manager} hands out {mac}, which is in {request:?}"
                ));
            }
        }
        let from = Some(manager);
        Ok(Nics::from([(key, Nic { address, from })]))
    }

    fn admit(
        &mut self,
        manager: usize,
        claimant: Claimant,
        draft: Draft,
        nics: Nics,
        base: Option<(u64, u64)>,
        old: Option<Timestamp>,
    ) {
        self.clock += 10;
        // The first manager's clock is ahead.
        let ahead = if manager == 0 { 100_000 } else { 0 };
        let now = moment(self.clock + ahead);
        let transaction = match self.bug {
            Some(Bug::ClocksAreTrusted) => now,
            _ => now.or_after(old),
        };
        let name = match &claimant {
            Claimant::Named(owner) => Some(owner.name.to_string()),
            Claimant::Unnamed { .. } => None,
        };
        let pending = Pending {
            claimant,
            timestamp: transaction,
            uid: base.map(|(uid, _)| uid.to_string().into()),
            admitted: self.started,
            client: std::net::Ipv4Addr::LOCALHOST.into(),
        };
        let Manager { pool, starts, .. } = &mut self.managers[manager];
        let number = pool.admissions;
        if self.bug != Some(Bug::AdmissionsAreForgotten) {
            pool.admit(draft, pending);
        }
        self.requests.push(Request {
            name,
            nics,
            transaction,
            by: (manager, *starts),
            number,
            base,
        });
    }

    /// Whether the API server may still store it: an update of the current version, or any creation (the name may become
    /// free).
    fn is_viable(&self, request: &Request) -> bool {
        let current = request.name.as_ref().and_then(|name| self.objects.get(name));
        request.base.is_none() || request.base == current.map(|object| (object.uid, object.version))
    }

    fn persist(&mut self, request: usize) {
        let request = self.requests.remove(request);
        let name = request.name.clone();
        let name = name.unwrap_or_else(|| format!("generated-{}", self.uids));
        if !self.is_viable(&request) || request.base.is_none() && self.objects.contains_key(&name) {
            return;
        }
        let uid = request.base.map_or_else(
            || {
                self.uids += 1;
                self.uids
            },
            |(uid, _)| uid,
        );
        self.versions += 1;
        let object = Stored {
            uid,
            version: self.versions,
            nics: request.nics,
            transaction: request.transaction,
            by: request.by,
        };
        self.tell_all(&name, &Event::Seen(object.clone()));
        self.objects.insert(name, object);
    }

    fn tell_all(&mut self, name: &str, event: &Event) {
        for manager in &mut self.managers {
            let events = manager.events.entry(name.to_owned()).or_default();
            events.push_back(event.clone());
        }
    }

    /// Delivers an event of the watch.
    fn deliver(&mut self, index: usize, name: &str, event: Event) {
        let owner = self.owner(name);
        let late = moment(900_000);
        let manager = &mut self.managers[index];
        match event {
            Event::Seen(object) => {
                let uid = match self.bug {
                    Some(Bug::SightsAreFirst) => {
                        self.clock += 10;
                        format!("{}-{}", object.uid, self.clock)
                    }
                    _ => object.uid.to_string(),
                };
                let transaction = match (self.setup.kind, self.bug) {
                    (Kind::Pod, _) => None,
                    (Kind::Machine, Some(Bug::AnySightSettles)) => Some(late),
                    (Kind::Machine, _) => Some(object.transaction),
                };
                manager.pool.store(&owner, &uid, holdings(&object), transaction);
                manager.seen.insert(name.to_owned(), object);
            }
            Event::Gone => {
                manager.seen.remove(name);
                if self.bug == Some(Bug::EndsAreOverlooked) {
                    return;
                }
                let released = manager.pool.remove(&owner);
                if self.bug == Some(Bug::EndsFreeTheName) {
                    for (number, pending) in manager.pool.overdue(self.started) {
                        if pending.claimant == Claimant::Named(owner.clone()) {
                            manager.pool.settle(number);
                        }
                    }
                }
                if self.bug == Some(Bug::EndsFreeTheAddress) {
                    let holders = released.iter().flat_map(|held| manager.pool.holders(held.mac));
                    for holder in holders.collect::<Vec<_>>() {
                        if let Claimant::Named(other) = &holder.claimant {
                            manager.pool.remove(other);
                        }
                    }
                }
            }
        }
    }

    /// Relists: delivers existing objects, and deletions of all others.
    fn list(&mut self, index: usize) {
        self.managers[index].events.clear();
        for (name, object) in self.objects.clone() {
            self.deliver(index, &name, Event::Seen(object));
        }
        let mut gone: Vec<String> = self.managers[index].seen.keys().cloned().collect();
        gone.retain(|name| !self.objects.contains_key(name));
        for name in gone {
            self.deliver(index, &name, Event::Gone);
        }
    }

    fn look(&mut self, index: usize, number: u64) {
        let overdue = self.managers[index].pool.overdue(self.started);
        let (_, pending) = overdue.into_iter().find(|(other, _)| *other == number).unwrap();
        let found = match &pending.claimant {
            Claimant::Named(owner) => self.objects.get(&*owner.name).cloned(),
            Claimant::Unnamed { .. } => None,
        };
        self.managers[index].answer = Some((number, found));
    }

    fn answer(&mut self, index: usize) {
        let (number, found) = self.managers[index].answer.take().unwrap();
        let overdue = self.managers[index].pool.overdue(self.started);
        let Some((_, pending)) = overdue.into_iter().find(|(other, _)| *other == number) else {
            return;
        };
        let seen = match &pending.claimant {
            Claimant::Named(owner) => self.managers[index].seen.get(&*owner.name),
            Claimant::Unnamed { .. } => None,
        };
        let seen = seen.map(|seen| seen.uid);
        let pool = &mut self.managers[index].pool;
        match (self.bug, found, &pending.claimant) {
            (Some(Bug::WaitsNeverEnd), ..) => {}
            (Some(Bug::AnswersAreSights), Some(found), Claimant::Named(owner)) => {
                let (uid, transaction) = (found.uid.to_string(), Some(found.transaction));
                pool.store(owner, &uid, holdings(&found), transaction);
                pool.settle(number);
            }
            (Some(Bug::WaitsEndUnasked), ..) | (_, None, _) => pool.settle(number),
            (_, Some(found), _) => {
                let uid = match self.bug {
                    // As if it were the observed one.
                    Some(Bug::NamesAreObjects) => seen.unwrap_or(found.uid),
                    _ => found.uid,
                };
                pool.found(number, &uid.to_string(), &holdings(&found), self.started);
            }
        }
    }

    fn check(&self) -> Result<(), Wrong> {
        for (index, manager) in self.managers.iter().enumerate() {
            let now = (index, manager.starts);
            for (name, object) in &self.objects {
                let seen = manager.seen.get(name);
                if object.by == now || seen.is_some_and(|seen| seen.version == object.version) {
                    self.check_held(index, &object.nics, name)?;
                }
            }
            for request in self.requests.iter().filter(|request| request.by == now) {
                if self.is_viable(request) {
                    self.check_held(index, &request.nics, "a request on its way")?;
                }
            }
        }
        let is_quiet = |manager: &Manager| manager.events.is_empty() && manager.answer.is_none();
        if self.requests.is_empty() && self.managers.iter().all(is_quiet) {
            self.clone().check_rest()?;
        }
        Ok(())
    }

    fn check_held(&self, manager: usize, nics: &Nics, what: &str) -> Result<(), Wrong> {
        for nic in nics.values() {
            let mac = Mac::from_number(nic.address);
            let holders = self.managers[manager].pool.holders(mac);
            let free = self.managers[manager]
                .pool
                .ledger
                .taken_until(nic.address)
                .is_none();
            if holders.is_empty() || free {
                return Err(format!("{mac} of {what} is free in manager {manager}"));
            }
        }
        Ok(())
    }

    /// After all waits, exactly the stored addresses are taken.
    fn check_rest(mut self) -> Result<(), Wrong> {
        for index in 0..self.managers.len() {
            for (number, _) in self.managers[index].pool.overdue(self.started) {
                self.look(index, number);
                self.answer(index);
            }
            let pool = &self.managers[index].pool;
            if pool.oldest().is_some() {
                return Err(format!("manager {index} waits for nothing: {:?}", pool.pending));
            }
            let is_stored = |address| {
                let mut nics = self.objects.values().flat_map(|object| object.nics.values());
                nics.any(|nic: &Nic| nic.address == address)
            };
            let mut stored = 0;
            for address in FIRST..FIRST + ADDRESSES {
                let mac = Mac::from_number(address);
                let held = !pool.holders(mac).is_empty();
                if held != is_stored(address) || held != pool.ledger.taken_until(address).is_some() {
                    return Err(format!("{mac} at rest in manager {index}: held {held}"));
                }
                stored += u64::from(held && pool.range().may_hand_out(mac));
            }
            let usage = pool.usage(|_, _| true);
            if (usage.used, usage.pending) != (stored, 0) {
                return Err(format!(
                    "{stored} are used in manager {index}, counted are {usage:?}"
                ));
            }
        }
        Ok(())
    }

    /// Worlds with equal fingerprints have the same future.
    fn print(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.left, &self.objects, &self.requests, self.uids, self.versions).hash(&mut hasher);
        for manager in &self.managers {
            (manager.starts, &manager.events, &manager.seen, &manager.answer).hash(&mut hasher);
            let pool = &manager.pool;
            pool.next.hash(&mut hasher);
            for (number, admission) in &pool.pending {
                let Admission { pending, held, .. } = admission;
                (number, &pending.claimant, pending.timestamp, &pending.uid).hash(&mut hasher);
                held.holdings.hash(&mut hasher);
            }
            let mut objects: Vec<_> = pool.objects.iter().collect();
            objects.sort_by_key(|(owner, _)| *owner);
            for (owner, object) in objects {
                (owner, &object.held.holdings, format!("{:?}", object.uid)).hash(&mut hasher);
            }
        }
        hasher.finish()
    }
}

fn holdings(object: &Stored) -> Vec<Holding> {
    let nics = object.nics.iter();
    nics.map(|(key, nic)| holding(Mac::from_number(nic.address), key))
        .collect()
}

/// Number of states, and the shortest path to a violation, if any.
struct Explored {
    worlds: usize,
    wrong: Option<(Wrong, Vec<Step>)>,
}

/// Breadth-first search over all states.
fn explore(setup: Setup, bug: Option<Bug>) -> Explored {
    let mut ways: Vec<(usize, Step)> = Vec::new();
    let mut known = HashSet::new();
    let mut open = VecDeque::from([(World::new(setup, bug), usize::MAX)]);
    while let Some((world, way)) = open.pop_front() {
        for step in world.steps() {
            let mut next = world.clone();
            let wrong = next.step(&step).and_then(|()| next.check());
            if let Err(wrong) = wrong {
                let mut steps = vec![step];
                let mut way = way;
                while let Some((before, step)) = ways.get(way) {
                    steps.push(step.clone());
                    way = *before;
                }
                steps.reverse();
                return Explored {
                    worlds: known.len(),
                    wrong: Some((wrong, steps)),
                };
            }
            if known.insert(next.print()) {
                ways.push((way, step));
                open.push_back((next, ways.len() - 1));
            }
        }
    }
    Explored {
        worlds: known.len(),
        wrong: None,
    }
}

fn assert_right(setup: Setup, at_least: usize) {
    let start = Instant::now();
    let explored = explore(setup, None);
    println!("{} worlds in {:?} of {setup:?}", explored.worlds, start.elapsed());
    if let Some((wrong, steps)) = explored.wrong {
        panic!("{wrong} after {steps:?}");
    }
    assert!(explored.worlds >= at_least, "only {} worlds", explored.worlds);
}

fn assert_found(bug: Bug, setup: Setup) {
    let explored = explore(setup, Some(bug));
    let (wrong, steps) = explored.wrong.unwrap_or_else(|| {
        panic!("{bug:?} is not found in {} worlds", explored.worlds);
    });
    println!(
        "{bug:?} is found after {} worlds: {wrong} after {steps:?}",
        explored.worlds
    );
}

/// One machine that is recreated.
const AGAIN: Setup = Setup {
    kind: Kind::Machine,
    names: &["a"],
    explicit: false,
    managers: 1,
    budget: Budget {
        creates: 3,
        deletes: 1,
        repeats: 1,
        lists: 1,
        looks: 1,
        restarts: 1,
        ..NONE
    },
};

/// One machine with updates.
const CHANGED: Setup = Setup {
    budget: Budget {
        creates: 1,
        updates: 3,
        repeats: 1,
        lists: 1,
        looks: 2,
        ..NONE
    },
    ..AGAIN
};

/// One machine with updates and recreations.
const ENDING: Setup = Setup {
    budget: Budget {
        creates: 2,
        updates: 1,
        deletes: 1,
        lists: 1,
        looks: 1,
        ..NONE
    },
    ..AGAIN
};

/// Two machines that request the same address.
const SAME: Setup = Setup {
    names: &["a", "b"],
    explicit: true,
    budget: Budget {
        creates: 2,
        deletes: 1,
        looks: 1,
        ..NONE
    },
    ..AGAIN
};

/// One machine that adds and removes an address on different interfaces.
const TAKING: Setup = Setup {
    explicit: true,
    budget: Budget {
        creates: 1,
        updates: 2,
        looks: 1,
        ..NONE
    },
    ..AGAIN
};

/// Machines with generated names.
const UNNAMED: Setup = Setup {
    names: &[],
    explicit: true,
    budget: Budget {
        creates: 3,
        deletes: 1,
        repeats: 1,
        looks: 1,
        ..NONE
    },
    ..AGAIN
};

/// A pod whose name is reused, as in a stateful set.
const POD: Setup = Setup {
    kind: Kind::Pod,
    explicit: true,
    budget: Budget {
        creates: 3,
        deletes: 2,
        repeats: 1,
        looks: 1,
        ..NONE
    },
    ..AGAIN
};

/// Pods of replica sets.
const UNNAMED_PODS: Setup = Setup {
    kind: Kind::Pod,
    ..UNNAMED
};

/// Two managers with different clocks.
const REPLICAS: Setup = Setup {
    managers: 2,
    budget: Budget {
        creates: 2,
        updates: 1,
        repeats: 1,
        deletes: 1,
        ..NONE
    },
    ..AGAIN
};

/// Two managers that allocate concurrently.
const SHARES: Setup = Setup {
    names: &["a", "b"],
    managers: 2,
    budget: Budget { creates: 2, ..NONE },
    ..AGAIN
};

// kubemacpool#41-43, kubemacpool#45, kubemacpool#46
#[test]
fn machine_holds_its_addresses_in_any_order() {
    assert_right(CHANGED, 5000);
    assert_right(TAKING, 500);
}

// kubemacpool#47
#[test]
fn recreated_machine_survives_late_deletion() {
    assert_right(AGAIN, 5000);
    assert_right(ENDING, 2000);
}

// kubemacpool#23, kubemacpool#47
#[test]
fn shared_address_is_freed_by_its_last_holder() {
    assert_right(SAME, 1000);
}

// kubemacpool#49
#[test]
fn unnamed_machines_hold_their_addresses() {
    assert_right(UNNAMED, 5000);
}

// kubemacpool#54, kubemacpool#56, kubemacpool#60
#[test]
fn pods_hold_their_addresses_in_any_order() {
    assert_right(POD, 1000);
    assert_right(UNNAMED_PODS, 5000);
}

#[test]
fn replicas_never_allocate_the_same() {
    assert_right(REPLICAS, 5000);
    assert_right(SHARES, 100);
}

#[test]
fn planted_bugs_are_found() {
    for (bug, setup) in [
        (Bug::AdmissionsAreForgotten, AGAIN),
        (Bug::UpdatesFreeAtOnce, CHANGED),
        (Bug::AnySightSettles, CHANGED),
        (Bug::EndsFreeTheName, AGAIN),
        (Bug::EndsFreeTheAddress, SAME),
        (Bug::EndsAreOverlooked, AGAIN),
        (Bug::WaitsEndUnasked, CHANGED),
        (Bug::AnswersAreSights, CHANGED),
        (Bug::NamesAreObjects, SAME),
        (Bug::WaitsNeverEnd, AGAIN),
        (Bug::SightsAreFirst, POD),
        (Bug::ClocksAreTrusted, REPLICAS),
        (Bug::RangesAreShared, SHARES),
        (Bug::StartsAreBlind, AGAIN),
    ] {
        assert_found(bug, setup);
    }
}
