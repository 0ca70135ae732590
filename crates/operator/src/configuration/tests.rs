//! Validation, defaults and change safety, case by case from operator §16.

use serde_json::json;

use super::*;
use crate::{
    cluster_facts::{OpenShiftNetwork, Platform},
    layout::Layout,
    messages,
};

fn spec(value: Value) -> NetworkAddonsConfigSpec {
    read(value).expect("a specification")
}

fn errors(value: Value) -> Vec<String> {
    validate(&spec(value), &Cluster::default())
}

fn on_openshift(multus_disabled: bool) -> Cluster {
    let platform = Platform {
        openshift4: true,
        scc: true,
        monitoring: true,
        ..Platform::default()
    };
    Cluster {
        platform,
        openshift_network: Some(OpenShiftNetwork { multus_disabled }),
    }
}

fn completed(value: Value, previous: Option<Value>) -> Value {
    let previous = previous.map(spec);
    let complete = complete(&spec(value), previous.as_ref(), Platform::default(), [0xab, 0xcd]);
    serde_json::to_value(complete).expect("JSON")
}

#[test]
fn validate_accepts_empty_specification() {
    assert_eq!(errors(json!({})), Vec::<String>::new());
    assert_eq!(errors(json!(null)), Vec::<String>::new());
}

#[test]
fn validate_accepts_three_pull_policies() {
    assert_eq!(
        errors(json!({ "imagePullPolicy": "BAD" })),
        ["requested imagePullPolicy 'BAD' is not valid"]
    );
    for policy in ["", "Always", "Never", "IfNotPresent"] {
        assert_eq!(errors(json!({ "imagePullPolicy": policy })), Vec::<String>::new());
    }
}

// operator#38
#[test]
fn validate_reports_all_errors_in_order() {
    let errors = errors(json!({
        "macvtap": {},
        "multusDynamicNetworks": {},
        "selfSignConfiguration": { "caRotateInterval": "1h", "certRotateInterval": "1h" },
        "kubeMacPool": { "rangeStart": "02:00:00:00:00:00" },
        "imagePullPolicy": "BAD",
        "tlsSecurityProfile": {},
    }));
    assert_eq!(
        messages::failed_to_validate(&errors),
        "failed to validate NetworkConfig.Spec: invalid configuration:\n\
         both or none of the KubeMacPool ranges needs to be configured\n\
         requested imagePullPolicy 'BAD' is not valid\n\
         failed to validate selfSignConfiguration: caOverlapInterval is missing\n\
         failed to validate selfSignConfiguration: certOverlapInterval is missing\n\
         the `multus` configuration is required\n\
         failed to validate tlsSecurityProfile: type is missing"
    );
}

// The rules are tested with the range itself; this test proves that they are applied.
#[test]
fn validate_checks_range_of_pool() {
    let pool = json!({ "rangeStart": "02:00:00:ff:00:00", "rangeEnd": "02:00:00:00:00:00" });
    assert_eq!(
        errors(json!({ "kubeMacPool": pool })),
        [
            "failed to set mac address range: invalid range. Range end is lesser than or equal to its start. start: \
          02:00:00:ff:00:00 end: 02:00:00:00:00:00"
        ]
    );
    assert_eq!(errors(json!({ "kubeMacPool": {} })), Vec::<String>::new());
}

// operands#36, the text
#[test]
fn validate_refuses_global_namespaces_that_cannot_exist() {
    let check = |names: Value| errors(json!({ "multus": { "globalNamespaces": names } }));
    assert_eq!(check(json!(["default", "a-1"])), Vec::<String>::new());
    assert_eq!(
        check(json!(["a,b", "", "default"])),
        [
            "multus: globalNamespaces: \"a,b\" is not the name of a namespace",
            "multus: globalNamespaces: \"\" is not the name of a namespace",
        ]
    );
}

