//! Certificates that the operator issues, and certificate signing requests of nodes.

use std::path::Path;

use cluster_network::report::Reports;
use cluster_network::{pki, signer};
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use rcgen::{CertificateParams, KeyPair};
use serde_json::{Value, json};
use stage::{Admin, Server, Task, base64, bytes, until};

const OVN: &str = "openshift-ovn-kubernetes";
const REQUESTS: &str = "/apis/certificates.k8s.io/v1/certificatesigningrequests";
const OPERATOR: &str = "system:serviceaccount:openshift-network-operator:cluster-network-operator";
const ROLES: &str = r#"[
  {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"certificates"},"rules":[
    {"apiGroups":["network.operator.openshift.io"],"resources":["operatorpkis"],"verbs":["get","list","watch"]},
    {"apiGroups":["network.operator.openshift.io"],"resources":["operatorpkis/finalizers"],"verbs":["update"]},
    {"apiGroups":[""],"resources":["secrets","configmaps"],"verbs":["get","create","patch"]},
    {"apiGroups":[""],"resources":["nodes"],"verbs":["get"]},
    {"apiGroups":["certificates.k8s.io"],"resources":["certificatesigningrequests"],"verbs":["get","list","watch"]},
    {"apiGroups":["certificates.k8s.io"],"resources":["certificatesigningrequests/approval","certificatesigningrequests/status"],"verbs":["update"]},
    {"apiGroups":["certificates.k8s.io"],"resources":["signers"],"resourceNames":["network.openshift.io/signer"],"verbs":["approve","sign"]}]},
  {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"certificates"},
   "roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"certificates"},
   "subjects":[{"kind":"ServiceAccount","name":"cluster-network-operator","namespace":"openshift-network-operator"}]},
  {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"asks"},"rules":[
    {"apiGroups":["certificates.k8s.io"],"resources":["certificatesigningrequests"],"verbs":["create"]}]},
  {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"asks"},
   "roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"asks"},
   "subjects":[{"kind":"Group","name":"system:authenticated","apiGroup":"rbac.authorization.k8s.io"}]}]"#;

fn install(server: &Admin) {
    let crd = api::operator_pki::crd().expect("a definition");
    server.apply(&serde_json::to_value(crd).expect("JSON"));
    server.wait_until_served("/apis/network.operator.openshift.io/v1/operatorpkis");
    server.namespace(OVN, &[]);
    let roles: Vec<Value> = serde_json::from_str(ROLES).expect("JSON");
    server.apply_all(&roles);
}

fn run(server: &Admin) -> (Task, Task) {
    let keeper = server.task_as(OPERATOR, |client, shutdown| async move {
        pki::controller::run(client, &Reports::default(), &shutdown).await;
    });
    let signer = server.task_as(OPERATOR, |client, shutdown| async move {
        signer::controller::run(client, &Reports::default(), &shutdown).await;
    });
    (keeper, signer)
}

fn pki(name: &str, common_name: &str) -> Value {
    json!({
        "apiVersion": "network.operator.openshift.io/v1", "kind": "OperatorPKI",
        "metadata": { "name": name, "namespace": OVN }, "spec": { "targetCert": { "commonName": common_name } },
    })
}

/// Creates a certificate signing request as a user.
fn ask(kubeconfig: &Path, user: &str, name: &str) {
    let key = KeyPair::generate().expect("a key");
    let request = CertificateParams::new(vec![]).expect("parameters");
    let request = request
        .serialize_request(&key)
        .expect("a request")
        .pem()
        .expect("PEM");
    let request = json!({
        "apiVersion": "certificates.k8s.io/v1", "kind": "CertificateSigningRequest", "metadata": { "name": name },
        "spec": {
            "signerName": "network.openshift.io/signer", "usages": ["ipsec tunnel"],
            "request": base64(request.as_bytes()),
        },
    });
    let request = serde_json::from_value(request).expect("a request");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let kubeconfig = Kubeconfig::read_from(kubeconfig).expect("a kubeconfig");
        let options = KubeConfigOptions::default();
        let mut config = kube::Config::from_custom_kubeconfig(kubeconfig, &options)
            .await
            .expect("a configuration");
        config.auth_info.impersonate = Some(user.to_owned());
        config.auth_info.impersonate_groups = Some(vec!["system:authenticated".to_owned()]);
        let client = Client::try_from(config).expect("a client");
        let requests: kube::Api<k8s_openapi::api::certificates::v1::CertificateSigningRequest> =
            kube::Api::all(client);
        requests
            .create(&kube::api::PostParams::default(), &request)
            .await
            .expect("a request");
    });
}

