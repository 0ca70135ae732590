//! Installations of earlier releases of upstream, each described as a difference from today's.

use std::collections::{BTreeMap, BTreeSet};

use kube_kit::object;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use stage::{Method, until};

use super::established::BUNDLE;
use crate::{
    fixture::{Fixture, VERSION},
    installation::{
        DAEMON_SETS, DEPLOYMENTS, IMAGES, Installation, VERSION_LABEL, differences, everything, identities,
        is_workload, key, owned,
    },
    stubs::CERT_MANAGER,
};

/// Releases with different objects. Other releases deploy a subset of the next one's.
const RELEASES: [&str; 6] = ["0.102.0", "0.101.0", "0.100.0", "0.97.0", "0.94.0", "0.89.0"];

/// A part of the names of objects that later releases do not deploy, with the first and the last release that deployed
/// them.
const GIVEN_UP: [[&str; 3]; 3] = [
    ["kubevirt-ipam-claims", "0.94.0", "0.94.0"],
    ["passt-binding-cni", "0.94.3", "0.98.1"],
    ["primary-udn-kubevirt-binding", "0.94.6", "0.98.1"],
];

/// The field manager of upstream's operator.
const MANAGER: &str = "cluster-network-addons-operator";

/// The record of upstream's operator, and its key in that object.
const RECORD: [&str; 2] = [
    "ConfigMap/cluster-networks-addons-operator-applied-cluster",
    "/data/applied",
];

/// A difference of some releases from today's objects.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Difference {
    /// The first of these releases; without it, all releases up to the last.
    since: Option<String>,
    /// The last of them.
    until: String,
    /// `Kind/name` of the objects.
    objects: Vec<String>,
    /// Whether these releases had no such objects.
    #[serde(default)]
    absent: bool,
    /// Pointers to fields that these releases did not have.
    #[serde(default)]
    remove: Vec<String>,
    /// Pointers to fields that had another value.
    #[serde(default)]
    set: Map<String, Value>,
}

impl Difference {
    fn all() -> Vec<Self> {
        let text = include_str!("../fixtures/established/releases.yaml");
        serde_saphyr::from_str(text).expect("differences")
    }

    fn is_of(&self, release: &str) -> bool {
        let is_since = |since: &String| number(since) <= number(release);
        self.since.as_ref().is_none_or(is_since) && number(release) <= number(&self.until)
    }

    fn apply(&self, objects: &mut Vec<Value>) {
        for name in &self.objects {
            let found = objects.iter().position(|object| key(object) == *name);
            let at = found.unwrap_or_else(|| panic!("nothing deploys {name}"));
            if self.absent {
                objects.remove(at);
                continue;
            }
            for pointer in &self.remove {
                let former = take(&mut objects[at], pointer);
                assert!(former.is_some(), "{name} has no {pointer}");
            }
            for (pointer, value) in &self.set {
                let former = put(&mut objects[at], pointer, value.clone());
                assert_ne!(former.as_ref(), Some(value), "{pointer} of {name}");
            }
        }
    }
}

/// The parts of a version, which sort like versions.
fn number(version: &str) -> Vec<u32> {
    let parts = version.split('.').map(|part| part.parse().expect("a number"));
    parts.collect()
}

/// The object or list that a pointer leads into, with the key or index in it.
fn place<'a>(object: &'a mut Value, pointer: &str) -> (&'a mut Value, String) {
    let (parent, last) = pointer.rsplit_once('/').expect("a pointer");
    let found = object.pointer_mut(parent);
    let parent = found.unwrap_or_else(|| panic!("nothing is at {parent}"));
    (parent, last.replace("~1", "/"))
}

fn take(object: &mut Value, pointer: &str) -> Option<Value> {
    match place(object, pointer) {
        (Value::Object(fields), name) => fields.shift_remove(&name),
        (Value::Array(list), index) => {
            let index: usize = index.parse().expect("an index");
            (index < list.len()).then(|| list.remove(index))
        }
        (other, _) => panic!("{pointer} leads into {other}"),
    }
}

/// Sets a value, and returns the previous one.
fn put(object: &mut Value, pointer: &str, value: Value) -> Option<Value> {
    match place(object, pointer) {
        (Value::Object(fields), name) => fields.insert(name, value),
        (Value::Array(list), index) if index == "-" => {
            list.push(value);
            None
        }
        (Value::Array(list), index) => {
            let index: usize = index.parse().expect("an index");
            Some(std::mem::replace(&mut list[index], value))
        }
        (other, _) => panic!("{pointer} leads into {other}"),
    }
}

/// Changes the record, which is JSON in a text.
fn record(objects: &mut [Value], change: impl FnOnce(&Value) -> Value) {
    let [name, pointer] = RECORD;
    let found = objects.iter_mut().find(|object| key(object) == name);
    let applied = found.and_then(|object| object.pointer_mut(pointer));
    let applied = applied.expect("a record");
    *applied = change(applied);
}

/// Today's objects, with the bundle that the MAC pool writes into its webhooks.
fn today(fixture: &Fixture) -> Vec<Value> {
    let mut objects = Installation::of_upstream(fixture).objects;
    let is_pool = |object: &&mut Value| key(object) == "MutatingWebhookConfiguration/kubemacpool-mutator";
    let webhooks = objects.iter_mut().find(is_pool).expect("webhooks")["webhooks"].as_array_mut();
    for webhook in webhooks.into_iter().flatten() {
        webhook["clientConfig"]["caBundle"] = json!(BUNDLE.trim());
    }
    objects
}

