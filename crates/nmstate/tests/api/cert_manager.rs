//! The certificate manager within the rights of its role (nmstate §8, §12).

use std::collections::BTreeMap;

use cluster::wait;
use serde_json::{Value, json};
use stage::bytes;
use webhook::manager::{self, Settings};
use weft_nmstate::cert_manager;

use crate::fixture::{CERT_MANAGER, DEADLINE, Kind, Stage, Task, granted};

/// Runs it with the operator's intervals.
fn start(stage: &Stage, account: &str) -> Task {
    let environment = BTreeMap::from([
        ("POD_NAMESPACE", "nmstate"),
        ("CA_ROTATE_INTERVAL", "8760h0m0s"),
        ("CA_OVERLAP_INTERVAL", "24h0m0s"),
        ("CERT_ROTATE_INTERVAL", "4380h0m0s"),
        ("CERT_OVERLAP_INTERVAL", "24h0m0s"),
        ("COMPONENT", "network"),
        ("MANAGED_BY", "nmstate-operator"),
    ]);
    let settings = Settings::read(|name| environment.get(name).map(|value| (*value).to_owned()));
    let settings = settings.expect("settings");
    stage.task_as(account, async move |client, shutdown| {
        manager::run(cert_manager::NAMES, &settings, client, &shutdown).await;
    })
}

/// The webhook configuration with a Service of this name behind it.
fn configuration(service: &str) -> Value {
    let hook = |name: &str| {
        json!({
            "name": format!("{name}.nmstate.io"), "admissionReviewVersions": ["v1", "v1beta1"], "sideEffects": "None",
            "failurePolicy": "Ignore",
            "clientConfig": { "service": { "name": service, "namespace": "nmstate", "path": format!("/{name}") } },
            "rules": [{
                "operations": ["CREATE", "UPDATE"], "apiGroups": ["*"], "apiVersions": ["v1"],
                "resources": ["nodenetworkconfigurationpolicies"],
            }],
        })
    };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": "nmstate", "annotations": { "service.beta.openshift.io/inject-cabundle": "true" } },
        "webhooks": [hook("nodenetworkconfigurationpolicies-mutate"), hook("nodenetworkconfigurationpolicies-timestamp-mutate")],
    })
}

/// Waits until every webhook trusts the Secret's certificate, and returns the Secret.
fn wait_for_trust(stage: &Stage, service: &str) -> Value {
    let host = format!("{service}.nmstate.svc");
    wait::until("a trusted certificate", DEADLINE, || {
        let secret = stage.get(Kind::Secret, service).ok_or("no Secret")?;
        let configuration = stage
            .get(Kind::MutatingWebhooks, "nmstate")
            .ok_or("no configuration")?;
        let [certificates, key] = ["tls.crt", "tls.key"].map(|key| bytes(&secret["data"][key]));
        for webhook in configuration["webhooks"].as_array().ok_or("no webhooks")? {
            let bundle = bytes(&webhook["clientConfig"]["caBundle"]);
            tls_client::handshake(&certificates, &key, &bundle, &host)?;
        }
        Ok::<_, String>(secret)
    })
    .unwrap_or_else(|error| panic!("{error}"))
}

// nmstate#95, that its rights are enough
#[test]
fn webhook_certificate_is_trusted_by_the_api_server() {
    let stage = Stage::start();
    let mark = stage.mark();
    let _manager = start(&stage, CERT_MANAGER);
    // It may come first; then nothing is issued.
    stage.create(Kind::MutatingWebhooks, &configuration("nmstate-webhook"));
    let serving = wait_for_trust(&stage, "nmstate-webhook");
    let authority = stage.get(Kind::Secret, "nmstate-ca").expect("the authority");
    let uid = &stage.get(Kind::MutatingWebhooks, "nmstate").expect("it")["metadata"]["uid"];
    for (secret, kind, keys) in [
        (&serving, "kubernetes.io/tls", ["tls.crt", "tls.key"]),
        (&authority, "Opaque", ["ca.crt", "ca.key"]),
    ] {
        assert_eq!(secret["type"], kind);
        let found: Vec<_> = secret["data"].as_object().expect("data").keys().collect();
        assert_eq!(found, keys);
        let metadata = &secret["metadata"];
        assert_eq!(
            metadata["annotations"],
            json!({ "kubevirt.io/kube-admission-webhook": "" })
        );
        assert_eq!(
            metadata["labels"],
            json!({ "app.kubernetes.io/component": "network", "app.kubernetes.io/managed-by": "nmstate-operator" })
        );
        assert_eq!(&metadata["ownerReferences"][0]["uid"], uid);
    }
    // A deleted Secret is created again, and trusted.
    stage
        .send(
            axum::http::Method::DELETE,
            &format!("{}/nmstate-webhook", Kind::Secret.path()),
            None,
        )
        .accepted();
    let anew = wait_for_trust(&stage, "nmstate-webhook");
    assert_ne!(anew["metadata"]["uid"], serving["metadata"]["uid"]);
    let refused: Vec<_> = stage
        .requests_of(CERT_MANAGER, mark)
        .into_iter()
        .filter(|request| request.code == 403)
        .collect();
    assert!(refused.is_empty(), "{refused:#?}");
}

/// An account with the rights of upstream's installations, under another name.
fn upstream(stage: &Stage) -> &'static str {
    let all = json!(["get", "list", "watch", "create", "update", "patch", "delete"]);
    let rules = json!([
        { "apiGroups": [""], "resources": ["secrets"], "verbs": all },
        {
            "apiGroups": ["admissionregistration.k8s.io"], "resources": ["mutatingwebhookconfigurations"],
            "verbs": ["get", "list", "watch", "update"],
        },
    ]);
    let kinds = (Kind::ClusterRole, Kind::ClusterRoleBinding);
    for (kind, object) in granted(kinds, "upstream", "upstream", rules) {
        stage.create(kind, &object);
    }
    "system:serviceaccount:nmstate:upstream"
}

#[test]
fn certificate_names_the_service_of_the_configuration() {
    let stage = Stage::start();
    stage.create(Kind::MutatingWebhooks, &configuration("my-nmstate-webhook"));
    let _manager = start(&stage, upstream(&stage));
    wait_for_trust(&stage, "my-nmstate-webhook");
    assert_eq!(stage.get(Kind::Secret, "nmstate-webhook"), None);
    // Another installation takes over.
    let mut other = stage.get(Kind::MutatingWebhooks, "nmstate").expect("it");
    for webhook in other["webhooks"].as_array_mut().expect("webhooks") {
        webhook["clientConfig"]["service"]["name"] = json!("nmstate-webhook");
    }
    stage
        .send(
            axum::http::Method::PUT,
            &format!("{}/nmstate", Kind::MutatingWebhooks.path()),
            Some(&other),
        )
        .accepted();
    wait_for_trust(&stage, "nmstate-webhook");
}
