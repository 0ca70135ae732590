//! Every object gets a response.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::Index;

use super::*;

/// Any JSON, with a preference for the keys and texts that the code uses.
fn any_json() -> impl Strategy<Value = Value> {
    let words = prop_oneof![
        Just("metadata"),
        Just("annotations"),
        Just(names::TRANSACTION_TIMESTAMP),
        Just("spec"),
        Just("template"),
        Just("domain"),
        Just("devices"),
        Just("interfaces"),
        Just("networks"),
        Just("name"),
        Just("macAddress"),
        Just("masquerade"),
        Just("multus"),
        Just("02:00:00:00:00:02"),
        Just("🦀\u{0}\"~1/"),
        Just(""),
    ]
    .prop_map(str::to_owned);
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        words.clone().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(8, 64, 6, move |inner| {
        prop_oneof![
            vec(inner.clone(), 0..6).prop_map(Value::from),
            btree_map(words.clone(), inner, 0..6).prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// JSON pointers to all parts of a value.
fn places(value: &Value, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    let below: Vec<(String, &Value)> = match value {
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| (key.replace('~', "~0").replace('/', "~1"), value))
            .collect(),
        Value::Array(list) => list
            .iter()
            .enumerate()
            .map(|(index, value)| (index.to_string(), value))
            .collect(),
        _ => Vec::new(),
    };
    for (key, value) in below {
        places(value, &format!("{at}/{key}"), found);
    }
}

fn real() -> Value {
    let mut vm = machine(&[
        pod_nic("default"),
        with_mac(nic("br1"), "02:00:00:00:00:02"),
        nic("br2"),
        with_mac(pod_nic("br3"), "0a-00-00-00-00-01"),
    ]);
    vm["metadata"]["annotations"] = json!({"a": "b", names::TRANSACTION_TIMESTAMP: NOW});
    vm
}

/// A realistic virtual machine with some values replaced.
fn mutated() -> impl Strategy<Value = Value> {
    vec((any::<Index>(), any_json()), 0..4).prop_map(|mutations| {
        let mut vm = real();
        for (index, value) in mutations {
            let mut found = Vec::new();
            places(&vm, "", &mut found);
            let place = index.get(&found);
            *vm.pointer_mut(place).unwrap() = value;
        }
        vm
    })
}

/// Invariants of every response.
fn sound(stage: &Stage, verdict: &Verdict) {
    if let Some(denied) = &verdict.denied {
        assert!([400, 500].contains(&denied.code) && !denied.message.is_empty());
        assert_eq!(verdict.patch, []);
        assert_eq!(stage.pool.oldest(), None, "what is refused holds nothing");
    }
    for change in &verdict.patch {
        let (Change::Add { path, value } | Change::Replace { path, value }) = change;
        let annotation = path == TIMESTAMP_PATH && value.is_string();
        let annotations = path == "/metadata/annotations" && *value == json!({});
        let address = path.starts_with(names::INTERFACES_PATH) && path.ends_with("/macAddress");
        assert!(annotation || annotations || address, "{path}: {value}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_object_is_answered(now in any_json(), before in any_json()) {
        for now in [&now, &json!({"metadata": now, "spec": now}), &json!({"spec": {"template": {"spec": now}}})] {
            let mut stage = Stage::new();
            let verdict = stage.create(now);
            sound(&stage, &verdict);
            let mut stage = Stage::new();
            let verdict = stage.update(&before, now);
            sound(&stage, &verdict);
        }
    }

    #[test]
    fn any_virtual_machine_is_answered(now in mutated(), before in mutated(), dry_run: bool) {
        let mut stage = Stage { dry_run, ..Stage::new() };
        let verdict = stage.create(&now);
        sound(&stage, &verdict);
        let mut stage = Stage { dry_run, ..Stage::new() };
        let verdict = stage.update(&before, &now);
        sound(&stage, &verdict);
        if dry_run {
            assert_eq!(stage.pool.oldest(), None);
        }
        let _ = serde_json::from_value::<Spec>(now["spec"].clone()).map(|spec| spec.addresses());
    }
}

#[test]
fn thousands_of_interfaces_are_answered_in_time() {
    let many: Vec<Value> = (0..20_000).map(|number| nic(&format!("n{number}"))).collect();
    let mut stage = Stage::new();
    let began = Instant::now();
    let created = stage.admitted(&machine(&many));
    assert_eq!(
        macs(&created).last().map(String::as_str),
        Some("02:00:00:00:4e:21")
    );
    assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
}

#[test]
fn deep_objects_are_answered() {
    for (open, close) in [
        ("[", "]"),
        (r#"{"a":"#, "}"),
        (r#"{"template":"#, "}"),
        (r#"{"spec":"#, "}"),
    ] {
        let (open, close) = (open.repeat(50_000), close.repeat(50_000));
        let deep = RawValue::from_string(format!(r#"{{"metadata":{{}},"spec":{open}1{close}}}"#)).unwrap();
        let request = Request {
            client: std::net::Ipv4Addr::LOCALHOST.into(),
            uid: "u".to_owned(),
            operation: Operation::Create,
            namespace: "ns".to_owned(),
            name: "vm".to_owned(),
            dry_run: false,
            object: Some(deep),
            old_object: None,
        };
        if let Ok(review) = Review::read(&request) {
            let verdict = review.admit(&mut Stage::new().pool, &context());
            assert_eq!(verdict.patch.len(), 2, "a timestamp alone");
        }
    }
}
