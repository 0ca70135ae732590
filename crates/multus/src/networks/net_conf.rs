//! Multus' own configuration, overlaid with the daemon's keys (multus.md §3, §7.3).

use crate::metrics::Metrics;
use crate::names;
use crate::networks::device_info::DeviceInfo;
use cni::args::CniArgs;
use cni::json::{self, Object};
use cni::names::key;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::path::{Path, PathBuf};

const READINESS_KEY: &str = "readinessindicatorfile";

/// The configuration is unusable.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not an object, or a key of the wrong type.
    #[error("Multus: error loading netconf: LoadNetConf: failed to load netconf: {0}")]
    Parse(#[source] json::Error),
    /// `prevResult` is malformed.
    #[error("Multus: error loading netconf: LoadNetConf: could not parse prevResult: {0}")]
    PrevResult(String),
    /// No delegate and no cluster network.
    #[error(
        "Multus: error loading netconf: LoadNetConf: at least one delegate/clusterNetwork must be specified"
    )]
    NoDelegates,
}

/// Overlays multus' own configuration with the daemon's keys, which win. With `managed`, the daemon itself waits for
/// the default network, so the readiness key is removed.
pub(crate) fn overlay(mut merged: Object, daemon: &Object, managed: bool) -> Object {
    for (key, value) in daemon.iter() {
        if key.eq_ignore_ascii_case(READINESS_KEY) && managed {
            continue;
        }
        merged.set_raw(key, value.to_owned());
    }
    if managed {
        merged.remove(READINESS_KEY);
    }
    merged
}

/// Settings of the process, which a request cannot set.
#[derive(Debug, Clone, Default)]
pub(crate) struct ProcessSettings {
    /// Directory of device-info files.
    pub device_info: DeviceInfo,
    /// `CNI_ARGS` of a thin-mode process; empty for the daemon.
    pub args: CniArgs,
    /// Metrics of networks.
    pub metrics: Metrics,
    /// The shim sends a DEL again that left an attachment.
    pub repeats_dels: bool,
}

/// Multus' own configuration, parsed.
#[derive(Debug, Clone)]
pub(crate) struct MultusConfig {
    /// CNI version of multus' own result.
    pub cni_version: String,
    /// Default network: name of a NAD or of a configuration, a directory or a file.
    pub cluster_network: Option<String>,
    /// Networks of every pod outside [`Self::system_namespaces`].
    pub default_networks: Vec<String>,
    /// Inline configurations; used when there is no cluster network. The first is the master.
    pub delegates: Vec<Box<RawValue>>,
    /// The runtime's capability arguments (`portMappings`, `bandwidth` and so on), for every delegate that declares
    /// them.
    pub runtime_config: Object,
    /// Directory of configurations that NADs refer to by name.
    pub conf_dir: PathBuf,
    pub cni_dir: PathBuf,
    /// First directory of plugins.
    pub bin_dir: PathBuf,
    /// The readiness file, if each request waits for it.
    pub readiness_indicator: Option<PathBuf>,
    /// Whether pods may only use NADs of their own namespace and of [`Self::global_namespaces`].
    pub namespace_isolation: bool,
    /// Namespaces exempt from isolation.
    pub global_namespaces: Vec<String>,
    /// Namespaces whose pods get no default networks.
    pub system_namespaces: Vec<String>,
    /// Namespace of the NADs of cluster network, default networks and annotation `default-network`.
    pub multus_namespace: String,
    /// Name of the auxiliary chain, which runs after all networks; may be empty.
    pub auxiliary_chain: String,
    /// Whether to keep the scratch file when a DEL fails.
    pub retry_delete_on_error: bool,
    /// Whether the plugins of a cluster network file are called with multus' own CNI version.
    pub force_cni_version: bool,
    /// Settings of the process.
    pub own: ProcessSettings,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    cni_version: String,
    cluster_network: String,
    default_networks: Vec<String>,
    conf_dir: String,
    cni_dir: String,
    bin_dir: String,
    readinessindicatorfile: String,
    namespace_isolation: bool,
    global_namespaces: String,
    system_namespaces: Option<Vec<String>>,
    multus_namespace: String,
    #[serde(rename = "auxiliaryCNIChainName")]
    auxiliary_cni_chain_name: String,
    retry_delete_on_error: bool,
    #[serde(rename = "forceCNIVersion")]
    force_cni_version: bool,
}

