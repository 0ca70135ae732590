#![allow(clippy::expect_used, clippy::panic, reason = "a test fails by panicking")]

use super::*;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, mpsc};

use axum::body::to_bytes;
use proptest::prelude::*;
use serde_json::json;
use tokio::sync::Notify;
use tower::ServiceExt as _;

const UID: &str = "705ab4f5-6393-11e8-b7cc-42010a800002";

fn review(version: &str) -> Value {
    json!({
        "kind": "AdmissionReview",
        "apiVersion": format!("admission.k8s.io/{version}"),
        "request": {
            "uid": UID,
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "requestKind": {"group": "", "version": "v1", "kind": "Pod"},
            "name": "web",
            "namespace": "shop",
            "operation": "CREATE",
            "userInfo": {"username": "admin", "groups": ["system:masters"], "extra": {"a": ["b"]}},
            "object": {"metadata": {"name": "web", "annotations": {"x": "ä"}}, "number": 1.50},
            "oldObject": null,
            "dryRun": false,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"}
        }
    })
}

/// Returns the request as a patch.
async fn decide(request: Request) -> Verdict {
    let object = request.object.as_ref().map_or("none", |object| object.get());
    match request.name.as_str() {
        "panics" => panic!("on purpose"),
        "panics-later" => {
            tokio::task::yield_now().await;
            panic!("on purpose")
        }
        "denied" => Verdict {
            patch: vec![add("/a", 1)],
            ..Verdict::denied(500, "the range is full")
        },
        "explained" => Verdict {
            message: Some("template is nil".to_owned()),
            ..Verdict::allowed()
        },
        "warned" => Verdict {
            warnings: vec!["taken".to_owned()],
            ..Verdict::allowed()
        },
        "patched" => Verdict::patched(vec![
            add("/metadata/annotations", json!({})),
            Change::Replace {
                path: "/metadata/annotations/a~1b".to_owned(),
                value: "c".into(),
            },
        ]),
        "echo" => Verdict {
            message: Some(format!(
                "{:?} {} {} {object} {}",
                request.operation,
                request.namespace,
                request.dry_run,
                request.old_object.as_ref().map_or("none", |object| object.get()),
            )),
            ..Verdict::allowed()
        },
        _ => Verdict::allowed(),
    }
}

fn add(path: &str, value: impl Into<Value>) -> Change {
    Change::Add {
        path: path.to_owned(),
        value: value.into(),
    }
}

/// Posts a body, and returns status and body of the answer.
async fn post(content_type: Option<&str>, body: impl Into<Body>) -> (u16, Vec<u8>) {
    let mut request = HttpRequest::post("/mutate?timeout=10s");
    if let Some(content_type) = content_type {
        request = request.header(header::CONTENT_TYPE, content_type);
    }
    let request = request.body(body.into()).expect("a request");
    let answer = router("/mutate", decide).oneshot(request).await;
    let (parts, body) = answer.expect("an answer").into_parts();
    let body = to_bytes(body, usize::MAX).await.expect("a body");
    (parts.status.as_u16(), body.to_vec())
}

/// The response to a review.
async fn ask(body: impl Into<Body>) -> Value {
    let (status, body) = post(Some("application/json"), body).await;
    assert_eq!(status, 200);
    serde_json::from_slice(&body).expect("JSON")
}

async fn named(version: &str, name: &str) -> Value {
    let mut review = review(version);
    review["request"]["name"] = name.into();
    ask(review.to_string()).await
}

fn refused(uid: &str, code: u16, message: &str) -> Value {
    json!({
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "response": {"uid": uid, "allowed": false, "status": {"code": code, "message": message}}
    })
}

// kubevirt-ipam#39
#[tokio::test]
async fn review_is_answered_in_its_version_with_its_uid() {
    for version in ["v1", "v1beta1"] {
        let expected = json!({
            "apiVersion": format!("admission.k8s.io/{version}"),
            "kind": "AdmissionReview",
            "response": {"uid": UID, "allowed": true, "status": {"code": 200}}
        });
        assert_eq!(named(version, "plain").await, expected);
    }
}

/// An endless body without a declared length.
fn endless() -> Body {
    Body::from_stream(futures::stream::pending::<Result<Vec<u8>, std::io::Error>>())
}

