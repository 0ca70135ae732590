//! The route netlink socket: one exchange at a time, and errors with the kernel's messages.

use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::time::Duration;

use netlink_packet_core::{
    DoneBuffer, ErrorBuffer, NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_ECHO,
    NLM_F_MULTIPART, NLM_F_REQUEST, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, NetlinkBuffer, NetlinkMessage,
    NlasIterator, parse_string,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::{Socket as RawSocket, SocketAddr, protocols::NETLINK_ROUTE};

use crate::{Errno, Error, Feature, Result};

/// Total number of attempts of a dump that the kernel marks as interrupted.
pub(crate) const DUMP_ATTEMPTS: usize = 5;
/// Buffer for the largest datagram of the kernel (dumps use pages of 32 KiB), with a reserve.
pub(crate) const RECEIVE_BUFFER: usize = 64 * 1024;
/// `NLMSGERR_ATTR_MSG`: the kernel's message in an extended acknowledgement.
const EXTENDED_ACK_MESSAGE: u16 = 1;
/// Length of the header of the refused request, which an error repeats.
const NETLINK_HEADER: usize = 16;
/// Length of the header of an attribute.
const ATTRIBUTE_HEADER: usize = 4;

/// The description of a request, for its error.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) doing: &'static str,
    pub(crate) object: &'a str,
    pub(crate) needs: Option<Feature>,
}

impl<'a> Request<'a> {
    pub(crate) fn new(doing: &'static str, object: &'a str) -> Self {
        Request {
            doing,
            object,
            needs: None,
        }
    }

    pub(crate) fn needs(mut self, feature: Feature) -> Self {
        self.needs = Some(feature);
        self
    }

    pub(crate) fn refused(&self, errno: Errno) -> Error {
        Error::kernel(self.doing, self.object, errno).needing(self.needs)
    }

    pub(crate) fn unreadable(&self, cause: impl std::fmt::Display) -> Error {
        Error::answer(self.doing, self.object, cause)
    }

    pub(crate) fn io(&self, error: &std::io::Error) -> Error {
        Error::io(self.doing, self.object, error).needing(self.needs)
    }
}

/// A route netlink socket. It stays in the network namespace in which it was opened, even if the thread enters another
/// namespace: open one for each namespace and keep it.
#[derive(Debug)]
pub struct Socket {
    raw: RawSocket,
    sequence: u32,
    send: Vec<u8>,
    receive: Vec<u8>,
}

impl Socket {
    /// Opens a socket in the network namespace of this thread.
    pub fn open() -> Result<Self> {
        let request = Request::new("open netlink socket", "");
        let raw = RawSocket::new(NETLINK_ROUTE).map_err(|e| request.io(&e))?;
        // Options that older kernels lack: messages in errors, short errors, exact dump filters.
        let _ = raw.set_ext_ack(true);
        let _ = raw.set_cap_ack(true);
        let _ = raw.set_netlink_get_strict_chk(true);
        Ok(Socket {
            raw,
            sequence: 0,
            send: Vec::new(),
            receive: Vec::with_capacity(RECEIVE_BUFFER),
        })
    }

    /// Sends a change and waits for its acknowledgement.
    pub(crate) fn execute(
        &mut self,
        request: Request<'_>,
        message: RouteNetlinkMessage,
        flags: u16,
    ) -> Result<()> {
        self.converse(request, message, NLM_F_REQUEST | NLM_F_ACK | flags, |_| Ok(()))
            .map(drop)
    }

    /// Sends a change and returns the changed object, which the kernel sends with the acknowledgement: saves a second
    /// request. `None` from kernels that do not send it, such as those before Linux 6.2 for new links. `read` receives the
    /// object's bytes without the netlink header.
    pub(crate) fn execute_and_read<T>(
        &mut self,
        request: Request<'_>,
        message: RouteNetlinkMessage,
        flags: u16,
        mut read: impl FnMut(&[u8]) -> Result<T>,
    ) -> Result<Option<T>> {
        let mut found = None;
        let flags = NLM_F_REQUEST | NLM_F_ACK | NLM_F_ECHO | flags;
        self.converse(request, message, flags, |bytes| {
            found = Some(read(bytes)?);
            Ok(())
        })?;
        Ok(found)
    }

    /// Requests one object. `read` receives its bytes without the netlink header.
    pub(crate) fn get<T>(
        &mut self,
        request: Request<'_>,
        message: RouteNetlinkMessage,
        mut read: impl FnMut(&[u8]) -> Result<T>,
    ) -> Result<T> {
        let mut found = None;
        self.converse(request, message, NLM_F_REQUEST, |bytes| {
            found = Some(read(bytes)?);
            Ok(())
        })?;
        found.ok_or_else(|| request.unreadable("no object in the answer"))
    }

    /// Requests all objects that match `message`. `read` returns `None` for objects to skip.
    ///
    /// A dump that was interrupted by a change is repeated, at most five times. Then the last dump counts (cni-plugins
    /// §2.2).
    pub(crate) fn dump<T>(
        &mut self,
        request: Request<'_>,
        message: &RouteNetlinkMessage,
        mut read: impl FnMut(&[u8]) -> Result<Option<T>>,
    ) -> Result<Vec<T>> {
        let mut attempt = 1;
        loop {
            let mut found = Vec::new();
            let interrupted =
                self.converse(request, message.clone(), NLM_F_REQUEST | NLM_F_DUMP, |bytes| {
                    found.extend(read(bytes)?);
                    Ok(())
                })?;
            if !interrupted || attempt == DUMP_ATTEMPTS {
                return Ok(found);
            }
            attempt += 1;
        }
    }

