//! `daemon-config.json`: the keys that the daemon itself uses (multus.md §7.6). All keys of the file also overlay
//! each request's configuration, see [`crate::networks::net_conf`].

pub(crate) mod host_root;
pub(crate) mod log;

use crate::certificate;
use crate::config::log::{Log, LogOptions};
use crate::devices::Kubelet;
use crate::execution::workers;
use crate::names;
use crate::networks::device_info::DeviceInfo;
use cni::args::CniArgs;
use cni::json::{self, Object};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Default of `connectionLimit`, the limit of concurrent calls. It bounds memory and processes when many pods start
/// at once; further calls wait in a queue.
const DEFAULT_CONCURRENCY: usize = 32;

/// The configuration is unusable.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("failed to read the config file's contents")]
    Read(#[source] std::io::Error),
    /// The text is malformed.
    #[error("failed to unmarshal the daemon configuration")]
    Parse(#[source] json::Error),
    /// `connectionLimit` is not positive.
    #[error("connection limit must be greater than 0, got {0}")]
    ConnectionLimit(i64),
}

/// The source of `00-multus.conf`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConfSource {
    /// Generated from the primary configuration, and kept in line with it.
    Auto,
    /// A file of the user, copied once.
    File(PathBuf),
}

/// The daemon's configuration.
#[derive(Debug, Clone)]
pub struct DaemonConfig {
    /// The whole file; it overlays every request's configuration.
    pub object: Object,
    /// Root of the host as the container sees it: plugins run in it.
    pub chroot_dir: Option<PathBuf>,
    /// Directory of the socket.
    pub socket_dir: PathBuf,
    /// Port of `/metrics`, if served.
    pub metrics_port: Option<u16>,
    /// Limit of concurrent calls.
    pub concurrency: usize,
    /// Directory of `00-multus.conf`.
    pub cni_config_dir: PathBuf,
    /// Its source.
    pub conf_source: ConfSource,
    /// Directory of the primary configuration.
    pub autoconfig_dir: PathBuf,
    /// File name of the primary configuration; `None` for the first file.
    pub master_cni: Option<String>,
    /// Whether the generated configuration uses the primary's network name.
    pub override_network_name: bool,
    /// Whether the primary's plugins are called with the daemon's CNI version.
    pub force_cni_version: bool,
    /// The default network is ready when this file exists.
    pub readiness_indicator: Option<PathBuf>,
    /// Sinks and level of the log.
    pub log: Log,
    /// The kubelet of this node, for the devices of pods.
    pub kubelet: Kubelet,
    /// Socket of the container runtime; `None` for the usual ones below the host's root.
    pub cri_socket: Option<PathBuf>,
    /// Timeout of a call. Not configurable.
    pub call_timeout: Duration,
    /// Directory of device-info files. Not configurable.
    pub device_info: DeviceInfo,
    /// The node's client certificate, if configured.
    pub per_node_certificate: Option<PerNodeCertificate>,
    /// Keys that `00-multus.conf` repeats.
    pub passed: Passed,
    /// `CNI_ARGS` of a process that handles a single call (thin mode).
    pub one_shot: Option<CniArgs>,
}

/// Keys of `daemon-config.json` that `00-multus.conf` repeats.
#[derive(Debug, Clone, Default)]
pub struct Passed {
    /// First directory of plugins.
    pub bin_dir: String,
    /// CNI version of multus' own result.
    pub cni_version: String,
    /// Log file.
    pub log_file: String,
    /// Log level.
    pub log_level: String,
    /// Whether to log to standard error.
    pub log_to_stderr: bool,
    /// Rotation of the log file, verbatim.
    pub log_options: Option<Box<serde_json::value::RawValue>>,
    /// Whether NADs of other namespaces are refused.
    pub namespace_isolation: bool,
    /// Namespaces exempt from isolation.
    pub global_namespaces: String,
    /// State directory.
    pub cni_dir: String,
    /// Name of the auxiliary chain.
    pub auxiliary_cni_chain_name: String,
    /// Directory of the socket, as the shim sees it.
    pub daemon_socket_dir: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(clippy::struct_excessive_bools, reason = "upstream's keys")]