// kubemacpool#92
#[tokio::test(start_paused = true)]
async fn slow_bodies_of_one_client_do_not_block_another() {
    let router = router("/mutate", decide);
    let send = |client: u8, body: Body| {
        let mut request = HttpRequest::post("/mutate").header(header::CONTENT_TYPE, "application/json");
        if let Some(extensions) = request.extensions_mut() {
            extensions.insert(Peer(Ipv4Addr::new(10, 0, 0, client).into()));
        }
        router.clone().oneshot(request.body(body).expect("a request"))
    };
    let long = |length: usize| Body::from(vec![b' '; length]);
    let mut slow: Vec<_> = (0..20).map(|_| Box::pin(send(1, endless()))).collect();
    for one in &mut slow {
        assert!(futures::poll!(one.as_mut()).is_pending());
    }
    // The flooding client's own small review does not wait either: it fits into the rest of its half. Time passes only
    // while a review waits for memory.
    let began = Instant::now();
    for (client, length) in [(2, LIMIT), (2, 10), (1, 10)] {
        assert!(send(client, long(length)).await.is_ok(), "{client} {length}");
        assert_eq!(began.elapsed(), Duration::ZERO, "{client} {length}");
    }
    let mut waits = Box::pin(send(1, long(LIMIT)));
    assert!(futures::poll!(waits.as_mut()).is_pending());
    drop(slow);
    assert!(waits.await.is_ok());
    assert_eq!(began.elapsed(), Duration::ZERO);
    // A review that gets no memory, or never ends, is refused at the timeout.
    let mut slow: Vec<_> = (0..3).map(|_| Box::pin(send(1, endless()))).collect();
    for one in &mut slow {
        assert!(futures::poll!(one.as_mut()).is_pending());
    }
    let answers = futures::future::join_all(slow).await;
    for answer in answers {
        let body = answer.expect("an answer").into_body();
        let body = to_bytes(body, usize::MAX).await.expect("a body");
        let answer: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(answer, refused("", 400, messages::TOO_SLOW));
    }
}

/// A review with this name and an object larger than a number of bytes.
fn long_review(name: &str, length: usize) -> Value {
    let mut review = review("v1");
    review["request"]["name"] = name.into();
    review["request"]["object"]["filling"] = "x".repeat(length).into();
    review
}

fn posted(review: &Value) -> HttpRequest {
    let request = HttpRequest::post("/mutate").header(header::CONTENT_TYPE, "application/json");
    request.body(Body::from(review.to_string())).expect("a request")
}

/// Large reviews called `held` block their thread, like parsing, until the test releases one.
#[derive(Clone)]
struct Gate {
    opened: Arc<Mutex<mpsc::Receiver<()>>>,
    begun: Arc<AtomicUsize>,
}

impl Gate {
    fn new() -> (Self, mpsc::Sender<()>) {
        let (open, opened) = mpsc::channel();
        let gate = Self {
            opened: Arc::new(Mutex::new(opened)),
            begun: Arc::default(),
        };
        (gate, open)
    }

    #[allow(clippy::unused_async, reason = "a handler that blocks its thread")]
    async fn decide(self, request: Request) -> Verdict {
        if request.name == "held" {
            self.begun.fetch_add(1, Ordering::SeqCst);
            let opened = self.opened.lock().expect("the gate").recv_timeout(TIMEOUT * 2);
            assert_eq!(opened, Ok(()), "nothing else was answered meanwhile");
        }
        Verdict::allowed()
    }
}

async fn allowed(answer: Response) -> bool {
    let body = to_bytes(answer.into_body(), usize::MAX).await.expect("a body");
    let answer: Value = serde_json::from_slice(&body).expect("JSON");
    answer["response"]["allowed"] == true
}

#[tokio::test]
async fn small_review_is_answered_while_large_one_is_parsed() {
    let (limits, (gate, open)) = (Limits::new(), Gate::new());
    let send = |name: &str, length: usize| {
        let gate = gate.clone();
        let handler = move |request| gate.clone().decide(request);
        respond(posted(&long_review(name, length)), &limits, handler)
    };
    let mut first = Box::pin(send("held", LARGE));
    assert!(futures::poll!(first.as_mut()).is_pending());
    let mut second = Box::pin(send("held", LARGE));
    assert!(futures::poll!(second.as_mut()).is_pending());
    let small = send("small", 10).now_or_never().expect("an answer at once");
    assert!(allowed(small).await);

    // One at a time.
    assert_eq!(limits.turn.available_permits(), 0);
    assert!(gate.begun.load(Ordering::SeqCst) <= 1);
    open.send(()).expect("the gate");
    assert!(allowed(first.await).await);
    open.send(()).expect("the gate");
    assert!(allowed(second.await).await);
    assert_eq!(gate.begun.load(Ordering::SeqCst), 2);
    assert_eq!(
        (limits.turn.available_permits(), limits.memory.free()),
        (1, MEMORY / CHUNK)
    );
}

