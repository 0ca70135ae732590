//! Literals.

use std::time::Duration;

/// Directory of the leases below the host's root. It is in memory and ends with a reboot, like the network namespaces
/// of the leases.
pub(crate) const LEASES: &str = "run/cni/weft/dhcp";
/// Extension of the files in that directory.
pub(crate) const LEASE_EXTENSION: &str = "json";

/// Maximum number of leases on a node, and of concurrent connections.
pub(crate) const MAX_LEASES: usize = 4096;
pub(crate) const MAX_CONNECTIONS: usize = 1024;

/// Timeout of a client for sending its request, and for reading the answer.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// Defaults of the flags.
pub(crate) const ATTEMPT: &str = "10s";
pub(crate) const RESEND_MAX: &str = "62s";
pub(crate) const TOTAL: &str = "208s";
