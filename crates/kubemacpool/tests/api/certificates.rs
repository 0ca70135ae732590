//! The certificate manager with the shipped manifest, and only the rights of the shipped role.

use std::{collections::BTreeMap, time::Duration};

use cluster::wait;
use kubemacpool::certificates::{self, Settings};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, PKCS_RSA_SHA256, RsaKeySize, SerialNumber,
};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde_json::{Value, json};
use stage::{base64, bytes};

use crate::{
    fixture::{ACCOUNT, DEADLINE, NAMESPACE, Stage, Task},
    objects::Kind,
};

const SERVING: &str = "kubemacpool-service";
const AUTHORITY: &str = "kubemacpool-mutator-ca";
const CONFIGURATION: &str = "kubemacpool-mutator";
const HOST: &str = "kubemacpool-service.kubemacpool-system.svc";

/// The shipped intervals.
const USUAL: [&str; 4] = ["8760h0m0s", "24h0m0s", "4380h0m0s", "24h0m0s"];

/// All objects of the shipped manifest.
fn installed() -> Stage {
    let stage = Stage::start();
    install(&stage);
    stage
}

fn install(stage: &Stage) {
    stage.install_shipped();
}

/// Runs the certificate manager with these intervals.
fn manager(stage: &Stage, intervals: [&'static str; 4]) -> Task {
    let environment = BTreeMap::from([
        ("POD_NAMESPACE", NAMESPACE),
        ("CA_ROTATE_INTERVAL", intervals[0]),
        ("CA_OVERLAP_INTERVAL", intervals[1]),
        ("CERT_ROTATE_INTERVAL", intervals[2]),
        ("CERT_OVERLAP_INTERVAL", intervals[3]),
        ("COMPONENT", "network"),
        ("PART_OF", "hyperconverged"),
        ("VERSION", "1.2.3"),
        ("MANAGED_BY", ""),
    ]);
    let settings = Settings::read(|name| environment.get(name).map(|value| (*value).to_owned()));
    let settings = settings.expect("settings");
    stage.task(async move |client, shutdown| certificates::run(&settings, client, &shutdown).await)
}

fn bundles(configuration: &Value) -> Vec<Vec<u8>> {
    let webhooks = configuration["webhooks"].as_array().expect("webhooks");
    webhooks
        .iter()
        .map(|webhook| bytes(&webhook["clientConfig"]["caBundle"]))
        .collect()
}

fn certificates_in(pem: &[u8]) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(pem)
        .filter_map(Result::ok)
        .collect()
}

/// A TLS handshake between a Secret's certificate and a client with a bundle.
fn handshake(secret: &Value, bundle: &[u8]) -> Result<(), String> {
    let [certificates, key] = ["tls.crt", "tls.key"].map(|key| bytes(&secret["data"][key]));
    tls_client::handshake(&certificates, &key, bundle, HOST)
}

/// A handshake with each webhook's bundle.
fn verify(secret: &Value, configuration: &Value) -> Result<(), String> {
    let bundles = bundles(configuration);
    assert_eq!(bundles.len(), 2);
    bundles.iter().try_for_each(|bundle| handshake(secret, bundle))
}

/// The served certificate and the bundles; read in this order, the bundles always trust the certificate.
fn pair(stage: &Stage) -> Result<(Value, Value), String> {
    let secret = stage
        .get(Kind::Secret, NAMESPACE, SERVING)
        .ok_or("no certificate")?;
    let configuration = stage
        .get(Kind::Webhooks, "", CONFIGURATION)
        .ok_or("no webhook configuration")?;
    Ok((secret, configuration))
}

/// Waits until the served certificate is trusted, and a condition holds.
fn wait_for_trust(stage: &Stage, what: &str, mut more: impl FnMut(&Value, &Value) -> bool) -> (Value, Value) {
    wait::until(what, DEADLINE, || {
        let (secret, configuration) = pair(stage)?;
        verify(&secret, &configuration)?;
        if more(&secret, &configuration) {
            Ok((secret, configuration))
        } else {
            Err(format!("not yet: {}\n{configuration:#}", secret["metadata"]))
        }
    })
    .unwrap_or_else(|error| panic!("{error}"))
}

/// Asserts that no request since the mark was refused, and no Secret was read.
fn assert_within_its_rights(stage: &Stage, mark: u64) {
    let all = stage.entries_since(mark);
    let mut its = all
        .iter()
        .filter(|entry| entry["impersonatedUser"]["username"] == ACCOUNT)
        // Requests of kubectl from another test.
        .filter(|entry| {
            !entry["userAgent"]
                .as_str()
                .unwrap_or_default()
                .starts_with("kubectl/")
        })
        .peekable();
    assert!(its.peek().is_some(), "it did something");
    for entry in its {
        assert_ne!(entry["responseStatus"]["code"], 403, "{entry:#}");
        assert_ne!(entry["verb"], "get", "{entry:#}");
    }
}