#[tokio::test]
async fn large_review_of_gone_client_keeps_memory_until_parsed() {
    let (limits, (gate, open)) = (Limits::new(), Gate::new());
    let handler = {
        let gate = gate.clone();
        move |request| gate.clone().decide(request)
    };
    let mut review = Box::pin(respond(posted(&long_review("held", LARGE)), &limits, handler));
    assert!(futures::poll!(review.as_mut()).is_pending());
    until(|| gate.begun.load(Ordering::SeqCst) == 1).await;
    drop(review);
    assert!(limits.memory.free() < MEMORY / CHUNK);
    open.send(()).expect("the gate");
    until(|| limits.memory.free() == MEMORY / CHUNK).await;
    assert_eq!(limits.turn.available_permits(), 1);
}

#[tokio::test]
async fn response_to_large_review_that_was_pending_is_serialized_in_its_turn() {
    let limits = Limits::new();
    let (begun, decided) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let handler = {
        let (begun, decided) = (Arc::clone(&begun), Arc::clone(&decided));
        move |_| {
            let (begun, decided) = (Arc::clone(&begun), Arc::clone(&decided));
            async move {
                begun.notify_one();
                decided.notified().await;
                Verdict::allowed()
            }
        }
    };
    let review = tokio::spawn({
        let limits = limits.clone();
        async move { respond(posted(&long_review("patched", LARGE)), &limits, handler).await }
    });
    begun.notified().await;
    let turn = Arc::clone(&limits.turn).acquire_owned().await.expect("a turn");
    decided.notify_one();
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert!(!review.is_finished());
    drop(turn);
    assert!(allowed(review.await.expect("no panic")).await);
    assert_eq!(limits.memory.free(), MEMORY / CHUNK);
}

async fn until(condition: impl Fn() -> bool) {
    let comes = async {
        while !condition() {
            tokio::task::yield_now().await;
        }
    };
    let came = tokio::time::timeout(TIMEOUT, comes).await;
    came.expect("the condition comes true");
}

#[tokio::test(start_paused = true)]
async fn large_review_without_a_slot_is_refused_in_time() {
    let limits = Limits::new();
    let turn = Arc::clone(&limits.turn).try_acquire_owned().expect("a turn");
    let began = Instant::now();
    let answer = respond(posted(&long_review("plain", LARGE)), &limits, decide).await;
    assert_eq!(began.elapsed().as_secs(), TIMEOUT.as_secs());
    let body = to_bytes(answer.into_body(), usize::MAX).await.expect("a body");
    let answer: Value = serde_json::from_slice(&body).expect("JSON");
    assert_eq!(answer, refused("", 400, messages::TOO_SLOW));
    assert_eq!(limits.memory.free(), MEMORY / CHUNK);
    drop(turn);
    assert!(allowed(respond(posted(&long_review("plain", LARGE)), &limits, decide).await).await);
}

#[tokio::test]
async fn large_review_is_answered_as_a_small_one() {
    for name in [
        "plain",
        "denied",
        "explained",
        "warned",
        "patched",
        "panics",
        "panics-later",
    ] {
        let large = ask(long_review(name, LARGE).to_string()).await;
        assert_eq!(large, named("v1", name).await, "{name}");
    }
    let mut wrong = long_review("plain", LARGE);
    wrong["request"]["operation"] = "RENAME".into();
    let answer = ask(wrong.to_string()).await;
    assert_eq!(answer["response"]["uid"], UID);
    assert_eq!(answer["response"]["status"]["code"], 400);
}

#[tokio::test]
async fn request_reaches_the_handler() {
    let mut full = review("v1");
    full["request"]["name"] = "echo".into();
    full["request"]["operation"] = "UPDATE".into();
    full["request"]["dryRun"] = true.into();
    full["request"]["oldObject"] = json!({"old": 1});
    let answer = ask(full.to_string()).await;
    assert_eq!(
        answer["response"]["status"]["message"],
        "Update shop true {\"metadata\":{\"name\":\"web\",\"annotations\":{\"x\":\"ä\"}},\"number\":1.5} {\"old\":1}"
    );
    // Missing and null fields are empty; an object keeps its exact text.
    let least = r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview",
        "request":{"uid":"1","operation":"DELETE","name":"echo","namespace":null,"object":{ "n": 1.50 }}}"#;
    let answer = ask(least).await;
    assert_eq!(
        answer["response"]["status"]["message"],
        "Delete  false { \"n\": 1.50 } none"
    );
}

