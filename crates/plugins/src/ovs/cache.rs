//! The cache files of the upstream plugins (cni-plugins §10.4). Ours read them to detach upstream's attachments, and
//! write them to permit a migration back.

use std::{
    fs,
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

use cni::{Error, files, json};
use linux::files::{Links, open_regular};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    names::ovs::{CACHE, OLD_CACHE},
    record::AttachmentId,
};

/// Maximum file size in bytes: the longest config with its envelope.
const LONGEST: u64 = 9 << 20;
const MODE: u32 = 0o600;

/// The cache file of an attachment.
#[derive(Debug, Clone)]
pub(crate) struct CacheFile(String);

impl CacheFile {
    /// `suffix` distinguishes the chained plugins of one attachment.
    pub(crate) fn new(container_id: &str, ifname: &str, suffix: &str) -> Self {
        CacheFile(format!("{container_id}-{ifname}{suffix}"))
    }

    /// The file for the attachment of a record.
    pub(crate) fn of(key: &AttachmentId, suffix: &str) -> Self {
        CacheFile::new(&key.container_id, &key.ifname, suffix)
    }

    /// The content. Like upstream, treats an unreadable file as missing.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Option<T> {
        let text = read(&self.path(CACHE)).or_else(|| self.read_old())?;
        json::from_slice(&text).ok()
    }

    /// Reads the file in the old, world-writable location. Requires root as the owner of the file and its folder.
    fn read_old(&self) -> Option<Vec<u8>> {
        let path = self.path(OLD_CACHE);
        let is_roots =
            |path: &Path| fs::symlink_metadata(path).is_ok_and(|it| it.uid() == 0 && it.mode() & 0o022 == 0);
        if is_roots(Path::new(OLD_CACHE)) && is_roots(&path) {
            return read(&path);
        }
        None
    }

    /// Writes the file atomically.
    pub(crate) fn write(&self, content: &impl Serialize) -> Result<(), Error> {
        let path = self.path(CACHE);
        let write = || -> io::Result<()> {
            let text = serde_json::to_vec(content)?;
            files::create_private_folder(Path::new(CACHE))?;
            files::write_lazily(&path, &text, MODE)
        };
        write().map_err(|error| Error::internal(format!("failed to write {}: {error}", path.display())))
    }

    /// Removes the file. A missing file is no error.
    pub(crate) fn remove(&self) -> Result<(), Error> {
        for path in [self.path(CACHE), self.path(OLD_CACHE)] {
            files::remove_if_present(&path)
                .map_err(|error| Error::internal(format!("failed to remove {}: {error}", path.display())))?;
        }
        Ok(())
    }

    fn path(&self, folder: &str) -> PathBuf {
        Path::new(folder).join(&self.0)
    }
}

fn read(path: &Path) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let file = open_regular(path, Links::Refuse).ok()?;
    file.take(LONGEST).read_to_end(&mut text).ok()?;
    Some(text)
}