// kubemacpool#88
#[test]
fn certificates_have_upstream_form_within_shipped_role() {
    let stage = installed();
    let mark = stage.mark();
    let manager = manager(&stage, USUAL);
    let (serving, configuration) = wait_for_trust(&stage, "a trusted certificate", |_, _| true);
    let authority = stage
        .get(Kind::Secret, NAMESPACE, AUTHORITY)
        .expect("the authority");
    for (secret, kind, keys) in [
        (&serving, "kubernetes.io/tls", ["tls.crt", "tls.key"]),
        (&authority, "Opaque", ["ca.crt", "ca.key"]),
    ] {
        assert_eq!(secret["type"], kind);
        let found: Vec<_> = secret["data"].as_object().expect("data").keys().collect();
        assert_eq!(found, keys);
        let key = String::from_utf8(bytes(&secret["data"][keys[1]])).expect("text");
        assert!(key.starts_with("-----BEGIN RSA PRIVATE KEY-----\n"), "{key}");
        assert_eq!(
            secret["metadata"]["annotations"],
            json!({ "kubevirt.io/kube-admission-webhook": "" })
        );
        assert_eq!(
            secret["metadata"]["labels"],
            json!({
                "app.kubernetes.io/component": "network", "app.kubernetes.io/part-of": "hyperconverged",
                "app.kubernetes.io/version": "1.2.3",
            })
        );
    }
    // They are deleted with the configuration.
    let owner = json!([{
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "name": "kubemacpool-mutator", "uid": configuration["metadata"]["uid"],
    }]);
    for secret in [&serving, &authority] {
        assert_eq!(secret["metadata"]["ownerReferences"], owner);
    }
    let ca = certificates_in(&bytes(&authority["data"]["ca.crt"]));
    for bundle in bundles(&configuration) {
        assert_eq!(certificates_in(&bundle), ca);
    }

    // Valid certificates are kept, also after a restart.
    drop(manager);
    let written = stage.mark();
    let _manager = self::manager(&stage, USUAL);
    stage.patch(
        Kind::Secret,
        NAMESPACE,
        AUTHORITY,
        &json!({ "metadata": { "labels": { "mine": "1" } } }),
    );
    stage.patch(
        Kind::Secret,
        NAMESPACE,
        SERVING,
        &json!({ "metadata": { "annotations": { "kubevirt.io/kube-admission-webhook": null } } }),
    );
    let (after, _) = wait_for_trust(&stage, "the annotation", |secret, _| {
        secret["metadata"]["annotations"] == json!({ "kubevirt.io/kube-admission-webhook": "" })
    });
    assert_eq!(after["data"], serving["data"]);
    let authority = stage
        .get(Kind::Secret, NAMESPACE, AUTHORITY)
        .expect("the authority");
    assert_eq!(
        authority["metadata"]["labels"]["mine"], "1",
        "it belongs to another owner"
    );
    let writes: Vec<_> = stage
        .requests_since(written)
        .into_iter()
        .filter(|request| request.verb != "list")
        .map(|request| request.verb)
        .collect();
    assert_eq!(writes, ["update"]);
    assert_within_its_rights(&stage, mark);
}

