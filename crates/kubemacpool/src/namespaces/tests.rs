use super::*;
use serde_json::{Value, json};

const RUN_LEVELS: [&str; 2] = ["runlevel", "openshift.io/run-level"];

fn run_levels() -> Vec<Value> {
    let expression = |key| json!({ "key": key, "operator": "NotIn", "values": ["0", "1"] });
    RUN_LEVELS.map(expression).to_vec()
}

/// The manifests' selector with this expression about the webhook's label.
fn selector(key: &str, operator: &str, values: &[&str]) -> Value {
    let mut expressions = run_levels();
    let mut own = json!({ "key": key, "operator": operator });
    if !values.is_empty() {
        own["values"] = json!(values);
    }
    expressions.push(own);
    json!({ "matchExpressions": expressions })
}

fn configuration(webhooks: &[(&str, Value)]) -> MutatingWebhookConfiguration {
    let webhook = |(name, selector): &(&str, Value)| {
        json!({
            "name": name, "namespaceSelector": selector, "clientConfig": {}, "sideEffects": "NoneOnDryRun",
            "admissionReviewVersions": ["v1"],
        })
    };
    let webhooks: Vec<_> = webhooks.iter().map(webhook).collect();
    let configuration = json!({ "metadata": { "name": "kubemacpool-mutator" }, "webhooks": webhooks });
    serde_json::from_value(configuration).expect("a configuration")
}

fn labels(labels: &[(&str, &str)]) -> Labels {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    labels.iter().map(owned).collect()
}

/// Whether a namespace with these labels is managed by a webhook with this selector.
fn is_managed(kind: Kind, selector: &Value, of: &[(&str, &str)]) -> Result<bool, String> {
    let mut managed = Managed::new();
    let name = match kind {
        Kind::Pod => names::PODS_WEBHOOK,
        Kind::Machine => names::MACHINES_WEBHOOK,
    };
    managed.set_rules(Rules::read(Some(&configuration(&[(name, selector.clone())]))));
    managed.set_namespace("ns", labels(of));
    managed.is_managed(kind, "ns").map_err(|error| error.to_string())
}

// kubemacpool#65, kubemacpool#29, kubemacpool#57
#[test]
fn namespace_labels_follow_the_selector() {
    for (kind, key) in [
        (Kind::Pod, "mutatepods.kubemacpool.io"),
        (Kind::Machine, "mutatevirtualmachines.kubemacpool.io"),
    ] {
        let opt_in = selector(key, "In", &["allocate"]);
        let opt_out = selector(key, "NotIn", &["ignore"]);
        for (of, with_opt_in, with_opt_out) in [
            (vec![], false, true),
            (vec![("other", "label")], false, true),
            (vec![(key, "allocate")], true, true),
            (vec![(key, "ignore")], false, false),
            (vec![(key, "disable")], false, true),
            (vec![(key, "")], false, true),
            (vec![(key, "allocate"), ("runlevel", "0")], false, false),
            (
                vec![(key, "allocate"), ("openshift.io/run-level", "1")],
                false,
                false,
            ),
            (vec![(key, "allocate"), ("runlevel", "2")], true, true),
        ] {
            assert_eq!(is_managed(kind, &opt_in, &of), Ok(with_opt_in), "opt-in {of:?}");
            assert_eq!(
                is_managed(kind, &opt_out, &of),
                Ok(with_opt_out),
                "opt-out {of:?}"
            );
        }
    }
}

// kubemacpool#65
#[test]
fn missing_namespace_is_named_in_the_error() {
    let mut managed = Managed::new();
    let key = names::PODS_WEBHOOK;
    let opt_in = configuration(&[(key, selector(key, "In", &["allocate"]))]);
    managed.set_rules(Rules::read(Some(&opt_in)));
    let error = managed.is_managed(Kind::Pod, "gone").expect_err("unknown");
    assert_eq!(
        error.to_string(),
        "failed to get namespace: namespaces \"gone\" not found"
    );
    managed.set_namespace("gone", labels(&[(key, "allocate")]));
    assert_eq!(managed.is_managed(Kind::Pod, "gone"), Ok(true));
    managed.remove_namespace("gone");
    managed.is_managed(Kind::Pod, "gone").expect_err("gone");
}

