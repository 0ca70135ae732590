//! The rules of the host's nftables, for as long as a call works on them.

use linux::nft::Socket;

/// The socket to the host's rules, opened when it is first needed.
///
/// Closing it after something was removed waits until no packet can meet that any more: a grace period of the
/// kernel, many times what the removal takes. Removing a link waits for one as well. So whoever does both opens
/// this first and lets go of it last, and waits once.
#[derive(Debug, Default)]
pub(crate) struct Ruleset {
    socket: Option<Socket>,
}

impl Ruleset {
    /// The socket, of the namespace that the first caller was in.
    pub(crate) fn socket(&mut self) -> linux::Result<&mut Socket> {
        match &mut self.socket {
            Some(socket) => Ok(socket),
            empty => Ok(empty.insert(Socket::open()?)),
        }
    }
}
