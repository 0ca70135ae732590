//! Who may read what a server tells: the bearer of a token that the API server knows (`TokenReview`), and whose user it
//! lets `get` the path (`SubjectAccessReview`). Its answers are believed for a short while, so that one who asks every few
//! seconds costs next to nothing.

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

/// How long a yes is believed: a right that is taken away ends this much later.
const YES_LASTS: Duration = Duration::from_mins(1);
/// How long a no is believed: a right that is given counts this much later.
const NO_LASTS: Duration = Duration::from_secs(10);
/// How many answers are remembered at most.
const REMEMBERED: usize = 64;
/// How many questions are asked at a time, of one client at most half: strangers with invented tokens must neither keep the
/// API server busy nor other clients out.
const QUESTIONS: usize = 8;
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest token that is worth a question; those of service accounts have about 1,000 bytes.
const LONGEST_TOKEN: usize = 16 * 1024;

/// What the verb of the right is called.
const VERB: &str = "get";

/// What was found out about a token.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    /// It may read.
    Allowed,
    /// Nobody's token.
    Unauthenticated,
    /// The token of a user who may not read.
    Forbidden {
        /// The user.
        user: String,
    },
}

impl Answer {
    fn lasts(&self) -> Duration {
        match self {
            Self::Allowed => YES_LASTS,
            Self::Unauthenticated | Self::Forbidden { .. } => NO_LASTS,
        }
    }
}

/// Lets through to `router` only who may `get` the path there; everybody else hears 401 or 403, and 503 while the API
/// server does not say.
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
                tracing::warn!(path = guard.path, error, "cannot find out who may read");
                let text = "cannot find out who may read";
                (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
            }
        }
    }

    async fn answer(&self, token: &str, client: IpAddr) -> Result<Answer, String> {
        let key = Sha256::digest(token).into();
        if let Some(answer) = lock(&self.answers).find(&key, Instant::now()) {
            return Ok(answer);
        }
        let answer = tokio::time::timeout(PATIENCE, self.ask(token, client))
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
        // Whoever denies explicitly does not allow either.
        let allowed = review.status.is_some_and(|status| status.allowed);
        Ok(if allowed {
            Answer::Allowed
        } else {
            Answer::Forbidden { user: name }
        })
    }
}

/// The token that a request bears, if it is worth a question.
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

/// The user whose token it is.
fn authenticated(review: TokenReview) -> Option<UserInfo> {
    let status = review.status?;
    if status.authenticated != Some(true) {
        return None;
    }
    status.user
}

/// Asks whether a user may read the path.
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

/// Answers of a short while, by the digests of their tokens: a token itself is not kept.
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
            // A flood of invented tokens: the answers that end first go, and those are refusals.
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
