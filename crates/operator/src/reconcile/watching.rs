//! The status while watches are refused, fail or are stale (operator §7.3).

use kube_kit::cache::Blocked;

use super::Reconciler;
use crate::{failures::Failure, names::reason, status::Finding};

impl Reconciler {
    /// Sets the watches that are refused, fail or are stale. Returns whether the set changed.
    pub(crate) fn set_blocked(&mut self, blocked: Vec<Blocked>) -> bool {
        let news = blocked != self.blocked;
        if news && blocked.is_empty() {
            tracing::info!("all watches are up to date");
        } else if news {
            let watches: Vec<_> = blocked.iter().map(ToString::to_string).collect();
            tracing::error!(?watches, "watches are not up to date");
        }
        self.blocked = blocked;
        news
    }

    /// Whether a watch is refused, fails or is stale.
    pub(crate) fn is_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// The failure for a condition, one line for each watch.
    pub(super) fn blockade(&self) -> Option<Failure> {
        let lines: Vec<_> = self.blocked.iter().map(ToString::to_string).collect();
        (!lines.is_empty()).then(|| Failure {
            reason: reason::WATCH,
            message: lines.join("\n"),
        })
    }

    /// Writes the failure into the status while the initial lists are incomplete, which blocks reconciles. This needs
    /// only the watch of the configuration resource.
    pub(crate) async fn report_blockade(&mut self) {
        let (Some(failure), Some(cr)) = (self.blockade(), self.resource()) else {
            return;
        };
        let components = self.components();
        let finding = Finding::Rejected { failure, components };
        if let Err(error) = self.write_status(&cr, &finding).await {
            tracing::warn!(%error, "cannot write the status about the watches");
        }
    }
}
