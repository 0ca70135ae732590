//! GC by records: takes back the recorded attachments that the runtime does not list any more (cni-plugins §16).
//!
//! ```text
//! cni.dev/valid-attachments ──> valid ──> Records::collect ──> undo of the plugin ──> the record is removed
//! ```

use std::collections::BTreeSet;

use cni::{Error, config::ValidAttachment, note::Level, plugin::Call};
use serde::de::DeserializeOwned;

use super::{AttachmentId, Records, Taken};
use crate::messages::NO_VALID_ATTACHMENTS;

/// The attachments that GC must leave alone, as the runtime lists them. `None`, with a note, where the config has no list:
/// the runtime did not say what is in use, and GC removes nothing. An empty list says that nothing is in use.
pub(crate) fn valid_attachments(call: &Call) -> Result<Option<Vec<ValidAttachment>>, Error> {
    if !call.config.has_valid_attachments() {
        call.note(Level::Warn, NO_VALID_ATTACHMENTS);
        return Ok(None);
    }
    let failed = |error| Error::internal(format!("failed to load netconf: {error}"));
    call.config.valid_attachments().map(Some).map_err(failed)
}

/// [`valid_attachments`], as records name them.
pub(crate) fn valid(call: &Call) -> Result<Option<BTreeSet<AttachmentId>>, Error> {
    let id = |attachment: ValidAttachment| AttachmentId {
        container_id: attachment.container_id,
        ifname: attachment.ifname,
    };
    let valid = valid_attachments(call)?;
    Ok(valid.map(|valid| valid.into_iter().map(id).collect()))
}

impl Records {
    /// Whether the record that the call removed was the network's last one. `false`, with a note, where that is not known.
    pub(crate) fn is_last(&self, call: &Call) -> bool {
        self.remove_if_empty().unwrap_or_else(|error| {
            call.note(Level::Warn, error);
            false
        })
    }

    /// Takes back recorded attachments of the network that are not valid any more, with `undo`, and removes their records.
    /// Whether no record is left. An error of one attachment keeps no other from being taken back.
    pub(crate) fn collect<S: DeserializeOwned>(
        &self,
        call: &Call,
        valid: &BTreeSet<AttachmentId>,
        mut undo: impl FnMut(&AttachmentId, &Taken<S>) -> Result<(), Error>,
    ) -> Result<bool, Error> {
        let mut outcome = Ok(());
        for key in self.keys()?.iter().filter(|key| !valid.contains(key)) {
            let collected = self.taken::<S>(key).and_then(|taken| match taken {
                Some(taken) => {
                    undo(key, &taken)?;
                    self.forget_collected(call, key, taken.is_whole)
                }
                // There was a DEL meanwhile.
                None => Ok(()),
            });
            outcome = outcome.and(collected);
        }
        let is_last = self.is_last(call);
        outcome.map(|()| is_last)
    }

    /// Removes a record, unless a later version has to take back more.
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
