//! The node's records of all sandboxes: the scratch files and the result cache below `cniDir` (multus.md §5.4, §9).

use crate::names;
use crate::sandbox::PodRef;
use crate::store::scratch::Scratch;
use cni::cache::{Cache, CacheError, Entry};
use cni::files;
use plugins::multus_shim::kept_dels;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// Limit of sandboxes in one read; the next read gets the others. Bounds the memory that years of leftovers take.
pub(crate) const MAX_SANDBOXES: usize = 8192;
/// Age from which a temporary file belongs to an interrupted write.
const CUT_OFF: Duration = Duration::from_hours(1);
/// How long a file that was set aside is kept for inspection.
const INSPECTION: Duration = Duration::from_hours(7 * 24);
/// Suffixes of temporary files, and of files that were set aside.
const TEMPORARY: &str = ".tmp";
const SET_ASIDE: [&str; 2] = [names::CORRUPT, names::BROKEN];

/// The records cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A directory cannot be listed.
    #[error("cannot read {}: {source}", path.display())]
    Dir { path: PathBuf, source: io::Error },
    /// The result cache cannot be read, for another reason than its content.
    #[error(transparent)]
    Cache(CacheError),
}

/// The records of a sandbox.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Record {
    /// Path of its network namespace, if the result cache has it.
    pub netns: Option<String>,
    /// Its pod, if the result cache has it.
    pub pod: PodRef,
    /// Its files in the result cache.
    pub results: Vec<String>,
    /// Modification time of its scratch file, if it has one.
    pub written: Option<SystemTime>,
}

/// The records of all sandboxes.
#[derive(Debug, Default)]
pub(crate) struct Records {
    /// Sandboxes by ID.
    pub sandboxes: BTreeMap<String, Record>,
    /// Files of the result cache with unusable content. Only their names identify their owners.
    pub broken: Vec<PathBuf>,
}

impl Records {
    /// Reads the records of all sandboxes except `living`.
    pub(crate) fn read(cni_dir: &Path, living: &BTreeSet<String>) -> Result<Self, Error> {
        let mut records = Self::default();
        for (name, modified) in plain_files(cni_dir)? {
            if !name.starts_with('.') && !living.contains(&name) && !records.is_full() {
                let record = Record {
                    written: Some(modified),
                    ..Record::default()
                };
                records.sandboxes.insert(name, record);
            }
        }
        for entry in Cache::new(cni_dir).each().map_err(Error::Cache)? {
            match entry {
                Ok(entry) if living.contains(&entry.container_id) || entry.container_id.is_empty() => {}
                Ok(entry) => records.add(&entry),
                Err(CacheError::Broken { path, reason }) => {
                    tracing::warn!(file = %path.display(), reason, "unusable file in the result cache");
                    records.broken.push(path);
                }
                Err(error @ CacheError::Io { .. }) => return Err(Error::Cache(error)),
            }
        }
        Ok(records)
    }

    fn is_full(&self) -> bool {
        self.sandboxes.len() >= MAX_SANDBOXES
    }

    fn add(&mut self, entry: &Entry) {
        if self.is_full() && !self.sandboxes.contains_key(&entry.container_id) {
            return;
        }
        let record = self.sandboxes.entry(entry.container_id.clone()).or_default();
        let Entry {
            network,
            container_id,
            ifname,
            ..
        } = entry;
        record.results.push(format!("{network}-{container_id}-{ifname}"));
        if !entry.netns.is_empty() {
            record.netns = Some(entry.netns.clone());
        }
        let pod = PodRef::named_in(&entry.args);
        if !pod.name.is_empty() {
            record.pod = pod;
        }
    }
}

/// The broken files that none of these sandboxes owns.
pub(crate) fn ownerless<'a>(
    broken: &'a [PathBuf],
    living: &'a BTreeSet<String>,
) -> impl Iterator<Item = &'a Path> {
    let is_owned = |path: &Path| living.iter().any(|id| interface_in(path, id).is_some());
    broken
        .iter()
        .map(PathBuf::as_path)
        .filter(move |path| !is_owned(path))
}

/// Modification time of a sandbox's scratch file, if it has one. Each ADD writes it first.
pub(crate) fn written(cni_dir: &Path, container_id: &str) -> Option<SystemTime> {
    let about = fs::symlink_metadata(Scratch::new(cni_dir, container_id)?.path()).ok();
    about.filter(fs::Metadata::is_file)?.modified().ok()
}

/// The interface in the name of a result cache file, if this sandbox owns the file.
pub(crate) fn interface_in<'a>(path: &'a Path, container_id: &str) -> Option<&'a str> {
    let (_, ifname) = path
        .file_name()?
        .to_str()?
        .split_once(&format!("-{container_id}-"))?;
    Some(ifname)
}

