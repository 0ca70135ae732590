//! Why a request to the database failed.

use std::io;
use std::time::Duration;

use crate::Address;

/// A failed request. The text names the cause.
///
/// After any variant but [`Error::Transaction`], [`Error::TooFewReplies`] and [`Error::Refused`] the connection is of no
/// more use: drop the client, and connect again.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no connection.
    #[error("cannot connect to {address}: {cause}")]
    Connect {
        /// Where the server should listen.
        address: Address,
        /// The kernel's words.
        cause: io::Error,
    },
    /// The connection failed.
    #[error("the connection to ovsdb-server failed: {0}")]
    Connection(io::Error),
    /// The server closed the connection.
    #[error("ovsdb-server closed the connection")]
    Closed,
    /// The server did not answer in time.
    #[error("no answer from ovsdb-server within {} s", .0.as_secs_f64())]
    Late(Duration),
    /// The server sent something else than a message of RFC 7047.
    #[error("unreadable message from ovsdb-server: {0}")]
    Malformed(String),
    /// The server refused an operation, and with it the whole transaction.
    #[error("OVS Transaction failed err {error} Details: {details}")]
    Transaction {
        /// Kind of error, such as `constraint violation`.
        error: String,
        /// What is wrong, may be empty.
        details: String,
    },
    /// The server answered fewer operations than it was sent.
    #[error("OVS transaction failed. Less replies than operations")]
    TooFewReplies,
    /// The server refused a request that is no transaction.
    #[error("ovsdb-server refused the request {method}: {error}")]
    Refused {
        /// Method of the request.
        method: &'static str,
        /// The server's words.
        error: String,
    },
}
