//! A minimal HTTP/1.1 client for the daemon's socket: one POST per connection. An HTTP library would double the size
//! of this binary, which runs once per pod event.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use crate::timed::{Timed, is_late};

/// Maximum size of the header section, in bytes. The daemon sends three short lines.
const MAX_HEADERS: u64 = 16 * 1024;
/// Maximum size of the body, in bytes. A CNI result has a few hundred.
const MAX_BODY: u64 = 16 * 1024 * 1024;

/// A response of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Response {
    /// HTTP status code.
    pub(super) status: u16,
    /// The decoded body.
    pub(super) body: Vec<u8>,
}

/// A failed request.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// No listener. Nothing was sent, so the request may be repeated.
    #[error("{0}")]
    Unreachable(#[source] io::Error),
    /// The connection was closed before the first byte of an answer.
    #[error("connection closed before an answer: {0}")]
    Dropped(#[source] io::Error),
    /// The daemon did not answer in time.
    #[error("no answer within {} s", .0.as_secs_f64())]
    Late(Duration),
    /// The answer is malformed or incomplete.
    #[error("malformed answer: {0}")]
    Malformed(#[source] io::Error),
}

/// Sends `body` as a POST to `path` over the unix socket and reads the answer. `timeout` limits the whole exchange.
pub(super) fn post(socket: &Path, path: &str, body: &[u8], timeout: Duration) -> Result<Response, Error> {
    let deadline = Instant::now() + timeout;
    let mut stream = Timed::connect(socket, deadline).map_err(|error| {
        if is_late(&error) {
            Error::Late(timeout)
        } else {
            Error::Unreachable(error)
        }
    })?;
    let mut request = format!(
        "POST {path} HTTP/1.1\r\nHost: dummy\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )
    .into_bytes();
    // A single write wakes the daemon only once.
    request.extend_from_slice(body);
    let answer = match stream.write_all(&request) {
        Ok(()) => read_response(&mut BufReader::new(stream)),
        Err(error) => Err(Error::Dropped(error)),
    };
    answer.map_err(|error| match error {
        Error::Dropped(cause) | Error::Malformed(cause) if is_late(&cause) => Error::Late(timeout),
        other => other,
    })
}

fn read_response(input: &mut impl BufRead) -> Result<Response, Error> {
    if input.fill_buf().map_err(Error::Dropped)?.is_empty() {
        return Err(Error::Dropped(io::ErrorKind::UnexpectedEof.into()));
    }
    parse_response(input).map_err(Error::Malformed)
}

/// Message body length (RFC 9112 section 6.3).
enum Framing {
    Chunked,
    Length(u64),
    UntilClose,
}

fn parse_response(input: &mut impl BufRead) -> io::Result<Response> {
    let mut head = input.by_ref().take(MAX_HEADERS);
    let status = parse_status_line(&read_line(&mut head)?)?;
    let mut framing = Framing::UntilClose;
    loop {
        let line = read_line(&mut head)?;
        if line.is_empty() {
            break;
        }
        let Some((name, value)) = line.split_once(':') else {
            return Err(invalid("header without a colon"));
        };
        let value = value.trim();
        if name.eq_ignore_ascii_case("transfer-encoding") && value.eq_ignore_ascii_case("chunked") {
            framing = Framing::Chunked;
        } else if name.eq_ignore_ascii_case("content-length") && !matches!(framing, Framing::Chunked) {
            framing = Framing::Length(value.parse().map_err(|_| invalid("bad content-length"))?);
        }
    }
    let body = match framing {
        Framing::Length(length) => read_exactly(input, length)?,
        Framing::Chunked => read_chunks(input)?,
        Framing::UntilClose => {
            let mut body = Vec::new();
            input.take(MAX_BODY).read_to_end(&mut body)?;
            body
        }
    };
    Ok(Response { status, body })
}

fn parse_status_line(line: &str) -> io::Result<u16> {
    let mut words = line.split(' ');
    if !words.next().is_some_and(|version| version.starts_with("HTTP/1.")) {
        return Err(invalid("not HTTP/1"));
    }
    words
        .next()
        .and_then(|code| code.parse().ok())
        .ok_or_else(|| invalid("no status code"))
}

fn read_chunks(input: &mut impl BufRead) -> io::Result<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        let line = read_line(&mut input.by_ref().take(MAX_HEADERS))?;
        let size = line.split(';').next().unwrap_or_default().trim();
        let size = u64::from_str_radix(size, 16).map_err(|_| invalid("bad chunk size"))?;
        if size == 0 {
            return Ok(body);
        }
        if body.len() as u64 + size > MAX_BODY {
            return Err(invalid("body too long"));
        }
        body.append(&mut read_exactly(input, size)?);
        if !read_line(&mut input.by_ref().take(2))?.is_empty() {
            return Err(invalid("chunk without end"));
        }
    }
}

fn read_exactly(input: &mut impl BufRead, length: u64) -> io::Result<Vec<u8>> {
    if length > MAX_BODY {
        return Err(invalid("body too long"));
    }
    let mut body = Vec::new();
    if input.take(length).read_to_end(&mut body)? as u64 == length {
        Ok(body)
    } else {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

/// One line without its end.
fn read_line(input: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    input.read_line(&mut line)?;
    let Some(text) = line.strip_suffix('\n') else {
        return Err(invalid("line without end"));
    };
    Ok(text.strip_suffix('\r').unwrap_or(text).to_owned())
}

fn invalid(what: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread::spawn;

    use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};

    use super::*;

    const MOMENT: Duration = Duration::from_millis(200);

    #[test]
    fn slow_answer_times_out() {
        // cni-plugins#77
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let listener = UnixListener::bind(&socket).unwrap();
        let daemon = spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = [0; 4096];
            assert!(stream.read(&mut request).unwrap() > 0);
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n")
                .unwrap();
            stream.set_read_timeout(Some(MOMENT / 20)).unwrap();
            // A byte at a time, until the client hangs up.
            while stream.read(&mut request).is_err() && stream.write_all(b"x").is_ok() {}
        });
        let answer = post(&socket, "/cni", b"{}", MOMENT);
        assert!(
            matches!(answer, Err(Error::Late(limit)) if limit == MOMENT),
            "{answer:?}"
        );
        daemon.join().unwrap();
    }

    #[test]
    fn connect_to_full_queue_times_out() {
        // cni-plugins#77
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let listener = socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )
        .unwrap();
        rustix::net::bind(&listener, &SocketAddrUnix::new(&socket).unwrap()).unwrap();
        rustix::net::listen(&listener, 0).unwrap();
        let mut queued = Vec::new();
        while let Ok(stream) = Timed::connect(&socket, Instant::now() + MOMENT / 20) {
            queued.push(stream);
        }
        let answer = post(&socket, "/cni", b"{}", MOMENT);
        assert!(
            matches!(answer, Err(Error::Late(limit)) if limit == MOMENT),
            "{answer:?}"
        );
        // A socket without a listener is another error.
        drop(listener);
        let answer = post(&socket, "/cni", b"{}", MOMENT);
        assert!(matches!(answer, Err(Error::Unreachable(_))), "{answer:?}");
    }

    fn read(text: &str) -> Result<Response, Error> {
        read_response(&mut text.as_bytes())
    }

    #[test]
    fn body_with_content_length_is_read() {
        let response = read("HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello and more").unwrap();
        assert_eq!(
            response,
            Response {
                status: 200,
                body: b"hello".to_vec()
            }
        );
    }

    #[test]
    fn chunked_body_is_decoded() {
        let text = "HTTP/1.1 400 Bad Request\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n";
        assert_eq!(
            read(text).unwrap(),
            Response {
                status: 400,
                body: b"abcde".to_vec()
            }
        );
    }

    #[test]
    fn body_without_content_length_ends_with_the_connection() {
        assert_eq!(read("HTTP/1.0 200 OK\r\n\r\nabc").unwrap().body, b"abc");
    }

    #[test]
    fn missing_answer_differs_from_malformed_one() {
        assert!(matches!(read(""), Err(Error::Dropped(_))));
        assert!(matches!(
            read("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nabc"),
            Err(Error::Malformed(_))
        ));
        assert!(matches!(read("SSH-2.0\r\n\r\n"), Err(Error::Malformed(_))));
    }
}
