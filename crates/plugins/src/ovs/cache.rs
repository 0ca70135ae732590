//! The files by which the established plugins know their attachments (cni-plugins §10.4). Ours read them, so that they
//! detach what the established plugins attached, and write them for a way back.

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

/// Bytes of a file that are read: the longest config, and what is around it.
const LONGEST: u64 = 9 << 20;
const MODE: u32 = 0o600;

/// The file of one attachment.
#[derive(Debug, Clone)]
pub(crate) struct CacheFile(String);

impl CacheFile {
    /// `suffix` tells plugins apart that are chained to one attachment.
    pub(crate) fn new(container_id: &str, ifname: &str, suffix: &str) -> Self {
        CacheFile(format!("{container_id}-{ifname}{suffix}"))
    }

    /// The file of a record's attachment.
    pub(crate) fn of(key: &AttachmentId, suffix: &str) -> Self {
        CacheFile::new(&key.container_id, &key.ifname, suffix)
    }

    /// Its content. A file that cannot be read counts as missing, as with the established plugins.
    pub(crate) fn read<T: DeserializeOwned>(&self) -> Option<T> {
        let text = read(&self.path(CACHE)).or_else(|| self.read_old())?;
        json::from_slice(&text).ok()
    }

    /// Anybody can write to the older place: only a file of root's in a folder of root's counts.
    fn read_old(&self) -> Option<Vec<u8>> {
        let path = self.path(OLD_CACHE);
        let is_roots =
            |path: &Path| fs::symlink_metadata(path).is_ok_and(|it| it.uid() == 0 && it.mode() & 0o022 == 0);
        if is_roots(Path::new(OLD_CACHE)) && is_roots(&path) {
            return read(&path);
        }
        None
    }

    /// Writes it, whole or not at all.
    pub(crate) fn write(&self, content: &impl Serialize) -> Result<(), Error> {
        let path = self.path(CACHE);
        let write = || -> io::Result<()> {
            let text = serde_json::to_vec(content)?;
            files::create_private_folder(Path::new(CACHE))?;
            files::write_lazily(&path, &text, MODE)
        };
        write().map_err(|error| Error::internal(format!("failed to write {}: {error}", path.display())))
    }

    /// Removes it; one that is gone already is fine.
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
