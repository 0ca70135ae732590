//! Records the steps of an ADD before they run, so that DEL and GC can undo them after any interruption (cni-plugins
//! §16).
//!
//! ```text
//! /run/cni/weft/PLUGIN/NETWORK/CONTAINER:IFNAME
//! {"pair":{"port":"veth1a2b3c4d"}}                                 one line per step, written before the step runs
//! {"masquerade":{"backend":"nftables","addresses":["10.1.2.2/24"]}}
//! ```
//!
//! An incomplete line belongs to a step that never ran, because the line is completed first. Writes therefore need
//! not be atomic or synced: the folder is in memory and, like the attachments, does not survive a reboot.

pub(crate) mod gc;

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::{Path, PathBuf},
};

use cni::{Error, files, plugin::Call};
use serde::{Serialize, de::DeserializeOwned};

use crate::names::{RECORD_SEPARATOR, STATE};

/// Limit of attempts to create a folder that concurrent DELs remove.
const FOLDER_ATTEMPTS: usize = 100;

/// The records of one plugin for one network.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    folder: PathBuf,
}

/// Identity of an attachment within a network.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AttachmentId {
    /// `CNI_CONTAINERID`.
    pub(crate) container_id: String,
    /// `CNI_IFNAME`.
    pub(crate) ifname: String,
}

impl AttachmentId {
    /// The attachment of a call.
    pub(crate) fn of(call: &Call) -> Self {
        AttachmentId {
            container_id: call.request.container_id.clone(),
            ifname: call.request.ifname.clone(),
        }
    }

    /// The record's file name. Neither part can contain the separator or a slash.
    fn file_name(&self) -> String {
        format!("{}{RECORD_SEPARATOR}{}", self.container_id, self.ifname)
    }

    /// Parses a record's file name.
    pub(crate) fn from_file_name(name: &str) -> Option<Self> {
        let (container_id, ifname) = name.split_once(RECORD_SEPARATOR)?;
        Some(AttachmentId {
            container_id: container_id.to_owned(),
            ifname: ifname.to_owned(),
        })
    }
}

/// An attachment with its network: the owner mark of host rules.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Attachment<'a> {
    /// Name of the network.
    pub(crate) network: &'a str,
    /// `CNI_CONTAINERID`.
    pub(crate) container_id: &'a str,
    /// `CNI_IFNAME`.
    pub(crate) ifname: &'a str,
}

impl AttachmentId {
    /// Adds the network.
    pub(crate) fn to<'a>(&'a self, network: &'a str) -> Attachment<'a> {
        Attachment {
            network,
            container_id: &self.container_id,
            ifname: &self.ifname,
        }
    }
}

/// The content of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RecordedSteps<S> {
    /// The steps, in execution order.
    pub(crate) steps: Vec<S>,
    /// Whether every line could be parsed. `false` if a later version wrote some.
    pub(crate) is_whole: bool,
}

/// A record, open for writing.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Appends the next steps. Call it before they run.
    pub(crate) fn note<S: Serialize>(&mut self, steps: &[S]) -> Result<(), Error> {
        let text = lines(steps).map_err(|error| failed("write", &self.path, &error))?;
        self.file
            .write_all(text.as_bytes())
            .map_err(|error| failed("write", &self.path, &error))
    }

    /// Clears the steps, none of which ran.
    pub(crate) fn clear(&mut self) -> Result<(), Error> {
        self.file
            .set_len(0)
            .map_err(|error| failed("clear", &self.path, &error))
    }

    /// Removes the record, after all steps were undone.
    pub(crate) fn remove(&self) -> Result<(), Error> {
        remove(&self.path)
    }
}

impl Records {
    /// The records of `plugin` for the network of a call.
    pub(crate) fn of(plugin: &str, call: &Call) -> Self {
        Records {
            folder: Path::new(STATE).join(plugin).join(call.config.name()),
        }
    }

