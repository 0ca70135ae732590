//! Settings of the simple kinds of links: for new links, and as reported by the kernel.

use std::{fmt, net::IpAddr};

use netlink_packet_core::{parse_u16, parse_u16_be, parse_u32};
use netlink_packet_route::link::{
    InfoBridge, InfoData, InfoIpVlan, InfoKind, InfoMacVlan, InfoMacVtap, InfoVeth, InfoVlan, InfoVrf,
    InfoVxlan, IpVlanMode as WireIpVlanMode, LinkInfo, LinkMessage, MacVlanMode as WireMacVlanMode,
    MacVtapMode as WireMacVtapMode,
};

use super::{
    mode::{IpVlanMode, IpVlanSharing, MacVlanMode},
    names,
};
use crate::{Feature, route::attributes};

/// Attribute numbers of `<linux/if_link.h>` in the data of a kind. The mode of a macvlan and of an ipvlan, the
/// identifiers of a VLAN and of a VXLAN, and the table of a VRF share one number.
mod attribute {
    pub(super) const FIRST: u16 = 1;
    pub(super) const VXLAN_LOCAL: u16 = 4;
    pub(super) const VXLAN_LEARNING: u16 = 7;
    pub(super) const VXLAN_PORT: u16 = 15;
    pub(super) const VXLAN_LOCAL6: u16 = 17;
    pub(super) const TUN_TYPE: u16 = 3;
}

/// `IFF_TAP`: a device of user space for Ethernet frames.
const TUN_TYPE_TAP: u8 = 2;

/// The kind of a new link, with its settings.
#[derive(Debug, Clone, Copy)]
pub enum LinkKind<'a> {
    /// A bridge.
    Bridge {
        /// Enables VLAN filtering. If false, the request contains no VLAN attributes, so that kernels without VLAN
        /// filtering accept it.
        vlan_filtering: bool,
    },
    /// A pair of virtual Ethernet devices. The other end has the same MTU and number of queues.
    Veth {
        /// Name of the other end.
        peer_name: &'a str,
        /// Namespace of the other end; by default the namespace of this end.
        peer_ns: Option<std::os::fd::BorrowedFd<'a>>,
    },
    /// Another Ethernet address on a parent.
    MacVlan {
        /// Traffic with other macvlans of the parent.
        mode: MacVlanMode,
        /// Length of the parent's queue of broadcasts, packets; by default the kernel's.
        broadcast_queue: Option<u32>,
    },
    /// A macvlan whose frames pass through a character device.
    MacVtap {
        /// Traffic with other macvlans of the parent.
        mode: MacVlanMode,
    },
    /// Another set of IP addresses on a parent.
    IpVlan {
        /// The layer at which the link shares the parent's Ethernet address.
        mode: IpVlanMode,
        /// Traffic with other ipvlans of the parent.
        sharing: IpVlanSharing,
    },
    /// The frames of a parent with one 802.1Q tag.
    Vlan {
        /// The tag.
        id: u16,
    },
    /// A link that drops the frames that it sends.
    Dummy,
    /// A routing table for the links that are its ports.
    Vrf {
        /// The table.
        table: u32,
    },
    /// Ethernet frames in UDP packets to other hosts (RFC 7348). The hosts are configured by `set_forwarding`.
    Vxlan(Vxlan),
}

/// Settings of a VXLAN.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Vxlan {
    /// Identifier of the network, 24 bits.
    pub id: u32,
    /// UDP port, the same on all hosts.
    pub port: u16,
    /// The source address of the UDP packets, which also decides their family.
    pub local: Option<IpAddr>,
    /// The kernel learns hosts from received frames.
    pub learning: bool,
}

