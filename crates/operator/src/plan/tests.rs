//! Plans from handwritten observed states.

use super::*;
use crate::images::Images;

const NAMESPACE: &str = "addons";

fn settings() -> Settings {
    Settings {
        images: Images::read(|_| None).with_own(Some("weft:1".to_owned())),
        operator_namespace: NAMESPACE.to_owned(),
        operand_namespace: NAMESPACE.to_owned(),
        ..Settings::default()
    }
}

/// The plan for a specification in an empty cluster, after `observe` changed the observed state.
fn plan_with(spec: &Value, observe: impl FnOnce(&mut Observed<'_>)) -> Result<Plan, Rejection> {
    plan_by(&settings(), spec, observe)
}

fn plan_by(
    settings: &Settings,
    spec: &Value,
    observe: impl FnOnce(&mut Observed<'_>),
) -> Result<Plan, Rejection> {
    let resource = Resource {
        object: Arc::new(json!({ "metadata": { "name": "cluster", "uid": "1" }, "spec": spec })),
        uid: "1".to_owned(),
    };
    let mut observed = Observed {
        resource: &resource,
        settings,
        cluster: Cluster::default(),
        node_state: NodeState::default(),
        applied: Ok(Record::default()),
        own_namespace: None,
        networks: None,
        random: [1, 2],
    };
    observe(&mut observed);
    Plan::of(&observed)
}

fn applied(spec: &Value, inventory: Option<Inventory>) -> Record {
    let spec = configuration::read(spec.clone()).expect("a specification");
    Record {
        spec: Some(spec),
        inventory,
    }
}

fn daemon_set(name: &str) -> ObjectId {
    object::DAEMON_SET.object(Some(NAMESPACE), name)
}

fn components(plan: &Plan) -> Vec<&'static str> {
    plan.groups.iter().map(|group| group.component).collect()
}

#[test]
fn recorded_object_that_is_not_rendered_is_pruned() {
    let marker = daemon_set("bridge-marker");
    let inventory = Inventory::of([marker.clone(), daemon_set("multus")]);
    let plan = plan_with(&json!({ "multus": {} }), |observed| {
        observed.applied = Ok(Record {
            spec: None,
            inventory: Some(inventory),
        });
    })
    .expect("a plan");
    assert_eq!(plan.pruned, std::slice::from_ref(&marker));
    // The marker stays on record until it is deleted.
    assert!(plan.inventory.contains(&marker));
}

#[test]
fn object_of_an_operator_without_inventory_is_pruned_by_its_specification() {
    let plan = plan_with(&json!({}), |observed| {
        observed.applied = Ok(applied(&json!({ "multus": {} }), None));
    })
    .expect("a plan");
    assert!(plan.pruned.contains(&daemon_set("multus")), "{:?}", plan.pruned);
}

// operator#99
#[test]
fn object_of_upstream_image_without_inventory_is_pruned_for_native_one() {
    let spec = json!({ "kubevirtIpamController": {} });
    let of_cert_manager = [
        object::CERTIFICATE.object(Some(NAMESPACE), "kubevirt-ipam-controller-serving-cert"),
        object::ISSUER.object(Some(NAMESPACE), "kubevirt-ipam-controller-selfsigned-issuer"),
    ];
    let plan = |settings: &Settings| {
        let plan = plan_by(settings, &spec, |observed| {
            observed.applied = Ok(applied(&spec, None));
        });
        plan.expect("a plan")
    };
    let native = plan(&settings());
    for id in &of_cert_manager {
        assert!(native.pruned.contains(id), "{id}: {:?}", native.pruned);
    }
    let upstream = plan(&Settings {
        images: Images::read(|variable| Some(format!("{variable}:1"))),
        ..settings()
    });
    for id in &of_cert_manager {
        assert!(
            !upstream.pruned.contains(id) && upstream.inventory.contains(id),
            "{id}"
        );
    }
    // Fields of ours have no upstream flavour, and do not reject the record.
    let spec = json!({ "linuxBridge": { "dhcp": true } });
    let plan = plan_with(&spec, |observed| observed.applied = Ok(applied(&spec, None)));
    plan.expect("a plan");
}

#[test]
fn component_that_cannot_be_rendered_keeps_its_objects_and_the_others() {
    let bridge = daemon_set("kube-cni-linux-bridge-plugin");
    let recorded = Inventory::of_component("linuxBridge", [bridge.clone()]);
    // Without an image of its own, the operator has only multus' image.
    let settings = Settings {
        images: Images::read(|name| (name == "MULTUS_IMAGE").then(|| "multus:1".to_owned())),
        ..settings()
    };
    let plan = plan_by(
        &settings,
        &json!({ "multus": {}, "linuxBridge": {} }),
        |observed| {
            observed.applied = Ok(Record {
                spec: None,
                inventory: Some(recorded),
            });
        },
    );
    let plan = plan.expect("a plan");
    let failed: Vec<_> = plan.unrendered.iter().map(|(component, _)| *component).collect();
    assert_eq!(
        (failed.as_slice(), components(&plan).contains(&"multus")),
        (&["linuxBridge"][..], true)
    );
    assert!(
        plan.deployed.contains(&("linuxBridge", Vec::new())),
        "{:?}",
        plan.deployed
    );
    assert!(!plan.pruned.contains(&bridge), "{:?}", plan.pruned);
}

#[test]
fn record_that_cannot_be_read_changes_nothing() {
    let rejection = plan_with(&json!({ "multus": {} }), |observed| {
        observed.applied = Err("applied: EOF".to_owned());
    })
    .expect_err("a rejection");
    assert_eq!(rejection.reason(), reason::PREVIOUS_CONFIG);
    assert!(rejection.is_final());
    assert_eq!(
        rejection.to_string(),
        messages::previous_configuration("applied: EOF")
    );
}

#[test]
fn invalid_specification_is_reported_before_the_record() {
    let rejection = plan_with(&json!({ "imagePullPolicy": "Sometimes" }), |observed| {
        observed.applied = Err("applied: EOF".to_owned());
    })
    .expect_err("a rejection");
    assert_eq!(rejection.reason(), reason::VALIDATE);
}

#[test]
fn change_that_is_not_safe_changes_nothing() {
    let rejection = plan_with(&json!({ "imagePullPolicy": "Never" }), |observed| {
        observed.applied = Ok(applied(&json!({ "imagePullPolicy": "Always" }), None));
    })
    .expect_err("a rejection");
    assert_eq!(rejection.reason(), reason::PREVIOUS_CONFIG);
    assert!(rejection.is_final());
}

#[test]
fn definition_of_networks_is_freed_unless_it_is_applied_anyway() {
    let definition = |owners: Value| {
        json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": { "name": "network-attachment-definitions.k8s.cni.cncf.io", "ownerReferences": owners },
            "spec": { "group": "k8s.cni.cncf.io" },
        })
    };
    let owned = || definition(json!([{ "kind": "NetworkAddonsConfig", "name": "cluster", "uid": "0" }]));
    let freed = |spec: Value, networks: Value| {
        let plan = plan_with(&spec, |observed| observed.networks = Some(networks));
        plan.expect("a plan").freed
    };
    let free = freed(json!({}), owned()).expect("an object");
    assert_eq!(free["metadata"]["ownerReferences"], Value::Null);
    assert_eq!(free["spec"], owned()["spec"]);
    assert_eq!(freed(json!({ "multus": {} }), owned()), None);
    assert_eq!(freed(json!({}), definition(json!([]))), None);
}

