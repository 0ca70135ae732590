//! The result cache: the config and result of each attachment, which are all that DEL, CHECK and GC need.
//!
//! One file per attachment, `<dir>/results/<network>-<container>-<interface>`, in upstream's format (multus §10.6),
//! so that either implementation can detach the other's attachments.

use std::io;
use std::path::{Path, PathBuf};
use std::{fs, str};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::args::CniArgs;
use crate::error::Error;
use crate::files;
use crate::json::{self, Object};
use crate::result::CniResult;
use crate::version::Version;

const KIND: &str = "cniCacheV1";
const MODE: u32 = 0o600;

/// The folder that holds the results of a cache folder.
const RESULTS: &str = "results";

/// The cache in a folder (the CNI library's `cacheDir`).
#[derive(Debug, Clone)]
pub struct Cache {
    results: PathBuf,
}

/// The identity of an attachment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key<'a> {
    /// The network's name.
    pub network: &'a str,
    /// The sandbox.
    pub container_id: &'a str,
    /// The interface in it.
    pub ifname: &'a str,
}

/// A cached attachment.
#[derive(Debug, Clone)]
pub struct Entry {
    /// The network's name.
    pub network: String,
    /// The sandbox.
    pub container_id: String,
    /// The interface in it.
    pub ifname: String,
    /// The network's complete config.
    pub config: Vec<u8>,
    /// Path of the sandbox's network namespace, may be empty.
    pub netns: String,
    /// `CNI_ARGS` as pairs.
    pub args: CniArgs,
    /// Capability arguments by name.
    pub capability_args: Object,
    /// The final result, verbatim.
    pub result: Option<Box<RawValue>>,
}

/// A cache file is unusable.
#[derive(Debug, thiserror::Error)]
pub enum CacheError {
    /// The file could not be read, written or removed.
    #[error("result cache {}: {cause}", .path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        cause: io::Error,
    },
    /// The file's content is malformed.
    #[error("result cache {} is broken: {reason}", .path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// The cause.
        reason: String,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct File {
    kind: String,
    #[serde(default)]
    container_id: String,
    #[serde(default)]
    config: String,
    #[serde(default)]
    if_name: String,
    #[serde(default)]
    network_name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    netns: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cni_args: Option<Vec<(String, String)>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    capability_args: Option<Object>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
}

impl Entry {
    /// The cached result, parsed by its own version or else by `fallback`.
    pub fn cni_result(&self, fallback: Version) -> Result<Option<CniResult>, Error> {
        self.result
            .as_ref()
            .map(|raw| CniResult::parse(raw.get().as_bytes(), fallback))
            .transpose()
    }
}

impl Cache {
    /// The cache in `dir`, which the first write creates.
    pub fn new(dir: &Path) -> Self {
        Self {
            results: dir.join(RESULTS),
        }
    }

    /// The file of an attachment.
    pub fn path(&self, key: Key<'_>) -> PathBuf {
        self.results
            .join(format!("{}-{}-{}", key.network, key.container_id, key.ifname))
    }

    /// Writes an attachment's file atomically, without a sync: a crash of the node may lose the file, but also ends
    /// the attachment.
    pub fn store(&self, entry: &Entry) -> Result<(), CacheError> {
        let path = self.path(entry.key());
        let file = File {
            kind: KIND.to_owned(),
            container_id: entry.container_id.clone(),
            config: STANDARD.encode(&entry.config),
            if_name: entry.ifname.clone(),
            network_name: entry.network.clone(),
            netns: entry.netns.clone(),
            cni_args: Some(entry.args.pairs().to_vec()).filter(|args| !args.is_empty()),
            capability_args: Some(entry.capability_args.clone()).filter(|args| !args.is_empty()),
            result: entry.result.clone(),
        };
        let write = || {
            files::create_private_folder(&self.results)?;
            let text = serde_json::to_vec(&file)?;
            files::write_lazily(&path, &text, MODE)
        };
        write().map_err(|cause| CacheError::Io {
            path: path.clone(),
            cause,
        })
    }

