//! Differences and their text, written by hand.

use serde_json::{Value, json};

use super::*;

fn daemon_set(image: &str, env: &Value) -> Value {
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {
            "name": "multus", "namespace": "addons", "labels": { "app.kubernetes.io/component": "network" },
            "ownerReferences": [{ "kind": "NetworkAddonsConfig", "name": "cluster", "uid": "1" }],
        },
        "spec": {
            "selector": { "matchLabels": { "name": "multus" } },
            "template": { "spec": { "containers": [
                { "name": "shim", "image": "a" }, { "name": "kube-multus", "image": image, "env": env },
            ] } },
        },
    })
}

fn shown(rendered: &Value, live: Option<Value>) -> String {
    let diff = compare(rendered, live, true, &[]).expect("an answer");
    text::print(diff.as_slice(), usize::from(diff.is_none()))
}

#[test]
fn changed_field_is_printed_with_live_and_desired_value() {
    let wanted = daemon_set("weft:2", &json!([{ "name": "A", "value": "1" }]));
    let mut live = daemon_set("weft:1", &json!([{ "name": "A", "value": "1" }]));
    live["metadata"]["labels"]["app.kubernetes.io/component"] = json!("storage");
    live["metadata"]["labels"]["foreign"] = json!("label");
    live["spec"]["template"]["spec"]["restartPolicy"] = json!("Always");
    live["spec"]["template"]["spec"]["hostNetwork"] = json!(true);
    assert_eq!(
        shown(&wanted, Some(live)),
        "\
~ DaemonSet addons/multus
    metadata.labels[\"app.kubernetes.io/component\"]: \"storage\" → \"network\"
    spec.template.spec.containers[kube-multus].image: \"weft:1\" → \"weft:2\"
    spec.template.spec.hostNetwork: true → (none)

1 to change
"
    );
}

#[test]
fn defaults_of_api_server_are_no_difference() {
    let wanted = daemon_set("weft:2", &json!([]));
    let mut live = wanted.clone();
    live["metadata"]["uid"] = json!("u");
    live["spec"]["revisionHistoryLimit"] = json!(10);
    live["status"] = json!({ "numberReady": 1 });
    assert_eq!(
        shown(&wanted, Some(live)),
        "No difference: 1 object is in its desired state.\n"
    );
}

#[test]
fn long_value_is_printed_as_changed_lines() {
    let config = |level: &str| {
        json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "c", "namespace": "addons" },
            "data": { "daemon-config.json": format!("{{\n  \"a\": 1,\n  \"level\": \"{level}\",\n  \"z\": 2\n}}\n") },
        })
    };
    assert_eq!(
        shown(&config("debug"), Some(config("info"))),
        "\
~ ConfigMap addons/c
    data[\"daemon-config.json\"]:
          \"a\": 1,
      -   \"level\": \"info\",
      +   \"level\": \"debug\",
          \"z\": 2

1 to change
"
    );
    let wanted = daemon_set(
        "weft:1",
        &json!([{ "name": "A", "value": "1" }, { "name": "B", "value": "2" }]),
    );
    let live = daemon_set("weft:1", &json!([{ "name": "A", "value": "1" }]));
    assert_eq!(
        shown(&wanted, Some(live)),
        "\
~ DaemonSet addons/multus
    spec.template.spec.containers[kube-multus].env:
          value: \"1\"
      + - name: B
      +   value: \"2\"

1 to change
"
    );
}

#[test]
fn secrets_and_bundles_are_not_printed() {
    let secret = |value: &str| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "s", "namespace": "addons" },
            "data": { "tls.key": value },
        })
    };
    assert_eq!(
        shown(&secret("bmV3"), Some(secret("b2xk"))),
        "~ Secret addons/s\n    data[\"tls.key\"]: (not shown)\n\n1 to change\n"
    );
    let hook = |names: &[&str], bundle: &str| {
        let hooks: Vec<_> = names
            .iter()
            .map(|name| json!({ "name": name, "clientConfig": { "caBundle": bundle } }))
            .collect();
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
            "metadata": { "name": "m" }, "webhooks": hooks,
        })
    };
    for text in [
        shown(&hook(&["a"], "TkVX"), Some(hook(&["a"], "T0xE"))),
        shown(&hook(&["a", "b"], "TkVX"), Some(hook(&["a"], "T0xE"))),
    ] {
        assert!(text.contains("(not shown)"), "{text}");
        assert!(!text.contains("TkVX") && !text.contains("T0xE"), "{text}");
    }
}

