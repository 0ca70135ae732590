use super::*;
use serde_json::{Value, json, value::to_raw_value};

fn request(operation: Operation, object: &Value, old: Option<&Value>) -> Request {
    Request {
        client: std::net::Ipv4Addr::LOCALHOST.into(),
        uid: "u".into(),
        operation,
        namespace: "ns".into(),
        name: String::new(),
        dry_run: false,
        object: Some(to_raw_value(object).unwrap()),
        old_object: old.map(|old| to_raw_value(old).unwrap()),
    }
}

fn nad(config: &str) -> Value {
    json!({"metadata": {"name": "blue", "namespace": "ns"}, "spec": {"config": config}})
}

fn created(config: &str) -> Verdict {
    decide(&request(Operation::Create, &nad(config), None))
}

#[track_caller]
fn assert_refused(verdict: &Verdict, text: &str) {
    let denial = verdict.denied.as_ref().unwrap();
    assert_eq!((denial.code, denial.message.as_str()), (422, text));
}

#[test]
fn unusable_definition_is_refused() {
    for (config, text) in [
        (
            "{}",
            "spec.config: LoadDelegateNetConfList: delegate must have the 'type' or 'plugin' field",
        ),
        (
            r#"{"plugins":[{"type":""}]}"#,
            "spec.config: LoadDelegateNetConfList: a plugin delegate must have the 'type' field",
        ),
        (
            r#"{"cniVersion":"0.4.0","plugins":[{"type":"bridge"},{"mtu":1}]}"#,
            "spec.config: failed to parse plugin config 1: error parsing configuration: missing 'type'",
        ),
        (
            r#"{"cniVersion":"0.9.0","name":"n","type":"macvlan"}"#,
            r#"spec.config: unsupported cniVersion "0.9.0""#,
        ),
        (
            r#"{"cniVersion":"0.4.0","name":"my net","type":"macvlan"}"#,
            r#"spec.config: invalid characters found in network name "my net""#,
        ),
        (
            r#"{"cniVersion":"0.4.0","name":"n","type":"../../bin/sh"}"#,
            "spec.config: invalid plugin name: ../../bin/sh",
        ),
        (
            r#"{"cniVersion":"0.4.0","name":"n","plugins":[{"type":"macvlan","ipam":{"type":"host-local"}},{"type":"bridge","vlan":5000}]}"#,
            "spec.config: IPAM plugin host-local: no IP ranges specified; plugin bridge: invalid VLAN ID 5000 (must be \
             between 0 and 4094)",
        ),
    ] {
        assert_refused(&created(config), text);
    }
    for config in ["nonsense", "[]", " ", r#"{"type":7}"#] {
        let verdict = created(config);
        let message = verdict.denied.unwrap().message;
        let begin = "spec.config: failed to unmarshal Spec.Config: ";
        assert!(message.starts_with(begin), "{config}: {message}");
    }
}

#[test]
fn doubtful_definition_gets_warning() {
    for (config, warnings) in [
        ("", &[][..]),
        (
            r#"{"cniVersion":"1.1.0","name":"n","type":"sriov","whatever":1}"#,
            &[],
        ),
        (
            r#"{"cniVersions":["1.0.0"],"name":"n","plugins":[{"type":"macvlan"}]}"#,
            &[],
        ),
        (
            r#"{"type":"macvlan"}"#,
            &[
                "spec.config: no name: that of the definition is taken",
                "spec.config: no cniVersion: 0.1.0 is assumed, with at most one address of each family and without CHECK",
            ],
        ),
        (
            r#"{"cniVersion":"0.4.0","name":"n","type":"bridge","bridg":"br1","plugins":[]}"#,
            &[
                "spec.config: with type and plugins, plugins is not looked at",
                r#"spec.config: plugin bridge does not know the key "bridg""#,
                r#"spec.config: plugin bridge does not know the key "plugins""#,
            ],
        ),
    ] {
        let verdict = created(config);
        assert_eq!(verdict.denied, None, "{config}");
        assert_eq!(verdict.warnings, warnings, "{config}");
        assert!(verdict.patch.is_empty());
    }
    let keys: Vec<_> = (0..13).map(|key| format!(r#""x{key}":1"#)).collect();
    let config = format!(
        r#"{{"cniVersion":"0.4.0","name":"n","type":"tuning",{}}}"#,
        keys.join(",")
    );
    let warnings = created(&config).warnings;
    assert_eq!(warnings.len(), 11);
    assert_eq!(warnings[10], "spec.config: 3 more keys are not known");
    let long = format!(
        r#"{{"cniVersion":"0.4.0","name":"n","type":"tuning","{}":1}}"#,
        "ä".repeat(500)
    );
    assert!(created(&long).warnings[0].len() <= 256);
}

#[test]
fn invalid_names_get_warning() {
    let with = |name: &str, resource: &str| {
        let mut nad = nad("");
        nad["metadata"]["name"] = name.into();
        nad["metadata"]["annotations"] = json!({"k8s.v1.cni.cncf.io/resourceName": resource});
        decide(&request(Operation::Create, &nad, None)).warnings
    };
    assert!(with("blue", "vendor.example/nic").is_empty());
    assert_eq!(
        with("blue.net", "vendor.example/nic"),
        ["blue.net can be named only in the JSON form of the pods' annotation: it is no DNS label"]
    );
    assert_eq!(
        with("blue", "nic"),
        [
            "annotation k8s.v1.cni.cncf.io/resourceName: \"nic\" is no name of a resource, as vendor.example/name is"
        ]
    );
    let generated = json!({"metadata": {"generateName": "x-"}, "spec": {"config": r#"{"cniVersion":"0.4.0","plugins":[{"type":"macvlan"}]}"#}});
    let verdict = decide(&request(Operation::Create, &generated, None));
    assert_eq!((verdict.denied, verdict.warnings.len()), (None, 1));
}

#[test]
fn stored_invalid_definition_stays_changeable() {
    let (bad, good) = (nad("{}"), nad(""));
    let mut labelled = bad.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    let update = |old: &Value, new: &Value| decide(&request(Operation::Update, new, Some(old)));
    assert_eq!(update(&bad, &labelled), Verdict::allowed());
    assert_eq!(update(&bad, &good), Verdict::allowed());
    assert!(update(&good, &bad).denied.is_some());
    assert_eq!(
        decide(&request(Operation::Delete, &bad, None)),
        Verdict::allowed()
    );
    // Without a specification, or with one that holds nothing.
    for object in [
        json!({"metadata": {"name": "a"}}),
        json!({"metadata": {"name": "a"}, "spec": {"config": null}}),
    ] {
        assert_eq!(
            decide(&request(Operation::Create, &object, None)),
            Verdict::allowed()
        );
    }
}
