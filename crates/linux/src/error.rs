//! Errors: the failed operation, its object, and the feature that the kernel is missing.

use std::fmt;

/// The kernel's own error number.
pub use rustix::io::Errno;

/// The result of everything that talks to the kernel.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A kernel feature that some request needs; named in errors when the kernel says that it cannot do it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// Linux bridges.
    Bridge,
    /// VLAN filtering on Linux bridges.
    BridgeVlanFiltering,
    /// Isolated bridge ports (Linux 4.18).
    BridgePortIsolation,
    /// Pairs of virtual Ethernet devices.
    Veth,
    /// nftables.
    Nftables,
    /// nftables for bridges.
    NftablesBridge,
    /// Address translation by nftables.
    NftablesNat,
    /// Masquerading by nftables.
    NftablesMasquerade,
    /// Kinds of addresses in rules of nftables.
    NftablesFib,
    /// Connections in rules of nftables.
    NftablesConnections,
    /// Matches of iptables in rules of nftables.
    NftablesCompat,
    /// The driver of a kind of links, by its configuration symbol.
    Driver(&'static str),
}

impl Feature {
    /// The kernel's configuration symbol, and the first version where that says more.
    pub fn symbol(self) -> &'static str {
        match self {
            Feature::Bridge => "CONFIG_BRIDGE",
            Feature::BridgeVlanFiltering => "CONFIG_BRIDGE_VLAN_FILTERING",
            Feature::BridgePortIsolation => "isolated bridge ports, Linux 4.18 or later",
            Feature::Veth => "CONFIG_VETH",
            Feature::Nftables => "CONFIG_NF_TABLES",
            Feature::NftablesBridge => "CONFIG_NF_TABLES_BRIDGE",
            Feature::NftablesNat => "CONFIG_NFT_NAT",
            Feature::NftablesMasquerade => "CONFIG_NFT_MASQ",
            Feature::NftablesFib => "CONFIG_NFT_FIB_INET",
            Feature::NftablesConnections => "CONFIG_NFT_CT",
            Feature::NftablesCompat => "CONFIG_NFT_COMPAT",
            Feature::Driver(symbol) => symbol,
        }
    }
}

impl fmt::Display for Feature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the kernel lacks {}", self.symbol())
    }
}

/// A failed operation: what was done, on which object, the kernel's number and words.
///
/// Shown as `create veth "net1": file exists: <what the kernel adds>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    doing: &'static str,
    object: String,
    cause: Cause,
    missing: Option<Feature>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Cause {
    /// The kernel refused, perhaps with a sentence of its own (extended acknowledgement).
    Kernel { errno: Errno, words: Option<String> },
    /// The kernel's answer cannot be read.
    Answer(String),
    /// The request would not be valid.
    Request(String),
}

impl Error {
    pub(crate) fn kernel(doing: &'static str, object: impl Into<String>, errno: Errno) -> Self {
        Error {
            doing,
            object: object.into(),
            cause: Cause::Kernel { errno, words: None },
            missing: None,
        }
    }

    pub(crate) fn io(doing: &'static str, object: impl Into<String>, error: &std::io::Error) -> Self {
        match Errno::from_io_error(error) {
            Some(errno) => Error::kernel(doing, object, errno),
            None => Error::request(doing, object, error.to_string()),
        }
    }

    pub(crate) fn answer(doing: &'static str, object: impl Into<String>, what: impl fmt::Display) -> Self {
        Error {
            doing,
            object: object.into(),
            cause: Cause::Answer(what.to_string()),
            missing: None,
        }
    }

    pub(crate) fn request(doing: &'static str, object: impl Into<String>, what: impl Into<String>) -> Self {
        Error {
            doing,
            object: object.into(),
            cause: Cause::Request(what.into()),
            missing: None,
        }
    }

    pub(crate) fn with_words(mut self, said: Option<String>) -> Self {
        if let Cause::Kernel { words, .. } = &mut self.cause {
            *words = said;
        }
        self
    }

    /// Names `feature` as missing, if the number is one that kernels use to say so.
    pub(crate) fn needing(mut self, feature: Option<Feature>) -> Self {
        if matches!(
            self.errno(),
            Some(Errno::OPNOTSUPP | Errno::PROTONOSUPPORT | Errno::AFNOSUPPORT)
        ) {
            self.missing = feature;
        }
        self
    }

    /// Names `feature` as missing, if the number is `errno`, which says so for this request.
    pub(crate) fn lacking(mut self, errno: Errno, feature: Option<Feature>) -> Self {
        if self.errno() == Some(errno) {
            self.missing = feature;
        }
        self
    }

    /// The kernel's error number, if it was the kernel that refused.
    pub fn errno(&self) -> Option<Errno> {
        match self.cause {
            Cause::Kernel { errno, .. } => Some(errno),
            Cause::Answer(_) | Cause::Request(_) => None,
        }
    }

    /// The kernel feature that is probably missing.
    pub fn missing_feature(&self) -> Option<Feature> {
        self.missing
    }

    /// The kernel can do no such thing, so that nothing of the kind exists.
    pub fn is_unsupported(&self) -> bool {
        self.missing.is_some()
    }

    /// The object does not exist (any more).
    pub fn is_not_found(&self) -> bool {
        matches!(
            self.errno(),
            Some(Errno::NODEV | Errno::NOENT | Errno::SRCH | Errno::ADDRNOTAVAIL | Errno::NXIO)
        )
    }

    /// Something else still refers to the object.
    pub fn is_in_use(&self) -> bool {
        self.errno() == Some(Errno::BUSY)
    }

    /// The object exists already.
    pub fn is_exists(&self) -> bool {
        self.errno() == Some(Errno::EXIST)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.object.is_empty() {
            write!(f, "{}: ", self.doing)?;
        } else {
            write!(f, "{} \"{}\": ", self.doing, self.object)?;
        }
        match &self.cause {
            Cause::Kernel { errno, words: None } => f.write_str(&text(*errno)),
            Cause::Kernel {
                errno,
                words: Some(words),
            } => write!(f, "{}: {words}", text(*errno)),
            Cause::Answer(what) => write!(f, "unreadable answer of the kernel: {what}"),
            Cause::Request(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {}

/// The C library's sentence for `errno`, in lower case and without Rust's suffix: `file exists`.
pub(crate) fn text(errno: Errno) -> String {
    let full = std::io::Error::from(errno).to_string();
    let sentence = full.split(" (os error").next().unwrap_or(&full);
    let mut characters = sentence.chars();
    match characters.next() {
        Some(first) => first.to_lowercase().chain(characters).collect(),
        None => full,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_operation_object_number_and_the_kernels_words() {
        let error = Error::kernel("create veth", "net1", Errno::EXIST);
        assert_eq!(error.to_string(), "create veth \"net1\": file exists");
        let error = error.with_words(Some("Device exists".into()));
        assert_eq!(
            error.to_string(),
            "create veth \"net1\": file exists: Device exists"
        );
        assert!(error.is_exists() && !error.is_not_found());
    }

    #[test]
    fn a_missing_feature_is_named_only_when_the_kernel_says_so() {
        let feature = Some(Feature::BridgeVlanFiltering);
        let lacking = Error::kernel("create bridge", "br0", Errno::OPNOTSUPP).needing(feature);
        assert_eq!(lacking.missing_feature(), feature);
        assert_eq!(
            Feature::BridgeVlanFiltering.to_string(),
            "the kernel lacks CONFIG_BRIDGE_VLAN_FILTERING"
        );
        let denied = Error::kernel("create bridge", "br0", Errno::PERM).needing(feature);
        assert_eq!(denied.missing_feature(), None);
    }
}
