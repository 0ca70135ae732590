//! Events of ruleset changes.

use std::{
    io,
    os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd},
};

use netlink_sys::{Socket as RawSocket, SocketAddr, protocols::NETLINK_NETFILTER};

use super::wire::{field, fields, table, text};
use crate::{
    Errno, Error, Feature, Result,
    route::{RECEIVE_BUFFER, Request, descriptor, messages, retry},
};

/// `NFNLGRP_NFTABLES` of `<linux/netfilter/nfnetlink.h>`.
const GROUP: u32 = 7;
/// The upper byte of nftables message types (`NFNL_SUBSYS_NFTABLES`), and the type of messages that report a new
/// generation and no table.
const SUBSYSTEM: u16 = 10 << 8;
const NEW_GENERATION: u16 = SUBSYSTEM | 15;

/// Reports changes of the tables with one name, in the namespace of its creation. For event loops: a descriptor to wait
/// on, and [`Monitor::changed`].
#[derive(Debug)]
pub struct Monitor {
    raw: RawSocket,
    receive: Vec<u8>,
    name: &'static str,
}

impl Monitor {
    /// Subscribes to changes of tables with this name, in all families. Read the ruleset afterwards.
    pub fn open(name: &'static str) -> Result<Self> {
        let request = request(name);
        let failed = |error: io::Error| request.io(&error);
        let mut raw = RawSocket::new(NETLINK_NETFILTER).map_err(failed)?;
        raw.bind(&SocketAddr::new(0, 0)).map_err(failed)?;
        raw.add_membership(GROUP).map_err(failed)?;
        raw.set_non_blocking(true).map_err(failed)?;
        Ok(Monitor {
            raw,
            receive: Vec::with_capacity(RECEIVE_BUFFER),
            name,
        })
    }

    /// Returns true if the tables changed since the last call, or if events were lost. Does not wait.
    pub fn changed(&mut self) -> Result<bool> {
        let mut changed = false;
        loop {
            self.receive.clear();
            match retry(|| self.raw.recv(&mut self.receive, 0)) {
                Ok(_) => changed |= self.concerns_table()?,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(changed),
                Err(error) if Errno::from_io_error(&error) == Some(Errno::NOBUFS) => changed = true,
                Err(error) => return Err(Error::io(request(self.name).doing, self.name, &error)),
            }
        }
    }

    fn concerns_table(&self) -> Result<bool> {
        let mut found = false;
        for message in messages(request(self.name), &self.receive) {
            let message = message?;
            let kind = message.message_type();
            // Messages about chains, rules, sets and elements have the table's name in the same attribute.
            found |= kind & 0xff00 == SUBSYSTEM
                && kind != NEW_GENERATION
                && field(fields(message.payload()), table::NAME).is_some_and(|name| text(name) == self.name);
        }
        Ok(found)
    }
}

impl AsFd for Monitor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        descriptor(&self.raw)
    }
}

impl AsRawFd for Monitor {
    fn as_raw_fd(&self) -> RawFd {
        self.raw.as_raw_fd()
    }
}

fn request(name: &'static str) -> Request<'static> {
    Request::new("subscribe to changes of table", name).needs(Feature::Nftables)
}
