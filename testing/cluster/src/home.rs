//! The directory of caches and clusters.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::error::{At, Error, Result};
use crate::progress::Progress;

/// Directory of Weft's caches and clusters on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Home(PathBuf);

impl Home {
    /// `$WEFT_HOME`, else `$XDG_CACHE_HOME/weft`, else `~/.cache/weft`.
    pub fn from_env() -> Result<Self> {
        let var = |name| {
            std::env::var_os(name)
                .filter(|value| !value.is_empty())
                .map(PathBuf::from)
        };
        let path = var("WEFT_HOME")
            .or_else(|| var("XDG_CACHE_HOME").map(|cache| cache.join("weft")))
            .or_else(|| var("HOME").map(|home| home.join(".cache/weft")))
            .ok_or_else(|| Error::Missing("set WEFT_HOME to a directory for Weft's caches".to_owned()))?;
        Self::at(&path)
    }

    /// Returns the home at `path`, which is created if it does not exist.
    pub fn at(path: &Path) -> Result<Self> {
        fs::create_dir_all(path).at("create", path)?;
        let path = path.canonicalize().at("resolve", path)?;
        // Mount options and lists of bind mounts contain this path.
        if path.to_string_lossy().contains([':', ',', '\\', ' ', '\t', '\n']) {
            return Err(Error::Missing(format!(
                "{} cannot be used: the path must not hold spaces, colons or commas; set WEFT_HOME to another directory",
                path.display()
            )));
        }
        if path.starts_with("/usr") {
            // The unpacked programs are overlaid on /usr, and a layer cannot lie inside another.
            return Err(Error::Missing("WEFT_HOME must not be below /usr".to_owned()));
        }
        Ok(Self(path))
    }

    /// The directory itself.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// Returns a subdirectory, which is created if it does not exist.
    pub fn dir(&self, name: &str) -> Result<PathBuf> {
        let path = self.0.join(name);
        fs::create_dir_all(&path).at("create", &path)?;
        Ok(path)
    }

    /// Returns the bytes that programs can still write to its file system.
    pub fn free(&self) -> Result<u64> {
        let of = rustix::fs::statvfs(&self.0).map_err(io::Error::from);
        let of = of.at("read the file system of", &self.0)?;
        Ok(of.f_bavail.saturating_mul(of.f_frsize))
    }

    /// Acquires the lock `name`, and waits for it if necessary. A drop of the file releases the lock, and so does kill
    /// -9.
    pub fn lock(&self, name: &str, progress: &mut dyn Progress) -> Result<File> {
        let path = self.dir("locks")?.join(name);
        let file = File::create(&path).at("create", &path)?;
        if file.try_lock().is_err() {
            progress.step(&format!(
                "waiting for another command that holds {}",
                path.display()
            ));
            file.lock().at("lock", &path)?;
        }
        Ok(file)
    }
}
