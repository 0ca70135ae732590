//! Settings of the operator, from its environment (§1.1).

use crate::{facts::CniDirectories, names::env, ovn::ini::EGRESS_HEALTH_PORT};

/// Settings of the operator, from its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Version for annotations and statuses.
    pub version: String,
    /// Image of Weft.
    pub image: String,
    /// Image of kube-proxy.
    pub kube_proxy_image: Option<String>,
    /// Image of kube-rbac-proxy, which restricts access to metrics.
    pub kube_rbac_proxy_image: Option<String>,
    /// Image of the component that enforces network policies on additional networks.
    pub multi_network_policy_image: Option<String>,
    /// Image of the IPAM plugin whereabouts and its components.
    pub whereabouts_image: Option<String>,
    /// Image of the pods of egress routers. `None` for the image of Weft.
    pub egress_router_image: Option<String>,
    /// Image of FRR and of the programs that configure it.
    pub frr_image: Option<String>,
    /// Image of the networking plugin of OpenShift's web console.
    pub console_plugin_image: Option<String>,
    /// Image of the program that tells Prometheus which networks the interfaces of pods are in.
    pub network_metrics_image: Option<String>,
    /// Image with kubectl, for programs that are scripts.
    pub cli_image: Option<String>,
    /// Image of the controller that assigns private addresses of the cloud to nodes.
    pub cloud_network_image: Option<String>,
    /// Image pull policy.
    pub pull_policy: String,
    /// Name or address of the API server, and its port, for programs on the nodes.
    pub api_server: Option<(String, String)>,
    /// Directory of CNI configurations on the nodes.
    pub cni_conf_dir: String,
    /// Directory of CNI plugins on the nodes.
    pub cni_bin_dir: String,
    /// Namespace of the operator.
    pub namespace: String,
    /// OVN-Kubernetes.
    pub ovn: Ovn,
    /// The control plane in another cluster. `None` for a cluster with its own control plane.
    pub hosted: Option<Hosted>,
}

/// Settings for a cluster whose control plane another cluster hosts (§18.3).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hosted {
    /// Name of the `HostedControlPlane`.
    pub name: String,
    /// Its namespace in the management cluster.
    pub namespace: String,
    /// URL of the hosted cluster's API server for pods in this namespace.
    pub api_server: String,
    /// Image of OVN-Kubernetes for the management cluster.
    pub ovn_image: Option<String>,
    /// Image of the program that gets tokens of the hosted cluster.
    pub token_minter_image: Option<String>,
    /// Image of the proxy into the network of the hosted cluster.
    pub socks_proxy_image: Option<String>,
    /// Image with kubectl.
    pub cli_image: Option<String>,
    /// Audience of the tokens of the hosted cluster.
    pub token_audience: String,
    /// Image of the release, for annotations of pods.
    pub release_image: String,
    /// User of the pods. `None` if the management cluster chooses it.
    pub run_as_user: Option<i64>,
    /// `ConfigMap` with the certificate authorities of the management cluster's services, and its key.
    pub authorities: (String, String),
    /// True if the Prometheus of Red Hat's observability service monitors the management cluster.
    pub has_rhobs: bool,
    /// True if clients inside the hosted cluster reach its API server through the cluster's proxy.
    pub has_proxied_api_server: bool,
    /// The controller of private addresses of the cloud.
    pub cloud: HostedCloud,
}

/// Settings of the controller of private addresses of the cloud, in the management cluster (§18.5).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostedCloud {
    /// Variables of the management cluster's proxy.
    pub proxy: Vec<(&'static str, String)>,
    /// Credentials of a managed cluster of Azure.
    pub azure: Option<AzureCredentials>,
    /// File with the credentials of GCP, in the Secret of the controller.
    pub gcp_file: Option<String>,
}

/// Credentials that a driver of Azure mounts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AzureCredentials {
    /// The `SecretProviderClass`.
    pub class: String,
    /// Name of the file.
    pub file: String,
}

impl HostedCloud {
    fn read(value: impl Fn(&str) -> Option<String>) -> Self {
        let proxy = [
            (env::MANAGEMENT_HTTP_PROXY, "HTTP_PROXY"),
            (env::MANAGEMENT_HTTPS_PROXY, "HTTPS_PROXY"),
            (env::MANAGEMENT_NO_PROXY, "NO_PROXY"),
        ];
        let proxy = proxy.map(|(variable, name)| Some((name, value(variable)?)));
        Self {
            proxy: proxy.into_iter().flatten().collect(),
            azure: value(env::AZURE_SECRET_CLASS).map(|class| AzureCredentials {
                class,
                file: value(env::AZURE_CREDENTIALS).unwrap_or_default(),
            }),
            gcp_file: value(env::GCP_CREDENTIALS),
        }
    }
}

/// `ConfigMap` in which OpenShift publishes the certificate authorities of its services.
pub const SERVICE_CA: &str = "openshift-service-ca.crt";

