//! The pods' ports in the database (cni-plugins §10.3).

use std::time::Duration;

use cni::Error;
use serde_json::{Map, Value, json};

use super::{
    config::Target,
    database::{
        Database, count_of, id_of, includes, insert, is, is_owned, mutate, name_of, no_bridge, references,
        rows_of, select, wait,
    },
};
use crate::names::ovs::{OWNER, column, external_id, table};

/// IDs of new rows within a transaction. Link names may contain characters that IDs may not.
const NEW_PORT: &str = "port";
const NEW_INTERFACE: &str = "interface";

/// A new port.
pub(super) struct New<'a> {
    /// The name of the port and its link.
    pub(super) name: &'a str,
    /// `CNI_NETNS`.
    pub(super) netns: &'a str,
    /// `CNI_IFNAME`.
    pub(super) ifname: &'a str,
    /// UID of the pod, may be empty.
    pub(super) pod_uid: &'a str,
    /// The port's name in OVN.
    pub(super) ovn_port: Option<&'a str>,
}

/// A port in the database.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    id: String,
    pub(super) name: String,
    /// Path of the pod's namespace, possibly empty.
    pub(super) netns: String,
    /// Interface in the pod, possibly empty.
    pub(super) ifname: String,
}

/// Creates a port of the bridge, or nothing on failure.
pub(super) fn create(database: &mut Database, target: &Target, new: &New<'_>) -> Result<(), Error> {
    let replies = database.transact(&creation(target, new))?;
    // The database deletes unreferenced rows at the end of the transaction.
    match replies.last().map(count_of) {
        Some(1..) => Ok(()),
        _ => Err(no_bridge(&target.bridge)),
    }
}

fn creation(target: &Target, new: &New<'_>) -> [Value; 3] {
    let mut interface = Map::new();
    interface.insert(column::NAME.to_owned(), json!(new.name));
    if !target.interface_type.is_empty() {
        interface.insert(column::TYPE.to_owned(), json!(target.interface_type));
    }
    if let Some(ovn_port) = new.ovn_port {
        let ids = ovsdb::map([(external_id::OVN_PORT, ovn_port)]);
        interface.insert(column::EXTERNAL_IDS.to_owned(), ids);
    }
    if let Some(number) = target.ofport_request {
        interface.insert(column::OFPORT_REQUEST.to_owned(), json!(number));
    }
    let mut port = Map::new();
    port.insert(column::NAME.to_owned(), json!(new.name));
    port.insert(column::INTERFACES.to_owned(), ovsdb::named_uuid(NEW_INTERFACE));
    target.vlans.write(&mut port);
    let ids = ovsdb::map([
        (external_id::POD_UID, new.pod_uid),
        (external_id::NETNS, new.netns),
        (external_id::IFNAME, new.ifname),
        (external_id::OWNER, OWNER),
    ]);
    port.insert(column::EXTERNAL_IDS.to_owned(), ids);
    [
        insert(table::INTERFACE, NEW_INTERFACE, interface),
        insert(table::PORT, NEW_PORT, port),
        mutate(
            table::BRIDGE,
            &[is(column::NAME, target.bridge.as_str())],
            column::PORTS,
            "insert",
            ovsdb::set([ovsdb::named_uuid(NEW_PORT)]),
        ),
    ]
}

/// Our ports of an attachment, on any bridge.
pub(super) fn find(database: &mut Database, netns: &str, ifname: &str) -> Result<Vec<Found>, Error> {
    let ids = ovsdb::map([
        (external_id::NETNS, netns),
        (external_id::IFNAME, ifname),
        (external_id::OWNER, OWNER),
    ]);
    let conditions = [includes(column::EXTERNAL_IDS, ids)];
    let columns = [column::UUID, column::NAME, column::EXTERNAL_IDS];
    let rows = database.rows(select(table::PORT, &conditions, &columns))?;
    Ok(rows.iter().filter_map(Found::of_row).collect())
}

/// Removes a port with its interface from its bridge. No-op if the port is gone or has another owner now.
pub(super) fn remove(database: &mut Database, port: &Found) -> Result<(), Error> {
    database.transact_if(&removal(port)).map(drop)
}

/// The operations of a removal. The database deletes unreferenced rows.
fn removal(port: &Found) -> [Value; 2] {
    let id = ovsdb::uuid(&port.id);
    let is_still_ours = wait(
        table::PORT,
        &[is(column::UUID, id.clone()), is_owned()],
        &[json!({ column::NAME: port.name })],
        Duration::ZERO,
    );
    let references = ovsdb::set([id]);
    [
        is_still_ours,
        mutate(
            table::BRIDGE,
            &[includes(column::PORTS, references.clone())],
            column::PORTS,
            "delete",
            references,
        ),
    ]
}