#[test]
fn request_of_a_node_is_signed_and_any_other_fails() {
    // cluster-network#73
    let server = Server::take(install);
    let _tasks = run(&server);
    server.apply(&pki("signer", "ovn-kubernetes-signer"));
    let secret = format!("/api/v1/namespaces/{OVN}/secrets/signer-ca");
    let authority = server.wait_for("the authority", &secret, |secret| {
        Some(bytes(&secret?["data"]["tls.crt"]))
    });
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": "node1" } });
    server.create("/api/v1/nodes", &node);

    ask(server.kubeconfig(), "system:ovn-node:node2", "stranger");
    let condition = server.wait_for("a refusal", &format!("{REQUESTS}/stranger"), |request| {
        let conditions = request?["status"]["conditions"].as_array()?;
        conditions.iter().find(|it| it["type"] == "Failed").cloned()
    });
    assert_eq!(condition["reason"], "CSRInvalidUser");

    ask(server.kubeconfig(), "system:ovn-node:node1", "node");
    let status = server.wait_for("a certificate", &format!("{REQUESTS}/node"), |request| {
        let status = &request?["status"];
        status["certificate"].is_string().then(|| status.clone())
    });
    assert_eq!(status["conditions"][0]["type"], "Approved");
    assert_eq!(status["conditions"][0]["reason"], "AutoApproved");
    let chain = [bytes(&status["certificate"]), authority.clone()].concat();
    let mut certificates = x509_parser::pem::Pem::iter_from_buffer(&chain);
    let mut next = || certificates.next().expect("a certificate").expect("PEM");
    let (leaf, root) = (next(), next());
    let (leaf, root) = (
        leaf.parse_x509().expect("parsed"),
        root.parse_x509().expect("parsed"),
    );
    assert_eq!(leaf.issuer().as_raw(), root.subject().as_raw());
    let tunnel = leaf
        .extended_key_usage()
        .expect("an extension")
        .expect("usages")
        .value
        .clone();
    assert_eq!(tunnel.other.len(), 1, "{tunnel:?}");
    let stranger = server.get(&format!("{REQUESTS}/stranger")).expect("it is there");
    assert_eq!(stranger["status"]["certificate"], Value::Null);
}

#[test]
fn certificates_are_kept_and_not_written_again() {
    let server = Server::take(install);
    server.apply(&pki("ovn", "ovn"));
    let mark = server.mark();
    let tasks = run(&server);
    let path = |kind: &str, name: &str| format!("/api/v1/namespaces/{OVN}/{kind}/{name}");
    let certificate = server.wait_for("the certificate", &path("secrets", "ovn-cert"), |secret| {
        secret.cloned()
    });
    assert_eq!(certificate["type"], "kubernetes.io/tls");
    assert_eq!(
        certificate["metadata"]["ownerReferences"][0]["kind"],
        "OperatorPKI"
    );
    let authority = server.get(&path("secrets", "ovn-ca")).expect("an authority");
    let bundle = server.get(&path("configmaps", "ovn-ca")).expect("a bundle");
    assert_eq!(
        bundle["data"]["ca-bundle.crt"].as_str().map(str::as_bytes),
        Some(bytes(&authority["data"]["tls.crt"]).as_slice())
    );
    drop(tasks);
    let writes = |mark| -> usize {
        let all = server.requests_of(OPERATOR, mark);
        assert!(all.iter().all(|it| it.code != 403), "{all:?}");
        all.iter().filter(|it| it.verb == "patch").count()
    };
    assert_eq!(writes(mark), 3);
    // A restarted operator finds no difference, and handles the event of the label below after its start.
    let mark = server.mark();
    let _tasks = run(&server);
    until("a check of the certificate", || {
        let all = server.requests_of(OPERATOR, mark);
        let looks = all
            .iter()
            .filter(|it| it.uri.contains("configmaps/ovn-ca"))
            .count();
        if looks > 0 {
            Ok(())
        } else {
            Err(format!("{all:?}"))
        }
    });
    assert_eq!(writes(mark), 0);
    server.delete(&path("secrets", "ovn-cert"));
    server.patch(
        "/apis/network.operator.openshift.io/v1/namespaces/openshift-ovn-kubernetes/operatorpkis/ovn",
        &json!({ "metadata": { "labels": { "look": "again" } } }),
    );
    server.wait_for("the certificate again", &path("secrets", "ovn-cert"), |secret| {
        secret.map(|_| ())
    });
    assert_eq!(writes(mark), 1);
}