impl Hosted {
    fn read(value: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, Missing> {
        if value(env::HYPERSHIFT).as_deref() != Some("true") {
            return Ok(None);
        }
        let needed = |variable, meaning| value(variable).ok_or(Missing { variable, meaning });
        let or = |name: &str, default: &str| value(name).unwrap_or_else(|| default.to_owned());
        Ok(Some(Self {
            name: needed(env::HOSTED_NAME, "the hosted cluster")?,
            namespace: needed(env::HOSTED_NAMESPACE, "the namespace of the hosted control plane")?,
            api_server: String::new(),
            ovn_image: value(env::OVN_CONTROL_PLANE_IMAGE),
            token_minter_image: value(env::TOKEN_MINTER_IMAGE),
            socks_proxy_image: value(env::SOCKS_PROXY_IMAGE),
            cli_image: value(env::CLI_CONTROL_PLANE_IMAGE).or_else(|| value(env::CLI_IMAGE)),
            token_audience: value(env::TOKEN_AUDIENCE).unwrap_or_default(),
            release_image: value(env::RELEASE_IMAGE).unwrap_or_default(),
            run_as_user: value(env::RUN_AS_USER).and_then(|user| user.parse().ok()),
            authorities: (
                or(env::CA_CONFIG_MAP, SERVICE_CA),
                or(env::CA_CONFIG_MAP_KEY, "service-ca.crt"),
            ),
            has_rhobs: value(env::RHOBS_MONITORING).as_deref() == Some("1"),
            has_proxied_api_server: value(env::PROXIED_API_SERVER).as_deref() == Some("true"),
            cloud: HostedCloud::read(&value),
        }))
    }
}

/// Settings of OVN-Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ovn {
    /// Image of OVN-Kubernetes.
    pub image: Option<String>,
    /// Interval of northd's probes of its connections, in milliseconds. `None` for northd's own default.
    pub northd_probe_interval: Option<String>,
    /// Interval of probes of connections to southbound databases, in milliseconds.
    pub controller_inactivity_probe: String,
    /// Interval of probes of connections to northbound databases, in milliseconds.
    pub nb_inactivity_probe: String,
    /// Port on which nodes answer health checks for egress addresses.
    pub egress_health_port: u16,
}

impl Default for Ovn {
    fn default() -> Self {
        Self {
            image: None,
            northd_probe_interval: None,
            controller_inactivity_probe: "180000".to_owned(),
            nb_inactivity_probe: "60000".to_owned(),
            egress_health_port: EGRESS_HEALTH_PORT,
        }
    }
}

impl Ovn {
    fn read(value: impl Fn(&str) -> Option<String>) -> Self {
        let default = Self::default();
        let number = |name: &str| value(name).filter(|text| text.parse::<u32>().is_ok());
        let port = value(env::OVN_EGRESS_PORT).and_then(|text| text.parse().ok());
        Self {
            image: value(env::OVN_IMAGE),
            northd_probe_interval: number(env::OVN_NORTHD_PROBE),
            controller_inactivity_probe: number(env::OVN_CONTROLLER_PROBE)
                .unwrap_or(default.controller_inactivity_probe),
            nb_inactivity_probe: number(env::OVN_NB_PROBE).unwrap_or(default.nb_inactivity_probe),
            egress_health_port: port.unwrap_or(default.egress_health_port),
        }
    }
}

/// A variable is missing in the environment.
#[derive(Debug, thiserror::Error)]
#[error("environment variable {variable} is not set: it has to name {meaning}")]
pub struct Missing {
    variable: &'static str,
    meaning: &'static str,
}

impl Settings {
    /// True if some pods need the cluster-wide proxy: those of a hosted cluster, or the cloud's controller.
    pub fn uses_proxy(&self) -> bool {
        self.hosted.is_some() || self.cloud_network_image.is_some()
    }

    /// Reads the environment.
    ///
    /// # Errors
    /// If the environment lacks the image of Weft, or the name or namespace of a hosted control plane.
    pub fn read(namespace: &str, variable: impl Fn(&str) -> Option<String>) -> Result<Self, Missing> {
        let value = |name: &str| variable(name).filter(|value| !value.is_empty());
        let port = value(env::API_PORT).unwrap_or_else(|| "443".to_owned());
        Ok(Self {
            version: value(env::VERSION).unwrap_or_else(|| env!("CARGO_PKG_VERSION").to_owned()),
            image: value(env::OWN_IMAGE)
                .or_else(|| value(env::CHECK_SOURCE_IMAGE))
                .ok_or(Missing {
                    variable: env::OWN_IMAGE,
                    meaning: "the image of this operator",
                })?,
            kube_proxy_image: value(env::KUBE_PROXY_IMAGE),
            kube_rbac_proxy_image: value(env::KUBE_RBAC_PROXY_IMAGE),
            multi_network_policy_image: value(env::MULTI_NETWORK_POLICY_IMAGE),
            whereabouts_image: value(env::WHEREABOUTS_IMAGE),
            egress_router_image: value(env::EGRESS_ROUTER_IMAGE),
            frr_image: value(env::FRR_IMAGE),
            console_plugin_image: value(env::CONSOLE_PLUGIN_IMAGE),
            network_metrics_image: value(env::NETWORK_METRICS_IMAGE),
            cli_image: value(env::CLI_IMAGE),
            cloud_network_image: value(env::CLOUD_NETWORK_IMAGE),
            pull_policy: value(env::PULL_POLICY).unwrap_or_else(|| "IfNotPresent".to_owned()),
            api_server: value(env::API_HOST).map(|host| (host, port)),
            cni_conf_dir: value(env::CNI_CONF_DIR).unwrap_or_else(|| CniDirectories::default().conf),
            cni_bin_dir: value(env::CNI_BIN_DIR).unwrap_or_else(|| CniDirectories::default().bin),
            namespace: namespace.to_owned(),
            ovn: Ovn::read(value),
            hosted: Hosted::read(value)?,
        })
    }
}
