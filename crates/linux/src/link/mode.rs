//! Modes of macvlans and ipvlans: their names in configurations, and their numbers in the kernel.

use std::{fmt, str::FromStr};

use netlink_packet_route::link::IpVlanFlags;

/// The text names no mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown mode: \"{0}\"")]
pub struct InvalidMode(pub String);

/// Traffic between the macvlans of one parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MacVlanMode {
    /// No traffic.
    Private,
    /// Frames leave the host, and the external switch returns them.
    Vepa,
    /// Frames are exchanged directly.
    Bridge,
    /// The only macvlan, with the address of the parent.
    PassThru,
    /// Frames are filtered by their source address. Weft never creates this mode.
    Source,
}

impl MacVlanMode {
    /// The modes that a configuration may name.
    const NAMED: [MacVlanMode; 4] = [
        MacVlanMode::Private,
        MacVlanMode::Vepa,
        MacVlanMode::Bridge,
        MacVlanMode::PassThru,
    ];

    pub(super) fn number(self) -> u32 {
        match self {
            MacVlanMode::Private => 1,
            MacVlanMode::Vepa => 2,
            MacVlanMode::Bridge => 4,
            MacVlanMode::PassThru => 8,
            MacVlanMode::Source => 16,
        }
    }

    pub(super) fn numbered(number: u32) -> Option<Self> {
        let all = Self::NAMED.into_iter().chain([MacVlanMode::Source]);
        all.into_iter().find(|mode| mode.number() == number)
    }
}

impl fmt::Display for MacVlanMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MacVlanMode::Private => "private",
            MacVlanMode::Vepa => "vepa",
            MacVlanMode::Bridge => "bridge",
            MacVlanMode::PassThru => "passthru",
            MacVlanMode::Source => "source",
        })
    }
}

impl FromStr for MacVlanMode {
    type Err = InvalidMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::NAMED.into_iter().find(|mode| mode.to_string() == text);
        named.ok_or_else(|| InvalidMode(text.to_owned()))
    }
}

/// The layer at which an ipvlan shares the Ethernet address of its parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IpVlanMode {
    /// Frames are delivered by IP address, and the container answers ARP.
    L2,
    /// The parent's namespace routes, and containers receive no broadcasts.
    L3,
    /// Like `L3`, with connection tracking in the parent's namespace.
    L3s,
}

impl IpVlanMode {
    pub(super) const ALL: [IpVlanMode; 3] = [IpVlanMode::L2, IpVlanMode::L3, IpVlanMode::L3s];

    pub(super) fn number(self) -> u16 {
        match self {
            IpVlanMode::L2 => 0,
            IpVlanMode::L3 => 1,
            IpVlanMode::L3s => 2,
        }
    }
}

impl fmt::Display for IpVlanMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            IpVlanMode::L2 => "l2",
            IpVlanMode::L3 => "l3",
            IpVlanMode::L3s => "l3s",
        })
    }
}

impl FromStr for IpVlanMode {
    type Err = InvalidMode;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let named = Self::ALL.into_iter().find(|mode| mode.to_string() == text);
        named.ok_or_else(|| InvalidMode(text.to_owned()))
    }
}

/// Traffic between the ipvlans of one parent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum IpVlanSharing {
    /// All frames, directly.
    #[default]
    Bridge,
    /// No frames.
    Private,
    /// Frames that the external switch returns.
    Vepa,
}

impl IpVlanSharing {
    pub(super) fn flags(self) -> IpVlanFlags {
        match self {
            IpVlanSharing::Bridge => IpVlanFlags::empty(),
            IpVlanSharing::Private => IpVlanFlags::Private,
            IpVlanSharing::Vepa => IpVlanFlags::Vepa,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_have_the_names_of_configurations() {
        for name in ["bridge", "private", "vepa", "passthru"] {
            assert_eq!(name.parse::<MacVlanMode>().unwrap().to_string(), name);
        }
        for name in ["l2", "l3", "l3s"] {
            assert_eq!(name.parse::<IpVlanMode>().unwrap().to_string(), name);
        }
        for name in ["", "Bridge", "source"] {
            assert_eq!(name.parse::<MacVlanMode>(), Err(InvalidMode(name.to_owned())));
        }
        assert!("l4".parse::<IpVlanMode>().is_err());
    }
}
