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
    record::{Attachment, AttachmentId, Records, Taken, valid_attachments},
    ruleset::Ruleset,
    spoof_check, veth,
};

/// The kinds of host rules that attachments have. No other key of the config is read: a config that made ADD fail must not
/// keep a pod from going.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Rules {
    macspoofchk: bool,
    ip_masq: bool,
}

impl Rules {
    fn of(call: &Call) -> Self {
        call.config.read().unwrap_or_default()
    }

    /// Adds the kinds that are on record, perhaps of an older config.
    fn add<'a>(&mut self, taken: impl IntoIterator<Item = &'a Step>) {
        for step in taken {
            self.macspoofchk |= matches!(step, Step::SpoofCheck { .. });
            self.ip_masq |= matches!(step, Step::Masquerade { .. });
        }
    }
}

/// Detaches one container. Rules that cannot be removed keep no pod from going: they stay recorded, for GC.
pub(super) fn del(call: &Call) -> Result<(), Error> {
    let (records, key) = (records(call), AttachmentId::of(call));
    let owner = key.to(call.config.name());
    let mut rules = Ruleset::of(call);
    // A record that tells of no pair is one of a call that was killed early, or one that this version cannot read.
    let tells = |taken: &Taken<Step>| taken.steps.iter().any(|step| step.pair().is_some());
    let taken = records.taken(&key)?.filter(tells);
    let left = if let Some(taken) = &taken {
        undo(call, &mut open()?, &mut rules, owner, taken)?
    } else {
        delete_interface(call)?;
        remove_unrecorded_rules(call, &mut rules, owner)
    };
    // Addresses are given back last: whoever gets them next must not meet what this attachment left.
    ipam::del(call)?;
    if let Err(error) = left {
        call.note(Level::Error, error);
        return Ok(());
    }
    records.remove(&key)?;
    if is_empty(call, &records) {
        let mut used = Rules::of(call);
        used.add(taken.iter().flat_map(|taken| &taken.steps));
        remove_unused_rules(call, &mut rules, &used);
    }
    Ok(())
}

/// [`steps::undo`], and a search for the rules of steps that only a later version can read.
fn undo(
    call: &Call,
    host: &mut Socket,
    rules: &mut Ruleset,
    owner: Attachment<'_>,
    taken: &Taken<Step>,
) -> Result<Result<(), Error>, Error> {
    let left = steps::undo(call, host, rules, owner, &taken.steps)?;
    if taken.is_whole {
        return Ok(left);
    }
    Ok(left.and(remove_unrecorded_rules(call, rules, owner)))
}

/// Whether the network has no attachment any more.
fn is_empty(call: &Call, records: &Records) -> bool {
    records.remove_if_empty().unwrap_or_else(|error| {
        call.note(Level::Warn, error);
        false
    })
}

/// Removes rules and sets that attachments of the network shared. A failure does no harm. A concurrent ADD is safe: both
/// commit only to the ruleset that they have read, and decide anew otherwise.
fn remove_unused_rules(call: &Call, rules: &mut Ruleset, used: &Rules) {
    let mut outcome = Ok(());
    if used.macspoofchk {
        outcome = spoof_check::remove_unused(rules);
    }
    if used.ip_masq {
        outcome = outcome.and(masquerade::remove_unused(rules, call.config.name()));
    }
    if let Err(error) = outcome {
        call.note(Level::Warn, error);
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
    let wanted = Rules::of(call);
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
/// attributed and is left alone. Without a list IPAM is not asked either: a plugin of others could take its absence for an
/// empty list.
pub(super) fn gc(call: &Call) -> Result<(), Error> {
    let Some(valid) = valid_attachments(call)? else {
        return Ok(());
    };
    let valid: BTreeSet<AttachmentId> = valid
        .into_iter()
        .map(|attachment| AttachmentId {
            container_id: attachment.container_id,
            ifname: attachment.ifname,
        })
        .collect();
    let records = records(call);
    let mut host = open()?;
    let mut rules = Ruleset::of(call);
    let mut used = Rules::of(call);
    let mut outcome = Ok(());
    for key in records.keys()?.iter().filter(|key| !valid.contains(key)) {
        // Without a record there was a DEL meanwhile.
        let collected = records.taken::<Step>(key).and_then(|taken| match taken {
            Some(taken) => {
                used.add(&taken.steps);
                collect(call, &records, key, &taken, &mut host, &mut rules)
            }
            None => Ok(()),
        });
        outcome = outcome.and(collected);
    }
    if used.ip_masq {
        outcome = outcome.and(masquerade::collect(&mut rules, call.config.name(), &valid));
        // Which removed those without a user, too.
        used.ip_masq = false;
    }
    if is_empty(call, &records) {
        remove_unused_rules(call, &mut rules, &used);
    }
    // One attachment that cannot be removed keeps nobody else's addresses from being collected.
    outcome.and(ipam::gc(call))
}

/// Takes an attachment back. Its record stays if a later version has to take back more.
fn collect(
    call: &Call,
    records: &Records,
    key: &AttachmentId,
    taken: &Taken<Step>,
    host: &mut Socket,
    rules: &mut Ruleset,
) -> Result<(), Error> {
    undo(call, host, rules, key.to(call.config.name()), taken)??;
    if taken.is_whole {
        return records.remove(key);
    }
    call.note(
        Level::Warn,
        format_args!(
            "the record of {} of {} has steps of a later version and stays for it",
            key.ifname, key.container_id
        ),
    );
    Ok(())
}

fn open() -> Result<Socket, Error> {
    Socket::open().map_err(cni::error::internal)
}
