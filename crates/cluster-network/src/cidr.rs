//! Blocks of addresses, and which of them overlap.

use std::net::IpAddr;

use ipnet::IpNet;

/// A text is no block of addresses.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("invalid CIDR address: {0}")]
pub struct Invalid(String);

/// Reads a block, whose address need not be its first one.
///
/// # Errors
/// When the text is no address with the length of a prefix.
pub fn parse(text: &str) -> Result<IpNet, Invalid> {
    text.parse().map_err(|_| Invalid(text.to_owned()))
}

/// Reads a block and masks its address.
///
/// # Errors
/// When the text is no address with the length of a prefix.
pub fn parse_masked(text: &str) -> Result<IpNet, Invalid> {
    parse(text).map(|net| net.trunc())
}

/// Whether a block is of IPv6.
pub fn is_v6(net: &IpNet) -> bool {
    matches!(net, IpNet::V6(_))
}

/// Blocks that must not overlap.
#[derive(Clone, Debug, Default)]
pub struct Pool(Vec<IpNet>);

/// Two blocks have addresses in common.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("CIDRs {0} and {1} overlap")]
pub struct Overlap(IpNet, IpNet);

impl Pool {
    /// Adds a block, unless it overlaps another one of the pool.
    ///
    /// # Errors
    /// When it overlaps one; then the pool stays as it is.
    pub fn add(&mut self, net: IpNet) -> Result<(), Overlap> {
        let net = net.trunc();
        let overlaps = |older: &&IpNet| older.contains(&net.addr()) || net.contains(&older.addr());
        if let Some(older) = self.0.iter().find(overlaps) {
            return Err(Overlap(*older, net));
        }
        self.0.push(net);
        Ok(())
    }
}

/// Which families some blocks are of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Families {
    /// Whether one is of IPv4.
    pub v4: bool,
    /// Whether one is of IPv6.
    pub v6: bool,
}

impl Families {
    /// The address families of blocks. A text that is no block has none.
    pub fn of<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut families = Self::default();
        for net in texts.into_iter().filter_map(|text| parse(text).ok()) {
            families.add(&net);
        }
        families
    }

    /// Adds the family of a block.
    pub fn add(&mut self, net: &IpNet) {
        match net {
            IpNet::V4(_) => self.v4 = true,
            IpNet::V6(_) => self.v6 = true,
        }
    }

    /// Whether there are both.
    pub fn is_dual(self) -> bool {
        self.v4 && self.v6
    }
}

/// Whether a text is an address.
pub fn is_address(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}
