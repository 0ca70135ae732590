//! Creation of links.

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

/// A new link.
#[derive(Debug, Clone, Copy)]
pub struct LinkSpec<'a> {
    /// Name, 15 bytes at most.
    pub name: &'a str,
    /// Driver kind and its settings.
    pub kind: LinkKind<'a>,
    /// Index of the lower link, in the socket's namespace. Some kinds require it.
    pub parent: Option<u32>,
    /// The namespace of the new link; by default the socket's. Before Linux 6.15 the name must be free in the socket's
    /// namespace too.
    pub namespace: Option<BorrowedFd<'a>>,
    /// MTU, bytes; by default the kernel's.
    pub mtu: Option<u32>,
    /// Ethernet address. By default the kernel chooses; a bridge without it has the lowest address of its ports, which
    /// changes with them, and no address without ports.
    pub mac: Option<Mac>,
}

impl<'a> LinkSpec<'a> {
    /// Returns a link with a name and a kind.
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
        // One queue is enough for a pod. The creation takes a fifth less time than with a queue for each processor.
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

/// A new bridge.
#[derive(Debug, Clone, Copy)]
pub struct BridgeSpec<'a> {
    /// Name, 15 bytes at most.
    pub name: &'a str,
    /// MTU, bytes; by default the kernel's.
    pub mtu: Option<u32>,
    /// A permanent Ethernet address. By default a bridge has the lowest address of its ports, which changes with them, and
    /// no address without ports.
    pub mac: Option<Mac>,
    /// Enables VLAN filtering. If false, the request contains no VLAN attributes, so that kernels without VLAN
    /// filtering accept it.
    pub vlan_filtering: bool,
}

/// A new pair of virtual Ethernet devices: one end in the socket's namespace, the other perhaps in another namespace.
#[derive(Debug, Clone, Copy)]
pub struct VethSpec<'a> {
    /// Name of the end in the socket's namespace.
    pub name: &'a str,
    /// Ethernet address of that end; by default random.
    pub mac: Option<Mac>,
    /// MTU of both ends, bytes; by default the kernel's.
    pub mtu: Option<u32>,
    /// Name of the other end.
    pub peer_name: &'a str,
    /// Namespace of the other end; by default the socket's.
    pub peer_ns: Option<BorrowedFd<'a>>,
}

impl Socket {
    /// Creates a link, down. If the name is taken, the error [`is_exists`](crate::Error::is_exists). If the kernel
    /// lacks links of this kind, the error [`is_unsupported`](crate::Error::is_unsupported) and names the feature.
    pub fn create_link(&mut self, spec: &LinkSpec<'_>) -> Result<()> {
        let request = Request::new(spec.kind.doing(), spec.name).needs(spec.kind.feature());
        self.create(request, spec.message())
    }

    /// Creates a bridge, down. If the name is taken, the error [`is_exists`](crate::Error::is_exists).
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

    /// Creates a veth pair. Both ends are down, and have one queue for each direction. Returns the end in the socket's
    /// namespace.
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

    /// Creates a link of this kind, down, with a name and no settings. Kernels without the driver, whose configuration
    /// symbol is `symbol`, refuse with an error that [`is_unsupported`](crate::Error::is_unsupported). Kinds that need
    /// settings are refused with other errors.
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
    fn spec_becomes_one_message() {
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
    fn veth_ends_have_one_queue_and_the_same_mtu() {
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
