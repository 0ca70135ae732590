//! Texts that the specification fixes.

use std::fmt::Display;

use crate::names;

/// A list of errors, in the format `[one two]`.
fn list<E: Display>(errors: &[E]) -> String {
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    format!("[{}]", errors.join(" "))
}

/// A text of several lines as one line of at most `longest` bytes.
fn one_line<'a>(lines: impl Iterator<Item = &'a str>, longest: usize) -> String {
    let lines: Vec<&str> = lines.map(str::trim).filter(|line| !line.is_empty()).collect();
    let line = lines.join(" ");
    if line.len() <= longest {
        return line;
    }
    let cut = line.floor_char_boundary(longest);
    format!("{}…", line.split_at(cut).0)
}

/// The cluster configuration is invalid (§2.2).
pub fn invalid_cluster_config(error: &str) -> String {
    format!(
        "The cluster configuration is invalid ({error}). Use 'oc edit network.config.openshift.io cluster' to fix."
    )
}

/// The operator configuration is invalid (§4).
pub fn invalid_operator_config(errors: &[String]) -> String {
    format!(
        "The operator configuration is invalid (invalid configuration: {}). Use 'oc edit network.operator.openshift.io \
         cluster' to fix.",
        list(errors)
    )
}

/// The change from the applied configuration is unsafe (§5).
pub fn unsafe_change(errors: &[String]) -> String {
    format!(
        "Not applying unsafe configuration change: invalid configuration: {}. Use 'oc edit \
         network.operator.openshift.io cluster' to undo the change.",
        list(errors)
    )
}

/// Additional networks are invalid (§8.1).
pub fn invalid_additional_networks(errors: &[String]) -> String {
    format!("invalid Additional Network Configuration: {}", list(errors))
}

/// The configuration of kube-proxy is invalid (§9.3).
pub fn invalid_kube_proxy(errors: &[String]) -> String {
    let errors = match errors {
        [one] => one.clone(),
        more => format!("[{}]", more.join(", ")),
    };
    format!("failed to generate kube-proxy configuration file: {errors}")
}

/// The operator configuration does not exist (§5).
pub const NO_OPERATOR_CONFIG: &str = "Operator configuration /cluster was deleted";
/// The operator configuration cannot be read (§10.1).
pub const OPERATOR_CONFIG_UNREADABLE: &str = "Failed to get networks.operator.openshift.io cluster";
/// No workload is available yet (§10.2).
pub const STARTING_UP: &str = "The network is starting up";
/// No workload has been observed yet (§11.2).
pub const DEPLOYING: &str = "Deploying";
/// OVN-Kubernetes is configured without its image.
pub const NO_OVN_IMAGE: &str = "OVN-Kubernetes is to be deployed, and its image is not known: set environment variable \
                                OVN_IMAGE of the operator";
/// `IPsec` is configured, but nodes get no certificate for it.
pub const IPSEC_WITHOUT_IDENTITY: &str = "ipsecConfig has mode Full, and ConfigMap network-node-identity disables the \
                                          identities of nodes: their requests for certificates will be refused";
/// The operator has no address of the API server.
pub const NO_API_SERVER: &str = "OVN-Kubernetes is to be deployed, and the address of the API server is not known: set \
                                 environment variable APISERVER_OVERRIDE_HOST of the operator";

/// Another cluster hosts the control plane, and the operator does not know that cluster (§18.3).
pub const EXTERNAL_CONTROL_PLANE: &str = "unable to render OVN in a cluster with an external control plane: set environment \
                                          variable HYPERSHIFT of the operator";

/// An image for the management cluster is not configured (§18.3).
pub fn no_hosted_image(variable: &str) -> String {
    format!(
        "another cluster hosts the control plane, and an image for its pods is not known: set environment variable \
         {variable} of the operator"
    )
}

/// The management cluster has no operator for a hosted cluster (§18.3).
pub fn no_hosted_operator(namespace: &str) -> String {
    format!(
        "the management cluster has no Deployment {namespace}/{} of a hosted cluster: the context of its kubeconfig has \
         to name the namespace of the HostedControlPlane",
        names::HOSTED_OPERATOR
    )
}

