//! The cluster-wide proxy, and the injected bundle of certificate authorities.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use cluster_network::report::{Failure, Level, Reports};
use cluster_network::{proxy, trust};
use serde_json::{Value, json};
use stage::{Admin, Hold, Server, Task, until};

const OPERATOR: &str = "system:serviceaccount:openshift-network-operator:cluster-network-operator";
const ROLES: &str = r#"[
  {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{"name":"proxies"},"rules":[
    {"apiGroups":[""],"resources":["configmaps"],"verbs":["get","list","watch","create","patch"]},
    {"apiGroups":["config.openshift.io"],"resources":["proxies","infrastructures","networks"],"verbs":["get","list","watch"]},
    {"apiGroups":["config.openshift.io"],"resources":["proxies/status"],"verbs":["update"]}]},
  {"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"proxies"},
   "roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"proxies"},
   "subjects":[{"kind":"ServiceAccount","name":"cluster-network-operator","namespace":"openshift-network-operator"}]}]"#;
const CONFIG: &str = "/apis/config.openshift.io/v1";
const MANAGED: &str = "/api/v1/namespaces/openshift-config-managed/configmaps";
const WANTS: &str = "/api/v1/namespaces/default/configmaps/wants";

pub(crate) fn definition(kind: &str, plural: &str) -> Value {
    let anything = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {
            "name": format!("{plural}.config.openshift.io"),
            "annotations": { "api-approved.kubernetes.io": "unapproved, for tests" },
        },
        "spec": {
            "group": "config.openshift.io", "scope": "Cluster",
            "names": { "kind": kind, "plural": plural },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "subresources": { "status": {} },
                "schema": { "openAPIV3Schema": {
                    "type": "object", "properties": { "spec": anything, "status": anything },
                } },
            }],
        },
    })
}

fn install(server: &Admin) {
    server.apply(&definition("Proxy", "proxies"));
    server.apply(&definition("Infrastructure", "infrastructures"));
    let crd = api::cluster_network::config::crd().expect("a definition");
    server.apply(&serde_json::to_value(crd).expect("JSON"));
    for plural in ["proxies", "infrastructures", "networks"] {
        server.wait_until_served(&format!("{CONFIG}/{plural}"));
    }
    server.namespace("openshift-config", &[]);
    server.namespace("openshift-config-managed", &[]);
    let roles: Vec<Value> = serde_json::from_str(ROLES).expect("JSON");
    server.apply_all(&roles);
}

fn certificate() -> String {
    let key = rcgen::KeyPair::generate().expect("a key");
    let params = rcgen::CertificateParams::new(vec!["a".to_owned()]).expect("names");
    params.self_signed(&key).expect("a certificate").pem()
}

fn bundle(name: &str, namespace: &str, text: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name, "namespace": namespace },
        "data": { "ca-bundle.crt": text },
    })
}

fn inject(server: &Admin, reports: &Reports) -> Task {
    let reports = reports.clone();
    server.task_as(OPERATOR, |client, shutdown| async move {
        trust::controller::run(client, &reports, &shutdown).await;
    })
}

fn failure(reports: &Reports, level: Level) -> Option<Failure> {
    reports.follow().borrow().get(&level).cloned()
}

