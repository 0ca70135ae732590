use std::time::Instant;

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::pool::Holding;
use crate::range::Range;
use crate::timestamp::Timestamp;

/// A pool that starts at `02:00:00:00:00:02`.
fn pool() -> Pool {
    range("02:00:00:00:00:00", "02:00:00:00:ff:ff", 2)
}

fn range(start: &str, end: &str, random: u64) -> Pool {
    let range = Range::new(mac(start), mac(end)).unwrap();
    Pool::new(range, random)
}

fn mac(text: &str) -> Mac {
    Mac::parse(text).unwrap()
}

fn context() -> Context<'static> {
    Context {
        exists: false,
        timestamp: Timestamp::parse("2026-01-02T03:04:05.123456789Z").unwrap(),
        admitted: Instant::now(),
        reject_duplicates: false,
        is_managed: &|_, _| true,
    }
}

fn request(pod: &Value) -> Request {
    Request {
        client: std::net::Ipv4Addr::LOCALHOST.into(),
        uid: "request-1".to_owned(),
        operation: Operation::Create,
        namespace: "ns".to_owned(),
        name: pod["metadata"]["name"].as_str().unwrap_or_default().to_owned(),
        dry_run: false,
        object: Some(serde_json::value::to_raw_value(pod).unwrap()),
        old_object: None,
    }
}

fn pod(networks: &str) -> Value {
    json!({"metadata": {"name": "p", "namespace": "ns", "annotations": {names::NETWORKS: networks, "other": "x"}}})
}

fn decide(request: &Request, pool: &mut Pool, context: &Context<'_>) -> Verdict {
    match Review::read(request) {
        Ok(review) => review.admit(pool, context),
        Err(verdict) => verdict,
    }
}

fn admit(pod: &Value, pool: &mut Pool) -> Verdict {
    decide(&request(pod), pool, &context())
}

/// The annotation in a verdict.
fn written(verdict: &Verdict) -> &str {
    assert_eq!(verdict.denied, None);
    let [Change::Replace { path, value }] = verdict.patch.as_slice() else {
        panic!("one replacement: {verdict:?}")
    };
    assert_eq!(path, "/metadata/annotations");
    value[names::NETWORKS].as_str().unwrap()
}

/// Holders of an address, and whether they are pending.
fn holders(pool: &Pool, address: &str) -> Vec<(Claimant, String, bool)> {
    let holders = pool.holders(mac(address));
    holders
        .into_iter()
        .map(|holder| (holder.claimant, holder.key.to_string(), holder.pending))
        .collect()
}

fn named(namespace: &str, name: &str) -> Claimant {
    Claimant::Named(Owner::pod(namespace, name))
}