    /// Creates the record of an attachment. `None` if it exists.
    pub(crate) fn begin(&self, key: &AttachmentId) -> Result<Option<Journal>, Error> {
        let path = self.folder.join(key.file_name());
        for _ in 0..FOLDER_ATTEMPTS {
            match create_file(&path) {
                Ok(file) => return Ok(Some(Journal { path, file })),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(None),
                // The first record creates the folder, and the DEL of the last one may remove it at
                // any moment.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed("create", &path, &error)),
            }
            match files::create_private_folder(&self.folder) {
                // A concurrent ADD created it, and a DEL removed it.
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                created => created.map_err(|error| failed("create", &path, &error))?,
            }
        }
        Err(failed("create", &path, &"its folder is removed again and again"))
    }

    /// The record of an attachment, if it exists.
    pub(crate) fn read<S: DeserializeOwned>(
        &self,
        key: &AttachmentId,
    ) -> Result<Option<RecordedSteps<S>>, Error> {
        let path = self.folder.join(key.file_name());
        match fs::read(&path) {
            Ok(text) => Ok(Some(whole_lines(&text))),
            Err(error) if files::is_absent(&error) => Ok(None),
            Err(error) => Err(failed("read", &path, &error)),
        }
    }

    /// Removes the record of an attachment. A missing record is no error.
    pub(crate) fn remove(&self, key: &AttachmentId) -> Result<(), Error> {
        remove(&self.folder.join(key.file_name()))
    }

    /// Removes the network's folder if it is empty. Returns whether the network has no record.
    ///
    /// Among concurrent DELs, the last one returns `true`, because each removes its own record first.
    fn remove_if_empty(&self) -> Result<bool, Error> {
        match fs::remove_dir(&self.folder) {
            Ok(()) => Ok(true),
            Err(error) if files::is_absent(&error) => Ok(true),
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => Ok(false),
            Err(error) => Err(failed("remove", &self.folder, &error)),
        }
    }

    /// All recorded attachments.
    pub(crate) fn keys(&self) -> Result<Vec<AttachmentId>, Error> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if files::is_absent(&error) => return Ok(Vec::new()),
            Err(error) => return Err(failed("list", &self.folder, &error)),
        };
        let mut keys = Vec::new();
        for entry in entries {
            let entry = entry.map_err(|error| failed("list", &self.folder, &error))?;
            keys.extend(entry.file_name().to_str().and_then(AttachmentId::from_file_name));
        }
        keys.sort();
        Ok(keys)
    }
}

fn create_file(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
}

fn remove(path: &Path) -> Result<(), Error> {
    files::remove_if_present(path).map_err(|error| failed("remove", path, &error))
}

fn failed(doing: &str, path: &Path, error: &dyn std::fmt::Display) -> Error {
    Error::internal(format!(
        "failed to {doing} the record {}: {error}",
        path.display()
    ))
}

fn lines<S: Serialize>(steps: &[S]) -> serde_json::Result<String> {
    let mut text = String::new();
    for step in steps {
        text.push_str(&serde_json::to_string(step)?);
        text.push('\n');
    }
    Ok(text)
}

