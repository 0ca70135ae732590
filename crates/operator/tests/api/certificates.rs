//! The operator's certificate for the webhook of KubeVirt IPAM, and the changes to and from cert-manager.

use cluster::wait;
use rustls::pki_types::{CertificateDer, pem::PemObject};
use serde_json::{Value, json};
use stage::{base64, bytes};

use crate::{
    fixture::{DEADLINE, Fixture, NAMESPACE, message},
    installation::{Installation, everything},
    stubs::{self, CERT_MANAGER},
};

const SERVICE: &str = "kubevirt-ipam-controller-webhook-service";
const SERVING: &str = "webhook-server-cert";
const AUTHORITY: &str = "kubevirt-ipam-controller-webhook-ca";
const WEBHOOK: &str = "kubevirt-ipam-controller-mutating-webhook-configuration";
const DEPLOYMENT: &str = "kubevirt-ipam-controller-manager";
const CERTIFICATE: &str = "kubevirt-ipam-controller-serving-cert";
const ISSUER: &str = "kubevirt-ipam-controller-selfsigned-issuer";
const ESTABLISHED: &[(&str, &str)] = &[("KUBEVIRT_IPAM_CONTROLLER_IMAGE", "registry.example/ipam:test")];

fn bundle(configuration: &Value) -> Vec<u8> {
    bytes(&configuration["webhooks"][0]["clientConfig"]["caBundle"])
}

fn annotation(configuration: &Value) -> &Value {
    &configuration["metadata"]["annotations"]["cert-manager.io/inject-ca-from"]
}

/// A TLS handshake between the certificate of a Secret and the trust of a bundle.
fn handshake(secret: &Value, bundle: &[u8], host: &str) -> Result<(), String> {
    let [certificates, key] = ["tls.crt", "tls.key"].map(|key| bytes(&secret["data"][key]));
    tls_client::handshake(&certificates, &key, bundle, host)
}

/// The serving certificate and the trusted bundle. Read in this order, the bundle always trusts the certificate.
fn pair(fixture: &Fixture) -> Result<(Value, Value), String> {
    let secret = fixture.operand("secret", SERVING).ok_or("no certificate")?;
    let configuration = fixture
        .operand("mutatingwebhookconfiguration", WEBHOOK)
        .ok_or("no webhook")?;
    Ok((secret, configuration))
}

/// A handshake under every name of the Service.
fn verify(secret: &Value, configuration: &Value) -> Result<(), String> {
    for domain in ["svc", "svc.cluster.local"] {
        let host = format!("{SERVICE}.{NAMESPACE}.{domain}");
        handshake(secret, &bundle(configuration), &host).map_err(|error| format!("{host}: {error}"))?;
    }
    Ok(())
}

/// Waits until the serving certificate is trusted, and another condition is met.
fn wait_for_trust(
    fixture: &Fixture,
    what: &str,
    mut more: impl FnMut(&Value, &Value) -> bool,
) -> (Value, Value) {
    wait::until(what, DEADLINE, || {
        let (secret, configuration) = pair(fixture)?;
        verify(&secret, &configuration)?;
        if more(&secret, &configuration) {
            Ok((secret, configuration))
        } else {
            let annotations = &configuration["metadata"]["annotations"];
            Err(format!("not yet: {annotations:#}\n{:#?}", fixture.events()))
        }
    })
    .unwrap_or_else(|error| panic!("{error}"))
}

fn patch(fixture: &Fixture, kind: &str, name: &str, form: &str, patch: &Value) {
    let (form, patch) = (format!("--type={form}"), patch.to_string());
    let arguments = ["patch", kind, name, "-n", NAMESPACE, &form, "-p", &patch];
    fixture.kubectl().run(arguments).expect("patched");
}

fn native(spec: &Value) -> Fixture {
    let mut fixture = Fixture::installed();
    fixture.start_images(&[]);
    fixture.configure(spec);
    fixture
}

