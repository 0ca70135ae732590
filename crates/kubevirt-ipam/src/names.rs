//! Names (kubevirt-ipam §2).

/// Component in the user agent of requests, and in events.
pub const COMPONENT: &str = "kubevirt-ipam-controller";

/// Group and version of claims.
pub const CLAIM_API: &str = "k8s.cni.cncf.io/v1alpha1";
/// Kind of a claim.
pub const CLAIM: &str = "IPAMClaim";

/// Finalizer that keeps a claim longer than its owner, as long as a pod may use its addresses.
pub const FINALIZER: &str = "kubevirt.io/persistent-ipam";
/// Label of a claim: the name of its instance.
pub const MACHINE_LABEL: &str = "kubevirt.io/vm";

/// Annotation of a launcher pod: the instance's name.
pub const DOMAIN: &str = "kubevirt.io/domain";
/// Annotation of a pod: its requested networks.
pub const SELECTION: &str = "k8s.v1.cni.cncf.io/networks";
/// Annotation of a pod: its requests to the default network.
pub const DEFAULT_NETWORK: &str = "v1.multus-cni.io/default-network";
/// Annotation of a pod: the claim of its primary network, for older versions of OVN-Kubernetes.
pub const PRIMARY_CLAIM: &str = "k8s.ovn.org/primary-udn-ipamclaim";
/// Annotation of an instance: the requested addresses, by network.
pub const ADDRESSES: &str = "network.kubevirt.io/addresses";
/// Name in the element of the default network.
pub const DEFAULT: &str = "default";

/// Role of the primary network of a namespace.
pub const PRIMARY: &str = "primary";

/// Name of the Lease for the leader election.
pub const LEASE: &str = "71d89df3";

/// Path of the webhook.
pub const MUTATE: &str = "/mutate-v1-pod";
/// Port of the webhook.
pub const WEBHOOK_PORT: u16 = 9443;
/// Service of the webhook.
pub const SERVICE: &str = "kubevirt-ipam-controller-webhook-service";
/// Name of the webhook configuration.
pub const WEBHOOK: &str = "kubevirt-ipam-controller-mutating-webhook-configuration";
/// Directory of the certificate, below the directory for temporary files.
pub const CERTIFICATES: &str = "k8s-webhook-server/serving-certs";
/// Namespace of the network in the `default-network` element, as in upstream.
pub const DEFAULT_NETWORK_NAMESPACE: &str = "ovn-kubernetes";

/// Environment variable with the level of the log.
pub const LOG_LEVEL: &str = "LOG_LEVEL";

/// Name of the controller of virtual machines in metrics.
pub const MACHINE_CONTROLLER: &str = "virtualmachine";
/// Name of the controller of instances in metrics.
pub const INSTANCE_CONTROLLER: &str = "virtualmachineinstance";

/// Reasons of events.
pub mod reason {
    /// The controller created a claim.
    pub const CREATED: &str = "IPAMClaimCreated";
    /// A claim of that name has another owner.
    pub const CONFLICT: &str = "IPAMClaimConflict";
    /// A network of the instance does not exist.
    pub const NO_NETWORK: &str = "NADNotFound";
    /// The configuration of a network can't be read.
    pub const INVALID_NETWORK: &str = "InvalidNAD";
    /// A claim can't be created.
    pub const FAILED: &str = "IPAMClaimFailed";
    /// A claim gets no addresses of the network's range.
    pub const NO_ADDRESS: &str = "IPAMClaimWithoutAddress";
    /// The addresses of a claim have an oddity.
    pub const ODD_ADDRESS: &str = "IPAMClaimAddress";
    /// A claim was released, because the instance no longer has its network.
    pub const RELEASED: &str = "IPAMClaimReleased";
}
