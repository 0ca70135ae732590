//! Making links.

use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{InfoBridge, InfoData, InfoKind, InfoVeth, LinkAttribute, LinkInfo, LinkMessage},
};

use super::Mac;
use crate::{
    Feature, Result,
    route::{Request, Socket},
};

/// A bridge to make.
#[derive(Debug, Clone, Copy)]
pub struct BridgeSpec<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its MTU, bytes; the kernel's default without one.
    pub mtu: Option<u32>,
    /// Its Ethernet address, for good. Without one it takes on the lowest address of its ports, another one
    /// whenever those change, and none at all with the last port gone.
    pub mac: Option<Mac>,
    /// Turn VLAN filtering on. Without it nothing about VLANs is said, so that kernels without them do.
    pub vlan_filtering: bool,
}

/// A pair of virtual Ethernet devices to make: one end here, the other perhaps in another namespace.
#[derive(Debug, Clone, Copy)]
pub struct VethSpec<'a> {
    /// Name of the end in the socket's namespace.
    pub name: &'a str,
    /// Ethernet address of that end; random without one.
    pub mac: Option<Mac>,
    /// MTU of both ends, bytes; the kernel's default without one.
    pub mtu: Option<u32>,
    /// Name of the other end.
    pub peer_name: &'a str,
    /// Namespace of the other end; the same as this end's without one.
    pub peer_ns: Option<BorrowedFd<'a>>,
}

impl Socket {
    /// Makes a bridge, down. An error that [`is_exists`](crate::Error::is_exists) if the name is taken.
    pub fn create_bridge(&mut self, spec: &BridgeSpec<'_>) -> Result<()> {
        let mut message = named(spec.name, spec.mtu);
        message
            .attributes
            .extend(spec.mac.map(|mac| LinkAttribute::Address(mac.0.to_vec())));
        let mut info = vec![LinkInfo::Kind(InfoKind::Bridge)];
        let mut feature = Feature::Bridge;
        if spec.vlan_filtering {
            info.push(LinkInfo::Data(InfoData::Bridge(vec![InfoBridge::VlanFiltering(
                true,
            )])));
            feature = Feature::BridgeVlanFiltering;
        }
        message.attributes.push(LinkAttribute::LinkInfo(info));
        let request = Request::new("create bridge", spec.name).needs(feature);
        self.execute(
            request,
            RouteNetlinkMessage::NewLink(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// Makes a link of this kind with nothing but a name, down. Kernels without its driver, whose configuration symbol
    /// is `symbol`, refuse with an error that [`is_unsupported`](crate::Error::is_unsupported); kinds that need more
    /// than a name are refused with another one.
    pub fn create_bare(&mut self, name: &str, kind: &str, symbol: &'static str) -> Result<()> {
        let mut message = named(name, None);
        message
            .attributes
            .push(LinkAttribute::LinkInfo(vec![LinkInfo::Kind(InfoKind::from(
                kind,
            ))]));
        let request = Request::new("create link", name).needs(Feature::Driver(symbol));
        self.execute(
            request,
            RouteNetlinkMessage::NewLink(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }

    /// Makes a veth pair, both ends down, each with one queue per direction: what a pod needs, and a fifth
    /// faster than a pair with a queue per processor.
    pub fn create_veth(&mut self, spec: &VethSpec<'_>) -> Result<()> {
        let mut peer = named(spec.peer_name, spec.mtu);
        peer.attributes.extend(one_queue());
        peer.attributes
            .extend(spec.peer_ns.map(|fd| LinkAttribute::NetNsFd(fd.as_raw_fd())));
        let mut message = named(spec.name, spec.mtu);
        message.attributes.extend(one_queue());
        message
            .attributes
            .extend(spec.mac.map(|mac| LinkAttribute::Address(mac.0.to_vec())));
        message.attributes.push(LinkAttribute::LinkInfo(vec![
            LinkInfo::Kind(InfoKind::Veth),
            LinkInfo::Data(InfoData::Veth(InfoVeth::Peer(peer))),
        ]));
        let request = Request::new("create veth", spec.name).needs(Feature::Veth);
        self.execute(
            request,
            RouteNetlinkMessage::NewLink(message),
            NLM_F_CREATE | NLM_F_EXCL,
        )
    }
}

fn named(name: &str, mtu: Option<u32>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.to_owned()));
    message.attributes.extend(mtu.map(LinkAttribute::Mtu));
    message
}

fn one_queue() -> [LinkAttribute; 2] {
    [LinkAttribute::NumTxQueues(1), LinkAttribute::NumRxQueues(1)]
}
