//! The rules of the host, for as long as a call works on them.

use std::io;
use std::process::{Command, Output};
use std::time::Duration;

use cni::exec::{self, Resident};
use cni::plugin::Call;
use linux::nft::Socket;

/// How long a program that changes rules may take.
const PROGRAM_LIMIT: Duration = Duration::from_mins(1);

/// The socket to the host's nftables, opened when it is first needed, and the way to start programs of iptables.
///
/// Closing the socket after something was removed waits until no packet can meet that any more: a grace period of the
/// kernel, many times what the removal takes. Removing a link waits for one as well. So whoever does both opens
/// this first and lets go of it last, and waits once.
#[derive(Debug, Default)]
pub(crate) struct Ruleset {
    socket: Option<Socket>,
    resident: Option<Resident>,
}

impl Ruleset {
    /// For the work of a call.
    pub(crate) fn of(call: &Call) -> Self {
        Self {
            socket: None,
            resident: call.resident.clone(),
        }
    }

    /// The socket, of the namespace that the first caller was in.
    pub(crate) fn socket(&mut self) -> linux::Result<&mut Socket> {
        match &mut self.socket {
            Some(socket) => Ok(socket),
            empty => Ok(empty.insert(Socket::open()?)),
        }
    }

    /// Runs a program that changes rules, not longer than the call may go on.
    pub(crate) fn execute(&self, command: &mut Command, input: &[u8]) -> io::Result<Output> {
        let mut limit = PROGRAM_LIMIT;
        if let Some(resident) = &self.resident {
            limit = limit.min(resident.left());
            if let Some(prepare) = &resident.prepare {
                prepare(command);
            }
        }
        exec::run(command, input, Some(limit))
    }
}
