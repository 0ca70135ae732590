//! Access to the host's rules during a call.

use std::io;
use std::process::{Command, Output};
use std::time::Duration;

use cni::exec::{self, Resident};
use cni::plugin::Call;
use linux::nft::Socket;

/// Timeout of a program that changes rules.
const PROGRAM_LIMIT: Duration = Duration::from_mins(1);

/// A lazily opened socket to the host's nftables, and the runner of iptables programs.
///
/// Closing the socket after a removal waits for a kernel grace period, which takes much longer than the removal.
/// Deleting a link waits for one too. A caller that does both should open this first and drop it last, to wait only
/// once.
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
    pub(crate) fn of(call: &Call) -> Self {
        Self {
            resident: call.resident.clone(),
            ..Self::default()
        }
    }

    /// Simulates a kernel without nftables.
    #[cfg(test)]
    pub(crate) fn without_nftables() -> Self {
        Self {
            open: unsupported,
            ..Self::default()
        }
    }

    /// The socket, in the network namespace of the first caller.
    pub(crate) fn socket(&mut self) -> linux::Result<&mut Socket> {
        match &mut self.socket {
            Some(socket) => Ok(socket),
            empty => Ok(empty.insert((self.open)()?)),
        }
    }

    /// Runs a program that changes rules, within the deadline of the call.
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

/// Ignores a missing nftables: then nothing needs removal.
pub(crate) fn unless_unsupported(outcome: linux::Result<()>) -> linux::Result<()> {
    match outcome {
        Err(error) if error.is_unsupported() => Ok(()),
        outcome => outcome,
    }
}

/// The error of a kernel without NAT chains, provoked by a missing table, which has the same error.
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    use super::*;

    #[test]
    fn program_ends_with_the_deadline_of_its_call() {
        let prepared = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&prepared);
        let ruleset = Ruleset {
            resident: Some(Resident {
                prepare: Some(Arc::new(move |_: &mut Command| {
                    count.fetch_add(1, Ordering::Relaxed);
                })),
                deadline: Instant::now() + Duration::from_millis(200),
                repeats_dels: true,
            }),
            ..Ruleset::default()
        };
        let error = ruleset.execute(Command::new("sleep").arg("50"), b"").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut, "{error}");
        assert_eq!(prepared.load(Ordering::Relaxed), 1);
    }
}
