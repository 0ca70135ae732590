//! Literals.

use std::time::Duration;

/// Where leases are kept, below the host's root: in memory, as the namespaces that they belong to are.
pub(crate) const LEASES: &str = "run/cni/weft/dhcp";
/// Extension of the files there.
pub(crate) const LEASE_EXTENSION: &str = "json";

/// Most leases of a node, and most connections at once.
pub(crate) const MAX_LEASES: usize = 4096;
pub(crate) const MAX_CONNECTIONS: usize = 1024;

/// How long a client may take to send its request, or to read the answer.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// Defaults of the flags.
pub(crate) const ATTEMPT: &str = "10s";
pub(crate) const RESEND_MAX: &str = "62s";
pub(crate) const TOTAL: &str = "208s";
