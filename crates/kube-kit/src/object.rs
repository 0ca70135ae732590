//! Kinds and identities of objects. The kinds are constants, so that no discovery request is needed.

use crate::path::{self, NotAName};
use crate::watch::Name;
use kube::core::DynamicObject;
use kube::{Api, Client};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fmt;

/// A kind of object, with its name in YAML and its path in the API.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Kind {
    /// API group, empty for the core group.
    pub group: &'static str,
    /// API version within the group.
    pub version: &'static str,
    /// Name as in `kind:`.
    pub kind: &'static str,
    /// Name as in URLs.
    pub plural: &'static str,
    /// Whether objects live in a namespace.
    pub namespaced: bool,
}

/// Declares the kinds as constants and collects them in [`ALL`].
macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $group:literal $version:literal $kind:literal $plural:literal $scope:ident;)*) => {
        $($(#[$doc])* pub const $name: Kind = Kind {
            group: $group, version: $version, kind: $kind, plural: $plural, namespaced: kinds!(@$scope),
        };)*
        /// Every kind that [`find`] knows.
        pub const ALL: &[Kind] = &[$($name),*];
    };
    (@cluster) => { false };
    (@namespaced) => { true };
}

kinds! {
    /// A namespace.
    NAMESPACE = "" "v1" "Namespace" "namespaces" cluster;
    /// A node.
    NODE = "" "v1" "Node" "nodes" cluster;
    /// A pod.
    POD = "" "v1" "Pod" "pods" namespaced;
    /// A service account.
    SERVICE_ACCOUNT = "" "v1" "ServiceAccount" "serviceaccounts" namespaced;
    /// A map of configuration files.
    CONFIG_MAP = "" "v1" "ConfigMap" "configmaps" namespaced;
    /// A secret.
    SECRET = "" "v1" "Secret" "secrets" namespaced;
    /// A service.
    SERVICE = "" "v1" "Service" "services" namespaced;
    /// The addresses behind a service.
    ENDPOINTS = "" "v1" "Endpoints" "endpoints" namespaced;
    /// A pod on each node.
    DAEMON_SET = "apps" "v1" "DaemonSet" "daemonsets" namespaced;
    /// Interchangeable pods.
    DEPLOYMENT = "apps" "v1" "Deployment" "deployments" namespaced;
    /// Pods with stable names.
    STATEFUL_SET = "apps" "v1" "StatefulSet" "statefulsets" namespaced;
    /// Permissions in the whole cluster.
    CLUSTER_ROLE = "rbac.authorization.k8s.io" "v1" "ClusterRole" "clusterroles" cluster;
    /// Accounts with these permissions.
    CLUSTER_ROLE_BINDING = "rbac.authorization.k8s.io" "v1" "ClusterRoleBinding" "clusterrolebindings" cluster;
    /// Permissions in a namespace.
    ROLE = "rbac.authorization.k8s.io" "v1" "Role" "roles" namespaced;
    /// Accounts with these permissions.
    ROLE_BINDING = "rbac.authorization.k8s.io" "v1" "RoleBinding" "rolebindings" namespaced;
    /// The definition of another kind.
    CUSTOM_RESOURCE_DEFINITION =
        "apiextensions.k8s.io" "v1" "CustomResourceDefinition" "customresourcedefinitions" cluster;
    /// The resources that a namespace may use at most.
    RESOURCE_QUOTA = "" "v1" "ResourceQuota" "resourcequotas" namespaced;
    /// A number of pods that run until they are done.
    JOB = "batch" "v1" "Job" "jobs" namespaced;
    /// The priority of requests to the API server.
    FLOW_SCHEMA = "flowcontrol.apiserver.k8s.io" "v1" "FlowSchema" "flowschemas" cluster;
    /// Allowed connections of pods.
    NETWORK_POLICY = "networking.k8s.io" "v1" "NetworkPolicy" "networkpolicies" namespaced;
    /// Limit of concurrent evictions.
    POD_DISRUPTION_BUDGET = "policy" "v1" "PodDisruptionBudget" "poddisruptionbudgets" namespaced;
    /// Mutating admission webhooks.
    MUTATING_WEBHOOK_CONFIGURATION = "admissionregistration.k8s.io" "v1" "MutatingWebhookConfiguration"
        "mutatingwebhookconfigurations" cluster;
    /// Validating admission webhooks.
    VALIDATING_WEBHOOK_CONFIGURATION = "admissionregistration.k8s.io" "v1" "ValidatingWebhookConfiguration"
        "validatingwebhookconfigurations" cluster;
    /// Validation rules of admission.
    VALIDATING_ADMISSION_POLICY = "admissionregistration.k8s.io" "v1" "ValidatingAdmissionPolicy"
        "validatingadmissionpolicies" cluster;
    /// Scope and actions of a validating admission policy.
    VALIDATING_ADMISSION_POLICY_BINDING = "admissionregistration.k8s.io" "v1" "ValidatingAdmissionPolicyBinding"
        "validatingadmissionpolicybindings" cluster;
    /// Targets of Prometheus behind a Service.
    SERVICE_MONITOR = "monitoring.coreos.com" "v1" "ServiceMonitor" "servicemonitors" namespaced;
    /// Targets of the Prometheus of Red Hat's observability service.
    RHOBS_SERVICE_MONITOR = "monitoring.rhobs" "v1" "ServiceMonitor" "servicemonitors" namespaced;
    /// Recording and alerting rules of Prometheus.
    PROMETHEUS_RULE = "monitoring.coreos.com" "v1" "PrometheusRule" "prometheusrules" namespaced;
    /// Allowed privileges of pods on OpenShift.
    SECURITY_CONTEXT_CONSTRAINTS =
        "security.openshift.io" "v1" "SecurityContextConstraints" "securitycontextconstraints" cluster;
    /// A certificate that cert-manager issues.
    CERTIFICATE = "cert-manager.io" "v1" "Certificate" "certificates" namespaced;
    /// Issuer of cert-manager's certificates.
    ISSUER = "cert-manager.io" "v1" "Issuer" "issuers" namespaced;
    /// A secondary network.
    NETWORK_ATTACHMENT_DEFINITION = "k8s.cni.cncf.io" "v1" "NetworkAttachmentDefinition"
        "network-attachment-definitions" namespaced;
    /// The addresses that a virtual machine keeps in a network.
    IPAM_CLAIM = "k8s.cni.cncf.io" "v1alpha1" "IPAMClaim" "ipamclaims" namespaced;
    /// Request for the node state components.
    NMSTATE = "nmstate.io" "v1" "NMState" "nmstates" cluster;
    /// Lock of a leader election.
    LEASE = "coordination.k8s.io" "v1" "Lease" "leases" namespaced;
    /// The configuration of the add-ons operator.
    NETWORK_ADDONS_CONFIG =
        "networkaddonsoperator.network.kubevirt.io" "v1" "NetworkAddonsConfig" "networkaddonsconfigs" cluster;
    /// The configuration of OpenShift's network operator.
    OPENSHIFT_NETWORK = "operator.openshift.io" "v1" "Network" "networks" cluster;
    /// The network that the installer chose for the cluster.
    CLUSTER_NETWORK = "config.openshift.io" "v1" "Network" "networks" cluster;
    /// State of an operator of the platform.
    CLUSTER_OPERATOR = "config.openshift.io" "v1" "ClusterOperator" "clusteroperators" cluster;
    /// Configuration of OpenShift's API servers, such as their TLS profile.
    OPENSHIFT_API_SERVER = "config.openshift.io" "v1" "APIServer" "apiservers" cluster;
    /// OpenShift's web console.
    OPENSHIFT_CONSOLE = "operator.openshift.io" "v1" "Console" "consoles" cluster;
    /// Plugin of OpenShift's web console.
    CONSOLE_PLUGIN = "console.openshift.io" "v1" "ConsolePlugin" "consoleplugins" cluster;
    /// The configuration of machines of OpenShift.
    MACHINE_CONFIG = "machineconfiguration.openshift.io" "v1" "MachineConfig" "machineconfigs" cluster;
    /// Machines of OpenShift with one configuration.
    MACHINE_CONFIG_POOL = "machineconfiguration.openshift.io" "v1" "MachineConfigPool" "machineconfigpools" cluster;
    /// The control plane of another cluster, in the cluster that hosts it.
    HOSTED_CONTROL_PLANE = "hypershift.openshift.io" "v1beta1" "HostedControlPlane" "hostedcontrolplanes" namespaced;
    /// A certificate that the cluster network operator keeps valid.
    OPERATOR_PKI = "network.operator.openshift.io" "v1" "OperatorPKI" "operatorpkis" namespaced;
    /// A pod that redirects connections to external systems.
    EGRESS_ROUTER = "network.operator.openshift.io" "v1" "EgressRouter" "egressrouters" namespaced;
    /// Features of OpenShift that are switched on.
    FEATURE_GATE = "config.openshift.io" "v1" "FeatureGate" "featuregates" cluster;
    /// A controller of ingresses of OpenShift.
    INGRESS_CONTROLLER = "operator.openshift.io" "v1" "IngressController" "ingresscontrollers" namespaced;
    /// The proxy of the whole cluster.
    PROXY = "config.openshift.io" "v1" "Proxy" "proxies" cluster;
    /// The version of OpenShift.
    CLUSTER_VERSION = "config.openshift.io" "v1" "ClusterVersion" "clusterversions" cluster;
    /// A check of the connection from a pod to an endpoint.
    CONNECTIVITY_CHECK = "controlplane.operator.openshift.io" "v1alpha1" "PodNetworkConnectivityCheck"
        "podnetworkconnectivitychecks" namespaced;
    /// Addresses behind a service.
    ENDPOINT_SLICE = "discovery.k8s.io" "v1" "EndpointSlice" "endpointslices" namespaced;
    /// A desired state of the networks of nodes.
    NODE_NETWORK_POLICY = "nmstate.io" "v1" "NodeNetworkConfigurationPolicy" "nodenetworkconfigurationpolicies" cluster;
    /// The result of a policy on a node.
    NODE_NETWORK_ENACTMENT = "nmstate.io" "v1beta1" "NodeNetworkConfigurationEnactment"
        "nodenetworkconfigurationenactments" cluster;
    /// The report of a node's network. Upstream does not serve this version.
    NODE_NETWORK_STATE = "nmstate.io" "v1" "NodeNetworkState" "nodenetworkstates" cluster;
    /// The facts about the infrastructure below OpenShift.
    OPENSHIFT_INFRASTRUCTURE = "config.openshift.io" "v1" "Infrastructure" "infrastructures" cluster;
    /// An operator that version 1 of OLM installs.
    CLUSTER_EXTENSION = "olm.operatorframework.io" "v1" "ClusterExtension" "clusterextensions" cluster;
    /// An operator that version 0 of OLM installs.
    CLUSTER_SERVICE_VERSION =
        "operators.coreos.com" "v1alpha1" "ClusterServiceVersion" "clusterserviceversions" namespaced;
    /// The request for network observability.
    FLOW_COLLECTOR = "flows.netobserv.io" "v1beta2" "FlowCollector" "flowcollectors" cluster;
}

