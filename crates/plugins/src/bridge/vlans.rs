//! VLANs of a port (cni-plugins §3.1, §3.2 step 4).

use std::collections::BTreeSet;

use cni::Error;
use linux::vlan::PortVlan;
use serde::Deserialize;

use crate::{
    messages::{TRUNK_ID, TRUNK_MAX, TRUNK_MAX_MISSING, TRUNK_MIN, TRUNK_MIN_MISSING, TRUNK_ORDER},
    vlan_ids,
};

/// Maximum VLAN ID. 4095 is reserved.
const LAST: u16 = 4094;
/// Native VLAN of a trunk without a configured one.
const TRUNK_NATIVE: u16 = 1;

/// An item of `vlanTrunk`: one VLAN, a range, or both.
#[derive(Debug, Default, Clone, Deserialize)]
#[serde(default)]
pub(super) struct TrunkItem {
    #[serde(rename = "minID")]
    min_id: Option<i64>,
    #[serde(rename = "maxID")]
    max_id: Option<i64>,
    id: Option<i64>,
}

/// The configured VLANs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Vlans {
    /// VLAN of untagged frames.
    pub(super) access: Option<u16>,
    trunk: BTreeSet<u16>,
    keep_default: bool,
}

impl Vlans {
    /// `None` without VLAN keys. An empty trunk requests filtering without VLANs.
    pub(super) fn new(
        vlan: i64,
        trunk: Option<&[TrunkItem]>,
        keep_default: bool,
    ) -> Result<Option<Self>, Error> {
        let access = u16::try_from(vlan).ok().filter(|id| *id <= LAST).ok_or_else(|| {
            Error::internal(format!("invalid VLAN ID {vlan} (must be between 0 and {LAST})"))
        })?;
        let access = Some(access).filter(|id| *id != 0);
        if access.is_none() && trunk.is_none() {
            return Ok(None);
        }
        let mut ranges = Vec::new();
        for item in trunk.unwrap_or_default() {
            item.collect(&mut ranges)?;
        }
        Ok(Some(Vlans {
            access,
            trunk: vlan_ids::union(ranges),
            keep_default,
        }))
    }

    /// Whether to remove a new port from the default VLAN.
    pub(super) fn replaces_default(&self) -> bool {
        !self.keep_default && (self.access.is_some() || !self.trunk.is_empty())
    }

    /// The VLANs of the port.
    pub(super) fn wanted(&self) -> Vec<PortVlan> {
        let native = match self.access {
            None if self.trunk.is_empty() => return Vec::new(),
            access => access.unwrap_or(TRUNK_NATIVE),
        };
        // The native VLAN is untagged even if the trunk contains it.
        let tagged = self
            .trunk
            .iter()
            .filter(|id| **id != native)
            .map(|id| PortVlan::tagged(*id));
        tagged.chain([PortVlan::access(native)]).collect()
    }

    /// The VLANs of the gateway's port.
    pub(super) fn gateway_port(&self) -> Option<Vlans> {
        self.access?;
        Some(Vlans {
            trunk: BTreeSet::new(),
            ..self.clone()
        })
    }
}

impl TrunkItem {
    fn collect(&self, ranges: &mut Vec<(u16, u16)>) -> Result<(), Error> {
        match (self.min_id, self.max_id) {
            (Some(min), Some(max)) => {
                let (min, max) = (checked(min, TRUNK_MIN)?, checked(max, TRUNK_MAX)?);
                if min > max {
                    return Err(Error::internal(TRUNK_ORDER));
                }
                ranges.push((min, max));
            }
            (None, Some(_)) => return Err(Error::internal(TRUNK_MIN_MISSING)),
            (Some(_), None) => return Err(Error::internal(TRUNK_MAX_MISSING)),
            (None, None) => {}
        }
        if let Some(id) = self.id {
            let id = checked(id, TRUNK_ID)?;
            ranges.push((id, id));
        }
        Ok(())
    }
}

fn checked(id: i64, message: &str) -> Result<u16, Error> {
    u16::try_from(id)
        .ok()
        .filter(|id| (1..=LAST).contains(id))
        .ok_or_else(|| Error::internal(message))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn vlans(vlan: i64, trunk: Option<&str>) -> Result<Option<Vlans>, Error> {
        let items: Option<Vec<TrunkItem>> = trunk.map(|text| cni::json::from_str(text).unwrap());
        Vlans::new(vlan, items.as_deref(), false)
    }

    fn message(trunk: &str) -> String {
        vlans(0, Some(trunk)).unwrap_err().msg
    }

    // cni-plugins#20
    #[test]
    fn invalid_trunk_items_return_distinct_errors() {
        for bad in ["0", "-1", "4095"] {
            assert_eq!(
                message(&format!(r#"[{{"minID":{bad},"maxID":5}}]"#)),
                "incorrect trunk minID parameter"
            );
            assert_eq!(
                message(&format!(r#"[{{"minID":5,"maxID":{bad}}}]"#)),
                "incorrect trunk maxID parameter"
            );
            assert_eq!(
                message(&format!(r#"[{{"id":{bad}}}]"#)),
                "incorrect trunk id parameter"
            );
        }
        assert_eq!(
            message(r#"[{"minID":6,"maxID":5}]"#),
            "minID is greater than maxID in trunk parameter"
        );
        assert_eq!(
            message(r#"[{"maxID":5}]"#),
            "minID and maxID should be configured simultaneously, minID is missing"
        );
        assert_eq!(
            message(r#"[{"minID":5}]"#),
            "minID and maxID should be configured simultaneously, maxID is missing"
        );
    }

    #[test]
    fn vlan_identifiers_end_at_4094() {
        for bad in [-1, 4095, 70000] {
            assert_eq!(
                vlans(bad, None).unwrap_err().msg,
                format!("invalid VLAN ID {bad} (must be between 0 and 4094)")
            );
        }
        assert_eq!(vlans(0, None).unwrap(), None);
        assert_eq!(
            vlans(4094, None).unwrap().unwrap().wanted(),
            [PortVlan::access(4094)]
        );
    }

    #[test]
    fn trunk_is_sorted_and_deduplicated_with_native_vlan() {
        let trunk = Some(r#"[{"minID":202,"maxID":203},{"id":101,"minID":201,"maxID":202}]"#);
        let tagged = [101, 201, 202, 203].map(PortVlan::tagged);
        let plain = vlans(0, trunk).unwrap().unwrap();
        assert_eq!(plain.wanted(), [&tagged[..], &[PortVlan::access(1)]].concat());
        let native = vlans(100, trunk).unwrap().unwrap();
        assert_eq!(native.wanted(), [&tagged[..], &[PortVlan::access(100)]].concat());
        let within = vlans(202, trunk).unwrap().unwrap();
        assert_eq!(within.wanted().last(), Some(&PortVlan::access(202)));
        assert_eq!(within.wanted().len(), 4);
        assert!(plain.replaces_default() && native.replaces_default());
    }

    #[test]
    fn an_empty_trunk_filters_without_vlans() {
        let empty = vlans(0, Some("[]")).unwrap().unwrap();
        assert_eq!(empty.wanted(), []);
        assert!(!empty.replaces_default());
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
        let vlans = Vlans::new(0, Some(&vec![item; 100_000]), false).unwrap().unwrap();
        assert_eq!(vlans.trunk.len(), 4094);
        assert!(started.elapsed() < Duration::from_secs(10));
    }
}