#[test]
fn each_kind_of_change_has_its_mark() {
    let wanted = daemon_set("weft:1", &json!([]));
    let mut other_selector = wanted.clone();
    other_selector["spec"]["selector"]["matchLabels"]["name"] = json!("old");
    let all: Vec<_> = [
        compare(&wanted, None, true, &[]),
        compare(&wanted, Some(other_selector), true, &[]),
        compare(&wanted, None, false, &[]),
    ]
    .into_iter()
    .map(|answer| answer.expect("an answer").expect("a difference"))
    .collect();
    let gone = ObjectDiff {
        id: object::CLUSTER_ROLE.object(None, "old"),
        change: Change::Deleted,
        wanted: Value::Null,
        live: json!({}),
    };
    assert_eq!(
        text::print(&[all, vec![gone]].concat(), 3),
        "\
+ DaemonSet addons/multus
-/+ DaemonSet addons/multus (deleted and recreated)
    spec.selector.matchLabels.name: \"old\" → \"multus\"
! DaemonSet addons/multus: this cluster does not serve DaemonSet of apps/v1
- ClusterRole old

1 to create, 1 to recreate, 1 to delete, 1 that cannot be applied, 3 unchanged
"
    );
}

#[test]
fn forbidden_labels_of_operator_namespace_are_removed() {
    let id = object::NAMESPACE.object(None, "addons");
    let wanted = json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "addons" } });
    let live = json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": "addons", "labels": { "prometheus.cnao.io": "true", "mine": "x" } },
    });
    let plan = decided(&json!({}), Record::default(), Some(&live)).expect("a plan");
    let rendered = compare(&wanted, Some(live.clone()), true, &plan.own_labels).expect("an answer");
    let alone = unlabelled(&id, &plan, &[], Some(&live));
    for diff in [rendered, alone] {
        assert_eq!(
            text::print(diff.as_slice(), 0),
            "~ Namespace addons\n    metadata.labels[\"prometheus.cnao.io\"]: \"true\" → (none)\n\n1 to change\n"
        );
    }
    assert_eq!(unlabelled(&id, &plan, &[wanted], Some(&live)), None);
}

fn decided(spec: &Value, applied: Record, own_namespace: Option<&Value>) -> Result<Plan, Error> {
    let cr = Resource {
        object: Arc::new(json!({ "metadata": { "name": "cluster", "uid": "1" }, "spec": spec })),
        uid: "1".into(),
    };
    let settings = environment::Flags {
        image: Some("weft:1".into()),
        ..environment::Flags::default()
    };
    let settings = settings.settings(None, |_| None).expect("settings");
    let plan = Plan::of(&Observed {
        resource: &cr,
        settings: &settings,
        cluster: Cluster::default(),
        node_state: NodeState::default(),
        applied: Ok(applied),
        own_namespace: own_namespace.cloned().map(Arc::new),
        networks: None,
        random: [0; 2],
    });
    Ok(plan?)
}

#[test]
fn unsafe_change_is_an_error() {
    let applied = Record {
        spec: Some(
            operator::configuration::read(json!({ "imagePullPolicy": "Always" })).expect("a specification"),
        ),
        inventory: None,
    };
    let error = decided(&json!({ "imagePullPolicy": "Never" }), applied, None).expect_err("an error");
    assert_eq!(
        error.to_string(),
        "the operator would change nothing: not applying unsafe change: invalid configuration:\n\
         cannot modify ImagePullPolicy configuration once components were deployed"
    );
}

#[test]
fn file_replaces_configuration_and_keeps_its_identity() {
    let live = json!({ "metadata": { "name": "cluster", "uid": "1", "labels": { "a": "1", "b": "1" } }, "spec": { "ovs": {} } });
    let file = json!({ "metadata": { "name": "cluster", "labels": { "b": "2" } }, "spec": { "multus": {} } });
    assert_eq!(
        proposed(file.clone(), Some(&live)),
        json!({ "metadata": { "name": "cluster", "uid": "1", "labels": { "a": "1", "b": "2" } }, "spec": { "multus": {} } })
    );
    assert_eq!(proposed(file.clone(), None), file);
}
