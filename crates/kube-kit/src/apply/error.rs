//! Errors of requests about objects.

use crate::client;
use crate::merge;
use crate::object::ObjectId;
use std::fmt;
use std::time::Duration;
use thiserror::Error;

/// The failed operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// Reading an object.
    Read,
    /// Creating or updating an object.
    Apply,
    /// Deleting an object.
    Delete,
    /// Patching an object.
    Patch,
}

impl fmt::Display for Attempt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Apply => "apply",
            Self::Delete => "delete",
            Self::Patch => "patch",
        })
    }
}

/// A failed operation on an object: `could not apply (<group>/<version>, Kind=<Kind>) <ns>/<name>: <cause>`, the text
/// that users see in conditions. The cause is part of the text and not repeated in the chain.
#[derive(Debug, Error)]
#[error("could not {attempt} {id}: {cause}")]
pub struct Error {
    /// The failed operation.
    pub attempt: Attempt,
    /// The object.
    pub id: ObjectId,
    /// The cause.
    pub cause: Cause,
}

/// The cause of a failed operation.
#[derive(Debug, Error)]
pub enum Cause {
    /// The object is refused before it is sent.
    #[error("{0}")]
    Refused(merge::Error),
    /// The API server, or this crate, does not serve the kind.
    #[error("no matches for kind \"{kind}\" in version \"{api_version}\"")]
    UnknownKind {
        /// Kind as in YAML.
        kind: String,
        /// `group/version`.
        api_version: String,
    },
    /// The API server's error, or the reason for its absence.
    #[error("{}", client::message(.0))]
    Request(Box<kube::Error>),
    /// Another client reverts each write. Names the client and the field.
    #[error("{0}; retrying with back-off")]
    Contested(String),
    /// No answer within the deadline.
    #[error("no answer from the API server within {} seconds", .0.as_secs())]
    Timeout(Duration),
}

impl Cause {
    /// The HTTP status code of the API server's answer, 0 without an answer.
    pub fn code(&self) -> u16 {
        match self {
            Self::Request(error) => match error.as_ref() {
                kube::Error::Api(status) => status.code,
                _ => 0,
            },
            Self::UnknownKind { .. } => 404,
            Self::Refused(_) | Self::Contested(_) | Self::Timeout(_) => 0,
        }
    }

    /// Whether another client wrote or created the object at the same time.
    pub(super) fn is_conflict(&self) -> bool {
        self.code() == 409
    }

    pub(super) fn is_not_found(&self) -> bool {
        self.code() == 404
    }

    /// A 404 without the name of an object concerns the kind.
    pub(super) fn from_request(error: kube::Error, id: &ObjectId) -> Self {
        if let kube::Error::Api(status) = &error
            && status.code == 404
            && status
                .details
                .as_ref()
                .is_none_or(|details| details.name.is_empty())
        {
            return Self::unknown_kind(id);
        }
        Self::Request(Box::new(error))
    }

    pub(super) fn unknown_kind(id: &ObjectId) -> Self {
        Self::UnknownKind {
            kind: id.kind.clone(),
            api_version: id.api_version(),
        }
    }
}

impl Error {
    /// Whether the API server does not serve the object's kind.
    pub fn is_unknown_kind(&self) -> bool {
        matches!(self.cause, Cause::UnknownKind { .. })
    }

    /// Whether another client wrote or created the object at the same time.
    pub fn is_conflict(&self) -> bool {
        self.cause.is_conflict()
    }

    /// Whether the write was delayed because another client reverts each.
    pub fn is_contested(&self) -> bool {
        matches!(self.cause, Cause::Contested(_))
    }

    /// Whether the account lacks the right.
    pub fn is_forbidden(&self) -> bool {
        matches!(&self.cause, Cause::Request(error) if matches!(&**error, kube::Error::Api(status) if status.code == 403))
    }

    /// Whether the object does not exist.
    pub fn is_not_found(&self) -> bool {
        self.cause.is_not_found() && !self.is_unknown_kind()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object;

    #[test]
    fn error_has_text_of_conditions() {
        let id = object::CERTIFICATE.object(Some("addons"), "c");
        let error = Error {
            attempt: Attempt::Apply,
            id: id.clone(),
            cause: Cause::unknown_kind(&id),
        };
        assert_eq!(
            error.to_string(),
            "could not apply (cert-manager.io/v1, Kind=Certificate) addons/c: \
             no matches for kind \"Certificate\" in version \"cert-manager.io/v1\""
        );
        let id = object::SERVICE_ACCOUNT.object(Some("addons"), "s");
        let cause = Cause::Refused(merge::Error::ServiceAccountWithSecrets);
        let error = Error {
            attempt: Attempt::Apply,
            id,
            cause,
        };
        assert_eq!(
            error.to_string(),
            "could not apply (/v1, Kind=ServiceAccount) addons/s: cannot create ServiceAccount with secrets"
        );
    }
}
