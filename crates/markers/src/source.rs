//! Where a marker learns which bridges there are.

use std::collections::BTreeSet;

/// The bridges of a host, kept by events.
pub(crate) trait Source {
    /// Names as of the last event; `None` as long as they are unknown.
    fn names(&self) -> Option<BTreeSet<String>>;

    /// Lists the bridges anew, in case an event was missed.
    ///
    /// # Errors
    /// When the host refuses.
    fn list(&mut self) -> anyhow::Result<()>;

    /// Waits until a bridge came, went or was renamed. Nothing is lost when the wait is given up.
    ///
    /// # Errors
    /// When there will be no events any more.
    async fn changed(&mut self) -> anyhow::Result<()>;
}