// kubemacpool#83, kubemacpool#84
#[test]
fn deleted_certificates_are_renewed_and_old_ones_stay_trusted() {
    let stage = installed();
    let mark = stage.mark();
    let _manager = manager(&stage, USUAL);
    let (mut secret, mut configuration) = wait_for_trust(&stage, "a trusted certificate", |_, _| true);
    let empty = |webhook: &mut Value| {
        webhook["clientConfig"]
            .as_object_mut()
            .expect("it")
            .shift_remove("caBundle");
    };
    let damages: [(&str, &dyn Fn()); 4] = [
        ("a deleted certificate", &|| {
            stage.delete(Kind::Secret, NAMESPACE, SERVING);
        }),
        ("a damaged key", &|| {
            stage
                .patch(
                    Kind::Secret,
                    NAMESPACE,
                    SERVING,
                    &json!({ "data": { "tls.key": "AAAA" } }),
                )
                .accepted();
        }),
        ("all bundles emptied", &|| {
            let mut emptied = stage.get(Kind::Webhooks, "", CONFIGURATION).expect("it");
            emptied["webhooks"]
                .as_array_mut()
                .expect("webhooks")
                .iter_mut()
                .for_each(empty);
            stage.replace(Kind::Webhooks, "", &emptied).accepted();
        }),
        ("one bundle emptied", &|| {
            let mut emptied = stage.get(Kind::Webhooks, "", CONFIGURATION).expect("it");
            empty(&mut emptied["webhooks"][1]);
            stage.replace(Kind::Webhooks, "", &emptied).accepted();
        }),
    ];
    for (what, damage) in damages {
        let (before, trusted) = (secret, bundles(&configuration));
        damage();
        (secret, configuration) = wait_for_trust(&stage, what, |secret, configuration| {
            let changed = bundles(configuration)
                .iter()
                .zip(&trusted)
                .all(|(now, then)| now != then);
            secret["data"] != before["data"] && changed
        });
        // Pods still serve the old one for a while.
        verify(&before, &configuration).unwrap_or_else(|error| panic!("{what}: {error}"));
    }

    // A deleted CA Secret renews only the CA.
    let before = secret;
    stage.delete(Kind::Secret, NAMESPACE, AUTHORITY);
    stage.wait_for("the authority", (Kind::Secret, NAMESPACE, AUTHORITY), |found| {
        found.map(|_| ())
    });
    let (secret, _) = wait_for_trust(&stage, "its trust", |_, now| {
        bundles(now) != bundles(&configuration)
    });
    assert_eq!(secret["data"], before["data"], "what is good is not renewed");
    assert_within_its_rights(&stage, mark);
}

