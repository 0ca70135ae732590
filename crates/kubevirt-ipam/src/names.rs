//! What things are called (kubevirt-ipam §2).

/// Component in the user agent of requests, and in events.
pub const COMPONENT: &str = "kubevirt-ipam-controller";

/// API group of virtual machines and their instances, and its version.
pub const KUBEVIRT: &str = "kubevirt.io";
/// Its version.
pub const KUBEVIRT_VERSION: &str = "v1";
/// Group and version of virtual machines and their instances.
pub const KUBEVIRT_API: &str = "kubevirt.io/v1";
/// Kind of a virtual machine.
pub const MACHINE: &str = "VirtualMachine";
/// Plural of virtual machines.
pub const MACHINES: &str = "virtualmachines";
/// Kind of a virtual machine that runs.
pub const INSTANCE: &str = "VirtualMachineInstance";
/// Plural of these.
pub const INSTANCES: &str = "virtualmachineinstances";

/// API group of networks and of claims.
pub const CNI: &str = "k8s.cni.cncf.io";
/// Version of networks.
pub const NETWORK_VERSION: &str = "v1";
/// Kind of a network.
pub const NETWORK: &str = "NetworkAttachmentDefinition";
/// Plural of networks.
pub const NETWORKS: &str = "network-attachment-definitions";
/// Version of claims.
pub const CLAIM_VERSION: &str = "v1alpha1";
/// Group and version of claims.
pub const CLAIM_API: &str = "k8s.cni.cncf.io/v1alpha1";
/// Kind of a claim.
pub const CLAIM: &str = "IPAMClaim";
/// Plural of claims.
pub const CLAIMS: &str = "ipamclaims";

/// Finalizer by which a claim outlives its owner as long as a pod may use its addresses.
pub const FINALIZER: &str = "kubevirt.io/persistent-ipam";
/// Label of a claim: the instance that it is for.
pub const MACHINE_LABEL: &str = "kubevirt.io/vm";

/// Annotation of a pod that runs an instance: the instance's name.
pub const DOMAIN: &str = "kubevirt.io/domain";
/// Annotation of a pod: the networks that it asks for.
pub const SELECTION: &str = "k8s.v1.cni.cncf.io/networks";
/// Annotation of a pod: what it asks of its default network.
pub const DEFAULT_NETWORK: &str = "v1.multus-cni.io/default-network";
/// Annotation of a pod: the claim of its primary network, as older versions of OVN-Kubernetes read it.
pub const PRIMARY_CLAIM: &str = "k8s.ovn.org/primary-udn-ipamclaim";
/// Annotation of an instance: addresses that its user asks for, by network.
pub const ADDRESSES: &str = "network.kubevirt.io/addresses";
/// Name in the element of the default network.
pub const DEFAULT: &str = "default";

/// Role of a network that is the primary one of its namespace.
pub const PRIMARY: &str = "primary";

/// Lease of the replica that writes.
pub const LEASE: &str = "71d89df3";

/// Path of the webhook.
pub const MUTATE: &str = "/mutate-v1-pod";
/// Port of the webhook.
pub const WEBHOOK_PORT: u16 = 9443;
/// Service in front of it.
pub const SERVICE: &str = "kubevirt-ipam-controller-webhook-service";
/// Where the certificate is, below the directory for temporary files.
pub const CERTIFICATES: &str = "k8s-webhook-server/serving-certs";
/// Namespace of the network in the `default-network` element, as upstream has it.
pub const DEFAULT_NETWORK_NAMESPACE: &str = "ovn-kubernetes";

/// Environment variable with the level of the log.
pub const LOG_LEVEL: &str = "LOG_LEVEL";

/// Names of the two controllers in metrics.
pub const MACHINE_CONTROLLER: &str = "virtualmachine";
/// See [`MACHINE_CONTROLLER`].
pub const INSTANCE_CONTROLLER: &str = "virtualmachineinstance";

/// Reasons of events.
pub mod reason {
    /// A claim was made.
    pub const CREATED: &str = "IPAMClaimCreated";
    /// A claim of that name has another owner.
    pub const CONFLICT: &str = "IPAMClaimConflict";
    /// A network of the instance does not exist.
    pub const NO_NETWORK: &str = "NADNotFound";
    /// The configuration of a network can't be read.
    pub const INVALID_NETWORK: &str = "InvalidNAD";
    /// A claim can't be made.
    pub const FAILED: &str = "IPAMClaimFailed";
    /// A claim gets no addresses of the network's range.
    pub const NO_ADDRESS: &str = "IPAMClaimWithoutAddress";
    /// Something is odd about the addresses of a claim.
    pub const ODD_ADDRESS: &str = "IPAMClaimAddress";
    /// A claim was released, because its network is no longer one of the instance's.
    pub const RELEASED: &str = "IPAMClaimReleased";
}