impl MultusConfig {
    /// Parses a configuration after [`overlay`].
    pub(crate) fn parse(object: &Object) -> Result<Self, Error> {
        let keys: Keys = json::from_slice(object.to_json().as_bytes()).map_err(Error::Parse)?;
        let delegates = delegates(object)?;
        if let Some(previous) = object.get(key::PREV_RESULT) {
            let version = if keys.cni_version.is_empty() {
                "0.1.0"
            } else {
                &keys.cni_version
            };
            let version = version
                .parse()
                .map_err(|error| Error::PrevResult(format!("{error}")))?;
            cni::result::CniResult::parse(previous.get().as_bytes(), version)
                .map_err(|error| Error::PrevResult(error.to_string()))?;
        }
        if keys.cluster_network.is_empty() && delegates.is_empty() {
            return Err(Error::NoDelegates);
        }
        let runtime_config = match object.get(key::RUNTIME_CONFIG) {
            Some(value) => Object::parse(value.get().as_bytes()).map_err(Error::Parse)?,
            None => Object::default(),
        };
        Ok(Self {
            cni_version: keys.cni_version,
            cluster_network: Some(keys.cluster_network).filter(|name| !name.is_empty()),
            default_networks: keys.default_networks,
            delegates,
            runtime_config,
            conf_dir: path_or(&keys.conf_dir, names::CONF_DIR),
            cni_dir: path_or(&keys.cni_dir, names::CNI_DIR),
            bin_dir: path_or(&keys.bin_dir, names::BIN_DIR),
            readiness_indicator: (!keys.readinessindicatorfile.is_empty())
                .then(|| keys.readinessindicatorfile.into()),
            namespace_isolation: keys.namespace_isolation,
            global_namespaces: namespaces(&keys.global_namespaces),
            system_namespaces: keys
                .system_namespaces
                .unwrap_or_else(|| vec![names::KUBE_SYSTEM.into()]),
            multus_namespace: if keys.multus_namespace.is_empty() {
                names::KUBE_SYSTEM.into()
            } else {
                keys.multus_namespace
            },
            auxiliary_chain: keys.auxiliary_cni_chain_name,
            retry_delete_on_error: keys.retry_delete_on_error,
            force_cni_version: keys.force_cni_version,
            own: ProcessSettings::default(),
        })
    }

    /// Whether pods of a namespace may use NADs of the target namespace.
    pub(crate) fn permits(&self, pod: &str, target: &str) -> bool {
        !self.namespace_isolation
            || target == pod
            || self.global_namespaces.iter().any(|global| global == target)
    }

    /// Directory of the result cache.
    pub(crate) fn results_dir(&self) -> PathBuf {
        self.cni_dir.join(names::RESULTS)
    }
}

fn delegates(object: &Object) -> Result<Vec<Box<RawValue>>, Error> {
    match object.get("delegates") {
        Some(value) => serde_json::from_str(value.get()).map_err(|error| Error::Parse(error.into())),
        None => Ok(Vec::new()),
    }
}

/// Parses `globalNamespaces`, a comma-separated list; its default is `default`.
fn namespaces(list: &str) -> Vec<String> {
    if list.is_empty() {
        return vec!["default".into()];
    }
    list.split(',').map(|entry| entry.trim().to_owned()).collect()
}

fn path_or(text: &str, default: &str) -> PathBuf {
    Path::new(if text.is_empty() { default } else { text }).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn object(text: &str) -> Object {
        Object::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn daemon_keys_win_and_others_are_kept() {
        // multus#68
        let own = object(
            r#"{"cniVersion":"0.3.1","namespaceIsolation":true,"logLevel":"verbose","big":9007199254740993}"#,
        );
        let daemon = object(r#"{"cniVersion":"0.4.0","namespaceIsolation":false}"#);
        let merged = overlay(own, &daemon, true);
        assert_eq!(merged.get("cniVersion").unwrap().get(), r#""0.4.0""#);
        assert_eq!(merged.get("namespaceIsolation").unwrap().get(), "false");
        assert_eq!(merged.get("logLevel").unwrap().get(), r#""verbose""#);
        assert_eq!(merged.get("big").unwrap().get(), "9007199254740993");
    }

    #[test]
    fn readiness_key_is_removed_only_if_managed() {
        // multus#68
        let own = object(r#"{"readinessindicatorfile":"/a"}"#);
        let daemon = object(r#"{"readinessindicatorfile":"/b"}"#);
        assert!(overlay(own.clone(), &daemon, true).get(READINESS_KEY).is_none());
        let kept = overlay(own, &daemon, false);
        assert_eq!(kept.get(READINESS_KEY).unwrap().get(), r#""/b""#);
    }

    #[test]
    fn defaults() {
        let config = MultusConfig::parse(&object(r#"{"clusterNetwork":"/a.conf"}"#)).unwrap();
        assert_eq!(config.cluster_network.as_deref(), Some("/a.conf"));
        assert_eq!(config.conf_dir, Path::new("/etc/cni/multus/net.d"));
        assert_eq!(config.results_dir(), Path::new("/var/lib/cni/multus/results"));
        assert_eq!(config.bin_dir, Path::new("/opt/cni/bin"));
        assert_eq!(config.system_namespaces, ["kube-system"]);
        assert_eq!(config.multus_namespace, "kube-system");
        assert_eq!(config.global_namespaces, ["default"]);
        assert!(!config.namespace_isolation && !config.retry_delete_on_error);
    }

    #[test]
    fn global_namespaces_replace_the_default() {
        let text = r#"{"clusterNetwork":"x","globalNamespaces":"kube-system, donkey-kong"}"#;
        let config = MultusConfig::parse(&object(text)).unwrap();
        assert_eq!(config.global_namespaces, ["kube-system", "donkey-kong"]);
    }

    #[test]
    fn missing_delegates_are_error() {
        assert_eq!(
            MultusConfig::parse(&object("{}")).unwrap_err().to_string(),
            "Multus: error loading netconf: LoadNetConf: at least one delegate/clusterNetwork must be specified"
        );
    }

    #[test]
    fn malformed_prev_result_is_error() {
        let text = r#"{"clusterNetwork":"x","cniVersion":"0.3.1","prevResult":{"ips":7}}"#;
        let error = MultusConfig::parse(&object(text)).unwrap_err().to_string();
        assert!(
            error.contains("LoadNetConf: could not parse prevResult: "),
            "{error}"
        );
    }
}