/// The management cluster lacks the hosted control plane (§18.3).
pub fn no_hosted_control_plane(name: &str) -> String {
    format!(
        "Internal error while reconciling platform networking resources: failed to retrieve HostedControlPlane {name}: not \
         found in the management cluster"
    )
}

/// An unsuccessful apply (§5).
pub fn could_not_apply(object: &str, error: &str) -> String {
    format!("Error while updating operator configuration: could not apply {object}: {error}")
}

/// Remedy for a missing namespace of an additional network (§5).
pub const NAMESPACE_HINT: &str = "Namespace error for networkattachment definition, consider possible solutions: (1) Edit \
                                  config files to include existing namespace (2) Create non-existent namespace (3) Delete \
                                  erroneous network-attachment-definition";

/// Network policies for additional networks are configured without the image of their component.
pub const NO_MULTI_NETWORK_POLICY: &str = "useMultiNetworkPolicy is set, and the image of the program for it is not known: \
                                           set environment variable MULTUS_NETWORKPOLICY_IMAGE of the operator";
/// A network has IPAM whereabouts, without the image of whereabouts.
pub const NO_WHEREABOUTS: &str = "an additional network has IPAM whereabouts, which another installer has to deploy, because \
                                  environment variable WHEREABOUTS_CNI_IMAGE of the operator is not set";
/// FRR is configured without its image.
pub const NO_FRR_IMAGE: &str = "FRR is to be deployed, and its image is not known: set environment variable FRR_K8S_IMAGE of \
                                the operator";
/// A provider of additional routing capabilities is unknown (§18.2).
pub fn unknown_routing_provider(provider: &str) -> String {
    format!("unknown routing capability provider: {provider}")
}
/// The API server serves plugins of the web console, and the image of ours is not configured.
pub const NO_CONSOLE_PLUGIN_IMAGE: &str = "the networking plugin of the web console is not deployed, because environment \
                                           variable NETWORKING_CONSOLE_PLUGIN_IMAGE of the operator is not set";
/// An image of network-metrics-daemon is not configured.
pub const NO_NETWORK_METRICS_IMAGE: &str = "network-metrics-daemon is not deployed, because environment variables \
                                            NETWORK_METRICS_DAEMON_IMAGE and KUBE_RBAC_PROXY_IMAGE of the operator are \
                                            not both set";
/// The image of iptables-alerter is not configured.
pub const NO_ALERTER_IMAGE: &str = "iptables-alerter is not deployed, because environment variable CLI_IMAGE of the operator \
                                    is not set";
/// The switch of iptables-alerter has an unknown value.
pub fn unknown_alerter_switch(value: &str) -> String {
    format!("Ignoring unexpected iptables-alerter-config value enabled={value:?}")
}
/// Dashboards cannot be applied (§16.1).
pub fn dashboards_not_applied(errors: &[String]) -> String {
    format!("failed to apply dashboard manifests: {}", errors.join("\n"))
}
/// Another client removes the plugin from the console as often as the operator adds it.
pub const CONSOLE_CONTESTED: &str = "(operator.openshift.io/v1, Kind=Console) /cluster: another client keeps removing \
                                     networking-console-plugin from spec.plugins";
/// The cluster is in a cloud, and the image of the controller of its private addresses is not configured.
pub const NO_CLOUD_NETWORK_IMAGE: &str = "the cloud network config controller is not deployed, so that EgressIPs get no \
                                          address in this cloud, because environment variable \
                                          CLOUD_NETWORK_CONFIG_CONTROLLER_IMAGE of the operator is not set";
/// A variable has to name a file without its directory.
pub fn no_file_name(variable: &str, text: &str) -> String {
    format!("invalid {variable} {text:?}: must be a filename")
}
/// kube-proxy is configured without its image.
pub const NO_KUBE_PROXY_IMAGE: &str = "kube-proxy is to be deployed, and its image is not known: set environment variable \
                                       KUBE_PROXY_IMAGE of the operator, or deployKubeProxy to false";