#[test]
fn labelled_config_map_gets_the_bundle() {
    // cluster-network#72
    let server = Server::take(install);
    let (first, second) = (certificate(), certificate());
    server.apply(&bundle("trusted-ca-bundle", "openshift-config-managed", &first));
    let mut wants = bundle("wants", "default", "old");
    wants["metadata"]["labels"] = json!({ "config.openshift.io/inject-trusted-cabundle": "true" });
    wants["metadata"]["annotations"] = json!({ "openshift.io/owning-component": "theirs" });
    wants["data"]["other"] = json!("kept");
    server.create("/api/v1/namespaces/default/configmaps", &wants);
    server.create(
        "/api/v1/namespaces/default/configmaps",
        &bundle("plain", "default", "old"),
    );
    let reports = Reports::default();
    let mark = server.mark();
    let _task = inject(&server, &reports);
    let injected = |text: &str| {
        server.wait_for("the bundle", WANTS, |map| {
            (map?["data"]["ca-bundle.crt"] == text)
                .then(|| map.cloned())
                .flatten()
        })
    };
    let map = injected(&first);
    assert_eq!(map["data"]["other"], "kept");
    assert_eq!(
        map["metadata"]["annotations"]["openshift.io/owning-component"],
        "theirs"
    );
    let managers = map["metadata"]["managedFields"].as_array().expect("managers");
    let ours = managers
        .iter()
        .find(|it| it["manager"] == "cluster-network-operator/configmap_ca");
    assert_eq!(
        ours.expect("ours")["fieldsV1"]["f:data"],
        json!({ "f:ca-bundle.crt": {} })
    );
    let plain = server
        .get("/api/v1/namespaces/default/configmaps/plain")
        .expect("it is there");
    assert_eq!(plain["data"]["ca-bundle.crt"], "old");

    // A `ConfigMap` without an owner gets one.
    let mut another = bundle("another", "default", "");
    another["metadata"]["labels"] = wants["metadata"]["labels"].clone();
    server.create("/api/v1/namespaces/default/configmaps", &another);
    server.wait_for(
        "an owner",
        "/api/v1/namespaces/default/configmaps/another",
        |map| {
            let owner = &map?["metadata"]["annotations"]["openshift.io/owning-component"];
            (owner == "Networking / cluster-network-operator").then_some(())
        },
    );
    let writes = |mark| {
        server
            .requests_of(OPERATOR, mark)
            .iter()
            .filter(|it| it.verb == "patch")
            .count()
    };
    assert_eq!(writes(mark), 2);

    // The first patch causes no write, and the second one does.
    let mark = server.mark();
    server
        .patch(WANTS, &json!({ "data": { "other": "changed" } }))
        .accepted();
    server
        .patch(WANTS, &json!({ "data": { "ca-bundle.crt": "drift" } }))
        .accepted();
    injected(&first);
    assert_eq!(writes(mark), 1);

    let key = rcgen::KeyPair::generate().expect("a key").serialize_pem();
    let mark = server.mark();
    server.apply(&bundle("trusted-ca-bundle", "openshift-config-managed", &key));
    until("Degraded", || match failure(&reports, Level::InjectorConfig) {
        Some(failure) if failure.reason == "InvalidInjectorConfig" && !failure.is_debounced => Ok(()),
        other => Err(format!("{other:?}")),
    });
    assert_eq!(writes(mark), 0);
    server.apply(&bundle("trusted-ca-bundle", "openshift-config-managed", &second));
    injected(&second);
    until("no failure", || match failure(&reports, Level::InjectorConfig) {
        None => Ok(()),
        other => Err(format!("{other:?}")),
    });
}

#[test]
fn immutable_config_maps_of_tenants_do_not_stop_the_injection() {
    let server = Server::take(install);
    let labels = json!({ "config.openshift.io/inject-trusted-cabundle": "true" });
    let path = "/api/v1/namespaces/default/configmaps";
    for number in 0..8 {
        server.create(
            path,
            &json!({
                "apiVersion": "v1", "kind": "ConfigMap", "immutable": true,
                "metadata": { "name": format!("a{number}"), "labels": labels },
            }),
        );
    }
    server.create(
        path,
        &json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "b", "labels": labels } }),
    );
    let text = certificate();
    server.apply(&bundle("trusted-ca-bundle", "openshift-config-managed", &text));
    let reports = Reports::default();
    let _injector = inject(&server, &reports);
    server.wait_for("the bundle", &format!("{path}/b"), |map| {
        (map?["data"]["ca-bundle.crt"] == text).then_some(())
    });
    assert_eq!(failure(&reports, Level::InjectorConfig), None);
}

