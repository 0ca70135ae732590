//! The node's list of sysctls that the `tuning` plugin may set, a copy of a mounted `ConfigMap` (cluster-network §12.1).

use crate::{About, Error};
use cni::files;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The file that the plugin reads.
const NAME: &str = "allowlist.conf";
/// All users may read it; only root may replace it.
const MODE: u32 = 0o644;

/// The list of this container, and the list of the node.
#[derive(Debug)]
pub(crate) struct AllowList {
    from: PathBuf,
    to: PathBuf,
}

impl AllowList {
    /// The list `from`, for the plugins that read `dir`.
    pub(crate) fn new(from: &Path, dir: &Path) -> Self {
        Self {
            from: from.to_path_buf(),
            to: dir.join(NAME),
        }
    }

    /// The directories of both files.
    pub(crate) fn directories(&self) -> [PathBuf; 2] {
        [&self.from, &self.to].map(|path| path.parent().unwrap_or(Path::new("/")).to_path_buf())
    }

    /// The node's list, if it is missing or different.
    pub(crate) fn missing(&self) -> Result<Option<PathBuf>, Error> {
        Ok(self.change()?.map(|_| self.to.clone()))
    }

    /// Copies the list. Returns whether anything changed.
    pub(crate) fn ensure(&self) -> Result<bool, Error> {
        let Some(content) = self.change()? else {
            return Ok(false);
        };
        if let Some(dir) = self.to.parent() {
            fs::create_dir_all(dir).about("create", dir)?;
        }
        files::write_atomically(&self.to, &content, MODE).about("write", &self.to)?;
        Ok(true)
    }

    /// The new content of the node's list. The node keeps its list while the `ConfigMap` is absent.
    fn change(&self) -> Result<Option<Vec<u8>>, Error> {
        let wanted = read(&self.from)?;
        let found = read(&self.to)?;
        Ok(wanted.filter(|wanted| found.as_ref() != Some(wanted)))
    }
}

fn read(path: &Path) -> Result<Option<Vec<u8>>, Error> {
    match fs::read(path) {
        Ok(content) => Ok(Some(content)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).about("read", path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // cluster-network#87-88
    #[test]
    fn list_of_node_follows_config_map_and_survives_its_deletion() {
        let root = tempfile::tempdir().unwrap();
        let (mounted, tuning) = (root.path().join("mounted"), root.path().join("cni/tuning"));
        fs::create_dir(&mounted).unwrap();
        let from = mounted.join("allowlist.conf");
        let list = AllowList::new(&from, &tuning);
        assert!(!list.ensure().unwrap(), "there is no ConfigMap yet");
        assert!(!tuning.exists());

        let to = tuning.join("allowlist.conf");
        for content in ["^net.ipv4.conf.IFNAME.arp_notify$\n", "^net.core.somaxconn$\n"] {
            fs::write(&from, content).unwrap();
            assert_eq!(list.missing().unwrap(), Some(to.clone()));
            assert!(list.ensure().unwrap());
            assert_eq!(fs::read_to_string(&to).unwrap(), content);
            assert!(!list.ensure().unwrap());
        }

        fs::write(&to, "edited by hand").unwrap();
        assert!(list.ensure().unwrap());
        fs::remove_file(&from).unwrap();
        assert_eq!(list.missing().unwrap(), None);
        assert!(!list.ensure().unwrap());
        assert_eq!(fs::read_to_string(&to).unwrap(), "^net.core.somaxconn$\n");
    }
}