/// The kind with this `apiVersion` and `kind`, if it is a known one. The version matters: an unknown version of a known
/// kind is unknown.
pub fn find(api_version: &str, kind: &str) -> Option<Kind> {
    ALL.iter()
        .find(|known| known.kind == kind && known.api_version() == api_version)
        .copied()
}

impl Kind {
    /// `group/version`, or `version` alone in the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// The kind in the form of the client library.
    pub fn api_resource(&self) -> kube::core::ApiResource {
        kube::core::ApiResource::from_gvk_with_plural(
            &kube::core::GroupVersionKind::gvk(self.group, self.version, self.kind),
            self.plural,
        )
    }

    /// Access to objects of this kind, in one namespace or in all. `namespace` is ignored for cluster-scoped kinds.
    pub fn api(&self, client: &Client, namespace: Option<&str>) -> Api<DynamicObject> {
        let resource = self.api_resource();
        match namespace {
            Some(namespace) if self.namespaced => Api::namespaced_with(client.clone(), namespace, &resource),
            _ => Api::all_with(client.clone(), &resource),
        }
    }

    /// URL path of its group and version.
    fn root(&self) -> String {
        let root = if self.group.is_empty() { "/api" } else { "/apis" };
        format!("{root}/{}", self.api_version())
    }

    /// URL path of one object of a namespace.
    ///
    /// # Errors
    /// If namespace or name is not a valid path segment.
    pub fn path_of(&self, name: &Name) -> Result<String, NotAName> {
        path::namespaced(&self.root(), self.plural, name)
    }

