//! GC based on records: undoes the recorded attachments that the runtime no longer lists (cni-plugins §16).
//!
//! ```text
//! cni.dev/valid-attachments ──> valid ──> Records::collect ──> undo of the plugin ──> the record is removed
//! ```

use std::collections::BTreeSet;

use cni::{Error, config::ValidAttachment, note::Level, plugin::Call};
use serde::de::DeserializeOwned;

use super::{AttachmentId, RecordedSteps, Records};
use crate::messages::NO_VALID_ATTACHMENTS;

/// The runtime's list of valid attachments, which GC keeps. `None`, with a log message, if the config has no list: GC
/// then removes nothing. An empty list means that no attachment is valid.
pub(crate) fn valid_attachments(call: &Call) -> Result<Option<Vec<ValidAttachment>>, Error> {
    if !call.config.has_valid_attachments() {
        call.note(Level::Warn, NO_VALID_ATTACHMENTS);
        return Ok(None);
    }
    let failed = |error| Error::internal(format!("failed to load netconf: {error}"));
    call.config.valid_attachments().map(Some).map_err(failed)
}

/// [`valid_attachments`] in the form of records.
pub(crate) fn valid(call: &Call) -> Result<Option<BTreeSet<AttachmentId>>, Error> {
    let id = |attachment: ValidAttachment| AttachmentId {
        container_id: attachment.container_id,
        ifname: attachment.ifname,
    };
    let valid = valid_attachments(call)?;
    Ok(valid.map(|valid| valid.into_iter().map(id).collect()))
}

impl Records {
    /// Whether the removed record was the network's last one. `false`, with a log message, if unknown.
    pub(crate) fn is_last(&self, call: &Call) -> bool {
        self.remove_if_empty().unwrap_or_else(|error| {
            call.note(Level::Warn, error);
            false
        })
    }

    /// Undoes the network's recorded attachments that are no longer valid with `undo`, and removes their records.
    /// Continues after an error. Returns whether no record is left.
    pub(crate) fn collect<S: DeserializeOwned>(
        &self,
        call: &Call,
        valid: &BTreeSet<AttachmentId>,
        mut undo: impl FnMut(&AttachmentId, &RecordedSteps<S>) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let mut outcome = Ok(());
        for key in self.keys()?.iter().filter(|key| !valid.contains(key)) {
            let collected = self.read::<S>(key).and_then(|recorded| match recorded {
                Some(recorded) => {
                    undo(key, &recorded)?;
                    self.forget_collected(call, key, recorded.is_whole)
                }
                // A concurrent DEL removed it.
                None => Ok(()),
            });
            outcome = outcome.and(collected);
        }
        let is_last = self.is_last(call);
        outcome.map(|()| is_last)
    }

    /// Removes a record unless it has steps of a later version.
    fn forget_collected(&self, call: &Call, key: &AttachmentId, is_whole: bool) -> Result<(), Error> {
        if is_whole {
            return self.remove(key);
        }
        let AttachmentId { container_id, ifname } = key;
        call.note(
            Level::Warn,
            format_args!(
                "the record of {ifname} of {container_id} has steps of a later version and stays for it"
            ),
        );
        Ok(())
    }
}
