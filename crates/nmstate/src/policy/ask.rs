//! Requests to the API server, none of which is waited for for ever: a connection may have died with the address that it
//! came from.

use std::time::Duration;

use kube::Client;
use kube_kit::client;
use thiserror::Error;

use super::objects::{self, Policy};

/// How long any request may take.
pub const PATIENCE: Duration = Duration::from_secs(15);

/// Why there is no answer that helps.
#[derive(Debug, Error)]
pub enum Error {
    /// The API server refused, or can't be reached.
    #[error("{}", client::message(.0))]
    Api(#[source] kube::Error),
    /// The API server did not answer.
    #[error("no answer from the API server within {} s", PATIENCE.as_secs())]
    Silence,
}

impl Error {
    /// Whether it is an answer with this status.
    pub fn is(&self, code: u16) -> bool {
        self.code() == Some(code)
    }

    /// Whether what was to be written is certainly not stored.
    pub fn is_refusal(&self) -> bool {
        self.code().is_some_and(|code| (400..500).contains(&code))
    }

    fn code(&self) -> Option<u16> {
        match self {
            Self::Api(kube::Error::Api(answer)) => Some(answer.code),
            Self::Api(_) | Self::Silence => None,
        }
    }
}

/// Waits no longer for an answer than a healthy API server needs.
///
/// # Errors
/// When there is none until then, or it says no.
pub async fn patiently<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, Error> {
    match tokio::time::timeout(PATIENCE, request).await {
        Ok(answer) => answer.map_err(Error::Api),
        Err(_) => Err(Error::Silence),
    }
}

/// A policy as it is now; the watch may be behind.
///
/// # Errors
/// See [`patiently`].
pub async fn policy(client: &Client, name: &str) -> Result<Option<Policy>, Error> {
    let found = patiently(objects::policies(client).get_opt(name)).await?;
    Ok(found.map(Policy::new))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_an_answer_that_refuses_leaves_no_doubt() {
        let answer = |code: u16| {
            let status = json!({ "status": "Failure", "message": "", "reason": "", "code": code });
            Error::Api(kube::Error::Api(Box::new(
                serde_json::from_value(status).expect("a status"),
            )))
        };
        assert!(answer(409).is_refusal());
        assert!(answer(422).is_refusal());
        assert!(!answer(500).is_refusal());
        assert!(!answer(504).is_refusal());
        assert!(!Error::Silence.is_refusal());
    }
}
