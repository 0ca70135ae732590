mod create;
mod hostile;
mod update;

use std::time::Instant;

use cni::mac::Mac;
use serde_json::value::to_raw_value;

use super::*;
use crate::range::Range;

const CREATE: &str =
    "Failed to create virtual machine allocation error: Failed to allocate mac to the vm object: ";
const UPDATE: &str = "Failed to update virtual machine allocation error: ";
const NOW: &str = "2026-01-02T03:04:05.123456789Z";
const TIMESTAMP_PATH: &str = "/metadata/annotations/kubemacpool.io~1transaction-timestamp";

/// The webhook, the API server behind it, and the watch.
struct Stage {
    pool: Pool,
    now: Timestamp,
    requests: u32,
    reject_duplicates: bool,
    exists: bool,
    dry_run: bool,
}

impl Stage {
    /// Allocates from `02:00:00:00:00:02` on.
    fn new() -> Self {
        Self::of("02:00:00:00:00:00", "02:00:00:00:ff:ff", 2)
    }

    fn of(start: &str, end: &str, random: u64) -> Self {
        let range = Range::new(mac(start), mac(end)).unwrap();
        Self {
            pool: Pool::new(range, random),
            now: Timestamp::parse(NOW).unwrap(),
            requests: 0,
            reject_duplicates: false,
            exists: false,
            dry_run: false,
        }
    }

    fn create(&mut self, machine: &Value) -> Verdict {
        self.review(Operation::Create, machine, None)
    }

    fn update(&mut self, before: &Value, now: &Value) -> Verdict {
        self.review(Operation::Update, now, Some(before))
    }

    fn review(&mut self, operation: Operation, now: &Value, before: Option<&Value>) -> Verdict {
        self.requests += 1;
        self.now = self.now.or_after(Some(self.now));
        let request = Request {
            client: std::net::Ipv4Addr::LOCALHOST.into(),
            uid: format!("request-{}", self.requests),
            operation,
            namespace: "ns".to_owned(),
            name: now["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
            dry_run: self.dry_run,
            object: Some(to_raw_value(now).unwrap()),
            old_object: before.map(|before| to_raw_value(before).unwrap()),
        };
        let context = Context {
            exists: self.exists,
            timestamp: self.now,
            reject_duplicates: self.reject_duplicates,
            ..context()
        };
        match Review::read(&request) {
            Ok(review) => {
                // Structs can be parsed from arrays too; API servers do not write metadata so.
                if now["metadata"].is_object() {
                    assert_eq!(
                        review.needs().is_some(),
                        operation == Operation::Create && !request.name.is_empty()
                    );
                }
                review.admit(&mut self.pool, &context)
            }
            Err(verdict) => verdict,
        }
    }

    /// Admits a virtual machine, and returns the object to store.
    fn admitted(&mut self, machine: &Value) -> Value {
        let verdict = self.create(machine);
        patched(machine, &verdict)
    }

    /// Creates and observes a virtual machine.
    fn created(&mut self, machine: &Value) -> Value {
        let machine = self.admitted(machine);
        self.see(&machine);
        machine
    }

    /// Admits an update, and returns the object to store.
    fn updated(&mut self, before: &Value, now: &Value) -> Value {
        let verdict = self.update(before, now);
        patched(now, &verdict)
    }

    /// The watch delivers an object.
    fn see(&mut self, machine: &Value) {
        let (holdings, wrong) = spec(machine).addresses();
        assert_eq!(wrong, []);
        let annotations: BTreeMap<String, String> =
            serde_json::from_value(machine["metadata"]["annotations"].clone()).unwrap();
        let transaction = transaction(Some(&annotations)).unwrap();
        let uid = machine["metadata"]["uid"].as_str().unwrap_or("uid-1");
        self.pool.store(&owner(machine), uid, holdings, transaction);
    }

    /// Holders of an address: `<name> <interface>`, with `?` while pending.
    fn holders(&self, address: &str) -> Vec<String> {
        let holders = self.pool.holders(mac(address));
        holders
            .iter()
            .map(|holder| {
                let name = match &holder.claimant {
                    Claimant::Named(owner) => &owner.name,
                    Claimant::Unnamed { request, .. } => request,
                };
                format!("{name} {}{}", holder.key, if holder.pending { "?" } else { "" })
            })
            .collect()
    }
}

fn context() -> Context<'static> {
    Context {
        exists: false,
        timestamp: Timestamp::parse(NOW).unwrap(),
        admitted: Instant::now(),
        reject_duplicates: false,
        is_managed: &|_, namespace| namespace != "unmanaged",
    }
}

fn mac(text: &str) -> Mac {
    Mac::parse(text).unwrap()
}

fn spec(machine: &Value) -> Spec {
    serde_json::from_value(machine["spec"].clone()).unwrap()
}

fn owner(machine: &Value) -> Owner {
    Owner::machine("ns", machine["metadata"]["name"].as_str().unwrap())
}

/// An interface with masquerade, on the pod network.
fn pod_nic(name: &str) -> Value {
    json!({"name": name, "masquerade": {}})
}

/// A bridged interface, on a network of multus.
fn nic(name: &str) -> Value {
    json!({"name": name, "bridge": {}})
}

/// An interface with an address.
fn with_mac(mut nic: Value, mac: &str) -> Value {
    nic["macAddress"] = json!(mac);
    nic
}

/// A virtual machine. Interfaces with `masquerade` are on the pod network, the others on networks of multus.
fn machine(interfaces: &[Value]) -> Value {
    named("vm", interfaces)
}

