//! Network interfaces: observation, creation, change and removal.

mod create;
mod edit;
mod kind;
mod mac;
mod mode;

use std::fmt;

use netlink_packet_core::{parse_string, parse_u16, parse_u32};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{LinkAttribute, LinkExtentMask, LinkFlags, LinkHeader, LinkMessage},
};

use crate::{
    Result,
    route::{Request, Socket, attributes},
};

pub use create::{BridgeSpec, LinkSpec, VethSpec};
pub use edit::{LinkChange, LinkRef, delete_link_and_leave};
pub use kind::{KindState, LinkKind, Vxlan};
pub use mac::{InvalidMac, Mac};
pub use mode::{InvalidMode, IpVlanMode, IpVlanSharing, MacVlanMode};

/// Length of `struct ifinfomsg`, which precedes the attributes of a link.
const LINK_HEADER: usize = 16;

/// Driver kinds that have data with settings.
mod names {
    pub(super) const BRIDGE: &str = "bridge";
    pub(super) const IPVLAN: &str = "ipvlan";
    pub(super) const MACVLAN: &str = "macvlan";
    pub(super) const MACVTAP: &str = "macvtap";
    pub(super) const TUN: &str = "tun";
    pub(super) const VLAN: &str = "vlan";
    pub(super) const VRF: &str = "vrf";
    pub(super) const VXLAN: &str = "vxlan";
}

/// Attribute numbers of `<linux/if_link.h>`. The attributes are read by number: decoding of whole messages would fail
/// for foreign interfaces with unknown attributes, and hide all other interfaces.
mod attribute {
    pub(super) const ADDRESS: u16 = 1;
    pub(super) const NAME: u16 = 3;
    pub(super) const MTU: u16 = 4;
    pub(super) const LINK: u16 = 5;
    pub(super) const MASTER: u16 = 10;
    pub(super) const TX_QUEUE_LENGTH: u16 = 13;
    pub(super) const OPERSTATE: u16 = 16;
    pub(super) const LINK_INFO: u16 = 18;
    pub(super) const ALIAS: u16 = 20;
    pub(super) const PROMISCUITY: u16 = 30;
    pub(super) const TX_QUEUES: u16 = 31;
    pub(super) const RX_QUEUES: u16 = 32;
    pub(super) const PROPERTIES: u16 = 52;
    pub(super) const ALTERNATIVE_NAME: u16 = 53;
    pub(super) const PERMANENT_ADDRESS: u16 = 54;
    pub(super) const PARENT_DEVICE: u16 = 56;
    pub(super) const ALLMULTI: u16 = 61;

    pub(super) const INFO_KIND: u16 = 1;
    pub(super) const INFO_DATA: u16 = 2;
    pub(super) const INFO_PORT_KIND: u16 = 4;
    pub(super) const INFO_PORT_DATA: u16 = 5;

    pub(super) const BRIDGE_VLAN_FILTERING: u16 = 7;
    pub(super) const BRIDGE_DEFAULT_VLAN: u16 = 39;

    pub(super) const PORT_HAIRPIN: u16 = 4;
    pub(super) const PORT_ISOLATED: u16 = 33;
}

/// The operational state of an interface (RFC 2863), with the texts of CNI plugins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum OperState {
    /// The driver does not report a state.
    #[default]
    Unknown,
    /// A component is missing.
    NotPresent,
    /// Down.
    Down,
    /// The lower interface is down.
    LowerLayerDown,
    /// In a test mode.
    Testing,
    /// Waiting for an external event.
    Dormant,
    /// Passes packets.
    Up,
}

impl From<u8> for OperState {
    fn from(state: u8) -> Self {
        match state {
            1 => OperState::NotPresent,
            2 => OperState::Down,
            3 => OperState::LowerLayerDown,
            4 => OperState::Testing,
            5 => OperState::Dormant,
            6 => OperState::Up,
            _ => OperState::Unknown,
        }
    }
}

impl fmt::Display for OperState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            OperState::Unknown => "unknown",
            OperState::NotPresent => "not-present",
            OperState::Down => "down",
            OperState::LowerLayerDown => "lower-layer-down",
            OperState::Testing => "testing",
            OperState::Dormant => "dormant",
            OperState::Up => "up",
        })
    }
}

/// Settings of a bridge, as reported by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BridgeState {
    /// VLAN filtering is enabled.
    pub vlan_filtering: bool,
    /// The VLAN of new ports; 0 for none. `None` if the kernel has no VLAN filtering.
    pub default_vlan: Option<u16>,
}