// operands#35
#[test]
fn validate_checks_settings_of_secondary_dns() {
    let check = |settings: Value| errors(json!({ "kubeSecondaryDNS": settings }));
    for settings in [
        json!({}),
        json!({ "ttl": 0 }),
        json!({ "ttl": 86_400, "allowedPrefixes": ["10.0.0.0/8", " fd00::/8"] }),
    ] {
        assert_eq!(check(settings), Vec::<String>::new());
    }
    assert_eq!(
        check(json!({ "ttl": 86_401, "allowedPrefixes": ["10.0.0.0/8", "10.0.0.1", ""] })),
        [
            "kubeSecondaryDNS: ttl 86401 is not a number of seconds from 0 to 86400",
            "kubeSecondaryDNS: allowedPrefixes: \"10.0.0.1\" is not a prefix such as 10.0.0.0/8",
            "kubeSecondaryDNS: allowedPrefixes: \"\" is not a prefix such as 10.0.0.0/8",
        ]
    );
    assert_eq!(check(json!({ "ttl": -1 })).len(), 1);
}

// operator#42
#[test]
fn validate_checks_bounds_of_intervals() {
    let check = |ca_rotate: &str, ca_overlap: &str, cert_rotate: &str, cert_overlap: &str| {
        errors(json!({ "selfSignConfiguration": {
            "caRotateInterval": ca_rotate, "caOverlapInterval": ca_overlap,
            "certRotateInterval": cert_rotate, "certOverlapInterval": cert_overlap,
        } }))
    };
    let prefix = "failed to validate selfSignConfiguration: ";
    for (intervals, expected) in [
        (["1h", "1h", "1h", "1h"], vec![]),
        (["", "1h", "1h", "1h"], vec!["caRotateInterval is missing"]),
        (["1h", "", "1h", "1h"], vec!["caOverlapInterval is missing"]),
        (["1h", "1h", "", "1h"], vec!["certRotateInterval is missing"]),
        (["1h", "1h", "1h", ""], vec!["certOverlapInterval is missing"]),
        (
            ["asdf", "1h", "1h", "1h"],
            vec!["error parsing caRotateInterval: time: invalid duration \"asdf\""],
        ),
        (
            ["1h", "1h", "1h", "1"],
            vec!["error parsing certOverlapInterval: time: missing unit in duration \"1\""],
        ),
        (
            ["0", "1h", "1h", "1h"],
            vec!["caRotateInterval duration has to be > 0"],
        ),
        (
            ["1h", "-1h", "1h", "1h"],
            vec!["caOverlapInterval duration has to be > 0"],
        ),
        (
            ["1h", "2h", "1h", "1h"],
            vec!["caOverlapInterval(2h0m0s) has to be <= caRotateInterval(1h0m0s)"],
        ),
        (
            ["1h", "1h", "2h", "1h"],
            vec!["certRotateInterval(2h0m0s) has to be <= caRotateInterval(1h0m0s)"],
        ),
        (
            ["1h", "1h", "1h", "2h"],
            vec!["certOverlapInterval(2h0m0s) has to be <= certRotateInterval(1h0m0s)"],
        ),
    ] {
        let expected: Vec<_> = expected
            .into_iter()
            .map(|text| format!("{prefix}{text}"))
            .collect();
        let [a, b, c, d] = intervals;
        assert_eq!(check(a, b, c, d), expected, "{intervals:?}");
    }
}

// operator#44
#[test]
fn validate_refuses_dynamic_networks_without_multus_or_on_openshift() {
    let alone = json!({ "multusDynamicNetworks": {} });
    let both = json!({ "multus": {}, "multusDynamicNetworks": {} });
    assert_eq!(errors(alone), ["the `multus` configuration is required"]);
    assert_eq!(errors(both.clone()), Vec::<String>::new());
    let unsupported = "`multusDynamicNetworks` configuration is not supported on Openshift yet";
    assert_eq!(validate(&spec(both), &on_openshift(false)), [unsupported]);
    for cluster in [Cluster::default(), on_openshift(false)] {
        assert_eq!(validate(&spec(json!({})), &cluster), Vec::<String>::new());
    }
}

