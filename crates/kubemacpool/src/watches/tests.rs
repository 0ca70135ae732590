use super::*;
use crate::range::Range;
use axum::body::Body as AnswerBody;
use axum::http::{Request, Response, StatusCode};
use cni::mac::Mac;
use kube::client::Body;
use std::convert::Infallible;
use std::future::pending;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use tower::service_fn;

/// A client whose server responds by path: with a code and a body, or never.
pub(crate) fn server(answer: impl Fn(&str) -> Option<(u16, &'static str)> + Send + 'static) -> Client {
    let service = service_fn(move |request: Request<Body>| {
        let answer = answer(request.uri().path());
        async move {
            let Some((code, body)) = answer else {
                return pending().await;
            };
            let mut response = Response::new(AnswerBody::from(body));
            *response.status_mut() = StatusCode::from_u16(code).expect("a code");
            Ok::<_, Infallible>(response)
        }
    });
    Client::new(service, "default")
}

/// A manager without observed objects.
pub(crate) fn core(client: Client) -> Core {
    let mac = |text| Mac::parse(text).expect("an address");
    let range = Range::new(mac("02:00:00:00:00:00"), mac("02:00:00:00:00:ff")).expect("a range");
    Core {
        shared: Arc::new(Mutex::new(State::new(range, range, 0))),
        client,
        readiness: Readiness::new(),
        notices: Notices::new(),
        usage_changed: Arc::new(Notify::new()),
        hint: Arc::new(Notify::new()),
    }
}

// kubemacpool#67, while there are none
#[tokio::test(start_paused = true)]
async fn discovery_backs_off_without_kubevirt_until_hinted() {
    let attempts = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&attempts);
    let core = core(server(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        let none = r#"{ "kind": "Status", "status": "Failure", "message": "no", "reason": "NotFound", "code": 404 }"#;
        Some((404, none))
    }));
    tokio::spawn(core.clone().kubevirt());
    tokio::time::sleep(Duration::from_hours(1)).await;
    let in_an_hour = attempts.load(Ordering::Relaxed);
    assert!((10..30).contains(&in_an_hour), "{in_an_hour} lookups in an hour");

    core.hint.notify_one();
    tokio::time::sleep(DISCOVERY + Duration::from_secs(1)).await;
    assert_eq!(attempts.load(Ordering::Relaxed), in_an_hour + 1);
}
