//! What can't be done with an object, and why.

use crate::client;
use crate::merge;
use crate::object::ObjectId;
use std::fmt;
use std::time::Duration;
use thiserror::Error;

/// What was attempted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attempt {
    /// Reading an object.
    Read,
    /// Creating or updating one.
    Apply,
    /// Deleting one.
    Delete,
    /// Patching one.
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

/// Something that could not be done with an object: `could not apply (<group>/<version>, Kind=<Kind>) <ns>/<name>:
/// <cause>`, the text that users see in conditions. The cause is part of the text and not repeated in the chain.
#[derive(Debug, Error)]
#[error("could not {attempt} {id}: {cause}")]
pub struct Error {
    /// What was attempted.
    pub attempt: Attempt,
    /// With which object.
    pub id: ObjectId,
    /// Why it failed.
    pub cause: Cause,
}

/// Why something could not be done with an object.
#[derive(Debug, Error)]
pub enum Cause {
    /// The object itself is refused before it is sent.
    #[error("{0}")]
    Refused(merge::Error),
    /// The API server does not serve the kind (or we do not handle it).
    #[error("no matches for kind \"{kind}\" in version \"{api_version}\"")]
    UnknownKind {
        /// Kind as in YAML.
        kind: String,
        /// `group/version`.
        api_version: String,
    },
    /// The API server's answer, or why there is none.
    #[error("{}", client::message(.0))]
    Request(Box<kube::Error>),
    /// Another client reverts each write. Says which one, and where.
    #[error("{0}; retrying with back-off")]
    Contested(String),
    /// There is no answer in time.
    #[error("no answer from the API server within {} seconds", .0.as_secs())]
    Timeout(Duration),
}

impl Cause {
    /// The HTTP status code of the API server's answer, 0 when there is none.
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

    /// Whether somebody else wrote the object, or created it, at the same time.
    pub(super) fn is_conflict(&self) -> bool {
        self.code() == 409
    }

    pub(super) fn is_not_found(&self) -> bool {
        self.code() == 404
    }

    /// A 404 that names no object is about the kind.
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

    /// Whether somebody else wrote the object, or created it, at the same time.
    pub fn is_conflict(&self) -> bool {
        self.cause.is_conflict()
    }

    /// Whether the write was put off because another client reverts each.
    pub fn is_contested(&self) -> bool {
        matches!(self.cause, Cause::Contested(_))
    }

    /// Whether there is no such object.
    pub fn is_not_found(&self) -> bool {
        self.cause.is_not_found() && !self.is_unknown_kind()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object;

    #[test]
    fn errors_read_as_users_know_them() {
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
