//! Requests to the database of Open vSwitch (cni-plugins §10.3).

use std::time::Duration;

use cni::{Error, error::internal};
use ovsdb::{Address, Client};
use serde_json::{Value, json};

use crate::names::ovs::{OWNER, column, external_id, table};

/// How long the database may take to answer. It answers from memory: one that takes longer does not work.
const PATIENCE: Duration = Duration::from_secs(5);
/// The error of an operation `wait` whose condition does not hold.
const TIMED_OUT: &str = "timed out";

/// A connection to the database.
pub(crate) struct Database(Client);

impl Database {
    pub(crate) fn connect(socket: &str) -> Result<Self, Error> {
        Database::connect_for(socket, PATIENCE)
    }

    fn connect_for(socket: &str, patience: Duration) -> Result<Self, Error> {
        let failed = |error: &dyn std::fmt::Display| {
            Error::internal(format!(
                "failed to connect to ovsdb socket {socket}: error: {error}"
            ))
        };
        let address: Address = socket.parse().map_err(|error| failed(&error))?;
        let client = Client::connect(&address, patience);
        client.map(Database).map_err(|error| failed(&error))
    }

    /// Carries out all operations or none.
    pub(crate) fn transact(&mut self, operations: &[Value]) -> Result<Vec<Value>, Error> {
        self.0.transact(operations).map_err(internal)
    }

    /// The same. `None` if the condition of a [`wait`] did not hold, and nothing was done.
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

    /// An error if there is no such bridge.
    pub(crate) fn require_bridge(&mut self, name: &str) -> Result<(), Error> {
        let found = self.rows(select(table::BRIDGE, &[is(column::NAME, name)], &[column::NAME]))?;
        if found.is_empty() {
            return Err(no_bridge(name));
        }
        Ok(())
    }
}

/// There is no such bridge.
pub(crate) fn no_bridge(name: &str) -> Error {
    Error::internal(format!("failed to find bridge {name}"))
}

/// Waits until the switch reports the link of an interface as up. The database itself waits: nothing is polled.
pub(crate) fn wait_until_up(socket: &str, interface: &str, limit: Duration) -> Result<(), Error> {
    let mut database = Database::connect_for(socket, PATIENCE + limit)?;
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

/// A condition: the column has this value.
pub(crate) fn is(column: &str, value: impl Into<Value>) -> Value {
    json!([column, "==", value.into()])
}

/// A condition: the column has these entries or elements among others.
pub(crate) fn includes(column: &str, value: impl Into<Value>) -> Value {
    json!([column, "includes", value.into()])
}

/// The condition that the plugins of this section made a row.
pub(crate) fn is_owned() -> Value {
    includes(column::EXTERNAL_IDS, ovsdb::map([(external_id::OWNER, OWNER)]))
}

/// An operation that reads rows.
pub(crate) fn select(table: &str, conditions: &[Value], columns: &[&str]) -> Value {
    json!({ "op": "select", "table": table, "where": conditions, "columns": columns })
}

/// An operation that adds a row, which others of the transaction call `name`.
pub(crate) fn insert(table: &str, name: &str, row: impl Into<Value>) -> Value {
    json!({ "op": "insert", "table": table, "uuid-name": name, "row": row.into() })
}

/// An operation that changes a set in rows: `insert` or `delete`.
pub(crate) fn mutate(
    table: &str,
    conditions: &[Value],
    column: &str,
    change: &str,
    value: impl Into<Value>,
) -> Value {
    json!({ "op": "mutate", "table": table, "where": conditions, "mutations": [[column, change, value.into()]] })
}

/// An operation that ends the transaction unless the rows of the conditions are exactly these, within the limit. All rows
/// have the same columns; without rows the conditions must find none.
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

/// How many rows a [`mutate`] changed, by its reply.
pub(crate) fn count_of(reply: &Value) -> u64 {
    reply.get("count").and_then(Value::as_u64).unwrap_or_default()
}

/// The id of a row.
pub(crate) fn id_of(row: &Value) -> Option<&str> {
    ovsdb::uuid_of(row.get(column::UUID)?)
}

/// The name of a row, may be empty.
pub(crate) fn name_of(row: &Value) -> &str {
    row.get(column::NAME).and_then(Value::as_str).unwrap_or_default()
}

/// The ids that a column of a row refers to.
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
    fn unusable_addresses_are_named() {
        let error = Database::connect("ssl:127.0.0.1:6640").err().unwrap();
        let begin = "failed to connect to ovsdb socket ssl:127.0.0.1:6640: error: ";
        assert!(error.msg.starts_with(begin), "{error}");
    }
}
