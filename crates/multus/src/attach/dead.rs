//! Sandboxes that are no more and that nobody detached (multus.md §5.4).

use super::{Attacher, Stored};
use cni::Error;
use cni::chain::Runner;

/// What became of a sandbox that is no more.
#[derive(Debug, PartialEq, Eq)]
pub enum Buried {
    /// It is detached, or was already.
    Done,
    /// Its files say that something was attached, and not what.
    Unknown,
}

impl<R: Runner> Attacher<'_, R> {
    /// Detaches what the scratch file says, then what only the result cache knows. `results` are the names of the files
    /// of the latter that may be this sandbox's.
    pub fn bury(&self, results: &[String]) -> Result<Buried, Error> {
        let is_corrupt = match self.scratch_delegates()? {
            Stored::Delegates(delegates) => {
                self.del(&delegates)?;
                false
            }
            Stored::Corrupt => {
                self.set_scratch_aside();
                true
            }
            Stored::Missing => false,
        };
        let cached = self.cached_in(results);
        if is_corrupt && cached.is_empty() {
            return Ok(Buried::Unknown);
        }
        self.del(&cached).map(|()| Buried::Done)
    }
}
