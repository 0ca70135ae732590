//! Settings from the mounted `ConfigMap`, read at the start and after each change (secondary-dns §3.1).
//!
//! ```text
//! kubelet ── ConfigMap ──> files ── inotify ──> values that differ ──> monitor with other settings
//! ```

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kube_kit::watch_dir::DirWatcher;

use crate::names::env;

/// Keys of the `ConfigMap`. They have the names of the variables that they override.
pub(crate) const KEYS: [&str; 4] = [env::DOMAIN, env::NAME_SERVER_IP, env::TTL, env::ALLOWED];
/// The link that the kubelet replaces, so that all keys change at once.
const DATA: &str = "..data";
/// Interval of reads in the absence of inotify events.
const POLL: Duration = Duration::from_secs(30);
/// Changes are collected for this time: a writer usually has several.
const CALM: Duration = Duration::from_millis(50);

/// The mounted `ConfigMap`, if there is one.
#[derive(Debug)]
pub struct Configuration {
    directory: Option<PathBuf>,
    values: [Option<String>; KEYS.len()],
}

impl Configuration {
    /// Reads the files of a directory. Without a directory, there are no values.
    pub fn read(directory: Option<PathBuf>) -> Self {
        let values = directory.as_deref().map(values).unwrap_or_default();
        Self { directory, values }
    }

    /// Whether there is a `ConfigMap`, whose values may change.
    pub fn is_mounted(&self) -> bool {
        self.directory.is_some()
    }

    /// Reads variables. A key of the `ConfigMap` overrides the environment.
    pub fn lookup<'c>(
        &'c self,
        environment: &'c impl Fn(&str) -> Option<String>,
    ) -> impl Fn(&str) -> Option<String> + 'c {
        move |name| {
            let place = KEYS.iter().position(|key| *key == name);
            let value = place.and_then(|place| self.values[place].clone());
            value.or_else(|| environment(name))
        }
    }

    /// Waits for a changed value. Cancel-safe. Without a directory it waits forever.
    pub async fn changed(&mut self) {
        let Some(directory) = self.directory.clone() else {
            return std::future::pending().await;
        };
        let mut watcher = None;
        loop {
            if watcher.is_none() {
                watcher = watch(&directory);
            }
            let found = values(&directory);
            if found != self.values {
                self.values = found;
                return;
            }
            match &mut watcher {
                None => tokio::time::sleep(POLL).await,
                Some(watching) => match tokio::time::timeout(POLL, watching.next()).await {
                    Ok(Ok(_)) => tokio::time::sleep(CALM).await,
                    // The directory may have been replaced.
                    Ok(Err(_)) | Err(_) => watcher = None,
                },
            }
        }
    }
}

/// A watch of a directory; `None` after a failure, which is logged.
fn watch(directory: &Path) -> Option<DirWatcher> {
    let watched = DirWatcher::new().and_then(|mut watcher| {
        watcher.add(directory)?;
        Ok(watcher)
    });
    let logged = watched.inspect_err(|error| {
        let directory = directory.display();
        tracing::debug!(%directory, %error, "cannot watch the configuration, reading it now and then");
    });
    logged.ok()
}

/// Values of the files. The kubelet's atomic update makes them consistent.
fn values(directory: &Path) -> [Option<String>; KEYS.len()] {
    let directory = fs::canonicalize(directory.join(DATA)).unwrap_or_else(|_| directory.to_owned());
    KEYS.map(|key| fs::read_to_string(directory.join(key)).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Writes a version in the manner of the kubelet.
    fn publish(directory: &Path, version: &str, values: [&str; 2]) {
        let data = directory.join(version);
        fs::create_dir(&data).unwrap();
        for (key, value) in KEYS.iter().zip(values) {
            fs::write(data.join(key), value).unwrap();
        }
        symlink(version, directory.join("..new")).unwrap();
        fs::rename(directory.join("..new"), directory.join(DATA)).unwrap();
    }

    fn read(configuration: &Configuration, key: &str) -> Option<String> {
        let environment = |name: &str| Some(format!("{name} of the environment"));
        configuration.lookup(&environment)(key)
    }

    #[tokio::test]
    async fn values_that_differ_are_awaited() {
        let directory = tempfile::tempdir().unwrap();
        publish(directory.path(), "..1", ["a.example", ""]);
        let mut configuration = Configuration::read(Some(directory.path().to_owned()));
        let domain = |configuration: &Configuration| read(configuration, "DOMAIN").unwrap();
        assert_eq!(domain(&configuration), "a.example");
        assert_eq!(read(&configuration, "NAME_SERVER_IP").as_deref(), Some(""));
        assert_eq!(
            read(&configuration, "KSD_TTL").as_deref(),
            Some("KSD_TTL of the environment")
        );
        assert_eq!(
            read(&configuration, "KSD_IPV6").as_deref(),
            Some("KSD_IPV6 of the environment")
        );
        // First no value differs, then the name server does.
        publish(directory.path(), "..2", ["a.example", ""]);
        let short = tokio::time::timeout(Duration::from_millis(300), configuration.changed());
        assert!(short.await.is_err());
        publish(directory.path(), "..3", ["a.example", "192.0.2.1"]);
        let long = tokio::time::timeout(Duration::from_secs(25), configuration.changed());
        long.await.expect("inotify is faster than the poll");
        assert_eq!(
            read(&configuration, "NAME_SERVER_IP").as_deref(),
            Some("192.0.2.1")
        );
        // A new key appears.
        let present = directory.path().join(DATA);
        fs::write(fs::canonicalize(present).unwrap().join("KSD_TTL"), "60").unwrap();
        let long = tokio::time::timeout(Duration::from_mins(1), configuration.changed());
        long.await.expect("the poll is faster");
        assert_eq!(read(&configuration, "KSD_TTL").as_deref(), Some("60"));
    }

    #[test]
    fn key_that_is_missing_is_the_environments() {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("DOMAIN"), "b.example").unwrap();
        let configuration = Configuration::read(Some(directory.path().to_owned()));
        assert_eq!(read(&configuration, "DOMAIN").as_deref(), Some("b.example"));
        let other = read(&configuration, "NAME_SERVER_IP");
        assert_eq!(other.as_deref(), Some("NAME_SERVER_IP of the environment"));
        assert_eq!(
            read(&Configuration::read(None), "DOMAIN").as_deref(),
            Some("DOMAIN of the environment")
        );
    }
}