    /// Reads an attachment's file. `None` without a file, or if it belongs to another attachment: the names are
    /// joined by `-`, so two attachments can share a file name.
    pub fn load(&self, key: Key<'_>) -> Result<Option<Entry>, CacheError> {
        Ok(match Stored::read(&self.path(key))? {
            Stored::Entry(entry) => Some(*entry).filter(|entry| entry.key() == key),
            Stored::BareResult(result) => Some(Entry {
                network: key.network.to_owned(),
                container_id: key.container_id.to_owned(),
                ifname: key.ifname.to_owned(),
                config: Vec::new(),
                netns: String::new(),
                args: CniArgs::default(),
                capability_args: Object::default(),
                result: Some(result),
            }),
            Stored::Nothing => None,
        })
    }

    /// Removes an attachment's file. A missing file is no error.
    pub fn remove(&self, key: Key<'_>) -> Result<(), CacheError> {
        let path = self.path(key);
        files::remove_if_present(&path).map_err(|cause| CacheError::Io { path, cause })
    }

    /// Iterates over the attachments in the cache, with an error for each unreadable file. Holds one file in memory
    /// at a time, because the cache may have years of leftovers. Skips bare results, which have no owner.
    pub fn each(&self) -> Result<impl Iterator<Item = Result<Entry, CacheError>>, CacheError> {
        let failed = |cause| CacheError::Io {
            path: self.results.clone(),
            cause,
        };
        let folder = match fs::read_dir(&self.results) {
            Ok(folder) => Some(folder),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(cause) => return Err(failed(cause)),
        };
        let read = move |file: io::Result<fs::DirEntry>| {
            let file = match file {
                Ok(file) => file,
                Err(cause) => return Some(Err(failed(cause))),
            };
            // Temporary files of running or interrupted writes.
            if file.file_name().as_encoded_bytes().starts_with(b".") {
                return None;
            }
            match Stored::read(&file.path()) {
                Ok(Stored::Entry(entry)) => Some(Ok(*entry)),
                Ok(Stored::BareResult(_) | Stored::Nothing) => None,
                Err(error) => Some(Err(error)),
            }
        };
        Ok(folder.into_iter().flatten().filter_map(read))
    }

    /// Edits the cached result of an attachment; `Ok(false)` without one.
    pub fn edit_result(
        &self,
        key: Key<'_>,
        edit: impl FnOnce(&mut Object) -> Result<(), json::Error>,
    ) -> Result<bool, CacheError> {
        let Some(mut entry) = self.load(key)? else {
            return Ok(false);
        };
        let Some(raw) = &entry.result else {
            return Ok(false);
        };
        let broken = |error: json::Error| CacheError::Broken {
            path: self.path(key),
            reason: error.to_string(),
        };
        let mut object = Object::parse(raw.get().as_bytes()).map_err(broken)?;
        edit(&mut object).map_err(broken)?;
        let text = RawValue::from_string(object.to_json()).map_err(|error| broken(error.into()))?;
        entry.result = Some(text);
        self.store(&entry)?;
        Ok(true)
    }
}

/// The content of a cache file.
enum Stored {
    /// No file.
    Nothing,
    /// An attachment.
    Entry(Box<Entry>),
    /// A bare result, as earlier implementations wrote it.
    BareResult(Box<RawValue>),
}

impl Stored {
    fn read(path: &Path) -> Result<Self, CacheError> {
        let broken = |reason: String| CacheError::Broken {
            path: path.to_owned(),
            reason,
        };
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(error) if files::is_absent(&error) => return Ok(Self::Nothing),
            Err(cause) => {
                return Err(CacheError::Io {
                    path: path.to_owned(),
                    cause,
                });
            }
        };
        let object = Object::parse(&text).map_err(|error| broken(error.to_string()))?;
        if object.text("kind").as_deref() != Some(KIND) {
            let result = RawValue::from_string(object.to_json());
            return result
                .map(Self::BareResult)
                .map_err(|error| broken(error.to_string()));
        }
        let file: File = serde_json::from_slice(&text).map_err(|error| broken(error.to_string()))?;
        let config = STANDARD
            .decode(&file.config)
            .map_err(|error| broken(format!("config: {error}")))?;
        Ok(Self::Entry(Box::new(Entry {
            network: file.network_name,
            container_id: file.container_id,
            ifname: file.if_name,
            config,
            netns: file.netns,
            args: file.cni_args.unwrap_or_default().into_iter().collect(),
            capability_args: file.capability_args.unwrap_or_default(),
            result: file.result,
        })))
    }
}

