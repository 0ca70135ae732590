//! Messages about changes, for conditions (nmstate §2.4, §5.6).

use crate::engine;
use crate::probes::Failed;

/// Log line about an empty document.
pub(super) const EMPTY: &str = "Ignoring empty desired state";
/// The host has the desired state.
pub(super) const SUCCESS: &str = "successfully reconciled";
/// The same without persistence.
pub(super) const NOT_PERSISTENT: &str =
    "successfully reconciled, until the host restarts: without NetworkManager nothing is persistent";

/// A change cut the host off. The cause comes first; upstream's text, which clients search for, follows.
pub(super) fn rolled_back(why: &Failed) -> String {
    let Failed { probe, cause, .. } = why;
    format!(
        "{cause}: rolling back desired state configuration: failed runnig probes after network changes: \
         failed runnig probe '{probe}' with after network reconfiguration"
    )
}

/// A newer revision replaced the document.
pub(super) const SUPERSEDED: &str =
    "rolling back desired state configuration: it is no longer the desired state";

/// Appended if the roll-back failed.
pub(super) fn not_rolled_back(error: &engine::Error) -> String {
    format!("; the configuration could not be rolled back, manual intervention needed: {error}")
}

/// Appended if the host still fails a probe after the roll-back.
pub(super) fn not_settled(still: &Failed) -> String {
    let Failed { probe, cause, .. } = still;
    format!("; rolled back, but probe '{probe}' still fails: {cause}")
}
