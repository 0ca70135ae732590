//! Effect of the specification's fields on the deployed objects.

use serde_json::{Value, json};

use crate::{
    fixture::{DEADLINE, Fixture},
    installation::{DAEMON_SETS, DEPLOYMENTS, IMAGES, everything},
    stubs::CERT_MANAGER,
};

const RECORD: &str = "cluster-networks-addons-operator-applied-cluster";
const POOL: [&str; 2] = ["kubemacpool-cert-manager", "kubemacpool-mac-controller-manager"];
const RANGE: &str = "kubemacpool-mac-range-config";

fn upstream() -> Fixture {
    let mut fixture = Fixture::with(CERT_MANAGER);
    fixture.start_images(&IMAGES);
    fixture
}

/// The scheduling constraints of a workload's pods in the API server: an empty constraint is an absent field.
fn placement(object: &Value) -> [Value; 3] {
    let pod = &object["spec"]["template"]["spec"];
    let some = |value: &Value| {
        if *value == json!({}) {
            Value::Null
        } else {
            value.clone()
        }
    };
    [
        some(&pod["nodeSelector"]),
        some(&pod["affinity"]),
        some(&pod["tolerations"]),
    ]
}

fn wait_for_placement(fixture: &Fixture, kind: &str, name: &str, expected: &[Value; 3]) {
    fixture.wait_for_operand(kind, name, |object| {
        (placement(object) == *expected).then_some(())
    });
}

// operator#20, operator#21, operator#22
#[test]
fn placement_is_set_on_workloads() {
    let fixture = upstream();
    fixture.configure(&everything());
    let unschedulable =
        json!([{ "key": "node.kubernetes.io/unschedulable", "operator": "Exists", "effect": "NoSchedule" }]);
    let prefer = |weight: u32, role: &str| {
        let key = format!("node-role.kubernetes.io/{role}");
        json!({ "weight": weight, "preference": { "matchExpressions": [{ "key": key, "operator": "Exists" }] } })
    };
    let control_plane = json!({ "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
        prefer(10, "control-plane"), prefer(1, "master"),
    ] } });
    for name in DAEMON_SETS {
        // Dynamic networks with the image of upstream have no default selector.
        let linux = match name {
            "dynamic-networks-controller-ds" => Value::Null,
            _ => json!({ "kubernetes.io/os": "linux" }),
        };
        wait_for_placement(
            &fixture,
            "daemonset",
            name,
            &[linux, Value::Null, unschedulable.clone()],
        );
    }
    for name in DEPLOYMENTS {
        let expected = [Value::Null, control_plane.clone(), Value::Null];
        wait_for_placement(&fixture, "deployment", name, &expected);
    }

    let with = |placement: Value| {
        let mut spec = everything();
        spec["placementConfiguration"] = placement;
        spec
    };
    let node = json!({ "kubernetes.io/hostname": "node01" });
    fixture.configure(&with(json!({ "workloads": { "nodeSelector": node } })));
    for name in DAEMON_SETS {
        wait_for_placement(
            &fixture,
            "daemonset",
            name,
            &[node.clone(), Value::Null, Value::Null],
        );
    }
    for name in POOL {
        let expected = [Value::Null, control_plane.clone(), Value::Null];
        wait_for_placement(&fixture, "deployment", name, &expected);
    }

    fixture.configure(&with(
        json!({ "infra": { "nodeSelector": node, "tolerations": unschedulable } }),
    ));
    for name in DEPLOYMENTS {
        let expected = [node.clone(), Value::Null, unschedulable.clone()];
        wait_for_placement(&fixture, "deployment", name, &expected);
    }
    fixture.configure(&with(json!({ "infra": {} })));
    for name in DEPLOYMENTS {
        wait_for_placement(
            &fixture,
            "deployment",
            name,
            &[Value::Null, Value::Null, Value::Null],
        );
    }
    let linux = json!({ "kubernetes.io/os": "linux" });
    wait_for_placement(
        &fixture,
        "daemonset",
        "multus",
        &[linux, Value::Null, unschedulable],
    );
}

fn tls_arguments(object: &Value) -> Vec<String> {
    let arguments = object["spec"]["template"]["spec"]["containers"][0]["args"].as_array();
    let texts = arguments.into_iter().flatten().filter_map(Value::as_str);
    texts
        .filter(|text| text.starts_with("--tls-"))
        .map(str::to_owned)
        .collect()
}

