//! A request to the daemon.

use std::{
    io::{self, BufRead as _, BufReader, Read as _, Write as _},
    path::Path,
    time::Instant,
};

use super::wire::{Answer, MAX_LINE, Request};
use crate::timed::{Timed, is_late};

/// A failed request.
#[derive(Debug)]
pub(super) enum Failure {
    /// The daemon does not listen.
    Unreachable(io::Error),
    /// The connection failed before the answer.
    Broken(io::Error),
    /// The daemon returned an error.
    Refused(String),
}

/// Sends a request to the daemon at `socket`. A timeout closes the connection, which also cancels the request in the
/// daemon.
pub(super) fn ask(socket: &Path, request: &Request, deadline: Instant) -> Result<Answer, Failure> {
    let stream = Timed::connect(socket, deadline).map_err(|error| Failure::Unreachable(late(error)))?;
    let answer = exchange(stream, request).map_err(|error| Failure::Broken(late(error)))?;
    match answer {
        Answer::Failed(text) => Err(Failure::Refused(text)),
        answer => Ok(answer),
    }
}

fn exchange(mut stream: Timed, request: &Request) -> io::Result<Answer> {
    let mut line = serde_json::to_vec(request)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = Vec::new();
    BufReader::new(stream.take(MAX_LINE)).read_until(b'\n', &mut answer)?;
    if answer.is_empty() {
        return Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "connection closed before an answer",
        ));
    }
    Ok(serde_json::from_slice(&answer)?)
}

fn late(error: io::Error) -> io::Error {
    if is_late(&error) {
        return io::Error::new(io::ErrorKind::TimedOut, "no answer in time");
    }
    error
}

#[cfg(test)]
mod tests {
    use std::{os::unix::net::UnixListener, thread::spawn, time::Duration};

    use super::*;

    fn answered(answer: &'static [u8]) -> Result<Answer, Failure> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let daemon = spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            BufReader::new(&stream).read_line(&mut request).unwrap();
            stream.write_all(answer).unwrap();
            // A daemon without an answer keeps the connection open.
            if answer.is_empty() {
                let _ = stream.read(&mut [0]);
            }
            request
        });
        let outcome = ask(
            &socket,
            &Request::Status,
            Instant::now() + Duration::from_millis(300),
        );
        assert_eq!(daemon.join().unwrap(), "\"status\"\n");
        outcome
    }

    #[test]
    fn an_answer_is_one_line() {
        assert_eq!(answered(b"\"done\"\n").unwrap(), Answer::Done);
        let refused = answered(b"{\"failed\":\"no more tries\"}\n").unwrap_err();
        assert!(matches!(refused, Failure::Refused(text) if text == "no more tries"));
        assert!(matches!(answered(b"{]\n"), Err(Failure::Broken(_))));
    }

    #[test]
    fn request_to_silent_daemon_times_out() {
        let failure = answered(b"").unwrap_err();
        assert!(
            matches!(&failure, Failure::Broken(error) if error.to_string() == "no answer in time"),
            "{failure:?}"
        );
    }
}
