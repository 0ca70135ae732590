//! Requests to the Open vSwitch database (cni-plugins §10.3).

use std::time::Duration;

use cni::{Error, error::internal};
use ovsdb::{Address, Client};
use serde_json::{Value, json};

use crate::names::ovs::{OWNER, column, external_id, table};

/// Timeout of a request. The database answers from memory, so a slow answer means a failure.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The error of a `wait` operation whose condition does not hold.
const TIMED_OUT: &str = "timed out";

/// A connection to the database.
pub(crate) struct Database(Client);

impl Database {
    pub(crate) fn connect(socket: &str) -> Result<Self, Error> {
        Database::connect_for(socket, TIMEOUT)
    }

    fn connect_for(socket: &str, timeout: Duration) -> Result<Self, Error> {
        let failed = |error: &dyn std::fmt::Display| {
            Error::internal(format!(
                "failed to connect to ovsdb socket {socket}: error: {error}"
            ))
        };
        let address: Address = socket.parse().map_err(|error| failed(&error))?;
        let client = Client::connect(&address, timeout);
        client.map(Database).map_err(|error| failed(&error))
    }

    /// Applies all operations or none.
    pub(crate) fn transact(&mut self, operations: &[Value]) -> Result<Vec<Value>, Error> {
        self.0.transact(operations).map_err(internal)
    }

    /// Like [`Database::transact`]. `None` without any change if the condition of a [`wait`] did not hold.
    pub(crate) fn transact_if(&mut self, operations: &[Value]) -> Result<Option<Vec<Value>>, Error> {
        match self.0.transact(operations) {
            Err(ovsdb::Error::Transaction { error, .. }) if error == TIMED_OUT => Ok(None),
            outcome => outcome.map(Some).map_err(internal),
        }
    }

    /// The rows that a [`select`] finds.
    pub(crate) fn rows(&mut self, select: Value) -> Result<Vec<Value>, Error> {
        let replies = self.transact(&[select])?;
        Ok(replies.first().map(rows_of).unwrap_or_default())
    }

    /// An error if the bridge does not exist.
    pub(crate) fn require_bridge(&mut self, name: &str) -> Result<(), Error> {
        let found = self.rows(select(table::BRIDGE, &[is(column::NAME, name)], &[column::NAME]))?;
        if found.is_empty() {
            return Err(no_bridge(name));
        }
        Ok(())
    }
}

/// The error for a missing bridge.
pub(crate) fn no_bridge(name: &str) -> Error {
    Error::internal(format!("failed to find bridge {name}"))
}

/// Waits until the switch reports the interface's link up. Does not poll: the database waits.
pub(crate) fn wait_until_up(socket: &str, interface: &str, limit: Duration) -> Result<(), Error> {
    let mut database = Database::connect_for(socket, TIMEOUT + limit)?;
    let up = wait(
        table::INTERFACE,
        &[is(column::NAME, interface)],
        &[json!({ column::LINK_STATE: "up" })],
        limit,
    );
    match database.transact_if(&[up])? {
        Some(_) => Ok(()),
        None => Err(Error::internal(format!(
            "The OF port {interface} state is not up, try increasing number of retries/interval config parameter"
        ))),
    }
}

/// Condition: the column has this value.
pub(crate) fn is(column: &str, value: impl Into<Value>) -> Value {
    json!([column, "==", value.into()])
}

/// Condition: the column includes these entries or elements.
pub(crate) fn includes(column: &str, value: impl Into<Value>) -> Value {
    json!([column, "includes", value.into()])
}

/// Condition: these plugins created the row.
pub(crate) fn is_owned() -> Value {
    includes(column::EXTERNAL_IDS, ovsdb::map([(external_id::OWNER, OWNER)]))
}

/// Operation: reads rows.
pub(crate) fn select(table: &str, conditions: &[Value], columns: &[&str]) -> Value {
    json!({ "op": "select", "table": table, "where": conditions, "columns": columns })
}

/// Operation: inserts a row, which other operations reference by `name`.
pub(crate) fn insert(table: &str, name: &str, row: impl Into<Value>) -> Value {
    json!({ "op": "insert", "table": table, "uuid-name": name, "row": row.into() })
}

/// Operation: inserts into or deletes from a set column.
pub(crate) fn mutate(
    table: &str,
    conditions: &[Value],
    column: &str,
    change: &str,
    value: impl Into<Value>,
) -> Value {
    json!({ "op": "mutate", "table": table, "where": conditions, "mutations": [[column, change, value.into()]] })
}

/// Operation: aborts the transaction unless the selected rows become exactly these within the limit. All rows have
/// the same columns. Without rows, the selection must be empty.
pub(crate) fn wait(table: &str, conditions: &[Value], rows: &[Value], limit: Duration) -> Value {
    let columns: Vec<_> = match rows.first().and_then(Value::as_object) {
        Some(row) => row.keys().map(String::as_str).collect(),
        None => vec![column::NAME],
    };
    let timeout = u64::try_from(limit.as_millis()).unwrap_or(u64::MAX);
    json!({
        "op": "wait", "timeout": timeout, "table": table, "where": conditions, "columns": columns, "until": "==",
        "rows": rows
    })
}

/// The rows in the reply to a [`select`].
pub(crate) fn rows_of(reply: &Value) -> Vec<Value> {
    let rows = reply.get("rows").and_then(Value::as_array);
    rows.cloned().unwrap_or_default()
}

/// The number of changed rows in the reply to a [`mutate`].
pub(crate) fn count_of(reply: &Value) -> u64 {
    reply.get("count").and_then(Value::as_u64).unwrap_or_default()
}

/// The id of a row.
pub(crate) fn id_of(row: &Value) -> Option<&str> {
    ovsdb::uuid_of(row.get(column::UUID)?)
}

/// The name of a row, possibly empty.
pub(crate) fn name_of(row: &Value) -> &str {
    row.get(column::NAME).and_then(Value::as_str).unwrap_or_default()
}

/// The row IDs that a column references.
pub(crate) fn references<'a>(row: &'a Value, column: &str) -> impl Iterator<Item = &'a str> {
    let values = row.get(column).map(ovsdb::set_of).unwrap_or_default();
    values.iter().filter_map(ovsdb::uuid_of)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_have_the_form_of_the_rfc() {
        assert_eq!(
            select("Bridge", &[is("name", "br1")], &["ports"]),
            json!({ "op": "select", "table": "Bridge", "where": [["name", "==", "br1"]], "columns": ["ports"] })
        );
        assert_eq!(
            wait("Port", &[], &[json!({ "name": "a" })], Duration::from_secs(3)),
            json!({
                "op": "wait", "timeout": 3000, "table": "Port", "where": [], "columns": ["name"], "until": "==",
                "rows": [{ "name": "a" }]
            })
        );
    }

    #[test]
    fn unusable_addresses_are_reported() {
        let error = Database::connect("ssl:127.0.0.1:6640").err().unwrap();
        let begin = "failed to connect to ovsdb socket ssl:127.0.0.1:6640: error: ";
        assert!(error.msg.starts_with(begin), "{error}");
    }
}
