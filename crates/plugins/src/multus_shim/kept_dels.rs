//! DELs that were not answered or left an attachment, kept for the daemon (multus.md §7.1).
//!
//! ```text
//! <cniDir>/.missed/<containerID>:<interface>    the request body for /cni, with the relevant variables
//! ```
//!
//! A DEL always succeeds, so the runtime does not repeat it, and the addresses and devices would not be released. The
//! directory is part of the daemon's state and survives a reboot, as the leases do. The daemon reads it below its
//! `chrootDir`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cni::files;
use cni::names::{CNI_ARGS, CNI_COMMAND, CNI_CONTAINERID, CNI_IFNAME, CNI_NETNS};
use cni::plugin::Call;

use super::Request;

/// The directory's name in `cniDir`. Container IDs do not start with a dot.
pub const DIR: &str = ".missed";
/// Default of `cniDir`.
pub const CNI_DIR: &str = "/var/lib/cni/multus";
/// Limit of kept calls: many times the pods of a node.
pub const MAX_CALLS: usize = 2048;
/// Maximum size of a kept call in bytes. A configuration with the runtime's values has a few thousand.
pub const MAX_CALL: usize = 256 * 1024;
const MODE: u32 = 0o600;
/// The `CNI_*` variables that the daemon reads.
const VARIABLES: [&str; 5] = [CNI_COMMAND, CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME, CNI_ARGS];

/// The directory of kept DELs below `cniDir`.
pub fn dir(cni_dir: &Path) -> PathBuf {
    cni_dir.join(DIR)
}

/// The file name for a sandbox's interface: a repeated DEL is kept once. Neither part can contain a colon.
pub fn name(container_id: &str, ifname: &str) -> String {
    format!("{container_id}:{ifname}")
}

/// Writes a DEL to disk, synced.
///
/// # Errors
/// The file cannot be written, the call is too long, or the limit is reached.
pub(super) fn keep(call: &Call, cni_dir: &Path) -> io::Result<PathBuf> {
    let request = &call.request;
    let env: BTreeMap<_, _> = call
        .variables
        .iter()
        .filter(|(name, _)| VARIABLES.contains(&name.as_str()))
        .map(|(name, value)| (name.clone(), value.clone()))
        .collect();
    let text = serde_json::to_vec(&Request {
        env: &env,
        config: STANDARD.encode(&call.stdin),
    })?;
    if text.len() > MAX_CALL {
        return Err(refused("the call is too long"));
    }
    let dir = dir(cni_dir);
    let path = dir.join(name(&request.container_id, &request.ifname));
    files::create_private_folder(&dir)?;
    if !path.exists() && fs::read_dir(&dir)?.count() >= MAX_CALLS {
        return Err(refused("too many calls are kept already"));
    }
    files::write_atomically(&path, &text, MODE)?;
    Ok(path)
}

fn refused(why: &'static str) -> io::Error {
    io::Error::new(ErrorKind::QuotaExceeded, why)
}
