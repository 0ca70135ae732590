//! Simulates a virtual machine, its instance, its claims, garbage collection and two replicas of the controller, with
//! random histories. Other clients may act before each request of a replica, watches are late, replicas restart, and
//! each replica may act while the other's request is pending.
//!
//! Whenever a claim loses our finalizer, or is deleted, no instance that ever had the claim may still use its
//! addresses. When no more changes happen and all events are delivered, a running instance has its claims, and claims
//! of deleted objects are released.
//!
//! The test runs the real reconciler, with the real state and plan, against a simulated API server. The simulation can
//! contain deliberate bugs; the test must find each of them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use axum::http::{Method, Request, Response, StatusCode};
use kube::Client;
use kube::client::Body;
use serde_json::{Value, json};

use super::*;
use crate::names;
use crate::network::Network;
use crate::objects::{WireClaim, WireInstance, WireMachine};
use crate::state::State;

/// A deliberate bug of the simulation.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum Bug {
    /// The API server accepts writes of objects that have changed since the read.
    WritesAreBlind,
    /// Reads are answered from the state of the watch.
    AnswersAreLate,
    /// An unserved kind looks like a missing object.
    NotServedIsGone,
    /// The watch reports no deletions.
    EndsAreOverlooked,
    /// A starting replica reconciles nothing until the first change.
    StartsAreBlind,
}

const NAME: &str = "vm1";
const NETS: [&str; 2] = ["a", "b"];

#[derive(Clone, Debug, Default)]
struct Machine {
    uid: String,
    deleting: bool,
    /// Whether garbage collection is orphaning the dependents.
    orphaning: bool,
    networks: BTreeSet<&'static str>,
}

#[derive(Clone, Debug, Default)]
struct Instance {
    uid: String,
    owner: Option<String>,
    deleting: bool,
    pods: bool,
    networks: BTreeSet<&'static str>,
    attached: BTreeSet<&'static str>,
}

#[derive(Clone, Debug, Default)]
struct Claim {
    uid: String,
    version: u64,
    owners: Vec<String>,
    held: bool,
    deleting: bool,
    /// UIDs of instances that had the claim.
    users: BTreeSet<String>,
}

/// An event of a watch.
#[derive(Clone, Debug)]
enum Event {
    Machine(Option<Machine>),
    Instance(Option<Instance>),
    Claim(String, Option<Claim>),
}

#[derive(Default)]
struct Replica {
    shared: Shared,
    /// By kind, in order.
    events: [VecDeque<Event>; 3],
    pending: bool,
    /// Whether the replica has just become the leader, and adds finalizers first.
    is_new: bool,
    seen: (Option<Machine>, Option<Instance>),
}

struct World {
    bug: Option<Bug>,
    seed: u64,
    uids: u64,
    versions: u64,
    machine: Option<Machine>,
    instance: Option<Instance>,
    claims: BTreeMap<String, Claim>,
    replicas: [Replica; 2],
    /// Whether the simulation is settling: no changes happen by themselves.
    quiet: bool,
    served: bool,
    log: String,
    wrong: Option<String>,
}

type Shares = Arc<Mutex<World>>;

