//! Files that commands read, and output for pipes.

use std::fmt::Display;
use std::fs::File;
use std::io::{self, Read as _, Write as _};
use std::path::Path;

/// Name of standard input.
pub const STDIN: &str = "-";

/// Maximum size of a file in bytes; no repository of manifests is as large.
pub const LARGEST: u64 = 64 << 20;

/// Reads the text of a file, or of standard input.
///
/// # Errors
/// If it cannot be read, is larger than [`LARGEST`] (`FileTooLarge`), or is not UTF-8 (`InvalidData`).
pub fn read(file: impl AsRef<Path>) -> io::Result<String> {
    let file = file.as_ref();
    let source: Box<dyn io::Read> = if file == Path::new(STDIN) {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(file)?)
    };
    let mut bytes = Vec::new();
    if source.take(LARGEST + 1).read_to_end(&mut bytes)? as u64 > LARGEST {
        return Err(io::ErrorKind::FileTooLarge.into());
    }
    String::from_utf8(bytes).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

/// Prints to standard output. A reader that closes the pipe early is not an error.
///
/// # Errors
/// If it cannot be written.
pub fn print(text: &str) -> io::Result<()> {
    written(io::stdout().lock(), text)
}

/// Prints to standard error. A failure cannot be reported anywhere and is ignored; `eprintln!` would panic.
pub fn remark(text: impl Display) {
    let _ = write!(io::stderr(), "{text}");
}

fn written(mut to: impl io::Write, text: &str) -> io::Result<()> {
    match to.write_all(text.as_bytes()).and_then(|()| to.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Refuses all output.
    struct Closed(io::ErrorKind);

    impl io::Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(self.0.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn closed_pipe_is_no_error() {
        assert!(written(Closed(io::ErrorKind::BrokenPipe), "text").is_ok());
        let full = written(Closed(io::ErrorKind::StorageFull), "text");
        assert_eq!(
            full.map_err(|error| error.kind()),
            Err(io::ErrorKind::StorageFull)
        );
        let mut taken = Vec::new();
        assert!(written(&mut taken, "text").is_ok());
        assert_eq!(taken, b"text");
    }
}