/// Removes temporary files of interrupted writes, and files that were set aside long ago.
pub(crate) fn sweep(cni_dir: &Path) -> Result<(), Error> {
    let now = SystemTime::now();
    for dir in [
        cni_dir.to_owned(),
        cni_dir.join(names::RESULTS),
        kept_dels::dir(cni_dir),
    ] {
        for (name, modified) in plain_files(&dir)? {
            // After a clock change the time may be in the future: the next sweep handles the file.
            let age = now.duration_since(modified).unwrap_or_default();
            if is_leftover(&name, age) {
                let path = dir.join(name);
                tracing::info!(file = %path.display(), "removing a leftover file");
                files::remove_if_present(&path).map_err(|source| Error::Dir { path, source })?;
            }
        }
    }
    Ok(())
}

fn is_leftover(name: &str, age: Duration) -> bool {
    let is_aside = SET_ASIDE.iter().any(|end| name.ends_with(end));
    name.starts_with('.') && (name.ends_with(TEMPORARY) && age > CUT_OFF || is_aside && age > INSPECTION)
}

/// The regular files of a directory with their modification times. Empty without a directory.
fn plain_files(dir: &Path) -> Result<Vec<(String, SystemTime)>, Error> {
    let failed = |source| Error::Dir {
        path: dir.to_owned(),
        source,
    };
    let listed = match fs::read_dir(dir) {
        Ok(listed) => listed,
        Err(error) if files::is_absent(&error) => return Ok(Vec::new()),
        Err(source) => return Err(failed(source)),
    };
    let mut found = Vec::new();
    for file in listed {
        let file = file.map_err(failed)?;
        let (Ok(name), Ok(about)) = (file.file_name().into_string(), file.metadata()) else {
            // Not one of our names, or removed in the meantime.
            continue;
        };
        if about.is_file() {
            found.push((name, about.modified().map_err(failed)?));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs::File;

    fn cached(dir: &Path, network: &str, id: &str, ifname: &str) {
        let entry = json!({"kind": "cniCacheV1", "containerId": id, "ifName": ifname, "networkName": network,
            "config": "e30=", "netns": format!("/run/netns/{id}"),
            "cniArgs": [["K8S_POD_NAMESPACE", "ns"], ["K8S_POD_NAME", "web"], ["K8S_POD_UID", ""]]});
        let results = dir.join("results");
        fs::create_dir_all(&results).unwrap();
        let name = format!("{network}-{id}-{ifname}");
        fs::write(results.join(name), entry.to_string()).unwrap();
    }

    #[test]
    fn records_combine_scratch_files_and_results() {
        let dir = tempfile::tempdir().unwrap();
        let none = BTreeSet::new();
        assert!(
            Records::read(&dir.path().join("no"), &none)
                .unwrap()
                .sandboxes
                .is_empty()
        );
        cached(dir.path(), "a", "c1", "eth0");
        cached(dir.path(), "b", "c1", "net1");
        cached(dir.path(), "a", "living", "eth0");
        for name in [
            "c1",
            "c2",
            "living",
            ".c3.corrupt",
            "results/b-c4-net1",
            "results/.x.tmp",
        ] {
            fs::write(dir.path().join(name), "{").unwrap();
        }
        let living = ["living".to_owned()].into();
        let Records { sandboxes, broken } = Records::read(dir.path(), &living).unwrap();
        assert_eq!(sandboxes.keys().collect::<Vec<_>>(), ["c1", "c2"]);
        let mut one = sandboxes["c1"].clone();
        one.results.sort();
        assert_eq!(one.results, ["a-c1-eth0", "b-c1-net1"]);
        assert_eq!(one.netns.as_deref(), Some("/run/netns/c1"));
        assert_eq!(one.pod.to_string(), "ns/web/");
        assert!(one.written.is_some());
        assert_eq!(written(dir.path(), "c1"), one.written);
        assert_eq!(written(dir.path(), "c3"), None);
        assert_eq!(sandboxes["c2"].netns, None);
        assert_eq!(broken, [dir.path().join("results/b-c4-net1")]);
        assert_eq!(ownerless(&broken, &living).count(), 1);
        assert_eq!(ownerless(&broken, &["c4".to_owned()].into()).count(), 0);
    }

    #[test]
    fn records_are_limited() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..=MAX_SANDBOXES {
            File::create(dir.path().join(number.to_string())).unwrap();
        }
        cached(dir.path(), "a", "more", "eth0");
        let records = Records::read(dir.path(), &BTreeSet::new()).unwrap();
        assert_eq!(records.sandboxes.len(), MAX_SANDBOXES);
    }

    #[test]
    fn unreadable_state_is_error() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("results"), "").unwrap();
        let error = Records::read(dir.path(), &BTreeSet::new()).unwrap_err();
        assert!(error.to_string().contains("/results: "), "{error}");
    }

    #[test]
    fn sweep_removes_only_leftovers() {
        let hours = |hours| Duration::from_hours(hours);
        for (name, age, goes) in [
            (".c1.7-0.tmp", hours(2), true),
            (".c1.7-0.tmp", hours(0), false),
            (".c1.corrupt", hours(2), false),
            (".c1.corrupt", hours(200), true),
            (".c1:eth0.broken", hours(200), true),
            ("c1.tmp", hours(200), false),
            (".other", hours(200), false),
        ] {
            assert_eq!(is_leftover(name, age), goes, "{name} after {age:?}");
        }
    }
}