#[test]
fn label_values_are_taken_from_the_selector() {
    let key = names::PODS_WEBHOOK;
    let own = |operator, values: &[&str]| selector(key, operator, values);
    let by_label = json!({ "matchLabels": { key: "enabled" } });
    for (selector, chosen, managed) in [
        (own("In", &["yes", "please"]), vec![(key, "please")], true),
        (own("In", &["yes", "please"]), vec![(key, "allocate")], false),
        (own("NotIn", &["no"]), vec![(key, "no")], false),
        (own("NotIn", &["no"]), vec![(key, "ignore")], true),
        (own("Exists", &[]), vec![(key, "")], true),
        (own("Exists", &[]), vec![], false),
        (own("DoesNotExist", &[]), vec![(key, "")], false),
        (own("DoesNotExist", &[]), vec![], true),
        (by_label.clone(), vec![(key, "enabled")], true),
        (by_label, vec![(key, "allocate")], false),
    ] {
        assert_eq!(
            is_managed(Kind::Pod, &selector, &chosen),
            Ok(managed),
            "{selector} {chosen:?}"
        );
    }
}

#[test]
fn selector_without_our_label_is_not_understood() {
    let error = |selector: &Value| is_managed(Kind::Machine, selector, &[]).expect_err("unknown");
    let none = "no opt mode defined for webhook mutatevirtualmachines.kubemacpool.io";
    assert_eq!(error(&json!({})), none);
    assert_eq!(error(&json!({ "matchExpressions": run_levels() })), none);
    assert_eq!(
        error(&json!({ "matchExpressions": [{ "key": "other", "operator": "In", "values": ["allocate"] }] })),
        none
    );
    assert_eq!(
        error(&Value::Null),
        "webhook mutatevirtualmachines.kubemacpool.io has no NamespaceSelector"
    );
}

#[test]
fn missing_webhook_is_reported() {
    for configuration in [None, Some(configuration(&[]))] {
        let mut managed = Managed::new();
        managed.set_rules(Rules::read(configuration.as_ref()));
        let error = managed.mode(Kind::Pod).expect_err("unknown");
        assert_eq!(
            error.to_string(),
            "webhook mutatepods.kubemacpool.io was not found on mutatingWebhookConfig kubemacpool-mutator"
        );
    }
}

// kubemacpool#66
#[test]
fn edited_selector_applies_to_next_decision() {
    let key = names::MACHINES_WEBHOOK;
    let rules = |operator, value| {
        let selector = selector(key, operator, &[value]);
        Rules::read(Some(&configuration(&[(key, selector)])))
    };
    let mut managed = Managed::new();
    managed.set_namespace("ns", labels(&[("kubernetes.io/metadata.name", "ns")]));
    assert!(managed.set_rules(rules("NotIn", "ignore")));
    assert_eq!(managed.is_managed(Kind::Machine, "ns"), Ok(true));
    assert_eq!(
        (managed.mode(Kind::Machine), managed.count(Kind::Machine)),
        (Ok(Mode::OptOut), 1)
    );
    assert!(!managed.set_rules(rules("NotIn", "ignore")), "no notice");
    assert!(managed.set_rules(rules("In", "allocate")));
    assert_eq!(managed.is_managed(Kind::Machine, "ns"), Ok(false));
    assert_eq!(
        (managed.mode(Kind::Machine), managed.count(Kind::Machine)),
        (Ok(Mode::OptIn), 0)
    );
    assert!(managed.set_namespace("ns", labels(&[(key, "allocate")])));
    assert_eq!(managed.is_managed(Kind::Machine, "ns"), Ok(true));
    assert!(
        !managed.set_namespace("ns", labels(&[(key, "allocate")])),
        "no notice"
    );
}
