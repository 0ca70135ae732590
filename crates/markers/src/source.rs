//! The source of a host's bridges.

use std::collections::BTreeSet;

/// The bridges of a host, updated by events.
pub(crate) trait Source {
    /// Names as of the last event; `None` while they are unknown.
    fn names(&self) -> Option<BTreeSet<String>>;

    /// Lists the bridges again, in case an event was missed.
    ///
    /// # Errors
    /// If the host refuses.
    fn list(&mut self) -> anyhow::Result<()>;

    /// Waits until a bridge was created, deleted or renamed. It is cancel-safe.
    ///
    /// # Errors
    /// If there will be no further events.
    async fn changed(&mut self) -> anyhow::Result<()>;
}
