//! Resolves the networks of a pod, in order (multus.md §4).
//!
//! ```text
//! clusterNetwork, or delegates[0]      ── replaced by annotation default-network
//! + defaultNetworks, or delegates[1..]
//! + networks annotation, in its order
//! + auxiliary chain
//! ```

mod auxiliary;

use crate::cluster::{ClusterView, LookupError, Nad, Pod};
use crate::networks::delegate::{self, Config, Delegate};
use crate::networks::net_conf::MultusConfig;
use cni::config::{LoadError, NetworkList, files_with_extension, find_by_name};
use cni::names::key;
use cni::selection::{NetworkSelection, SelectionError, parse_default_network, parse_networks};
use futures::future::join_all;
use serde_json::value::RawValue;
use std::path::Path;

/// A NAD that could not be read. Reported by an event about the pod.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot find a network-attachment-definition ({name}) in namespace ({namespace}): {cause}")]
pub(crate) struct MissingNad {
    pub namespace: String,
    pub name: String,
    /// The API server's error.
    pub cause: LookupError,
}

/// A network cannot be resolved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NetworkError {
    /// The NAD does not exist.
    #[error("getKubernetesDelegate: {0}")]
    Missing(#[from] MissingNad),
    /// The NAD's configuration is invalid.
    #[error("network {network}: {}{source}", spec_prefix(source))]
    Spec {
        network: String,
        source: delegate::Error,
    },
    /// The NAD has no configuration, and no usable file has its name.
    #[error("network {network}: GetCNIConfig: err in GetCNIConfigFromFile: {source}")]
    File { network: String, source: LoadError },
    /// The pod's attributes cannot be added to the configuration.
    #[error("network {network}: {source}")]
    Requests {
        network: String,
        source: delegate::Error,
    },
}

/// The upstream prefix of errors that upstream raises while it reads the text.
fn spec_prefix(error: &delegate::Error) -> &'static str {
    match error {
        delegate::Error::Parse(_) => "GetCNIConfig: err in getCNIConfigFromSpec: ",
        delegate::Error::NoPlugin | delegate::Error::NoType | delegate::Error::ProcessSettings(_) => "",
    }
}

/// The networks of a pod cannot be resolved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The cluster network, or a default network.
    #[error("failed to get clusterNetwork/defaultNetworks: {0}")]
    Default(#[source] DefaultError),
    #[error(
        "error loading k8s delegates k8s args: TryLoadPodDelegates: error in getting k8s network for pod: {0}"
    )]
    Networks(#[source] PodError),
    /// The default-network annotation.
    #[error(
        "error loading k8s delegates k8s args: TryLoadPodDelegates: error in loading K8s cluster default network from pod annotation: {0}"
    )]
    DefaultNetwork(#[source] PodError),
    /// The auxiliary chain has no directory beside the cluster network.
    #[error(transparent)]
    Auxiliary(#[from] auxiliary::NoPath),
}

impl Error {
    /// The missing NAD, if that is the cause.
    pub(crate) fn missing(&self) -> Option<&MissingNad> {
        match self {
            Self::Networks(PodError::Network(NetworkError::Missing(missing)))
            | Self::DefaultNetwork(PodError::Network(NetworkError::Missing(missing))) => Some(missing),
            _ => None,
        }
    }
}

/// The networks that every pod gets cannot be resolved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DefaultError {
    #[error("GetDefaultNetworks: failed to get clusterNetwork {name} in namespace {namespace}: {cause}")]
    Cluster {
        name: String,
        /// Namespace of its NAD.
        namespace: String,
        cause: String,
    },
    /// One of the default networks.
    #[error("GetDefaultNetworks: {0}")]
    Network(String),
    /// One of the inline configurations.
    #[error("LoadNetConf: failed to load delegate {index} config: {source}")]
    Inline {
        /// Index in `delegates`.
        index: usize,
        source: delegate::Error,
    },
}

