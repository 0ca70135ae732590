//! Kinds of KubeVirt, and the path to the interfaces and networks of a virtual machine.
//!
//! Components cache and parse only the fields that they read. Such a type inherits name and path of its kind:
//! `#[derive(kube::Resource)] #[resource(inherit = api::kubevirt::VirtualMachine)]`.

use std::borrow::Cow;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use kube::core::NamespaceResourceScope;
use serde::Deserialize;

/// API group of virtual machines and their instances.
pub const GROUP: &str = "kubevirt.io";
/// Version of the API group.
pub const VERSION: &str = "v1";
/// Group and version, as in `apiVersion`.
pub const API_VERSION: &str = "kubevirt.io/v1";
/// Kind of a virtual machine.
pub const MACHINE: &str = "VirtualMachine";
/// Virtual machines in paths of the API.
pub const MACHINES: &str = "virtualmachines";
/// Kind of an instance: a virtual machine that runs or starts.
pub const INSTANCE: &str = "VirtualMachineInstance";
/// Instances in paths of the API.
pub const INSTANCES: &str = "virtualmachineinstances";

macro_rules! kind {
    ($(#[$doc:meta])* $type:ident, $kind:ident, $plural:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default)]
        pub struct $type {
            /// The metadata.
            pub metadata: ObjectMeta,
        }

        impl Resource for $type {
            type DynamicType = ();
            type Scope = NamespaceResourceScope;

            fn kind((): &()) -> Cow<'_, str> {
                $kind.into()
            }

            fn group((): &()) -> Cow<'_, str> {
                GROUP.into()
            }

            fn version((): &()) -> Cow<'_, str> {
                VERSION.into()
            }

            fn plural((): &()) -> Cow<'_, str> {
                $plural.into()
            }

            fn meta(&self) -> &ObjectMeta {
                &self.metadata
            }

            fn meta_mut(&mut self) -> &mut ObjectMeta {
                &mut self.metadata
            }
        }
    };
}

kind!(
    /// The kind of virtual machines.
    VirtualMachine,
    MACHINE,
    MACHINES
);
kind!(
    /// The kind of instances.
    VirtualMachineInstance,
    INSTANCE,
    INSTANCES
);

/// The template of an instance. `I` is the list of interfaces, and `N` is a network, with the fields that the reader needs.
#[derive(Clone, Debug, Deserialize)]
pub struct Template<I, N> {
    /// Its `spec`.
    pub spec: Option<InstanceSpec<I, N>>,
}

/// `spec` of an instance.
#[derive(Clone, Debug, Deserialize)]
pub struct InstanceSpec<I, N> {
    domain: Option<Domain<I>>,
    /// The networks.
    pub networks: Option<Vec<Option<N>>>,
}

#[derive(Clone, Debug, Deserialize)]
struct Domain<I> {
    devices: Option<Devices<I>>,
}

#[derive(Clone, Debug, Deserialize)]
struct Devices<I> {
    interfaces: Option<I>,
}

impl<I, N> InstanceSpec<I, N> {
    /// The interfaces.
    pub fn interfaces(&self) -> Option<&I> {
        self.domain.as_ref()?.devices.as_ref()?.interfaces.as_ref()
    }

    /// The interfaces and the networks.
    pub fn into_parts(self) -> (Option<I>, Option<Vec<Option<N>>>) {
        let devices = self.domain.and_then(|domain| domain.devices);
        (devices.and_then(|devices| devices.interfaces), self.networks)
    }
}
