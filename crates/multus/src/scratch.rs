//! The scratch file `<cniDir>/<containerID>`: the delegates of a sandbox as they were attached, so that DEL needs
//! neither pod nor NAD nor API server (multus.md §9). The format is the established one, to the key: what one daemon
//! attached the other must be able to detach.

mod elements;
mod format;

pub use elements::Elements;
pub use format::{Error, decode, encode};

use crate::names;
use cni::files;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

const MODE: u32 = 0o600;

/// The scratch file of one sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scratch {
    dir: PathBuf,
    container_id: String,
}

impl Scratch {
    /// The file of this sandbox below `cniDir`. `None` when the ID can't be a file name there: then there is none.
    pub fn new(cni_dir: &Path, container_id: &str) -> Option<Self> {
        let plain = !container_id.is_empty() && !container_id.starts_with('.') && !container_id.contains('/');
        (plain && container_id != names::RESULTS).then(|| Self {
            dir: cni_dir.to_owned(),
            container_id: container_id.to_owned(),
        })
    }

    /// Where it lies.
    pub fn path(&self) -> PathBuf {
        self.dir.join(&self.container_id)
    }

    /// Writes it whole: readers see all of it or nothing. Only [`Scratch::sync`] waits for the disk: plugins may run
    /// meanwhile.
    pub fn write(&self, text: &[u8]) -> io::Result<()> {
        files::create_private_folder(&self.dir)?;
        files::write_lazily(&self.path(), text, MODE)
    }

    /// Waits until it is on disk, so that a crash of the node doesn't lose it.
    pub fn sync(&self) -> io::Result<()> {
        files::sync(&self.path())
    }

    /// Its text; `None` when there is none.
    pub fn read(&self) -> io::Result<Option<Vec<u8>>> {
        match fs::read(self.path()) {
            Ok(text) => Ok(Some(text)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes it; that it is gone already is fine.
    pub fn remove(&self) -> io::Result<()> {
        files::remove_if_present(&self.path())
    }

    /// Keeps an unusable file for people to look at, under a name that no sandbox has.
    pub fn set_aside(&self) -> io::Result<()> {
        // Container IDs don't begin with a dot.
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
    fn the_file_is_private_and_removable_twice() {
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
    fn an_id_that_leads_elsewhere_has_no_file() {
        for id in ["", "..", "../a", "a/b", ".hidden", "results"] {
            assert_eq!(Scratch::new(Path::new("/d"), id), None, "{id}");
        }
    }
}
