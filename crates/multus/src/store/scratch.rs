//! The scratch file `<cniDir>/<containerID>`: the delegates of a sandbox as they were attached, so that DEL needs
//! neither pod nor NAD nor API server (multus.md §9). The format is exactly upstream's, because each daemon must be
//! able to detach the attachments of the other.

mod elements;
mod format;

pub(crate) use elements::Elements;
pub(crate) use format::{Error, decode, encode};

use crate::names;
use cni::files;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const MODE: u32 = 0o600;

/// The scratch file of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Scratch {
    dir: PathBuf,
    container_id: String,
}

impl Scratch {
    /// The file of this sandbox below `cniDir`. `None` when the ID is not a valid file name there.
    pub(crate) fn new(cni_dir: &Path, container_id: &str) -> Option<Self> {
        let plain = !container_id.is_empty() && !container_id.starts_with('.') && !container_id.contains('/');
        (plain && container_id != names::RESULTS).then(|| Self {
            dir: cni_dir.to_owned(),
            container_id: container_id.to_owned(),
        })
    }

    /// Path of the file.
    pub(crate) fn path(&self) -> PathBuf {
        self.dir.join(&self.container_id)
    }

    /// Writes the file atomically. Does not wait for the disk, so that plugins can run in the meantime; see
    /// [`Scratch::sync`].
    pub(crate) fn write(&self, text: &[u8]) -> io::Result<()> {
        files::create_private_folder(&self.dir)?;
        files::write_lazily(&self.path(), text, MODE)
    }

    /// Waits until the file is on disk, so that it survives a crash of the node.
    pub(crate) fn sync(&self) -> io::Result<()> {
        files::sync(&self.path())
    }

    /// Content of the file; `None` without a file.
    pub(crate) fn read(&self) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.path()) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes the file. A missing file is no error.
    pub(crate) fn remove(&self) -> io::Result<()> {
        files::remove_if_present(&self.path())
    }

    /// Renames an unusable file for inspection, to a name that no sandbox has.
    pub(crate) fn set_aside(&self) -> io::Result<()> {
        // Container IDs have no leading dot.
        fs::rename(
            self.path(),
            self.dir.join(format!(".{}{}", self.container_id, names::CORRUPT)),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    #[test]
    fn file_is_private_and_removal_is_idempotent() {
        // multus#42 (the file)
        let dir = tempfile::tempdir().unwrap();
        let cni_dir = dir.path().join("cni");
        let scratch = Scratch::new(&cni_dir, "c1").unwrap();
        assert_eq!(scratch.read().unwrap(), None);
        scratch.write(b"[]").unwrap();
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode(&cni_dir), 0o700);
        assert_eq!(mode(&cni_dir.join("c1")), 0o600);
        assert_eq!(scratch.read().unwrap().as_deref(), Some(&b"[]"[..]));
        scratch.remove().unwrap();
        scratch.remove().unwrap();
        assert_eq!(fs::read_dir(&cni_dir).unwrap().count(), 0);
    }

    #[test]
    fn unsafe_id_has_no_file() {
        for id in ["", "..", "../a", "a/b", ".hidden", "results"] {
            assert_eq!(Scratch::new(Path::new("/d"), id), None, "{id}");
        }
    }
}
