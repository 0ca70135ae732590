//! Routes as reports and documents have them.

use serde_json::Value;

/// The main routing table, which is meant where none is said.
pub(crate) const MAIN_TABLE: u64 = linux::routes::MAIN_TABLE as u64;

/// Whether a route leads to everywhere that no other one leads to.
pub(crate) fn is_default(route: &Value) -> bool {
    ["0.0.0.0/0", "::/0"]
        .iter()
        .any(|everywhere| route["destination"] == *everywhere)
}
