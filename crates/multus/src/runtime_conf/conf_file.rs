//! Generates `00-multus.conf` from the primary CNI configuration (multus.md §7.7). Pure.

use crate::config::DaemonConfig;
use crate::names;
use cni::json;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The primary must have at least this version, if the daemon's own version has it.
const CHECKED_FROM: [u64; 3] = [0, 4, 0];

/// No configuration can be generated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The daemon's `cniVersion` is missing or malformed.
    #[error("couldn't get top level cni version")]
    TopVersion,
    /// The primary's `cniVersion` is missing or malformed.
    #[error("couldn't get cni version of delegate")]
    DelegateVersion,
    /// The primary's version is too old.
    #[error("delegate cni version is {delegate} while top level cni version is {top}")]
    OlderDelegate {
        /// Version of the primary.
        delegate: String,
        /// Version of the daemon's configuration.
        top: String,
    },
    /// The primary is the generated file itself.
    #[error("cannot specify {}/{} to prevent recursive config load", .0.display(), names::CONF_FILE)]
    Recursive(PathBuf),
    /// The primary is not a CNI configuration.
    #[error("failed to parse the primary CNI configuration {}", path.display())]
    Primary {
        path: PathBuf,
        #[source]
        source: json::Error,
    },
    /// Cannot happen with parsed values.
    #[error("failed to write the configuration as JSON")]
    Encode(#[source] serde_json::Error),
}

/// Chooses the primary configuration among a directory's file names: the configured one, or else the first in byte
/// order. `None` while none exists.
pub(crate) fn primary<'a>(
    dir: &Path,
    names_there: impl IntoIterator<Item = &'a str>,
    wanted: Option<&str>,
) -> Result<Option<PathBuf>, Error> {
    if wanted == Some(names::CONF_FILE) {
        return Err(Error::Recursive(dir.to_owned()));
    }
    let is_candidate = |name: &&str| {
        let extension = Path::new(name).extension();
        let is_conf = extension.is_some_and(|extension| extension == "conf" || extension == "conflist");
        wanted.map_or(is_conf && !name.starts_with(names::CONF_PREFIX), |wanted| {
            *name == wanted
        })
    };
    Ok(names_there
        .into_iter()
        .filter(is_candidate)
        .min()
        .map(|name| dir.join(name)))
}

/// The fields of the primary configuration that multus uses.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Primary {
    /// Name of its network.
    pub name: String,
    /// Its CNI version; may be empty.
    pub cni_version: String,
    capabilities: BTreeMap<String, bool>,
    plugins: Vec<PrimaryPlugin>,
}

impl Primary {
    /// Reads the bytes of the file at `path`.
    pub(crate) fn parse(path: &Path, text: &[u8]) -> Result<Self, Error> {
        json::from_slice(text).map_err(|source| Error::Primary {
            path: path.to_owned(),
            source,
        })
    }

    /// The capabilities of the network and of all its plugins.
    pub(crate) fn capabilities(&self) -> BTreeMap<&str, bool> {
        let plugins = self.plugins.iter().map(|plugin| &plugin.capabilities);
        plugins
            .chain([&self.capabilities])
            .flatten()
            .filter(|(_, on)| **on)
            .map(|(name, on)| (name.as_str(), *on))
            .collect()
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct PrimaryPlugin {
    capabilities: BTreeMap<String, bool>,
}

/// Keys in upstream's order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Generated<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    bin_dir: &'a str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    capabilities: BTreeMap<&'a str, bool>,
    cni_version: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    log_file: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    log_level: &'a str,
    #[serde(skip_serializing_if = "is_false")]
    log_to_stderr: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    log_options: Option<&'a RawValue>,
    name: &'a str,
    cluster_network: &'a Path,
    #[serde(skip_serializing_if = "is_false")]
    namespace_isolation: bool,
    #[serde(skip_serializing_if = "str::is_empty")]
    global_namespaces: &'a str,
    r#type: &'static str,
    #[serde(skip_serializing_if = "str::is_empty")]
    cni_dir: &'a str,
    #[serde(rename = "auxiliaryCNIChainName", skip_serializing_if = "str::is_empty")]
    auxiliary_cni_chain_name: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    daemon_socket_dir: &'a str,
    #[serde(skip_serializing_if = "is_false")]
    override_network_name: bool,
}

#[allow(
    clippy::trivially_copy_pass_by_ref,
    reason = "skip_serializing_if needs this signature"
)]
fn is_false(value: &bool) -> bool {
    !*value
}

