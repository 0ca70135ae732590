//! Generates the configuration that makes runtimes call `multus` of thin mode (multus.md §8.4). Byte for byte as
//! upstream's, because deployments compare it. Pure.

use crate::names;
use crate::runtime_conf::conf_file::{self, Primary, semver};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// First version whose configuration is a list.
const LIST_FROM: [u64; 3] = [1, 0, 0];
const LEVELS: [&str; 4] = ["debug", "verbose", "error", "panic"];

/// No configuration can be generated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The primary configuration is unusable.
    #[error("unusable primary CNI configuration")]
    Primary(#[source] conf_file::Error),
    /// The primary configuration has no version.
    #[error("the primary CNI configuration {} has no usable cniVersion", .0.display())]
    NoVersion(PathBuf),
    /// The primary's version is not the requested one.
    #[error("Multus cni version is \"{wanted}\" while master plugin cni version is \"{found}\"")]
    Version {
        /// The requested version.
        wanted: String,
        /// The primary's version.
        found: String,
    },
    /// Unknown log level.
    #[error("Log levels should be one of: debug/verbose/error/panic, did not understand: {0}")]
    LogLevel(String),
    /// Cannot happen with parsed values.
    #[error("failed to write the configuration as JSON")]
    Encode(#[from] serde_json::Error),
}

/// Keys beside the primary. Empty and false ones are omitted.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The version that the primary must have.
    pub cni_version: String,
    /// Whether to use the primary's network name.
    pub override_network_name: bool,
    /// Whether NADs of other namespaces are refused.
    pub namespace_isolation: bool,
    /// Namespaces exempt from isolation.
    pub global_namespaces: String,
    /// Whether to log to standard error; the key is omitted if true.
    pub log_to_stderr: bool,
    /// Log level.
    pub log_level: String,
    /// Log file.
    pub log_file: String,
    /// First directory of plugins.
    pub bin_dir: String,
    /// Directory of configurations that NADs refer to by name.
    pub conf_dir: String,
    /// Readiness file of the default network.
    pub readiness_indicator: String,
    /// Path of the kubeconfig on the host.
    pub kubeconfig: String,
}

/// A configuration and the name of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// `00-multus.conf` or `00-multus.conflist`.
    pub name: &'static str,
    /// Content of the file.
    pub text: String,
}

/// Generates the configuration with the primary (`path` and content) as its only delegate.
pub fn generate(path: &Path, primary: &[u8], options: &Options) -> Result<Generated, Error> {
    let level = options.log_level.to_lowercase();
    if !level.is_empty() && !LEVELS.contains(&level.as_str()) {
        return Err(Error::LogLevel(options.log_level.clone()));
    }
    let read = Primary::parse(path, primary).map_err(Error::Primary)?;
    let version = &read.cni_version;
    let numbers = semver(version).ok_or_else(|| Error::NoVersion(path.to_owned()))?;
    if !options.cni_version.is_empty() && options.cni_version != *version {
        return Err(Error::Version {
            wanted: options.cni_version.clone(),
            found: version.clone(),
        });
    }
    let name = if options.override_network_name && !read.name.is_empty() {
        &read.name
    } else {
        names::NETWORK_NAME
    };
    let delegate = sorted(serde_json::from_slice(primary)?)?;
    let head = [line("cniVersion", version)?, line("name", name)?].into_iter();
    let plugin = [line("type", names::THIN)?]
        .into_iter()
        .chain(lines(&read, options, &level)?);
    Ok(if numbers < LIST_FROM {
        let body: String = head
            .chain(plugin)
            .map(|line| format!("        {line},\n"))
            .collect();
        Generated {
            name: names::CONF_FILE,
            text: format!("{{\n{body}        \"delegates\": [\n                {delegate}\n        ]\n}}\n"),
        }
    } else {
        let head: String = head.map(|line| format!("    {line},\n")).collect();
        let body: String = plugin.map(|line| format!("        {line},\n")).collect();
        Generated {
            name: names::CONF_LIST_FILE,
            text: format!(
                "{{\n{head}    \"plugins\": [ {{\n{body}        \"delegates\": [\n            {delegate}\n        ]\n    }}]\n}}\n"
            ),
        }
    })
}

/// The lines that depend on options, in upstream's order.
fn lines(primary: &Primary, options: &Options, level: &str) -> Result<Vec<String>, Error> {
    let mut lines = Vec::new();
    let capabilities = primary.capabilities();
    if !capabilities.is_empty() {
        lines.push(format!(
            "\"capabilities\": {}",
            serde_json::to_string(&capabilities)?
        ));
    }
    if options.namespace_isolation {
        lines.push("\"namespaceIsolation\": true".to_owned());
    }
    let text = |lines: &mut Vec<String>, key, value: &str| -> Result<(), Error> {
        if !value.is_empty() {
            lines.push(line(key, value)?);
        }
        Ok(())
    };
    text(&mut lines, "globalNamespaces", &options.global_namespaces)?;
    if !options.log_to_stderr {
        lines.push("\"logToStderr\": false".to_owned());
    }
    text(&mut lines, "logLevel", level)?;
    text(&mut lines, "logFile", &options.log_file)?;
    text(&mut lines, "binDir", &options.bin_dir)?;
    text(&mut lines, "cniConf", &options.conf_dir)?;
    text(&mut lines, "readinessindicatorfile", &options.readiness_indicator)?;
    text(&mut lines, "kubeconfig", &options.kubeconfig)?;
    Ok(lines)
}

fn line(key: &str, value: &str) -> Result<String, Error> {
    Ok(format!("\"{key}\": {}", serde_json::to_string(value)?))
}

/// Compact JSON with sorted keys and verbatim numbers.
fn sorted(value: &RawValue) -> Result<String, serde_json::Error> {
    let text = value.get();
    if text.starts_with('{') {
        let members: BTreeMap<String, &RawValue> = serde_json::from_str(text)?;
        let members: Result<Vec<_>, _> = members
            .into_iter()
            .map(|(key, value)| Ok(format!("{}:{}", serde_json::to_string(&key)?, sorted(value)?)))
            .collect();
        members.map(|members| format!("{{{}}}", members.join(",")))
    } else if text.starts_with('[') {
        let items: Vec<&RawValue> = serde_json::from_str(text)?;
        let items: Result<Vec<_>, _> = items.into_iter().map(sorted).collect();
        items.map(|items| format!("[{}]", items.join(",")))
    } else {
        Ok(text.to_owned())
    }
}

#[cfg(test)]
mod tests;