impl World {
    fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut world = Self {
            bug,
            seed: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            uids: 0,
            versions: 0,
            machine: None,
            instance: None,
            claims: BTreeMap::new(),
            replicas: <[Replica; 2]>::default(),
            quiet: false,
            served: true,
            log: String::new(),
            wrong: None,
        };
        for replica in 0..2 {
            world.restart(replica);
        }
        world
    }

    fn random(&mut self, below: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        (self.seed >> 8) % below
    }

    fn uid(&mut self, kind: &str) -> String {
        self.uids += 1;
        format!("{kind}-{}", self.uids)
    }

    fn note(&mut self, what: impl std::fmt::Display) {
        writeln!(self.log, "{what}").unwrap();
    }

    fn tell(&mut self, event: &Event) {
        let (kind, is_end) = match event {
            Event::Machine(it) => (0, it.is_none()),
            Event::Instance(it) => (1, it.is_none()),
            Event::Claim(_, it) => (2, it.is_none()),
        };
        if is_end && self.bug == Some(Bug::EndsAreOverlooked) {
            return;
        }
        for replica in &mut self.replicas {
            replica.events[kind].push_back(event.clone());
        }
    }

    fn set_machine(&mut self, machine: Option<Machine>) {
        self.machine.clone_from(&machine);
        self.tell(&Event::Machine(machine));
    }

    fn set_instance(&mut self, instance: Option<Instance>) {
        self.instance.clone_from(&instance);
        self.tell(&Event::Instance(instance));
        self.note_users();
    }

    fn set_claim(&mut self, name: &str, claim: Option<Claim>) {
        let claim = claim
            .filter(|claim| claim.held || !claim.deleting)
            .map(|mut claim| {
                self.versions += 1;
                claim.version = self.versions;
                claim
            });
        match claim.clone() {
            Some(claim) => self.claims.insert(name.to_owned(), claim),
            None => self.claims.remove(name),
        };
        self.tell(&Event::Claim(name.to_owned(), claim));
        self.note_users();
    }

    /// Records the users of claims. A running instance uses its own claims, and its virtual machine's. If the claim of
    /// a network that was removed and added again is being deleted, the instance uses the claim only once a pod is
    /// attached: until then the claim makes room for a new one.
    fn note_users(&mut self) {
        let Some(instance) = self.instance.clone().filter(|instance| !instance.deleting) else {
            return;
        };
        for (name, claim) in &mut self.claims {
            let network = name.strip_prefix("vm1.").unwrap();
            let ours = |owner: &String| *owner == instance.uid || instance.owner.as_ref() == Some(owner);
            let uses = instance.networks.contains(network)
                && (!claim.deleting || instance.attached.contains(network));
            if uses && claim.owners.iter().any(ours) && claim.held {
                claim.users.insert(instance.uid.clone());
            }
        }
    }

    /// Whether an instance uses the addresses of a claim.
    fn is_used(&self, name: &str, claim: &Claim) -> bool {
        let network = name.strip_prefix("vm1.").unwrap();
        self.instance.as_ref().is_some_and(|instance| {
            claim.users.contains(&instance.uid)
                && (instance.pods || !instance.deleting)
                && (instance.networks.contains(network) || instance.attached.contains(network))
        })
    }

    /// Applies a random change that another client makes.
    fn happen(&mut self) {
        match self.random(16) {
            0 | 1 if self.machine.is_none() => {
                let uid = self.uid("vm");
                self.note(format_args!("{uid} is created"));
                let networks = BTreeSet::from(NETS);
                self.set_machine(Some(Machine {
                    uid,
                    networks,
                    ..Machine::default()
                }));
            }
            2 | 3 if self.instance.is_none() => self.start_instance(),
            4 => self.change_instance(
                "its pods run",
                |it| !it.deleting && !it.pods,
                |it| {
                    it.pods = true;
                    it.attached.clone_from(&it.networks);
                },
            ),
            5 => self.change_instance("it is being deleted", |it| !it.deleting, |it| it.deleting = true),
            6 => self.change_instance(
                "its pods end",
                |it| it.deleting && it.pods,
                |it| {
                    it.pods = false;
                    it.attached.clear();
                },
            ),
            7 if self.instance.as_ref().is_some_and(|it| it.deleting && !it.pods) => {
                self.note("the instance is gone");
                self.set_instance(None);
            }
            8 => self.delete_machine(),
            9 => {
                let plugged = self.random(2) == 0;
                self.plug("b", plugged);
            }
            10 => self.change_instance(
                "b is detached",
                |it| !it.networks.contains("b"),
                |it| {
                    it.attached.remove("b");
                },
            ),
            11 | 12 => self.collect(),
            13 => {
                let replica = usize::try_from(self.random(2)).unwrap();
                if self.random(2) == 0 {
                    self.note(format_args!("replica {replica} restarts"));
                    self.restart(replica);
                } else if self.random(4) == 0 {
                    self.reinstall();
                }
            }
            14 => self.served = self.random(4) > 0,
            _ => {
                let replica = usize::try_from(self.random(2)).unwrap();
                let kind = usize::try_from(self.random(3)).unwrap();
                self.deliver(replica, kind);
            }
        }
    }

    fn start_instance(&mut self) {
        if self.machine.as_ref().is_some_and(|machine| machine.deleting) {
            return;
        }
        let uid = self.uid("vmi");
        let (owner, networks) = match &self.machine {
            Some(machine) => (Some(machine.uid.clone()), machine.networks.clone()),
            None => (None, BTreeSet::from(NETS)),
        };
        self.note(format_args!("{uid} of {owner:?} starts"));
        self.set_instance(Some(Instance {
            uid,
            owner,
            networks,
            ..Instance::default()
        }));
    }

    fn change_instance(
        &mut self,
        what: &str,
        fits: impl Fn(&Instance) -> bool,
        change: impl FnOnce(&mut Instance),
    ) {
        if let Some(mut instance) = self.instance.clone().filter(fits) {
            self.note(format_args!("{}: {what}", instance.uid));
            change(&mut instance);
            self.set_instance(Some(instance));
        }
    }

    fn plug(&mut self, network: &'static str, plugged: bool) {
        let change = |networks: &mut BTreeSet<&'static str>| {
            if plugged {
                networks.insert(network);
            } else {
                networks.remove(network);
            }
        };
        self.note(format_args!("{network} plugged in: {plugged}"));
        if let Some(mut machine) = self.machine.clone() {
            change(&mut machine.networks);
            self.set_machine(Some(machine));
        }
        if self.random(2) == 0
            && let Some(mut instance) = self.instance.clone().filter(|it| !it.deleting)
        {
            change(&mut instance.networks);
            self.set_instance(Some(instance));
        }
    }

    /// Deletes the virtual machine with any mode of `kubectl delete --cascade`.
    fn delete_machine(&mut self) {
        let Some(machine) = self.machine.clone().filter(|machine| !machine.deleting) else {
            return;
        };
        let way = self.random(3);
        self.note(format_args!("{} is deleted, way {way}", machine.uid));
        match way {
            0 => {
                self.set_machine(None);
                self.end_instance();
            }
            1 => {
                self.set_machine(Some(Machine {
                    deleting: true,
                    ..machine
                }));
                self.end_instance();
            }
            _ => self.set_machine(Some(Machine {
                deleting: true,
                orphaning: true,
                ..machine
            })),
        }
    }

    /// Garbage collection removes the owner reference of one dependent after the other, and then removes the virtual
    /// machine.
    fn orphan(&mut self) {
        let Some(machine) = self.machine.clone().filter(|machine| machine.orphaning) else {
            return;
        };
        let owned = self
            .claims
            .iter()
            .find(|(_, claim)| claim.owners.contains(&machine.uid));
        if let Some((name, claim)) = owned.map(|(name, claim)| (name.clone(), claim.clone())) {
            self.note(format_args!("{name} is orphaned"));
            let owners = Vec::new();
            self.set_claim(&name, Some(Claim { owners, ..claim }));
            return;
        }
        let owned = |instance: &Instance| instance.owner.as_ref() == Some(&machine.uid);
        if let Some(instance) = self.instance.clone().filter(owned) {
            self.note(format_args!("{} is orphaned", instance.uid));
            let owner = None;
            self.set_instance(Some(Instance { owner, ..instance }));
            return;
        }
        self.note("the machine is gone, what it owned is orphaned");
        self.set_machine(None);
    }

    fn end_instance(&mut self) {
        if let Some(instance) = self.instance.clone() {
            self.set_instance(Some(Instance {
                deleting: true,
                ..instance
            }));
        }
    }

    /// Runs a step of garbage collection.
    fn collect(&mut self) {
        self.orphan();
        let exists = |owner: &String| {
            self.machine
                .as_ref()
                .is_some_and(|it| it.uid == *owner && !it.deleting)
                || self.instance.as_ref().is_some_and(|it| it.uid == *owner)
        };
        let orphaned: Vec<_> = self
            .claims
            .iter()
            .filter(|(_, claim)| {
                !claim.deleting && !claim.owners.is_empty() && !claim.owners.iter().any(exists)
            })
            .map(|(name, claim)| (name.clone(), claim.clone()))
            .collect();
        for (name, claim) in orphaned {
            self.note(format_args!("{name} is collected"));
            self.set_claim(
                &name,
                Some(Claim {
                    deleting: true,
                    ..claim
                }),
            );
        }
        let (machine, instance) = (&self.machine, &self.instance);
        let waits = machine.as_ref().is_some_and(|it| {
            it.deleting
                && instance.is_none()
                && !self.claims.values().any(|claim| claim.owners.contains(&it.uid))
        });
        if waits {
            self.note("the machine is gone");
            self.set_machine(None);
        }
    }

    fn restart(&mut self, replica: usize) {
        let mut state = State::default();
        for network in NETS {
            let config = json!({ "name": network, "allowPersistentIPs": true });
            state.network_seen(Network::read(Name::new("ns1", network), &config.to_string()));
        }
        let (machine, instance) = (self.machine.clone(), self.instance.clone());
        let listed = [Event::Machine(machine.clone()), Event::Instance(instance.clone())];
        let claims = self
            .claims
            .iter()
            .map(|(name, claim)| Event::Claim(name.clone(), Some(claim.clone())));
        for event in listed.into_iter().chain(claims) {
            apply(&mut state, event);
        }
        self.replicas[replica] = Replica {
            pending: self.bug != Some(Bug::StartsAreBlind) && !state.all().is_empty(),
            is_new: true,
            shared: Arc::new(Mutex::new(state)),
            events: <[VecDeque<Event>; 3]>::default(),
            seen: (machine, instance),
        };
    }

    fn deliver(&mut self, replica: usize, kind: usize) {
        let replica = &mut self.replicas[replica];
        let Some(event) = replica.events[kind].pop_front() else {
            return;
        };
        match &event {
            Event::Machine(it) => replica.seen.0.clone_from(it),
            Event::Instance(it) => replica.seen.1.clone_from(it),
            Event::Claim(..) => {}
        }
        replica.pending |= !apply(&mut state::lock(&replica.shared), event).is_empty();
    }

    /// Removes the component with the finalizers of all claims, and installs it again.
    fn reinstall(&mut self) {
        self.note("the component is removed and installed again");
        for (name, claim) in self.claims.clone() {
            self.set_claim(&name, Some(Claim { held: false, ..claim }));
        }
        for replica in 0..2 {
            self.restart(replica);
        }
    }

    /// The API server's answer to a replica.
    fn answer(&mut self, replica: usize, method: &Method, path: &str, body: &Value) -> (StatusCode, Value) {
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        let kind = path.rsplit('/').nth(1).unwrap_or_default();
        let not_found = || status(StatusCode::NOT_FOUND, "NotFound");
        if kind == "virtualmachines" || kind == "virtualmachineinstances" {
            if !self.served {
                return if self.bug == Some(Bug::NotServedIsGone) {
                    not_found()
                } else {
                    (StatusCode::NOT_FOUND, json!("404 page not found"))
                };
            }
            let late = self.bug == Some(Bug::AnswersAreLate);
            let (machine, instance) = if late {
                self.replicas[replica].seen.clone()
            } else {
                (self.machine.clone(), self.instance.clone())
            };
            let found = if kind == "virtualmachines" {
                machine.map(|it| wire_machine(&it))
            } else {
                instance.map(|it| wire_instance(&it))
            };
            return found.map_or_else(not_found, |found| (StatusCode::OK, found));
        }
        if path.ends_with("/events") {
            return (StatusCode::CREATED, json!({}));
        }
        match *method {
            Method::GET if name == "ipamclaims" => {
                let items: Vec<_> = self
                    .claims
                    .iter()
                    .map(|(name, claim)| wire_claim(name, claim))
                    .collect();
                let list = json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": items });
                (StatusCode::OK, list)
            }
            Method::GET => match self.claims.get(&name) {
                Some(claim) => (StatusCode::OK, wire_claim(&name, claim)),
                None => not_found(),
            },
            Method::POST => self.create_claim(body),
            Method::PUT => self.replace_claim(replica, &name, body),
            _ => self.delete_claim(replica, &name, body),
        }
    }

    fn create_claim(&mut self, body: &Value) -> (StatusCode, Value) {
        let name = body["metadata"]["name"].as_str().unwrap().to_owned();
        if self.claims.contains_key(&name) {
            return status(StatusCode::CONFLICT, "AlreadyExists");
        }
        let claim = Claim {
            uid: self.uid("claim"),
            held: true,
            owners: owners(body),
            ..Claim::default()
        };
        self.note(format_args!("{name} is made for {:?}", claim.owners));
        self.set_claim(&name, Some(claim));
        (StatusCode::CREATED, wire_claim(&name, &self.claims[&name]))
    }

    fn replace_claim(&mut self, replica: usize, name: &str, body: &Value) -> (StatusCode, Value) {
        let Some(before) = self.claims.get(name).cloned() else {
            return status(StatusCode::NOT_FOUND, "NotFound");
        };
        let version = before.version.to_string();
        let is_old = body["metadata"]["resourceVersion"] != version.as_str();
        if is_old && self.bug != Some(Bug::WritesAreBlind) {
            return status(StatusCode::CONFLICT, "Conflict");
        }
        let finalizers = body["metadata"]["finalizers"].as_array();
        let held = finalizers.is_some_and(|all| all.iter().any(|it| it == names::FINALIZER));
        if before.held && !held {
            self.note(format_args!(
                "replica {replica} releases {name} of {:?}",
                before.owners
            ));
            self.judge(name, &before);
        }
        let after = Claim {
            held,
            owners: owners(body),
            ..before
        };
        let answer = wire_claim(name, &after);
        self.set_claim(name, Some(after));
        (StatusCode::OK, answer)
    }

    fn delete_claim(&mut self, replica: usize, name: &str, body: &Value) -> (StatusCode, Value) {
        let Some(before) = self.claims.get(name).cloned() else {
            return status(StatusCode::NOT_FOUND, "NotFound");
        };
        let version = before.version.to_string();
        let is_other = body["preconditions"]["resourceVersion"] != version.as_str();
        if is_other && self.bug != Some(Bug::WritesAreBlind) {
            return status(StatusCode::CONFLICT, "Conflict");
        }
        self.note(format_args!(
            "replica {replica} deletes {name} of {:?}",
            before.owners
        ));
        self.judge(name, &before);
        self.set_claim(
            name,
            Some(Claim {
                deleting: true,
                users: BTreeSet::new(),
                ..before
            }),
        );
        let answer = self.claims.get(name).map(|claim| wire_claim(name, claim));
        (
            StatusCode::OK,
            answer.unwrap_or_else(|| json!({ "status": "Success" })),
        )
    }

    fn judge(&mut self, name: &str, claim: &Claim) {
        if self.is_used(name, claim) {
            self.wrong = Some(format!("{name} is given up, and {:?} uses it", self.instance));
        }
    }

    /// The error in a settled simulation.
    fn settled(&self) -> Option<String> {
        if self.machine.is_none() && self.instance.is_none() {
            let held = self.claims.iter().find(|(_, claim)| claim.held);
            return held.map(|(name, _)| format!("{name} is held without a need"));
        }
        let exists = |owner: &String| {
            let machine = self.machine.as_ref().filter(|machine| !machine.deleting);
            machine.is_some_and(|it| it.uid == *owner)
                || self.instance.as_ref().is_some_and(|it| it.uid == *owner)
        };
        let is_free = |claim: &Claim| !claim.held && !claim.deleting && claim.owners.iter().any(exists);
        if let Some((name, claim)) = self.claims.iter().find(|(_, claim)| is_free(claim)) {
            return Some(format!("{name} is not held: {claim:?}"));
        }
        let instance = self.instance.as_ref().filter(|instance| !instance.deleting)?;
        instance.networks.iter().find_map(|network| {
            let name = format!("vm1.{network}");
            let claim = self.claims.get(&name);
            let machine = self.machine.as_ref().map(|machine| &machine.uid);
            let is_ours = |owner: &String| {
                *owner == instance.uid || Some(owner) == machine || Some(owner) == instance.owner.as_ref()
            };
            // An event reports a claim without an owner that lost its finalizer or is being deleted: the user of its
            // addresses is unknown.
            match claim {
                Some(claim) if claim.held && claim.owners.iter().any(is_ours) => None,
                Some(claim) if claim.owners.is_empty() && (!claim.held || claim.deleting) => None,
                _ => Some(format!("{name} is {claim:?} for {instance:?}")),
            }
        })
    }
}