// cluster-network#184
#[test]
fn config_map_that_its_user_deletes_is_not_created_again() {
    let server = Server::take(install);
    let mut wants = bundle("wants", "default", "theirs");
    wants["metadata"]["labels"] = json!({ "config.openshift.io/inject-trusted-cabundle": "true" });
    let create = || server.create("/api/v1/namespaces/default/configmaps", &wants);
    create();
    let (reports, mark) = (Reports::default(), server.mark());
    let (sink, hold) = (reports.clone(), Hold::watches_of("v1/configmaps"));
    let held = hold.clone();
    let _injector = server.task_as(OPERATOR, |client, shutdown| async move {
        trust::controller::run(held.client(client), &sink, &shutdown).await;
    });
    let answered = |what: &str, verb: &str, uri: &str, code: u64| {
        until(what, || {
            let requests = server.requests_of(OPERATOR, mark);
            let is_it = |it: &&stage::Request| it.verb == verb && it.uri.starts_with(uri) && it.code == code;
            match requests.iter().find(is_it) {
                Some(_) => Ok(()),
                None => Err(format!("{requests:#?}")),
            }
        });
    };
    answered("the list", "list", "/api/v1/configmaps", 200);
    // The injector does not know yet.
    server.delete(WANTS);
    let (first, second) = (certificate(), certificate());
    server.apply(&bundle("trusted-ca-bundle", "openshift-config-managed", &first));
    answered("a conflict", "patch", WANTS, 409);
    assert_eq!(server.get(WANTS), None);
    create();
    server.apply(&bundle("trusted-ca-bundle", "openshift-config-managed", &second));
    answered("another object", "patch", WANTS, 422);
    assert_eq!(failure(&reports, Level::InjectorConfig), None);
    hold.release();
    server.wait_for("the bundle", WANTS, |map| {
        (map?["data"]["ca-bundle.crt"] == second).then_some(())
    });
}

// cluster-network#183
#[test]
fn authorities_that_the_user_withdraws_are_trusted_no_more() {
    let server = Server::take(install);
    let user = certificate();
    server.apply(&bundle("ours", "openshift-config", &user));
    let path = "/api/v1/namespaces/default/configmaps";
    let mut wants = bundle("wants", "default", "");
    wants["metadata"]["labels"] = json!({ "config.openshift.io/inject-trusted-cabundle": "true" });
    server.create(path, &wants);
    let proxy = json!({
        "apiVersion": "config.openshift.io/v1", "kind": "Proxy", "metadata": { "name": "cluster" },
        "spec": { "trustedCA": { "name": "ours" } },
    });
    server.create(&format!("{CONFIG}/proxies"), &proxy);
    let reports = Reports::default();
    let sink = reports.clone();
    let _proxy = server.task_as(OPERATOR, |client, shutdown| async move {
        proxy::controller::run(client, "/nowhere".into(), None, &sink, &shutdown).await;
    });
    let _injector = inject(&server, &reports);
    let injected = |what: &str, path: &str, text: &str| {
        server.wait_for(what, path, |map| {
            (map?["data"]["ca-bundle.crt"] == text).then_some(())
        });
    };
    injected("the authorities", WANTS, &user);
    let config = format!("{CONFIG}/proxies/cluster");
    let trust = |name: &str| {
        let patch = json!({ "spec": { "trustedCA": { "name": name } } });
        server.patch(&config, &patch).accepted();
    };
    trust("");
    injected("no authorities", WANTS, "");
    wants["metadata"]["name"] = json!("later");
    wants["data"]["ca-bundle.crt"] = json!("theirs");
    server.create(path, &wants);
    injected("no authorities later", &format!("{path}/later"), "");
    assert_eq!(failure(&reports, Level::InjectorConfig), None);
    trust("ours");
    injected("the authorities again", WANTS, &user);
    server.delete(&config);
    injected("no authorities without a proxy", WANTS, "");
}

#[test]
fn client_that_reverts_the_bundle_is_answered_with_back_off() {
    let server = Server::take(install);
    let (first, second) = (certificate(), certificate());
    server.apply(&bundle("trusted-ca-bundle", "openshift-config-managed", &first));
    let mut wants = bundle("wants", "default", "theirs");
    wants["metadata"]["labels"] = json!({ "config.openshift.io/inject-trusted-cabundle": "true" });
    server.create("/api/v1/namespaces/default/configmaps", &wants);
    let (reports, mark) = (Reports::default(), server.mark());
    let _injector = inject(&server, &reports);
    let injected = |text: &str| {
        server.wait_for("the bundle", WANTS, |map| {
            (map?["data"]["ca-bundle.crt"] == text).then_some(())
        });
    };
    // The operator answers at once for a while, and then with pauses of seconds.
    for _ in 0..5 {
        injected(&first);
        let theirs = json!({ "data": { "ca-bundle.crt": "theirs" } });
        server.patch(WANTS, &theirs).accepted();
    }
    // Another bundle does not wait.
    server.apply(&bundle("trusted-ca-bundle", "openshift-config-managed", &second));
    injected(&second);
    let requests = server.requests_of(OPERATOR, mark).into_iter();
    let writes = requests.filter(|it| it.verb == "patch" && it.uri.starts_with(WANTS));
    assert_eq!(writes.count(), 6);
    assert_eq!(failure(&reports, Level::InjectorConfig), None);
}