impl LinkKind<'_> {
    /// Returns the kernel's name of the kind.
    pub(super) fn info(&self) -> InfoKind {
        match self {
            LinkKind::Bridge { .. } => InfoKind::Bridge,
            LinkKind::Veth { .. } => InfoKind::Veth,
            LinkKind::MacVlan { .. } => InfoKind::MacVlan,
            LinkKind::MacVtap { .. } => InfoKind::MacVtap,
            LinkKind::IpVlan { .. } => InfoKind::IpVlan,
            LinkKind::Vlan { .. } => InfoKind::Vlan,
            LinkKind::Dummy => InfoKind::Dummy,
            LinkKind::Vrf { .. } => InfoKind::Vrf,
            LinkKind::Vxlan(_) => InfoKind::Vxlan,
        }
    }

    /// Returns the operation's name for errors.
    pub(super) fn doing(&self) -> &'static str {
        match self {
            LinkKind::Bridge { .. } => "create bridge",
            LinkKind::Veth { .. } => "create veth",
            LinkKind::MacVlan { .. } => "create macvlan",
            LinkKind::MacVtap { .. } => "create macvtap",
            LinkKind::IpVlan { .. } => "create ipvlan",
            LinkKind::Vlan { .. } => "create vlan",
            LinkKind::Dummy => "create dummy",
            LinkKind::Vrf { .. } => "create vrf",
            LinkKind::Vxlan(_) => "create vxlan",
        }
    }

    /// Returns the feature that a kernel lacks if it refuses the kind.
    pub(super) fn feature(&self) -> Feature {
        match self {
            LinkKind::Bridge { vlan_filtering: true } => Feature::BridgeVlanFiltering,
            LinkKind::Bridge { .. } => Feature::Bridge,
            LinkKind::Veth { .. } => Feature::Veth,
            LinkKind::MacVlan { .. } => Feature::Driver("CONFIG_MACVLAN"),
            LinkKind::MacVtap { .. } => Feature::Driver("CONFIG_MACVTAP"),
            LinkKind::IpVlan { .. } => Feature::Driver("CONFIG_IPVLAN"),
            LinkKind::Vlan { .. } => Feature::Driver("CONFIG_VLAN_8021Q"),
            LinkKind::Dummy => Feature::Driver("CONFIG_DUMMY"),
            LinkKind::Vrf { .. } => Feature::Driver("CONFIG_NET_VRF"),
            LinkKind::Vxlan(_) => Feature::Driver("CONFIG_VXLAN"),
        }
    }

    /// Returns the attributes of the kind for the kernel. `peer` describes the other end of a veth pair.
    pub(super) fn link_info(&self, peer: impl FnOnce(&str) -> LinkMessage) -> Vec<LinkInfo> {
        let data = match *self {
            LinkKind::Bridge { vlan_filtering } => {
                vlan_filtering.then(|| InfoData::Bridge(vec![InfoBridge::VlanFiltering(true)]))
            }
            LinkKind::Veth { peer_name, .. } => Some(InfoData::Veth(InfoVeth::Peer(peer(peer_name)))),
            LinkKind::MacVlan {
                mode,
                broadcast_queue,
            } => {
                let mode = InfoMacVlan::Mode(WireMacVlanMode::from(mode.number()));
                let queue = broadcast_queue.map(InfoMacVlan::BcQueueLen);
                Some(InfoData::MacVlan([mode].into_iter().chain(queue).collect()))
            }
            LinkKind::MacVtap { mode } => {
                let mode = InfoMacVtap::Mode(WireMacVtapMode::from(mode.number()));
                Some(InfoData::MacVtap(vec![mode]))
            }
            LinkKind::IpVlan { mode, sharing } => Some(InfoData::IpVlan(vec![
                InfoIpVlan::Mode(WireIpVlanMode::from(mode.number())),
                InfoIpVlan::Flags(sharing.flags()),
            ])),
            LinkKind::Vlan { id } => Some(InfoData::Vlan(vec![InfoVlan::Id(id)])),
            LinkKind::Dummy => None,
            LinkKind::Vrf { table } => Some(InfoData::Vrf(vec![InfoVrf::TableId(table)])),
            LinkKind::Vxlan(vxlan) => Some(InfoData::Vxlan(vxlan.attributes())),
        };
        [LinkInfo::Kind(self.info())]
            .into_iter()
            .chain(data.map(LinkInfo::Data))
            .collect()
    }
}

