//! Any content of a configuration resource or of a record: the code never panics, and an error names the field. A
//! failure prints its input and the seed.

use proptest::{
    collection::vec,
    prelude::*,
    test_runner::{Config, RngAlgorithm, RngSeed, TestRunner},
};

use super::*;
use crate::{configuration, general, record};

/// Keys with a meaning somewhere, and some without.
const KEYS: [&str; 47] = [
    "multus",
    "namespaceIsolation",
    "globalNamespaces",
    "multusDynamicNetworks",
    "hostCRISocketPath",
    "linuxBridge",
    "preserveDefaultVlan",
    "dhcp",
    "ovs",
    "kubeMacPool",
    "rangeStart",
    "rangeEnd",
    "imagePullPolicy",
    "nmstate",
    "kubeSecondaryDNS",
    "domain",
    "nameServerIP",
    "ttl",
    "allowedPrefixes",
    "singleProcess",
    "followSettings",
    "macvtap",
    "devicePluginConfig",
    "kubevirtIpamController",
    "defaultNetworkNADNamespace",
    "selfSignConfiguration",
    "caRotateInterval",
    "caOverlapInterval",
    "certRotateInterval",
    "certOverlapInterval",
    "placementConfiguration",
    "infra",
    "workloads",
    "nodeSelector",
    "affinity",
    "nodeAffinity",
    "tolerations",
    "tolerationSeconds",
    "tlsSecurityProfile",
    "type",
    "custom",
    "ciphers",
    "minTLSVersion",
    "sriov",
    "group",
    "kind",
    "name",
];

/// Texts at the edges of the accepted syntax.
const TEXTS: [&str; 30] = [
    "",
    " ",
    "Always",
    "IfNotPresent",
    "always",
    "02:00:00:00:00:00",
    "02-00-00-FF-FF-FF",
    "0200.0000.ffff",
    "01:00:00:00:00:00",
    "ff:ff:ff:ff:ff:ff",
    "02:00:00:00:00",
    "00:00:00:00:00:00:00:00",
    "48h0m0s",
    "0",
    "-1h",
    "1h30m",
    "9223372036854775807ns",
    "999999999999999999999999h",
    ".5h",
    "1e3",
    "/run/crio/crio.sock",
    "/run/containerd/containerd.sock",
    "Old",
    "Intermediate",
    "Modern",
    "Custom",
    "VersionTLS12",
    "TLS_AES_128_GCM_SHA256",
    "ÄÖ\u{0}\u{202e}🦀",
    "{\"multus\":{}}",
];

fn text() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => proptest::sample::select(&TEXTS[..]).prop_map(str::to_owned),
        1 => any::<String>(),
    ]
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        9 => proptest::sample::select(&KEYS[..]).prop_map(str::to_owned),
        1 => any::<String>(),
    ]
}