/// Our ports on a bridge whose interface the switch could not open.
pub(super) fn failed(database: &mut Database, bridge: &str) -> Result<Vec<Found>, Error> {
    let has_error = json!([column::ERROR, "!=", ovsdb::set([])]);
    let interfaces = database.rows(select(table::INTERFACE, &[has_error], &[column::UUID]))?;
    if interfaces.is_empty() {
        return Ok(Vec::new());
    }
    let columns = [
        column::UUID,
        column::NAME,
        column::INTERFACES,
        column::EXTERNAL_IDS,
    ];
    let replies = database.transact(&[
        select(table::BRIDGE, &[is(column::NAME, bridge)], &[column::PORTS]),
        select(table::PORT, &[is_owned()], &columns),
    ])?;
    let rows: Vec<_> = replies.iter().map(rows_of).collect();
    let [bridges, ports] = rows.as_slice() else {
        return Ok(Vec::new());
    };
    Ok(with_failed_interface(bridges, ports, &interfaces))
}

fn with_failed_interface(bridges: &[Value], ports: &[Value], interfaces: &[Value]) -> Vec<Found> {
    let on_bridge = |port: &Value| {
        id_of(port).is_some_and(|id| {
            bridges
                .iter()
                .any(|bridge| references(bridge, column::PORTS).any(|it| it == id))
        })
    };
    let has_failed = |port: &Value| {
        references(port, column::INTERFACES).any(|id| interfaces.iter().any(|row| id_of(row) == Some(id)))
    };
    let failed = ports.iter().filter(|port| on_bridge(port) && has_failed(port));
    failed.filter_map(Found::of_row).collect()
}

/// The ID of the port with this name, of any owner.
pub(crate) fn find_by_name(database: &mut Database, name: &str) -> Result<Option<String>, Error> {
    let rows = database.rows(select(table::PORT, &[is(column::NAME, name)], &[column::UUID]))?;
    Ok(rows.first().and_then(id_of).map(str::to_owned))
}

impl Found {
    fn of_row(row: &Value) -> Option<Self> {
        let id = |key: &str| {
            let ids = row.get(column::EXTERNAL_IDS)?;
            let found = ovsdb::map_of(ids).find(|(known, _)| *known == key);
            found.map(|(_, value)| value.to_owned())
        };
        Some(Found {
            id: id_of(row)?.to_owned(),
            name: name_of(row).to_owned(),
            netns: id(external_id::NETNS).unwrap_or_default(),
            ifname: id(external_id::IFNAME).unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // cni-plugins#53, cni-plugins#56
    #[test]
    fn port_is_created_in_one_transaction() {
        let target = Target {
            bridge: "br1".into(),
            interface_type: "system".into(),
            ofport_request: Some(5),
            vlans: super::super::vlans::Vlans::new(Some(7), &[], "").unwrap(),
            ..Target::default()
        };
        let new = New {
            name: "enp3s0f0.1-x",
            netns: "/run/netns/a",
            ifname: "net1",
            pod_uid: "u",
            ovn_port: Some("p"),
        };
        let [interface, port, bridge] = creation(&target, &new);
        assert_eq!(
            interface["row"],
            json!({
                "name": "enp3s0f0.1-x", "type": "system", "external_ids": ["map", [["iface-id", "p"]]],
                "ofport_request": 5
            })
        );
        assert_eq!(
            port["row"],
            json!({
                "name": "enp3s0f0.1-x", "interfaces": ["named-uuid", "interface"], "vlan_mode": "access", "tag": 7,
                "external_ids": ["map", [
                    ["contPodUid", "u"], ["contNetns", "/run/netns/a"], ["contIface", "net1"],
                    ["owner", "ovs-cni.network.kubevirt.io"]
                ]]
            })
        );
        assert_eq!(bridge["where"], json!([["name", "==", "br1"]]));
        assert_eq!(
            bridge["mutations"],
            json!([["ports", "insert", ["set", [["named-uuid", "port"]]]]])
        );
    }

    // cni-plugins#58
    #[test]
    fn only_ports_of_this_bridge_with_a_failed_interface_are_found() {
        let uuid = |id: &str| json!(["uuid", id]);
        let port = |id: &str, interface: &str| {
            json!({
                "_uuid": uuid(id), "name": id, "interfaces": uuid(interface),
                "external_ids": ["map", [["contNetns", "/n"], ["contIface", "net1"]]]
            })
        };
        let bridges = [json!({ "ports": ["set", [uuid("p1"), uuid("p2")]] })];
        let ports = [port("p1", "i1"), port("p2", "i2"), port("p3", "i3")];
        let interfaces = [json!({ "_uuid": uuid("i2") }), json!({ "_uuid": uuid("i3") })];
        let found = with_failed_interface(&bridges, &ports, &interfaces);
        assert_eq!(
            found,
            [Found {
                id: "p2".into(),
                name: "p2".into(),
                netns: "/n".into(),
                ifname: "net1".into()
            }]
        );
    }
}
