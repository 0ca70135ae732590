//! CHECK of a port, with upstream's error texts (cni-plugins §10.6).

use cni::{Error, result::Interface};
use linux::link::Link;
use serde::Deserialize;
use serde_json::Value;

use super::{
    cache::CacheFile,
    config::{Target, socket},
    database::{Database, id_of, is, references, rows_of, select},
    vlans::Vlans,
};
use crate::{
    attach::Inspection,
    check,
    messages::Explain as _,
    names::{
        kind,
        ovs::{column, table},
    },
    record::AttachmentId,
};

/// The keys of the cache file that CHECK reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "PascalCase")]
pub(super) struct Cached {
    pub(super) netconf: Netconf,
}

/// The config of ADD, with the resolved bridge name.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Netconf {
    bridge: String,
    pub(super) socket_file: String,
    #[serde(rename = "deviceID")]
    pub(super) device_id: String,
    ipam: Ipam,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Ipam {
    #[serde(rename = "type")]
    plugin: String,
}

/// Compares the config with that of ADD, and the port in the database with the config.
pub(super) fn check_port(here: &mut Inspection<'_>, target: &Target) -> Result<(), Error> {
    let file = CacheFile::of(&AttachmentId::of(here.call), "");
    let cached = file.read::<Cached>().map(|cached| cached.netconf);
    if let Some(netconf) = cached.filter(Netconf::is_complete) {
        netconf.require(target, here.call.config.ipam_plugin())?;
    }
    let name = outer(here)?.name.clone();
    let mut database = Database::connect(&target.socket)?;
    let columns = [column::UUID, column::VLAN_MODE, column::TAG, column::TRUNKS];
    let replies = database.transact(&[
        select(
            table::BRIDGE,
            &[is(column::NAME, target.bridge.as_str())],
            &[column::PORTS],
        ),
        select(
            table::INTERFACE,
            &[is(column::NAME, name.as_str())],
            &[column::ERROR],
        ),
        select(table::PORT, &[is(column::NAME, name.as_str())], &columns),
    ])?;
    let mut rows = replies.iter().map(rows_of).map(|rows| rows.into_iter().next());
    let mut next = || rows.next().flatten();
    compare(target, &name, next().as_ref(), next().as_ref(), next().as_ref())
}

/// Compares rows of the database with the config.
fn compare(
    target: &Target,
    name: &str,
    bridge: Option<&Value>,
    interface: Option<&Value>,
    port: Option<&Value>,
) -> Result<(), Error> {
    let name_of_bridge = &target.bridge;
    let Some(bridge) = bridge else {
        return Err(Error::internal(format!(
            "Error: bridge {name_of_bridge} is not found in OVS"
        )));
    };
    let error = interface
        .and_then(|row| row.get(column::ERROR))
        .map(ovsdb::set_of);
    if error.is_some_and(|texts| {
        texts
            .iter()
            .any(|text| text.as_str().is_some_and(|text| !text.is_empty()))
    }) {
        return Err(Error::internal(format!(
            "Error: interface {name} is in error state"
        )));
    }
    let id = port.and_then(id_of);
    match (port, id) {
        (Some(port), Some(id)) if references(bridge, column::PORTS).any(|it| it == id) => {
            Vlans::of_row(port).require(&target.vlans)
        }
        _ => Err(Error::internal(format!(
            "Error: interface {name} is no port of bridge {name_of_bridge}"
        ))),
    }
}

/// Checks that the host end is the peer of the pod's link.
pub(super) fn check_pair(here: &mut Inspection<'_>, link: &Link) -> Result<(), Error> {
    let expected = outer(here)?.clone();
    let name = &expected.name;
    let found = here
        .host
        .find_link(name)
        .explain(|| format!("failed to lookup \"{name}\""))?;
    let Some(outer) = found.filter(|outer| outer.is_kind(kind::VETH) && outer.peer == Some(link.index))
    else {
        return Err(Error::internal(format!(
            "{name} is not the other end of {}",
            link.name
        )));
    };
    check::same_mac(&outer, &expected, "Interface")
}