// operator#45
#[test]
fn validate_accepts_four_runtime_sockets() {
    let with =
        |path: &str| errors(json!({ "multus": {}, "multusDynamicNetworks": { "hostCRISocketPath": path } }));
    for path in [
        "/run/crio/crio.sock",
        "/run/containerd/containerd.sock",
        "/run/k3s/containerd/containerd.sock",
        "/var/snap/microk8s/common/run/containerd.sock",
    ] {
        assert_eq!(with(path), Vec::<String>::new());
    }
    for path in [
        "Lorem ipsum",
        "/etc/somewhere/some.conf",
        "/run/unknown-cri/unknown-cri.sock",
    ] {
        assert_eq!(
            with(path),
            [
                "`hostCRISocketPath` must be one of: /run/crio/crio.sock, /run/containerd/containerd.sock, \
              /run/k3s/containerd/containerd.sock, /var/snap/microk8s/common/run/containerd.sock"
            ]
        );
    }
    let path = |spec: Value, previous| {
        completed(spec, previous)["multusDynamicNetworks"]["hostCRISocketPath"].clone()
    };
    let before =
        json!({ "multusDynamicNetworks": { "hostCRISocketPath": "/run/containerd/containerd.sock" } });
    assert_eq!(
        path(json!({ "multusDynamicNetworks": {} }), None),
        "/run/crio/crio.sock"
    );
    assert_eq!(
        path(json!({ "multusDynamicNetworks": {} }), Some(before.clone())),
        "/run/containerd/containerd.sock"
    );
    let explicit =
        json!({ "multusDynamicNetworks": { "hostCRISocketPath": "/run/k3s/containerd/containerd.sock" } });
    assert_eq!(
        path(explicit, Some(before)),
        "/run/k3s/containerd/containerd.sock"
    );
}

#[test]
fn runtime_socket_defaults_to_detected_one_without_previous_specification() {
    let platform = Platform {
        layout: Layout {
            cri_socket: Some("/run/containerd/containerd.sock"),
            ..Layout::default()
        },
        ..Platform::default()
    };
    let path = |settings: Value, previous: Option<Value>| {
        let previous = previous.map(|settings| spec(json!({ "multusDynamicNetworks": settings })));
        let spec = spec(json!({ "multusDynamicNetworks": settings }));
        let complete = complete(&spec, previous.as_ref(), platform, [0, 0]);
        complete
            .multus_dynamic_networks
            .expect("the component")
            .host_cri_socket_path
    };
    let crio = json!({ "hostCRISocketPath": "/run/crio/crio.sock" });
    assert_eq!(path(json!({}), None), "/run/containerd/containerd.sock");
    assert_eq!(
        path(json!({}), Some(json!({}))),
        "/run/containerd/containerd.sock"
    );
    assert_eq!(path(json!({}), Some(crio.clone())), "/run/crio/crio.sock");
    assert_eq!(path(crio, None), "/run/crio/crio.sock");
    let other = json!({ "hostCRISocketPath": "/etc/passwd" });
    assert_eq!(path(json!({}), Some(other)), "/run/containerd/containerd.sock");
}

// operator#46
#[test]
fn macvtap_configuration_is_kept() {
    let name = |spec: Value, previous| completed(spec, previous)["macvtap"]["devicePluginConfig"].clone();
    let before = json!({ "macvtap": { "devicePluginConfig": "custom" } });
    assert_eq!(
        name(json!({ "macvtap": {} }), None),
        "macvtap-deviceplugin-config"
    );
    assert_eq!(name(json!({ "macvtap": {} }), Some(before.clone())), "custom");
    assert_eq!(
        name(
            json!({ "macvtap": { "devicePluginConfig": "other" } }),
            Some(before)
        ),
        "other"
    );
}

