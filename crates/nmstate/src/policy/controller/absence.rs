//! Policies that fail while NetworkManager is away: nothing is wrong with them, so they are tried again as soon as it
//! starts.
//!
//! ```text
//!   attempt fails ──> is NetworkManager away? ──> stranded ──> it starts ──> another pass, with all its attempts
//! ```

use std::collections::BTreeSet;
use std::sync::MutexGuard;

use super::{Controller, Memory};

/// What is remembered of a policy that fails while NetworkManager is away.
#[derive(Debug, Default)]
pub(super) struct Absence {
    /// How often NetworkManager was seen to start, as the pass began.
    pub(super) starts: u64,
    /// The same as the last attempt failed for good because it was away.
    pub(super) gave_up: Option<u64>,
    /// Whether the attempts before do not count, because it started since.
    pub(super) begins_anew: bool,
}

impl Controller {
    /// Wants another pass over the policies that failed meanwhile, whenever NetworkManager starts.
    pub(super) async fn follow_network_manager(&self) {
        let mut starts = self.shared.starts.subscribe();
        while starts.changed().await.is_ok() {
            let stranded = std::mem::take(&mut *self.stranded());
            for policy in stranded {
                self.want(policy);
            }
        }
    }

    /// Begins a pass: attempts that failed for good while NetworkManager was away do not count any more once it started.
    pub(super) fn note_starts(&self, memory: &mut Memory) {
        let absence = &mut memory.absence;
        absence.starts = *self.shared.starts.borrow();
        if absence.gave_up.is_some_and(|before| before != absence.starts) {
            absence.gave_up = None;
            absence.begins_anew = true;
        }
    }

    /// Whether NetworkManager is away, or was during this pass. The policy gets another pass when it starts.
    pub(super) async fn is_stranded(&self, policy: &str, memory: &Memory) -> bool {
        let is_away = self.shared.engine.versions().await.is_err();
        if is_away {
            self.stranded().insert(policy.to_owned());
        }
        let started = *self.shared.starts.borrow() != memory.absence.starts;
        // The start may have been handled before the policy was among the stranded ones.
        if started {
            self.stranded().remove(policy);
            self.want(policy.to_owned());
        }
        is_away || started
    }

    fn stranded(&self) -> MutexGuard<'_, BTreeSet<String>> {
        kube_kit::lock(&self.stranded)
    }
}