// operator#24
#[test]
fn tls_profile_is_passed_to_servers() {
    let fixture = upstream();
    let names = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,\
                 TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,\
                 TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256";
    let ciphers = format!("--tls-cipher-suites={names}");
    for (profile, expected) in [
        ("Intermediate", vec!["--tls-min-version=VersionTLS12", &ciphers]),
        ("Modern", vec!["--tls-min-version=VersionTLS13"]),
    ] {
        let mut spec = everything();
        spec["tlsSecurityProfile"] = json!({ "type": profile });
        fixture.configure(&spec);
        for name in [
            "kubemacpool-mac-controller-manager",
            "kubevirt-ipam-controller-manager",
        ] {
            fixture.wait_for_operand("deployment", name, |object| {
                (tls_arguments(object) == expected).then_some(())
            });
        }
        fixture.roll_out(&DAEMON_SETS);
        fixture.roll_out_deployments(&DEPLOYMENTS);
        fixture.wait_until_available();
    }
}

/// The range in the pool's configuration.
fn range(fixture: &Fixture) -> [String; 2] {
    fixture.wait_for_operand("configmap", RANGE, |object| {
        let bound = |key: &str| object["data"][key].as_str().map(str::to_owned);
        Some([bound("RANGE_START")?, bound("RANGE_END")?])
    })
}

fn recorded_range(fixture: &Fixture) -> Value {
    let record = fixture.operand("configmap", RECORD).expect("the record");
    let spec: Value = serde_json::from_str(record["data"]["applied"].as_str().expect("text")).expect("JSON");
    spec["kubeMacPool"].clone()
}

// operator#28, operator#35
#[test]
fn range_of_pool_is_drawn_kept_and_changed() {
    let mut fixture = upstream();
    fixture.configure(&json!({ "kubeMacPool": {} }));
    let drawn = range(&fixture);
    let octets: Vec<_> = drawn[0].split(':').collect();
    let hexadecimal = |octet: &&str| octet.len() == 2 && u8::from_str_radix(octet, 16).is_ok();
    assert!(octets.len() == 6 && octets.iter().all(hexadecimal), "{drawn:?}");
    assert_eq!(
        (octets[0], &octets[3..]),
        ("02", &["00", "00", "00"][..]),
        "unicast, {drawn:?}"
    );
    assert_eq!(drawn[1], format!("02:{}:{}:ff:ff:ff", octets[1], octets[2]));
    assert_eq!(
        recorded_range(&fixture),
        json!({ "rangeStart": drawn[0], "rangeEnd": drawn[1] })
    );
    fixture.roll_out_deployments(&POOL);
    fixture.wait_until_available();

    fixture.stop();
    fixture.start_images(&IMAGES);
    // The new label shows that an object was written after the restart.
    let label = [
        "label",
        "networkaddonsconfig",
        "cluster",
        "app.kubernetes.io/part-of=x",
    ];
    fixture.kubectl().run(label).expect("labelled");
    let deployments = POOL.map(|name| ("deployment", name));
    for (kind, name) in [("configmap", RANGE)].into_iter().chain(deployments) {
        fixture.wait_for_operand(kind, name, |object| {
            (object["metadata"]["labels"]["app.kubernetes.io/part-of"] == "x").then_some(())
        });
    }
    assert_eq!(range(&fixture), drawn);
    fixture.roll_out_deployments(&POOL);
    fixture.wait_until_available();

    let chosen = ["02:00:00:00:00:00", "02:00:00:ff:ff:ff"];
    let before: Vec<_> = POOL.iter().map(|name| generation(&fixture, name)).collect();
    fixture.configure(&json!({ "kubeMacPool": { "rangeStart": chosen[0], "rangeEnd": chosen[1] } }));
    cluster::wait::until("the chosen range", DEADLINE, || {
        let found = range(&fixture);
        if found == chosen {
            Ok(())
        } else {
            Err(format!("{found:?}"))
        }
    })
    .expect("a range");
    fixture.wait_until_available();
    assert_eq!(
        recorded_range(&fixture),
        json!({ "rangeStart": chosen[0], "rangeEnd": chosen[1] })
    );
    // Only the ConfigMap changes: the pool watches it.
    let after: Vec<_> = POOL.iter().map(|name| generation(&fixture, name)).collect();
    assert_eq!(after, before);
}

fn generation(fixture: &Fixture, deployment: &str) -> i64 {
    fixture.wait_for_operand("deployment", deployment, |object| {
        object["metadata"]["generation"].as_i64()
    })
}