#[test]
fn validate_refuses_macvtap_on_openshift() {
    let macvtap = spec(json!({ "macvtap": {} }));
    assert_eq!(validate(&macvtap, &Cluster::default()), Vec::<String>::new());
    assert_eq!(
        validate(&macvtap, &on_openshift(false)),
        ["`macvtap` has been requested, but is not supported on OpenShift"]
    );
}

// operator#47, the validation
#[test]
fn validate_refuses_multus_disabled_by_openshift() {
    let multus = spec(json!({ "multus": {} }));
    assert_eq!(
        validate(&multus, &on_openshift(true)),
        ["multus has been requested, but is disabled on OpenShift Cluster Network Operator"]
    );
    assert_eq!(validate(&multus, &on_openshift(false)), Vec::<String>::new());
    assert_eq!(
        validate(&spec(json!({})), &on_openshift(true)),
        Vec::<String>::new()
    );
}

// operator#36
#[test]
fn random_range_is_kept_and_explicit_one_overrides_it() {
    let random = json!({ "rangeStart": "02:ab:cd:00:00:00", "rangeEnd": "02:ab:cd:ff:ff:ff" });
    let before = json!({ "rangeStart": "02:01:02:00:00:00", "rangeEnd": "02:01:02:ff:ff:ff" });
    let explicit = json!({ "rangeStart": "02:00:00:00:00:00", "rangeEnd": "02:00:00:00:00:0f" });
    let pool = |pool: &Value, previous: Option<&Value>| {
        completed(
            json!({ "kubeMacPool": pool }),
            previous.map(|pool| json!({ "kubeMacPool": pool })),
        )["kubeMacPool"]
            .clone()
    };
    assert_eq!(pool(&json!({}), None), random);
    assert_eq!(pool(&json!({}), Some(&before)), before);
    assert_eq!(pool(&explicit, Some(&before)), explicit);
    // Earlier operators accepted these.
    for [start, end] in [
        ["02:ff:00:00:00:00", "02:00:00:00:00:01"],
        ["02:00:00:00:00:00:00:00", "02:00:00:00:00:00:00:01"],
        ["02:00:00:00:00:00", ""],
        ["", "02:00:00:00:00:00"],
    ] {
        let invalid = json!({ "rangeStart": start, "rangeEnd": end });
        assert_eq!(pool(&json!({}), Some(&invalid)), random, "{invalid}");
    }
    // A new range after the component was removed and added again.
    assert_eq!(
        completed(json!({ "kubeMacPool": {} }), Some(json!({ "multus": {} })))["kubeMacPool"],
        random
    );
    assert_eq!(
        completed(json!({}), Some(json!({ "kubeMacPool": before }))).get("kubeMacPool"),
        None
    );
}

// operator#41, the rules
#[test]
fn pull_policy_is_kept_and_immutable() {
    let policy = |spec: Value, previous| completed(spec, previous)["imagePullPolicy"].clone();
    let always = json!({ "imagePullPolicy": "Always" });
    assert_eq!(policy(json!({}), None), "IfNotPresent");
    assert_eq!(policy(json!({}), Some(always.clone())), "Always");
    assert_eq!(policy(json!({ "imagePullPolicy": "Never" }), None), "Never");

    let (always, never) = (spec(always), spec(json!({ "imagePullPolicy": "IfNotPresent" })));
    assert_eq!(
        messages::unsafe_change(&general::change_safe(&always, &never)),
        "not applying unsafe change: invalid configuration:\n\
         cannot modify ImagePullPolicy configuration once components were deployed"
    );
    assert_eq!(general::change_safe(&always, &always), Vec::<String>::new());
    assert_eq!(
        general::change_safe(&spec(json!({})), &always),
        Vec::<String>::new()
    );
}

#[test]
fn change_safe_refuses_only_change_of_pull_policy() {
    let before = json!({
        "imagePullPolicy": "Always", "multus": {}, "macvtap": { "devicePluginConfig": "a" },
        "kubeMacPool": { "rangeStart": "02:01:02:00:00:00", "rangeEnd": "02:01:02:ff:ff:ff" },
        "placementConfiguration": { "infra": {} }, "tlsSecurityProfile": { "type": "Old" },
    });
    let after = json!({
        "imagePullPolicy": "Always",
        "kubeMacPool": { "rangeStart": "02:00:00:00:00:00", "rangeEnd": "02:00:00:00:00:0f" },
    });
    assert_eq!(
        general::change_safe(&spec(before), &spec(after)),
        Vec::<String>::new()
    );
}