    /// URL path of the collection; `namespace` is ignored for cluster-scoped kinds, and `None` means all namespaces.
    pub fn path(&self, namespace: Option<&str>) -> String {
        let namespace = match namespace {
            Some(namespace) if self.namespaced => format!("/namespaces/{namespace}"),
            _ => String::new(),
        };
        format!("{}{namespace}/{}", self.root(), self.plural)
    }

    /// The object of this kind with this name. The namespace of a cluster-scoped object is dropped.
    pub fn object(&self, namespace: Option<&str>, name: &str) -> ObjectId {
        ObjectId {
            group: self.group.to_owned(),
            version: self.version.to_owned(),
            kind: self.kind.to_owned(),
            namespace: namespace
                .filter(|namespace| self.namespaced && !namespace.is_empty())
                .map(str::to_owned),
            name: name.to_owned(),
        }
    }
}

/// Identity of an object, which can be stored. Printed as `(<group>/<version>, Kind=<Kind>) <ns>/<name>`, the form in
/// conditions (operator.md §4).
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct ObjectId {
    /// API group, empty for the core group.
    #[serde(default)]
    pub group: String,
    /// API version.
    pub version: String,
    /// Kind as in YAML.
    pub kind: String,
    /// Namespace, `None` for cluster-scoped objects.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// Name.
    pub name: String,
}

