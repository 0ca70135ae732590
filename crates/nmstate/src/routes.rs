//! Routes in reports and documents.

use serde_json::Value;

/// The main routing table, the default of routes.
pub(crate) const MAIN_TABLE: u64 = linux::routes::MAIN_TABLE as u64;

/// Whether a route is a default route.
pub(crate) fn is_default(route: &Value) -> bool {
    ["0.0.0.0/0", "::/0"]
        .iter()
        .any(|everywhere| route["destination"] == *everywhere)
}
