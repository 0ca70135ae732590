//! Literals of the protocol and of the annotations.

/// Pod annotation: the requested secondary networks.
pub const NETWORKS_ANNOTATION: &str = "k8s.v1.cni.cncf.io/networks";
/// Pod annotation: the attached networks.
pub const NETWORK_STATUS_ANNOTATION: &str = "k8s.v1.cni.cncf.io/network-status";
/// Pod annotation: replaces the cluster's default network.
pub const DEFAULT_NETWORK_ANNOTATION: &str = "v1.multus-cni.io/default-network";
/// NetworkAttachmentDefinition annotation: the device resource of a network.
pub const RESOURCE_NAME_ANNOTATION: &str = "k8s.v1.cni.cncf.io/resourceName";

/// The verb.
pub const CNI_COMMAND: &str = "CNI_COMMAND";
/// The sandbox.
pub const CNI_CONTAINERID: &str = "CNI_CONTAINERID";
/// Path of the sandbox's network namespace.
pub const CNI_NETNS: &str = "CNI_NETNS";
/// The interface in the sandbox.
pub const CNI_IFNAME: &str = "CNI_IFNAME";
/// `K=V;K=V`
pub const CNI_ARGS: &str = "CNI_ARGS";
/// Directories of plugins, separated by `:`.
pub const CNI_PATH: &str = "CNI_PATH";
/// Disables the check that the sandbox is not the plugin's own namespace.
pub const CNI_NETNS_OVERRIDE: &str = "CNI_NETNS_OVERRIDE";

/// File beside the plugins with the node's defaults for bridge configs.
pub const BRIDGE_DEFAULTS: &str = "weft-bridge.json";

/// Keys of network configs.
pub mod key {
    /// Version of the config.
    pub const CNI_VERSION: &str = "cniVersion";
    /// Supported versions of a list.
    pub const CNI_VERSIONS: &str = "cniVersions";
    /// The network's name.
    pub const NAME: &str = "name";
    /// The plugin's name.
    pub const TYPE: &str = "type";
    /// Config of the IPAM plugin.
    pub const IPAM: &str = "ipam";
    /// The plugins of a list.
    pub const PLUGINS: &str = "plugins";
    /// Capabilities that a plugin declares.
    pub const CAPABILITIES: &str = "capabilities";
    /// Capability arguments from the runtime.
    pub const RUNTIME_CONFIG: &str = "runtimeConfig";
    /// Result of the previous plugin.
    pub const PREV_RESULT: &str = "prevResult";
    /// GC: the attachments in use.
    pub const VALID_ATTACHMENTS: &str = "cni.dev/valid-attachments";
    /// The same key in one release of the CNI library.
    pub const ATTACHMENTS: &str = "cni.dev/attachments";
    /// Disables CHECK.
    pub const DISABLE_CHECK: &str = "disableCheck";
    /// Disables GC.
    pub const DISABLE_GC: &str = "disableGC";
    /// Disables plugins from the directory beside the file.
    pub const LOAD_ONLY_INLINED: &str = "loadOnlyInlinedPlugins";
}