/// Nodes are DPUs, and the image of kube-proxy is not set.
pub const NO_KUBE_PROXY_ON_DPUS: &str = "DPUs need kube-proxy, and its image is not known: set environment \
                                         variable KUBE_PROXY_IMAGE of the operator";

/// Another installer runs kube-proxy (§19).
pub fn foreign_kube_proxy(daemon_set: &str) -> String {
    format!(
        "kube-proxy is not deployed, because DaemonSet {daemon_set} runs it already: set deployKubeProxy to false, or \
         remove that DaemonSet"
    )
}

/// A pool of machines has not added or removed a machine configuration yet (§11.2).
pub fn processing_pool(pool: &str, config: &str) -> String {
    format!("{pool} machine config pool is still processing {config} machine config")
}

/// A pool of machines with a machine configuration of the operator is degraded (§10.3).
pub fn degraded_pool(pool: &str) -> String {
    format!("{pool} machine config pool in degraded state")
}

/// A pod is in a crash loop (§11.2).
pub fn crash_loop(workload: &str, pod: &str) -> String {
    format!("{workload} rollout is not making progress - pod {pod} is in CrashLoopBackOff State")
}

/// Cause of a rollout without progress: a node cannot get an image (§19.1).
pub fn missing_image(image: &str, reason: &str) -> String {
    format!("image {image}: {reason}")
}

/// Texts about egress routers (§17.5).
pub mod egress_router {
    /// The router has no address.
    pub const NO_ADDRESS: &str = "router without addresses";
    /// The Deployment has no available pod.
    pub const NO_POD: &str = "Deployment egress-router-cni-deployment has no available pod";

    /// A router cannot be reconciled.
    pub fn not_reconciled(namespace: &str, name: &str, error: &str) -> String {
        format!("could not reconcile Egress Router {namespace}/{name}: {error}")
    }

    /// The spec does not match the definition.
    pub fn malformed(error: &str) -> String {
        format!("spec does not match the definition: {error}")
    }

    /// The router has an unknown mode.
    pub fn mode(mode: &str) -> String {
        format!("spec.mode \"{mode}\" is not Redirect")
    }

    /// A field is not an address with a prefix length.
    pub fn no_cidr(field: &str, text: &str) -> String {
        format!("spec.{field} \"{text}\" is not an IP address with a prefix length")
    }

    /// A field is not an address.
    pub fn no_address(field: &str, text: &str) -> String {
        if text.is_empty() {
            return format!("spec.{field} is missing");
        }
        format!("spec.{field} \"{text}\" is not an IP address")
    }

    /// A field has an address of the other family than the router.
    pub fn other_family(field: &str, text: &str, own: &str) -> String {
        format!("spec.{field} \"{text}\" is not of the same IP family as the address {own} of the router")
    }

    /// A field has the address of the router itself.
    pub fn own_address(field: &str, text: &str) -> String {
        format!("spec.{field} \"{text}\" is the address of the router")
    }

    /// A port is out of range.
    pub fn port(field: &str, port: i32) -> String {
        format!("spec.{field} {port} is not between 1 and 65535")
    }

    /// A rule has an unknown protocol.
    pub fn protocol(field: &str, protocol: &str) -> String {
        format!("spec.{field} \"{protocol}\" is not TCP, UDP or SCTP")
    }

    /// The interface has an unknown mode.
    pub fn macvlan_mode(mode: &str) -> String {
        format!("spec.networkInterface.macvlan.mode \"{mode}\" is not Bridge, Private, VEPA or Passthru")
    }

    /// The interface has an impossible master.
    pub fn master(master: &str) -> String {
        format!("spec.networkInterface.macvlan.master \"{master}\" is not the name of a link")
    }

    /// Another router of the namespace owns the objects.
    pub fn taken(owner: &str) -> String {
        format!(
            "EgressRouter {owner} of this namespace owns egress-router-cni-nad and egress-router-cni-deployment: a \
             namespace has one egress router at most"
        )
    }
}

/// Texts about the cluster-wide proxy (§15.1).
pub mod proxy {
    /// `noProxy` is set without a proxy.
    pub const NO_PROXY_SET: &str = "httpProxy or httpsProxy must be set when using proxy";
    /// The `ConfigMap` of the installer lacks its key.
    pub const NO_INSTALL_CONFIG: &str = "missing install-config in configmap";

