use super::*;
use crate::names;
use crate::range::Range;
use crate::timestamp::Timestamp;
use crate::watches::tests::{core, server};
use axum::body::Body as AnswerBody;
use axum::http::{Request, Response};
use cni::mac::Mac;
use kube::Client;
use kube::client::Body;
use serde_json::json;
use std::convert::Infallible;
use std::net::Ipv4Addr;
use std::sync::Mutex;
use tokio::time::Instant as Moment;
use tower::service_fn;

// kubemacpool#45
#[test]
fn next_check_is_due_with_the_oldest_admission() {
    let (wait, now) = (Duration::from_mins(10), Instant::now());
    let since = |seconds| now.checked_sub(Duration::from_secs(seconds));
    assert_eq!(pause(since(100), now, wait), Duration::from_secs(500));
    assert_eq!(pause(since(700), now, wait), Duration::ZERO);
    // Later admissions are not due earlier.
    assert_eq!(pause(None, now, wait), wait);
    assert!(
        pause(None, now, Duration::ZERO) > Duration::ZERO,
        "nothing is polled in a circle"
    );
}

#[test]
fn unreported_object_keeps_addresses_of_unnamed_admission() {
    let mac = |text| Mac::parse(text).expect("an address");
    let holding = |text| Holding {
        mac: mac(text),
        key: "net".into(),
    };
    let (logged, unreported_holding) = (holding("02:00:00:00:00:01"), holding("02:00:00:00:00:02"));
    let range = Range::new(mac("02:00:00:00:00:00"), mac("02:00:00:00:00:ff")).expect("a range");
    let mut pool = Pool::new(range, 0);
    pool.store(&Owner::pod("ns", "a"), "uid", vec![logged.clone()], None);
    let objects = vec![
        (Owner::pod("ns", "a"), vec![logged]),
        (Owner::pod("ns", "b"), vec![unreported_holding.clone()]),
    ];
    assert_eq!(unreported(&pool, objects), [unreported_holding]);
}

fn pending(claimant: Claimant) -> Pending {
    Pending {
        claimant,
        timestamp: Timestamp::after(None),
        uid: None,
        admitted: Instant::now(),
        client: Ipv4Addr::LOCALHOST.into(),
    }
}

#[tokio::test(start_paused = true)]
async fn lookups_are_one_per_namespace_and_concurrent() {
    let began = Moment::now();
    let request = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&request);
    let client = server(move |path| {
        log.lock()
            .expect("the log")
            .push((path.to_owned(), began.elapsed()));
        // The look-up by name is never answered.
        let list = r#"{ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": [] }"#;
        (!path.ends_with("/slow")).then_some((200, list))
    });
    let unnamed = |number: u64, namespace: &str| {
        let claimant = Claimant::Unnamed {
            kind: Kind::Pod,
            namespace: namespace.into(),
            request: number.to_string().into(),
        };
        (number, pending(claimant))
    };
    let overdue = vec![
        (0, pending(Claimant::Named(Owner::pod("a", "slow")))),
        unnamed(1, "a"),
        unnamed(2, "b"),
        unnamed(3, "a"),
        unnamed(4, "a"),
    ];
    check_overdue(&core(client), overdue, Duration::from_mins(1)).await;
    let mut request = request.lock().expect("the log").clone();
    request.sort();
    let at_once = |path: &str| (path.to_owned(), Duration::ZERO);
    assert_eq!(
        request,
        [
            at_once("/api/v1/namespaces/a/pods"),
            at_once("/api/v1/namespaces/a/pods/slow"),
            at_once("/api/v1/namespaces/b/pods"),
        ]
    );
    assert!(began.elapsed() >= TIMEOUT, "the slow one had its time");
}

#[tokio::test(start_paused = true)]
async fn namespace_is_read_page_by_page_each_with_its_own_timeout() {
    let queries = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&queries);
    let client = Client::new(
        service_fn(move |request: Request<Body>| {
            let query = request.uri().query().unwrap_or_default().to_owned();
            let (pod, next) = if query.contains("continue=") {
                ("b", "")
            } else {
                ("a", "more")
            };
            log.lock().expect("the log").push(query);
            let networks = format!(r#"[{{ "name": "net", "mac": "02:00:00:00:00:0{pod}" }}]"#);
            let metadata =
                json!({ "name": pod, "namespace": "ns", "annotations": { names::NETWORKS: networks } });
            let page = json!({
                "kind": "PodList", "apiVersion": "v1", "metadata": { "continue": next }, "items": [{ "metadata": metadata }],
            });
            async move {
                tokio::time::sleep(TIMEOUT.saturating_sub(Duration::from_secs(1))).await;
                Ok::<_, Infallible>(Response::new(AnswerBody::from(page.to_string())))
            }
        }),
        "default",
    );
    let found = read(&core(client), &Lookup::Namespace(Kind::Pod, "ns".into())).await;
    let found = found.expect("an answer").expect("two pods");
    assert_eq!(found.holdings.len(), 2);
    let queries = queries.lock().expect("the log");
    assert_eq!(queries.len(), 2);
    assert!(
        queries.iter().all(|query| query.contains("limit=")),
        "{queries:?}"
    );
}
