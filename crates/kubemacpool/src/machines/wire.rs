//! The parts of a virtual machine that reviews read (kubemacpool §10.1).

use std::collections::HashSet;

use api::kubevirt::{InstanceSpec, Template};
use cni::mac::{InvalidMac, Mac};
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::pool::Holding;

/// `spec` of a virtual machine. `I` is the type of its list of interfaces.
#[derive(Clone, Debug, Deserialize)]
pub struct Spec<I = Vec<Option<Interface>>> {
    template: Option<Template<I, Network>>,
}

/// An interface of a virtual machine.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Interface {
    name: Option<String>,
    mac_address: Option<String>,
    masquerade: Option<IgnoredAny>,
}

#[derive(Clone, Debug, Deserialize)]
struct Network {
    name: Option<String>,
    multus: Option<IgnoredAny>,
}

/// The interfaces that get addresses: those with masquerade, and those on a multus network.
#[derive(Debug, Default)]
pub(super) struct Supported<'a> {
    any: bool,
    multus: HashSet<&'a str>,
}

impl Interface {
    /// Its name.
    pub(super) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// The address as written, if there is one.
    pub(super) fn mac(&self) -> Option<&str> {
        self.mac_address.as_deref().filter(|mac| !mac.is_empty())
    }
}

impl<I> Spec<I> {
    /// The instance in the template.
    fn instance(&self) -> Option<&InstanceSpec<I, Network>> {
        self.template.as_ref()?.spec.as_ref()
    }

    /// Whether there is a template.
    pub(super) fn has_template(&self) -> bool {
        self.template.is_some()
    }

    /// The list of interfaces.
    pub(super) fn interfaces(&self) -> Option<&I> {
        self.instance()?.interfaces()
    }

    /// The interfaces that get addresses.
    pub(super) fn supported(&self) -> Supported<'_> {
        let networks = self
            .instance()
            .and_then(|instance| instance.networks.as_deref())
            .unwrap_or_default();
        let multus = networks
            .iter()
            .flatten()
            .filter(|network| network.multus.is_some());
        Supported {
            any: !networks.is_empty(),
            multus: multus
                .map(|network| network.name.as_deref().unwrap_or_default())
                .collect(),
        }
    }
}

impl Spec {
    /// Addresses on supported interfaces by interface name, and errors of malformed ones with their interface names.
    pub fn addresses(&self) -> (Vec<Holding>, Vec<(String, InvalidMac)>) {
        let interfaces = self.interfaces().map_or(&[][..], Vec::as_slice);
        addresses(&self.supported(), interfaces)
    }
}

/// Addresses of the supported ones of the interfaces, and errors of malformed ones.
pub(super) fn addresses(
    supported: &Supported<'_>,
    interfaces: &[Option<Interface>],
) -> (Vec<Holding>, Vec<(String, InvalidMac)>) {
    let mut found = (Vec::new(), Vec::new());
    for interface in interfaces.iter().flatten() {
        let Some(mac) = interface.mac().filter(|_| supported.contains(interface)) else {
            continue;
        };
        match Mac::parse(mac) {
            Ok(mac) => found.0.push(Holding {
                mac,
                key: interface.name().into(),
            }),
            Err(error) => found.1.push((interface.name().to_owned(), error)),
        }
    }
    found
}

impl Supported<'_> {
    /// Whether an interface gets an address. A virtual machine without networks has no such interface.
    pub(super) fn contains(&self, interface: &Interface) -> bool {
        self.any && (interface.masquerade.is_some() || self.multus.contains(interface.name()))
    }
}