fn apply(state: &mut State, event: Event) -> Vec<Name> {
    let name = Name::new("ns1", NAME);
    match event {
        Event::Machine(Some(it)) => state.machine_seen(name, read::<WireMachine>(wire_machine(&it)).into()),
        Event::Machine(None) => state.machine_gone(name),
        Event::Instance(Some(it)) => {
            state.instance_seen(name, read::<WireInstance>(wire_instance(&it)).into())
        }
        Event::Instance(None) => state.instance_gone(name),
        Event::Claim(id, Some(it)) => {
            let claim = crate::objects::Claim::of(read::<WireClaim>(wire_claim(&id, &it)));
            state.claim_seen(Name::new("ns1", id), claim)
        }
        Event::Claim(id, None) => state.claim_gone(&Name::new("ns1", id)),
    }
}

fn read<T: serde::de::DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}

fn status(code: StatusCode, reason: &str) -> (StatusCode, Value) {
    let code_number = code.as_u16();
    let body = json!({
        "apiVersion": "v1", "kind": "Status", "status": "Failure", "reason": reason, "code": code_number, "message": reason,
    });
    (code, body)
}

fn owners(claim: &Value) -> Vec<String> {
    let owners = claim["metadata"]["ownerReferences"].as_array();
    let uid = |owner: &Value| owner["uid"].as_str().unwrap().to_owned();
    owners.into_iter().flatten().map(uid).collect()
}

