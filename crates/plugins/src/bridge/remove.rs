//! DEL and GC: from an attachment, or what a crash left of one, to nothing (cni-plugins §3.3, §16).

use std::collections::BTreeSet;

use cni::{Error, note::Level, plugin::Call};
use linux::route::Socket;
use serde::Deserialize;

use super::{
    records,
    steps::{self, Step},
};
use crate::{
    ipam, masquerade,
    pod::Pod,
    record::{Attachment, AttachmentId, valid_attachments},
    ruleset::Ruleset,
    spoof_check, veth,
};

/// What the config says about rules of the host. Everything else in it is deliberately not read: whatever made ADD
/// fail must not keep a pod from going.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wanted {
    macspoofchk: bool,
    ip_masq: bool,
}

/// Detaches one container. Rules that cannot be removed keep no pod from going: they stay recorded, for GC.
pub(super) fn del(call: &Call) -> Result<(), Error> {
    let (records, key) = (records(call), AttachmentId::of(call));
    let owner = key.to(call.config.name());
    let mut rules = Ruleset::of(call);
    // A record that tells of no pair is one of a call that was killed early, or one that this version cannot read.
    let tells = |taken: &Vec<Step>| taken.iter().any(|step| step.pair().is_some());
    let left = if let Some(taken) = records.steps(&key)?.filter(tells) {
        steps::undo(call, &mut open()?, &mut rules, owner, &taken)?
    } else {
        delete_interface(call)?;
        remove_unrecorded_rules(call, &mut rules, owner)
    };
    // Addresses are given back last: whoever gets them next must not meet what this attachment left.
    ipam::del(call)?;
    match left {
        Ok(()) => records.remove(&key),
        Err(error) => {
            call.note(Level::Error, error);
            Ok(())
        }
    }
}

/// Removes the interface that the established plugin made, or one that lost its record: it is known by its name.
fn delete_interface(call: &Call) -> Result<(), Error> {
    let ifname = &call.request.ifname;
    let Some(mut pod) = Pod::find_remaining(call)? else {
        return Ok(());
    };
    pod.inside(|socket| veth::delete(call, socket, ifname))
}

/// Removes its rules, which are known by their comments.
fn remove_unrecorded_rules(call: &Call, rules: &mut Ruleset, owner: Attachment<'_>) -> Result<(), Error> {
    let wanted: Wanted = call.config.read().unwrap_or_default();
    let mut left = Ok(());
    if wanted.macspoofchk {
        left = spoof_check::tear_down(rules, owner, None);
    }
    if wanted.ip_masq {
        left = left.and(masquerade::tear_down(rules, owner, None));
    }
    left
}

/// Removes what recorded attachments of this network left that are not valid any more. What has no record cannot be
/// attributed and is left alone.
pub(super) fn gc(call: &Call) -> Result<(), Error> {
    let valid: BTreeSet<AttachmentId> = valid_attachments(call)?
        .into_iter()
        .map(|attachment| AttachmentId {
            container_id: attachment.container_id,
            ifname: attachment.ifname,
        })
        .collect();
    let records = records(call);
    let mut host = open()?;
    let mut rules = Ruleset::of(call);
    let mut outcome = Ok(());
    for key in records.keys()?.iter().filter(|key| !valid.contains(key)) {
        let collected = records
            .steps::<Step>(key)
            .and_then(|taken| {
                steps::undo(
                    call,
                    &mut host,
                    &mut rules,
                    key.to(call.config.name()),
                    &taken.unwrap_or_default(),
                )
            })
            .and_then(|left| left)
            .and_then(|()| records.remove(key));
        outcome = outcome.and(collected);
    }
    let wanted: Wanted = call.config.read().unwrap_or_default();
    if wanted.ip_masq {
        outcome = outcome.and(masquerade::collect(&mut rules, call.config.name(), &valid));
    }
    // One attachment that cannot be removed keeps nobody else's addresses from being collected.
    outcome.and(ipam::gc(call))
}

fn open() -> Result<Socket, Error> {
    Socket::open().map_err(cni::error::internal)
}
