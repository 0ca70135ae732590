//! A connection to a daemon's unix socket with an overall deadline.

use std::{
    io::{self, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

use rustix::{
    io::retry_on_intr,
    net::{
        AddressFamily, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with,
        sockopt::{Timeout, set_socket_timeout},
    },
};

/// A connection with one deadline for connecting and all reads and writes.
#[derive(Debug)]
pub(crate) struct Timed {
    stream: UnixStream,
    deadline: Instant,
}

impl Timed {
    /// Connects. Blocks while the listener's queue is full.
    pub(crate) fn connect(socket: &Path, deadline: Instant) -> io::Result<Self> {
        let stream = socket_with(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC,
            None,
        )?;
        // Also applies to connecting.
        set_socket_timeout(&stream, Timeout::Send, left(deadline)?)?;
        let address = SocketAddrUnix::new(socket)?;
        retry_on_intr(|| connect(&stream, &address))?;
        Ok(Timed {
            stream: stream.into(),
            deadline,
        })
    }
}

/// The time until `deadline`. An error after it.
fn left(deadline: Instant) -> io::Result<Option<Duration>> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    Ok(Some(left))
}

impl Read for Timed {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(left(self.deadline)?)?;
        self.stream.read(buffer)
    }
}

impl Write for Timed {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(left(self.deadline)?)?;
        self.stream.write(buffer)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Whether the error is a socket timeout.
pub(crate) fn is_late(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}
