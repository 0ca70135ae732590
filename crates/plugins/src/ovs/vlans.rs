//! VLANs of an Open vSwitch port (cni-plugins §10.1).

use std::collections::BTreeSet;

use cni::Error;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{
    messages::{OVS_TRUNK_EMPTY, TRUNK_ID, TRUNK_MAX, TRUNK_MIN, TRUNK_ORDER},
    names::ovs::column,
    vlan_ids,
};

/// Maximum VLAN ID in the database.
const LAST: u16 = 4095;

const ACCESS: &str = "access";
const TRUNK: &str = "trunk";
/// Trunk modes with a VLAN for untagged frames.
const NATIVE: [&str; 2] = ["native-untagged", "native-tagged"];

/// An item of `trunk`: one VLAN, a range, or both.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(super) struct TrunkItem {
    #[serde(rename = "minID")]
    min_id: Option<u32>,
    #[serde(rename = "maxID")]
    max_id: Option<u32>,
    id: Option<u32>,
}

/// The VLAN columns of a port's row.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Vlans {
    /// `vlan_mode`.
    pub(super) mode: String,
    /// `tag`.
    pub(super) tag: Option<u32>,
    /// `trunks`. An empty set means all VLANs.
    pub(super) trunks: BTreeSet<u32>,
}

impl Vlans {
    /// Like upstream, prefers a trunk over a VLAN without a `mode`.
    pub(super) fn new(vlan: Option<u32>, trunk: &[TrunkItem], mode: &str) -> Result<Self, Error> {
        let trunks = ids(trunk)?;
        if NATIVE.contains(&mode) {
            let tag = vlan.ok_or_else(|| Error::internal(format!("vlan_mode {mode} needs a vlan")))?;
            return Ok(Vlans {
                mode: mode.to_owned(),
                tag: Some(tag),
                trunks,
            });
        }
        if !mode.is_empty() {
            return Err(Error::internal(format!(
                "unknown vlan_mode \"{mode}\": leave it out, or use {}",
                NATIVE.join(" or ")
            )));
        }
        match vlan {
            Some(tag) if trunk.is_empty() => Ok(Vlans {
                mode: ACCESS.to_owned(),
                tag: Some(tag),
                trunks,
            }),
            _ => Ok(Vlans {
                mode: TRUNK.to_owned(),
                tag: None,
                trunks,
            }),
        }
    }

    /// Writes the columns to a new row.
    pub(super) fn write(&self, row: &mut Map<String, Value>) {
        row.insert(column::VLAN_MODE.to_owned(), json!(self.mode));
        if let Some(tag) = self.tag {
            row.insert(column::TAG.to_owned(), json!(tag));
        }
        if !self.trunks.is_empty() {
            let ids = self.trunks.iter().map(|id| json!(id));
            row.insert(column::TRUNKS.to_owned(), ovsdb::set(ids));
        }
    }

    /// Parses the columns of a row. Ignores values of other types.
    pub(super) fn of_row(row: &Value) -> Self {
        let numbers = |name: &str| {
            let values = row.get(name).map(ovsdb::set_of).unwrap_or_default();
            values
                .iter()
                .filter_map(Value::as_u64)
                .filter_map(|id| u32::try_from(id).ok())
        };
        let modes = row.get(column::VLAN_MODE).map(ovsdb::set_of).unwrap_or_default();
        Vlans {
            mode: modes
                .iter()
                .find_map(Value::as_str)
                .unwrap_or_default()
                .to_owned(),
            tag: numbers(column::TAG).next(),
            trunks: numbers(column::TRUNKS).collect(),
        }
    }

    /// Compares the columns. The error describes the first difference in upstream's words.
    pub(super) fn require(&self, wanted: &Self) -> Result<(), Error> {
        let tag = |tag: Option<u32>| tag.map_or_else(|| "nil".to_owned(), |tag| tag.to_string());
        let list = |ids: &BTreeSet<u32>| {
            let ids: Vec<_> = ids.iter().map(u32::to_string).collect();
            format!("[{}]", ids.join(" "))
        };
        let differs = if self.mode != wanted.mode {
            format!("vlan mode mismatch. expected={},real={}", wanted.mode, self.mode)
        } else if self.tag != wanted.tag {
            format!(
                "vlan tag mismatch. ovs={},netconf={}",
                tag(self.tag),
                tag(wanted.tag)
            )
        } else if self.trunks != wanted.trunks {
            format!(
                "trunk mismatch. ovs={},netconf={}",
                list(&self.trunks),
                list(&wanted.trunks)
            )
        } else {
            return Ok(());
        };
        Err(Error::internal(differs))
    }
}