/// Parses the steps with complete lines. Skips lines of later versions.
fn whole_lines<S: DeserializeOwned>(text: &[u8]) -> RecordedSteps<S> {
    let mut recorded = RecordedSteps {
        steps: Vec::new(),
        is_whole: true,
    };
    let lines = text.split_inclusive(|byte| *byte == b'\n');
    for line in lines.filter(|line| line.ends_with(b"\n")) {
        match serde_json::from_slice(line) {
            Ok(step) => recorded.steps.push(step),
            Err(_) => recorded.is_whole = false,
        }
    }
    recorded
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use serde::Deserialize;

    use super::*;

    #[derive(Debug, PartialEq, Serialize, Deserialize)]
    #[serde(rename_all = "camelCase")]
    enum Step {
        Pair { port: String },
        Done,
    }

    fn key(container_id: &str, ifname: &str) -> AttachmentId {
        AttachmentId {
            container_id: container_id.into(),
            ifname: ifname.into(),
        }
    }

    fn pair(port: &str) -> Step {
        Step::Pair { port: port.into() }
    }

    #[test]
    fn record_has_one_line_per_step() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records {
            folder: folder.path().join("bridge/net"),
        };
        let key = key("c1", "net1");
        let steps = || records.read::<Step>(&key).unwrap().map(|recorded| recorded.steps);
        assert_eq!(steps(), None);
        assert_eq!(records.keys().unwrap(), []);
        let mut journal = records.begin(&key).unwrap().unwrap();
        assert_eq!(steps(), Some(vec![]));
        journal.note(&[pair("veth0")]).unwrap();
        journal.clear().unwrap();
        journal.note(&[pair("veth1")]).unwrap();
        journal.note(&[Step::Done]).unwrap();
        assert_eq!(steps(), Some(vec![pair("veth1"), Step::Done]));
        assert!(
            records.begin(&key).unwrap().is_none(),
            "one attachment, one record"
        );
        assert_eq!(records.keys().unwrap(), std::slice::from_ref(&key));
        journal.remove().unwrap();
        records.remove(&key).unwrap();
        assert_eq!(records.keys().unwrap(), []);
    }

    #[test]
    fn folder_is_removed_with_the_last_record() {
        // cni-plugins#75
        let folder = tempfile::tempdir().unwrap();
        let records = Records {
            folder: folder.path().join("bridge/net"),
        };
        assert!(records.remove_if_empty().unwrap(), "there never was one");
        let (first, second) = (key("c1", "net1"), key("c2", "net1"));
        for key in [&first, &second] {
            records.begin(key).unwrap().unwrap();
        }
        records.remove(&first).unwrap();
        assert!(!records.remove_if_empty().unwrap());
        records.remove(&second).unwrap();
        assert!(records.remove_if_empty().unwrap());
        assert!(records.remove_if_empty().unwrap(), "another DEL was faster");
        assert!(!records.folder.exists());
    }

    #[test]
    fn records_begin_while_their_folder_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records {
            folder: folder.path().join("bridge/net"),
        };
        let over = AtomicBool::new(false);
        // Fewer than an ADD survives: on a busy machine, one thread may run many times while another one runs once.
        let removals = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    let left = |left: usize| left.checked_sub(1);
                    match removals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left) {
                        Ok(_) => {
                            records.remove_if_empty().unwrap();
                        }
                        Err(_) => std::thread::yield_now(),
                    }
                }
            });
            let begin_and_end = |number| {
                removals.store(FOLDER_ATTEMPTS / 2, Ordering::Relaxed);
                let begun = records.begin(&key(&format!("c{number}"), "net1"));
                begun.map(|journal| journal.map(|journal| journal.remove()))
            };
            let failures: Vec<_> = (0..1000)
                .map(begin_and_end)
                .filter(|outcome| !matches!(outcome, Ok(Some(Ok(())))))
                .collect();
            over.store(true, Ordering::Relaxed);
            assert!(failures.is_empty(), "{failures:?}");
        });
    }

    #[test]
    fn incomplete_line_is_ignored() {
        let whole = lines(&[pair("veth1"), pair("veth2")]).unwrap();
        assert_eq!(
            whole,
            "{\"pair\":{\"port\":\"veth1\"}}\n{\"pair\":{\"port\":\"veth2\"}}\n"
        );
        for length in 0..whole.len() {
            let recorded: RecordedSteps<Step> = whole_lines(&whole.as_bytes()[..length]);
            let first_end = whole.len() / 2;
            assert_eq!(recorded.steps.len(), usize::from(length >= first_end), "{length}");
            assert!(recorded.is_whole, "{length}");
        }
    }

    #[test]
    fn steps_of_a_later_version_are_detected() {
        // cni-plugins#79
        for unknown in ["\u{0}", "{\"unknown\":1}", "{\"done\":{\"x\":1}}"] {
            let text = format!("{unknown}\n\"done\"\n");
            let recorded: RecordedSteps<Step> = whole_lines(text.as_bytes());
            assert_eq!(
                (recorded.steps, recorded.is_whole),
                (vec![Step::Done], false),
                "{unknown}"
            );
        }
        let whole: RecordedSteps<Step> = whole_lines(b"\"done\"\n");
        assert!(whole.is_whole);
    }

    #[test]
    fn file_names_identify_the_attachment() {
        let key = key("a.b-c_d", "net1.100");
        assert_eq!(AttachmentId::from_file_name(&key.file_name()), Some(key));
        assert_eq!(AttachmentId::from_file_name("stray"), None);
    }
}
