//! Errors of requests to the database.

use std::io;
use std::time::Duration;

use crate::Address;

/// A failed request.
///
/// The connection is unusable after all variants except [`Error::Transaction`], [`Error::TooFewReplies`] and
/// [`Error::Refused`]: drop the client, and connect again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection failed.
    #[error("cannot connect to {address}: {cause}")]
    Connect {
        /// The address of the server.
        address: Address,
        /// The kernel's error.
        cause: io::Error,
    },
    /// The connection broke.
    #[error("the connection to ovsdb-server failed: {0}")]
    Connection(io::Error),
    /// The server closed the connection.
    #[error("ovsdb-server closed the connection")]
    Closed,
    /// The server did not answer before the timeout.
    #[error("no answer from ovsdb-server within {} s", .0.as_secs_f64())]
    Late(Duration),
    /// The server sent a message that violates RFC 7047.
    #[error("malformed message from ovsdb-server: {0}")]
    Malformed(String),
    /// The server refused an operation, and thereby the whole transaction.
    #[error("OVS Transaction failed err {error} Details: {details}")]
    Transaction {
        /// Kind of error, such as `constraint violation`.
        error: String,
        /// Description of the error, perhaps empty.
        details: String,
    },
    /// The server sent fewer replies than there were operations.
    #[error("OVS transaction failed. Less replies than operations")]
    TooFewReplies,
    /// The server refused a request other than a transaction.
    #[error("ovsdb-server refused the request {method}: {error}")]
    Refused {
        /// Method of the request.
        method: &'static str,
        /// The server's error.
        error: String,
    },
}
