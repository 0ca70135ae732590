//! Follows the zone files of a directory: reads new and changed files after events of inotify, and periodically
//! (secondary-dns §7).

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::rr::Name;
use kube_kit::lock;
use kube_kit::serve::Readiness;
use kube_kit::watch_dir::DirWatcher;

use crate::answer::SharedZones;
use crate::corefile::Directory;
use crate::zone::{Zone, file};

/// Maximum depth of nested directories.
const DEPTH: usize = 8;
/// Maximum size of a zone file in bytes, enough for half a million addresses.
const LARGEST: u64 = 64 << 20;
/// Changes are collected for this time: a writer usually has several.
const CALM: Duration = Duration::from_millis(50);
/// Maximum interval of retries for a missing directory.
const ABSENT: Duration = Duration::from_secs(5);

/// State of a file at its last read. A changed file has other values.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
struct Stamp {
    inode: u64,
    size: u64,
    modified: (i64, i64),
}

/// Stamp of a file that could not be read, maybe for a passing reason. No file has it: the next scan reads again.
const UNREAD: Stamp = Stamp {
    inode: 0,
    size: 0,
    modified: (0, 0),
};

/// Why a file has no zone.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("{0}")]
    Read(#[source] io::Error),
    #[error("{0}")]
    Content(String),
}

/// Files that were read, with their zones.
type Known = HashMap<Name, (PathBuf, Stamp)>;

/// Contents of a directory.
#[derive(Debug, Default)]
struct Found {
    /// Zones of files that are new or different.
    read: Vec<(PathBuf, Stamp, Name, Result<Zone, Error>)>,
    /// Zones with an unchanged file.
    same: Vec<Name>,
    /// Directories to watch.
    directories: Vec<PathBuf>,
}

/// Follows the files of a directory forever. `loaded` becomes ready with the first zone.
pub(crate) async fn follow(directory: Directory, zones: SharedZones, loaded: Readiness) {
    let mut known = Known::new();
    let directory = Arc::new(directory);
    let mut is_logged = false;
    loop {
        // A new watcher after each absence of the directory: inotify watches the directory and not its name.
        let mut watcher = watcher(&directory);
        // The watch starts before the read, so that no change in between is missed.
        let mut watched = HashSet::from([directory.path.clone()]);
        watch(watcher.as_mut(), &directory.path);
        loop {
            let found = scan(&directory, &known).await;
            let (is_there, mut is_wider) = (found.is_ok(), false);
            match found {
                Ok(mut found) => {
                    for path in std::mem::take(&mut found.directories) {
                        if !watched.contains(&path) {
                            watch(watcher.as_mut(), &path);
                            watched.insert(path);
                            is_wider = true;
                        }
                    }
                    take(found, &zones, &mut known, &loaded).await;
                    is_logged = false;
                }
                Err(error) if !is_logged => {
                    let path = directory.path.display();
                    tracing::warn!(
                        "plugin/auto: Directory does not exist or cannot be read: {path}: {error}"
                    );
                    is_logged = true;
                }
                Err(_) => {}
            }
            let Some(interval) = directory.scan else { return };
            if is_wider {
                // A file in a newly watched directory may be newer than the scan.
            } else if is_there {
                changed(watcher.as_mut(), interval).await;
            } else {
                tokio::time::sleep(interval.min(ABSENT)).await;
                break;
            }
        }
    }
}

fn watcher(directory: &Directory) -> Option<DirWatcher> {
    directory.scan?;
    match DirWatcher::new() {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            tracing::warn!("plugin/auto: Zone files are only read every now and then: {error}");
            None
        }
    }
}

fn watch(watcher: Option<&mut DirWatcher>, path: &Path) {
    if let Some(Err(error)) = watcher.map(|watcher| watcher.add(path)) {
        tracing::debug!(%error, path = %path.display(), "cannot watch a directory");
    }
}

/// Waits for a possible change, at most for the scan interval.
async fn changed(watcher: Option<&mut DirWatcher>, scan: Duration) {
    let Some(watcher) = watcher else {
        return tokio::time::sleep(scan).await;
    };
    match tokio::time::timeout(scan, watcher.next()).await {
        Err(_) => {}
        Ok(Ok(_)) => tokio::time::sleep(CALM).await,
        Ok(Err(error)) => {
            tracing::debug!(%error, "cannot watch a directory");
            tokio::time::sleep(scan).await;
        }
    }
}

