//! Errors: the failed operation, its object, and the missing feature of the kernel.

use std::fmt;

/// The kernel's error number.
pub use rustix::io::Errno;

/// The result of operations of the kernel.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A kernel feature that a request needs. An error names the feature if the kernel reports it as unsupported.
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
    /// Returns the kernel's configuration symbol, or the first version that has the feature.
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

/// A failed operation: the operation, its object, the kernel's error number and message.
///
/// Printed as `create veth "net1": file exists: <the kernel's message>`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    doing: &'static str,
    object: String,
    cause: Cause,
    missing: Option<Feature>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Cause {
    /// The kernel refused, perhaps with a message (extended acknowledgement).
    Kernel { errno: Errno, message: Option<String> },
    /// The kernel's answer is malformed.
    Answer(String),
    /// The request is invalid.
    Request(String),
}

impl Error {
    pub(crate) fn kernel(doing: &'static str, object: impl Into<String>, errno: Errno) -> Self {
        Error {
            doing,
            object: object.into(),
            cause: Cause::Kernel { errno, message: None },
            missing: None,
        }
    }

    pub(crate) fn io(doing: &'static str, object: impl Into<String>, error: &std::io::Error) -> Self {
        match Errno::from_io_error(error) {
            Some(errno) => Error::kernel(doing, object, errno),
            None => Error::request(doing, object, error.to_string()),
        }
    }

    pub(crate) fn answer(doing: &'static str, object: impl Into<String>, cause: impl fmt::Display) -> Self {
        Error {
            doing,
            object: object.into(),
            cause: Cause::Answer(cause.to_string()),
            missing: None,
        }
    }

    pub(crate) fn request(doing: &'static str, object: impl Into<String>, cause: impl Into<String>) -> Self {
        Error {
            doing,
            object: object.into(),
            cause: Cause::Request(cause.into()),
            missing: None,
        }
    }

    pub(crate) fn with_message(mut self, text: Option<String>) -> Self {
        if let Cause::Kernel { message, .. } = &mut self.cause {
            *message = text;
        }
        self
    }

    /// Names `feature` as missing, if the error number means that something is unsupported.
    pub(crate) fn needing(mut self, feature: Option<Feature>) -> Self {
        if matches!(
            self.errno(),
            Some(Errno::OPNOTSUPP | Errno::PROTONOSUPPORT | Errno::AFNOSUPPORT)
        ) {
            self.missing = feature;
        }
        self
    }

    /// Names `feature` as missing, if the error number is `errno`, which means that for this request.
    pub(crate) fn lacking(mut self, errno: Errno, feature: Option<Feature>) -> Self {
        if self.errno() == Some(errno) {
            self.missing = feature;
        }
        self
    }

    /// Returns the kernel's error number, if the kernel refused.
    pub fn errno(&self) -> Option<Errno> {
        match self.cause {
            Cause::Kernel { errno, .. } => Some(errno),
            Cause::Answer(_) | Cause::Request(_) => None,
        }
    }

    /// Returns the kernel feature that is probably missing.
    pub fn missing_feature(&self) -> Option<Feature> {
        self.missing
    }

    /// The kernel lacks the feature, so that no object of this kind exists.
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

    /// Another object refers to the object.
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
            Cause::Kernel { errno, message: None } => f.write_str(&text(*errno)),
            Cause::Kernel {
                errno,
                message: Some(message),
            } => write!(f, "{}: {message}", text(*errno)),
            Cause::Answer(cause) => write!(f, "malformed answer of the kernel: {cause}"),
            Cause::Request(cause) => f.write_str(cause),
        }
    }
}

impl std::error::Error for Error {}

/// Returns the C library's text for `errno`, in lower case and without Rust's suffix: `file exists`.
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
    fn error_names_operation_object_number_and_the_kernels_message() {
        let error = Error::kernel("create veth", "net1", Errno::EXIST);
        assert_eq!(error.to_string(), "create veth \"net1\": file exists");
        let error = error.with_message(Some("Device exists".into()));
        assert_eq!(
            error.to_string(),
            "create veth \"net1\": file exists: Device exists"
        );
        assert!(error.is_exists() && !error.is_not_found());
    }

    #[test]
    fn missing_feature_is_named_only_if_the_kernel_reports_it() {
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
