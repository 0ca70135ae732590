//! IP forwarding on the node.

use cni::Error;
use linux::{address::Family, sysctl::Key};

use crate::messages::Explain as _;

/// Enables forwarding for this family.
pub(crate) fn enable_forwarding(family: Family) -> Result<(), Error> {
    let steps: &[&str] = match family {
        Family::V4 => &["net", "ipv4", "ip_forward"],
        Family::V6 => &["net", "ipv6", "conf", "all", "forwarding"],
    };
    let enable = || {
        let key = Key::new(steps)?;
        if key.read()? == "1" {
            Ok(())
        } else {
            key.write("1")
        }
    };
    enable().explain(|| "failed to enable forwarding".to_owned())
}