// kubemacpool#50
#[test]
fn network_without_address_gets_one() {
    let mut pool = pool();
    let verdict = admit(&pod(r#"[{ "name": "ovs-conf"}]"#), &mut pool);
    let expected = r#"[{"name":"ovs-conf","namespace":"ns","mac":"02:00:00:00:00:02","cni-args":null}]"#;
    assert_eq!(written(&verdict), expected);
    assert_eq!(
        verdict.patch,
        [Change::Replace {
            path: "/metadata/annotations".to_owned(),
            value: json!({names::NETWORKS: expected, "other": "x"}),
        }]
    );
    assert_eq!(
        holders(&pool, "02:00:00:00:00:02"),
        [(named("ns", "p"), "ovs-conf".to_owned(), true)]
    );
}

#[test]
fn pod_without_namespace_uses_the_requests() {
    let pod = json!({"metadata": {"name": "p", "annotations": {names::NETWORKS: r#"[{"name":"n"},{"name":"n","namespace":"own"}]"#}}});
    let verdict = admit(&pod, &mut pool());
    assert_eq!(
        written(&verdict),
        concat!(
            r#"[{"name":"n","namespace":"ns","mac":"02:00:00:00:00:02","cni-args":null},"#,
            r#"{"name":"n","namespace":"own","mac":"02:00:00:00:00:03","cni-args":null}]"#
        )
    );
}

// kubemacpool#51
#[test]
fn explicit_addresses_and_other_fields_are_kept() {
    let mut pool = pool();
    let verdict = admit(
        &pod(
            r#"[{"name":"a","ips":["10.10.0.1","fd00::1/64"],"mac":"02-00-00-00-AA-01"},
                {"namespace":"other","name":"b","interface":"net7","mac":"0200.0000.aa02"},
                {"name":"c","ips":["10.10.0.2"]}]"#,
        ),
        &mut pool,
    );
    assert_eq!(
        written(&verdict),
        concat!(
            r#"[{"name":"a","namespace":"ns","ips":["10.10.0.1","fd00::1/64"],"mac":"02-00-00-00-AA-01","cni-args":null},"#,
            r#"{"name":"b","namespace":"other","mac":"0200.0000.aa02","interface":"net7","cni-args":null},"#,
            r#"{"name":"c","namespace":"ns","ips":["10.10.0.2"],"mac":"02:00:00:00:00:02","cni-args":null}]"#
        )
    );
    assert_eq!(holders(&pool, "02:00:00:00:aa:01").len(), 1);
    assert_eq!(holders(&pool, "02:00:00:00:aa:02").len(), 1);
}

#[test]
fn own_explicit_address_is_not_allocated() {
    let verdict = admit(
        &pod(r#"[{"name":"a"},{"name":"b","mac":"02:00:00:00:00:02"}]"#),
        &mut pool(),
    );
    let written = written(&verdict);
    assert!(
        written.starts_with(r#"[{"name":"a","namespace":"ns","mac":"02:00:00:00:00:03""#),
        "{written}"
    );
}

#[test]
fn unchanged_pod_is_not_patched() {
    let mut pool = pool();
    let complete = r#"[{"name":"a","namespace":"ns","mac":"02:00:00:00:aa:01","cni-args":null}]"#;
    assert_eq!(admit(&pod(complete), &mut pool), Verdict::allowed());
    assert_eq!(holders(&pool, "02:00:00:00:aa:01").len(), 1);
}

// kubemacpool#52-53
#[test]
fn accepted_and_refused_annotations() {
    let format = "parsePodNetworkAnnotation: failed to parse pod Network Attachment Selection Annotation JSON format: ";
    let empty = "parsePodNetworkAnnotation: pod annotation not having \"network\" as key, refer Multus README.md for the \
                 usage guide";
    for (annotation, denied) in [
        ("", Some(empty)),
        (r#"[{"name":"a","ips":"10.10.0.1"}]"#, Some(format)),
        (
            r#"[{"name":"a","mac":"02:00:00:00:aa:01"},{"name":"b","mac":1}]"#,
            Some(format),
        ),
        (r#"{"name":"a"}"#, Some(format)),
        (r#"[{"name":"a"}"#, Some(format)),
        (r#"[{"name":"a"},null]"#, Some(format)),
        (r#"["a"]"#, Some(format)),
        (r#""a""#, Some(format)),
        ("net1,ns/net2@eth5", None),
        ("null", None),
        ("  ", None),
        ("[]", None),
        (" [ ] ", None),
    ] {
        let mut pool = pool();
        let verdict = admit(&pod(annotation), &mut pool);
        match denied {
            Some(text) => {
                let denial = verdict
                    .denied
                    .unwrap_or_else(|| panic!("{annotation} is refused"));
                assert_eq!(denial.code, 500, "{annotation}");
                assert!(
                    denial.message.starts_with(text),
                    "{annotation}: {}",
                    denial.message
                );
            }
            None => assert_eq!(verdict, Verdict::allowed(), "{annotation}"),
        }
        assert_eq!(pool.oldest(), None, "{annotation}: nothing is held");
    }
}

// kubemacpool#53
#[test]
fn pods_without_requests_are_unchanged() {
    let mut attached = pod(r#"[{"name":"a"}]"#);
    attached["metadata"]["annotations"][names::NETWORK_STATUS] = json!("");
    for pod in [
        json!({"metadata": {"name": "p", "namespace": "ns"}}),
        json!({"metadata": {"name": "p", "annotations": null}}),
        json!({}),
        attached,
    ] {
        let mut pool = pool();
        assert_eq!(admit(&pod, &mut pool), Verdict::allowed(), "{pod}");
        assert_eq!(pool.oldest(), None);
    }
}

// kubemacpool#54
#[test]
fn duplicate_address_of_pod_is_accepted_with_warning() {
    let mut pool = pool();
    let networks = r#"[{"name":"net","mac":"02:00:00:00:aa:01"}]"#;
    let mut first = pod(networks);
    first["metadata"]["name"] = json!("first");
    assert_eq!(admit(&first, &mut pool).warnings, Vec::<String>::new());
    let verdict = admit(&pod(networks), &mut pool);
    assert_eq!(verdict.denied, None);
    assert_eq!(
        verdict.warnings,
        ["MAC 02:00:00:00:aa:01 is already used by pod/ns/first, network net"]
    );
    assert_eq!(
        holders(&pool, "02:00:00:00:aa:01"),
        [
            (named("ns", "first"), "net".to_owned(), true),
            (named("ns", "p"), "net".to_owned(), true)
        ]
    );
    let mut third = pod(networks);
    third["metadata"]["name"] = json!("third");
    assert_eq!(
        admit(&third, &mut pool).warnings,
        ["MAC 02:00:00:00:aa:01 is already used by pod/ns/first, network net and 1 more"]
    );
}

#[test]
fn warning_covers_only_managed_objects() {
    let mut pool = pool();
    let networks = r#"[{"name":"a","mac":"02:00:00:00:aa:01"},{"name":"b","mac":"02:00:00:00:aa:01"}]"#;
    assert_eq!(admit(&pod(networks), &mut pool).warnings, Vec::<String>::new());
    // Denied by another webhook, and retried.
    assert_eq!(admit(&pod(networks), &mut pool).warnings, Vec::<String>::new());
    pool.store(
        &Owner::machine("hidden", "vm"),
        "uid",
        vec![Holding {
            mac: mac("02:00:00:00:aa:02"),
            key: "nic".into(),
        }],
        None,
    );
    let other = pod(r#"[{"name":"a","mac":"02:00:00:00:aa:02"}]"#);
    let hidden = Context {
        is_managed: &|kind, namespace| (kind, namespace) != (Kind::Machine, "hidden"),
        ..context()
    };
    assert_eq!(
        decide(&request(&other), &mut pool, &hidden).warnings,
        Vec::<String>::new()
    );
    assert_eq!(
        admit(&other, &mut pool).warnings,
        ["MAC 02:00:00:00:aa:02 is already used by vm/hidden/vm, interface nic"]
    );
}

#[test]
fn duplicate_address_is_refused_with_reject_duplicates() {
    let mut pool = pool();
    let mut first = pod(r#"[{"name":"net","mac":"02:00:00:00:aa:01"}]"#);
    first["metadata"]["name"] = json!("first");
    let strict = Context {
        reject_duplicates: true,
        ..context()
    };
    assert_eq!(decide(&request(&first), &mut pool, &strict).denied, None);
    let second =
        pod(r#"[{"name":"free","mac":"02:00:00:00:aa:02"},{"name":"net","mac":"02-00-00-00-AA-01"}]"#);
    let denial = decide(&request(&second), &mut pool, &strict).denied.unwrap();
    assert_eq!(denial.code, 500);
    assert_eq!(
        denial.message,
        "failed to allocate requested mac address: MAC 02:00:00:00:aa:01 is already used by pod/ns/first, network net"
    );
    assert_eq!(holders(&pool, "02:00:00:00:aa:02"), []);
    assert_eq!(
        decide(&request(&first), &mut pool, &strict).denied,
        None,
        "its own"
    );
}

// kubemacpool#55
#[test]
fn pod_of_virtual_machine_is_unchanged() {
    let mut pod = pod(r#"[{"name":"net"}]"#);
    pod["metadata"]["ownerReferences"] = json!([
        {"kind": "ReplicaSet", "name": "rs"},
        {"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "vm-1"}
    ]);
    let request = request(&pod);
    let review = Review::read(&request).unwrap();
    assert_eq!(review.needs(), Some(&Owner::machine("ns", "vm-1")));
    let mut pool = pool();
    let with_machine = Context {
        exists: true,
        ..context()
    };
    assert_eq!(review.admit(&mut pool, &with_machine), Verdict::allowed());
    assert_eq!(pool.oldest(), None);

    let alone = decide(&request, &mut pool, &context());
    assert!(written(&alone).contains(r#""mac":"02:00:00:00:00:02""#));
    assert_eq!(holders(&pool, "02:00:00:00:00:02").len(), 1);
}

#[test]
fn standalone_pod_needs_no_lookup() {
    let mut pod = pod(r#"[{"name":"net"}]"#);
    pod["metadata"]["ownerReferences"] = json!([{"kind": "ReplicaSet", "name": "rs"}]);
    let request = request(&pod);
    assert_eq!(Review::read(&request).unwrap().needs(), None);
}

// kubemacpool#59
#[test]
fn dry_run_pod_reserves_nothing() {
    let mut pool = pool();
    let mut request = request(&pod(r#"[{"name":"net"},{"name":"b","mac":"02:00:00:00:aa:01"}]"#));
    request.dry_run = true;
    let verdict = decide(&request, &mut pool, &context());
    assert!(written(&verdict).contains(r#""mac":"02:00:00:00:00:02""#));
    assert_eq!(holders(&pool, "02:00:00:00:00:02"), []);
    assert_eq!(holders(&pool, "02:00:00:00:aa:01"), []);
}

// kubemacpool#60
#[test]
fn unnamed_pod_is_held_by_request_until_stored() {
    let mut pool = pool();
    let pod =
        json!({"metadata": {"generateName": "rs-", "annotations": {names::NETWORKS: r#"[{"name":"net"}]"#}}});
    admit(&pod, &mut pool);
    let unnamed = Claimant::Unnamed {
        kind: Kind::Pod,
        namespace: "ns".into(),
        request: "request-1".into(),
    };
    assert_eq!(
        holders(&pool, "02:00:00:00:00:02"),
        [(unnamed, "net".to_owned(), true)]
    );
    let owner = Owner::pod("ns", "rs-x7");
    let seen = Holding {
        mac: mac("02:00:00:00:00:02"),
        key: "net".into(),
    };
    pool.store(&owner, "uid", vec![seen], None);
    assert_eq!(
        holders(&pool, "02:00:00:00:00:02"),
        [(named("ns", "rs-x7"), "net".to_owned(), false)]
    );
    pool.remove(&owner);
    assert_eq!(holders(&pool, "02:00:00:00:00:02"), []);
}

#[test]
fn refused_request_reserves_nothing() {
    for (networks, text) in [
        (
            r#"[{"name":"a"},{"name":"b","mac":"xx"}]"#,
            "address xx: invalid MAC address",
        ),
        (r#"[{"name":"a"},{"name":"b"},{"name":"c"}]"#, "the range is full"),
    ] {
        let mut pool = range("02:00:00:00:00:10", "02:00:00:00:00:11", 0);
        let denial = admit(&pod(networks), &mut pool).denied.unwrap();
        assert_eq!((denial.code, denial.message.as_str()), (500, text));
        assert_eq!(pool.oldest(), None);
        assert_eq!(holders(&pool, "02:00:00:00:00:10"), []);
    }
}

// kubemacpool#61
#[test]
fn unknown_keys_are_kept() {
    let verdict = admit(
        &pod(r#"[{"ipam-claim-reference":"claim-1","name":"net"}]"#),
        &mut pool(),
    );
    assert_eq!(
        written(&verdict),
        concat!(
            r#"[{"name":"net","namespace":"ns","mac":"02:00:00:00:00:02","cni-args":null,"#,
            r#""ipam-claim-reference":"claim-1"}]"#
        )
    );
}

#[test]
fn object_that_is_no_pod_is_refused() {
    let mut request = request(&pod("[]"));
    for object in [
        Some(r#""text""#),
        Some(r#"{"metadata": {"annotations": 1}}"#),
        Some("null"),
        None,
    ] {
        request.object =
            object.map(|text| serde_json::value::RawValue::from_string(text.to_owned()).unwrap());
        let denial = decide(&request, &mut pool(), &context()).denied.unwrap();
        assert_eq!(denial.code, 400, "{object:?}: {}", denial.message);
        assert!(!denial.message.is_empty());
    }
    request.operation = Operation::Update;
    assert_eq!(decide(&request, &mut pool(), &context()), Verdict::allowed());
}

/// Parts of annotations, valid and invalid.
fn pieces() -> impl Strategy<Value = String> {
    let pieces = prop::sample::select(vec![
        "[",
        "]",
        "{",
        "}",
        ",",
        ":",
        "null",
        "\"name\"",
        "\"MAC\"",
        "\"mac\"",
        "\"02:00:00:00:00:03\"",
        "\"ips\"",
        "\"cni-args\"",
        "\"portMappings\"",
        "\"bandwidth\"",
        "\"default-route\"",
        "\"x\"",
        "[{",
        "}]",
        " ",
        "1e400",
        "-0.10",
        "\"\\u0000\"",
        "\\",
        "\u{1f980}",
    ]);
    prop::collection::vec(pieces, 0..24).prop_map(|pieces| pieces.concat())
}

/// A list of networks whose keys have values of any type.
fn networks() -> impl Strategy<Value = String> {
    let value = prop::sample::select(vec![
        json!(null),
        json!(""),
        json!("x"),
        json!("02-00-00-00-00-03"),
        json!(1),
        json!(-0.5),
        json!([]),
        json!({}),
        json!(["10.0.0.1"]),
        json!([null]),
        json!([{"hostPort": 1, "y": null}]),
        json!({"b": {"d": 1, "c": []}, "a": 2}),
    ]);
    let key = prop::sample::select(vec![
        "name",
        "Name",
        "namespace",
        "ips",
        "mac",
        "infiniband-guid",
        "interface",
        "interfaceRequest",
        "portMappings",
        "bandwidth",
        "deviceID",
        "cni-args",
        "default-route",
        "ipam-claim-reference",
        "x",
    ]);
    let element = prop::collection::hash_map(key, value, 0..6);
    prop::collection::vec(element, 0..4).prop_map(|elements| serde_json::to_string(&elements).unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_annotation_is_answered(networks in prop_oneof![pieces(), networks(), ".{0,40}"]) {
        let mut pool = pool();
        let verdict = admit(&pod(&networks), &mut pool);
        if let Some(denied) = &verdict.denied {
            assert!(denied.code == 500 && !denied.message.is_empty());
            assert_eq!(pool.oldest(), None);
        } else if !verdict.patch.is_empty() {
            // The patched annotation is complete: a second review changes nothing.
            let again = admit(&pod(written(&verdict)), &mut pool);
            assert_eq!(again, Verdict::allowed());
        }
        let _ = annotation::addresses(&networks);
    }

    #[test]
    fn any_pod_is_answered(text in pieces()) {
        for object in [text.clone(), format!(r#"{{"metadata":{text}}}"#), format!(r#"{{"metadata":{{"annotations":{text}}}}}"#)] {
            let Ok(object) = serde_json::value::RawValue::from_string(object) else { continue };
            let mut request = request(&pod("[]"));
            request.object = Some(object);
            decide(&request, &mut pool(), &context());
        }
    }
}
