//! Ports of the host and the containers they lead to.

use std::net::IpAddr;

use ipnet::IpNet;
use linux::nft::Family;
use serde::{Deserialize, Serialize};

/// A protocol that has ports.
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

    /// The protocol of that name, in any letter case; none is TCP.
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

    /// As in IP headers.
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

/// A port of the host, and the one of the container that it leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Mapping {
    pub(super) protocol: Protocol,
    /// The host's address; any of them without one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) host_ip: Option<IpAddr>,
    pub(super) host_port: u16,
    pub(super) container_port: u16,
}

/// The packets that get the host's address on their way to the container: without it no answer would come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Masquerade {
    /// Nothing.
    Nothing,
    /// Packets of the container to itself, and of the host from 127.0.0.1.
    Inner,
    /// Everything.
    All,
}

/// The ports that lead to one address of a container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Forward {
    /// The container's address, with its subnet.
    pub(super) address: IpNet,
    pub(super) masquerade: Masquerade,
    /// Which conditions there are beside protocol and port: a hash, or nothing.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(super) conditions: String,
    /// All of the address' family.
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

    /// Whether the host itself reaches the ports by 127.0.0.1.
    pub(super) fn admits_localhost(&self) -> bool {
        self.is_ipv4() && self.masquerade != Masquerade::Nothing
    }
}
