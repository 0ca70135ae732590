//! Blocks of addresses, their families and their overlaps.

use std::net::IpAddr;

use ipnet::IpNet;

/// The text is not a block of addresses.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("invalid CIDR address: {0}")]
pub struct Invalid(String);

/// Parses a block. The address may be any address of the block.
///
/// # Errors
/// If the text is not an address with a prefix length.
pub fn parse(text: &str) -> Result<IpNet, Invalid> {
    text.parse().map_err(|_| Invalid(text.to_owned()))
}

/// Parses a block and masks its address.
///
/// # Errors
/// If the text is not an address with a prefix length.
pub fn parse_masked(text: &str) -> Result<IpNet, Invalid> {
    parse(text).map(|net| net.trunc())
}

/// True for a block of IPv6.
pub fn is_v6(net: &IpNet) -> bool {
    matches!(net, IpNet::V6(_))
}

/// Blocks without overlaps.
#[derive(Clone, Debug, Default)]
pub struct Pool(Vec<IpNet>);

/// Two blocks that have addresses in common.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("CIDRs {0} and {1} overlap")]
pub struct Overlap(IpNet, IpNet);

impl Pool {
    /// Adds a block.
    ///
    /// # Errors
    /// If the block overlaps a block of the pool. The pool stays unchanged.
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

/// The address families of some blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Families {
    /// True if a block is of IPv4.
    pub v4: bool,
    /// True if a block is of IPv6.
    pub v6: bool,
}

impl Families {
    /// The address families of blocks. An invalid block has no family.
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

    /// True for both families.
    pub fn is_dual(self) -> bool {
        self.v4 && self.v6
    }
}

/// True if the text is an IP address.
pub fn is_address(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}
