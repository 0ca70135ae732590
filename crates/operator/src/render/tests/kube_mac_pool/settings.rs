//! The settings of the specification in the objects of the MAC pool.

use super::*;

fn manager_of(spec: Value) -> [Value; 2] {
    let objects = Setting::default().render("kubeMacPool", spec);
    let container = |name: &str| {
        let found = objects
            .iter()
            .find(|object| object["metadata"]["name"] == name && object["kind"] == "Deployment");
        found.expect("a Deployment")["spec"]["template"]["spec"]["containers"][0].clone()
    };
    ["kubemacpool-cert-manager", "kubemacpool-mac-controller-manager"].map(container)
}

// The profile is operator §5.4.
#[test]
fn tls_profile_changes_server_alone() {
    let arguments = |profile: Value| {
        let mut spec = spec();
        spec["tlsSecurityProfile"] = profile;
        manager_of(spec).map(|container| container["args"].clone())
    };
    let ciphers = "--tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,\
        TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,\
        TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,\
        TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256";
    let cert_manager = json!(["--v=production"]);
    assert_eq!(
        arguments(json!({ "type": "Intermediate", "intermediate": {} })),
        [
            cert_manager.clone(),
            json!([
                "--v=production",
                "--wait-time=300",
                "--tls-min-version=VersionTLS12",
                ciphers
            ]),
        ]
    );
    assert_eq!(
        arguments(json!({ "type": "Modern", "modern": {} })),
        [
            cert_manager,
            json!([
                "--v=production",
                "--wait-time=300",
                "--tls-min-version=VersionTLS13"
            ]),
        ]
    );
}

// operator#23: the defaults are compared with the Deployment above.
#[test]
fn certificate_intervals_are_passed_unchanged() {
    let intervals = |spec: Value| -> Vec<String> {
        let [cert_manager, _] = manager_of(spec);
        let variables = cert_manager["env"].as_array().expect("variables").clone();
        let intervals = variables.iter().filter_map(|variable| {
            let name = variable["name"].as_str()?.strip_suffix("_INTERVAL")?;
            Some(format!("{name} {}", variable["value"].as_str()?))
        });
        intervals.collect()
    };
    assert_eq!(
        intervals(spec()),
        [
            "CA_ROTATE 48h0m0s",
            "CA_OVERLAP 24h0m0s",
            "CERT_ROTATE 24h0m0s",
            "CERT_OVERLAP 12h0m0s"
        ]
    );
    let mut custom = spec();
    custom["selfSignConfiguration"] = json!({
        "caRotateInterval": "200h20m2s", "caOverlapInterval": "24h", "certRotateInterval": "90m",
        "certOverlapInterval": "1h0m0s",
    });
    assert_eq!(
        intervals(custom),
        [
            "CA_ROTATE 200h20m2s",
            "CA_OVERLAP 24h",
            "CERT_ROTATE 90m",
            "CERT_OVERLAP 1h0m0s"
        ]
    );
}

#[test]
fn range_changes_config_map_alone() {
    let render = |start: &str| {
        let range = json!({ "rangeStart": start, "rangeEnd": "02:00:00:ff:ff:ff" });
        Setting::default().render("kubeMacPool", json!({ "kubeMacPool": range }))
    };
    let (before, after) = (render("02:00:00:00:00:00"), render("02:00:00:10:00:00"));
    let changed: Vec<_> = before.iter().zip(&after).filter(|(a, b)| a != b).collect();
    assert_eq!(changed.len(), 1);
    assert_eq!(
        changed[0].1["data"],
        json!({ "RANGE_START": "02:00:00:10:00:00", "RANGE_END": "02:00:00:ff:ff:ff" })
    );
    // The operator draws a range if there is none: here from [1, 2].
    let drawn = Setting::default().render("kubeMacPool", json!({ "kubeMacPool": {} }));
    assert_eq!(
        drawn[4]["data"],
        json!({ "RANGE_START": "02:01:02:00:00:00", "RANGE_END": "02:01:02:ff:ff:ff" })
    );
}

// operator#26
#[test]
fn objects_of_manager_opt_out_of_operator_metrics() {
    let setting = Setting {
        monitoring: true,
        ..Setting::default()
    };
    let groups = setting.with(spec(), |context| {
        render(context, &stamps::stamp()).expect("objects")
    });
    let mut opted_out = Vec::new();
    for object in groups.iter().flat_map(|group| &group.objects) {
        let labels = |pointer: &str| object.pointer(&format!("{pointer}/metadata/labels")).cloned();
        let Some(own) = labels("") else { continue };
        let manager = own["control-plane"] == "mac-controller-manager";
        if manager {
            opted_out.push(object["metadata"]["name"].as_str().expect("a name").to_owned());
        }
        if object["kind"] == "Namespace" {
            continue;
        }
        for labels in [Some(own), labels("/spec/template")].into_iter().flatten() {
            assert_eq!(
                labels["prometheus.cnao.io"],
                if manager { "false" } else { "true" },
                "{}",
                object["metadata"]["name"]
            );
        }
    }
    assert_eq!(
        opted_out,
        [
            "kubemacpool-metrics-service",
            "kubemacpool-mac-range-config",
            "kubemacpool-mac-controller-manager"
        ]
    );
}