    /// The URL of a proxy lacks an allowed scheme.
    pub fn wrong_scheme(field: &str, schemes: &str) -> String {
        format!("{field} must be a URL of scheme {schemes}")
    }

    /// An entry of `noProxy` is invalid.
    pub fn invalid_no_proxy(entry: &str) -> String {
        format!("invalid noProxy: {entry}")
    }

    /// The platform reports no address of the API server.
    pub fn no_internal_url(infrastructure: &str) -> String {
        format!("internal api server url missing from infrastructure config '{infrastructure}'")
    }

    /// The status of the network has no service addresses yet.
    pub fn no_services(network: &str) -> String {
        format!("serviceNetwork missing from network '{network}' status")
    }

    /// The status of the network has no pod addresses yet.
    pub fn no_pods(network: &str) -> String {
        format!("clusterNetwork missing from network `{network}` status")
    }
}

/// Texts about signing requests (§17.4).
pub mod signer {
    /// The requester is not a node.
    pub fn invalid_user(user: &str) -> String {
        format!("requester {user:?} is not a node of this cluster")
    }

    /// A request is approved.
    pub fn approved(request: &str) -> String {
        format!("Auto-approved CSR {request:?}")
    }
}

/// Texts about addresses of the API and of the ingress (§18.4).
pub mod infrastructure {
    /// Addresses of the API.
    pub const API: &str = "API";
    /// Addresses of the ingress.
    pub const INGRESS: &str = "Ingress";
    /// The spec lacks the networks of machines, and the status has some.
    pub const NETWORKS_REMOVED: &str = "removing machine networks is forbidden";

    /// The spec is not allowed.
    pub fn not_synchronised(error: &str) -> String {
        format!(
            "error while synchronizing spec and status of infrastructures.config.openshift.io/cluster: {error}"
        )
    }

    /// The spec could not be written.
    pub fn spec_not_written(error: &str) -> String {
        format!("error while updating infrastructures.config.openshift.io/cluster: {error}")
    }

    /// The status could not be written.
    pub fn status_not_written(error: &str) -> String {
        format!("error while updating status of infrastructures.config.openshift.io/cluster: {error}")
    }

    /// The networks of machines are not allowed.
    pub fn networks(error: &str) -> String {
        format!("error on syncing machine networks: {error}")
    }

    /// The addresses do not go together.
    pub fn addresses(error: &str) -> String {
        format!("error on validating VIPs: {error}")
    }

    /// Addresses do not go with the networks of machines.
    pub fn in_networks(kind: &str, error: &str) -> String {
        format!("error on validating {kind} VIPs and Machine Networks: {error}")
    }

    /// The status cannot take the addresses of the spec.
    pub fn synchronised(kind: &str, error: &str) -> String {
        format!("error on syncing {kind} VIPs: {error}")
    }

    /// The first network is another one.
    pub fn first_network(now: &str, requested: &str) -> String {
        format!("first machine network cannot be modified, have '{now}' and requested '{requested}'")
    }

    /// The first address is another one.
    pub fn first_address(now: &str, requested: &str) -> String {
        format!("first VIP cannot be modified, have '{now}' and requested '{requested}'")
    }

    /// More than two addresses.
    pub fn too_many(kind: &str, number: usize) -> String {
        format!("number of {kind} VIPs needs to be less or equal to 2, got {number}")
    }

    /// The lists have unequal lengths.
    pub fn unequal_numbers(api: usize, ingress: usize) -> String {
        format!("number of API VIPs ({api}) does not match number of Ingress VIPs ({ingress})")
    }

    /// API and ingress have the same address.
    pub fn equal(api: &str, ingress: &str) -> String {
        format!("VIPs cannot be equal, got '{api}' for API and '{ingress}' for Ingress")
    }

    /// Two addresses of one family.
    pub fn one_family(kind: &str) -> String {
        format!("with more than 1 {kind} VIP at least one from each IP family is required, err: <nil>")
    }