impl Vxlan {
    fn attributes(&self) -> Vec<InfoVxlan> {
        let local = self.local.map(|local| match local {
            IpAddr::V4(local) => InfoVxlan::Local(local),
            IpAddr::V6(local) => InfoVxlan::Local6(local),
        });
        [
            InfoVxlan::Id(self.id),
            InfoVxlan::Port(self.port),
            InfoVxlan::Learning(self.learning),
        ]
        .into_iter()
        .chain(local)
        .collect()
    }

    fn read(data: &[u8]) -> Self {
        let mut vxlan = Vxlan {
            id: 0,
            port: 0,
            local: None,
            learning: false,
        };
        attributes(data, |number, value| match number {
            attribute::FIRST => vxlan.id = super::number(value),
            attribute::VXLAN_PORT => vxlan.port = parse_u16_be(value).unwrap_or_default(),
            attribute::VXLAN_LEARNING => vxlan.learning = super::flag(value),
            attribute::VXLAN_LOCAL => {
                vxlan.local = <[u8; 4]>::try_from(value).ok().map(IpAddr::from);
            }
            attribute::VXLAN_LOCAL6 => {
                vxlan.local = <[u8; 16]>::try_from(value).ok().map(IpAddr::from);
            }
            _ => {}
        });
        vxlan
    }
}

/// Settings of a link's kind, as reported by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum KindState {
    /// Another kind.
    #[default]
    None,
    /// A macvlan or macvtap.
    MacVlan(MacVlanMode),
    /// An ipvlan.
    IpVlan(IpVlanMode),
    /// A VLAN, with its tag.
    Vlan(u16),
    /// A VRF, with its table.
    Vrf(u32),
    /// A VXLAN.
    Vxlan(Vxlan),
    /// A device of user space for Ethernet frames.
    Tap,
}

impl fmt::Display for KindState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KindState::None => f.write_str("none"),
            KindState::MacVlan(mode) => mode.fmt(f),
            KindState::IpVlan(mode) => mode.fmt(f),
            KindState::Vlan(id) => id.fmt(f),
            KindState::Vrf(table) => table.fmt(f),
            KindState::Vxlan(vxlan) => vxlan.id.fmt(f),
            KindState::Tap => f.write_str("tap"),
        }
    }
}

