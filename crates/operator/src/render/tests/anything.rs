//! Whatever is stored, in the configuration resource and of what was applied before, leads to objects or to an error.

use proptest::prelude::*;

use super::*;
use crate::{applied, resource};

const COMPONENTS: [&str; 6] = [
    "multus",
    "multusDynamicNetworks",
    "linuxBridge",
    "ovs",
    "nmstate",
    "kubevirtIpamController",
];

/// Words that mean something somewhere, so that not everything fails at the first look.
const WORDS: [&str; 40] = [
    "multus",
    "multusDynamicNetworks",
    "hostCRISocketPath",
    "linuxBridge",
    "ovs",
    "kubeMacPool",
    "rangeStart",
    "rangeEnd",
    "imagePullPolicy",
    "nmstate",
    "kubeSecondaryDNS",
    "domain",
    "nameServerIP",
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
    "tolerations",
    "nodeAffinity",
    "tlsSecurityProfile",
    "type",
    "Custom",
    "custom",
    "ciphers",
    "minTLSVersion",
    "Always",
    "02:00:00:00:00:00",
    "1h",
    "VersionTLS12",
    "-9223372036854775808h",
];

fn word() -> impl Strategy<Value = String> {
    prop_oneof![
        4 => prop::sample::select(&WORDS[..]).prop_map(str::to_owned),
        1 => any::<String>(),
    ]
}

/// Any JSON.
fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        word().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 48, 6, |inner| {
        prop_oneof![
            3 => prop::collection::btree_map(word(), inner.clone(), 0..6)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
            1 => prop::collection::vec(inner, 0..4).prop_map(Value::from),
        ]
    })
}

/// A specification whose members have their types, with any content.
fn specification() -> impl Strategy<Value = Value> {
    let text = || prop::option::of(word());
    let components = prop::sample::subsequence(&COMPONENTS[..], 0..=COMPONENTS.len());
    (components, text(), text(), text(), text(), json()).prop_map(
        |(components, policy, start, end, interval, placement)| {
            let mut spec = json!({});
            for name in components {
                spec[name] = json!({});
            }
            spec["imagePullPolicy"] = json!(policy);
            spec["kubeMacPool"] = json!({ "rangeStart": start, "rangeEnd": end });
            spec["macvtap"] = json!({ "devicePluginConfig": start });
            spec["kubeSecondaryDNS"] = json!({ "domain": end, "nameServerIP": policy });
            spec["selfSignConfiguration"] = json!({
                "caRotateInterval": interval, "caOverlapInterval": "1h", "certRotateInterval": "1h",
                "certOverlapInterval": interval,
            });
            spec["placementConfiguration"] = json!({ "workloads": { "affinity": placement } });
            spec["tlsSecurityProfile"] = json!({ "type": policy, "custom": { "ciphers": [start, end] } });
            spec
        },
    )
}

fn stored() -> impl Strategy<Value = Value> {
    prop_oneof![json(), specification()]
}

/// All the way from what is stored to the objects.
fn go(spec: &Value, record: &Value, setting: Setting) {
    let previous = applied::read(record).ok().and_then(|applied| applied.spec);
    resource::read_status(record.clone());
    let Ok(read) = configuration::read(spec.clone()) else {
        return;
    };
    setting.with(json!({}), |context| {
        let valid = configuration::validate(&read, context.cluster).is_empty();
        let spec = configuration::complete(&read, previous.as_ref(), [1, 2]);
        if let Some(previous) = &previous {
            // What it decides does not matter here.
            let _ = configuration::change_safe(previous, &spec);
        }
        let context = Context {
            spec: &spec,
            ..*context
        };
        // What is not valid is rendered only to know what to remove.
        for (component, group) in each(&context, &stamps::stamp()) {
            assert!(!valid || group.is_ok(), "{component}: {:?}", group.err());
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_that_is_stored_makes_the_operator_panic(
        spec in stored(),
        before in stored(),
        other in json(),
        native in any::<bool>(),
        openshift4 in any::<bool>(),
    ) {
        let setting = Setting { native, openshift4, scc: openshift4, monitoring: native, ..Setting::default() };
        for record in [
            json!({ "data": { "applied": before.to_string(), "inventory": other.to_string() } }),
            json!({ "data": other }),
            other,
        ] {
            go(&spec, &record, setting);
        }
    }
}