/// Scans a directory and reads new files, on a separate thread if that may take long.
async fn scan(directory: &Arc<Directory>, known: &Known) -> io::Result<Found> {
    let (directory, known) = (Arc::clone(directory), known.clone());
    let scanned = tokio::task::spawn_blocking(move || {
        let mut found = Found::default();
        walk(&directory.path, DEPTH, &directory, &known, &mut found)?;
        Ok(found)
    });
    scanned.await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

fn walk(
    path: &Path,
    depth: usize,
    directory: &Directory,
    known: &Known,
    found: &mut Found,
) -> io::Result<()> {
    let mut entries = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        entries.push((entry.path(), entry.file_type()?.is_dir()));
    }
    entries.sort();
    found.directories.push(path.to_owned());
    for (path, is_directory) in entries {
        if is_directory {
            if depth > 0 {
                // An unreadable directory hides only its own files.
                let _ = walk(&path, depth - 1, directory, known, found);
            }
            continue;
        }
        let name = path.file_name().and_then(|name| name.to_str());
        let Some(zone) = name.and_then(|name| directory.zone(name)) else {
            continue;
        };
        let Ok(metadata) = fs::metadata(&path) else {
            continue;
        };
        if !metadata.is_file() {
            continue;
        }
        let stamp = Stamp {
            inode: metadata.ino(),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
        };
        let taken = |other: &(PathBuf, Stamp, Name, _)| other.2 == zone;
        if found.same.contains(&zone) || found.read.iter().any(taken) {
            continue;
        }
        if known.get(&zone).is_some_and(|it| *it == (path.clone(), stamp)) {
            found.same.push(zone);
        } else {
            let read = read(&path, &zone, stamp.size);
            found.read.push((path, stamp, zone, read));
        }
    }
    Ok(())
}

fn read(path: &Path, zone: &Name, size: u64) -> Result<Zone, Error> {
    if size > LARGEST {
        return Err(Error::Content(format!("it has more than {LARGEST} octets")));
    }
    let text = fs::read_to_string(path).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData => Error::Content(error.to_string()),
        _ => Error::Read(error),
    })?;
    file::read(&text, zone).map_err(|error| Error::Content(error.to_string()))
}

/// The version of a zone. A file that was read during its write has the serial of the complete file, so the number of
/// records is part of the version.
fn version(zone: &Zone) -> (u32, usize) {
    (zone.soa().serial, zone.records())
}

/// Applies the result of a scan.
async fn take(found: Found, zones: &SharedZones, known: &mut Known, loaded: &Readiness) {
    let Found { read, same, .. } = found;
    let is_there = |zone: &Name| same.contains(zone) || read.iter().any(|(_, _, it, _)| it == zone);
    let gone: Vec<Name> = known.keys().filter(|zone| !is_there(zone)).cloned().collect();
    let mut old = Vec::new();
    for zone in gone {
        tracing::info!("plugin/auto: Deleting zone `{zone}'");
        known.remove(&zone);
        old.extend(lock(zones).remove(&zone));
    }
    for (path, mut stamp, origin, outcome) in read {
        let file = path.display();
        let former = lock(zones).get_mut(&origin).map(|zone| version(zone));
        match outcome {
            Err(error) => {
                if matches!(error, Error::Read(_)) {
                    stamp = UNREAD;
                    if known.get(&origin).is_some_and(|it| *it == (path.clone(), UNREAD)) {
                        // It is logged already.
                        continue;
                    }
                }
                let kept = if former.is_some() {
                    "the former version is kept"
                } else {
                    "the zone is not served"
                };
                tracing::error!("plugin/auto: Cannot read zone \"{origin}\" in \"{file}\", {kept}: {error}");
            }
            Ok(zone) if former == Some(version(&zone)) => old.push(zone),
            Ok(zone) => {
                let serial = zone.soa().serial;
                old.extend(lock(zones).put(zone));
                if former.is_some() {
                    tracing::info!(
                        "plugin/auto: Successfully reloaded zone \"{origin}\" in \"{file}\" with {serial} SOA serial"
                    );
                } else {
                    tracing::info!("plugin/auto: Inserting zone `{origin}' from: {file}");
                }
                loaded.set(true);
            }
        }
        // A file with an error in its text is read again only after a change.
        known.insert(origin, (path, stamp));
    }
    // Freeing a large zone takes time.
    if !old.is_empty() {
        let _ = tokio::task::spawn_blocking(move || drop(old)).await;
    }
}

#[cfg(test)]
mod tests;