struct Keys {
    chroot_dir: String,
    socket_dir: String,
    metrics_port: Option<u16>,
    connection_limit: Option<i64>,
    per_node_certificate: Option<PerNodeCertificate>,
    cni_config_dir: String,
    multus_config_file: String,
    multus_autoconfig_dir: String,
    #[serde(rename = "multusMasterCNI")]
    multus_master_cni: String,
    override_network_name: bool,
    #[serde(rename = "forceCNIVersion")]
    force_cni_version: bool,
    readinessindicatorfile: String,
    kubelet_root_dir: String,
    cri_socket_path: String,
    bin_dir: String,
    cni_version: String,
    log_file: String,
    log_level: String,
    log_to_stderr: bool,
    log_options: LogOptions,
    namespace_isolation: bool,
    global_namespaces: String,
    cni_dir: String,
    #[serde(rename = "auxiliaryCNIChainName")]
    auxiliary_cni_chain_name: String,
    daemon_socket_dir: String,
}

/// `perNodeCertificate`: authentication by a certificate of the node instead of the service account.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PerNodeCertificate {
    enabled: bool,
    bootstrap_kubeconfig: String,
    cert_dir: String,
    cert_duration: String,
}

impl PerNodeCertificate {
    /// The validated settings for this node.
    pub fn settings(&self, node: Option<&str>) -> Result<certificate::Settings, certificate::Error> {
        certificate::Settings::new(
            node,
            &self.bootstrap_kubeconfig,
            &self.cert_dir,
            &self.cert_duration,
        )
    }
}

impl DaemonConfig {
    /// Reads and parses the file.
    pub fn load(path: &Path) -> Result<Self, Error> {
        Self::parse(&std::fs::read(path).map_err(Error::Read)?)
    }

    /// Parses the file's text.
    pub fn parse(text: &[u8]) -> Result<Self, Error> {
        let object = Object::parse(text).map_err(Error::Parse)?;
        let keys: Keys = json::from_slice(text).map_err(Error::Parse)?;
        let concurrency = match keys.connection_limit {
            None => DEFAULT_CONCURRENCY,
            Some(limit) => usize::try_from(limit)
                .ok()
                .filter(|limit| *limit > 0)
                .ok_or(Error::ConnectionLimit(limit))?,
        };
        let conf_source = match keys.multus_config_file.as_str() {
            "" | "auto" => ConfSource::Auto,
            file => ConfSource::File(file.into()),
        };
        Ok(Self {
            chroot_dir: path(&keys.chroot_dir),
            socket_dir: path(&keys.socket_dir).unwrap_or_else(|| names::SOCKET_DIR.into()),
            metrics_port: keys.metrics_port,
            concurrency,
            cni_config_dir: path(&keys.cni_config_dir).unwrap_or_else(|| names::CNI_CONFIG_DIR.into()),
            conf_source,
            autoconfig_dir: keys.multus_autoconfig_dir.into(),
            master_cni: Some(keys.multus_master_cni).filter(|name| !name.is_empty()),
            override_network_name: keys.override_network_name,
            force_cni_version: keys.force_cni_version,
            readiness_indicator: path(&keys.readinessindicatorfile),
            log: Log::of(
                &keys.log_level,
                keys.log_to_stderr,
                &keys.log_file,
                &keys.log_options,
            ),
            kubelet: path(&keys.kubelet_root_dir).map_or_else(Kubelet::default, Kubelet::at),
            cri_socket: path(&keys.cri_socket_path),
            call_timeout: workers::JOB_TIMEOUT,
            device_info: DeviceInfo::default(),
            per_node_certificate: keys
                .per_node_certificate
                .filter(|certificate| certificate.enabled),
            passed: Passed {
                bin_dir: keys.bin_dir,
                cni_version: keys.cni_version,
                log_file: keys.log_file,
                log_level: keys.log_level,
                log_to_stderr: keys.log_to_stderr,
                log_options: object.get("logOptions").map(ToOwned::to_owned),
                namespace_isolation: keys.namespace_isolation,
                global_namespaces: keys.global_namespaces,
                cni_dir: keys.cni_dir,
                auxiliary_cni_chain_name: keys.auxiliary_cni_chain_name,
                daemon_socket_dir: keys.daemon_socket_dir,
            },
            object,
            one_shot: None,
        })
    }

    /// The configuration of a process that handles a single call: it adds nothing to the call's own configuration.
    pub fn one_shot(args: CniArgs) -> Result<Self, Error> {
        let mut config = Self::parse(b"{}")?;
        config.concurrency = 1;
        // Nothing is generated: the call itself waits for the default network.
        config.conf_source = ConfSource::File(PathBuf::new());
        config.one_shot = Some(args);
        Ok(config)
    }

    /// Path of the socket.
    pub fn socket(&self) -> PathBuf {
        self.socket_dir.join(names::SOCKET)
    }

    /// A path of the host, as this process sees it.
    pub fn on_host(&self, path: &Path) -> PathBuf {
        match &self.chroot_dir {
            Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_owned(),
        }
    }

