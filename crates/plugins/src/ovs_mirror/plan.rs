//! Plans mirror changes as database operations.

use std::time::Duration;

use cni::Error;
use serde_json::{Map, Value, json};

use super::config::{Mirror, Role};
use crate::{
    names::ovs::{OWNER, column, external_id, table},
    ovs::database::{id_of, insert, is, mutate, name_of, references, wait},
};

/// The columns to read of a mirror.
pub(super) const COLUMNS: [&str; 6] = [
    column::UUID,
    column::NAME,
    column::EXTERNAL_IDS,
    column::SOURCES,
    column::DESTINATIONS,
    column::OUTPUT,
];

/// The columns that reference ports.
const PORTS: [&str; 3] = [column::SOURCES, column::DESTINATIONS, column::OUTPUT];

impl Role {
    /// The columns that must contain the port for a configured mirror.
    fn columns(self, mirror: &Mirror) -> Vec<&'static str> {
        match self {
            Role::Consumer => vec![column::OUTPUT],
            Role::Producer => {
                let ingress = mirror.ingress.then_some(column::SOURCES);
                ingress
                    .into_iter()
                    .chain(mirror.egress.then_some(column::DESTINATIONS))
                    .collect()
            }
        }
    }

    /// All columns that can contain the pod's port.
    fn all_columns(self) -> &'static [&'static str] {
        match self {
            Role::Producer => &[column::SOURCES, column::DESTINATIONS],
            Role::Consumer => &[column::OUTPUT],
        }
    }
}

/// A mirror in the database.
#[derive(Debug, Clone)]
pub(super) struct Row {
    id: String,
    row: Value,
}

impl Row {
    /// `None` for a row without an ID.
    pub(super) fn new(row: Value) -> Option<Self> {
        let id = id_of(&row)?.to_owned();
        Some(Row { id, row })
    }

    fn has(&self, column: &str, port: &str) -> bool {
        references(&self.row, column).any(|id| id == port)
    }

    fn is_empty(&self) -> bool {
        PORTS
            .iter()
            .all(|column| references(&self.row, column).next().is_none())
    }

    fn is_owned(&self) -> bool {
        let ids = self.row.get(column::EXTERNAL_IDS);
        ids.is_some_and(|ids| ovsdb::map_of(ids).any(|entry| entry == (external_id::OWNER, OWNER)))
    }

    /// Operation: aborts the transaction if the mirror's ports have changed since it was read.
    fn is_unchanged(&self) -> Value {
        let ports: Map<_, _> = PORTS
            .iter()
            .filter_map(|column| Some(((*column).to_owned(), self.row.get(*column)?.clone())))
            .collect();
        wait(table::MIRROR, &[self.is_it()], &[ports.into()], Duration::ZERO)
    }

    fn is_it(&self) -> Value {
        is(column::UUID, ovsdb::uuid(&self.id))
    }
}

/// The transaction that adds the port to all mirrors. It aborts if a mirror has changed since it was read.
pub(super) fn attach(
    role: Role,
    wanted: &[Mirror],
    port: &str,
    bridge: &str,
    rows: &[Row],
) -> Result<Vec<Value>, Error> {
    let mut operations = Vec::new();
    for (number, mirror) in wanted.iter().enumerate() {
        match rows.iter().find(|row| name_of(&row.row) == mirror.name) {
            Some(row) => operations.extend(join(role, mirror, port, row)?),
            None => operations.extend(creation(role, mirror, port, bridge, &format!("mirror{number}"))),
        }
    }
    Ok(operations)
}

fn join(role: Role, mirror: &Mirror, port: &str, row: &Row) -> Result<Vec<Value>, Error> {
    if role == Role::Consumer
        && let Some(other) = references(&row.row, column::OUTPUT).find(|other| *other != port)
    {
        return Err(Error::internal(format!(
            "cannot attach port {port} to mirror {} because there is already another port. Error: its output port is {other}",
            mirror.name
        )));
    }
    let change = |column: &str| {
        let ids = ovsdb::set([ovsdb::uuid(port)]);
        mutate(table::MIRROR, &[row.is_it()], column, "insert", ids)
    };
    let changes = role.columns(mirror).into_iter().map(change);
    Ok([row.is_unchanged()].into_iter().chain(changes).collect())
}

fn creation(role: Role, mirror: &Mirror, port: &str, bridge: &str, id: &str) -> [Value; 3] {
    let mut row = Map::new();
    row.insert(column::NAME.to_owned(), json!(mirror.name));
    row.insert(
        column::EXTERNAL_IDS.to_owned(),
        ovsdb::map([(external_id::OWNER, OWNER)]),
    );
    for column in role.columns(mirror) {
        row.insert(column.to_owned(), ovsdb::set([ovsdb::uuid(port)]));
    }
    let nobody_was_faster = wait(
        table::MIRROR,
        &[is(column::NAME, mirror.name.as_str())],
        &[],
        Duration::ZERO,
    );
    [
        nobody_was_faster,
        insert(table::MIRROR, id, row),
        mutate(
            table::BRIDGE,
            &[is(column::NAME, bridge)],
            column::MIRRORS,
            "insert",
            ovsdb::set([ovsdb::named_uuid(id)]),
        ),
    ]
}

/// The operations that remove the port from the mirrors that contain it.
pub(super) fn detach(role: Role, names: &[String], port: &str) -> Vec<Value> {
    let out_of = |name: &String, column: &str| {
        let conditions = [is(column::NAME, name.as_str())];
        mutate(
            table::MIRROR,
            &conditions,
            column,
            "delete",
            ovsdb::set([ovsdb::uuid(port)]),
        )
    };
    let columns = role.all_columns();
    names
        .iter()
        .flat_map(|name| columns.iter().map(move |column| out_of(name, column)))
        .collect()
}

