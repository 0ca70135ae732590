//! Access to the scratch file of a sandbox during a hot plug (multus.md §7.4).

use super::Attacher;
use crate::delegate::Delegate;
use crate::scratch::{self, Elements};
use cni::chain::Runner;
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

impl<R: Runner> Attacher<'_, R> {
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