/// Settings of a port of a bridge, as reported by the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PortState {
    /// Frames may leave through the port that received them.
    pub hairpin: bool,
    /// No frames pass to other isolated ports. `None` if the kernel has no port isolation.
    pub isolated: Option<bool>,
}

/// A network interface, as reported by the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Link {
    /// Interface index, unique in the namespace.
    pub index: u32,
    /// Name, 15 bytes at most.
    pub name: String,
    /// Further names (`ip link property add altname`), 127 bytes at most each; none before Linux 5.5.
    pub alternative_names: Vec<String>,
    /// Driver kind: `bridge`, `veth`, ...; `None` for hardware and for `lo`.
    pub kind: Option<String>,
    /// Ethernet address; `None` for interfaces without an address, or with an address of another length.
    pub mac: Option<Mac>,
    /// The hardware's own Ethernet address; `None` for most virtual links, and before Linux 5.6. A VLAN has its parent's.
    pub permanent_mac: Option<Mac>,
    /// Name of the device on its bus, such as a PCI address; `None` for virtual links, and before Linux 5.13.
    pub parent_device: Option<String>,
    /// Maximum transmission unit, bytes.
    pub mtu: u32,
    /// Operational state.
    pub operstate: OperState,
    /// Index of the bridge or bond of this port.
    pub master: Option<u32>,
    /// Index of the other end (veth) or of the lower interface, which may be in another namespace.
    pub peer: Option<u32>,
    /// Length of the transmit queue, packets.
    pub tx_queue_len: u32,
    /// Number of transmit and receive queues.
    pub queues: (u32, u32),
    /// Number of users of promiscuous mode.
    pub promiscuity: u32,
    /// A text of users and programs (`IFLA_IFALIAS`).
    pub alias: Option<String>,
    /// Settings of the link's kind.
    pub kind_state: KindState,
    /// Settings of a bridge; `None` for other links.
    pub bridge: Option<BridgeState>,
    /// Settings of a bridge port; `None` for other links.
    pub port: Option<PortState>,
    flags: u32,
    allmulti: Option<u32>,
}

impl Link {
    /// The link is administratively up.
    pub fn is_up(&self) -> bool {
        self.has(LinkFlags::Up)
    }

    /// The link is set to receive all frames (`IFF_PROMISC`). Ports of bridges are promiscuous without this flag.
    pub fn is_promiscuous(&self) -> bool {
        self.has(LinkFlags::Promisc)
    }

    /// The link is set to receive all multicast frames (`IFF_ALLMULTI`).
    pub fn is_all_multicast(&self) -> bool {
        self.has(LinkFlags::Allmulti)
    }

    /// The link is `lo`.
    pub fn is_loopback(&self) -> bool {
        self.has(LinkFlags::Loopback)
    }

    /// The link has the driver kind `kind`.
    pub fn is_kind(&self, kind: &str) -> bool {
        self.kind.as_deref() == Some(kind)
    }

    /// Number of users of all-multicast mode; `None` before Linux 6.1.
    pub fn all_multicast_users(&self) -> Option<u32> {
        self.allmulti
    }

    fn has(&self, flag: LinkFlags) -> bool {
        self.flags & flag.bits() != 0
    }

    /// Reads the payload of an `RTM_NEWLINK` or `RTM_DELLINK`.
    pub(crate) fn read(request: Request<'_>, bytes: &[u8]) -> Result<Link> {
        let header = LinkHeader::parse(bytes).map_err(|e| request.unreadable(e))?;
        let mut link = Link {
            index: header.index,
            flags: header.flags.bits(),
            ..Link::default()
        };
        attributes(
            bytes.get(LINK_HEADER..).unwrap_or_default(),
            |kind, value| match kind {
                attribute::ADDRESS => link.mac = value.try_into().ok().map(Mac),
                attribute::NAME => link.name = parse_string(value).unwrap_or_default(),
                attribute::MTU => link.mtu = number(value),
                attribute::LINK => link.peer = Some(number(value)).filter(|index| *index != 0),
                attribute::MASTER => link.master = Some(number(value)).filter(|index| *index != 0),
                attribute::TX_QUEUE_LENGTH => link.tx_queue_len = number(value),
                attribute::OPERSTATE => link.operstate = value.first().copied().unwrap_or_default().into(),
                attribute::PROMISCUITY => link.promiscuity = number(value),
                attribute::TX_QUEUES => link.queues.0 = number(value),
                attribute::RX_QUEUES => link.queues.1 = number(value),
                attribute::PERMANENT_ADDRESS => link.permanent_mac = value.try_into().ok().map(Mac),
                attribute::PARENT_DEVICE => link.parent_device = parse_string(value).ok(),
                attribute::ALLMULTI => link.allmulti = Some(number(value)),
                attribute::ALIAS => link.alias = parse_string(value).ok().filter(|alias| !alias.is_empty()),
                attribute::LINK_INFO => link.read_info(value),
                attribute::PROPERTIES => attributes(value, |kind, value| {
                    if kind == attribute::ALTERNATIVE_NAME {
                        link.alternative_names.extend(parse_string(value).ok());
                    }
                }),
                _ => {}
            },
        );
        Ok(link)
    }