impl ObjectId {
    /// Reads the identity from an object as JSON; absent parts become empty.
    pub fn of(object: &Value) -> Self {
        let text = |pointer: &str| {
            object
                .pointer(pointer)
                .and_then(Value::as_str)
                .unwrap_or_default()
        };
        let (group, version) = split(text("/apiVersion"));
        Self {
            group: group.to_owned(),
            version: version.to_owned(),
            kind: text("/kind").to_owned(),
            namespace: Some(text("/metadata/namespace"))
                .filter(|ns| !ns.is_empty())
                .map(str::to_owned),
            name: text("/metadata/name").to_owned(),
        }
    }

    /// Whether both identify the same object, in any version.
    pub fn same(&self, other: &Self) -> bool {
        self.kind == other.kind
            && self.name == other.name
            && self.namespace == other.namespace
            && self.group == other.group
    }

    /// `group/version`, or `version` alone in the core group.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// The kind, if it is a known one.
    pub fn known_kind(&self) -> Option<Kind> {
        find(&self.api_version(), &self.kind)
    }

    /// Whether the object configures admission webhooks. Those are deleted first, because a webhook without its server
    /// blocks all users.
    pub(crate) fn is_webhook_configuration(&self) -> bool {
        self.kind == MUTATING_WEBHOOK_CONFIGURATION.kind || self.kind == VALIDATING_WEBHOOK_CONFIGURATION.kind
    }
}

/// Splits `apiVersion` into group and version.
fn split(api_version: &str) -> (&str, &str) {
    api_version.split_once('/').unwrap_or(("", api_version))
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let namespace = self.namespace.as_deref().unwrap_or_default();
        write!(
            f,
            "({}/{}, Kind={}) {namespace}/{}",
            self.group, self.version, self.kind, self.name
        )
    }
}

/// An owner reference, an entry of `metadata.ownerReferences`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owner {
    /// `group/version` of the owner.
    pub api_version: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its uid: a recreated owner with the same name is another owner.
    pub uid: String,
}

impl Owner {
    /// The controller reference: `controller` and `blockOwnerDeletion` true (operator.md §8.3).
    pub fn reference(&self) -> Value {
        serde_json::json!({
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": true,
            "blockOwnerDeletion": true,
        })
    }
}

/// Whether a text is a valid value of a label: at most 63 letters, digits, `-`, `_` and `.`, beginning and ending with a
/// letter or digit. Without the empty text, these are also the names of extended resources after their domain.
pub fn is_label_value(text: &str) -> bool {
    const LONGEST: usize = 63;
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let bytes = text.as_bytes();
    let ends = [bytes.first(), bytes.last()];
    bytes.len() <= LONGEST
        && bytes.iter().copied().all(inner)
        && ends.into_iter().flatten().all(u8::is_ascii_alphanumeric)
}

/// Whether one of the object's owners is of this kind.
pub fn owned_by(object: &Value, owner_kind: &str) -> bool {
    object
        .pointer("/metadata/ownerReferences")
        .and_then(Value::as_array)
        .is_some_and(|owners| {
            owners
                .iter()
                .any(|owner| owner.get("kind").and_then(Value::as_str) == Some(owner_kind))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn object_id_has_text_of_conditions() {
        let daemon_set = json!({"apiVersion": "apps/v1", "kind": "DaemonSet",
            "metadata": {"name": "multus", "namespace": "addons"}});
        assert_eq!(
            ObjectId::of(&daemon_set).to_string(),
            "(apps/v1, Kind=DaemonSet) addons/multus"
        );
        assert_eq!(
            NAMESPACE.object(None, "addons").to_string(),
            "(/v1, Kind=Namespace) /addons"
        );
    }

    #[test]
    fn is_label_value_accepts_what_the_api_server_accepts() {
        for text in ["", "a", "eth0", "bond0.7", "a-b_c", &"a".repeat(63)] {
            assert!(is_label_value(text), "{text}");
        }
        for text in ["../a", "a/b", "a b", "-a", "a.", "eth0:1", "ä", &"a".repeat(64)] {
            assert!(!is_label_value(text), "{text}");
        }
    }

    #[test]
    fn find_returns_every_kind_by_api_version_and_kind() {
        for kind in ALL {
            assert_eq!(find(&kind.api_version(), kind.kind), Some(*kind));
        }
        assert_eq!(find("apps/v1beta1", "DaemonSet"), None);
    }

    #[test]
    fn paths_follow_scope_of_kind() {
        assert_eq!(CONFIG_MAP.path(Some("a")), "/api/v1/namespaces/a/configmaps");
        assert_eq!(CONFIG_MAP.path(None), "/api/v1/configmaps");
        assert_eq!(
            DAEMON_SET.path(Some("a")),
            "/apis/apps/v1/namespaces/a/daemonsets"
        );
        assert_eq!(
            CLUSTER_ROLE.path(Some("a")),
            "/apis/rbac.authorization.k8s.io/v1/clusterroles"
        );
        assert_eq!(CLUSTER_ROLE.object(Some("a"), "x").namespace, None);
    }
}
