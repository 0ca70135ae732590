//! VLANs of bridge ports.

use std::collections::BTreeSet;

use netlink_packet_core::Parseable;
use netlink_packet_route::{
    AddressFamily, RouteNetlinkMessage,
    link::{
        AfSpecBridge, BridgeFlag, BridgeVlanInfo, BridgeVlanInfoFlags, LinkAttribute, LinkExtentMask,
        LinkHeader, LinkMessage,
    },
};

use crate::{
    Feature, Result,
    link::LinkRef,
    route::{Request, Socket},
};

/// A VLAN on a port of a bridge.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct PortVlan {
    /// VLAN identifier, 1 to 4094.
    pub id: u16,
    /// Received untagged frames belong to this VLAN (PVID).
    pub pvid: bool,
    /// Frames of this VLAN leave untagged.
    pub untagged: bool,
}

impl PortVlan {
    /// Returns a VLAN with tagged frames.
    pub fn tagged(id: u16) -> Self {
        PortVlan {
            id,
            pvid: false,
            untagged: false,
        }
    }

    /// Returns the VLAN of untagged frames.
    pub fn access(id: u16) -> Self {
        PortVlan {
            id,
            pvid: true,
            untagged: true,
        }
    }

    fn flags(self) -> BridgeVlanInfoFlags {
        let mut flags = BridgeVlanInfoFlags::empty();
        flags.set(BridgeVlanInfoFlags::Pvid, self.pvid);
        flags.set(BridgeVlanInfoFlags::Untagged, self.untagged);
        flags
    }
}

impl Socket {
    /// Adds VLANs to a bridge port in one message.
    pub fn add_port_vlans<'a>(&mut self, port: impl Into<LinkRef<'a>>, vlans: &[PortVlan]) -> Result<()> {
        let port = port.into();
        let request = Request::new("add VLAN to port", port.name).needs(Feature::BridgeVlanFiltering);
        let infos = vlans.iter().map(|vlan| BridgeVlanInfo {
            flags: vlan.flags(),
            vid: vlan.id,
        });
        self.execute(request, RouteNetlinkMessage::SetLink(message(port, infos)), 0)
    }

    /// Removes VLANs from a bridge port in one message.
    pub fn delete_port_vlans<'a>(&mut self, port: impl Into<LinkRef<'a>>, ids: &[u16]) -> Result<()> {
        let port = port.into();
        let request = Request::new("remove VLAN from port", port.name).needs(Feature::BridgeVlanFiltering);
        let infos = ids.iter().map(|id| BridgeVlanInfo {
            flags: BridgeVlanInfoFlags::empty(),
            vid: *id,
        });
        self.execute(request, RouteNetlinkMessage::DelLink(message(port, infos)), 0)
    }

    /// Lists the VLANs of one port. The kernel lists the ports of all bridges for it, so this is too slow for the
    /// attach path.
    pub fn port_vlans<'a>(&mut self, port: impl Into<LinkRef<'a>>) -> Result<BTreeSet<PortVlan>> {
        let port = port.into();
        let request = Request::new("list VLANs of port", port.name).needs(Feature::BridgeVlanFiltering);
        let mut question = LinkMessage::default();
        question.header.interface_family = AddressFamily::Bridge;
        question
            .attributes
            .push(LinkAttribute::ExtMask(vec![LinkExtentMask::BrvlanCompressed]));
        let lists = self.dump(request, &RouteNetlinkMessage::GetLink(question), |bytes| {
            let header = LinkHeader::parse(bytes).map_err(|e| request.unreadable(e))?;
            if header.index != port.index {
                return Ok(None);
            }
            let link = LinkMessage::parse(bytes).map_err(|e| request.unreadable(e))?;
            Ok(Some(vlans(&link)))
        })?;
        Ok(lists.into_iter().flatten().collect())
    }
}

/// Returns the VLANs of an answer. The kernel reports consecutive VLANs with equal flags as the first and the last.
fn vlans(link: &LinkMessage) -> Vec<PortVlan> {
    let mut found = Vec::new();
    let mut first = None;
    for attribute in &link.attributes {
        let LinkAttribute::AfSpecBridge(entries) = attribute else {
            continue;
        };
        for entry in entries {
            let AfSpecBridge::VlanInfo(info) = entry else {
                continue;
            };
            if info.flags.contains(BridgeVlanInfoFlags::RangeBegin) {
                first = Some(info.vid);
                continue;
            }
            found.extend((first.take().unwrap_or(info.vid)..=info.vid).map(|id| PortVlan {
                id,
                pvid: info.flags.contains(BridgeVlanInfoFlags::Pvid),
                untagged: info.flags.contains(BridgeVlanInfoFlags::Untagged),
            }));
        }
    }
    found
}

fn message(port: LinkRef<'_>, infos: impl Iterator<Item = BridgeVlanInfo>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.header.interface_family = AddressFamily::Bridge;
    message.header.index = port.index;
    // "Controller": the bridge of the port applies the request, not the driver of the port.
    let mut entries = vec![AfSpecBridge::Flags(BridgeFlag::Controller)];
    entries.extend(infos.map(AfSpecBridge::VlanInfo));
    message.attributes.push(LinkAttribute::AfSpecBridge(entries));
    message
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_is_read_as_single_vlans() {
        let info = |vid, flags| BridgeVlanInfo { flags, vid };
        let port = LinkRef {
            index: 7,
            name: "veth0",
        };
        let answer = message(
            port,
            [
                info(1, BridgeVlanInfoFlags::Pvid | BridgeVlanInfoFlags::Untagged),
                info(5, BridgeVlanInfoFlags::RangeBegin | BridgeVlanInfoFlags::Untagged),
                info(7, BridgeVlanInfoFlags::RangeEnd | BridgeVlanInfoFlags::Untagged),
                info(9, BridgeVlanInfoFlags::empty()),
            ]
            .into_iter(),
        );
        let untagged = |id| PortVlan {
            untagged: true,
            ..PortVlan::tagged(id)
        };
        assert_eq!(
            vlans(&answer),
            [
                PortVlan::access(1),
                untagged(5),
                untagged(6),
                untagged(7),
                PortVlan::tagged(9)
            ]
        );
    }
}
