//! A resource: devices on one lower device.

use crate::names::{DEVICE_INFIX, DOMAIN};
use kube_kit::object::is_label_value;
use linux::link::MacVlanMode;

/// The configuration has an unsupported mode.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown macvtap mode: \"{0}\"")]
pub struct UnknownMode(pub String);

/// One resource of the node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resource {
    /// The name after the domain.
    pub name: String,
    /// Name of the lower device of its macvtaps.
    pub lower_device: String,
    /// Mode of its macvtaps. A resource with an unsupported mode is offered, but its allocations fail.
    pub mode: Result<MacVlanMode, UnknownMode>,
    /// Number of devices.
    pub capacity: u32,
}

impl Resource {
    /// The resource name in pods.
    pub(crate) fn full_name(&self) -> String {
        format!("{DOMAIN}/{}", self.name)
    }

    /// File name of the plugin's socket.
    pub(crate) fn socket_name(&self) -> String {
        format!("{DOMAIN}_{}", self.name)
    }

    /// The identifiers of all devices, in numeric order.
    pub(crate) fn devices(&self) -> impl Iterator<Item = String> {
        (0..self.capacity).map(|number| format!("{}{DEVICE_INFIX}{number}", self.name))
    }

    /// Returns true if the device is one of [`Resource::devices`].
    pub(crate) fn has_device(&self, id: &str) -> bool {
        let number = id
            .strip_prefix(self.name.as_str())
            .and_then(|rest| rest.strip_prefix(DEVICE_INFIX));
        let parsed = number.and_then(|number| number.parse::<u32>().ok());
        parsed.is_some_and(|parsed| parsed < self.capacity && number == Some(parsed.to_string().as_str()))
    }
}

/// Parses a mode. An empty text means `bridge`.
pub(crate) fn mode(text: &str) -> Result<MacVlanMode, UnknownMode> {
    match text {
        "" | "bridge" => Ok(MacVlanMode::Bridge),
        "private" => Ok(MacVlanMode::Private),
        "vepa" => Ok(MacVlanMode::Vepa),
        other => Err(UnknownMode(other.to_owned())),
    }
}

/// Returns true if kubelet accepts the name after the domain. Such a name is also safe in a file name.
pub(crate) fn is_valid_name(name: &str) -> bool {
    !name.is_empty() && is_label_value(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(capacity: u32) -> Resource {
        Resource {
            name: "dataplane".into(),
            lower_device: "eth1".into(),
            mode: mode(""),
            capacity,
        }
    }

    #[test]
    fn names_of_resource_socket_and_devices_match_upstream() {
        let resource = resource(2);
        assert_eq!(resource.full_name(), "macvtap.network.kubevirt.io/dataplane");
        assert_eq!(resource.socket_name(), "macvtap.network.kubevirt.io_dataplane");
        let devices: Vec<_> = resource.devices().collect();
        assert_eq!(devices, ["dataplaneMvp0", "dataplaneMvp1"]);
    }

    #[test]
    fn has_device_refuses_other_identifiers() {
        let resource = resource(11);
        assert!(resource.devices().all(|id| resource.has_device(&id)));
        for other in [
            "",
            "dataplane",
            "dataplaneMvp",
            "dataplaneMvp11",
            "dataplaneMvp01",
            "dataplaneMvp+1",
            "eth1Mvp0",
        ] {
            assert!(!resource.has_device(other), "{other}");
        }
    }

    #[test]
    fn mode_passthru_is_refused() {
        for (text, expected) in [
            ("", MacVlanMode::Bridge),
            ("bridge", MacVlanMode::Bridge),
            ("private", MacVlanMode::Private),
            ("vepa", MacVlanMode::Vepa),
        ] {
            assert_eq!(mode(text), Ok(expected));
        }
        let refused = mode("passthru").unwrap_err();
        assert_eq!(refused.to_string(), "unknown macvtap mode: \"passthru\"");
    }

    #[test]
    fn is_valid_name_accepts_names_that_kubelet_accepts() {
        for name in ["a", "bond0.7"] {
            assert!(is_valid_name(name), "{name}");
        }
        for name in ["", "../a", "eth0:1"] {
            assert!(!is_valid_name(name), "{name}");
        }
    }
}