fn metadata(name: &str, uid: &str, deleting: bool) -> Value {
    let mut metadata = json!({ "name": name, "namespace": "ns1", "uid": uid });
    if deleting {
        metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    metadata
}

fn reference(kind: &str, uid: &str) -> Value {
    json!({ "apiVersion": "kubevirt.io/v1", "kind": kind, "name": NAME, "uid": uid, "controller": true })
}

fn wire_machine(machine: &Machine) -> Value {
    let networks: Vec<_> = machine
        .networks
        .iter()
        .map(|name| json!({ "name": name }))
        .collect();
    json!({
        "metadata": metadata(NAME, &machine.uid, machine.deleting),
        "spec": { "template": { "spec": { "networks": networks } } },
    })
}

fn wire_instance(instance: &Instance) -> Value {
    let mut metadata = metadata(NAME, &instance.uid, instance.deleting);
    if let Some(owner) = &instance.owner {
        metadata["ownerReferences"] = json!([reference(kubevirt::MACHINE, owner)]);
    }
    let network = |name: &&str| json!({ "name": name, "multus": { "networkName": name } });
    let networks: Vec<_> = instance.networks.iter().map(network).collect();
    let attached: Vec<_> = instance
        .attached
        .iter()
        .map(|name| json!({ "name": name }))
        .collect();
    let pods = if instance.pods {
        json!({ "pod": "node" })
    } else {
        json!({})
    };
    json!({
        "metadata": metadata, "spec": { "networks": networks },
        "status": { "activePods": pods, "interfaces": attached },
    })
}

fn wire_claim(name: &str, claim: &Claim) -> Value {
    let mut metadata = metadata(name, &claim.uid, claim.deleting);
    metadata["resourceVersion"] = json!(claim.version.to_string());
    metadata["labels"] = json!({ names::MACHINE_LABEL: NAME });
    if claim.held {
        metadata["finalizers"] = json!([names::FINALIZER]);
    }
    if !claim.owners.is_empty() {
        let owners: Vec<_> = claim
            .owners
            .iter()
            .map(|uid| reference(kubevirt::MACHINE, uid))
            .collect();
        metadata["ownerReferences"] = json!(owners);
    }
    json!({
        "apiVersion": names::CLAIM_API, "kind": names::CLAIM, "metadata": metadata,
        "spec": { "network": "n", "interface": "" },
    })
}

/// A client of one replica. Before the answer to its request, other changes happen, and the other replica may act.
fn client(world: &Shares, replica: usize, depth: u32) -> Client {
    let world = Arc::clone(world);
    let service = tower::service_fn(move |request: Request<Body>| {
        let world = Arc::clone(&world);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap_or_default();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            meanwhile(&world, replica, depth).await;
            let path = parts.uri.path();
            let (code, answer) = kube_kit::lock(&world).answer(replica, &parts.method, path, &body);
            let text = match answer {
                Value::String(text) => text,
                other => other.to_string(),
            };
            let response = Response::builder()
                .status(code)
                .body(Body::from(text.into_bytes()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    Client::new(service, "ns1")
}

async fn meanwhile(world: &Shares, replica: usize, depth: u32) {
    let other = {
        let mut world = kube_kit::lock(world);
        if world.quiet {
            return;
        }
        for _ in 0..world.random(6) {
            world.happen();
        }
        let other = 1 - replica;
        let acts = depth == 0 && world.random(5) == 0;
        (acts && world.replicas[other].pending).then_some(other)
    };
    if let Some(other) = other {
        Box::pin(reconcile(world, other, depth + 1)).await;
    }
}

async fn reconcile(world: &Shares, replica: usize, depth: u32) {
    let (shared, is_new) = {
        let mut world = kube_kit::lock(world);
        let replica = &mut world.replicas[replica];
        replica.pending = false;
        (Arc::clone(&replica.shared), std::mem::take(&mut replica.is_new))
    };
    let client = client(world, replica, depth);
    let recorder = Recorder::new(client.clone(), "test");
    let reconciler = Reconciler::new(shared, Cluster::new(client), recorder, Leadership::of_one());
    if is_new {
        reconciler.catch_up().await;
    }
    let done = reconciler.reconcile(&Name::new("ns1", NAME)).await;
    if let Err(error) = done {
        let mut world = kube_kit::lock(world);
        world.note(format_args!("replica {replica}: {error}"));
        world.replicas[replica].pending = true;
    }
}

/// Runs one history, and returns its error.
async fn history(seed: u64, bug: Option<Bug>) -> Result<(), String> {
    let world: Shares = Arc::new(Mutex::new(World::new(seed, bug)));
    let wrong = |world: &Shares, what: Option<String>| match what {
        Some(what) => Err(format!("seed {seed}: {what}\n{}", kube_kit::lock(world).log)),
        None => Ok(()),
    };
    for _ in 0..80 {
        let acts = {
            let mut world = kube_kit::lock(&world);
            world.happen();
            let replica = usize::try_from(world.random(2)).unwrap();
            (world.random(3) == 0 && world.replicas[replica].pending).then_some(replica)
        };
        if let Some(replica) = acts {
            reconcile(&world, replica, 0).await;
        }
        let what = kube_kit::lock(&world).wrong.take();
        wrong(&world, what)?;
    }
    {
        let mut world = kube_kit::lock(&world);
        world.quiet = true;
        world.served = true;
        if world.random(2) == 0 {
            world.restart(0);
            world.restart(1);
        }
        world.note("nothing happens any more");
    }
    let settled = async || {
        settle(&world).await;
        let mut world = kube_kit::lock(&world);
        let wrong = world.wrong.take();
        wrong.or_else(|| world.settled())
    };
    let what = settled().await;
    wrong(&world, what)?;
    let is_removed = kube_kit::lock(&world).random(2) == 0;
    if is_removed {
        kube_kit::lock(&world).reinstall();
        let what = settled().await;
        wrong(&world, what)?;
    }
    Ok(())
}

/// Finishes all started work, and delivers all events.
async fn settle(world: &Shares) {
    for _ in 0..12 {
        for replica in 0..2 {
            {
                let mut world = kube_kit::lock(world);
                // A deletion in progress completes.
                if world.instance.as_ref().is_some_and(|it| it.deleting) {
                    world.set_instance(None);
                }
                world.collect();
                for kind in 0..3 {
                    while !world.replicas[replica].events[kind].is_empty() {
                        world.deliver(replica, kind);
                    }
                }
            }
            if kube_kit::lock(world).replicas[replica].pending {
                reconcile(world, replica, 0).await;
            }
        }
    }
}

const HISTORIES: u64 = 300;

// kubevirt-ipam#95, kubevirt-ipam#109
#[tokio::test(start_paused = true)]
async fn no_history_loses_an_address_or_leaves_one_behind() {
    for seed in 0..HISTORIES {
        if let Err(wrong) = history(seed, None).await {
            panic!("{wrong}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn surroundings_that_are_built_wrongly_are_found_out() {
    // First seed of each search: shortly before the first history that shows the bug, so that the search is short.
    for (bug, first) in [
        (Bug::WritesAreBlind, 1600),
        (Bug::AnswersAreLate, 0),
        (Bug::NotServedIsGone, 40),
        (Bug::EndsAreOverlooked, 0),
        (Bug::StartsAreBlind, 0),
    ] {
        let mut found = None;
        for seed in first..first + 10 * HISTORIES {
            if history(seed, Some(bug)).await.is_err() {
                found = Some(seed);
                break;
            }
        }
        println!("{bug:?}: {found:?}");
        assert!(found.is_some(), "{bug:?}");
    }
}

// kubevirt-ipam#59
#[tokio::test]
async fn failed_read_of_a_network_fails_the_reconcile_without_an_event() {
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = Arc::clone(&asked);
    let broken = tower::service_fn(move |request: Request<Body>| {
        kube_kit::lock(&log).push(request.uri().path().to_owned());
        let (code, body) = status(StatusCode::INTERNAL_SERVER_ERROR, "InternalError");
        let response = Response::builder()
            .status(code)
            .body(Body::from(body.to_string().into_bytes()));
        async move { Ok::<_, Infallible>(response.unwrap()) }
    });
    let client = Client::new(broken, "ns1");
    let shared = Shared::default();
    let instance = Instance {
        uid: "vmi".to_owned(),
        networks: BTreeSet::from(NETS),
        ..Instance::default()
    };
    apply(&mut state::lock(&shared), Event::Instance(Some(instance)));
    let recorder = Recorder::new(client.clone(), "test");
    let reconciler = Reconciler::new(shared, Cluster::new(client), recorder, Leadership::of_one());
    let done = reconciler.reconcile(&Name::new("ns1", NAME)).await;
    assert_eq!(done, Err(Error::Changed));
    let asked = kube_kit::lock(&asked);
    assert!(
        !asked.is_empty()
            && asked
                .iter()
                .all(|path| path.contains("network-attachment-definitions")),
        "{asked:?}"
    );
}

/// A client of an API server that answers by method, path and body of a request.
fn answered(answer: impl Fn(&Method, &str, &Value) -> (StatusCode, Value) + Send + Sync + 'static) -> Client {
    let answer = Arc::new(answer);
    let service = tower::service_fn(move |request: Request<Body>| {
        let answer = Arc::clone(&answer);
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect_bytes().await.unwrap_or_default();
            let body: Value = serde_json::from_slice(&body).unwrap_or_default();
            let (code, answer) = answer(&parts.method, parts.uri.path(), &body);
            let response = Response::builder()
                .status(code)
                .body(Body::from(answer.to_string().into_bytes()));
            Ok::<_, Infallible>(response.unwrap())
        }
    });
    Client::new(service, "ns1")
}

#[tokio::test]
async fn instance_gets_the_events_that_its_predecessor_got() {
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let log = Arc::clone(&told);
    let client = answered(move |method, _, body| {
        if *method != Method::POST {
            return status(StatusCode::NOT_FOUND, "NotFound");
        }
        let uid = body["involvedObject"]["uid"].as_str().unwrap();
        kube_kit::lock(&log).push(uid.to_owned());
        (StatusCode::CREATED, json!({}))
    });
    let shared = Shared::default();
    let recorder = Recorder::new(client.clone(), "test");
    let reconciler = Reconciler::new(
        Arc::clone(&shared),
        Cluster::new(client),
        recorder,
        Leadership::of_one(),
    );
    for uid in ["vmi-1", "vmi-1", "vmi-2", "vmi-2"] {
        let instance = Instance {
            uid: uid.to_owned(),
            networks: BTreeSet::from(["a"]),
            ..Instance::default()
        };
        apply(&mut state::lock(&shared), Event::Instance(Some(instance)));
        let done = reconciler.reconcile(&Name::new("ns1", NAME)).await;
        assert!(matches!(done, Err(Error::Problem(_))), "{done:?}");
    }
    assert_eq!(*kube_kit::lock(&told), ["vmi-1", "vmi-2"]);
}

// kubevirt-ipam#115
#[tokio::test(start_paused = true)]
async fn no_address_is_given_before_all_claims_are_known() {
    let is_served: Arc<AtomicBool> = Arc::default();
    let given: Arc<Mutex<Vec<Value>>> = Arc::default();
    let claim = |owner: &str, version: u64| Claim {
        uid: format!("claim-{version}"),
        version,
        owners: vec![owner.to_owned()],
        held: true,
        ..Claim::default()
    };
    let ours = claim("vm", 1);
    let mut live = wire_claim("vm1.a", &ours);
    // The claim of another virtual machine, from a backup.
    let mut restored = wire_claim("other.a", &claim("other", 2));
    restored["metadata"]["labels"] = json!({});
    restored["status"] = json!({ "ips": ["10.0.0.2/29"] });
    for claim in [&mut live, &mut restored] {
        claim["spec"]["network"] = json!("lan");
    }
    let (served, log) = (Arc::clone(&is_served), Arc::clone(&given));
    let client = answered(move |method, path, body| {
        let items = json!([&live, &restored]);
        match *method {
            Method::GET if !served.load(Ordering::Relaxed) => {
                (StatusCode::NOT_FOUND, json!("404 page not found"))
            }
            Method::GET if path.ends_with("/ipamclaims") => {
                let list = json!({ "apiVersion": "v1", "kind": "List", "metadata": {}, "items": items });
                (StatusCode::OK, list)
            }
            Method::GET => (StatusCode::OK, live.clone()),
            Method::PUT => {
                kube_kit::lock(&log).push(body["status"]["ips"].clone());
                (StatusCode::OK, body.clone())
            }
            _ => (StatusCode::CREATED, json!({})),
        }
    });
    let shared = Shared::default();
    {
        let mut state = state::lock(&shared);
        let config =
            r#"{"name":"lan","allowPersistentIPs":true,"persistentIPRanges":[{"subnet":"10.0.0.0/29"}]}"#;
        state.network_seen(Network::read(Name::new("ns1", "a"), config));
        let machine = Machine {
            uid: "vm".to_owned(),
            networks: BTreeSet::from(["a"]),
            ..Machine::default()
        };
        let instance = Instance {
            uid: "vmi".to_owned(),
            owner: Some("vm".to_owned()),
            networks: BTreeSet::from(["a"]),
            ..Instance::default()
        };
        apply(&mut state, Event::Machine(Some(machine)));
        apply(&mut state, Event::Instance(Some(instance)));
        apply(&mut state, Event::Claim("vm1.a".to_owned(), Some(ours)));
    }
    let recorder = Recorder::new(client.clone(), "test");
    let reconciler = Reconciler::new(shared, Cluster::new(client), recorder, Leadership::of_one());
    let name = Name::new("ns1", NAME);
    assert!(!reconciler.catch_up().await);
    is_served.store(true, Ordering::Relaxed);
    assert_eq!(reconciler.reconcile(&name).await, Err(Error::Changed));
    assert!(kube_kit::lock(&given).is_empty());
    reconciler.catch_up_later().await;
    assert_eq!(reconciler.reconcile(&name).await, Ok(()));
    assert_eq!(*kube_kit::lock(&given), [json!(["10.0.0.3/29"])]);
}
