//! Making links.

use std::os::fd::{AsRawFd as _, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::{
    RouteNetlinkMessage,
    link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage},
};

use super::{Link, LinkKind, Mac};
use crate::{
    Feature, Result,
    route::{Request, Socket},
};

/// A link to make.
#[derive(Debug, Clone, Copy)]
pub struct LinkSpec<'a> {
    /// Its name.
    pub name: &'a str,
    /// Its kind.
    pub kind: LinkKind<'a>,
    /// Index of the link below, in the socket's namespace; kinds that have one need it.
    pub parent: Option<u32>,
    /// The namespace that the link is made in; the socket's without one. Before Linux 6.15 the name must be free in the
    /// socket's namespace too.
    pub namespace: Option<BorrowedFd<'a>>,
    /// Its MTU, bytes; the kernel's default without one.
    pub mtu: Option<u32>,
    /// Its Ethernet address. Without one the kernel chooses; a bridge then takes on the lowest address of its ports,
    /// another one whenever those change, and none at all with the last port gone.
    pub mac: Option<Mac>,
}

impl<'a> LinkSpec<'a> {
    /// A link with a name and a kind.
    pub fn new(name: &'a str, kind: LinkKind<'a>) -> Self {
        LinkSpec {
            name,
            kind,
            parent: None,
            namespace: None,
            mtu: None,
            mac: None,
        }
    }

    fn message(&self) -> LinkMessage {
        let mut message = named(self.name, self.mtu);
        // One queue is enough for a pod, and a fifth faster than a pair with a queue per processor.
        let queues = match self.kind {
            LinkKind::Veth { .. } => &ONE_QUEUE[..],
            _ => &[],
        };
        let attributes = &mut message.attributes;
        attributes.extend_from_slice(queues);
        attributes.extend(self.mac.map(|mac| LinkAttribute::Address(mac.0.to_vec())));
        attributes.extend(self.parent.map(LinkAttribute::Link));
        attributes.extend(self.namespace.map(|fd| LinkAttribute::NetNsFd(fd.as_raw_fd())));
        let info = self.kind.link_info(|peer_name| {
            let mut peer = named(peer_name, self.mtu);
            peer.attributes.extend_from_slice(queues);
            if let LinkKind::Veth { peer_ns, .. } = self.kind {
                let namespace = peer_ns.map(|fd| LinkAttribute::NetNsFd(fd.as_raw_fd()));
                peer.attributes.extend(namespace);
            }
            peer
        });
        attributes.push(LinkAttribute::LinkInfo(info));
        message
    }
}

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
    /// Makes a link, down. An error that [`is_exists`](crate::Error::is_exists) if the name is taken; one that
    /// [`is_unsupported`](crate::Error::is_unsupported), and names what is missing, if the kernel has no such links.
    pub fn create_link(&mut self, spec: &LinkSpec<'_>) -> Result<()> {
        let request = Request::new(spec.kind.doing(), spec.name).needs(spec.kind.feature());
        self.create(request, spec.message())
    }

    /// Makes a bridge, down. An error that [`is_exists`](crate::Error::is_exists) if the name is taken.
    pub fn create_bridge(&mut self, spec: &BridgeSpec<'_>) -> Result<()> {
        let kind = LinkKind::Bridge {
            vlan_filtering: spec.vlan_filtering,
        };
        self.create_link(&LinkSpec {
            mtu: spec.mtu,
            mac: spec.mac,
            ..LinkSpec::new(spec.name, kind)
        })
    }

    /// Makes a veth pair, both ends down, each with one queue per direction. Returns the end in the socket's namespace.
    pub fn create_veth(&mut self, spec: &VethSpec<'_>) -> Result<Link> {
        let kind = LinkKind::Veth {
            peer_name: spec.peer_name,
            peer_ns: spec.peer_ns,
        };
        let spec = LinkSpec {
            mtu: spec.mtu,
            mac: spec.mac,
            ..LinkSpec::new(spec.name, kind)
        };
        let request = Request::new(spec.kind.doing(), spec.name).needs(spec.kind.feature());
        self.create_and_read(request, spec.message())
    }

    /// Makes a link of this kind with nothing but a name, down. Kernels without its driver, whose configuration symbol
    /// is `symbol`, refuse with an error that [`is_unsupported`](crate::Error::is_unsupported); kinds that need more
    /// than a name are refused with another one.
    pub fn create_bare(&mut self, name: &str, kind: &str, symbol: &'static str) -> Result<()> {
        let mut message = named(name, None);
        let info = vec![LinkInfo::Kind(InfoKind::from(kind))];
        message.attributes.push(LinkAttribute::LinkInfo(info));
        let request = Request::new("create link", name).needs(Feature::Driver(symbol));
        self.create(request, message)
    }

    /// Makes a link in the socket's namespace and reads it.
    pub(crate) fn create_and_read(&mut self, request: Request<'_>, message: LinkMessage) -> Result<Link> {
        let message = RouteNetlinkMessage::NewLink(message);
        let flags = NLM_F_CREATE | NLM_F_EXCL;
        let created = self.execute_and_read(request, message, flags, |bytes| Link::read(request, bytes))?;
        created.map_or_else(|| self.link_by_name(request.object), Ok)
    }

    fn create(&mut self, request: Request<'_>, message: LinkMessage) -> Result<()> {
        let message = RouteNetlinkMessage::NewLink(message);
        self.execute(request, message, NLM_F_CREATE | NLM_F_EXCL)
    }
}