// operator#77, the native flavour
#[test]
fn native_webhook_has_certificate_that_api_server_trusts() {
    let fixture = native(&json!({ "kubevirtIpamController": {} }));
    let (secret, _) = wait_for_trust(&fixture, "a trusted certificate", |_, _| true);
    assert_eq!(secret["type"], "kubernetes.io/tls");
    let authority = fixture.operand("secret", AUTHORITY).expect("the authority");
    assert_eq!(authority["type"], "Opaque");
    let uid = fixture.configuration()["metadata"]["uid"].clone();
    for object in [&secret, &authority] {
        let metadata = &object["metadata"];
        assert_eq!(
            metadata["labels"]["app.kubernetes.io/managed-by"],
            "cnao-operator"
        );
        assert_eq!(metadata["labels"]["app"], "ipam-virt-workloads");
        assert_eq!(
            metadata["labels"]["networkaddonsoperator.network.kubevirt.io/version"],
            "1.2.3"
        );
        assert_eq!(metadata["ownerReferences"][0]["uid"], uid);
    }
    fixture.roll_out_deployments(&[DEPLOYMENT]);
    fixture.wait_until_available();
    let record = "cluster-networks-addons-operator-applied-cluster";
    let record = fixture.operand("configmap", record).expect("the record");
    let inventory = record["data"]["inventory"].as_str().expect("an inventory");
    for (text, held) in [(SERVING, true), (AUTHORITY, true), ("cert-manager.io", false)] {
        assert_eq!(inventory.contains(text), held, "{text}: {inventory}");
    }

    // An unrelated change causes no request, except for repairs.
    let mark = fixture.mark();
    patch(
        &fixture,
        "secret",
        SERVING,
        "merge",
        &json!({ "metadata": { "labels": { "mine": "1" } } }),
    );
    fixture
        .kubectl()
        .run([
            "delete",
            "--wait=false",
            "serviceaccount",
            DEPLOYMENT,
            "-n",
            NAMESPACE,
        ])
        .expect("deleted");
    fixture.wait_for_operand("serviceaccount", DEPLOYMENT, |_| Some(()));
    let service_accounts = format!("create /api/v1/namespaces/{NAMESPACE}/serviceaccounts?");
    assert_eq!(fixture.work_since(mark), [service_accounts]);

    fixture.configure(&json!({}));
    for name in [SERVING, AUTHORITY] {
        fixture.wait_until_gone("secret", name);
    }
    fixture.wait_until_gone("mutatingwebhookconfiguration", WEBHOOK);
    fixture.wait_until_available();
}

#[test]
fn deleted_or_damaged_certificate_is_repaired_at_once() {
    let fixture = native(&json!({ "kubevirtIpamController": {} }));
    let (mut secret, _) = wait_for_trust(&fixture, "a trusted certificate", |_, _| true);
    let served = |secret: &Value| secret["data"].clone();

    let damages: [(&str, &dyn Fn()); 3] = [
        ("a deleted certificate", &|| {
            let arguments = ["delete", "--wait=false", "secret", SERVING, "-n", NAMESPACE];
            fixture.kubectl().run(arguments).expect("deleted");
        }),
        ("a damaged key", &|| {
            patch(
                &fixture,
                "secret",
                SERVING,
                "merge",
                &json!({ "data": { "tls.key": "AAAA" } }),
            );
        }),
        ("an emptied bundle", &|| {
            let empty = json!([{ "op": "remove", "path": "/webhooks/0/clientConfig/caBundle" }]);
            patch(&fixture, "mutatingwebhookconfiguration", WEBHOOK, "json", &empty);
        }),
    ];
    for (what, damage) in damages {
        let before = secret.clone();
        damage();
        let (renewed, configuration) =
            wait_for_trust(&fixture, what, |secret, _| served(secret) != served(&before));
        // The pods still serve the old certificate for a while.
        verify(&before, &configuration).unwrap_or_else(|error| panic!("{what}: {error}"));
        secret = renewed;
    }

    let authority = fixture.operand("secret", AUTHORITY).expect("the authority");
    let arguments = ["delete", "--wait=false", "secret", AUTHORITY, "-n", NAMESPACE];
    fixture.kubectl().run(arguments).expect("deleted");
    fixture.wait_for_operand("secret", AUTHORITY, |object| {
        (object["metadata"]["uid"] != authority["metadata"]["uid"]).then_some(())
    });
    let mine =
        json!({ "metadata": { "annotations": { "cert-manager.io/inject-ca-from": "a/b", "mine": "1" } } });
    patch(&fixture, "mutatingwebhookconfiguration", WEBHOOK, "merge", &mine);
    let (after, configuration) =
        wait_for_trust(&fixture, "no foreign writer", |_, it| annotation(it).is_null());
    assert_eq!(configuration["metadata"]["annotations"]["mine"], "1");
    assert_eq!(served(&after), served(&secret), "what is good is not renewed");
}