    /// Path of `00-multus.conf`.
    pub fn conf_file(&self) -> PathBuf {
        self.cni_config_dir.join(names::CONF_FILE)
    }

    /// The configuration that makes the runtime call the shim: generated, or a copy of the user's file.
    pub fn runtime_conf(&self) -> PathBuf {
        match &self.conf_source {
            ConfSource::Auto => self.conf_file(),
            ConfSource::File(source) => self.cni_config_dir.join(source.file_name().unwrap_or_default()),
        }
    }

    /// The state directory, unless the runtime's configuration names another one.
    pub fn cni_dir(&self) -> PathBuf {
        path(&self.passed.cni_dir).unwrap_or_else(|| names::CNI_DIR.into())
    }

    /// First directory of plugins, unless the runtime's configuration names another one.
    pub fn bin_dir(&self) -> PathBuf {
        path(&self.passed.bin_dir).unwrap_or_else(|| names::BIN_DIR.into())
    }

    /// Whether the daemon itself waits for the readiness file, instead of each request.
    pub fn manages_readiness(&self) -> bool {
        self.conf_source == ConfSource::Auto
    }
}

fn path(text: &str) -> Option<PathBuf> {
    (!text.is_empty()).then(|| text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operators_configuration_is_parsed() {
        let text = br#"{"chrootDir":"/hostroot","cniVersion":"0.3.1","logLevel":"verbose","logToStderr":true,
            "cniConfigDir":"/host/etc/cni/net.d","multusAutoconfigDir":"/host/etc/cni/net.d",
            "multusConfigFile":"auto","socketDir":"/host/run/multus/"}"#;
        let config = DaemonConfig::parse(text).unwrap();
        assert_eq!(config.chroot_dir.as_deref(), Some(Path::new("/hostroot")));
        assert_eq!(config.socket(), Path::new("/host/run/multus/multus.sock"));
        assert_eq!(
            config.conf_file(),
            Path::new("/host/etc/cni/net.d/00-multus.conf")
        );
        assert_eq!(config.conf_source, ConfSource::Auto);
        assert_eq!(config.passed.cni_version, "0.3.1");
        assert!(config.passed.log_to_stderr);
    }

    #[test]
    fn defaults() {
        let config = DaemonConfig::parse(b"{}").unwrap();
        assert_eq!(config.socket(), Path::new("/run/multus/multus.sock"));
        assert_eq!(config.conf_file(), Path::new("/etc/cni/net.d/00-multus.conf"));
        assert_eq!(config.chroot_dir, None);
        assert_eq!(config.concurrency, DEFAULT_CONCURRENCY);
        assert_eq!(config.kubelet, Kubelet::at("/var/lib/kubelet".into()));
    }

    #[test]
    fn keys_match_case_insensitively() {
        let config = DaemonConfig::parse(
            br#"{"CHROOTDIR":"/h","multusmastercni":"10-a.conf","kubeletrootdir":"/k","crisocketpath":"/c"}"#,
        )
        .unwrap();
        assert_eq!(config.cri_socket.as_deref(), Some(Path::new("/c")));
        assert_eq!(config.on_host(Path::new("/var/x")), Path::new("/h/var/x"));
        assert_eq!(config.kubelet, Kubelet::at("/k".into()));
        assert_eq!(config.chroot_dir.as_deref(), Some(Path::new("/h")));
        assert_eq!(config.master_cni.as_deref(), Some("10-a.conf"));
    }

    #[test]
    fn node_certificate_is_optional() {
        let parse = |text: &str| DaemonConfig::parse(text.as_bytes()).unwrap().per_node_certificate;
        assert!(parse(r#"{"perNodeCertificate":{"enabled":false,"certDir":"/c"}}"#).is_none());
        let wanted = parse(
            r#"{"perNodeCertificate":{"enabled":true,"bootstrapKubeconfig":"/k","certDir":"/c","certDuration":"24h"}}"#,
        );
        let settings = wanted.unwrap().settings(Some("n1")).unwrap();
        assert_eq!(
            settings,
            certificate::Settings::new(Some("n1"), "/k", "/c", "24h").unwrap()
        );
    }

    #[test]
    fn non_positive_connection_limit_is_error() {
        // multus#69 (the refusal)
        let error = DaemonConfig::parse(br#"{"connectionLimit":0}"#).unwrap_err();
        assert_eq!(
            error.to_string(),
            "connection limit must be greater than 0, got 0"
        );
        assert_eq!(
            DaemonConfig::parse(br#"{"connectionLimit":1}"#)
                .unwrap()
                .concurrency,
            1
        );
    }
}