#[test]
fn missing_webhook_configuration_is_awaited() {
    let stage = installed();
    stage.delete(Kind::Webhooks, "", CONFIGURATION);
    let mark = stage.mark();
    let _manager = manager(&stage, USUAL);
    wait::until("the manager to look for it", DEADLINE, || {
        let all = stage.entries_since(mark);
        let its = all
            .iter()
            .filter(|entry| entry["impersonatedUser"]["username"] == ACCOUNT);
        let watched: Vec<_> = its
            .filter(|entry| entry["verb"] == "watch")
            .map(|entry| entry["requestURI"].clone())
            .collect();
        if watched.len() >= 3 {
            Ok(())
        } else {
            Err(format!("{watched:?}"))
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(stage.get(Kind::Secret, NAMESPACE, AUTHORITY), None);
    install(&stage);
    wait_for_trust(&stage, "a trusted certificate", |_, _| true);
    assert_within_its_rights(&stage, mark);
}

// kubemacpool#85
#[test]
fn certificates_rotate_without_a_failed_handshake() {
    // A new certificate every ten seconds, a new CA every fifteen. The old ones are valid for another half minute: so
    // long may the machine stall without a failed handshake.
    let stage = installed();
    let mark = stage.mark();
    let _manager = manager(&stage, ["60s", "45s", "40s", "30s"]);
    let mut last = wait_for_trust(&stage, "a trusted certificate", |_, _| true);
    let first = |configuration: &Value| certificates_in(&bundles(configuration)[0]).into_iter().next();
    let (mut certificates, mut authorities, mut handshakes) = (1, 1, 0);
    let mut seen = Vec::new();
    wait::until("rotations", 4 * DEADLINE, || {
        let (secret, configuration) = pair(&stage)?;
        verify(&secret, &configuration).unwrap_or_else(|error| panic!("a failed handshake: {error}"));
        verify(&last.0, &configuration).unwrap_or_else(|error| panic!("the pods' own: {error}"));
        handshakes += 2;
        certificates += usize::from(secret["data"] != last.0["data"]);
        let authority = first(&configuration);
        authorities += usize::from(authority != first(&last.1));
        for found in authority
            .into_iter()
            .filter(|found| !seen.contains(found))
            .collect::<Vec<_>>()
        {
            seen.push(found);
        }
        last = (secret, configuration);
        // The first CA has expired when the fifth is issued, and is no longer trusted.
        let held = certificates_in(&bundles(&last.1)[0]);
        let dropped = seen.first().is_some_and(|oldest| !held.contains(oldest));
        if certificates > 5 && authorities > 4 && dropped {
            Ok(())
        } else {
            Err(format!(
                "{certificates} certificates, {authorities} authorities, {} held",
                held.len()
            ))
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
    println!("{handshakes} handshakes, {certificates} certificates, {authorities} authorities");
    let held = certificates_in(&bundles(&last.1)[0]).len();
    assert!(held <= 6, "{held} certificates");
    assert_within_its_rights(&stage, mark);
}

/// A certificate and its key as the upstream program writes them.
struct Written {
    certificate: String,
    key: String,
}

fn new_key() -> KeyPair {
    KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048).expect("a key")
}

/// An RSA key in PKCS#1: PKCS#8 without its header of 26 bytes, for 2048 bits.
fn pkcs1(key: &KeyPair) -> String {
    let encoded = base64(&key.serialize_der()[26..]);
    let text = encoded.as_str().expect("text").as_bytes();
    let lines: Vec<_> = text.chunks(64).map(String::from_utf8_lossy).collect();
    format!(
        "-----BEGIN RSA PRIVATE KEY-----\n{}\n-----END RSA PRIVATE KEY-----\n",
        lines.join("\n")
    )
}

fn parameters(common_name: &str, hosts: &[&str], life: Duration) -> CertificateParams {
    let hosts: Vec<_> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut parameters = CertificateParams::new(hosts).expect("names");
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    parameters
        .distinguished_name
        .push(DnType::CommonName, common_name);
    let now = std::time::SystemTime::now();
    (parameters.not_before, parameters.not_after) = (now.into(), (now + life).into());
    parameters
}

/// A CA and a server certificate as issued by the upstream program: the CA's serial number is 0, both are valid from
/// the same time, and a replaced certificate stays behind the new one.
fn of_the_reference() -> [Written; 2] {
    const HOUR: Duration = Duration::from_secs(3600);
    let ca_key = new_key();
    let mut ca = parameters("kubemacpool-mutator", &[], 8760 * HOUR);
    ca.serial_number = Some(SerialNumber::from(0_u64));
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
        KeyUsagePurpose::KeyCertSign,
    ];
    let authority = ca.self_signed(&ca_key).expect("an authority").pem();
    let issuer = Issuer::from_params(&ca, &ca_key);
    let issue = |key: &KeyPair, life| {
        let hosts = [
            "kubemacpool-service",
            "kubemacpool-service.kubemacpool-system",
            HOST,
            "kubemacpool-service.kubemacpool-system.svc.cluster.local",
        ];
        let name = "kubemacpool-service.kubemacpool-system.pod.cluster.local";
        let mut parameters = parameters(name, &hosts, life);
        parameters.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        parameters.signed_by(key, &issuer).expect("a certificate").pem()
    };
    let key = new_key();
    let serving = format!("{}{}", issue(&key, 4380 * HOUR), issue(&new_key(), 24 * HOUR));
    [
        Written {
            certificate: authority,
            key: pkcs1(&ca_key),
        },
        Written {
            certificate: serving,
            key: pkcs1(&key),
        },
    ]
}

// kubemacpool#86
#[test]
fn upstream_certificates_are_kept() {
    let stage = installed();
    let [authority, serving] = of_the_reference();
    let secret = |name: &str, kind: &str, keys: [&str; 2], written: &Written| {
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": kind,
            "metadata": {
                "name": name, "namespace": NAMESPACE,
                "annotations": { "kubevirt.io/kube-admission-webhook": "" },
                "labels": { "app.kubernetes.io/version": "0.51.0", "mine": "1" },
            },
            "data": {
                keys[0]: base64(written.certificate.as_bytes()), keys[1]: base64(written.key.as_bytes()),
            },
        })
    };
    let secrets = [
        secret(AUTHORITY, "Opaque", ["ca.crt", "ca.key"], &authority),
        secret(SERVING, "kubernetes.io/tls", ["tls.crt", "tls.key"], &serving),
    ];
    for secret in &secrets {
        stage.create(Kind::Secret, NAMESPACE, secret);
    }
    let mut configuration = stage.get(Kind::Webhooks, "", CONFIGURATION).expect("it");
    for webhook in configuration["webhooks"].as_array_mut().expect("webhooks") {
        webhook["clientConfig"]["caBundle"] = base64(authority.certificate.as_bytes());
    }
    stage.replace(Kind::Webhooks, "", &configuration).accepted();
    wait_for_trust(&stage, "the reference's certificate", |_, _| true);

    let mark = stage.mark();
    let _manager = manager(&stage, USUAL);
    // The labels follow the environment: once they do, the manager has checked everything.
    let (found, trusted) = wait_for_trust(&stage, "new labels", |secret, _| {
        secret["metadata"]["labels"]["app.kubernetes.io/version"] == "1.2.3"
    });
    assert_eq!(found["data"], secrets[1]["data"]);
    assert_eq!(found["metadata"]["labels"]["mine"], "1");
    assert_eq!(trusted["webhooks"], configuration["webhooks"]);
    let kept = stage
        .get(Kind::Secret, NAMESPACE, AUTHORITY)
        .expect("the authority");
    assert_eq!(kept["data"], secrets[0]["data"]);
    assert_within_its_rights(&stage, mark);
}