    /// An address outside of all networks.
    pub fn in_no_network(address: &str) -> String {
        format!("VIP '{address}' cannot be found in any machine network")
    }

    /// A text that is no address.
    pub fn no_address(text: &str) -> String {
        format!("VIP '{text}' is not an IP address")
    }
}

/// Texts about the installation of network observability (§18.6).
pub mod observability {
    use crate::names;

    /// The installation is complete.
    pub const COMPLETE: &str = "Network Observability has been deployed";
    /// The configuration requests no installation any more.
    pub const NOT_REQUESTED: &str = "the installation of Network Observability is not requested";
    /// The kind is defined, and nothing says by whom.
    pub const UNKNOWN_ORIGIN: &str = "FlowCollector CRD is present but could not identify how Network \
                                      Observability Operator was installed (neither OLMv1 \
                                      ClusterExtension nor OLMv0 ClusterServiceVersion found)";
    /// The API server does not serve the kind by which the operator installs.
    pub const NO_OLM: &str = "no matches for kind \"ClusterExtension\" in version \
                              \"olm.operatorframework.io/v1\": install OLM, or set \
                              spec.networkObservability.installationPolicy of \
                              network.config.openshift.io cluster to NoAction";
    /// The extension is being deleted.
    pub const DELETING: &str = "ClusterExtension netobserv-operator is being deleted";

    /// Maximum length of a text of OLM, in bytes.
    const LONGEST: usize = 1000;

    /// The policy is unknown.
    pub fn unknown_policy(policy: &str) -> String {
        format!(
            "spec.networkObservability.installationPolicy \"{policy}\" of network.config.openshift.io \
             cluster is not InstallAndEnable or NoAction"
        )
    }

    /// The state of the installation is unknown, or does not allow another step.
    pub fn not_checked(error: &str) -> String {
        format!("Failed to check Network Observability Operator status: {error}")
    }

    /// The operator of network observability cannot be installed.
    pub fn not_installed(error: &str) -> String {
        format!("Failed to install Network Observability Operator: {error}")
    }

    /// The request for network observability cannot be created.
    pub fn no_collector(error: &str) -> String {
        format!("Failed to create FlowCollector: {error}")
    }

    /// An object cannot be applied.
    pub fn not_applied(kind: &str, name: &str, error: &str) -> String {
        format!("failed to apply {kind} {name}: {error}")
    }

    /// Version 1 of OLM reports a failure. `progress` is what it is doing about that, and may be empty.
    pub fn extension_failed(reason: &str, message: &str, progress: &str) -> String {
        let cause = if progress.is_empty() {
            message.to_owned()
        } else {
            format!("{message}: {progress}")
        };
        let cause = super::one_line(cause.lines(), LONGEST);
        not_checked(&format!(
            "OLMv1 installation error: ClusterExtension installation failed: {reason} - {cause}"
        ))
    }

    /// Version 0 of OLM reports a failure.
    pub fn version_failed(reason: &str, message: &str) -> String {
        let message = super::one_line(message.lines(), LONGEST);
        not_checked(&format!(
            "OLMv0 installation error: ClusterServiceVersion installation failed: {reason} - {message}"
        ))
    }

    /// OLM has installed the operator, whose definition is missing.
    pub fn no_definition(olm: &str) -> String {
        not_checked(&format!(
            "network Observability Operator was deployed via {olm} but FlowCollector CRD is missing \
             (manually removed)"
        ))
    }

    /// The installation by version 1 of OLM is not complete. `progress` may be empty.
    pub fn extension_awaited(progress: &str) -> String {
        let waiting = format!("waiting for ClusterExtension {}", names::OBSERVABILITY);
        if progress.is_empty() {
            return waiting;
        }
        format!("{waiting}: {}", super::one_line(progress.lines(), LONGEST))
    }

    /// The installation by version 0 of OLM is not complete.
    pub fn version_awaited(namespace: &str, name: &str) -> String {
        format!("waiting for ClusterServiceVersion {namespace}/{name}")
    }

    /// The installation takes too long.
    pub fn overdue(awaited: &str) -> String {
        not_installed(&format!("not complete after 10 minutes: {awaited}"))
    }
}

