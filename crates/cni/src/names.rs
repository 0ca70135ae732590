//! Literals of the protocol and of the annotations.

/// Pod annotation: the secondary networks that a pod asks for.
pub const NETWORKS_ANNOTATION: &str = "k8s.v1.cni.cncf.io/networks";
/// Pod annotation: what a pod got.
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
/// Where plugins are, `:`-separated.
pub const CNI_PATH: &str = "CNI_PATH";
/// Turns off the test that the sandbox is not the plugin's own namespace.
pub const CNI_NETNS_OVERRIDE: &str = "CNI_NETNS_OVERRIDE";

/// The node's defaults for bridge configs: a file beside the plugins, so that it needs no other folder of the host.
pub const BRIDGE_DEFAULTS: &str = "weft-bridge.json";

/// Keys of network configs.
pub mod key {
    /// Version of the config.
    pub const CNI_VERSION: &str = "cniVersion";
    /// Versions that a list may be used with.
    pub const CNI_VERSIONS: &str = "cniVersions";
    /// The network's name.
    pub const NAME: &str = "name";
    /// The plugin's name.
    pub const TYPE: &str = "type";
    /// Who gives addresses.
    pub const IPAM: &str = "ipam";
    /// The plugins of a list.
    pub const PLUGINS: &str = "plugins";
    /// What the runtime may hand to a plugin.
    pub const CAPABILITIES: &str = "capabilities";
    /// What the runtime hands to a plugin.
    pub const RUNTIME_CONFIG: &str = "runtimeConfig";
    /// The result of the plugin before.
    pub const PREV_RESULT: &str = "prevResult";
    /// GC: what is still in use.
    pub const VALID_ATTACHMENTS: &str = "cni.dev/valid-attachments";
    /// The same under the name that one release of the CNI library used.
    pub const ATTACHMENTS: &str = "cni.dev/attachments";
    /// CHECK is not wanted.
    pub const DISABLE_CHECK: &str = "disableCheck";
    /// GC is not wanted.
    pub const DISABLE_GC: &str = "disableGC";
    /// No plugins from a folder beside the file.
    pub const LOAD_ONLY_INLINED: &str = "loadOnlyInlinedPlugins";
}
