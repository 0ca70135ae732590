//! The desired entries of the directory, and their installation.

use crate::copy::{self, Checksum, MODE, Staged, Stamp};
use crate::names::PREFIX;
use crate::{About, Error};
use std::collections::HashMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The desired file of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Entry {
    /// A regular file with the binary.
    Binary(String),
    /// A symbolic link.
    Link {
        name: String,
        /// The target as a path on the node.
        target: PathBuf,
    },
}

impl Entry {
    fn name(&self) -> &str {
        match self {
            Self::Binary(name) | Self::Link { name, .. } => name,
        }
    }
}

/// The entries of one plugin; `shipped` if the platform has a plugin of this name.
pub(crate) fn entries(name: &str, host_dir: Option<&Path>, shipped: bool) -> Vec<Entry> {
    let Some(host_dir) = host_dir else {
        return vec![Entry::Binary(name.to_owned())];
    };
    let ours = format!("{PREFIX}{name}");
    if shipped {
        return vec![Entry::Link {
            target: host_dir.join(name),
            name: ours,
        }];
    }
    let link = Entry::Link {
        name: name.to_owned(),
        target: host_dir.join(&ours),
    };
    vec![Entry::Binary(ours), link]
}

/// The plugins of one directory.
#[derive(Debug)]
pub(crate) struct Installation {
    dir: PathBuf,
    host_dir: Option<PathBuf>,
    from: PathBuf,
    names: Vec<String>,
    /// Plugins that are installed only if none with their name exists.
    unless_present: Vec<String>,
    checksum: Checksum,
    /// Verified binaries, which are not read again while they are unchanged. Missing ones are linked to them.
    verified: HashMap<String, Stamp>,
}

impl Installation {
    /// Computes the checksum of the binary; writes nothing.
    pub(crate) fn new(
        dir: &Path,
        host_dir: Option<&Path>,
        from: &Path,
        names: &[String],
    ) -> Result<Self, Error> {
        check_names(names)?;
        Ok(Self {
            dir: dir.to_path_buf(),
            host_dir: host_dir.map(Path::to_path_buf),
            from: from.to_path_buf(),
            names: names.to_vec(),
            unless_present: Vec::new(),
            checksum: Checksum::of(from)?,
            verified: HashMap::new(),
        })
    }

    /// Adds plugins that are installed only if none with their name exists.
    pub(crate) fn and_unless_present(self, names: Vec<String>) -> Result<Self, Error> {
        check_names(&names)?;
        Ok(Self {
            unless_present: names,
            ..self
        })
    }

    /// Missing or different files.
    pub(crate) fn missing(&mut self) -> Result<Vec<PathBuf>, Error> {
        Ok(self
            .wrong()?
            .iter()
            .map(|entry| self.dir.join(entry.name()))
            .collect())
    }

    /// Installs everything. Returns whether anything changed.
    pub(crate) fn ensure(&mut self) -> Result<bool, Error> {
        let wrong = self.wrong()?;
        let binaries: Vec<&str> = wrong
            .iter()
            .filter_map(|entry| match entry {
                Entry::Binary(name) => Some(name.as_str()),
                Entry::Link { .. } => None,
            })
            .collect();
        if !binaries.is_empty() {
            let staged = self.stage()?;
            for name in binaries {
                staged.place(name)?;
            }
        }
        // Links come last, because a plugin whose link has no target yet fails.
        for entry in &wrong {
            if let Entry::Link { name, target } = entry {
                let path = self.dir.join(name);
                if self.names.contains(name) {
                    // A plugin that the platform installed meanwhile is kept; the watch reports it.
                    copy::link_unless_file(target, &path)?;
                } else {
                    copy::link(target, &path)?;
                }
            }
        }
        if !wrong.is_empty() {
            copy::sync(&self.dir)?;
        }
        Ok(!wrong.is_empty())
    }

    /// The binary in the directory, linked to a valid one if there is one.
    fn stage(&self) -> Result<Staged, Error> {
        let existing = self
            .verified
            .keys()
            .find_map(|name| Staged::link(&self.dir.join(name), &self.dir));
        match existing {
            Some(staged) => Ok(staged),
            None => Staged::copy(&self.from, &self.dir, self.checksum),
        }
    }

    fn wrong(&mut self) -> Result<Vec<Entry>, Error> {
        let mut wrong = Vec::new();
        for name in self.names.clone() {
            let shipped = is_shipped(&self.dir.join(&name))?;
            for entry in entries(&name, self.host_dir.as_deref(), shipped) {
                if !self.is_right(&entry)? {
                    wrong.push(entry);
                }
            }
        }
        for name in &self.unless_present {
            if metadata(&self.dir.join(name))?.is_none() {
                wrong.push(Entry::Binary(name.clone()));
            }
        }
        Ok(wrong)
    }

    fn is_right(&mut self, entry: &Entry) -> Result<bool, Error> {
        let path = self.dir.join(entry.name());
        match entry {
            Entry::Link { name, target } => {
                // It is no source of the binary any more.
                self.verified.remove(name);
                Ok(fs::read_link(&path).is_ok_and(|found| found == *target))
            }
            Entry::Binary(name) => {
                let right = self.is_right_binary(name, &path)?;
                if !right {
                    self.verified.remove(name);
                }
                Ok(right)
            }
        }
    }

    fn is_right_binary(&mut self, name: &str, path: &Path) -> Result<bool, Error> {
        let Some(metadata) = metadata(path)? else {
            return Ok(false);
        };
        if !metadata.is_file() || metadata.permissions().mode() & 0o7777 != MODE {
            return Ok(false);
        }
        let stamp = Stamp::of(&metadata);
        // This file, or another name of it.
        if self.verified.values().any(|verified| *verified == stamp) {
            self.verified.insert(name.to_owned(), stamp);
            return Ok(true);
        }
        let right = match Checksum::of(path) {
            Ok(checksum) => checksum == self.checksum,
            // Deleted meanwhile.
            Err(Error::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => false,
            Err(error) => return Err(error),
        };
        if right {
            self.verified.insert(name.to_owned(), stamp);
        }
        Ok(right)
    }
}

/// Checks that all names are valid file names.
fn check_names(names: &[String]) -> Result<(), Error> {
    for name in names {
        if name.is_empty() || name.starts_with('.') || name.contains('/') {
            return Err(Error::InvalidName { name: name.clone() });
        }
    }
    Ok(())
}

/// Whether a plugin of the platform exists: a file that is not a link.
fn is_shipped(path: &Path) -> Result<bool, Error> {
    Ok(metadata(path)?.is_some_and(|metadata| !metadata.is_symlink()))
}

/// Metadata of the file or link itself; `None` if it does not exist.
fn metadata(path: &Path) -> Result<Option<fs::Metadata>, Error> {
    match fs::symlink_metadata(path) {
        Ok(metadata) => Ok(Some(metadata)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).about("inspect", path),
    }
}
