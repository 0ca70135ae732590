//! The requests about one object. Each has a deadline, and the cache follows a deletion at once.

use super::{Applier, Cause};
use crate::object::{Kind, ObjectId};
use kube::core::{Request, params};
use serde_json::Value;
use std::time::Duration;

/// Deadline of one request.
const TIMEOUT: Duration = Duration::from_secs(30);

impl Applier {
    pub(super) async fn read(&self, kind: Kind, id: &ObjectId) -> Result<Option<Value>, Cause> {
        match self
            .send(
                id,
                requests(kind, id).get(&id.name, &params::GetParams::default()),
            )
            .await
        {
            Ok(live) => Ok(Some(live)),
            Err(cause @ Cause::UnknownKind { .. }) => Err(cause),
            Err(cause) if cause.is_not_found() => Ok(None),
            Err(cause) => Err(cause),
        }
    }

    pub(super) async fn create(&self, kind: Kind, id: &ObjectId, object: &Value) -> Result<Value, Cause> {
        self.send(
            id,
            requests(kind, id).create(&params::PostParams::default(), object.to_string().into_bytes()),
        )
        .await
    }

    pub(super) async fn replace(&self, kind: Kind, id: &ObjectId, object: &Value) -> Result<Value, Cause> {
        let body = object.to_string().into_bytes();
        self.send(
            id,
            requests(kind, id).replace(&id.name, &params::PostParams::default(), body),
        )
        .await
    }

    /// Deletes this object; a successor with the same name is left alone (409).
    pub(super) async fn remove(&self, kind: Kind, id: &ObjectId, live: &Value) -> Result<(), Cause> {
        let preconditions = params::Preconditions {
            uid: uid(live),
            resource_version: None,
        };
        // Without it, the pods of a Job stay.
        let parameters = params::DeleteParams::background().preconditions(preconditions);
        match self
            .send(id, requests(kind, id).delete(&id.name, &parameters))
            .await
        {
            // A finalizer delays its end: the object stays in the cache until the watch reports the end.
            Ok(answer) if answer.pointer("/metadata/deletionTimestamp").is_some() => self.cache.put(&answer),
            Ok(_) => self.cache.bury(id, live),
            Err(cause) if cause.is_not_found() => self.cache.bury(id, live),
            Err(cause) => return Err(cause),
        }
        Ok(())
    }

    pub(super) async fn send<E: Into<RequestError>>(
        &self,
        id: &ObjectId,
        request: Result<axum::http::Request<Vec<u8>>, E>,
    ) -> Result<Value, Cause> {
        let request =
            request.map_err(|error| Cause::Request(Box::new(kube::Error::BuildRequest(error.into()))))?;
        match tokio::time::timeout(TIMEOUT, self.client.request::<Value>(request)).await {
            Ok(answer) => answer.map_err(|error| Cause::from_request(error, id)),
            Err(_) => Err(Cause::Timeout(TIMEOUT)),
        }
    }
}

type RequestError = kube::core::request::Error;

/// Requests for the collection of this object.
pub(super) fn requests(kind: Kind, id: &ObjectId) -> Request {
    Request::new(kind.path(id.namespace.as_deref()))
}

fn uid(object: &Value) -> Option<String> {
    object
        .pointer("/metadata/uid")
        .and_then(Value::as_str)
        .map(str::to_owned)
}
