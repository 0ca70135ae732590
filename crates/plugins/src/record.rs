//! What an attachment consists of, written down before it is made, so that DEL and GC can take it back whatever
//! happened in between (cni-plugins §16).
//!
//! ```text
//! /run/cni/weft/PLUGIN/NETWORK/CONTAINER:IFNAME
//! {"pair":{"port":"veth1a2b3c4d"}}                                 one line a step, before the step is taken
//! {"masquerade":{"backend":"nftables","addresses":["10.1.2.2/24"]}}
//! ```
//!
//! A line that is cut off is a step that was never taken: lines are ended before their step begins. So no write
//! has to be atomic, and none has to reach a disk: the folder is in memory, like what it describes, and both are
//! gone after a reboot.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::{Path, PathBuf},
};

use cni::{Error, config::ValidAttachment, error::code, files, plugin::Call};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    messages::NO_VALID_ATTACHMENTS,
    names::{RECORD_SEPARATOR, STATE},
};

/// The attachments of one network that one plugin made.
#[derive(Debug, Clone)]
pub(crate) struct Records {
    folder: PathBuf,
}

/// Which attachment of a network.
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

    /// Neither part can contain the separator, nor a slash.
    fn file_name(&self) -> String {
        format!("{}{RECORD_SEPARATOR}{}", self.container_id, self.ifname)
    }

    fn from_file_name(name: &str) -> Option<Self> {
        let (container_id, ifname) = name.split_once(RECORD_SEPARATOR)?;
        Some(AttachmentId {
            container_id: container_id.to_owned(),
            ifname: ifname.to_owned(),
        })
    }
}

/// An attachment, and the network that it is to: what rules of the host are marked with.
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
    /// The attachment, to this network.
    pub(crate) fn to<'a>(&'a self, network: &'a str) -> Attachment<'a> {
        Attachment {
            network,
            container_id: &self.container_id,
            ifname: &self.ifname,
        }
    }
}

/// The attachments that GC must leave alone. A config that does not list them is an error (code 7): that is not the
/// same as a list without entries, by which nothing is in use any more.
pub(crate) fn valid_attachments(call: &Call) -> Result<Vec<ValidAttachment>, Error> {
    if !call.config.has_valid_attachments() {
        return Err(Error::new(code::INVALID_NETWORK_CONFIG, NO_VALID_ATTACHMENTS));
    }
    let failed = |error| Error::internal(format!("failed to load netconf: {error}"));
    call.config.valid_attachments().map_err(failed)
}

/// A record that is being written.
#[derive(Debug)]
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
}

impl Journal {
    /// Writes down the next steps. To be called before they are taken.
    pub(crate) fn note<S: Serialize>(&mut self, steps: &[S]) -> Result<(), Error> {
        let text = lines(steps).map_err(|error| failed("write", &self.path, &error))?;
        self.file
            .write_all(text.as_bytes())
            .map_err(|error| failed("write", &self.path, &error))
    }

    /// Forgets the steps, none of which was taken.
    pub(crate) fn clear(&mut self) -> Result<(), Error> {
        self.file
            .set_len(0)
            .map_err(|error| failed("clear", &self.path, &error))
    }

    /// Forgets the attachment: all of its steps have been taken back.
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

    /// Begins the record of an attachment; `None` if there is one already.
    pub(crate) fn begin(&self, key: &AttachmentId) -> Result<Option<Journal>, Error> {
        let path = self.folder.join(key.file_name());
        let open = || {
            OpenOptions::new()
                .append(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)
        };
        let opened = open().or_else(|error| {
            if error.kind() != io::ErrorKind::NotFound {
                return Err(error);
            }
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(&self.folder)?;
            open()
        });
        match opened {
            Ok(file) => Ok(Some(Journal { path, file })),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(None),
            Err(error) => Err(failed("create", &path, &error)),
        }
    }

    /// The steps of an attachment, in the order in which they were taken; `None` without a record.
    pub(crate) fn steps<S: DeserializeOwned>(&self, key: &AttachmentId) -> Result<Option<Vec<S>>, Error> {
        let path = self.folder.join(key.file_name());
        match fs::read(&path) {
            Ok(text) => Ok(Some(whole_lines(&text))),
            Err(error) if files::is_absent(&error) => Ok(None),
            Err(error) => Err(failed("read", &path, &error)),
        }
    }

    /// Forgets an attachment; one that has no record is fine.
    pub(crate) fn remove(&self, key: &AttachmentId) -> Result<(), Error> {
        remove(&self.folder.join(key.file_name()))
    }

    /// All attachments that have a record.
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

/// The steps whose lines were ended. What a later version may have written and this one cannot read is left
/// out: its steps are taken back by what finds them without a record.
fn whole_lines<S: DeserializeOwned>(text: &[u8]) -> Vec<S> {
    text.split_inclusive(|byte| *byte == b'\n')
        .filter(|line| line.ends_with(b"\n"))
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect()
}

#[cfg(test)]
mod tests {
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
    fn a_record_is_written_step_by_step() {
        let folder = tempfile::tempdir().unwrap();
        let records = Records {
            folder: folder.path().join("bridge/net"),
        };
        let key = key("c1", "net1");
        assert_eq!(records.steps::<Step>(&key).unwrap(), None);
        assert_eq!(records.keys().unwrap(), []);
        let mut journal = records.begin(&key).unwrap().unwrap();
        assert_eq!(records.steps::<Step>(&key).unwrap(), Some(vec![]));
        journal.note(&[pair("veth0")]).unwrap();
        journal.clear().unwrap();
        journal.note(&[pair("veth1")]).unwrap();
        journal.note(&[Step::Done]).unwrap();
        assert_eq!(
            records.steps(&key).unwrap(),
            Some(vec![pair("veth1"), Step::Done])
        );
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
    fn a_step_whose_line_is_cut_off_was_never_taken() {
        let whole = lines(&[pair("veth1"), pair("veth2")]).unwrap();
        assert_eq!(
            whole,
            "{\"pair\":{\"port\":\"veth1\"}}\n{\"pair\":{\"port\":\"veth2\"}}\n"
        );
        for length in 0..whole.len() {
            let steps: Vec<Step> = whole_lines(&whole.as_bytes()[..length]);
            let first_end = whole.len() / 2;
            assert_eq!(steps.len(), usize::from(length >= first_end), "{length}");
        }
        let odd: Vec<Step> = whole_lines(b"\xff\n{\"unknown\":1}\n\"done\"\n");
        assert_eq!(odd, [Step::Done]);
    }

    #[test]
    fn file_names_tell_the_attachment() {
        let key = key("a.b-c_d", "net1.100");
        assert_eq!(AttachmentId::from_file_name(&key.file_name()), Some(key));
        assert_eq!(AttachmentId::from_file_name("stray"), None);
    }
}