// operator#43
#[test]
fn complete_intervals_are_kept() {
    let intervals = |spec: Value, previous| completed(spec, previous)["selfSignConfiguration"].clone();
    let default = json!({
        "caRotateInterval": "48h0m0s", "caOverlapInterval": "24h0m0s",
        "certRotateInterval": "24h0m0s", "certOverlapInterval": "12h0m0s",
    });
    let before = json!({
        "caRotateInterval": "4h", "caOverlapInterval": "2h", "certRotateInterval": "2h", "certOverlapInterval": "1h",
    });
    assert_eq!(intervals(json!({}), None), default);
    assert_eq!(
        intervals(json!({}), Some(json!({ "selfSignConfiguration": before }))),
        before
    );
    let incomplete = json!({ "selfSignConfiguration": { "caRotateInterval": "4h" } });
    assert_eq!(intervals(json!({}), Some(incomplete)), default);
    // Earlier operators accepted negative intervals.
    for (field, value) in [
        ("caRotateInterval", "-1h"),
        ("certOverlapInterval", "-1h"),
        ("certRotateInterval", "5h"),
    ] {
        let mut invalid = before.clone();
        invalid[field] = json!(value);
        let invalid = json!({ "selfSignConfiguration": invalid });
        assert_eq!(intervals(json!({}), Some(invalid)), default, "{field}");
    }
    assert_eq!(
        intervals(json!({ "selfSignConfiguration": before }), None),
        before
    );
}

#[test]
fn placement_replaces_default_and_empty_one_means_no_constraint() {
    let placement = |value: Value| {
        completed(json!({ "placementConfiguration": value }), None)["placementConfiguration"].clone()
    };
    let infra = json!({ "affinity": { "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [
            { "weight": 10, "preference": { "matchExpressions": [
                { "key": "node-role.kubernetes.io/control-plane", "operator": "Exists" },
            ] } },
            { "weight": 1, "preference": { "matchExpressions": [
                { "key": "node-role.kubernetes.io/master", "operator": "Exists" },
            ] } },
        ],
    } } });
    let workloads = json!({
        "nodeSelector": { "kubernetes.io/os": "linux" },
        "affinity": {},
        "tolerations": [
            { "key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule" },
        ],
    });
    assert_eq!(
        placement(json!(null)),
        json!({ "infra": infra, "workloads": workloads })
    );
    assert_eq!(
        placement(json!({ "infra": {} })),
        json!({ "infra": { "affinity": {} }, "workloads": workloads })
    );
    let node = json!({ "nodeSelector": { "kubernetes.io/hostname": "node01" }, "affinity": {} });
    assert_eq!(
        placement(json!({ "workloads": node })),
        json!({ "infra": infra, "workloads": node })
    );
    // Defaults come from the running operator, not from the applied specification.
    let before = json!({ "placementConfiguration": { "infra": node, "workloads": node } });
    assert_eq!(
        completed(json!({}), Some(before))["placementConfiguration"]["workloads"],
        workloads
    );
}

#[test]
fn change_safe_accepts_specification_of_first_generation() {
    let before = spec(json!({ "multus": {}, "imagePullPolicy": "IfNotPresent" }));
    let now = complete(&spec(json!({})), Some(&before), Platform::default(), [0, 0]);
    assert_eq!(general::change_safe(&before, &now), Vec::<String>::new());
    assert_eq!(now.multus, None);
    let again = complete(&before, Some(&before), Platform::default(), [0, 0]);
    assert!(
        again
            .placement_configuration
            .is_some_and(|placement| placement.workloads.is_some())
    );
}