fn named(name: &str, mtu: Option<u32>) -> LinkMessage {
    let mut message = LinkMessage::default();
    message.attributes.push(LinkAttribute::IfName(name.to_owned()));
    message.attributes.extend(mtu.map(LinkAttribute::Mtu));
    message
}

const ONE_QUEUE: [LinkAttribute; 2] = [LinkAttribute::NumTxQueues(1), LinkAttribute::NumRxQueues(1)];

#[cfg(test)]
mod tests {
    use netlink_packet_core::Emitable as _;

    use super::*;

    #[test]
    fn a_description_becomes_one_message() {
        let home = std::fs::File::open("/proc/self/ns/net").unwrap();
        let fd = std::os::fd::AsFd::as_fd(&home);
        let spec = LinkSpec {
            parent: Some(7),
            namespace: Some(fd),
            mtu: Some(1400),
            mac: Some("02:00:00:00:00:01".parse().unwrap()),
            ..LinkSpec::new("v0", LinkKind::Vlan { id: 5 })
        };
        let message = spec.message();
        let mut bytes = vec![0; message.buffer_len()];
        message.emit(&mut bytes);
        let [a, b, c, d] = fd.as_raw_fd().to_ne_bytes();
        let attributes: &[&[u8]] = &[
            &[7, 0, 3, 0, b'v', b'0', 0, 0],
            &[8, 0, 4, 0, 0x78, 5, 0, 0],
            &[10, 0, 1, 0, 2, 0, 0, 0, 0, 1, 0, 0],
            &[8, 0, 5, 0, 7, 0, 0, 0],
            &[8, 0, 28, 0, a, b, c, d],
            // The name of the kind ends with a zero byte.
            &[28, 0, 18, 0, 9, 0, 1, 0, b'v', b'l', b'a', b'n', 0, 0, 0, 0],
            &[12, 0, 2, 0, 6, 0, 1, 0, 5, 0, 0, 0],
        ];
        assert_eq!(bytes[super::super::LINK_HEADER..], attributes.concat());
    }

    #[test]
    fn both_ends_of_a_pair_have_one_queue_and_the_same_mtu() {
        let kind = LinkKind::Veth {
            peer_name: "peer",
            peer_ns: None,
        };
        let spec = LinkSpec {
            mtu: Some(1400),
            ..LinkSpec::new("v0", kind)
        };
        let text = format!("{:?}", spec.message());
        for part in ["NumTxQueues(1)", "NumRxQueues(1)", "Mtu(1400)"] {
            assert_eq!(text.matches(part).count(), 2, "{text}");
        }
        let bridge = LinkSpec::new(
            "br0",
            LinkKind::Bridge {
                vlan_filtering: false,
            },
        );
        assert!(!format!("{:?}", bridge.message()).contains("Queues"));
    }
}
