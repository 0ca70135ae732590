//! Files that commands read, and output for pipes.

use std::io::{self, Read as _};

/// Name of standard input.
pub const STDIN: &str = "-";

/// Reads the text of a file, or of standard input.
///
/// # Errors
/// If it cannot be read, or is not UTF-8.
pub fn read(file: &str) -> io::Result<String> {
    if file != STDIN {
        return std::fs::read_to_string(file);
    }
    let mut text = String::new();
    io::stdin().read_to_string(&mut text)?;
    Ok(text)
}

/// Prints to standard output. A reader that closes the pipe early is not an error.
///
/// # Errors
/// If it cannot be written.
pub fn print(text: &str) -> io::Result<()> {
    written(io::stdout().lock(), text)
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
