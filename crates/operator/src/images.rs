//! The image of each container. The image decides between upstream's and Weft's command line (operator §2, operands
//! §13).

use std::collections::BTreeMap;

use crate::names::env;

/// The image of an operand, under all of its names.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Operand {
    /// Variable of the operator's environment.
    pub variable: &'static str,
    /// Value below `operandImages` of the Helm chart.
    pub value: &'static str,
    /// Field below `AddonsImages` in the templates of parent operators.
    pub field: &'static str,
    /// Flag of `manifest-templator`.
    pub flag: &'static str,
    /// Description of the flag.
    pub about: &'static str,
}

/// The ten images, in the order of the shipped Deployment (operator §13.1).
pub const OPERANDS: [Operand; 10] = [
    Operand {
        variable: env::MULTUS_IMAGE,
        value: "multus",
        field: "Multus",
        flag: "multus-image",
        about: "multus",
    },
    Operand {
        variable: env::MULTUS_DYNAMIC_NETWORKS_IMAGE,
        value: "multusDynamicNetworks",
        field: "MultusDynamicNetworks",
        flag: "multus-dynamic-networks-image",
        about: "Dynamic networks",
    },
    Operand {
        variable: env::LINUX_BRIDGE_IMAGE,
        value: "linuxBridge",
        field: "LinuxBridgeCni",
        flag: "linux-bridge-cni-image",
        about: "CNI plugins of linuxBridge",
    },
    Operand {
        variable: env::LINUX_BRIDGE_MARKER_IMAGE,
        value: "linuxBridgeMarker",
        field: "LinuxBridgeMarker",
        flag: "linux-bridge-marker-image",
        about: "Marker of linuxBridge",
    },
    Operand {
        variable: env::OVS_CNI_IMAGE,
        value: "ovs",
        field: "OvsCni",
        flag: "ovs-cni-image",
        about: "Open vSwitch",
    },
    Operand {
        variable: env::KUBEMACPOOL_IMAGE,
        value: "kubeMacPool",
        field: "KubeMacPool",
        flag: "kubemacpool-image",
        about: "MAC pool",
    },
    Operand {
        variable: env::MACVTAP_CNI_IMAGE,
        value: "macvtap",
        field: "MacvtapCni",
        flag: "macvtap-cni-image",
        about: "macvtap",
    },
    Operand {
        variable: env::KUBE_SECONDARY_DNS_IMAGE,
        value: "kubeSecondaryDNS",
        field: "KubeSecondaryDNS",
        flag: "kube-secondary-dns-image",
        about: "Zones of the secondary DNS",
    },
    Operand {
        variable: env::CORE_DNS_IMAGE,
        value: "coreDNS",
        field: "CoreDNS",
        flag: "core-dns-image",
        about: "Server of the secondary DNS",
    },
    Operand {
        variable: env::KUBEVIRT_IPAM_CONTROLLER_IMAGE,
        value: "kubevirtIpamController",
        field: "KubevirtIpamController",
        flag: "kubevirt-ipam-controller-image",
        about: "KubeVirt IPAM",
    },
];

/// The variables of the ten images.
pub fn variables() -> [&'static str; 10] {
    OPERANDS.map(|operand| operand.variable)
}

/// The image of a container.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Image<'a> {
    /// An image from an environment variable: the container gets upstream's command line.
    Upstream(&'a str),
    /// The operator's own image: the container gets Weft's command line.
    Native(&'a str),
}

impl<'a> Image<'a> {
    /// Reference of the image.
    pub fn reference(self) -> &'a str {
        match self {
            Self::Upstream(reference) | Self::Native(reference) => reference,
        }
    }

    /// Whether it is the operator's own image.
    pub fn is_native(self) -> bool {
        matches!(self, Self::Native(_))
    }
}

/// Neither the variable nor the operator's own image is known.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error(
    "environment variable {variable} is not set, and the operator's own image, to be used instead, is unknown: set \
     it, or {} or {}",
    env::POD_NAME,
    env::OPERATOR_IMAGE
)]
pub struct UnknownImage {
    variable: &'static str,
}

/// Images of all containers.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Images {
    own: Option<String>,
    upstream: BTreeMap<&'static str, String>,
}

impl Images {
    /// Reads the image variables through `lookup`; an empty variable counts as unset.
    pub fn read(lookup: impl Fn(&str) -> Option<String>) -> Self {
        let set = |name: &'static str| {
            lookup(name)
                .filter(|image| !image.is_empty())
                .map(|image| (name, image))
        };
        Self {
            own: None,
            upstream: variables().into_iter().filter_map(set).collect(),
        }
    }

    /// Upstream's images for all containers, with unknown references.
    pub(crate) fn of_upstream() -> Self {
        Self::read(|variable| Some(variable.to_owned()))
    }

    /// Sets the operator's own image.
    #[must_use]
    pub fn with_own(self, own: Option<String>) -> Self {
        Self {
            own: own.filter(|image| !image.is_empty()),
            ..self
        }
    }

    /// The image of the containers with this variable.
    pub fn of(&self, variable: &'static str) -> Result<Image<'_>, UnknownImage> {
        let upstream = self.upstream.get(variable).map(|image| Image::Upstream(image));
        let own = || self.own.as_deref().map(Image::Native);
        upstream.or_else(own).ok_or(UnknownImage { variable })
    }

    /// The operator's own image, if it is known.
    pub fn own(&self) -> Option<&str> {
        self.own.as_deref()
    }

    /// Checks that every container has an image.
    pub(crate) fn complete(&self) -> Result<(), UnknownImage> {
        variables()
            .into_iter()
            .try_for_each(|variable| self.of(variable).map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn image_of_empty_variable_is_native() {
        let lookup = |name: &str| match name {
            "MULTUS_IMAGE" => Some("multus:1".to_owned()),
            "LINUX_BRIDGE_IMAGE" => Some(String::new()),
            _ => None,
        };
        let images = Images::read(lookup).with_own(Some("weft:1".into()));
        assert_eq!(images.of("MULTUS_IMAGE"), Ok(Image::Upstream("multus:1")));
        assert_eq!(images.of("LINUX_BRIDGE_IMAGE"), Ok(Image::Native("weft:1")));
        assert_eq!(images.of("OVS_CNI_IMAGE"), Ok(Image::Native("weft:1")));
        assert_eq!(images.complete(), Ok(()));
    }

    #[test]
    fn unknown_image_names_its_variable() {
        let images = Images::read(|_| None).with_own(Some(String::new()));
        let error = images.complete().expect_err("no image").to_string();
        assert!(
            error.contains("MULTUS_IMAGE") && error.contains("OPERATOR_IMAGE"),
            "{error}"
        );
        let all = Images::read(|name| Some(format!("{name}:1")));
        assert_eq!(all.complete(), Ok(()));
    }
}
