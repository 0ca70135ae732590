//! A blocking client of the database of Open vSwitch (RFC 7047; cni-plugins.md §10.3).
//!
//! ```text
//! Address ──connect──> Client ──transact──> replies, one for each operation
//!                        ├─────monitor───> rows of the start
//!                        └─────next_update> changes of these rows
//! ```
//!
//! A connection carries JSON-RPC messages without delimiters: the client counts brackets to split them. Every request
//! has a deadline, and the client answers the keep-alive requests of the server while it waits.
//!
//! The crate has no asynchronous runtime, because a CNI plugin that runs once per pod event uses it.

mod address;
mod client;
mod error;
mod splitter;
mod stream;
mod value;

pub use address::{Address, InvalidAddress};
pub use client::Client;
pub use error::Error;
pub use value::{map, map_of, named_uuid, set, set_of, uuid, uuid_of};
