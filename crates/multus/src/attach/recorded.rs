//! The networks of a sandbox, as the node recorded them: in the scratch file, else in the result cache (multus.md §5.3,
//! §7.4).

use super::Attacher;
use crate::networks::delegate::{Config, Delegate};
use crate::store::scratch::{self, Elements};
use cni::Error;
use cni::cache::Entry;
use cni::chain::Runner;
use cni::error::code;
use std::io;

/// The scratch file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub(super) enum RecordError {
    #[error(transparent)]
    Content(#[from] scratch::Error),
    #[error(transparent)]
    File(#[from] io::Error),
}

/// The content of the scratch file with its raw elements. Reading never changes it: only the pod's DEL sets a corrupt
/// file aside.
pub(super) enum ScratchRecord {
    Missing,
    Corrupt,
    Whole(Elements, Vec<Delegate>),
}

/// The content of a scratch file.
#[derive(Debug)]
pub(crate) enum ScratchState {
    /// The delegates that were attached.
    Delegates(Vec<Delegate>),
    /// No file: nothing was attached, or it is already detached.
    Missing,
    /// The file is unusable.
    Corrupt,
}

impl<R: Runner> Attacher<'_, R> {
    /// Reads the scratch file. Never changes it.
    ///
    /// An error when the file cannot be read now: its content may be good.
    pub(crate) fn scratch_delegates(&self) -> Result<ScratchState, Error> {
        let Some(scratch) = self.scratch() else {
            return Ok(ScratchState::Missing);
        };
        let decoded = match scratch.read() {
            Ok(Some(text)) => scratch::decode(&text).map_err(|error| kube_kit::client::chain(&error)),
            Ok(None) => return Ok(ScratchState::Missing),
            // Permanent, unlike the other I/O errors.
            Err(error) if error.kind() == io::ErrorKind::IsADirectory => Err(error.to_string()),
            Err(error) => {
                let text = format!("Multus: cannot read {}: {error}", scratch.path().display());
                return Err(Error::new(code::IO, text));
            }
        };
        Ok(match decoded {
            Ok(delegates) => ScratchState::Delegates(delegates),
            Err(error) => {
                tracing::error!(sandbox = %self.sandbox, error, "unusable scratch file");
                ScratchState::Corrupt
            }
        })
    }

    /// Sets a [corrupt](ScratchState::Corrupt) scratch file aside for inspection.
    pub(crate) fn set_scratch_aside(&self) {
        if let Some(scratch) = self.scratch()
            && let Err(error) = scratch.set_aside()
        {
            tracing::error!(sandbox = %self.sandbox, %error, "cannot set the scratch file aside");
        }
    }

    /// The networks of this sandbox in the result cache, the master first.
    pub(crate) fn cached_delegates(&self) -> Vec<Delegate> {
        let names: Vec<_> = match std::fs::read_dir(self.config.results_dir()) {
            Ok(files) => files
                .filter_map(Result::ok)
                .filter_map(|file| file.file_name().into_string().ok())
                .collect(),
            Err(_) => Vec::new(),
        };
        self.cached_in(&names)
    }

    /// The same, among these file names of the result cache.
    pub(super) fn cached_in(&self, names: &[String]) -> Vec<Delegate> {
        let cache = self.cache();
        let infix = format!("-{}-", self.sandbox.container_id);
        let mut entries: Vec<_> = names
            .iter()
            .filter_map(|name: &String| name.split_once(infix.as_str()))
            .map(|(network, ifname)| self.key(network, ifname))
            .filter_map(|key| {
                cache.load(key).unwrap_or_else(|error| {
                    tracing::warn!(sandbox = %self.sandbox, %error, "cannot read a cached attachment, skipping it");
                    None
                })
            })
            .collect();
        entries.sort_by_key(|entry| (entry.ifname != self.sandbox.ifname, entry.ifname.clone()));
        entries.into_iter().filter_map(from_cache).collect()
    }

    /// Reads the scratch file.
    pub(super) fn record(&self) -> io::Result<ScratchRecord> {
        let Some(text) = self.scratch().map_or(Ok(None), |scratch| scratch.read())? else {
            return Ok(ScratchRecord::Missing);
        };
        let decoded = Elements::parse(&text).and_then(|elements| Ok((elements, scratch::decode(&text)?)));
        Ok(match decoded {
            Ok((_, delegates)) if delegates.is_empty() => ScratchRecord::Missing,
            Ok((elements, delegates)) => ScratchRecord::Whole(elements, delegates),
            Err(error) => {
                let error = kube_kit::client::chain(&error);
                tracing::error!(sandbox = %self.sandbox, error, "unusable scratch file");
                ScratchRecord::Corrupt
            }
        })
    }
}

fn from_cache(entry: Entry) -> Option<Delegate> {
    let config = Config::parse_named(&entry.config, &entry.network).ok()?;
    let mut delegate = Delegate::new(entry.network, config);
    delegate.requests.interface = Some(entry.ifname);
    Some(delegate)
}