/// Value of label `is_legacy_api` for a default network without `IPsec` (§16).
pub const IPSEC_NOT_SUPPORTED: &str = "N/A - ipsec not supported (non-OVN network)";

/// Help text of the metric of the `IPsec` state.
pub const IPSEC_HELP: &str = "A metric with a constant '1' value labeled by the IPsec mode and whether it is configured by the legacy API";

/// Help text of the metric of the conditions.
pub const CONDITION_HELP: &str = "Conditions of the cluster network operator: 1 if the status is True";

/// Texts about a migration of the MTU by node network policies (§6.2).
pub mod mtu_migration {
    /// A node has no default route.
    pub const NO_DEFAULT_ROUTE: &str = "no interface has a default route";
    /// The migration sets no MTU of nodes.
    pub const NO_MACHINE_MTU: &str = "spec.migration.nodePolicies needs spec.migration.mtu.machine.to";
    /// The cluster has no nodes.
    pub const NO_NODE: &str = "the cluster has no node that runs Linux";
    /// The API server does not serve the kinds of our nmstate.
    pub const NO_NMSTATE: &str = "spec.migration.nodePolicies needs the node network state of Weft: the API server does \
                                  not serve NodeNetworkState in version v1 of nmstate.io";
    /// The operator lacks the rights on policies.
    pub const NOT_ALLOWED: &str = "spec.migration.nodePolicies needs rights on node network policies: apply \
                                   deploy/cluster-network/mtu-migration.yaml";
    /// The cluster has machine configurations.
    pub const MACHINE_CONFIGS: &str = "spec.migration.nodePolicies is not supported beside MachineConfigs, which change \
                                       the MTU of the nodes themselves";
    /// OVN-Kubernetes does not use both MTUs yet.
    pub const AWAITS_NETWORK: &str = "waiting until all nodes of OVN-Kubernetes use both MTUs";

    /// Maximum number of lines of a condition.
    const MOST_LINES: usize = 10;
    /// Maximum length of a line of a condition, in bytes.
    const LONGEST_LINE: usize = 300;

    /// Texts about nodes as lines of a condition, whose size is bounded however many nodes fail.
    pub fn lines(texts: &[&str]) -> String {
        let mut lines: Vec<String> = texts.iter().take(MOST_LINES).map(|text| line(text)).collect();
        let more = texts.len().saturating_sub(MOST_LINES);
        if more > 0 {
            lines.push(format!("and {more} more"));
        }
        lines.join("\n")
    }

    /// A text in one line, without the log of nmstate: the cause of a failure is in the second line of its message.
    fn line(text: &str) -> String {
        let lines = text.lines();
        let lines = lines.take_while(|line| !line.trim().starts_with("log: "));
        super::one_line(lines, LONGEST_LINE)
    }

    /// The default network is not supported.
    pub fn unsupported_network(kind: &str) -> String {
        format!("spec.migration.nodePolicies is supported with OVNKubernetes and Weft, and not with {kind}")
    }

    /// The MTU of nodes is out of range.
    pub fn out_of_range(mtu: u32, least: u32, most: u32) -> String {
        format!("invalid Migration.MTU.Machine.To({mtu}), has to be in range: {least}-{most}")
    }

    /// The driver of an interface does not support the MTU.
    pub fn max_mtu(interface: &str, most: u32, mtu: u32) -> String {
        format!("interface {interface} supports an MTU of at most {most}, and {mtu} is requested")
    }

    /// The interface is not managed.
    pub fn not_managed(interface: &str, state: &str) -> String {
        format!("interface {interface} is not managed by NetworkManager: its reported state is \"{state}\"")
    }

    /// The operator does not change the MTU of interfaces of this type.
    pub fn unsupported_type(interface: &str, kind: &str) -> String {
        format!("interface {interface} has type {kind}, which is not supported")
    }

    /// The kernel would lower the MTU of an interface with that of its base.
    pub fn larger_above(interface: &str, base: &str, mtu: u32, target: u32) -> String {
        format!(
            "interface {interface} on {base} has MTU {mtu}, and the kernel would lower it: set at most {target} there first"
        )
    }

