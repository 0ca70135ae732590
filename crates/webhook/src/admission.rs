//! Admission reviews: what is asked, and what is answered (kubemacpool §12).

use serde_json::Value;
use serde_json::value::RawValue;

/// What is to be done with the object.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Operation {
    /// It is created.
    Create,
    /// It is changed.
    Update,
    /// It is deleted.
    Delete,
    /// A subresource is connected to.
    Connect,
}

/// What the API server asks.
#[derive(Clone, Debug)]
pub struct Request {
    /// UID of the request.
    pub uid: String,
    /// What is to be done.
    pub operation: Operation,
    /// Namespace of the object; empty where it has none.
    pub namespace: String,
    /// Name of the object; empty where it is yet to be generated.
    pub name: String,
    /// Whether nothing is stored in the end.
    pub dry_run: bool,
    /// The object as it is to be.
    pub object: Option<Box<RawValue>>,
    /// The object as it is stored.
    pub old_object: Option<Box<RawValue>>,
}

/// What is answered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Verdict {
    /// What is refused, if it is.
    pub denied: Option<Denial>,
    /// What is said about an admitted request (`status.message`).
    pub message: Option<String>,
    /// What the user is told beside.
    pub warnings: Vec<String>,
    /// How the object is changed, in this order.
    pub patch: Vec<Change>,
}

/// Why a request is refused.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Denial {
    /// HTTP code of the status: 400 what can't be understood, 500 what can't be done.
    pub code: u16,
    /// What the user reads.
    pub message: String,
}

/// One step of a JSON patch (RFC 6902).
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Puts a value at a path, whether there is one or not.
    Add {
        /// JSON pointer.
        path: String,
        /// The value.
        value: Value,
    },
    /// Replaces the value at a path, which must be there.
    Replace {
        /// JSON pointer.
        path: String,
        /// The value.
        value: Value,
    },
}

impl Verdict {
    /// Let it through as it is.
    pub fn allowed() -> Self {
        Self::default()
    }

    /// Let it through, changed.
    pub fn patched(patch: Vec<Change>) -> Self {
        Self {
            patch,
            ..Self::default()
        }
    }

    /// Refuse it.
    pub fn denied(code: u16, message: impl Into<String>) -> Self {
        Self {
            denied: Some(Denial {
                code,
                message: message.into(),
            }),
            ..Self::default()
        }
    }
}
