//! A connected socket whose reads and writes have deadlines.

use std::io;
use std::net::TcpStream;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, retry_on_intr};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, recv, send, socket_with,
};

use crate::Address;

#[derive(Debug)]
pub(crate) struct Stream(pub(crate) OwnedFd);

impl Stream {
    pub(crate) fn connect(address: &Address, timeout: Duration) -> io::Result<Self> {
        match address {
            Address::Unix(path) => connect_unix(path, timeout),
            Address::Tcp(address) => Ok(TcpStream::connect_timeout(address, timeout)?.into()),
        }
        .map(Self)
    }

    /// Reads received bytes. Returns `None` if the deadline passed first, and `Some(0)` at the end of the stream.
    pub(crate) fn receive(&self, buffer: &mut [u8], deadline: Option<Instant>) -> io::Result<Option<usize>> {
        loop {
            match retry_on_intr(|| recv(&self.0, &mut *buffer, RecvFlags::DONTWAIT)) {
                Ok((length, _)) => return Ok(Some(length)),
                Err(Errno::AGAIN) => {}
                Err(errno) => return Err(errno.into()),
            }
            if !self.wait(PollFlags::IN, deadline)? {
                return Ok(None);
            }
        }
    }

    /// Writes all bytes. Returns `false` if the deadline passed first.
    pub(crate) fn send(&self, mut bytes: &[u8], deadline: Instant) -> io::Result<bool> {
        while !bytes.is_empty() {
            match retry_on_intr(|| send(&self.0, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)) {
                Ok(length) => bytes = bytes.get(length..).unwrap_or_default(),
                Err(Errno::AGAIN) if self.wait(PollFlags::OUT, Some(deadline))? => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(true)
    }

    /// Waits until the socket is ready. Returns `false` if the deadline passed first.
    fn wait(&self, flags: PollFlags, deadline: Option<Instant>) -> io::Result<bool> {
        loop {
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return Ok(false);
            }
            // Waits without a limit if the deadline is too far away, which means hundreds of years.
            let left = left.and_then(|left| Timespec::try_from(left).ok());
            match poll(&mut [PollFd::new(&self.0, flags)], left.as_ref()) {
                Ok(0) | Err(Errno::INTR) => {}
                Ok(_) => return Ok(true),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

/// Connects to a unix socket. The kernel blocks a client while the backlog of the listener is full.
fn connect_unix(path: &Path, timeout: Duration) -> io::Result<OwnedFd> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(
        AddressFamily::UNIX,
        SocketType::STREAM,
        SocketFlags::CLOEXEC,
        None,
    )?;
    // The send timeout also limits connect.
    set_socket_timeout(&socket, Timeout::Send, Some(timeout))?;
    match retry_on_intr(|| rustix::net::connect(&socket, &address)) {
        Err(Errno::AGAIN) => Err(io::ErrorKind::TimedOut.into()),
        outcome => Ok(outcome.map(|()| socket)?),
    }
}