/// Any JSON, usually with keys that have a meaning.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        1 => Just(Value::Null),
        1 => any::<bool>().prop_map(Value::from),
        1 => any::<i64>().prop_map(Value::from),
        1 => any::<f64>().prop_map(Value::from),
        4 => text().prop_map(Value::from),
        2 => Just(json!({})),
    ];
    leaf.prop_recursive(4, 40, 8, |inner| {
        prop_oneof![
            1 => vec(inner.clone(), 0..4).prop_map(Value::from),
            4 => vec((key(), inner), 0..8).prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

/// A specification that can be parsed, with values that may be invalid.
fn any_spec() -> impl Strategy<Value = Value> {
    let maybe = |value: BoxedStrategy<Value>| proptest::option::weighted(0.6, value);
    let texts = |keys: &'static [&'static str]| {
        vec(proptest::option::of(text()), keys.len()).prop_map(move |values| {
            let members = keys.iter().zip(values);
            let set = members.filter_map(|(key, value)| Some(((*key).to_owned(), json!(value?))));
            Value::Object(set.collect())
        })
    };
    let placement = || {
        (text(), text(), any::<i64>(), any::<bool>()).prop_map(|(key, value, seconds, empty)| {
            if empty {
                return json!({});
            }
            json!({
                "nodeSelector": { &key: &value },
                "tolerations": [{ "key": key, "value": value, "tolerationSeconds": seconds }],
                "affinity": { "nodeAffinity": {} },
            })
        })
    };
    let tls = (
        texts(&["type"]),
        proptest::option::of((text(), vec(text(), 0..5))),
    )
        .prop_map(|(mut tls, custom)| {
            if let Some((version, ciphers)) = custom {
                tls["custom"] = json!({ "minTLSVersion": version, "ciphers": ciphers });
            }
            tls
        });
    let members: Vec<(&'static str, BoxedStrategy<Value>)> = vec![
        (
            "multus",
            (any::<bool>(), vec(text(), 0..3))
                .prop_map(
                    |(isolated, names)| json!({ "namespaceIsolation": isolated, "globalNamespaces": names }),
                )
                .boxed(),
        ),
        ("multusDynamicNetworks", texts(&["hostCRISocketPath"]).boxed()),
        (
            "linuxBridge",
            (any::<bool>(), any::<bool>())
                .prop_map(|(keep, dhcp)| json!({ "preserveDefaultVlan": keep, "dhcp": dhcp }))
                .boxed(),
        ),
        ("ovs", Just(json!({})).boxed()),
        ("kubeMacPool", texts(&["rangeStart", "rangeEnd"]).boxed()),
        ("imagePullPolicy", text().prop_map(Value::from).boxed()),
        ("nmstate", Just(json!({})).boxed()),
        (
            "kubeSecondaryDNS",
            (
                texts(&["domain", "nameServerIP"]),
                proptest::option::of(any::<u16>()),
            )
                .prop_map(|(mut dns, port)| {
                    if let Some(port) = port {
                        dns["service"] = json!({ "type": "NodePort", "nodePort": port });
                    }
                    dns
                })
                .boxed(),
        ),
        ("macvtap", texts(&["devicePluginConfig"]).boxed()),
        (
            "kubevirtIpamController",
            texts(&["defaultNetworkNADNamespace"]).boxed(),
        ),
        (
            "selfSignConfiguration",
            texts(&[
                "caRotateInterval",
                "caOverlapInterval",
                "certRotateInterval",
                "certOverlapInterval",
            ])
            .boxed(),
        ),
        (
            "placementConfiguration",
            (placement(), placement())
                .prop_map(|(infra, workloads)| json!({ "infra": infra, "workloads": workloads }))
                .boxed(),
        ),
        ("tlsSecurityProfile", tls.boxed()),
    ];
    let (keys, values): (Vec<_>, Vec<_>) = members
        .into_iter()
        .map(|(key, value)| (key, maybe(value)))
        .unzip();
    values.prop_map(move |values| {
        let members = keys.iter().zip(values);
        let set = members.filter_map(|(key, value)| Some(((*key).to_owned(), value?)));
        Value::Object(set.collect())
    })
}

/// A record. Each key has a text, which may be JSON.
fn any_record() -> impl Strategy<Value = Value> {
    let content = || {
        prop_oneof![
            2 => any_spec().prop_map(|spec| json!(spec.to_string())),
            2 => any_json().prop_map(|json| json!(json.to_string())),
            1 => vec(any_json(), 0..4).prop_map(|list| json!(Value::from(list).to_string())),
            1 => text().prop_map(Value::from),
            1 => any_json(),
        ]
    };
    prop_oneof![
        4 => (content(), content()).prop_map(|(applied, inventory)| {
            json!({ "kind": "ConfigMap", "data": { "applied": applied, "inventory": inventory } })
        }),
        1 => any_json().prop_map(|data| json!({ "data": data })),
    ]
}

/// The path of a specification through the operator, on one of 16 platforms.
fn go(spec: &NetworkAddonsConfigSpec, previous: Option<&NetworkAddonsConfigSpec>, platform: u8) {
    let bit = |bit: u8| platform & (1 << bit) != 0;
    let setting = Setting {
        native: bit(0),
        scc: bit(1),
        openshift4: bit(2),
        openshift_network: bit(2),
        monitoring: bit(3),
        ..Setting::default()
    };
    setting.with(json!({}), |context| {
        let errors = configuration::validate(spec, context.cluster);
        assert!(errors.iter().all(|error| !error.is_empty()));
        let complete = configuration::complete(spec, previous, context.cluster.platform, [1, 2]);
        if let Some(previous) = previous {
            let previous =
                configuration::complete(previous, Some(previous), context.cluster.platform, [1, 2]);
            let _ = general::change_safe(&previous, &complete);
        }
        let context = Context {
            spec: &complete,
            ..*context
        };
        let _ = (leftovers(&context), legacy(&context));
        match render(&context, &stamps::stamp()) {
            Ok(groups) => {
                let recorded = inventory(&groups);
                let read = kube_kit::inventory::Inventory::parse(&recorded.to_json());
                assert_eq!(read.ok(), Some(recorded));
                let _ = containers(&groups);
                for group in &groups {
                    let _ = workloads(group);
                }
            }
            Err(error) => assert!(!errors.is_empty(), "{error}"),
        }
        // The written record can be read again.
        let record = record::render(&complete, &kube_kit::inventory::Inventory::default(), "addons");
        let back = record::read(&record.expect("a record").into_value());
        assert_eq!(back.expect("what was written").spec.as_ref(), Some(&complete));
    });
}

fn run<S: Strategy>(seeded: u64, cases: u32, strategy: S, test: impl Fn(S::Value)) {
    let seed = RngSeed::Fixed(seeded);
    println!("seed {seeded}");
    let config = Config {
        cases,
        rng_seed: seed,
        rng_algorithm: RngAlgorithm::ChaCha,
        failure_persistence: None,
        ..Config::default()
    };
    let outcome = TestRunner::new(config).run(&strategy, |value| {
        test(value);
        Ok(())
    });
    if let Err(error) = outcome {
        panic!("seed {seeded}: {error}");
    }
}

/// Different in each run; a failure prints it.
fn seed() -> u64 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    now.expect("a time").subsec_nanos().into()
}

#[test]
fn any_specification_is_rendered_or_reported() {
    run(
        seed(),
        100,
        (any_spec(), proptest::option::of(any_spec()), 0..16_u8),
        |(spec, previous, platform)| {
            let spec = configuration::read(spec).expect("a specification");
            let previous = previous.map(|previous| configuration::read(previous).expect("a specification"));
            go(&spec, previous.as_ref(), platform);
        },
    );
}

#[test]
fn read_of_any_json_succeeds_or_names_field() {
    run(seed(), 400, any_json(), |json| {
        match configuration::read(json.clone()) {
            Ok(spec) => drop(configuration::validate(&spec, &Cluster::default())),
            Err(error) => {
                let text = error.to_string();
                let place = text.split(':').next().unwrap_or_default().to_owned();
                let first = place.split(['.', '[']).next().unwrap_or_default();
                assert!(
                    place == "spec" || json.get(first).is_some(),
                    "{text} names no key of {json}"
                );
            }
        }
    });
}

#[test]
fn read_of_any_record_succeeds_or_names_key() {
    run(seed(), 300, (any_record(), any_spec()), |(record, spec)| {
        let spec = configuration::read(spec).expect("a specification");
        match record::read(&record) {
            Ok(applied) => {
                crate::resource::read_status(record.clone());
                let complete =
                    configuration::complete(&spec, applied.spec.as_ref(), Platform::default(), [1, 2]);
                if let Some(previous) = &applied.spec {
                    let _ = general::change_safe(previous, &complete);
                }
            }
            Err(error) => assert!(error.to_string().starts_with("applied: "), "{error}"),
        }
    });
}

// Inputs that the tests above found, or that they seldom generate.
#[test]
fn errors_name_the_key() {
    for (json, start) in [
        (json!({ "multus": 7 }), "multus: "),
        (
            json!({ "kubeMacPool": { "rangeStart": 1 } }),
            "kubeMacPool.rangeStart: ",
        ),
        (
            json!({ "tlsSecurityProfile": { "custom": { "ciphers": [1] } } }),
            "tlsSecurityProfile.custom.ciphers[0]: ",
        ),
        (json!([]), "spec: "),
    ] {
        let error = configuration::read(json).expect_err("an error").to_string();
        assert!(error.starts_with(start), "{error}");
    }
    let record = json!({ "data": { "applied": r#"{"macvtap":{"devicePluginConfig":[]}}"# } });
    let error = record::read(&record).expect_err("an error").to_string();
    assert!(
        error.starts_with("applied: macvtap.devicePluginConfig: "),
        "{error}"
    );
}
