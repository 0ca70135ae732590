//! Forwarded ports of the host.

use std::net::IpAddr;

use ipnet::IpNet;
use linux::nft::Family;
use serde::{Deserialize, Serialize};

/// A protocol with ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Protocol {
    Dccp,
    Sctp,
    Tcp,
    Udp,
    Udplite,
}

impl Protocol {
    const ALL: [Protocol; 5] = [
        Protocol::Dccp,
        Protocol::Sctp,
        Protocol::Tcp,
        Protocol::Udp,
        Protocol::Udplite,
    ];

    /// Parses a name, case-insensitive. Empty means TCP.
    pub(super) fn named(name: &str) -> Option<Self> {
        let name = if name.is_empty() { "tcp" } else { name };
        Self::ALL
            .into_iter()
            .find(|protocol| protocol.name().eq_ignore_ascii_case(name))
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Protocol::Dccp => "dccp",
            Protocol::Sctp => "sctp",
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Udplite => "udplite",
        }
    }

    /// The number in IP headers.
    pub(super) fn number(self) -> u8 {
        match self {
            Protocol::Tcp => 6,
            Protocol::Udp => 17,
            Protocol::Dccp => 33,
            Protocol::Sctp => 132,
            Protocol::Udplite => 136,
        }
    }
}

/// A host port and its pod port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Mapping {
    pub(super) protocol: Protocol,
    /// The host's address. `None` means any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) host_ip: Option<IpAddr>,
    pub(super) host_port: u16,
    pub(super) container_port: u16,
}

/// The forwarded packets to masquerade. Without it, their replies would not return through the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Masquerade {
    /// Nothing.
    Nothing,
    /// Packets of the pod to itself, and of the host from 127.0.0.1.
    Inner,
    /// Everything.
    All,
}

/// The ports forwarded to one address of a pod.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Forward {
    /// The pod's address with its prefix length.
    pub(super) address: IpNet,
    pub(super) masquerade: Masquerade,
    /// Hash of the additional conditions, empty without any.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) conditions: String,
    /// The mappings of the address family.
    pub(super) mappings: Vec<Mapping>,
}

impl Forward {
    pub(super) fn is_ipv4(&self) -> bool {
        matches!(self.address, IpNet::V4(_))
    }

    pub(super) fn family(&self) -> Family {
        if self.is_ipv4() {
            Family::Ipv4
        } else {
            Family::Ipv6
        }
    }

    /// Whether the ports are reachable from the host via 127.0.0.1.
    pub(super) fn admits_localhost(&self) -> bool {
        self.is_ipv4() && self.masquerade != Masquerade::Nothing
    }
}