#[test]
fn proxy_is_completed_and_its_authorities_are_merged() {
    let server = Server::take(install);
    let (user, system) = (certificate(), certificate());
    let directory = tempfile::tempdir().expect("a directory");
    let file = directory.path().join("system.pem");
    fs::write(&file, &system).expect("written");
    server.apply(&bundle("ours", "openshift-config", &user));
    server.create(
        &format!("{CONFIG}/proxies"),
        &json!({
            "apiVersion": "config.openshift.io/v1", "kind": "Proxy", "metadata": { "name": "cluster" },
            "spec": { "httpProxy": "http://p:1", "noProxy": "example.org", "trustedCA": { "name": "ours" } },
        }),
    );
    let infrastructure = json!({
        "apiVersion": "config.openshift.io/v1", "kind": "Infrastructure", "metadata": { "name": "cluster" },
    });
    server.create(&format!("{CONFIG}/infrastructures"), &infrastructure);
    let status = json!({
        "apiServerInternalURI": "https://api-int.example.com:6443",
        "platformStatus": { "type": "AWS", "aws": { "region": "eu-west-1" } },
    });
    server.report(&format!("{CONFIG}/infrastructures/cluster"), &status);
    let reports = Reports::default();
    let mark = server.mark();
    let (sink, path) = (reports.clone(), file.clone());
    let _task = server.task_as(OPERATOR, |client, shutdown| async move {
        proxy::controller::run(client, path, None, &sink, &shutdown).await;
    });
    until("what is missing", || {
        match failure(&reports, Level::ProxyConfig) {
            Some(failure)
                if failure
                    .message
                    .ends_with("serviceNetwork missing from network 'cluster' status") =>
            {
                Ok(())
            }
            other => Err(format!("{other:?}")),
        }
    });
    let network = json!({
        "apiVersion": "config.openshift.io/v1", "kind": "Network", "metadata": { "name": "cluster" },
        "spec": {
            "networkType": "Weft", "serviceNetwork": ["10.96.0.0/12"],
            "clusterNetwork": [{ "cidr": "10.244.0.0/16", "hostPrefix": 24 }],
        },
        "status": { "serviceNetwork": ["10.96.0.0/12"], "clusterNetwork": [{ "cidr": "10.244.0.0/16", "hostPrefix": 24 }] },
    });
    server.create(&format!("{CONFIG}/networks"), &network);
    let status = server.wait_for("the status", &format!("{CONFIG}/proxies/cluster"), |proxy| {
        let status = &proxy?["status"];
        status["noProxy"].is_string().then(|| status.clone())
    });
    assert_eq!(status["httpProxy"], "http://p:1");
    assert_eq!(
        status["noProxy"],
        ".cluster.local,.eu-west-1.compute.internal,.svc,10.244.0.0/16,10.96.0.0/12,127.0.0.1,169.254.169.254,\
         api-int.example.com,example.org,localhost"
    );
    let merged = server.wait_for("the bundle", &format!("{MANAGED}/trusted-ca-bundle"), |map| {
        map.cloned()
    });
    assert_eq!(merged["data"]["ca-bundle.crt"], format!("{user}\n{system}"));
    assert_eq!(
        merged["metadata"]["annotations"]["openshift.io/owning-component"],
        "Networking / cluster-network-operator"
    );
    server
        .patch(
            &format!("{CONFIG}/proxies/cluster"),
            &json!({ "spec": { "httpProxy": "https://p:1" } }),
        )
        .accepted();
    until("Degraded", || match failure(&reports, Level::ProxyConfig) {
        Some(failure) if failure.reason == "InvalidProxyConfig" && !failure.is_debounced => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let refused: Vec<_> = server
        .requests_of(OPERATOR, mark)
        .into_iter()
        .filter(|it| it.code == 403)
        .collect();
    assert!(refused.is_empty(), "{refused:?}");
}

/// A proxy that counts requests, and answers with status 503 until `works` is set.
struct Proxy {
    url: String,
    works: Arc<AtomicBool>,
    requests: Arc<AtomicUsize>,
}

impl Proxy {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("an address"));
        let (works, requests) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let (is_working, count) = (Arc::clone(&works), Arc::clone(&requests));
        thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                count.fetch_add(1, Ordering::SeqCst);
                let status = if is_working.load(Ordering::SeqCst) {
                    200
                } else {
                    503
                };
                // A single read gets the whole head of a request for a short URL.
                let _ = stream.read(&mut [0; 4096]);
                let _ = write!(stream, "HTTP/1.1 {status} X\r\nContent-Length: 0\r\n\r\n");
            }
        });
        Self { url, works, requests }
    }
}