    /// The policy of a user sets another MTU.
    pub fn other_policy(policy: &str, mtu: u64, interface: &str) -> String {
        format!(
            "policy {policy} sets MTU {mtu} on {interface}: change or delete it first, or it undoes the migration"
        )
    }

    /// A report is too large.
    pub fn pruned(message: &str) -> String {
        format!("its NodeNetworkState is incomplete: {message}")
    }

    /// A report lacks an interface.
    pub fn not_reported(interface: &str) -> String {
        format!("its NodeNetworkState lacks interface {interface}")
    }

    /// A report lacks the MTU of an interface.
    pub fn no_mtu(interface: &str) -> String {
        format!("its NodeNetworkState lacks the MTU of interface {interface}")
    }

    /// A report lacks the base of a VLAN.
    pub fn no_base(interface: &str) -> String {
        format!("its NodeNetworkState lacks the base of interface {interface}")
    }

    /// A report shows no port of a bridge or bond.
    pub fn no_port(interface: &str) -> String {
        format!("its NodeNetworkState has no port of {interface} that leads out of the node")
    }

    /// A report does not show the result of a policy.
    pub fn not_shown(node: &str, interface: &str, mtu: u32) -> String {
        format!("node {node}: its NodeNetworkState still has MTU {mtu} of interface {interface}")
    }

    /// A policy failed.
    pub fn failed(node: &str, is_dry_run: bool, message: &str) -> String {
        let stage = if is_dry_run { "the dry run" } else { "the change" };
        format!("node {node}: {stage} failed: {message}")
    }

    /// A node cannot get the MTU.
    pub fn no_settings(node: &str, message: &str) -> String {
        format!("node {node}: {message}")
    }

    /// A policy cannot select a node.
    pub fn no_hostname(node: &str) -> String {
        format!("node {node}: label kubernetes.io/hostname is missing")
    }

    /// A policy would select two nodes.
    pub fn shared_hostname(node: &str, other: &str, hostname: &str) -> String {
        format!("nodes {node} and {other} have the same label kubernetes.io/hostname: {hostname}")
    }

    /// A policy has no usable record of the former MTU.
    pub fn former_unknown(node: &str, policy: &str) -> String {
        format!("node {node}: its former MTU is unknown: set it by hand, then delete policy {policy}")
    }

    /// nmstate does not run on a node.
    pub fn no_report(node: &str) -> String {
        format!("node {node}: no NodeNetworkState, the handler of nmstate does not run there")
    }

    /// A node is not ready.
    pub fn not_ready(node: &str) -> String {
        format!("node {node} is not ready")
    }

    /// A node has no result in time.
    pub fn overdue(node: &str, policy: &str) -> String {
        format!("node {node}: nmstate has reported no result of policy {policy} for 15 minutes")
    }

    /// A policy has no result yet.
    pub fn awaited(node: &str, is_dry_run: bool) -> String {
        let stage = if is_dry_run { "the dry run" } else { "the change" };
        format!("node {node}: {stage} has no result yet")
    }

    /// A stage of the migration, with its first delay.
    pub fn delayed(stage: &str, reason: &str) -> String {
        format!("{stage}; {reason}")
    }

    /// Dry runs are in progress.
    pub fn dry_run(passed: usize, all: usize) -> String {
        format!("dry run of the change of the MTU: {passed} of {all} nodes")
    }

    /// All dry runs succeeded, and the change is not requested.
    pub fn dry_run_passed(all: usize) -> String {
        format!("the dry run of the change of the MTU passed on {all} nodes: nodePolicies is DryRun")
    }

    /// The change is in progress.
    pub fn changed(done: usize, all: usize, mtu: u32) -> String {
        format!("{done} of {all} nodes have MTU {mtu}")
    }

    /// Nodes return to their former MTU.
    pub fn aborting(left: usize) -> String {
        format!("the migration of the MTU was aborted: {left} nodes have to return to their former MTU")
    }

    /// An object could not be written.
    pub fn not_written(message: &str) -> String {
        format!("the migration of the MTU cannot continue: {message}")
    }
}
