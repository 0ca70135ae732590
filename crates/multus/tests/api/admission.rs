//! The admission webhooks of networks, called by a real API server, with the shipped manifests' rights and no others.

use axum::http::Method;
use multus::admission::{Settings, keep_certificates, start};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use stage::{Admin, Answer, Server, Task, base64, bytes, until};
use std::path::Path;
use std::sync::mpsc;

const ACCOUNT: &str = "system:serviceaccount:kube-system:weft-nad-webhook";
const SECRETS: &str = "/api/v1/namespaces/kube-system/secrets";
const VALIDATING: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/weft-nad-webhook";
const MUTATING: &str = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/weft-nad-webhook";

/// Creates the definition of networks, and applies the shipped manifests.
fn install(server: &Admin) {
    server.apply(&serde_json::to_value(api::net_attach_def::crd().unwrap()).unwrap());
    server.wait_until_served("/apis/k8s.cni.cncf.io/v1/network-attachment-definitions");
    for file in ["nad-webhook.yaml", "nad-webhook-inject.yaml"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("../../deploy/multus")
            .join(file);
        server.kubectl().apply_file(&path).unwrap();
    }
}

/// The webhooks' server under its own account, and its port.
fn webhooks(server: &Server) -> (Task, u16) {
    let (sender, port) = mpsc::channel();
    let task = server.task_as(ACCOUNT, async move |client, shutdown| {
        let settings = Settings {
            port: 0,
            namespace: "kube-system".into(),
            inject_resources: true,
            multus_namespace: "kube-system".into(),
        };
        let running = start(settings, client).await.unwrap();
        running.readiness().wait().await;
        sender.send(running.address().port()).unwrap();
        shutdown.wait().await;
        running.stop().await;
    });
    let port = port.recv().unwrap();
    (task, port)
}

/// Makes the API server call 127.0.0.1, which it trusts by this certificate, instead of the Service.
fn redirect(server: &Server, path: &str, port: u16, authority: &str) {
    let mut configuration = server.get(path).unwrap();
    let webhook = &mut configuration["webhooks"][0];
    let route = webhook["clientConfig"]["service"]["path"]
        .as_str()
        .unwrap()
        .to_owned();
    webhook["clientConfig"] =
        json!({"url": format!("https://127.0.0.1:{port}{route}"), "caBundle": base64(authority.as_bytes())});
    server.send(Method::PUT, path, Some(&configuration)).accepted();
}

/// A server that calls the webhooks.
fn asking() -> (Server, Task) {
    let server = Server::take(install);
    let key = KeyPair::generate().unwrap();
    let certificate = CertificateParams::new(vec!["127.0.0.1".to_owned()])
        .unwrap()
        .self_signed(&key)
        .unwrap();
    let secret = json!({"apiVersion": "v1", "kind": "Secret", "type": "kubernetes.io/tls",
        "metadata": {"name": "weft-nad-webhook"},
        "data": {"tls.crt": base64(certificate.pem().as_bytes()), "tls.key": base64(key.serialize_pem().as_bytes())}});
    server.create(SECRETS, &secret);
    let (task, port) = webhooks(&server);
    redirect(&server, VALIDATING, port, &certificate.pem());
    redirect(&server, MUTATING, port, &certificate.pem());
    server.namespace("lab", &[]);
    // The API server learns of them a moment later.
    until("the webhooks to be called", || {
        let nad = define(&server, "lab", "bad", "{}", &json!({}), true);
        let pod = json!({"metadata": {"name": "p", "annotations": {"k8s.v1.cni.cncf.io/networks": "a/b/c"}},
            "spec": {"containers": [{"name": "c", "image": "none"}]}});
        let pod = server.send(Method::POST, "/api/v1/namespaces/lab/pods?dryRun=All", Some(&pod));
        if nad.status.is_success() || pod.warnings.is_empty() {
            return Err(format!("{nad:#?} {pod:#?}"));
        }
        Ok(())
    });
    (server, task)
}

fn define(
    server: &Server,
    namespace: &str,
    name: &str,
    config: &str,
    annotations: &Value,
    dry: bool,
) -> Answer {
    let nad = json!({"apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": {"name": name, "annotations": annotations}, "spec": {"config": config}});
    let dry = if dry { "?dryRun=All" } else { "" };
    let path = format!("/apis/k8s.cni.cncf.io/v1/namespaces/{namespace}/network-attachment-definitions{dry}");
    server.send(Method::POST, &path, Some(&nad))
}