/// The host end in the result of ADD.
fn outer<'a>(here: &'a Inspection<'_>) -> Result<&'a Interface, Error> {
    let mut interfaces = here.previous.interfaces.iter();
    interfaces
        .find(|interface| interface.sandbox.is_none())
        .ok_or_else(|| Error::internal("prevResult has no interface on the host"))
}

impl Netconf {
    /// Whether it has the plugin's own keys. Old versions of the upstream plugin wrote only those that all plugins
    /// have.
    pub(super) fn is_complete(&self) -> bool {
        !self.bridge.is_empty()
    }

    /// An error if the config differs from that of ADD.
    fn require(&self, target: &Target, ipam: &str) -> Result<(), Error> {
        let cached_socket = socket(self.socket_file.clone());
        for (what, cached, given) in [
            ("BrName", self.bridge.as_str(), target.bridge.as_str()),
            ("SocketFile", cached_socket.as_str(), target.socket.as_str()),
            ("IPAM", self.ipam.plugin.as_str(), ipam),
            ("DeviceID", self.device_id.as_str(), ""),
        ] {
            if cached != given {
                return Err(Error::internal(format!(
                    "{what} mismatch. cache={cached},netconf={given}"
                )));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn target() -> Target {
        Target {
            bridge: "br1".into(),
            socket: "unix:/s".into(),
            vlans: Vlans::new(Some(5), &[], "").unwrap(),
            ..Target::default()
        }
    }

    #[test]
    fn check_of_changed_config_names_the_difference() {
        let of = |text: &str| {
            let cached: Cached = cni::json::from_str(text).unwrap();
            cached
                .netconf
                .require(&target(), "static")
                .map_err(|error| error.msg)
        };
        let same = r#"{"Netconf":{"bridge":"br1","socket_file":"unix:/s","ipam":{"type":"static"}},"OrigIfName":""}"#;
        assert_eq!(of(same), Ok(()));
        for (text, message) in [
            (
                same.replace("br1", "br2"),
                "BrName mismatch. cache=br2,netconf=br1",
            ),
            (
                same.replace("unix:/s", "tcp:x"),
                "SocketFile mismatch. cache=tcp:x,netconf=unix:/s",
            ),
            (same.replace("static", ""), "IPAM mismatch. cache=,netconf=static"),
            (
                same.replace("\"bridge\"", "\"deviceID\":\"0\",\"bridge\""),
                "DeviceID mismatch. cache=0,netconf=",
            ),
        ] {
            assert_eq!(of(&text), Err(message.to_owned()), "{text}");
        }
    }

    #[test]
    fn different_rows_are_reported() {
        let bridge = json!({ "ports": ["uuid", "p"] });
        let port = json!({ "_uuid": ["uuid", "p"], "vlan_mode": "access", "tag": 5 });
        let (fine, failed) = (
            json!({ "error": ["set", []] }),
            json!({ "error": "could not open" }),
        );
        let of = |bridge: Option<&Value>, interface: &Value, port: Option<&Value>| {
            compare(&target(), "veth1", bridge, Some(interface), port).map_err(|error| error.msg)
        };
        assert_eq!(of(Some(&bridge), &fine, Some(&port)), Ok(()));
        assert_eq!(
            of(None, &fine, Some(&port)),
            Err("Error: bridge br1 is not found in OVS".to_owned())
        );
        assert_eq!(
            of(Some(&bridge), &failed, Some(&port)),
            Err("Error: interface veth1 is in error state".to_owned())
        );
        for other in [None, Some(&json!({ "_uuid": ["uuid", "q"] }))] {
            assert_eq!(
                of(Some(&bridge), &fine, other),
                Err("Error: interface veth1 is no port of bridge br1".to_owned())
            );
        }
    }
}
