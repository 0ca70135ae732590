//! State of a daemon whose token the API server refuses (401), because its account or its pod was deleted, or whose rights
//! are gone (403), because its binding was deleted.
//!
//! Such a daemon attaches no pod. It reports that it is not ready, so that shims wait for the next daemon, and polls
//! the API server until it is accepted again.

use tokio::sync::watch;

/// Whether the API server refuses this process.
#[derive(Debug, Default)]
pub(super) struct Refusal(watch::Sender<bool>);

impl Refusal {
    /// Notes the answer to a request.
    pub(super) fn note<T>(&self, answer: &Result<T, kube::Error>) {
        if matches!(answer, Err(kube::Error::Api(status)) if status.code == 401) {
            self.raise();
        }
    }

    pub(super) fn raise(&self) {
        self.0.send_replace(true);
    }

    /// Waits for a refusal.
    pub(super) async fn raised(&self) {
        // Cannot fail: `self` holds the sender.
        let _ = self.0.subscribe().wait_for(|raised| *raised).await;
    }

    pub(super) fn is_raised(&self) -> bool {
        *self.0.borrow()
    }

    /// The API server accepts this process again.
    pub(super) fn end(&self) {
        self.0.send_replace(false);
    }
}