impl Entry {
    /// The identity of this attachment.
    pub fn key(&self) -> Key<'_> {
        Key {
            network: &self.network,
            container_id: &self.container_id,
            ifname: &self.ifname,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry() -> Entry {
        Entry {
            network: "n".into(),
            container_id: "c".into(),
            ifname: "net1".into(),
            config: br#"{"name":"n","big":9007199254740993}"#.to_vec(),
            netns: "/run/netns/x".into(),
            args: CniArgs::parse("A=1;B=2").unwrap(),
            capability_args: Object::parse(br#"{"ips":["10.0.0.1/8"]}"#).unwrap(),
            result: RawValue::from_string(
                r#"{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.1/8"}]}"#.into(),
            )
            .ok(),
        }
    }

    #[test]
    fn file_has_upstreams_format() {
        // multus#49
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        cache.store(&entry()).unwrap();
        let text = fs::read_to_string(folder.path().join("results/n-c-net1")).unwrap();
        let file: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            file,
            serde_json::json!({"kind":"cniCacheV1","containerId":"c","ifName":"net1","networkName":"n",
                "netns":"/run/netns/x","cniArgs":[["A","1"],["B","2"]],"capabilityArgs":{"ips":["10.0.0.1/8"]},
                "config":STANDARD.encode(r#"{"name":"n","big":9007199254740993}"#),
                "result":{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.1/8"}]}})
        );
        let read = cache.load(entry().key()).unwrap().unwrap();
        assert_eq!(read.config, entry().config);
        assert_eq!(read.args, entry().args);
        assert_eq!(read.cni_result(Version::LATEST).unwrap().unwrap().ips.len(), 1);
        assert_eq!(cache.each().unwrap().count(), 1);
        cache.remove(entry().key()).unwrap();
        cache.remove(entry().key()).unwrap();
        assert!(cache.load(entry().key()).unwrap().is_none());
    }

    #[test]
    fn attachment_with_same_file_name_is_not_loaded() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        cache
            .store(&Entry {
                network: "a-b".into(),
                container_id: "c".into(),
                ..entry()
            })
            .unwrap();
        let other = Key {
            network: "a",
            container_id: "b-c",
            ifname: "net1",
        };
        assert!(cache.path(other).exists());
        assert!(cache.load(other).unwrap().is_none());
    }

    #[test]
    fn broken_files_are_reported_with_others() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        cache.store(&entry()).unwrap();
        fs::write(folder.path().join("results/x"), "{\"kind\":").unwrap();
        fs::write(
            folder.path().join("results/y"),
            "{\"kind\":\"cniCacheV1\",\"config\":\"?\"}",
        )
        .unwrap();
        let read: Vec<_> = cache.each().unwrap().map(|read| read.is_ok()).collect();
        assert_eq!(read.len(), 3);
        assert_eq!(read.into_iter().filter(|is_ok| *is_ok).count(), 1);
    }

    #[test]
    fn bare_result_belongs_to_attachment_of_its_name() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        cache.store(&entry()).unwrap();
        let text = r#"{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.9/8"}]}"#;
        fs::write(cache.path(entry().key()), text).unwrap();
        let read = cache.load(entry().key()).unwrap().unwrap();
        let result = read.cni_result(Version::LATEST).unwrap().unwrap();
        assert_eq!(result.ips[0].address.to_string(), "10.0.0.9/8");
        assert_eq!(cache.each().unwrap().count(), 0, "whose it is, it does not say");
    }

    #[test]
    fn a_result_can_be_edited() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::new(folder.path());
        cache.store(&entry()).unwrap();
        assert!(
            cache
                .edit_result(entry().key(), |result| {
                    result.remove("ips");
                    Ok(())
                })
                .unwrap()
        );
        let read = cache.load(entry().key()).unwrap().unwrap();
        assert_eq!(read.result.unwrap().get(), r#"{"cniVersion":"1.0.0"}"#);
        let missing = Key {
            network: "zzz",
            container_id: "c",
            ifname: "net1",
        };
        assert!(!cache.edit_result(missing, |_| Ok(())).unwrap());
    }
}