fn named(name: &str, interfaces: &[Value]) -> Value {
    let networks: Vec<Value> = interfaces
        .iter()
        .map(|interface| {
            if interface["masquerade"].is_null() {
                json!({"name": interface["name"], "multus": {"networkName": "net"}})
            } else {
                json!({"name": interface["name"], "pod": {}})
            }
        })
        .collect();
    json!({
        "apiVersion": "kubevirt.io/v1",
        "kind": "VirtualMachine",
        "metadata": {"name": name, "namespace": "ns", "uid": format!("uid-of-{name}"), "labels": {"app": "x"}},
        "spec": {
            "runStrategy": "Always",
            "template": {"spec": {
                "domain": {"devices": {"interfaces": interfaces, "disks": [{"name": "d", "io": "native-new"}]}},
                "networks": networks,
            }},
        },
        "status": {"ready": true},
    })
}

/// An object with a patch applied, like by the API server.
fn patched(machine: &Value, verdict: &Verdict) -> Value {
    assert_eq!(verdict.denied, None);
    let mut machine = machine.clone();
    for change in &verdict.patch {
        let (path, value, replace) = match change {
            Change::Add { path, value } => (path, value, false),
            Change::Replace { path, value } => (path, value, true),
        };
        let (parent, key) = path.rsplit_once('/').unwrap();
        let parent = machine
            .pointer_mut(parent)
            .unwrap_or_else(|| panic!("{path} has no parent"))
            .as_object_mut()
            .unwrap();
        let before = parent.insert(key.replace("~1", "/"), value.clone());
        assert!(before.is_some() || !replace, "{path} is there to be replaced");
    }
    machine
}

/// The addresses of the interfaces in order; empty if missing.
fn macs(machine: &Value) -> Vec<String> {
    let interfaces = machine
        .pointer("/spec/template/spec/domain/devices/interfaces")
        .unwrap();
    let interfaces = interfaces.as_array().unwrap();
    let mac = |interface: &Value| interface["macAddress"].as_str().unwrap_or_default().to_owned();
    interfaces.iter().map(mac).collect()
}

/// Replaces the list of interfaces, and adds networks for those that have none.
fn with_interfaces(machine: &Value, interfaces: &[Value]) -> Value {
    let mut changed = machine.clone();
    let fresh = named("vm", interfaces);
    for path in [
        "/spec/template/spec/domain/devices/interfaces",
        "/spec/template/spec/networks",
    ] {
        *changed.pointer_mut(path).unwrap() = fresh.pointer(path).unwrap().clone();
    }
    changed
}

/// The interfaces of a virtual machine, mutable.
fn interfaces(machine: &Value) -> Vec<Value> {
    let interfaces = machine
        .pointer("/spec/template/spec/domain/devices/interfaces")
        .unwrap();
    interfaces.as_array().unwrap().clone()
}

fn denial(verdict: &Verdict) -> &str {
    let denied = verdict
        .denied
        .as_ref()
        .unwrap_or_else(|| panic!("is refused: {verdict:?}"));
    assert_eq!(denied.code, 500);
    assert_eq!(verdict.patch, []);
    &denied.message
}

#[test]
fn holdings_of_virtual_machine_are_read() {
    let machine = json!({"spec": {"template": {"spec": {
        "domain": {"devices": {"interfaces": [
            with_mac(pod_nic("default"), "02-00-00-00-AA-01"),
            with_mac(nic("multus"), "02:00:00:00:aa:02"),
            with_mac(nic("pod"), "02:00:00:00:aa:03"),
            with_mac(nic("nowhere"), "02:00:00:00:aa:04"),
            with_mac(nic("wrong"), "xx"),
            nic("without"),
            null,
            {"macAddress": null},
        ]}},
        "networks": [
            {"name": "default", "pod": {}}, {"name": "multus", "multus": {}}, {"name": "pod", "pod": {}, "multus": null},
            {"name": "wrong", "multus": {}}, {"name": "without", "multus": {}}, null,
        ],
    }}}});
    let (holdings, wrong) = spec(&machine).addresses();
    let holdings: Vec<String> = holdings
        .iter()
        .map(|held| format!("{} {}", held.key, held.mac))
        .collect();
    assert_eq!(
        holdings,
        ["default 02:00:00:00:aa:01", "multus 02:00:00:00:aa:02"]
    );
    let wrong: Vec<String> = wrong
        .iter()
        .map(|(name, error)| format!("{name}: {error}"))
        .collect();
    assert_eq!(wrong, ["wrong: address xx: invalid MAC address"]);
    for nothing in [
        json!({}),
        json!({"template": null}),
        json!({"template": {"spec": {"domain": {}, "networks": null}}}),
        json!({"template": {"spec": {"domain": {"devices": {"interfaces": [with_mac(pod_nic("a"), "02:00:00:00:aa:01")]}}}}}),
    ] {
        let (holdings, wrong) = spec(&json!({"spec": nothing})).addresses();
        assert!(holdings.is_empty() && wrong.is_empty(), "{nothing}");
    }
}

#[test]
fn transaction_timestamp_is_read_from_annotation() {
    let annotations =
        |text: &str| BTreeMap::from([(names::TRANSACTION_TIMESTAMP.to_owned(), text.to_owned())]);
    assert_eq!(transaction(None).unwrap(), None);
    assert_eq!(transaction(Some(&BTreeMap::new())).unwrap(), None);
    assert_eq!(
        transaction(Some(&annotations("2026-01-02T05:04:05.123456789+02:00"))).unwrap(),
        Some(Timestamp::parse(NOW).unwrap())
    );
    assert!(transaction(Some(&annotations("yesterday"))).is_err());
}
