//! DEL and GC of the link plugins, also for incomplete attachments (cni-plugins §3.3, §16).

use cni::{Error, note::Level, plugin::Call};
use linux::route::Socket;
use serde::Deserialize;

use super::{
    LinkPlugin,
    steps::{self, Step},
};
use crate::{
    ipam, masquerade,
    record::{Attachment, AttachmentId, RecordedSteps, Records, gc},
    ruleset::Ruleset,
    spoof_check,
};

/// The kinds of host rules that a config requests. Reads no other keys.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Rules {
    macspoofchk: bool,
    ip_masq: bool,
}

impl Rules {
    /// Implements [`LinkPlugin::rules`].
    pub(crate) fn of(call: &Call) -> Self {
        call.config.read().unwrap_or_default()
    }

    /// Adds the recorded kinds, which may come from an older config.
    fn add<'a>(&mut self, recorded: impl IntoIterator<Item = &'a Step>) {
        for step in recorded {
            self.macspoofchk |= matches!(step, Step::SpoofCheck { .. });
            self.ip_masq |= matches!(step, Step::Masquerade { .. });
        }
    }
}

/// Context of DEL and GC.
struct Removal<'a> {
    call: &'a Call,
    rules: Ruleset,
    /// The kinds of rules that the config requests.
    wanted: Rules,
}

/// Detaches a pod. Rules that cannot be removed stay recorded, for GC or for the DEL that a daemon repeats. They do not
/// fail the DEL of a runtime.
pub(super) fn del(plugin: &dyn LinkPlugin, call: &Call) -> Result<(), Error> {
    let key = AttachmentId::of(call);
    let owner = key.to(call.config.name());
    let records = Records::of(plugin.name(), call);
    let mut removal = Removal::new(plugin, call);
    // A record without a link step comes from an interrupted call or from a later version.
    let has_link = |recorded: &RecordedSteps<Step>| recorded.steps.iter().any(Step::is_link);
    let recorded = records.read(&key)?.filter(has_link);
    let needs_link = ipam::needs_link(call);
    if needs_link {
        plugin.addressing().ask(ipam::del, call)?;
    }
    let left = if let Some(recorded) = &recorded {
        removal.undo(&mut open()?, owner, recorded)?
    } else {
        plugin.remove_unrecorded(call)?;
        removal.remove_unrecorded_rules(owner)
    };
    if !needs_link {
        plugin.addressing().ask(ipam::del, call)?;
    }
    if let Err(error) = left {
        if call
            .resident
            .as_ref()
            .is_some_and(|resident| resident.repeats_dels)
        {
            return Err(error);
        }
        call.note(Level::Error, error);
        return Ok(());
    }
    records.remove(&key)?;
    if records.is_last(call) {
        let mut used = removal.wanted;
        used.add(recorded.iter().flat_map(|recorded| &recorded.steps));
        removal.remove_unused_rules(used);
    }
    plugin.sweep(call);
    Ok(())
}

/// Removes recorded attachments of this network that are no longer valid. Keeps links without a record, whose
/// attachment is unknown. Without a list of valid attachments, does not call IPAM either: a third-party plugin could
/// treat a missing list as empty.
pub(super) fn gc(plugin: &dyn LinkPlugin, call: &Call) -> Result<(), Error> {
    let Some(valid) = gc::valid(call)? else {
        return Ok(());
    };
    let mut host = open()?;
    let records = Records::of(plugin.name(), call);
    let mut removal = Removal::new(plugin, call);
    let mut used = removal.wanted;
    let collected = records.collect(call, &valid, |key, recorded| {
        used.add(&recorded.steps);
        removal.undo(&mut host, key.to(call.config.name()), recorded)?
    });
    let is_last = matches!(collected, Ok(true));
    let mut outcome = collected.map(drop);
    if used.ip_masq {
        outcome = outcome.and(masquerade::collect(
            &mut removal.rules,
            call.config.name(),
            &valid,
        ));
        // This has also removed unused masquerading rules.
        used.ip_masq = false;
    }
    if is_last {
        removal.remove_unused_rules(used);
    }
    plugin.sweep(call);
    outcome = outcome.and(plugin.collect(call, &mut host));
    // A failed removal does not block the collection of addresses.
    outcome.and(plugin.addressing().ask(ipam::gc, call))
}

impl<'a> Removal<'a> {
    fn new(plugin: &'a dyn LinkPlugin, call: &'a Call) -> Self {
        Removal {
            call,
            rules: Ruleset::of(call),
            wanted: plugin.rules(call),
        }
    }

    /// Calls [`steps::undo`], and searches for the rules of steps that this version cannot parse.
    fn undo(
        &mut self,
        host: &mut Socket,
        owner: Attachment<'_>,
        recorded: &RecordedSteps<Step>,
    ) -> Result<Result<(), Error>, Error> {
        let left = steps::undo(self.call, host, &mut self.rules, owner, &recorded.steps)?;
        if recorded.is_whole {
            return Ok(left);
        }
        Ok(left.and(self.remove_unrecorded_rules(owner)))
    }

    /// Removes an attachment's rules, found by their comments.
    fn remove_unrecorded_rules(&mut self, owner: Attachment<'_>) -> Result<(), Error> {
        let mut left = Ok(());
        if self.wanted.macspoofchk {
            left = spoof_check::tear_down(&mut self.rules, owner, None);
        }
        if self.wanted.ip_masq {
            left = left.and(masquerade::tear_down(&mut self.rules, owner, None));
        }
        left
    }

    /// Removes unused rules and sets that attachments of the network share, best effort. Safe beside a concurrent
    /// ADD: a commit fails if the ruleset has changed since it was read, and is then planned again.
    fn remove_unused_rules(&mut self, used: Rules) {
        let mut outcome = Ok(());
        if used.macspoofchk {
            outcome = spoof_check::remove_unused(&mut self.rules);
        }
        if used.ip_masq {
            outcome = outcome.and(masquerade::remove_unused(
                &mut self.rules,
                self.call.config.name(),
            ));
        }
        if let Err(error) = outcome {
            self.call.note(Level::Warn, error);
        }
    }
}

fn open() -> Result<Socket, Error> {
    Socket::open().map_err(cni::error::internal)
}
