//! The certificate of a server as files that somebody else writes: the kubelet, which exchanges all files of a Secret at
//! once by a symbolic link, or a person, who writes one after the other.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use super::{Identity, Tls};
use crate::client::chain;
use crate::watch_dir::DirWatcher;

/// Where no file system event tells of a change, it is seen within this time.
const CHECK: Duration = Duration::from_secs(10);

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// The files can't be used.
#[derive(Debug, Error)]
pub enum Error {
    /// One can't be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// Which one.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// They hold no certificate with its key.
    #[error("no certificate and its key in {}", directory.display())]
    Unusable {
        /// Where they are.
        directory: PathBuf,
        /// What is wrong.
        #[source]
        source: super::Error,
    },
}

/// The files `tls.crt` and `tls.key` of a directory.
#[derive(Debug)]
pub struct Files {
    directory: PathBuf,
    /// What was read last, whether it was of use or not.
    last: Option<Content>,
    /// What was complained of last.
    complaint: String,
}

#[derive(Debug, PartialEq)]
struct Content {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Files {
    /// Those of a directory, which need not be there yet. Nothing is read.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            last: None,
            complaint: String::new(),
        }
    }

    /// Reads them; nothing when they are what they were when they were read last.
    ///
    /// # Errors
    /// When they are not there, or can't be used.
    pub fn read(&mut self) -> Result<Option<Identity>, Error> {
        let content = Content {
            certificate: self.file(CERTIFICATE)?,
            key: self.file(KEY)?,
        };
        if self.last.as_ref() == Some(&content) {
            return Ok(None);
        }
        let identity =
            Identity::from_pem(&content.certificate, &content.key).map_err(|source| Error::Unusable {
                directory: self.directory.clone(),
                source,
            });
        self.last = Some(content);
        identity.map(Some)
    }

    fn file(&self, name: &str) -> Result<Vec<u8>, Error> {
        let path = self.directory.join(name);
        fs::read(&path).map_err(|source| Error::Read { path, source })
    }

    /// Lets a server be known by them for ever: at once, and whenever they change. What can't be used is said in the log
    /// once, and the certificate stays what it is. `used` is called each time when they are used.
    pub async fn follow(mut self, tls: &Tls, mut used: impl FnMut()) {
        let mut watcher = DirWatcher::new().ok();
        loop {
            // Anew each time: the directory may not have been there, or may be another one.
            watch(watcher.as_mut(), &self.directory);
            match self
                .read()
                .map(|identity| identity.map(|new| tls.set_identity(new)))
            {
                Ok(None) => {}
                Ok(Some(Ok(()))) => {
                    self.complaint.clear();
                    tracing::info!(directory = %self.directory.display(), "serving certificate loaded");
                    used();
                }
                Ok(Some(Err(error))) => self.complain(&error),
                Err(error) => self.complain(&error),
            }
            changed(&mut watcher).await;
        }
    }

    fn complain(&mut self, error: &dyn std::error::Error) {
        let complaint = chain(error);
        if complaint != self.complaint {
            tracing::warn!(error = complaint, "no serving certificate, the one before stays");
            self.complaint = complaint;
        }
    }
}

fn watch(watcher: Option<&mut DirWatcher>, directory: &Path) {
    if let Some(Err(error)) = watcher.map(|watcher| watcher.add(directory)) {
        tracing::debug!(%error, directory = %directory.display(), "cannot watch");
    }
}

/// Waits until something may have changed.
async fn changed(watcher: &mut Option<DirWatcher>) {
    let Some(watching) = watcher else {
        return tokio::time::sleep(CHECK).await;
    };
    if let Ok(Err(error)) = tokio::time::timeout(CHECK, watching.next()).await {
        tracing::warn!(%error, "files are looked at from time to time alone");
        *watcher = None;
    }
}

#[cfg(test)]
mod tests;