/// The text of `00-multus.conf`, one line of JSON. `path` is the primary as the container sees it; `text` its bytes.
pub(crate) fn generate(path: &Path, text: &[u8], daemon: &DaemonConfig) -> Result<String, Error> {
    let primary = Primary::parse(path, text)?;
    let passed = &daemon.passed;
    let primary_version = if daemon.force_cni_version {
        &passed.cni_version
    } else {
        &primary.cni_version
    };
    check_versions(&passed.cni_version, primary_version)?;

    let overridden = daemon.override_network_name && !primary.name.is_empty();
    let generated = Generated {
        bin_dir: &passed.bin_dir,
        capabilities: primary.capabilities(),
        cni_version: &passed.cni_version,
        log_file: &passed.log_file,
        log_level: &passed.log_level,
        log_to_stderr: passed.log_to_stderr,
        log_options: passed.log_options.as_deref(),
        name: if overridden {
            &primary.name
        } else {
            names::NETWORK_NAME
        },
        cluster_network: path,
        namespace_isolation: passed.namespace_isolation,
        global_namespaces: &passed.global_namespaces,
        r#type: names::SHIM,
        cni_dir: &passed.cni_dir,
        auxiliary_cni_chain_name: &passed.auxiliary_cni_chain_name,
        daemon_socket_dir: &passed.daemon_socket_dir,
        override_network_name: daemon.override_network_name,
    };
    serde_json::to_string(&generated).map_err(Error::Encode)
}

fn check_versions(top: &str, delegate: &str) -> Result<(), Error> {
    let top_version = semver(top).ok_or(Error::TopVersion)?;
    if top_version < CHECKED_FROM {
        return Ok(());
    }
    if semver(delegate).ok_or(Error::DelegateVersion)? < CHECKED_FROM {
        return Err(Error::OlderDelegate {
            delegate: delegate.to_owned(),
            top: top.to_owned(),
        });
    }
    Ok(())
}

