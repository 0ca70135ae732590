//! Lists the plugins' records and leases on this node, of all networks, for programs that search for leftovers.
//! Read-only.
//!
//! ```text
//! /run/cni/weft/PLUGIN/NETWORK/CONTAINER:IFNAME   a record of a plugin ──┐
//! /var/lib/cni/networks/NETWORK/ADDRESS           a lease of host-local ─┴─> Trace
//! ```

use std::{
    fs,
    io::{self, Read as _},
    net::IpAddr,
    path::{Path, PathBuf},
    time::SystemTime,
};

use cni::files;
use linux::files::{Links, open_regular};

use crate::{
    host_local::Owner,
    names::{HOST_LOCAL, HOST_LOCAL_DATA, STATE},
    record::AttachmentId,
};

/// Limit of traces, which bounds the memory.
pub const MAX_TRACES: usize = 8192;
/// Exceeds the maximum length of a lease, in bytes.
const LEASE_LIMIT: u64 = 4096;

/// A record or lease of an attachment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trace {
    /// The plugin's name.
    pub plugin: String,
    /// Name of the network.
    pub network: String,
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// `CNI_IFNAME`, empty in leases of old plugins.
    pub ifname: String,
    /// The leased address.
    pub address: Option<IpAddr>,
    /// Time of the last write.
    pub written: SystemTime,
}

/// A directory is unreadable.
#[derive(Debug, thiserror::Error)]
#[error("cannot read {}: {source}", path.display())]
pub struct Error {
    path: PathBuf,
    source: io::Error,
}

/// All traces on this node, at most [`MAX_TRACES`].
///
/// # Errors
/// A directory is unreadable.
pub fn read() -> Result<Vec<Trace>, Error> {
    let mut traces = records(Path::new(STATE))?;
    traces.extend(leases(Path::new(HOST_LOCAL_DATA))?);
    traces.truncate(MAX_TRACES);
    Ok(traces)
}

fn records(state: &Path) -> Result<Vec<Trace>, Error> {
    let mut traces = Vec::new();
    // The folder `host-local` holds the index of leases.
    for plugin in names(state)?.into_iter().filter(|name| name != HOST_LOCAL) {
        let folder = state.join(&plugin);
        for network in names(&folder)? {
            for name in names(&folder.join(&network))? {
                let Some(id) = AttachmentId::from_file_name(&name) else {
                    continue;
                };
                let path = folder.join(&network).join(&name);
                // A concurrent DEL may remove it.
                let Some(written) = written(&path) else { continue };
                traces.push(Trace {
                    plugin: plugin.clone(),
                    network: network.clone(),
                    container_id: id.container_id,
                    ifname: id.ifname,
                    address: None,
                    written,
                });
                if traces.len() >= MAX_TRACES {
                    return Ok(traces);
                }
            }
        }
    }
    Ok(traces)
}

fn leases(data: &Path) -> Result<Vec<Trace>, Error> {
    let mut traces = Vec::new();
    for network in names(data)? {
        let folder = data.join(&network);
        for name in names(&folder)? {
            let (Ok(address), path) = (name.parse::<IpAddr>(), folder.join(&name)) else {
                continue;
            };
            let Some((owner, written)) = owner(&path).zip(written(&path)) else {
                continue;
            };
            traces.push(Trace {
                plugin: HOST_LOCAL.to_owned(),
                network: network.clone(),
                container_id: owner.container_id().to_owned(),
                ifname: owner.ifname().unwrap_or_default().to_owned(),
                address: Some(address),
                written,
            });
            if traces.len() >= MAX_TRACES {
                return Ok(traces);
            }
        }
    }
    Ok(traces)
}

/// The owner of a lease. `None` for a file that no plugin wrote.
fn owner(path: &Path) -> Option<Owner> {
    let mut text = String::new();
    let file = open_regular(path, Links::Refuse).ok()?;
    file.take(LEASE_LIMIT).read_to_string(&mut text).ok()?;
    Owner::parse(&text)
}

fn written(path: &Path) -> Option<SystemTime> {
    fs::symlink_metadata(path).ok()?.modified().ok()
}

/// The sorted names in a directory. Empty if the directory does not exist.
fn names(folder: &Path) -> Result<Vec<String>, Error> {
    let failed = |source| Error {
        path: folder.to_owned(),
        source,
    };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if files::is_absent(&error) || error.kind() == io::ErrorKind::NotADirectory => {
            return Ok(Vec::new());
        }
        Err(error) => return Err(failed(error)),
    };
    let mut names = Vec::new();
    for entry in entries {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn short(traces: &[Trace]) -> Vec<String> {
        let line = |trace: &Trace| {
            let address = trace.address.map(|ip| ip.to_string()).unwrap_or_default();
            let Trace {
                plugin,
                network,
                container_id,
                ifname,
                ..
            } = trace;
            format!("{plugin} {network} {container_id} {ifname} {address}")
        };
        traces.iter().map(line).collect()
    }

    #[test]
    fn records_name_plugin_network_and_attachment() {
        let state = tempfile::tempdir().unwrap();
        for path in [
            "bridge/lan/c1:net1",
            "bridge/lan/stray",
            "portmap/web/c2:eth0",
            "host-local/lan/x:y",
        ] {
            let path = state.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        let traces = records(state.path()).unwrap();
        assert_eq!(short(&traces), ["bridge lan c1 net1 ", "portmap web c2 eth0 "]);
        assert_eq!(records(&state.path().join("none")).unwrap(), []);
    }

    #[test]
    fn leases_have_owners_and_manual_files_are_skipped() {
        let data = tempfile::tempdir().unwrap();
        let lan = data.path().join("lan");
        fs::create_dir(&lan).unwrap();
        for (name, text) in [
            ("10.0.0.2", "c1\r\nnet1"),
            ("10.0.0.3", ""),
            ("10.0.0.4", "c2"),
            ("lock", "c3\r\nnet1"),
            ("last_reserved_ip.0", "10.0.0.2"),
        ] {
            fs::write(lan.join(name), text).unwrap();
        }
        let traces = leases(data.path()).unwrap();
        assert_eq!(
            short(&traces),
            ["host-local lan c1 net1 10.0.0.2", "host-local lan c2  10.0.0.4"]
        );
    }
}