#[test]
fn definitions_are_validated_at_admission() {
    let (server, _task) = asking();
    let define = |name: &str, config: &str| define(&server, "lab", name, config, &json!({}), false);
    let refused = define(
        "vlan",
        r#"{"cniVersion":"1.0.0","name":"n","type":"bridge","vlan":5000}"#,
    )
    .refused();
    assert_eq!(
        refused,
        "admission webhook \"network-attachment-definitions.k8s.cni.cncf.io\" denied the request: spec.config: plugin \
         bridge: invalid VLAN ID 5000 (must be between 0 and 4094)"
    );
    let refused = define("json", r#"{"type":"#).refused();
    assert!(
        refused.contains("spec.config: failed to unmarshal Spec.Config: "),
        "{refused}"
    );
    // multus#104
    let refused = define("again", r#"{"type":"multus-shim"}"#).refused();
    assert!(refused.contains("\"multus-shim\" is multus itself"), "{refused}");
    let typo = define(
        "typo",
        r#"{"cniVersion":"1.0.0","name":"n","type":"bridge","bridg":"br1"}"#,
    );
    assert_eq!(
        typo.warnings,
        [r#"spec.config: plugin bridge does not know the key "bridg""#]
    );
    typo.accepted();
    let empty = define("file", "");
    assert!(empty.warnings.is_empty());
    empty.accepted();

    // An existing object is validated only when its configuration changes.
    let path = "/apis/k8s.cni.cncf.io/v1/namespaces/lab/network-attachment-definitions/typo";
    let labelled = server.patch(path, &json!({"metadata": {"labels": {"a": "b"}}}));
    assert!(labelled.warnings.is_empty());
    labelled.accepted();
    let refused = server.patch(path, &json!({"spec": {"config": "[]"}})).refused();
    assert!(refused.contains("denied the request: spec.config: "), "{refused}");
    server.delete(path);
}

#[test]
fn resources_are_requested_for_networks() {
    let (server, _task) = asking();
    server.namespace("left", &[("network-resources.k8s.cni.cncf.io", "ignore")]);
    let config = r#"{"cniVersion":"1.0.0","name":"n","type":"macvlan"}"#;
    let needs = |resource: &str| json!({"k8s.v1.cni.cncf.io/resourceName": resource});
    let none = json!({});
    for (namespace, name, annotations) in [
        ("lab", "blue", &needs("x.io/blue")),
        ("lab", "plain", &none),
        ("kube-system", "first", &needs("x.io/first")),
    ] {
        define(&server, namespace, name, config, annotations, false).accepted();
    }
    let run = |namespace: &str, name: &str, annotations: Value, resources: Value| {
        let pod = json!({"metadata": {"name": name, "annotations": annotations},
            "spec": {"containers": [{"name": "c", "image": "none", "resources": resources}, {"name": "d", "image": "none"}]}});
        let path = format!("/api/v1/namespaces/{namespace}/pods");
        server.send(Method::POST, &path, Some(&pod))
    };
    let resources = |answer: Answer| {
        assert!(answer.warnings.is_empty(), "{answer:#?}");
        answer.accepted()["spec"]["containers"][0]["resources"].clone()
    };
    let networks = |text: &str| json!({"k8s.v1.cni.cncf.io/networks": text});

    let both = json!({"k8s.v1.cni.cncf.io/networks": "blue,plain,blue", "v1.multus-cni.io/default-network": "first"});
    let counts = json!({"x.io/blue": "2", "x.io/first": "1"});
    assert_eq!(
        resources(run("lab", "new", both, json!({}))),
        json!({"limits": counts, "requests": counts})
    );
    // A definition that was made a moment ago counts.
    for number in 0..5 {
        let name = format!("fresh{number}");
        define(&server, "lab", &name, config, &needs("x.io/fresh"), false).accepted();
        let got = resources(run("lab", &name, networks(&name), json!({})));
        assert_eq!(got["requests"], json!({"x.io/fresh": "1"}), "{name}");
    }
    let enough = json!({"requests": {"cpu": "1", "x.io/blue": "3"}, "limits": {"x.io/blue": "3"}});
    assert_eq!(
        resources(run("lab", "enough", networks("blue"), enough.clone())),
        enough
    );
    assert_eq!(
        resources(run("lab", "plain", networks("plain"), json!({}))),
        json!({})
    );
    assert_eq!(
        resources(run("lab", "missing", networks("nowhere"), json!({}))),
        json!({})
    );
    assert_eq!(
        resources(run("left", "left", networks("lab/blue"), json!({}))),
        json!({})
    );

    // Cached definitions cause no request.
    let mark = server.mark();
    assert_eq!(
        resources(run("lab", "again", networks("blue,plain"), json!({})))["limits"],
        json!({"x.io/blue": "1"})
    );
    let asked = server.requests_of(ACCOUNT, mark);
    assert!(asked.is_empty(), "{asked:#?}");

    let malformed = run("lab", "bad", networks("a/b/c"), json!({}));
    assert_eq!(
        malformed.warnings,
        [
            "cannot determine the networks of the pod: parsePodNetworkObjectName: Invalid network object (failed at '/')"
        ]
    );
    malformed.accepted();
}

#[test]
fn certificates_are_issued_automatically() {
    let server = Server::take(install);
    let keeper = server.task_as(ACCOUNT, async |client, shutdown| {
        keep_certificates("kube-system", client, &shutdown).await;
    });
    let (_task, _port) = webhooks(&server);
    let trusted = |path: &str| {
        server.wait_for("a bundle", path, |configuration| {
            let bundle = &configuration?["webhooks"][0]["clientConfig"]["caBundle"];
            bundle.as_str().map(|_| bytes(bundle))
        })
    };
    let secret = |name: &str, key: &str| {
        let secret = server.get(&format!("{SECRETS}/{name}")).unwrap();
        (
            bytes(&secret["data"][key]),
            secret["metadata"]["ownerReferences"][0].clone(),
        )
    };
    let (authority, owner) = secret("weft-nad-webhook-ca", "ca.crt");
    assert_eq!(trusted(VALIDATING), authority);
    assert_eq!(trusted(MUTATING), authority);
    assert_eq!(owner["kind"], "ValidatingWebhookConfiguration");
    let (served, _) = secret("weft-nad-webhook", "tls.crt");
    assert!(
        String::from_utf8(served)
            .unwrap()
            .starts_with("-----BEGIN CERTIFICATE-----")
    );

    // A deleted configuration costs nothing; after its creation it trusts the same authority.
    server.delete(MUTATING);
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/multus/nad-webhook-inject.yaml");
    server.kubectl().apply_file(&path).unwrap();
    assert_eq!(trusted(MUTATING), authority);
    assert!(!keeper.has_ended());
}

#[test]
fn the_example_policy_limits_the_plugins_of_tenants() {
    let server = Server::bare();
    server.apply(&serde_json::to_value(api::net_attach_def::crd().unwrap()).unwrap());
    server.wait_until_served("/apis/k8s.cni.cncf.io/v1/network-attachment-definitions");
    let policy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/network-types.yaml");
    server.kubectl().apply_file(&policy).unwrap();
    server.namespace("lab", &[]);
    let of = |namespace: &str, config: &str| define(&server, namespace, "n", config, &json!({}), true);
    let other = r#"{"name":"n","type":"macvlan"}"#;
    // The API server learns of the policy and of its list a moment later.
    until("the policy to count", || {
        let answer = format!("{:?}", of("lab", other));
        if answer.contains("not allowed in this namespace: macvlan") {
            Ok(())
        } else {
            Err(answer)
        }
    });
    for config in [
        r#"{"name":"n","type":"bridge","bridge":"br1"}"#,
        r#"{"name":"n","type":"cnv-bridge","ipam":{"type":"host-local","subnet":"10.0.0.0/24"}}"#,
        r#"{"name":"n","plugins":[{"type" : "bridge"},{"type":"tuning"}]}"#,
    ] {
        of("lab", config).accepted();
    }
    for (config, text) in [
        (
            r#"{"name":"n","plugins":[{"type":"bridge"},{"TYPE":"host-device"}]}"#,
            "namespace: host-device",
        ),
        (
            r#"{"name":"n","type":"bridge","ipam":{"type":"whereabouts"}}"#,
            "namespace: whereabouts",
        ),
        (
            r#"{"name":"n","typ\u0065":"host-device","type":"bridge"}"#,
            "must not contain a backslash",
        ),
        ("", "must name its plugin"),
        (
            r#"{"name":"n","type":"bridge","ipam":{"type":"host-local","DataDir":"/etc"}}"#,
            "must not name files of the nodes",
        ),
    ] {
        let refused = of("lab", config).refused();
        assert!(refused.contains(text), "{config}: {refused}");
    }
    of("kube-system", other).accepted();
}