#[test]
fn range_is_drawn_once() {
    let open = json!({ "kubeMacPool": {} });
    let plan = plan_with(&open, |_| {}).expect("a plan");
    assert!(plan.draws_range);
    let before =
        json!({ "kubeMacPool": { "rangeStart": "02:01:00:00:00:00", "rangeEnd": "02:01:00:ff:ff:ff" } });
    let kept = plan_with(&open, |observed| observed.applied = Ok(applied(&before, None))).expect("a plan");
    assert!(!kept.draws_range);
    // An earlier operator accepted this one.
    let invalid =
        json!({ "kubeMacPool": { "rangeStart": "02:ff:00:00:00:00", "rangeEnd": "02:00:00:00:00:01" } });
    let drawn = plan_with(&open, |observed| observed.applied = Ok(applied(&invalid, None)));
    assert!(drawn.expect("a plan").draws_range);
    let record = kept.record["data"]["applied"]
        .as_str()
        .expect("the specification");
    assert!(record.contains("02:01:00:ff:ff:ff"), "{record}");
}

#[test]
fn same_observations_give_the_same_plan() {
    let spec = json!({ "multus": {}, "linuxBridge": {}, "kubeMacPool": {} });
    let [first, second] = [(); 2].map(|()| plan_with(&spec, |_| {}).expect("a plan"));
    assert_eq!(first.record, second.record);
    assert_eq!(format!("{:?}", first.groups), format!("{:?}", second.groups));
}