/// Transactions that each remove one of our mirrors of the bridge without a port.
pub(super) fn removals(bridge: &str, bridges: &[Value], rows: &[Row]) -> Vec<[Value; 2]> {
    let on_bridge = |row: &Row| {
        bridges
            .iter()
            .any(|bridge| references(bridge, column::MIRRORS).any(|id| id == row.id))
    };
    let useless = rows
        .iter()
        .filter(|row| row.is_owned() && row.is_empty() && on_bridge(row));
    let removal = |row: &Row| {
        let ids = ovsdb::set([ovsdb::uuid(&row.id)]);
        let conditions = [is(column::NAME, bridge)];
        [
            row.is_unchanged(),
            mutate(table::BRIDGE, &conditions, column::MIRRORS, "delete", ids),
        ]
    };
    useless.map(removal).collect()
}

/// The first mirror that lacks the port.
pub(super) fn missing<'a>(role: Role, wanted: &'a [Mirror], port: &str, rows: &[Row]) -> Option<&'a str> {
    let is_there = |mirror: &Mirror| {
        let mut same_name = rows.iter().filter(|row| name_of(&row.row) == mirror.name);
        same_name.any(|row| role.columns(mirror).iter().all(|column| row.has(column, port)))
    };
    wanted
        .iter()
        .find(|mirror| !is_there(mirror))
        .map(|mirror| mirror.name.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mirror(name: &str, ingress: bool, egress: bool) -> Mirror {
        Mirror {
            name: name.into(),
            ingress,
            egress,
        }
    }

    fn row(name: &str, owner: &str, sources: &[&str], output: Option<&str>) -> Row {
        let set = |ids: &mut dyn Iterator<Item = &str>| ovsdb::set(ids.map(ovsdb::uuid));
        Row::new(json!({
            "_uuid": ["uuid", name], "name": name, "external_ids": ["map", [["owner", owner]]],
            "select_src_port": set(&mut sources.iter().copied()), "select_dst_port": ["set", []],
            "output_port": set(&mut output.into_iter())
        }))
        .unwrap()
    }

    fn words(operations: &[Value]) -> Vec<String> {
        let word = |operation: &Value| {
            let text = |key: &str| operation[key].as_str().unwrap_or_default().to_owned();
            let columns = operation["mutations"][0][0]
                .as_str()
                .unwrap_or_default()
                .to_owned();
            format!("{} {} {columns}", text("op"), text("table"))
                .trim()
                .to_owned()
        };
        operations.iter().map(word).collect()
    }

    // cni-plugins#61
    #[test]
    fn missing_mirror_is_created_and_existing_one_reused() {
        let wanted = [mirror("a", true, true), mirror("b", true, false)];
        let rows = [row("b", "x", &["other"], None)];
        let operations = attach(Role::Producer, &wanted, "p", "br1", &rows).unwrap();
        assert_eq!(
            words(&operations),
            [
                "wait Mirror",
                "insert Mirror",
                "mutate Bridge mirrors",
                "wait Mirror",
                "mutate Mirror select_src_port"
            ]
        );
        assert_eq!(
            operations[1]["row"],
            json!({
                "name": "a", "external_ids": ["map", [["owner", "ovs-cni.network.kubevirt.io"]]],
                "select_src_port": ["set", [["uuid", "p"]]], "select_dst_port": ["set", [["uuid", "p"]]]
            })
        );
        assert_eq!(operations[0]["rows"], json!([]));
        assert_eq!(
            operations[3]["rows"][0]["select_src_port"],
            json!(["set", [["uuid", "other"]]])
        );
    }

    // cni-plugins#61
    #[test]
    fn second_consumer_is_rejected() {
        let wanted = [mirror("m", false, false)];
        let rows = [row("m", OWNER, &[], Some("other"))];
        let error = attach(Role::Consumer, &wanted, "p", "br1", &rows).unwrap_err();
        let begin = "cannot attach port p to mirror m because there is already another port. Error: ";
        assert!(error.msg.starts_with(begin), "{error}");
        assert!(attach(Role::Consumer, &wanted, "other", "br1", &rows).is_ok());
    }

    // cni-plugins#61
    #[test]
    fn only_empty_mirrors_of_ours_on_this_bridge_are_removed() {
        let rows = [
            row("used", OWNER, &["p"], None),
            row("empty", OWNER, &[], None),
            row("foreign", "x", &[], None),
            row("elsewhere", OWNER, &[], None),
            row("output", OWNER, &[], Some("p")),
        ];
        let all = ["used", "empty", "foreign", "output"].map(ovsdb::uuid);
        let removed = removals("br1", &[json!({ "mirrors": ovsdb::set(all) })], &rows);
        assert_eq!(removed.len(), 1);
        assert_eq!(
            removed[0][1]["mutations"],
            json!([["mirrors", "delete", ["set", [["uuid", "empty"]]]]])
        );
    }

    #[test]
    fn check_requires_the_port_in_every_column() {
        let rows = [row("m", OWNER, &["p"], None)];
        let ingress = [mirror("m", true, false)];
        assert_eq!(missing(Role::Producer, &ingress, "p", &rows), None);
        assert_eq!(missing(Role::Producer, &ingress, "q", &rows), Some("m"));
        let both = [mirror("m", true, true)];
        assert_eq!(missing(Role::Producer, &both, "p", &rows), Some("m"));
        assert_eq!(missing(Role::Consumer, &ingress, "p", &rows), Some("m"));
    }
}
