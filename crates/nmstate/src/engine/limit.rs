//! Time limits: neither the library nor the D-Bus client has any, and the thread serves one request at a time.

use std::time::Duration;

use tokio::time::timeout;

use super::{Error, PLUGIN_FAILURE};

/// Time limit of a question to the host.
pub(super) const ANSWER: Duration = Duration::from_secs(60);
/// Time limit of a commit or a roll-back. The library itself waits up to 60 s for the end of a roll-back.
pub(super) const CONFIRMATION: Duration = Duration::from_secs(120);

/// Waits for the host until the limit.
pub(super) fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, Error>>,
) -> impl Future<Output = Result<T, Error>> {
    // The future is large, and must not be on the stack of callers.
    let work = Box::pin(work);
    async move {
        timeout(limit, work).await.unwrap_or_else(|_| {
            let text = format!("the host did not answer within {} s", limit.as_secs());
            Err(Error::new(PLUGIN_FAILURE, text))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn host_that_does_not_answer_is_a_failed_plugin() {
        let answer = within(ANSWER, pending::<Result<(), _>>()).await;
        let error = Error::new(PLUGIN_FAILURE, "the host did not answer within 60 s");
        assert_eq!(answer, Err(error));
    }
}
