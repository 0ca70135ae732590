//! The directory of zone files, which monitors with former and present settings share.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use kube_kit::lock;

/// The writers of one directory take turns.
#[derive(Clone, Debug, Default)]
pub(super) struct Directory {
    /// Held by the present writer.
    pub(super) gate: Arc<Mutex<()>>,
    /// Zones of former settings. Their files are removed after the first write with the present settings.
    pub(super) obsolete: Arc<Mutex<BTreeSet<String>>>,
}

impl Directory {
    /// Records the change of the settings' zone.
    pub(super) fn replace(&self, before: &str, now: &str) {
        let mut obsolete = lock(&self.obsolete);
        obsolete.insert(before.to_owned());
        obsolete.remove(now);
    }
}