/// The three numbers of a version.
pub(crate) fn semver(text: &str) -> Option<[u64; 3]> {
    let mut parts = text.split('.').map(|part| part.parse().ok());
    let version = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(version)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn daemon(keys: &Value) -> DaemonConfig {
        DaemonConfig::parse(keys.to_string().as_bytes()).unwrap()
    }

    fn generated(primary: &Value, keys: &Value) -> Result<String, Error> {
        generate(
            Path::new("/host/etc/cni/net.d/10-kindnet.conflist"),
            primary.to_string().as_bytes(),
            &daemon(keys),
        )
    }

    #[test]
    fn conflist_equals_upstreams() {
        // multus#70
        let primary = json!({"cniVersion": "0.3.1", "name": "kindnet", "plugins": [
            {"type": "ptp", "capabilities": {"bandwidth": false}},
            {"type": "portmap", "capabilities": {"portMappings": true}}]});
        let keys = json!({"cniVersion": "0.3.1", "logLevel": "verbose", "logToStderr": true,
            "readinessindicatorfile": "/run/ready", "chrootDir": "/hostroot"});
        assert_eq!(
            generated(&primary, &keys).unwrap(),
            concat!(
                r#"{"capabilities":{"portMappings":true},"cniVersion":"0.3.1","logLevel":"verbose","#,
                r#""logToStderr":true,"name":"multus-cni-network","#,
                r#""clusterNetwork":"/host/etc/cni/net.d/10-kindnet.conflist","type":"multus-shim"}"#
            )
        );
    }

    #[test]
    fn capabilities_of_all_plugins_are_merged() {
        // multus#70
        let primary = json!({"cniVersion": "1.0.0", "name": "a", "plugins": [
            {"type": "a", "capabilities": {"ips": true, "mac": false}},
            {"type": "b", "capabilities": {"bandwidth": true}}, {"type": "c"}]});
        let text = generated(&primary, &json!({"cniVersion": "1.0.0"})).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["capabilities"], json!({"bandwidth": true, "ips": true}));
        let single = json!({"cniVersion": "0.3.1", "name": "a", "type": "a", "capabilities": {"mac": true}});
        let text = generated(&single, &json!({"cniVersion": "0.3.1"})).unwrap();
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["capabilities"], json!({"mac": true}));
    }

    #[test]
    fn network_name_can_be_overridden() {
        // multus#70
        let primary = json!({"cniVersion": "0.3.1", "name": "ovn", "type": "ovn-k8s-cni-overlay"});
        let text = generated(
            &primary,
            &json!({"cniVersion": "0.3.1", "overrideNetworkName": true}),
        )
        .unwrap();
        assert!(
            text.contains(r#""name":"ovn""#) && text.contains(r#""overrideNetworkName":true"#),
            "{text}"
        );
    }

    #[test]
    fn all_keys_are_in_order() {
        let primary = json!({"cniVersion": "1.1.0", "name": "a", "type": "a"});
        let keys = json!({"binDir": "/b", "cniVersion": "1.1.0", "logFile": "/l", "logLevel": "debug",
            "logToStderr": true, "logOptions": {"maxAge": 5}, "namespaceIsolation": true,
            "globalNamespaces": "default,x", "cniDir": "/d", "auxiliaryCNIChainName": "vendor",
            "daemonSocketDir": "/run/multus/socket", "overrideNetworkName": true});
        assert_eq!(
            generated(&primary, &keys).unwrap(),
            concat!(
                r#"{"binDir":"/b","cniVersion":"1.1.0","logFile":"/l","logLevel":"debug","logToStderr":true,"#,
                r#""logOptions":{"maxAge":5},"name":"a","#,
                r#""clusterNetwork":"/host/etc/cni/net.d/10-kindnet.conflist","namespaceIsolation":true,"#,
                r#""globalNamespaces":"default,x","type":"multus-shim","cniDir":"/d","#,
                r#""auxiliaryCNIChainName":"vendor","daemonSocketDir":"/run/multus/socket","#,
                r#""overrideNetworkName":true}"#
            )
        );
    }

    #[test]
    fn older_primary_is_refused() {
        // multus#70
        let primary = json!({"cniVersion": "0.3.1", "name": "a", "type": "a"});
        let text = |primary: &Value, top: &str| {
            generated(primary, &json!({"cniVersion": top}))
                .unwrap_err()
                .to_string()
        };
        assert_eq!(
            text(&primary, "0.4.0"),
            "delegate cni version is 0.3.1 while top level cni version is 0.4.0"
        );
        assert_eq!(text(&primary, ""), "couldn't get top level cni version");
        assert_eq!(text(&primary, "new"), "couldn't get top level cni version");
        assert_eq!(
            text(&json!({"name": "a", "type": "a"}), "1.0.0"),
            "couldn't get cni version of delegate"
        );
        assert!(
            generated(
                &json!({"name": "a", "type": "a"}),
                &json!({"cniVersion": "0.3.1"})
            )
            .is_ok()
        );
    }

    #[test]
    fn forced_version_ignores_primarys_version() {
        // multus#116 (what is generated)
        for primary in [
            json!({"cniVersion": "0.3.1", "name": "a", "type": "a"}),
            json!({"name": "a", "type": "a"}),
        ] {
            let keys = json!({"cniVersion": "0.4.0", "forceCNIVersion": true});
            let text = generated(&primary, &keys).unwrap();
            let value: Value = serde_json::from_str(&text).unwrap();
            assert_eq!(value["cniVersion"], "0.4.0");
            assert_eq!(value["clusterNetwork"], "/host/etc/cni/net.d/10-kindnet.conflist");
            assert_eq!(value.get("forceCNIVersion"), None);
        }
        let error = generated(
            &json!({"name": "a", "type": "a"}),
            &json!({"forceCNIVersion": true}),
        );
        assert!(matches!(error, Err(Error::TopVersion)));
    }

    #[test]
    fn malformed_primary_is_error() {
        // multus#71 (the caller keeps the old file)
        let keys = daemon(&json!({"cniVersion": "0.3.1"}));
        assert!(matches!(
            generate(Path::new("/a.conf"), b"{", &keys),
            Err(Error::Primary { .. })
        ));
        assert!(matches!(
            generate(Path::new("/a.conf"), b"", &keys),
            Err(Error::Primary { .. })
        ));
    }

    #[test]
    fn primary_is_first_foreign_file_in_byte_order() {
        let dir = Path::new("/host/etc/cni/net.d");
        let there = [
            "20-b.conf",
            "00-multus.conf",
            "00-multus.conflist",
            "10-a.json",
            "multus.d",
            "10-z.conflist",
        ];
        let found = primary(dir, there, None).unwrap();
        assert_eq!(found, Some(dir.join("10-z.conflist")));
        assert_eq!(
            primary(dir, there, Some("20-b.conf")).unwrap(),
            Some(dir.join("20-b.conf"))
        );
        assert_eq!(primary(dir, there, Some("30-c.conf")).unwrap(), None);
        assert_eq!(primary(dir, ["00-multus.conf"], None).unwrap(), None);
    }

    #[test]
    fn own_file_is_never_primary() {
        assert_eq!(
            primary(Path::new("/host/etc/cni/net.d"), [], Some("00-multus.conf"))
                .unwrap_err()
                .to_string(),
            "cannot specify /host/etc/cni/net.d/00-multus.conf to prevent recursive config load"
        );
    }
}