impl KindState {
    /// Reads the data of a link of `kind`.
    pub(super) fn read(kind: &str, data: &[u8]) -> Self {
        if kind == names::VXLAN {
            return KindState::Vxlan(Vxlan::read(data));
        }
        let mut state = KindState::None;
        attributes(data, |number, value| {
            let read = match (kind, number) {
                (names::MACVLAN | names::MACVTAP, attribute::FIRST) => {
                    MacVlanMode::numbered(super::number(value)).map(KindState::MacVlan)
                }
                (names::IPVLAN, attribute::FIRST) => {
                    let mode = parse_u16(value).ok();
                    let named = IpVlanMode::ALL
                        .into_iter()
                        .find(|known| Some(known.number()) == mode);
                    named.map(KindState::IpVlan)
                }
                (names::VLAN, attribute::FIRST) => parse_u16(value).ok().map(KindState::Vlan),
                (names::VRF, attribute::FIRST) => parse_u32(value).ok().map(KindState::Vrf),
                (names::TUN, attribute::TUN_TYPE) => {
                    (value.first() == Some(&TUN_TYPE_TAP)).then_some(KindState::Tap)
                }
                _ => None,
            };
            state = read.unwrap_or(state);
        });
        state
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::Nla as _;

    use super::*;

    fn data(kind: LinkKind<'_>) -> Vec<u8> {
        let info = kind.link_info(|_| LinkMessage::default());
        let [LinkInfo::Kind(_), LinkInfo::Data(data)] = info.as_slice() else {
            panic!("{info:?}");
        };
        let mut bytes = vec![0; data.value_len()];
        data.emit_value(&mut bytes);
        bytes
    }

    #[test]
    fn kind_is_encoded_as_the_kernel_reads_it() {
        let macvlan = |mode, broadcast_queue| LinkKind::MacVlan {
            mode,
            broadcast_queue,
        };
        let ipvlan = |mode, sharing| LinkKind::IpVlan { mode, sharing };
        // Length, number and value of each attribute, as in <linux/if_link.h>.
        for (kind, bytes) in [
            (macvlan(MacVlanMode::Private, None), &[8, 0, 1, 0, 1, 0, 0, 0][..]),
            (
                macvlan(MacVlanMode::Bridge, Some(300)),
                &[8, 0, 1, 0, 4, 0, 0, 0, 8, 0, 7, 0, 44, 1, 0, 0],
            ),
            (
                LinkKind::MacVtap {
                    mode: MacVlanMode::PassThru,
                },
                &[8, 0, 1, 0, 8, 0, 0, 0],
            ),
            (
                ipvlan(IpVlanMode::L3s, IpVlanSharing::Private),
                &[6, 0, 1, 0, 2, 0, 0, 0, 6, 0, 2, 0, 1, 0, 0, 0],
            ),
            (
                ipvlan(IpVlanMode::L2, IpVlanSharing::Vepa),
                &[6, 0, 1, 0, 0, 0, 0, 0, 6, 0, 2, 0, 2, 0, 0, 0],
            ),
            (LinkKind::Vlan { id: 4094 }, &[6, 0, 1, 0, 254, 15, 0, 0]),
            (LinkKind::Vrf { table: 1000 }, &[8, 0, 1, 0, 232, 3, 0, 0]),
            (
                LinkKind::Vxlan(Vxlan {
                    id: 1000,
                    port: 4789,
                    local: Some("192.0.2.1".parse().unwrap()),
                    learning: false,
                }),
                &[
                    8, 0, 1, 0, 232, 3, 0, 0, 6, 0, 15, 0, 18, 181, 0, 0, 5, 0, 7, 0, 0, 0, 0, 0, 8, 0, 4, 0,
                    192, 0, 2, 1,
                ],
            ),
        ] {
            assert_eq!(data(kind), bytes, "{kind:?}");
        }
        let dummy = LinkKind::Dummy.link_info(|_| LinkMessage::default());
        assert_eq!(dummy, [LinkInfo::Kind(InfoKind::Dummy)]);
    }

    #[test]
    fn encoded_kind_is_read_back() {
        let vxlan = Vxlan {
            id: 77,
            port: 8472,
            local: Some("2001:db8::1".parse().unwrap()),
            learning: true,
        };
        for (name, kind, state) in [
            (
                "macvlan",
                LinkKind::MacVlan {
                    mode: MacVlanMode::Vepa,
                    broadcast_queue: Some(7),
                },
                KindState::MacVlan(MacVlanMode::Vepa),
            ),
            (
                "ipvlan",
                LinkKind::IpVlan {
                    mode: IpVlanMode::L3,
                    sharing: IpVlanSharing::Bridge,
                },
                KindState::IpVlan(IpVlanMode::L3),
            ),
            ("vlan", LinkKind::Vlan { id: 100 }, KindState::Vlan(100)),
            ("vrf", LinkKind::Vrf { table: 7 }, KindState::Vrf(7)),
            ("vxlan", LinkKind::Vxlan(vxlan), KindState::Vxlan(vxlan)),
        ] {
            assert_eq!(kind.info().to_string(), name);
            assert_eq!(KindState::read(name, &data(kind)), state);
            assert_eq!(KindState::read("other", &data(kind)), KindState::None);
        }
        assert_eq!(KindState::read("tun", &[5, 0, 3, 0, 2, 0, 0, 0]), KindState::Tap);
        assert_eq!(KindState::read("tun", &[5, 0, 3, 0, 1, 0, 0, 0]), KindState::None);
    }
}
