//! DELs that no daemon answered, kept for the next one (multus.md §7.1).
//!
//! ```text
//! <cniDir>/.missed/<containerID>:<interface>    what would have been posted to /cni, with the variables that matter
//! ```
//!
//! A DEL succeeds whatever happens, and the runtime does not repeat it: what it was to release (addresses, devices)
//! would be lost. The directory lies with the daemon's other state, so it survives a boot as the leases of addresses
//! do. The daemon reads it on the host, below its `chrootDir`.

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

/// The directory's name in `cniDir`. Container IDs don't begin with a dot.
pub const DIR: &str = ".missed";
/// Default of `cniDir`.
pub const CNI_DIR: &str = "/var/lib/cni/multus";
/// Most calls that are kept; many times the pods of a node.
pub const MAX_CALLS: usize = 2048;
/// Longest call that is kept or read, bytes: a configuration with what the runtime filled in has a few thousand.
pub const MAX_CALL: usize = 256 * 1024;
const MODE: u32 = 0o600;
/// The variables of a call that the daemon reads.
const VARIABLES: [&str; 5] = [CNI_COMMAND, CNI_CONTAINERID, CNI_NETNS, CNI_IFNAME, CNI_ARGS];

/// The directory below `cniDir`.
pub fn dir(cni_dir: &Path) -> PathBuf {
    cni_dir.join(DIR)
}

/// The file of an interface of a sandbox, so that a repeated DEL is kept once. Neither of the two names may hold a colon.
pub fn name(container_id: &str, ifname: &str) -> String {
    format!("{container_id}:{ifname}")
}

/// Keeps a DEL, on disk when this returns.
///
/// # Errors
/// It can't be written, is too long, or too many are kept already.
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