    /// Exchanges one request and all of its answers. Returns true if a dump was interrupted.
    fn converse(
        &mut self,
        request: Request<'_>,
        message: RouteNetlinkMessage,
        flags: u16,
        mut read: impl FnMut(&[u8]) -> Result<()>,
    ) -> Result<bool> {
        // The kernel would use the part before the zero byte as the name.
        if request.object.contains('\0') {
            return Err(Error::request(
                request.doing,
                request.object,
                "a zero byte in the name",
            ));
        }
        self.sequence = self.sequence.wrapping_add(1);
        let mut message = NetlinkMessage::from(message);
        message.header.flags = flags;
        message.header.sequence_number = self.sequence;
        message.finalize();
        self.send.clear();
        self.send.resize(message.buffer_len(), 0);
        message.serialize(&mut self.send);
        let kernel = SocketAddr::new(0, 0);
        retry(|| self.raw.send_to(&self.send, &kernel, 0)).map_err(|e| request.io(&e))?;

        let mut interrupted = false;
        loop {
            self.receive.clear();
            retry(|| self.raw.recv(&mut self.receive, 0)).map_err(|e| request.io(&e))?;
            for answer in messages(request, &self.receive) {
                let answer = answer?;
                // Leftovers of an earlier, abandoned exchange have another sequence number.
                if answer.sequence_number() != self.sequence {
                    continue;
                }
                interrupted |= answer.flags() & NLM_F_DUMP_INTR != 0;
                match answer.message_type() {
                    NLMSG_NOOP => {}
                    NLMSG_ERROR => {
                        return acknowledged(request, answer.flags(), answer.payload()).map(|()| interrupted);
                    }
                    NLMSG_DONE => return finished(request, answer.payload()).map(|()| interrupted),
                    _ => {
                        read(answer.payload())?;
                        if answer.flags() & NLM_F_MULTIPART == 0 && flags & NLM_F_ACK == 0 {
                            return Ok(interrupted);
                        }
                    }
                }
            }
        }
    }
}

/// Returns the messages of a datagram, and an error at the first malformed one.
pub(crate) fn messages<'a>(
    request: Request<'a>,
    datagram: &'a [u8],
) -> impl Iterator<Item = Result<NetlinkBuffer<&'a [u8]>>> {
    let mut rest = datagram;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let message = NetlinkBuffer::new_checked(rest).map_err(|e| request.unreadable(e));
        let length = message
            .as_ref()
            .map_or(usize::MAX, |message| message.length() as usize);
        rest = length
            .checked_next_multiple_of(4)
            .and_then(|end| rest.get(end..))
            .unwrap_or_default();
        Some(message)
    })
}

/// Reads an `NLMSG_ERROR`. Number zero is the acknowledgement.
pub(crate) fn acknowledged(request: Request<'_>, flags: u16, payload: &[u8]) -> Result<()> {
    let error = ErrorBuffer::new_checked(payload).map_err(|e| request.unreadable(e))?;
    let Some(code) = error.code() else { return Ok(()) };
    let message = (flags & NLM_F_ACK_TLVS != 0)
        .then(|| error.payload().get(NETLINK_HEADER..).and_then(kernels_message))
        .flatten();
    Err(request.refused(errno(code.get())).with_message(message))
}

/// Reads an `NLMSG_DONE`, which contains an error if a dump stopped early.
pub(crate) fn finished(request: Request<'_>, payload: &[u8]) -> Result<()> {
    let Ok(done) = DoneBuffer::new_checked(payload) else {
        return Ok(());
    };
    match done.code() {
        code if code < 0 => {
            let error = request.refused(errno(code));
            Err(error.with_message(kernels_message(done.extended_ack())))
        }
        _ => Ok(()),
    }
}

/// Returns the error number of an answer, which is negative. An invalid number becomes an input/output error.
fn errno(code: i32) -> Errno {
    match code.saturating_neg() {
        number @ 1..4096 => Errno::from_raw_os_error(number),
        _ => Errno::IO,
    }
}

fn kernels_message(bytes: &[u8]) -> Option<String> {
    let mut message = None;
    attributes(bytes, |kind, value| {
        if kind == EXTENDED_ACK_MESSAGE {
            message = parse_string(value).ok();
        }
    });
    message
}

/// Calls `read` with each attribute in `bytes`. Stops at the first truncated attribute.
pub(crate) fn attributes<'a>(bytes: &'a [u8], mut read: impl FnMut(u16, &'a [u8])) {
    for attribute in NlasIterator::new(bytes).map_while(Result::ok) {
        let (kind, length) = (attribute.kind(), usize::from(attribute.length()));
        let value = attribute.into_inner().get(ATTRIBUTE_HEADER..length);
        read(kind, value.unwrap_or_default());
    }
}

/// The descriptor of a netlink socket.
pub(crate) fn descriptor(socket: &RawSocket) -> BorrowedFd<'_> {
    #[allow(
        unsafe_code,
        reason = "the netlink socket offers its descriptor in the raw form only"
    )]
    // SAFETY: the descriptor is open for as long as the borrowed socket exists.
    unsafe {
        BorrowedFd::borrow_raw(socket.as_raw_fd())
    }
}

/// Repeats a system call that a signal interrupted.
pub(crate) fn retry<T>(mut call: impl FnMut() -> std::io::Result<T>) -> std::io::Result<T> {
    loop {
        match call() {
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            result => return result,
        }
    }
}

/// Returns the remaining time for `poll`, or `None` once `deadline` has passed.
pub(crate) fn remaining(deadline: std::time::Instant) -> Option<Duration> {
    deadline
        .checked_duration_since(std::time::Instant::now())
        .filter(|left| !left.is_zero())
}
