//! Causes of a stale watch.

use kube::runtime::watcher::Error;
use tokio::time::Instant;

/// The cause of a stale watch.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trouble {
    /// The API server refuses this verb.
    Refused(&'static str),
    /// The API server does not serve the kind.
    NotServed,
    /// The last request with this verb failed with this error.
    Failed(&'static str, String),
    /// The API server has not answered yet.
    Silent,
    /// The watch has not reported a write of this process.
    Behind,
}

/// The last failure, and the time of the first one since the watch worked.
#[derive(Debug)]
pub(super) struct Failure {
    pub(super) since: Instant,
    pub(super) trouble: Trouble,
}

impl Trouble {
    pub(super) fn of(error: &Error) -> Self {
        let verb = match error {
            Error::InitialListFailed(_) | Error::NoResourceVersion => "list",
            _ => "watch",
        };
        match code(error) {
            403 => Self::Refused(verb),
            404 => Self::NotServed,
            _ => Self::Failed(verb, cause(error)),
        }
    }
}

/// The code of the API server's answer, or 0 without an answer.
pub(super) fn code(error: &Error) -> u16 {
    match error {
        Error::InitialListFailed(kube::Error::Api(status))
        | Error::WatchStartFailed(kube::Error::Api(status))
        | Error::WatchFailed(kube::Error::Api(status))
        | Error::WatchError(status) => status.code,
        _ => 0,
    }
}

/// The API server's message, or the reason for its absence.
pub(super) fn cause(error: &Error) -> String {
    match error {
        Error::InitialListFailed(error) | Error::WatchStartFailed(error) | Error::WatchFailed(error) => {
            crate::client::message(error)
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    #[test]
    fn trouble_of_refused_request_names_verb() {
        let answer = |code, message: &str| {
            let status = Status {
                code,
                message: message.to_owned(),
                ..Status::default()
            };
            kube::Error::Api(Box::new(status))
        };
        for (error, expected) in [
            (
                Error::InitialListFailed(answer(403, "no")),
                Trouble::Refused("list"),
            ),
            (
                Error::WatchStartFailed(answer(403, "no")),
                Trouble::Refused("watch"),
            ),
            (Error::InitialListFailed(answer(404, "no")), Trouble::NotServed),
            (
                Error::InitialListFailed(answer(500, "no leader")),
                Trouble::Failed("list", "no leader".to_owned()),
            ),
        ] {
            assert_eq!(Trouble::of(&error), expected);
        }
    }
}
