//! The controller's configuration: two sockets (multus.md §13).

use crate::names;
use cni::json;
use serde::Deserialize;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The configuration is unusable.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("failed to read the config file's contents: {0}")]
    Read(#[source] io::Error),
    /// The text is malformed.
    #[error("failed to unmarshall the daemon configuration: {0}")]
    Parse(#[source] json::Error),
}

/// Sockets and timeouts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// Socket of the container runtime.
    pub cri_socket: PathBuf,
    /// Socket of the multus daemon.
    pub multus_socket: PathBuf,
    /// Timeouts. Not configurable by the file.
    pub timeouts: Timeouts,
}

/// Timeouts of other components.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Timeouts {
    /// Timeout of one call to the daemon. Plugins may wait for leases.
    pub answer: Duration,
    /// How long calls to a restarting daemon are retried.
    pub daemon: Duration,
    /// How long status writes are retried.
    pub status: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self {
            answer: Duration::from_mins(2),
            daemon: Duration::from_mins(1),
            status: Duration::from_mins(1),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    cri_socket_path: String,
    multus_socket_path: String,
}

impl Config {
    /// Reads the file.
    pub fn load(path: &Path) -> Result<Self, Error> {
        Self::parse(&fs::read(path).map_err(Error::Read)?)
    }

    fn parse(text: &[u8]) -> Result<Self, Error> {
        let Keys {
            cri_socket_path,
            multus_socket_path,
        } = json::from_slice(text).map_err(Error::Parse)?;
        let or = |path: String, default: &str| {
            if path.is_empty() {
                default.into()
            } else {
                path.into()
            }
        };
        Ok(Self {
            cri_socket: or(cri_socket_path, names::CRI_SOCKET),
            multus_socket: or(multus_socket_path, names::MULTUS_SOCKET),
            timeouts: Timeouts::default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_sockets_with_defaults() {
        // multus#91 (the defaults)
        let config =
            Config::parse(br#"{"criSocketPath":"/host/run/crio/crio.sock","multusSocketPath":"/m"}"#)
                .unwrap();
        assert_eq!(config.cri_socket, Path::new("/host/run/crio/crio.sock"));
        assert_eq!(config.multus_socket, Path::new("/m"));
        let config = Config::parse(b"{}").unwrap();
        assert_eq!(config.cri_socket, Path::new("/run/containerd/containerd.sock"));
        assert_eq!(config.multus_socket, Path::new("/var/run/multus-cni/multus.sock"));
    }

    #[test]
    fn config_errors_are_described() {
        // multus#91 (the causes)
        let error = Config::load(Path::new("/nowhere/at/all"))
            .unwrap_err()
            .to_string();
        assert!(
            error.starts_with("failed to read the config file's contents: "),
            "{error}"
        );
        let error = Config::parse(b"{").unwrap_err().to_string();
        assert!(
            error.starts_with("failed to unmarshall the daemon configuration: "),
            "{error}"
        );
    }
}