#[test]
fn certificates_rotate_without_failed_handshake_while_configuration_is_rejected() {
    // A new certificate every ten seconds, a new certificate authority every fifteen. The replaced ones stay valid for
    // half a minute: the machine may pause for as long without a failed handshake.
    let spec = |policy: &str| {
        json!({
            "kubevirtIpamController": {}, "imagePullPolicy": policy,
            "selfSignConfiguration": {
                "caRotateInterval": "60s", "caOverlapInterval": "45s",
                "certRotateInterval": "40s", "certOverlapInterval": "30s",
            },
        })
    };
    let fixture = native(&spec("IfNotPresent"));
    let mut last = wait_for_trust(&fixture, "a trusted certificate", |_, _| true);
    let first = |configuration: &Value| {
        let bundle = bundle(configuration);
        CertificateDer::pem_slice_iter(&bundle)
            .next()
            .and_then(Result::ok)
    };
    // No garbage is collected here: the configuration may be that of an earlier test, with its certificate authorities.
    let held = |configuration: &Value| CertificateDer::pem_slice_iter(&bundle(configuration)).count();
    let at_first = held(&last.1);
    let (mut certificates, mut authorities) = (1, 1);
    wait::until("rotations", 3 * DEADLINE, || {
        let (secret, configuration) = pair(&fixture)?;
        verify(&secret, &configuration).unwrap_or_else(|error| panic!("a failed handshake: {error}"));
        verify(&last.0, &configuration).unwrap_or_else(|error| panic!("the pods' own: {error}"));
        assert!(
            held(&configuration) <= at_first + 4,
            "{} certificates",
            held(&configuration)
        );
        certificates += usize::from(secret["data"] != last.0["data"]);
        authorities += usize::from(first(&configuration) != first(&last.1));
        last = (secret, configuration);
        if certificates == 2 {
            fixture.configure(&spec("Sometimes"));
        }
        if certificates > 3 && authorities > 2 {
            Ok(())
        } else {
            Err(format!("{certificates} certificates, {authorities} authorities"))
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
    fixture.wait_for_conditions(&[
        "Available False Failing",
        "Degraded True FailedToValidate",
        "Progressing False InvalidConfiguration",
    ]);
}

/// A certificate in the form of cert-manager's self-signed issuers.
fn of_cert_manager() -> (Value, Vec<u8>) {
    let hosts = ["svc", "svc.cluster.local"].map(|domain| format!("{SERVICE}.{NAMESPACE}.{domain}"));
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P256_SHA256).expect("a key");
    let mut parameters = rcgen::CertificateParams::new(hosts).expect("names");
    parameters.distinguished_name = rcgen::DistinguishedName::new();
    let certificate = parameters.self_signed(&key).expect("a certificate").pem();
    let secret = json!({
        "apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {
            "name": SERVING, "namespace": NAMESPACE,
            "annotations": { "cert-manager.io/certificate-name": "kubevirt-ipam-controller-serving-cert" },
        },
        "stringData": { "tls.crt": certificate, "tls.key": key.serialize_pem(), "ca.crt": certificate },
    });
    (secret, certificate.into_bytes())
}

/// Issues a certificate, and returns its Secret. The Certificate owns the Secret, as with cert-manager's flag
/// `--enable-certificate-owner-ref`.
fn act_as_cert_manager(fixture: &Fixture) -> Value {
    let (mut secret, ca) = of_cert_manager();
    let certificate = fixture
        .operand("certificate", CERTIFICATE)
        .expect("the Certificate");
    secret["metadata"]["ownerReferences"] = json!([{
        "apiVersion": "cert-manager.io/v1", "kind": "Certificate", "name": CERTIFICATE,
        "uid": certificate["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true,
    }]);
    fixture.kubectl().apply(&secret.to_string()).expect("a Secret");
    let trusting = json!([{
        "op": "add", "path": "/webhooks/0/clientConfig/caBundle", "value": base64(&ca),
    }]);
    patch(
        fixture,
        "mutatingwebhookconfiguration",
        WEBHOOK,
        "json",
        &trusting,
    );
    wait_for_trust(fixture, "cert-manager's certificate", |_, _| true).0
}

// operator#77
#[test]
fn certificates_move_between_cert_manager_and_operator() {
    let mut fixture = Fixture::installed();
    fixture.configure(&json!({ "kubevirtIpamController": {} }));
    fixture.start_images(ESTABLISHED);
    let rejected = wait::until("a missing kind", DEADLINE, || {
        let configuration = fixture.configuration();
        let text = message(&configuration, "Degraded");
        if text.contains("no matches for kind \"Certificate\" in version \"cert-manager.io/v1\"") {
            Ok(())
        } else {
            Err(format!("{configuration:#}"))
        }
    });
    rejected.unwrap_or_else(|error| panic!("{error}"));
    assert!(
        fixture.operand("mutatingwebhookconfiguration", WEBHOOK).is_none(),
        "it would block all users"
    );
    assert!(fixture.operand("secret", SERVING).is_none());

    stubs::define(fixture.admin(), CERT_MANAGER);
    let configuration = wait::until("the webhook", DEADLINE, || {
        let found = fixture.operand("mutatingwebhookconfiguration", WEBHOOK);
        found.ok_or_else(|| format!("{:#}", fixture.configuration()))
    });
    let configuration = configuration.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(*annotation(&configuration), format!("{NAMESPACE}/{CERTIFICATE}"));
    fixture.roll_out_deployments(&[DEPLOYMENT]);
    fixture.wait_until_available();

    let before = act_as_cert_manager(&fixture);

    fixture.stop();
    fixture.start_images(&[]);
    let (after, _) = wait_for_trust(&fixture, "our bundle", |_, configuration| {
        let authorities = bundle(configuration);
        annotation(configuration).is_null() && CertificateDer::pem_slice_iter(&authorities).count() == 2
    });
    assert_eq!(after["data"], before["data"], "no pod has to notice");
    for (kind, name) in [("certificate", CERTIFICATE), ("issuer", ISSUER)] {
        fixture.wait_until_gone(kind, name);
    }
    fixture.wait_for_operand("secret", SERVING, |object| {
        (object["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "cnao-operator").then_some(())
    });
    // After the renewal, the Secret has no trace of cert-manager.
    patch(
        &fixture,
        "secret",
        SERVING,
        "merge",
        &json!({ "data": { "tls.key": "AAAA" } }),
    );
    let (ours, _) = wait_for_trust(&fixture, "our certificate", |secret, _| {
        secret["data"] != before["data"]
    });
    assert_eq!(
        ours["metadata"]["annotations"].get("cert-manager.io/certificate-name"),
        None
    );
    assert_eq!(ours["data"].as_object().map(serde_json::Map::len), Some(2));

    fixture.stop();
    fixture.start_images(ESTABLISHED);
    for name in [SERVING, AUTHORITY] {
        fixture.wait_until_gone("secret", name);
    }
    fixture.wait_for_operand("certificate", CERTIFICATE, |_| Some(()));
    fixture.wait_for_operand("issuer", ISSUER, |_| Some(()));
    fixture.wait_for_operand("mutatingwebhookconfiguration", WEBHOOK, |configuration| {
        (!annotation(configuration).is_null()).then_some(())
    });
}

// operator#99
#[test]
fn certificate_of_upstream_installation_moves_to_native_controller_at_once() {
    let mut fixture = Fixture::with(CERT_MANAGER);
    fixture.configure(&everything());
    Installation::of_upstream(&fixture).create(&fixture);
    let before = act_as_cert_manager(&fixture);
    // Objects of other users.
    let foreign = json!({
        "apiVersion": "cert-manager.io/v1", "kind": "Certificate",
        "metadata": { "name": "mine", "namespace": NAMESPACE }, "spec": {},
    });
    fixture
        .kubectl()
        .apply(&foreign.to_string())
        .expect("a Certificate");
    let mark = fixture.mark();
    let garbage = fixture.collect_garbage();
    fixture.start_images(&[]);
    wait::until("the end of cert-manager's objects", DEADLINE, || {
        let (secret, configuration) = pair(&fixture)?;
        verify(&secret, &configuration).unwrap_or_else(|error| panic!("a failed handshake: {error}"));
        for (kind, name) in [("certificate", CERTIFICATE), ("issuer", ISSUER)] {
            if fixture.operand(kind, name).is_some() {
                return Err(format!("{kind} {name}: {:#?}", fixture.events()));
            }
        }
        Ok(())
    })
    .unwrap_or_else(|error| panic!("{error}"));
    let (after, configuration) = wait_for_trust(&fixture, "our bundle", |_, it| annotation(it).is_null());
    assert_eq!(CertificateDer::pem_slice_iter(&bundle(&configuration)).count(), 2);
    assert_eq!(after["data"], before["data"], "no pod has to notice");
    assert_eq!(after["metadata"]["uid"], before["metadata"]["uid"]);
    assert!(fixture.operand("certificate", "mine").is_some());
    // The Secret has our owner before the Certificate is deleted: a garbage collector keeps it.
    let requests = fixture.requests_since(mark);
    let place = |verb: &str, name: &str| {
        let is_meant = |request: &stage::Request| {
            let path = request.uri.split('?').next().unwrap_or_default();
            request.verb == verb && path.ends_with(&format!("/{name}"))
        };
        requests.iter().position(is_meant)
    };
    let (adopted, deleted) = (place("update", SERVING), place("delete", CERTIFICATE));
    assert!(adopted.is_some() && adopted < deleted, "{adopted:?} {deleted:?}");
    drop(garbage);

    // The certificate stays on record until it is gone.
    fixture.configure(&json!({}));
    for name in [SERVING, AUTHORITY] {
        fixture.wait_until_gone("secret", name);
    }
}
