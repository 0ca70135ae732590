//! Requests to the API server, each with a timeout: a connection may have died with the address that it came from.

use std::time::Duration;

use kube::api::{Api, DynamicObject, PostParams};
use kube::{Client, ResourceExt};
use kube_kit::client;
use thiserror::Error;

use crate::objects::{self, Policy};

/// Timeout of each request.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(15);

/// Attempts at a write that conflicts with other writers.
const ATTEMPTS: u32 = 10;

/// A request failed.
#[derive(Debug, Error)]
pub(crate) enum Error {
    /// The API server refused, or cannot be reached.
    #[error("{}", client::message(.0))]
    Api(#[source] kube::Error),
    /// The API server did not answer in time.
    #[error("no answer from the API server within {} s", TIMEOUT.as_secs())]
    Timeout,
}

impl Error {
    /// Whether the API server answered with this HTTP status.
    pub(crate) fn is(&self, code: u16) -> bool {
        self.code() == Some(code)
    }

    /// Whether the API server certainly stored nothing.
    pub(crate) fn is_refusal(&self) -> bool {
        self.code().is_some_and(|code| (400..500).contains(&code))
    }

    fn code(&self) -> Option<u16> {
        match self {
            Self::Api(kube::Error::Api(answer)) => Some(answer.code),
            Self::Api(_) | Self::Timeout => None,
        }
    }
}

/// Waits for an answer until [`TIMEOUT`].
pub(crate) async fn within_timeout<T>(
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, Error> {
    match tokio::time::timeout(TIMEOUT, request).await {
        Ok(answer) => answer.map_err(Error::Api),
        Err(_) => Err(Error::Timeout),
    }
}

/// Writes the status of an object.
pub(crate) async fn write_status(
    api: &Api<DynamicObject>,
    object: &DynamicObject,
) -> Result<DynamicObject, Error> {
    let name = object.name_any();
    within_timeout(api.replace_status(&name, &PostParams::default(), object)).await
}

/// The part of an object that a write replaces.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Part {
    Status,
    /// Everything except the status.
    Rest,
}

/// Reads an object, edits it and writes it; again after a conflict. `false` from `edit` ends it without a write. Returns
/// whether the object was written.
pub(crate) async fn edit(
    api: &Api<DynamicObject>,
    name: &str,
    part: Part,
    mut edit: impl FnMut(&mut DynamicObject) -> bool,
) -> Result<bool, Error> {
    let params = PostParams::default();
    for attempt in 1.. {
        let Some(mut object) = within_timeout(api.get_opt(name)).await? else {
            return Ok(false);
        };
        if !edit(&mut object) {
            return Ok(false);
        }
        let written = match part {
            Part::Status => write_status(api, &object).await,
            Part::Rest => within_timeout(api.replace(name, &params, &object)).await,
        };
        match written {
            Ok(_) => return Ok(true),
            Err(error) if error.is(404) => return Ok(false),
            Err(error) if error.is(409) && attempt < ATTEMPTS => {}
            Err(error) => return Err(error),
        }
    }
    Ok(false)
}

/// Reads a policy from the API server; the watch may be stale.
pub(crate) async fn read_policy(client: &Client, name: &str) -> Result<Option<Policy>, Error> {
    let found = within_timeout(objects::policies(client).get_opt(name)).await?;
    Ok(found.map(Policy::new))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_a_client_error_is_a_refusal() {
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
        assert!(!Error::Timeout.is_refusal());
    }
}
