//! DEL and GC: from an attachment, or what a crash left of one, to nothing (cni-plugins §3.3, §16).

use std::collections::BTreeSet;

use cni::{Error, plugin::Call};
use linux::route::Socket;

use super::{
    records,
    steps::{self, Step},
};
use crate::{ipam, messages::Explain as _, pod::Pod, record::Key};

/// Detaches one container. The config is deliberately not read beyond what IPAM needs: whatever made ADD fail must
/// not keep a pod from going.
pub(super) fn del(call: &Call) -> Result<(), Error> {
    let (records, key) = (records(call), Key::of(call));
    let detached = match records.steps::<Step>(&key)? {
        Some(taken) => steps::undo(&mut open()?, &taken),
        None => detach_unrecorded(call),
    };
    // Addresses are given back last: whoever gets them next must not meet what this attachment left.
    detached
        .and_then(|()| ipam::del(call))
        .and_then(|()| records.remove(&key))
}

/// Detaches what the established plugin attached, or what lost its record: the interface is known by its name.
fn detach_unrecorded(call: &Call) -> Result<(), Error> {
    let ifname = &call.request.ifname;
    let Some(mut pod) = Pod::find_remaining(call)? else {
        return Ok(());
    };
    match pod.socket.delete_link_by_name(ifname) {
        Err(error) if error.is_not_found() => Ok(()),
        done => done.explain(|| format!("failed to delete \"{ifname}\"")),
    }
}

/// Removes what recorded attachments of this network left that are not valid any more. What has no record cannot be
/// attributed and is left alone.
pub(super) fn gc(call: &Call) -> Result<(), Error> {
    let valid: BTreeSet<Key> = call
        .config
        .valid_attachments()
        .map_err(|error| Error::internal(format!("failed to load netconf: {error}")))?
        .into_iter()
        .map(|attachment| Key {
            container_id: attachment.container_id,
            ifname: attachment.ifname,
        })
        .collect();
    let records = records(call);
    let mut host = open()?;
    let mut outcome = Ok(());
    for key in records.keys()?.iter().filter(|key| !valid.contains(key)) {
        let collected = records
            .steps::<Step>(key)
            .and_then(|taken| steps::undo(&mut host, &taken.unwrap_or_default()))
            .and_then(|()| records.remove(key));
        outcome = outcome.and(collected);
    }
    // One attachment that cannot be removed keeps nobody else's addresses from being collected.
    outcome.and(ipam::gc(call))
}

fn open() -> Result<Socket, Error> {
    Socket::open().map_err(cni::error::internal)
}