#[tokio::test]
async fn verdicts_serialize_for_the_api_server() {
    let denied = named("v1", "denied").await;
    assert_eq!(denied, refused(UID, 500, "the range is full"), "and no patch");
    let explained = named("v1", "explained").await;
    assert_eq!(
        explained["response"],
        json!({"uid": UID, "allowed": true, "status": {"code": 200, "message": "template is nil"}})
    );
    for version in ["v1", "v1beta1"] {
        let warned = named(version, "warned").await;
        assert_eq!(warned["response"]["warnings"], json!(["taken"]), "{version}");
        let patched = named(version, "patched").await;
        assert_eq!(patched["response"]["patchType"], "JSONPatch");
        let patch = patched["response"]["patch"].as_str().expect("a patch");
        let patch =
            base64::Engine::decode(&base64::engine::general_purpose::STANDARD, patch).expect("base64");
        assert_eq!(
            String::from_utf8_lossy(&patch),
            r#"[{"op":"add","path":"/metadata/annotations","value":{}},"#.to_owned()
                + r#"{"op":"replace","path":"/metadata/annotations/a~1b","value":"c"}]"#
        );
    }
}

#[test]
fn denied_request_has_its_reason() {
    // kubevirt-ipam#15
    let answer = |code| {
        let answer = super::review::ReplyTo::default().answer(&Verdict::denied(code, "no"));
        let answer: Value = serde_json::from_slice(&answer.expect("JSON")).expect("JSON");
        answer["response"]["status"].clone()
    };
    assert_eq!(
        answer(403),
        json!({"code": 403, "reason": "Forbidden", "message": "no"})
    );
    assert_eq!(answer(500), json!({"code": 500, "message": "no"}));
}

#[tokio::test]
async fn handler_panic_refuses_only_its_request() {
    for name in ["panics", "panics-later"] {
        let answer = named("v1", name).await;
        let expected = "internal error: the webhook failed, see its log";
        assert_eq!(answer, refused(UID, 500, expected), "{name}");
    }
}

// kubevirt-ipam#38
#[tokio::test]
async fn unreadable_body_is_answered() {
    let whole = review("v1").to_string();
    let cases = [
        (Some("application/json"), String::new(), "request body is empty"),
        (
            Some("text/plain"),
            whole.clone(),
            "contentType=text/plain, expected application/json",
        ),
        (None, whole.clone(), "contentType=, expected application/json"),
        (
            Some("application/json"),
            "{".to_owned(),
            "EOF while parsing an object at line 1 column 1",
        ),
        (
            Some("application/json"),
            r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":null}"#.to_owned(),
            "the AdmissionReview has no request",
        ),
    ];
    for (content_type, body, message) in cases {
        let (status, answer) = post(content_type, body).await;
        assert_eq!(status, 200);
        let answer: Value = serde_json::from_slice(&answer).expect("JSON");
        assert_eq!(answer, refused("", 400, message));
    }
    let (status, _) = post(Some("Application/JSON; charset=utf-8"), whole).await;
    assert_eq!(status, 200);
}

#[tokio::test]
async fn malformed_review_is_answered_with_its_uid() {
    let mut other = review("v2");
    let text = "expected an AdmissionReview of admission.k8s.io/v1 or admission.k8s.io/v1beta1, \
                got kind \"AdmissionReview\" of \"admission.k8s.io/v2\"";
    assert_eq!(ask(other.to_string()).await, refused(UID, 400, text));
    other["kind"] = "Pod".into();
    other["apiVersion"] = "v1".into();
    let text = "expected an AdmissionReview of admission.k8s.io/v1 or admission.k8s.io/v1beta1, \
                got kind \"Pod\" of \"v1\"";
    assert_eq!(ask(other.to_string()).await, refused(UID, 400, text));
    let mut wrong = review("v1beta1");
    wrong["request"]["operation"] = "RENAME".into();
    let answer = ask(wrong.to_string()).await;
    assert_eq!(answer["apiVersion"], "admission.k8s.io/v1beta1");
    assert_eq!(answer["response"]["uid"], UID);
    assert_eq!(answer["response"]["status"]["code"], 400);
    let message = answer["response"]["status"]["message"].as_str().expect("a text");
    assert!(message.starts_with("unknown variant `RENAME`"), "{message}");
}

