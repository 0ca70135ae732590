use std::sync::{Arc, Mutex};

use axum::http::{Request, Response, header};
use kube::{Client, client::Body};
use kube_kit::{apply::Applier, merge::Policy};
use serde_json::{Value, json};
use tower::{BoxError, service_fn};

use super::{super::Reconciler, Target, apply_one, cluster_status, filled_config};
use crate::base::{b, entry, ovn, spec, texts};
use crate::{facts::ApiServer, metrics::Metrics, observe::Stored, settings::Settings};

// cluster-network#67
#[test]
fn status_of_a_foreign_network_is_its_own() {
    let mut applied = b();
    applied.default_network.kind = "Calico".to_owned();
    let mut vendor = api::cluster_network::config::NetworkStatus::default();
    let filled = cluster_status(&vendor, &applied);
    assert_eq!(filled.network_type, "Calico");
    assert_eq!(filled.cluster_network, applied.cluster_network);
    assert_eq!(filled.cluster_network_mtu, 0);
    vendor.cluster_network_mtu = 1450;
    vendor.cluster_network = vec![entry("10.9.0.0/16", 24)];
    vendor.service_network = texts(&["10.8.0.0/16"]);
    vendor.network_type = "calico".to_owned();
    assert_eq!(cluster_status(&vendor, &applied), vendor);
    // For a known default network, the operator overwrites manual edits.
    let mut applied = b();
    ovn(&mut applied).mtu = Some(1400);
    applied.migration = Some(spec("{mtu: {network: {from: 1500, to: 1400}}}"));
    let status = cluster_status(&vendor, &applied);
    assert_eq!(
        (status.network_type.as_str(), status.cluster_network_mtu),
        ("OVNKubernetes", 1400)
    );
    assert_eq!(status.cluster_network, applied.cluster_network);
    assert_eq!(status.service_network, applied.service_network);
    let migration = status.migration.and_then(|migration| migration.mtu);
    assert_eq!(migration, applied.migration.and_then(|migration| migration.mtu));
}

/// Requests to the API server: the method, and the kind of a patch.
type Asked = Arc<Mutex<Vec<String>>>;

/// A reconciler with an API server that answers with these codes, by method and kind of patch.
fn before(codes: &'static [(&'static str, u16)]) -> (Reconciler, Asked) {
    let asked = Asked::default();
    let log = Arc::clone(&asked);
    let service = service_fn(move |request: Request<Body>| {
        let kind = request.headers().get(header::CONTENT_TYPE);
        let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or_default();
        let what = match kind.split_once("patch").map(|(kind, _)| kind) {
            Some(kind) => format!(
                "{} {}",
                request.method(),
                kind.trim_start_matches("application/").trim_matches('-')
            ),
            None => request.method().to_string(),
        };
        let code = codes
            .iter()
            .find(|(known, _)| *known == what)
            .map_or(200, |(_, code)| *code);
        log.lock().expect("a log").push(what);
        async move {
            let body = if code == 200 {
                json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a", "namespace": "ns" } })
            } else {
                json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "reason": if code == 404 { "NotFound" } else { "Invalid" }, "details": { "name": "a", "kind": "configmaps" },
                    "message": "refused" })
            };
            let body = Body::from(body.to_string().into_bytes());
            Response::builder()
                .status(code)
                .body(body)
                .map_err(BoxError::from)
        }
    });
    let applier = Applier::new(Client::new(service, "default"), Policy::owned_by("Network"));
    let image = |name: &str| (name == "NETWORK_OPERATOR_IMAGE").then(|| "weft".to_owned());
    let settings = Settings::read("ns", image).expect("settings");
    (
        Reconciler::new(applier, None, settings, ApiServer::default(), Metrics::default()),
        asked,
    )
}

async fn apply(
    codes: &'static [(&'static str, u16)],
    annotations: &Value,
) -> (Result<(), String>, Vec<String>) {
    let (reconciler, asked) = before(codes);
    let object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "a", "namespace": "ns", "annotations": annotations },
    });
    let target = Target {
        applier: &reconciler.applier,
        owner: json!({ "uid": "1" }),
        is_management: false,
    };
    let outcome = apply_one(&object, &target).await;
    let asked = asked.lock().expect("a log").clone();
    (outcome, asked)
}

const ERROR: &str =
    "Error while updating operator configuration: could not apply (/v1, Kind=ConfigMap) ns/a: refused";

// cluster-network#58
#[tokio::test]
async fn patch_goes_before_the_object() {
    let patched = json!({ "networkoperator.openshift.io/pre-patch": r#"{"data":{"a":null}}"# });
    let (outcome, asked) = apply(&[], &patched).await;
    assert_eq!(
        (outcome, asked),
        (
            Ok(()),
            vec!["PATCH strategic-merge".to_owned(), "PATCH apply".to_owned()]
        )
    );
    let (outcome, asked) = apply(&[("PATCH strategic-merge", 404)], &patched).await;
    assert_eq!((outcome, asked.len()), (Ok(()), 2));
    let (outcome, asked) = apply(&[("PATCH strategic-merge", 422)], &patched).await;
    assert_eq!(
        (outcome, asked),
        (Err(ERROR.to_owned()), vec!["PATCH strategic-merge".to_owned()])
    );
    let (outcome, asked) = apply(&[], &json!({})).await;
    assert_eq!((outcome, asked), (Ok(()), vec!["PATCH apply".to_owned()]));
}

// cluster-network#59
#[tokio::test]
async fn annotations_steer_requests() {
    let with = |key: &str| json!({ format!("networkoperator.openshift.io/{key}"): "" });
    let (outcome, asked) = apply(&[], &with("create-only")).await;
    assert_eq!((outcome, asked), (Ok(()), vec!["GET".to_owned()]));
    let (outcome, asked) = apply(&[("GET", 404)], &with("create-only")).await;
    assert_eq!(
        (outcome, asked),
        (Ok(()), vec!["GET".to_owned(), "PATCH apply".to_owned()])
    );
    let (outcome, asked) = apply(&[], &with("create-wait")).await;
    assert_eq!((outcome, asked), (Ok(()), Vec::new()));
    let (outcome, _) = apply(&[("PATCH apply", 422)], &with("ignore-errors")).await;
    assert_eq!(outcome, Ok(()));
    let (outcome, _) = apply(&[("PATCH apply", 422)], &json!({})).await;
    assert_eq!(outcome, Err(ERROR.to_owned()));
}

// cluster-network#97
#[test]
fn defaults_are_written_to_the_version_that_was_read() {
    let object = json!({ "metadata": { "name": "cluster", "resourceVersion": "7" } });
    let stored = Stored {
        object: Arc::new(object),
        spec: b(),
    };
    let written = filled_config(&stored, &b());
    assert_eq!(
        written["metadata"],
        json!({ "name": "cluster", "resourceVersion": "7" })
    );
}
