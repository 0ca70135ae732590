//! Authorization of scrapes: the API server authenticates the bearer token (`TokenReview`), and decides whether its
//! user may `get` the path (`SubjectAccessReview`). Answers are cached for a short while, so that a frequent scraper
//! costs next to nothing.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, UserInfo};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use sha2::{Digest, Sha256};
use tokio::time::Instant;

use crate::client::message;
use crate::lock;
use crate::places::Places;
use crate::serve::Peer;

#[cfg(test)]
mod tests;

/// Cache time of an allowed answer: a revoked right ends this much later.
const YES_LASTS: Duration = Duration::from_mins(1);
/// Cache time of a denied answer: a granted right takes effect this much later.
const NO_LASTS: Duration = Duration::from_secs(10);
/// Maximum number of cached answers.
const REMEMBERED: usize = 64;
/// Maximum number of concurrent reviews, of one client at most half: clients with invented tokens must neither overload
/// the API server nor block other clients.
const QUESTIONS: usize = 8;
/// Deadline of an answer.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum length of a token that is reviewed; tokens of service accounts have about 1,000 bytes.
const LONGEST_TOKEN: usize = 16 * 1024;

/// Verb of the required right.
const VERB: &str = "get";

/// Verdict on a token.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    /// The user may read.
    Allowed,
    /// The token is invalid.
    Unauthenticated,
    /// The user may not read.
    Forbidden { user: String },
}

impl Answer {
    fn lasts(&self) -> Duration {
        match self {
            Self::Allowed => YES_LASTS,
            Self::Unauthenticated | Self::Forbidden { .. } => NO_LASTS,
        }
    }
}

/// Restricts `router` to users that may `get` the path; others get 401 or 403, and 503 while the API server does not
/// answer.
pub fn guarded(router: Router, client: Client, path: &'static str) -> Router {
    let guard = Arc::new(Guard {
        client,
        path,
        answers: Mutex::default(),
        questions: Places::new(QUESTIONS),
    });
    router.route_layer(middleware::from_fn_with_state(guard, Guard::check))
}

struct Guard {
    client: Client,
    path: &'static str,
    answers: Mutex<Answers>,
    questions: Places<IpAddr>,
}

impl Guard {
    async fn check(State(guard): State<Arc<Self>>, request: Request, next: Next) -> Response {
        let answer = match bearer(request.headers()) {
            Some(token) => guard.answer(token, Peer::of(request.extensions())).await,
            None => Ok(Answer::Unauthenticated),
        };
        match answer {
            Ok(Answer::Allowed) => next.run(request).await,
            Ok(Answer::Unauthenticated) => (
                StatusCode::UNAUTHORIZED,
                [(header::WWW_AUTHENTICATE, "Bearer")],
                "Unauthorized",
            )
                .into_response(),
            Ok(Answer::Forbidden { user }) => {
                let text = format!("Authorization denied for user {user}");
                (StatusCode::FORBIDDEN, text).into_response()
            }
            Err(error) => {
                tracing::warn!(path = guard.path, error, "authorization check failed");
                let text = "authorization check failed";
                (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
            }
        }
    }

    async fn answer(&self, token: &str, client: IpAddr) -> Result<Answer, String> {
        let key = Sha256::digest(token).into();
        if let Some(answer) = lock(&self.answers).find(&key, Instant::now()) {
            return Ok(answer);
        }
        let answer = tokio::time::timeout(TIMEOUT, self.ask(token, client))
            .await
            .map_err(|_| "the API server takes too long".to_owned())?
            .map_err(|error| message(&error))?;
        lock(&self.answers).remember(key, answer.clone(), Instant::now());
        Ok(answer)
    }

    async fn ask(&self, token: &str, client: IpAddr) -> Result<Answer, kube::Error> {
        let _turn = self.questions.take(&client).await;
        let reviews: Api<TokenReview> = Api::all(self.client.clone());
        let review = TokenReview {
            spec: TokenReviewSpec {
                token: Some(token.to_owned()),
                ..TokenReviewSpec::default()
            },
            ..TokenReview::default()
        };
        let review = reviews.create(&PostParams::default(), &review).await?;
        let Some(user) = authenticated(review) else {
            return Ok(Answer::Unauthenticated);
        };
        let name = user.username.clone().unwrap_or_default();
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let review = reviews
            .create(&PostParams::default(), &may_read(user, self.path))
            .await?;
        // An explicit denial is not an allowance either.
        let allowed = review.status.is_some_and(|status| status.allowed);
        Ok(if allowed {
            Answer::Allowed
        } else {
            Answer::Forbidden { user: name }
        })
    }
}

/// The bearer token of a request, if it is not too long.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers
        .get(header::AUTHORIZATION)?
        .to_str()
        .ok()?
        .trim()
        .split_once(' ')?;
    let token = token.trim();
    let worth_it = scheme.eq_ignore_ascii_case("bearer") && !token.is_empty() && token.len() <= LONGEST_TOKEN;
    worth_it.then_some(token)
}

/// The user of the token.
fn authenticated(review: TokenReview) -> Option<UserInfo> {
    let status = review.status?;
    if status.authenticated != Some(true) {
        return None;
    }
    status.user
}

/// The review whether a user may read the path.
fn may_read(user: UserInfo, path: &str) -> SubjectAccessReview {
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: user.username,
            uid: user.uid,
            groups: user.groups,
            extra: user.extra,
            non_resource_attributes: Some(NonResourceAttributes {
                path: Some(path.to_owned()),
                verb: Some(VERB.to_owned()),
            }),
            resource_attributes: None,
        },
        ..SubjectAccessReview::default()
    }
}

/// Cached answers by the digest of their token; the token itself is not stored.
#[derive(Default)]
struct Answers(HashMap<[u8; 32], (Answer, Instant)>);

impl Answers {
    fn find(&self, key: &[u8; 32], now: Instant) -> Option<Answer> {
        let (answer, end) = self.0.get(key)?;
        (now < *end).then(|| answer.clone())
    }

    fn remember(&mut self, key: [u8; 32], answer: Answer, now: Instant) {
        self.0.retain(|_, (_, end)| now < *end);
        if self.0.len() >= REMEMBERED {
            // A flood of invented tokens: the answers that expire first are dropped, and those are denials.
            let first = self
                .0
                .iter()
                .min_by_key(|(_, (_, end))| *end)
                .map(|(key, _)| *key);
            if let Some(first) = first {
                self.0.remove(&first);
            }
        }
        let end = now + answer.lasts();
        self.0.insert(key, (answer, end));
    }
}
