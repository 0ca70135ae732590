//! What can go wrong, with what to do about it.

use std::io;
use std::path::Path;

/// Result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Everything that can go wrong while a cluster is brought up, used or removed.
#[derive(thiserror::Error)]
pub enum Error {
    /// A file or process could not be worked with.
    #[error("{what}")]
    Io {
        /// What was tried, with the path.
        what: String,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// A program ended with a failure.
    #[error("`{command}` failed ({status}){output}")]
    Command {
        /// The command line, as one would type it.
        command: String,
        /// Exit status in words.
        status: String,
        /// The end of what it printed, starting with a line break, or nothing.
        output: String,
    },
    /// The machine lacks something; the text says what, and what to do.
    #[error("{0}")]
    Missing(String),
    /// Something that was brought in is not what it should be; the text says what.
    #[error("{0}")]
    Incomplete(String),
    /// A condition did not come true in time.
    #[error("gave up after {seconds} s waiting for {what}{evidence}")]
    Timeout {
        /// The condition.
        what: String,
        /// How long it was waited for.
        seconds: u64,
        /// What was seen instead, starting with a line break, or nothing.
        evidence: String,
    },
    /// Something answered in a form that is not understood.
    #[error("{what}")]
    Json {
        /// Whose answer.
        what: String,
        /// The cause.
        #[source]
        source: serde_json::Error,
    },
}

/// The same words as [`Display`](std::fmt::Display) with all causes: tests unwrap, and what they show is to be read.
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

/// Turns an I/O error into ours, naming what was tried and on which path.
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
    fn what_an_unwrap_shows_can_be_read() {
        let error = io::Result::<()>::Err(io::ErrorKind::NotFound.into())
            .at("open", Path::new("/some"))
            .unwrap_err();
        assert_eq!(format!("{error:?}"), "cannot open /some: entity not found");
    }
}
