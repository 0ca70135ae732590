//! The certificate of a server in files: the kubelet replaces all files of a Secret at once by a symbolic link, and a
//! person writes one after the other.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use thiserror::Error;

use super::{Identity, Tls};
use crate::client::chain;
use crate::watch_dir::DirWatcher;

/// Polling interval without file system events.
const CHECK: Duration = Duration::from_secs(10);

const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";

/// Files that cannot be used.
#[derive(Debug, Error)]
pub enum Error {
    /// A file cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// They are not a certificate and its key.
    #[error("no certificate and its key in {}", directory.display())]
    Unusable {
        /// Directory of the files.
        directory: PathBuf,
        /// The cause.
        #[source]
        source: super::Error,
    },
}

/// The files `tls.crt` and `tls.key` of a directory.
#[derive(Debug)]
pub struct Files {
    directory: PathBuf,
    /// The last content, valid or not.
    last: Option<Content>,
    /// The last logged error.
    complaint: String,
}

#[derive(Debug, PartialEq)]
struct Content {
    certificate: Vec<u8>,
    key: Vec<u8>,
}

impl Files {
    /// The files of a directory, which need not exist yet. Reads nothing.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self {
            directory: directory.into(),
            last: None,
            complaint: String::new(),
        }
    }

    /// Reads the files; `None` if they are unchanged since the last read.
    ///
    /// # Errors
    /// If they do not exist, or are invalid.
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

    /// Sets the server's certificate from the files, at once and whenever they change, for ever. An error is logged
    /// once, and the certificate stays unchanged. Calls `used` each time after the certificate was set.
    pub async fn follow(mut self, tls: &Tls, mut used: impl FnMut()) {
        let mut watcher = DirWatcher::new().ok();
        loop {
            // Each time anew: the directory may have been created or replaced.
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
            tracing::warn!(
                error = complaint,
                "cannot load the serving certificate, the previous one stays in use"
            );
            self.complaint = complaint;
        }
    }
}

fn watch(watcher: Option<&mut DirWatcher>, directory: &Path) {
    if let Some(Err(error)) = watcher.map(|watcher| watcher.add(directory)) {
        tracing::debug!(%error, directory = %directory.display(), "cannot watch");
    }
}

/// Waits until the files may have changed.
async fn changed(watcher: &mut Option<DirWatcher>) {
    let Some(watching) = watcher else {
        return tokio::time::sleep(CHECK).await;
    };
    if let Ok(Err(error)) = tokio::time::timeout(CHECK, watching.next()).await {
        tracing::warn!(%error, "no file system events, polling the certificate files");
        *watcher = None;
    }
}

#[cfg(test)]
mod tests;