// cluster-network#96
#[test]
fn proxy_counts_once_its_endpoints_answer() {
    let server = Server::take(install);
    let answering = Proxy::start();
    server.create(
        &format!("{CONFIG}/networks"),
        &json!({
            "apiVersion": "config.openshift.io/v1", "kind": "Network", "metadata": { "name": "cluster" },
            "spec": {
                "networkType": "Weft", "serviceNetwork": ["10.96.0.0/12"],
                "clusterNetwork": [{ "cidr": "10.244.0.0/16", "hostPrefix": 24 }],
            },
            "status": { "serviceNetwork": ["10.96.0.0/12"], "clusterNetwork": [{ "cidr": "10.244.0.0/16" }] },
        }),
    );
    let infrastructure = json!({
        "apiVersion": "config.openshift.io/v1", "kind": "Infrastructure", "metadata": { "name": "cluster" },
    });
    server.create(&format!("{CONFIG}/infrastructures"), &infrastructure);
    let status = json!({ "apiServerInternalURI": "https://api-int.example.com:6443" });
    server.report(&format!("{CONFIG}/infrastructures/cluster"), &status);
    let path = format!("{CONFIG}/proxies/cluster");
    server.create(
        &format!("{CONFIG}/proxies"),
        &json!({
            "apiVersion": "config.openshift.io/v1", "kind": "Proxy", "metadata": { "name": "cluster" },
            "spec": { "httpProxy": answering.url, "readinessEndpoints": ["http://ready.example/"] },
        }),
    );
    let reports = Reports::default();
    let sink = reports.clone();
    let _task = server.task_as(OPERATOR, |client, shutdown| async move {
        proxy::controller::run(client, "/nowhere".into(), None, &sink, &shutdown).await;
    });
    until("Degraded", || match failure(&reports, Level::ProxyConfig) {
        Some(failure) if failure.reason == "InvalidProxyConfig" && !failure.is_debounced => {
            let cause = "(readinessEndpoint probe failed for endpoint 'http://ready.example/': status 503)";
            assert!(failure.message.contains(cause), "{}", failure.message);
            Ok(())
        }
        other => Err(format!("{other:?}")),
    });
    assert!(server.get(&path).expect("a proxy")["status"]["httpProxy"].is_null());

    answering.works.store(true, Ordering::SeqCst);
    server.wait_for("the status", &path, |proxy| {
        (proxy?["status"]["httpProxy"] == answering.url.as_str()).then_some(())
    });
    until("no failure", || match failure(&reports, Level::ProxyConfig) {
        None => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let requests = answering.requests.load(Ordering::SeqCst);
    // Changes of other objects, with an observable effect.
    server
        .patch(
            &format!("{CONFIG}/networks/cluster"),
            &json!({ "status": { "serviceNetwork": ["10.97.0.0/16"] } }),
        )
        .accepted();
    server.wait_for("the new range", &path, |proxy| {
        let exceptions = proxy?["status"]["noProxy"].as_str()?;
        exceptions.contains("10.97.0.0/16").then_some(())
    });
    assert_eq!(answering.requests.load(Ordering::SeqCst), requests);
}
