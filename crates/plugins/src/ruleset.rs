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
#[derive(Debug)]
pub(crate) struct Ruleset {
    open: fn() -> linux::Result<Socket>,
    socket: Option<Socket>,
    resident: Option<Resident>,
}

impl Default for Ruleset {
    fn default() -> Self {
        Self {
            open: Socket::open,
            socket: None,
            resident: None,
        }
    }
}

impl Ruleset {
    /// For the work of a call.
    pub(crate) fn of(call: &Call) -> Self {
        Self {
            resident: call.resident.clone(),
            ..Self::default()
        }
    }

    /// As on a kernel without nftables.
    #[cfg(test)]
    pub(crate) fn without_nftables() -> Self {
        Self {
            open: unsupported,
            ..Self::default()
        }
    }

    /// The socket, of the namespace that the first caller was in.
    pub(crate) fn socket(&mut self) -> linux::Result<&mut Socket> {
        match &mut self.socket {
            Some(socket) => Ok(socket),
            empty => Ok(empty.insert((self.open)()?)),
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

/// No error where the kernel lacks nftables: then there is nothing to remove.
pub(crate) fn unless_unsupported(outcome: linux::Result<()>) -> linux::Result<()> {
    match outcome {
        Err(error) if error.is_unsupported() => Ok(()),
        outcome => outcome,
    }
}

/// The error of a kernel that has no chains which translate addresses. Here it is the table that is missing: kernels say
/// both in the same way.
#[cfg(test)]
fn unsupported() -> linux::Result<Socket> {
    use linux::nft::{Family, Hook, HookPoint, Table, Transaction};

    let mut socket = Socket::open()?;
    let table = Table {
        family: Family::Inet,
        name: "none",
    };
    let hook = Hook {
        kind: "nat",
        point: HookPoint::Postrouting,
        priority: 0,
    };
    let mut refused = Transaction::new();
    refused.add_chain(table, "none", Some(hook), "");
    socket.commit(&refused)?;
    Ok(socket)
}
