//! Errors, each with a remedy.

use std::io;
use std::path::Path;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A cluster cannot be started, used or removed.
#[derive(thiserror::Error)]
pub enum Error {
    /// An operation on a file or process failed.
    #[error("{what}")]
    Io {
        /// The operation, with the path.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A program failed.
    #[error("`{command}` failed ({status}){output}")]
    Command {
        /// The command line, as in a shell.
        command: String,
        /// Exit status as text.
        status: String,
        /// The end of the output, starting with a line break, or empty.
        output: String,
    },
    /// The machine lacks a prerequisite. The text names it and the remedy.
    #[error("{0}")]
    Missing(String),
    /// A download or build is incomplete. The text names the missing part.
    #[error("{0}")]
    Incomplete(String),
    /// A condition did not become true before its deadline.
    #[error("gave up after {seconds} s waiting for {what}{evidence}")]
    Timeout {
        /// The condition.
        what: String,
        /// Duration of the wait.
        seconds: u64,
        /// The state instead of the condition, starting with a line break, or empty.
        evidence: String,
    },
    /// An answer is malformed.
    #[error("{what}")]
    Json {
        /// The origin of the answer.
        what: String,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
}

/// Prints the text of [`Display`](std::fmt::Display) with all causes, because failing tests print this.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{self}")?;
        let mut cause = std::error::Error::source(self);
        while let Some(error) = cause {
            write!(f, ": {error}")?;
            cause = error.source();
        }
        Ok(())
    }
}

/// Converts an I/O error, with the operation and its path.
pub(crate) trait At<T> {
    fn at(self, what: &str, path: &Path) -> Result<T>;
}

impl<T> At<T> for io::Result<T> {
    fn at(self, what: &str, path: &Path) -> Result<T> {
        self.map_err(|source| Error::Io {
            what: format!("cannot {what} {}", path.display()),
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_output_is_readable() {
        let error = io::Result::<()>::Err(io::ErrorKind::NotFound.into())
            .at("open", Path::new("/some"))
            .unwrap_err();
        assert_eq!(format!("{error:?}"), "cannot open /some: entity not found");
    }
}
