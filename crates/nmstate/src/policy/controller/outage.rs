//! Policies that fail during an outage of NetworkManager: the policy is not at fault, so the controller enqueues it
//! when NetworkManager starts.
//!
//! ```text
//!   attempt fails ──> is NetworkManager away? ──> stranded ──> it starts ──> another pass, with all its attempts
//! ```

use std::collections::BTreeSet;
use std::sync::MutexGuard;

use super::{Controller, Tracked};

/// The controller's state of a policy that fails during an outage of NetworkManager.
#[derive(Debug, Default)]
pub(super) struct Outage {
    /// Number of observed starts of NetworkManager when the pass began.
    pub(super) starts: u64,
    /// The same number when the policy failed for good during an outage.
    pub(super) failed_for_good_at: Option<u64>,
    /// Whether earlier attempts do not count, because NetworkManager started since.
    pub(super) resets_attempts: bool,
}

impl Controller {
    /// Enqueues the policies that failed during an outage, at each start of NetworkManager.
    pub(super) async fn follow_outages(&self) {
        let mut starts = self.shared.starts.subscribe();
        while starts.changed().await.is_ok() {
            let stranded = std::mem::take(&mut *self.stranded());
            for policy in stranded {
                self.enqueue(policy);
            }
        }
    }

    /// Records the starts at the begin of a pass: final failures during an outage do not count after a start.
    pub(super) fn record_starts(&self, tracked: &mut Tracked) {
        let outage = &mut tracked.outage;
        outage.starts = *self.shared.starts.borrow();
        if outage
            .failed_for_good_at
            .is_some_and(|before| before != outage.starts)
        {
            outage.failed_for_good_at = None;
            outage.resets_attempts = true;
        }
    }

    /// Whether NetworkManager is away, or was during this pass. Its next start enqueues the policy.
    pub(super) async fn is_stranded(&self, policy: &str, tracked: &Tracked) -> bool {
        let is_away = self.shared.engine.versions().await.is_err();
        if is_away {
            self.stranded().insert(policy.to_owned());
        }
        let started = *self.shared.starts.borrow() != tracked.outage.starts;
        // The start may have been handled before the policy was recorded as stranded.
        if started {
            self.stranded().remove(policy);
            self.enqueue(policy.to_owned());
        }
        is_away || started
    }

    fn stranded(&self) -> MutexGuard<'_, BTreeSet<String>> {
        kube_kit::lock(&self.stranded)
    }
}