// kubevirt-ipam#38
#[tokio::test]
async fn oversized_body_is_refused() {
    let fill = |length: usize| {
        let (before, after) = (
            r#"{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"1","operation":"CREATE","object":""#,
            r#""}}"#,
        );
        let filling = "x".repeat(length - before.len() - after.len());
        format!("{before}{filling}{after}")
    };
    let largest = ask(fill(7_340_032)).await;
    assert_eq!(largest["response"]["allowed"], true, "{largest}");
    let text = "request entity is too large; limit is 7340032 bytes";
    assert_eq!(ask(fill(7_340_033)).await, refused("", 413, text));
    // An endless body is not read to its end.
    let chunk: Result<_, std::convert::Infallible> = Ok(vec![b' '; 1 << 20]);
    let endless = futures::stream::repeat(chunk);
    assert_eq!(ask(Body::from_stream(endless)).await, refused("", 413, text));
}

#[tokio::test]
async fn truncated_body_is_answered() {
    let broken = [Ok("{"), Err(std::io::Error::other("reset"))];
    let answer = ask(Body::from_stream(futures::stream::iter(broken))).await;
    assert_eq!(answer["response"]["status"]["code"], 400, "{answer}");
}

#[tokio::test]
async fn only_posts_are_answered() {
    let request = HttpRequest::get("/mutate")
        .body(Body::empty())
        .expect("a request");
    let answer = router("/mutate", decide)
        .oneshot(request)
        .await
        .expect("an answer");
    assert_eq!(answer.status(), StatusCode::METHOD_NOT_ALLOWED);
}

/// Any JSON.
fn anything() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,12}".prop_map(Value::from),
        prop_oneof![
            Just("panics"),
            Just("denied"),
            Just("patched"),
            Just("UPDATE"),
            Just("admission.k8s.io/v1beta1")
        ]
        .prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::hash_map("[a-zA-Z.]{1,8}", inner, 0..4)
                .prop_map(|map| Value::Object(map.into_iter().collect())),
        ]
    })
}

/// A review with one field replaced or removed.
fn mutated() -> impl Strategy<Value = Vec<u8>> {
    let fields = prop_oneof![
        Just("/apiVersion"),
        Just("/kind"),
        Just("/request"),
        Just("/request/uid"),
        Just("/request/operation"),
        Just("/request/namespace"),
        Just("/request/name"),
        Just("/request/dryRun"),
        Just("/request/object"),
        Just("/request/oldObject"),
        Just("/request/userInfo"),
    ];
    let changes = prop::collection::vec((fields, anything()), 1..3);
    changes.prop_map(|changes| {
        let mut review = review("v1");
        for (pointer, value) in changes {
            if let Some(field) = review.pointer_mut(pointer) {
                *field = value;
            }
        }
        review.to_string().into_bytes()
    })
}

/// The text of a review with bytes replaced, removed, or truncated.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let text = review("v1").to_string().into_bytes();
    let length = text.len();
    (
        prop::collection::vec((0..length, any::<u8>()), 0..4),
        prop::collection::vec(0..length, 0..3),
        0..=length,
    )
        .prop_map(move |(exchanged, taken, cut)| {
            let mut text = text.clone();
            for (at, byte) in exchanged {
                text[at] = byte;
            }
            text.truncate(cut);
            for at in taken {
                if at < text.len() {
                    text.remove(at);
                }
            }
            text
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn any_body_is_answered(
        body in prop_oneof![mutated(), damaged(), prop::collection::vec(any::<u8>(), 0..200)]
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
        let answer = runtime.block_on(ask(body.clone()));
        let version = answer["apiVersion"].as_str().expect("a version");
        prop_assert!(["admission.k8s.io/v1", "admission.k8s.io/v1beta1"].contains(&version));
        prop_assert_eq!(&answer["kind"], "AdmissionReview");
        let response = &answer["response"];
        let allowed = response["allowed"].as_bool().expect("a decision");
        let code = response["status"]["code"].as_u64().expect("a code");
        prop_assert_eq!(allowed, code == 200);
        if let Ok(Value::Object(review)) = serde_json::from_slice(&body)
            && let Some(uid) = review.get("request").and_then(|request| request["uid"].as_str())
            && allowed
        {
            prop_assert_eq!(&response["uid"], uid);
        }
    }
}
