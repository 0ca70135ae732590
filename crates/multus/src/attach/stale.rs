//! Cleans up stale sandboxes: gone, but never detached (multus.md §5.4).

use super::{Attacher, ScratchState};
use cni::Error;
use cni::chain::Runner;

/// The outcome of the clean-up of a stale sandbox.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CleanUp {
    /// The sandbox is detached.
    Done,
    /// Its files show that something was attached, but not which networks.
    Unknown,
}

impl<R: Runner> Attacher<'_, R> {
    /// Detaches the networks of the scratch file, then those that only the result cache has. `results` are the names
    /// of the cache files that may belong to this sandbox.
    pub(crate) fn clean_up(&self, results: &[String]) -> Result<CleanUp, Error> {
        let is_corrupt = match self.scratch_delegates()? {
            ScratchState::Delegates(delegates) => {
                self.del(&delegates)?;
                false
            }
            ScratchState::Corrupt => {
                self.set_scratch_aside();
                true
            }
            ScratchState::Missing => false,
        };
        let cached = self.cached_in(results);
        if is_corrupt && cached.is_empty() {
            return Ok(CleanUp::Unknown);
        }
        self.del(&cached).map(|()| CleanUp::Done)
    }
}
