use axum::body::Body;
use axum::http::{Request, StatusCode};
use axum::routing::post;
use prometheus_client::encoding::text::encode;
use tower::ServiceExt as _;

use super::*;

fn text(metrics: &Metrics) -> String {
    let mut text = String::new();
    encode(&mut text, &metrics.registry()).expect("text");
    text
}

fn metrics(snapshot: Snapshot) -> Metrics {
    Metrics::new(Arc::new(move || snapshot.clone()))
}

#[track_caller]
fn assert_lines(metrics: &Metrics, expected: &[&str]) {
    let text = text(metrics);
    for line in expected {
        assert!(
            text.lines().any(|found| found == *line),
            "{line} is not in\n{text}"
        );
    }
}

#[test]
fn upstream_metrics_are_unchanged() {
    let expected = "# HELP kmp_mac_collisions Count of running objects sharing the same MAC address (collision when > 1)\n\
        # TYPE kmp_mac_collisions gauge\n\
        # HELP kubevirt_kmp_duplicate_macs [DEPRECATED] Total count of duplicate KubeMacPool MAC addresses. Use kmp_mac_collisions instead.\n\
        # TYPE kubevirt_kmp_duplicate_macs counter\n\
        kubevirt_kmp_duplicate_macs 0\n";
    let text = text(&metrics(Snapshot::default()));
    assert!(text.contains(expected), "{text}");
}

// kubemacpool#63
#[test]
fn metric_values_are_integers() {
    let snapshot = Snapshot {
        collisions: vec![
            (Mac::from_number(0x0200_0000_0050), 2),
            (Mac::from_number(0x0200_0000_0051), 3),
        ],
        duplicates: 1,
        range: RangeSnapshot {
            addresses: (1 << 40) - 1,
            used: 7,
            reserved: 1,
            pending: 2,
        },
    };
    assert_lines(
        &metrics(snapshot),
        &[
            r#"kmp_mac_collisions{mac="02:00:00:00:00:50"} 2"#,
            r#"kmp_mac_collisions{mac="02:00:00:00:00:51"} 3"#,
            "kubevirt_kmp_duplicate_macs 1",
            "kmp_range_addresses 1099511627775",
            "kmp_range_used 7",
            "kmp_range_reserved 1",
            "kmp_range_pending 2",
        ],
    );
}

#[tokio::test]
async fn reviews_are_counted_by_webhook_and_code() {
    let metrics = metrics(Snapshot::default());
    assert_lines(
        &metrics,
        &[
            r#"controller_runtime_webhook_requests_total{webhook="/mutate-pods",code="200"} 0"#,
            r#"controller_runtime_webhook_requests_total{webhook="/mutate-virtualmachines",code="500"} 0"#,
            r#"controller_runtime_webhook_latency_seconds_count{webhook="/mutate-virtualmachines"} 0"#,
        ],
    );
    let router = Router::new()
        .route("/mutate-pods", post(|| async { "fine" }))
        .route(
            "/mutate-virtualmachines",
            post(|| async { StatusCode::BAD_REQUEST }),
        );
    let router = metrics.counted(router);
    for path in [
        "/mutate-pods",
        "/mutate-pods",
        "/mutate-virtualmachines",
        "/other",
    ] {
        let request = Request::post(format!("{path}?timeout=10s")).body(Body::empty());
        router
            .clone()
            .oneshot(request.expect("a request"))
            .await
            .expect("an answer");
    }
    assert_lines(
        &metrics,
        &[
            r#"controller_runtime_webhook_requests_total{webhook="/mutate-pods",code="200"} 2"#,
            r#"controller_runtime_webhook_requests_total{webhook="/mutate-virtualmachines",code="400"} 1"#,
            r#"controller_runtime_webhook_latency_seconds_count{webhook="/mutate-pods"} 2"#,
            r#"controller_runtime_webhook_requests_in_flight{webhook="/mutate-pods"} 0"#,
        ],
    );
    assert!(!text(&metrics).contains("/other"));
}

#[tokio::test]
async fn review_of_disconnected_client_stops() {
    let metrics = metrics(Snapshot::default());
    let never = || std::future::pending::<&str>();
    let router = metrics.counted(Router::new().route("/mutate-pods", post(never)));
    let request = Request::post("/mutate-pods")
        .body(Body::empty())
        .expect("a request");
    let mut answer = Box::pin(router.oneshot(request));
    assert!(futures::poll!(&mut answer).is_pending());
    let running = |count: u8| {
        format!(r#"controller_runtime_webhook_requests_in_flight{{webhook="/mutate-pods"}} {count}"#)
    };
    assert_lines(&metrics, &[&running(1)]);
    drop(answer);
    assert_lines(&metrics, &[&running(0)]);
}

#[tokio::test]
async fn unusable_metrics_address_is_reported() {
    // The values are read at each scrape.
    let nowhere = kube::Config::new("http://127.0.0.1:1".parse().expect("a URL"));
    let client = Client::try_from(nowhere).expect("a client");
    let metrics = metrics(Snapshot::default());
    let serve = async |bind: Bind| {
        let (metrics, client) = (metrics.clone(), client.clone());
        let none = Path::new("/nonexistent");
        metrics.serve(client, &bind, Profile::default(), none, "ns").await
    };
    assert!(serve(Bind::Off).await.expect("no error").is_none());
    let named = serve(Bind::At("localhost".to_owned(), 0))
        .await
        .expect("a server");
    assert!(named.expect("a server").address().ip().is_loopback());
    let first = serve(Bind::At("127.0.0.1".to_owned(), 0))
        .await
        .expect("a server");
    let port = first.as_ref().expect("a server").address().port();
    let error = serve(Bind::At("127.0.0.1".to_owned(), port))
        .await
        .expect_err("an error");
    let text = format!("{:#}", anyhow::Error::new(error));
    assert!(
        text.starts_with(&format!(
            "the metrics: cannot listen on 127.0.0.1:{port}: Address already in use"
        )),
        "{text}"
    );
    drop(first);
}
