use super::*;
use axum::http::HeaderValue;

const ALLOWED: Answer = Answer::Allowed;
const UNAUTHENTICATED: Answer = Answer::Unauthenticated;

fn headers(value: &str) -> HeaderMap {
    let mut headers = HeaderMap::new();
    headers.insert(
        header::AUTHORIZATION,
        HeaderValue::from_str(value).expect("a value"),
    );
    headers
}

#[test]
fn bearer_accepts_bearer_tokens_alone() {
    assert_eq!(bearer(&headers("Bearer abc")), Some("abc"));
    assert_eq!(bearer(&headers("bearer  abc ")), Some("abc"));
    for other in ["Basic abc", "Bearer", "Bearer ", "abc", ""] {
        assert_eq!(bearer(&headers(other)), None, "{other:?}");
    }
    assert_eq!(
        bearer(&headers(&format!("Bearer {}", "a".repeat(LONGEST_TOKEN + 1)))),
        None
    );
    assert_eq!(bearer(&HeaderMap::new()), None);
}

#[test]
fn authenticated_returns_authenticated_user_alone() {
    let review = |status: serde_json::Value| {
        let review = serde_json::json!({ "spec": {}, "status": status });
        authenticated(serde_json::from_value(review).expect("a review"))
    };
    let user = serde_json::json!({ "username": "u", "groups": ["g"] });
    let found = review(serde_json::json!({ "authenticated": true, "user": user }));
    assert_eq!(found.expect("a user").username.as_deref(), Some("u"));
    for other in [
        serde_json::json!({ "authenticated": false, "user": user }),
        serde_json::json!({ "user": user, "error": "invalid" }),
        serde_json::json!(null),
    ] {
        assert_eq!(review(other), None);
    }
}

#[test]
fn may_read_reviews_path_with_all_attributes_of_user() {
    let user = UserInfo {
        username: Some("u".into()),
        uid: Some("1".into()),
        groups: Some(vec!["g".into()]),
        extra: Some([("k".to_owned(), vec!["v".to_owned()])].into()),
    };
    let question = serde_json::to_value(may_read(user, "/metrics")).expect("JSON");
    assert_eq!(
        question["spec"],
        serde_json::json!({
            "user": "u", "uid": "1", "groups": ["g"], "extra": { "k": ["v"] },
            "nonResourceAttributes": { "path": "/metrics", "verb": "get" },
        })
    );
}

#[tokio::test(start_paused = true)]
async fn answers_are_cached_for_a_while() {
    let (mut answers, start) = (Answers::default(), Instant::now());
    answers.remember([1; 32], ALLOWED, start);
    answers.remember([2; 32], UNAUTHENTICATED, start);
    let at = |seconds| start + Duration::from_secs(seconds);
    assert_eq!(answers.find(&[1; 32], at(59)), Some(ALLOWED));
    assert_eq!(answers.find(&[1; 32], at(60)), None);
    assert_eq!(answers.find(&[2; 32], at(9)), Some(UNAUTHENTICATED));
    assert_eq!(answers.find(&[2; 32], at(10)), None);
    assert_eq!(answers.find(&[3; 32], start), None);
}

#[tokio::test(start_paused = true)]
async fn flood_of_invented_tokens_keeps_allowed_answers() {
    let (mut answers, start) = (Answers::default(), Instant::now());
    answers.remember([255; 32], ALLOWED, start);
    for token in 0..=200 {
        answers.remember([token; 32], UNAUTHENTICATED, start);
    }
    assert_eq!(answers.0.len(), REMEMBERED);
    assert_eq!(answers.find(&[255; 32], start), Some(ALLOWED));
    answers.remember([1; 32], UNAUTHENTICATED, start + YES_LASTS);
    assert_eq!(answers.0.len(), 1, "expired answers are dropped");
}

#[tokio::test(start_paused = true)]
async fn tokens_of_one_client_take_half_of_the_reviews() {
    let asked = Arc::<Mutex<Vec<String>>>::default();
    let log = Arc::clone(&asked);
    let service = tower::service_fn(move |request: axum::http::Request<kube::client::Body>| {
        let log = Arc::clone(&log);
        async move {
            let body = request.into_body().collect_bytes().await?;
            let mut review: serde_json::Value = serde_json::from_slice(&body)?;
            let token = review["spec"]["token"].as_str().unwrap_or_default().to_owned();
            lock(&log).push(token.clone());
            if token == "invented" {
                std::future::pending::<()>().await;
            }
            review["status"] =
                serde_json::json!({ "authenticated": true, "user": { "username": "u" }, "allowed": true });
            let body = kube::client::Body::from(review.to_string().into_bytes());
            Ok::<_, tower::BoxError>(axum::http::Response::new(body))
        }
    });
    let guard = Guard {
        client: Client::new(service, "default"),
        path: "/metrics",
        answers: Mutex::default(),
        questions: Places::new(QUESTIONS),
    };
    let [flood, other] = [1, 2].map(|last| IpAddr::from([10, 0, 0, last]));
    let invented = futures::future::join_all((0..2 * QUESTIONS).map(|_| guard.answer("invented", flood)));
    let valid = async {
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(*lock(&asked), ["invented"; QUESTIONS / 2]);
        let begun = Instant::now();
        assert_eq!(guard.answer("valid", other).await, Ok(ALLOWED));
        assert_eq!(begun.elapsed(), Duration::ZERO);
    };
    let (invented, ()) = tokio::join!(invented, valid);
    for answer in invented {
        assert_eq!(answer, Err("the API server takes too long".to_owned()));
    }
}