fn ids(trunk: &[TrunkItem]) -> Result<BTreeSet<u32>, Error> {
    let limited = |id: Option<u32>, text: &str| {
        let limited = |id: u32| u16::try_from(id).ok().filter(|id| *id <= LAST);
        id.map(|id| limited(id).ok_or_else(|| Error::internal(text)))
            .transpose()
    };
    let mut ranges = Vec::new();
    for item in trunk {
        let first = limited(item.min_id, TRUNK_MIN)?;
        let last = limited(item.max_id, TRUNK_MAX)?;
        if let (Some(first), Some(last)) = (first, last) {
            if first > last {
                return Err(Error::internal(TRUNK_ORDER));
            }
            ranges.push((first, last));
        }
        ranges.extend(limited(item.id, TRUNK_ID)?.map(|id| (id, id)));
    }
    if ranges.is_empty() && !trunk.is_empty() {
        return Err(Error::internal(OVS_TRUNK_EMPTY));
    }
    Ok(vlan_ids::union(ranges).into_iter().map(u32::from).collect())
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn vlans(vlan: Option<u32>, trunk: impl Into<Value>, mode: &str) -> Result<Vlans, String> {
        let trunk: Vec<TrunkItem> = cni::json::from_str(&trunk.into().to_string()).unwrap();
        Vlans::new(vlan, &trunk, mode).map_err(|error| error.msg)
    }

    fn columns(vlans: &Vlans) -> Value {
        let mut row = Map::new();
        vlans.write(&mut row);
        Value::Object(row)
    }

    // cni-plugins#53
    #[test]
    fn vlan_alone_is_access_and_everything_else_is_a_trunk() {
        let access = vlans(Some(100), json!([]), "").unwrap();
        assert_eq!(columns(&access), json!({ "vlan_mode": "access", "tag": 100 }));
        let all = vlans(None, json!([]), "").unwrap();
        assert_eq!(columns(&all), json!({ "vlan_mode": "trunk" }));
        let trunk = json!([{ "id": 42 }, { "minID": 5, "maxID": 7 }, { "id": 6 }]);
        let some = vlans(Some(100), trunk.clone(), "").unwrap();
        assert_eq!(
            columns(&some),
            json!({ "vlan_mode": "trunk", "trunks": ["set", [5, 6, 7, 42]] })
        );
        let native = vlans(Some(100), trunk, "native-untagged").unwrap();
        assert_eq!(
            columns(&native),
            json!({ "vlan_mode": "native-untagged", "tag": 100, "trunks": ["set", [5, 6, 7, 42]] })
        );
        for written in [access, all, some, native] {
            assert_eq!(Vlans::of_row(&columns(&written)), written);
        }
    }

    #[test]
    fn invalid_vlans_return_upstreams_errors() {
        for (trunk, text) in [
            (
                json!([{ "minID": 4096, "maxID": 5000 }]),
                "incorrect trunk minID parameter",
            ),
            (
                json!([{ "minID": 1, "maxID": 4096 }]),
                "incorrect trunk maxID parameter",
            ),
            (
                json!([{ "minID": 7, "maxID": 6 }]),
                "minID is greater than maxID in trunk parameter",
            ),
            (json!([{ "id": 4096 }]), "incorrect trunk id parameter"),
            (json!([{ "minID": 5 }]), "trunk parameter is misconfigured"),
            (json!([{}]), "trunk parameter is misconfigured"),
        ] {
            assert_eq!(vlans(None, trunk.clone(), ""), Err(text.to_owned()), "{trunk}");
        }
        let without = vlans(None, json!([{ "id": 1 }]), "native-tagged");
        assert_eq!(without, Err("vlan_mode native-tagged needs a vlan".to_owned()));
        assert!(vlans(None, json!([]), "dot1q").is_err());
    }

    #[test]
    fn check_names_the_difference() {
        let row = |text: &str| Vlans::of_row(&serde_json::from_str(text).unwrap());
        let access = row(r#"{"vlan_mode":"access","tag":5,"trunks":["set",[]]}"#);
        let error = |wanted: &Vlans| access.require(wanted).unwrap_err().msg;
        assert_eq!(access.require(&access), Ok(()));
        assert_eq!(
            error(&row(r#"{"vlan_mode":"trunk"}"#)),
            "vlan mode mismatch. expected=trunk,real=access"
        );
        assert_eq!(
            error(&row(r#"{"vlan_mode":"access","tag":["set",[]]}"#)),
            "vlan tag mismatch. ovs=5,netconf=nil"
        );
        assert_eq!(
            error(&row(r#"{"vlan_mode":"access","tag":5,"trunks":["set",[7,9]]}"#)),
            "trunk mismatch. ovs=[],netconf=[7 9]"
        );
    }

    #[test]
    fn a_range_that_is_repeated_many_times_costs_little() {
        // cni-plugins#90
        let item = TrunkItem {
            min_id: Some(1),
            max_id: Some(4094),
            id: None,
        };
        let started = Instant::now();
        let vlans = Vlans::new(None, &vec![item; 100_000], "").unwrap();
        assert_eq!(vlans.trunks.len(), 4094);
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}