    fn read_info(&mut self, info: &[u8]) {
        let mut port_kind = None;
        attributes(info, |kind, value| match kind {
            attribute::INFO_KIND => self.kind = parse_string(value).ok(),
            attribute::INFO_DATA if self.is_kind(names::BRIDGE) => {
                let bridge = self.bridge.get_or_insert_default();
                attributes(value, |kind, value| match kind {
                    attribute::BRIDGE_VLAN_FILTERING => bridge.vlan_filtering = flag(value),
                    attribute::BRIDGE_DEFAULT_VLAN => bridge.default_vlan = parse_u16(value).ok(),
                    _ => {}
                });
            }
            attribute::INFO_DATA => {
                self.kind_state = KindState::read(self.kind.as_deref().unwrap_or_default(), value);
            }
            attribute::INFO_PORT_KIND => port_kind = parse_string(value).ok(),
            attribute::INFO_PORT_DATA if port_kind.as_deref() == Some(names::BRIDGE) => {
                let port = self.port.get_or_insert_default();
                attributes(value, |kind, value| match kind {
                    attribute::PORT_HAIRPIN => port.hairpin = flag(value),
                    attribute::PORT_ISOLATED => port.isolated = Some(flag(value)),
                    _ => {}
                });
            }
            _ => {}
        });
        // A bridge may be reported without data.
        if self.is_kind(names::BRIDGE) {
            self.bridge.get_or_insert_default();
        }
    }
}

fn number(value: &[u8]) -> u32 {
    parse_u32(value).unwrap_or_default()
}

fn flag(value: &[u8]) -> bool {
    value.first().is_some_and(|byte| *byte != 0)
}

/// Queries.
impl Socket {
    /// Returns the link called `name`. If the link is missing, the error [`is_not_found`](crate::Error::is_not_found).
    pub fn link_by_name(&mut self, name: &str) -> Result<Link> {
        let request = Request::new("look up link", name);
        let mut message = query();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        self.get(request, RouteNetlinkMessage::GetLink(message), |bytes| {
            Link::read(request, bytes)
        })
    }

    /// Returns the link called `name`, or `None`.
    pub fn find_link(&mut self, name: &str) -> Result<Option<Link>> {
        match self.link_by_name(name) {
            Ok(link) => Ok(Some(link)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Returns the link with this index.
    pub fn link_by_index(&mut self, index: u32) -> Result<Link> {
        let object = index.to_string();
        let request = Request::new("look up link", &object);
        let mut message = query();
        message.header.index = index;
        self.get(request, RouteNetlinkMessage::GetLink(message), |bytes| {
            Link::read(request, bytes)
        })
    }

    /// Lists all links of the namespace.
    pub fn links(&mut self) -> Result<Vec<Link>> {
        let request = Request::new("list links", "");
        self.dump(request, &RouteNetlinkMessage::GetLink(query()), |bytes| {
            Link::read(request, bytes).map(Some)
        })
    }
}

/// A query for links without counters, which would be most of an answer.
fn query() -> LinkMessage {
    let mut message = LinkMessage::default();
    message
        .attributes
        .push(LinkAttribute::ExtMask(vec![LinkExtentMask::SkipStats]));
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_core::Emitable as _;
    use netlink_packet_route::link::Prop;

    #[test]
    fn read_finds_alternative_names() {
        let names = ["enp3s0f0np0", "a name that is longer than fifteen bytes"].map(str::to_owned);
        let mut message = LinkMessage::default();
        message.attributes.extend([
            LinkAttribute::IfName("eth1".to_owned()),
            LinkAttribute::PropList(names.iter().cloned().map(Prop::AltIfName).collect()),
        ]);
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        let link = Link::read(Request::new("look up link", "eth1"), &bytes).unwrap();
        assert_eq!(link.name, "eth1");
        assert_eq!(link.alternative_names, names);
    }
}