/// The objects of a release: today's with all of its differences, with its version and images.
fn deployed_by(fixture: &Fixture, release: &str) -> Vec<Value> {
    let mut objects = today(fixture);
    record(&mut objects, |text| {
        let text = text.as_str().expect("a text");
        serde_json::from_str(text).expect("JSON")
    });
    for difference in Difference::all() {
        if difference.is_of(release) {
            difference.apply(&mut objects);
        }
    }
    record(&mut objects, |applied| json!(applied.to_string()));
    objects.extend(given_up(fixture, release));
    for object in &mut objects {
        object["metadata"]["labels"][VERSION_LABEL] = json!(release);
        if is_workload(object) {
            let pods = &mut object["spec"]["template"]["spec"];
            for containers in ["initContainers", "containers"] {
                for container in pods
                    .get_mut(containers)
                    .and_then(Value::as_array_mut)
                    .into_iter()
                    .flatten()
                {
                    let image = container["image"].as_str().expect("an image");
                    let (name, _) = image.rsplit_once(':').expect("a tag");
                    container["image"] = json!(format!("{name}:{release}"));
                }
            }
        }
    }
    objects
}

/// Objects of a release that are no longer deployed.
fn given_up(fixture: &Fixture, release: &str) -> Vec<Value> {
    let all = include_str!("../fixtures/release-0.94/leftovers.yaml");
    let mut objects = Installation::stamped(fixture, release, &[all]).objects;
    objects.retain(|object| {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        GIVEN_UP.iter().any(|[part, first, last]| {
            let is_of = number(first) <= number(release) && number(release) <= number(last);
            is_of && name.contains(part)
        })
    });
    objects
}

/// Path of the collection of an object.
fn collection(object: &Value) -> String {
    let text = |field: &Value| field.as_str().unwrap_or_default().to_owned();
    let kind = object::find(&text(&object["apiVersion"]), &text(&object["kind"])).expect("a kind");
    kind.path(object["metadata"]["namespace"].as_str())
}

fn path(object: &Value) -> String {
    let name = object["metadata"]["name"].as_str().expect("a name");
    format!("{}/{name}", collection(object))
}

/// Creates objects in the manner of upstream's operator. They replace all objects that the configuration resource owns,
/// and objects with the same names. Returns the stored objects.
fn install(fixture: &Fixture, objects: &[Value]) -> BTreeMap<String, Value> {
    for object in owned(fixture).values().chain(objects) {
        // The object may not exist.
        fixture.admin().send(Method::DELETE, &path(object), None);
    }
    for object in objects {
        let collection = format!("{}?fieldManager={MANAGER}", collection(object));
        fixture.admin().create(&collection, object);
    }
    let installed = owned(fixture);
    assert_eq!(installed.len(), objects.len(), "all of it is there");
    installed
}

/// Waits until all objects are as expected and have the current version, and returns them.
fn wait_for_today(
    fixture: &Fixture,
    release: &str,
    expected: &BTreeMap<String, Value>,
) -> BTreeMap<String, Value> {
    until(&format!("what release {release} deployed to be as today"), || {
        let found = owned(fixture);
        let mut different = differences(&found, expected);
        let stale = |object: &&Value| object["metadata"]["labels"][VERSION_LABEL] != VERSION;
        let stale = found.values().filter(stale);
        different.extend(stale.map(|object| format!("{} has another version", key(object))));
        if different.is_empty() {
            Ok(found)
        } else {
            Err(format!("{different:#?}\n{:#?}", fixture.events()))
        }
    })
}

// operator#70
#[test]
fn objects_of_each_release_become_those_of_today() {
    const VERSIONS: [&str; 3] = ["operatorVersion", "targetVersion", "observedVersion"];
    let mut fixture = Fixture::with(CERT_MANAGER);
    let definitions = include_str!("../fixtures/established/definitions.yaml");
    Installation::read(&[definitions]).define(&fixture);
    fixture.configure(&everything());
    let expected = install(&fixture, &today(&fixture));

    for release in RELEASES {
        let objects = deployed_by(&fixture, release);
        let before = install(&fixture, &objects);
        let versions = VERSIONS.map(|name| (name.to_owned(), json!(release)));
        let versions: Map<_, _> = versions.into_iter().collect();
        fixture.report("networkaddonsconfig", "cluster", &json!({ "status": versions }));

        fixture.start_images(&IMAGES);
        let after = wait_for_today(&fixture, release, &expected);
        for object in given_up(&fixture, release) {
            assert_eq!(fixture.admin().get(&path(&object)), None, "{release}");
        }
        // An object with the same name was updated in place.
        let former = identities(&before);
        for (name, identity) in identities(&after) {
            if let Some(former) = former.get(&name) {
                assert_eq!(identity, *former, "{release}: {name}");
            }
        }
        fixture.roll_out(&DAEMON_SETS);
        fixture.roll_out_deployments(&DEPLOYMENTS);
        fixture.wait_until_available();
        fixture.wait_for_status(|status| VERSIONS.iter().all(|name| status[*name] == VERSION));
        let configuration = fixture.configuration();
        let containers = configuration["status"]["containers"]
            .as_array()
            .expect("containers");
        let images: BTreeSet<_> = containers
            .iter()
            .filter_map(|container| container["image"].as_str())
            .collect();
        let ours: BTreeSet<_> = IMAGES.iter().map(|(_, image)| *image).collect();
        assert_eq!(images, ours, "{release}");
        fixture.stop();
    }
}

#[test]
fn differences_belong_to_tested_releases() {
    for difference in Difference::all() {
        let is_used = RELEASES.iter().any(|release| difference.is_of(release));
        assert!(is_used, "until {}: {:?}", difference.until, difference.objects);
    }
}
