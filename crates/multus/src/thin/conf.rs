//! The configuration that makes runtimes call `multus` of thin mode (multus.md §8.4): the primary's bytes in, text out.
//! Its form is fixed to the byte: deployments compare it.

use crate::conf_file::{self, Primary, semver};
use crate::names;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// From this version on the configuration is a list.
const LIST_FROM: [u64; 3] = [1, 0, 0];
const LEVELS: [&str; 4] = ["debug", "verbose", "error", "panic"];

/// Why no configuration can be generated.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The primary can't be used.
    #[error("unusable primary CNI configuration")]
    Primary(#[source] conf_file::Error),
    /// It says no version.
    #[error("the primary CNI configuration {} has no usable cniVersion", .0.display())]
    NoVersion(PathBuf),
    /// It says another version than was asked for.
    #[error("Multus cni version is \"{wanted}\" while master plugin cni version is \"{found}\"")]
    Version {
        /// By the flag.
        wanted: String,
        /// Of the primary.
        found: String,
    },
    /// There is no such log level.
    #[error("Log levels should be one of: debug/verbose/error/panic, did not understand: {0}")]
    LogLevel(String),
    /// Can't happen with what was parsed before.
    #[error("failed to write the configuration as JSON")]
    Encode(#[from] serde_json::Error),
}

/// What goes into the configuration beside the primary. Empty texts and false leave their line out.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// The version that the primary must have.
    pub cni_version: String,
    /// Whether the primary's network name becomes ours.
    pub override_network_name: bool,
    /// Whether NADs of other namespaces are refused.
    pub namespace_isolation: bool,
    /// Namespaces exempt from that.
    pub global_namespaces: String,
    /// Whether to log to standard error: what is left out means yes.
    pub log_to_stderr: bool,
    /// Log level.
    pub log_level: String,
    /// Log file.
    pub log_file: String,
    /// First directory of plugins.
    pub bin_dir: String,
    /// Configurations on disk, by name.
    pub conf_dir: String,
    /// A file that says that the default network is ready.
    pub readiness_indicator: String,
    /// The kubeconfig as the host sees it.
    pub kubeconfig: String,
}

/// A configuration and the name of its file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// `00-multus.conf` or `00-multus.conflist`.
    pub name: &'static str,
    /// Its text.
    pub text: String,
}

/// The configuration with the primary at `path`, whose bytes are `primary`, as its only delegate.
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

/// The lines that depend on options, in the established order.
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

/// Without white space and with sorted keys; numbers stay as they are written.
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
