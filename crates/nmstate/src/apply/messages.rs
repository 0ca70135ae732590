//! What conditions say about changes (nmstate §2.4, §5.6).

use crate::engine;
use crate::probes::Failed;

/// Logged when a document asks for nothing.
pub(super) const EMPTY: &str = "Ignoring empty desired state";
/// The host is as it should be.
pub(super) const SUCCESS: &str = "successfully reconciled";
/// The same where nothing keeps it.
pub(super) const NOT_PERSISTENT: &str =
    "successfully reconciled, until the host restarts: without NetworkManager nothing is persistent";

/// A change cut the host off. The cause comes first; the established text, which clients look for, after it.
pub(super) fn rolled_back(why: &Failed) -> String {
    let Failed { probe, cause, .. } = why;
    format!(
        "{cause}: rolling back desired state configuration: failed runnig probes after network changes: \
         failed runnig probe '{probe}' with after network reconfiguration"
    )
}

/// The document was replaced by another one, or is not wanted any more.
pub(super) const SUPERSEDED: &str = "rolling back desired state configuration: it is not wanted any more";

/// And it could not be undone.
pub(super) fn not_rolled_back(error: &engine::Error) -> String {
    format!("; the configuration could not be rolled back, manual intervention needed: {error}")
}

/// And undoing it did not bring the host back.
pub(super) fn not_settled(still: &Failed) -> String {
    let Failed { probe, cause, .. } = still;
    format!("; rolled back, but probe '{probe}' still fails: {cause}")
}