/// The networks that a pod requests cannot be resolved.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PodError {
    /// The annotation is malformed.
    #[error("{0}")]
    Selection(#[from] SelectionError),
    /// Namespace isolation forbids the NAD.
    #[error(
        "GetNetworkDelegates: namespace isolation enabled, annotation violates permission, pod is in namespace {pod} but refers to target namespace {target}"
    )]
    Isolation {
        /// Namespace of the pod.
        pod: String,
        /// Namespace of the NAD.
        target: String,
    },
    /// One of the networks.
    #[error("{0}")]
    Network(#[from] NetworkError),
}

/// Resolves the networks of one call.
#[derive(Debug)]
pub(crate) struct Resolver<'a, C> {
    /// Source of NADs.
    pub cluster: &'a C,
    /// The call's configuration.
    pub config: &'a MultusConfig,
}

impl<C: ClusterView> Resolver<'_, C> {
    /// All networks of a pod, the master first.
    pub(crate) async fn networks_of(&self, pod: &Pod) -> Result<Vec<Delegate>, Error> {
        let mut networks = self
            .defaults(Some(&pod.namespace))
            .await
            .map_err(Error::Default)?;
        if let Some(annotation) = &pod.networks {
            networks.append(&mut self.selected(pod, annotation).await.map_err(Error::Networks)?);
        }
        if let Some(annotation) = &pod.default_network {
            let replacement = self
                .default_network(&pod.namespace, annotation)
                .await
                .map_err(Error::DefaultNetwork)?;
            match networks.first_mut() {
                Some(master) => *master = replacement,
                None => networks.push(replacement),
            }
        }
        networks.extend(auxiliary::chain(self.config)?);
        Ok(networks)
    }

    /// The networks that every pod of a namespace gets; without a namespace only the master.
    pub(crate) async fn defaults(&self, namespace: Option<&str>) -> Result<Vec<Delegate>, DefaultError> {
        let MultusConfig {
            cluster_network,
            default_networks,
            delegates,
            system_namespaces,
            multus_namespace,
            cni_version,
            force_cni_version,
            ..
        } = self.config;
        let with_secondaries =
            namespace.is_some_and(|namespace| !system_namespaces.iter().any(|system| system == namespace));
        let Some(cluster_network) = cluster_network else {
            let inline = |(index, text): (usize, &RawValue)| {
                Delegate::inline(text).map_err(|source| DefaultError::Inline { index, source })
            };
            let count = if with_secondaries { delegates.len() } else { 1 };
            let texts = delegates.iter().map(AsRef::as_ref).enumerate();
            return texts.take(count).map(inline).collect();
        };
        let failed = |cause: String| DefaultError::Cluster {
            name: cluster_network.clone(),
            namespace: multus_namespace.clone(),
            cause,
        };
        let mut master = self.named(cluster_network).await.map_err(failed)?;
        if *force_cni_version && !cni_version.is_empty() && cluster_network.contains('/') {
            let forced = master.config.set(key::CNI_VERSION, cni_version);
            forced.map_err(|error| failed(error.to_string()))?;
        }
        let mut networks = vec![master];
        if with_secondaries {
            for name in default_networks {
                networks.push(self.named(name).await.map_err(DefaultError::Network)?);
            }
        }
        Ok(networks)
    }

    async fn selected(&self, pod: &Pod, annotation: &str) -> Result<Vec<Delegate>, PodError> {
        let selections = parse_networks(annotation, &pod.namespace)?;
        let found = selections
            .iter()
            .map(|selection| self.permitted(&pod.namespace, selection));
        // Concurrently, because cache misses cause live reads. Returns the first error in list order.
        join_all(found).await.into_iter().collect()
    }

    /// A network that a pod of this namespace requests, subject to isolation.
    pub(crate) async fn permitted(
        &self,
        pod: &str,
        selection: &NetworkSelection,
    ) -> Result<Delegate, PodError> {
        let target = &selection.namespace;
        if !self.config.permits(pod, target) {
            return Err(PodError::Isolation {
                pod: pod.to_owned(),
                target: target.clone(),
            });
        }
        Ok(self.network(selection).await?)
    }

    /// The network that a pod of this namespace requests instead of the cluster network. Networks of multus' own
    /// namespace are exempt from isolation, because they exist for this purpose.
    async fn default_network(&self, pod: &str, annotation: &str) -> Result<Delegate, PodError> {
        let own = &self.config.multus_namespace;
        let selection = parse_default_network(annotation, own)?;
        if selection.namespace == *own {
            return Ok(self.network(&selection).await?);
        }
        self.permitted(pod, &selection).await
    }

    /// A network with its requested attributes, without isolation.
    pub(crate) async fn network(&self, selection: &NetworkSelection) -> Result<Delegate, NetworkError> {
        let mut delegate = self.nad(&selection.namespace, &selection.name).await?;
        delegate.ask(selection).map_err(|source| NetworkError::Requests {
            network: delegate.display_name.clone(),
            source,
        })?;
        Ok(delegate)
    }

    async fn nad(&self, namespace: &str, name: &str) -> Result<Delegate, NetworkError> {
        let Nad {
            config,
            resource_name,
        } = self
            .cluster
            .nad(namespace, name)
            .await
            .map_err(|cause| MissingNad {
                namespace: namespace.to_owned(),
                name: name.to_owned(),
                cause,
            })?;
        let network = format!("{namespace}/{name}");
        let parsed = if config.is_empty() {
            let file = find_by_name(&self.config.conf_dir, name).map_err(|source| NetworkError::File {
                network: network.clone(),
                source,
            })?;
            Config::from_file(&file)
        } else {
            Config::parse_named(config.as_bytes(), name)
        };
        let config = parsed.map_err(|source| NetworkError::Spec {
            network: network.clone(),
            source,
        })?;
        let mut delegate = Delegate::new(network, config);
        delegate.resource_name = resource_name.map(|name| name.to_string());
        Ok(delegate)
    }

    /// A network of multus' own configuration: the name of a NAD or of a configuration on disk, or a path.
    async fn named(&self, name: &str) -> Result<Delegate, String> {
        if name.contains('/') {
            return from_path(Path::new(name));
        }
        match self.nad(&self.config.multus_namespace, name).await {
            Ok(delegate) => Ok(delegate),
            Err(nad_error) => match find_by_name(&self.config.conf_dir, name) {
                Ok(file) => from_network(&file),
                Err(file_error) => Err(format!(
                    "getNetDelegate: cannot find network: {name}: {nad_error}; {file_error}"
                )),
            },
        }
    }
}

fn from_path(path: &Path) -> Result<Delegate, String> {
    if path.is_dir() {
        let files =
            |extensions: &[&str]| files_with_extension(path, extensions).map_err(|error| error.to_string());
        if files(&["conf", "conflist"])?.is_empty() {
            return Err(format!("No networks found in {}", path.display()));
        }
        let networks = files(&["conf", "json", "conflist"])?;
        let first = networks.iter().find_map(|file| NetworkList::load(file).ok());
        return from_network(&first.ok_or_else(|| format!("no valid networks found in {}", path.display()))?);
    }
    match NetworkList::load(path) {
        Ok(network) => from_network(&network),
        Err(LoadError::NoType) => Err(format!(
            "error loading CNI config file {}: no 'type'; perhaps this is supposed to be a .conflist?",
            path.display()
        )),
        Err(error) => Err(format!(
            "getNetDelegate: cannot find network: {}: {error}",
            path.display()
        )),
    }
}

fn from_network(network: &NetworkList) -> Result<Delegate, String> {
    let config = Config::from_file(network).map_err(|error| error.to_string())?;
    Ok(Delegate::new(network.name.clone(), config))
}

#[cfg(test)]
mod tests;
