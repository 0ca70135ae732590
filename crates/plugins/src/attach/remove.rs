//! DEL and GC: from an attachment, or what a crash left of one, to nothing (cni-plugins §3.3, §16).

use cni::{Error, note::Level, plugin::Call};
use linux::route::Socket;
use serde::Deserialize;

use super::{
    LinkPlugin,
    steps::{self, Step},
};
use crate::{
    ipam, masquerade,
    record::{Attachment, AttachmentId, Records, Taken, gc},
    ruleset::Ruleset,
    spoof_check,
};

/// The kinds of host rules that attachments have, as the keys of a config say. No other key of it is read.
#[derive(Debug, Default, Clone, Copy, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(crate) struct Rules {
    macspoofchk: bool,
    ip_masq: bool,
}

impl Rules {
    /// For [`LinkPlugin::rules`].
    pub(crate) fn of(call: &Call) -> Self {
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

/// The means of DEL and GC.
struct Removal<'a> {
    call: &'a Call,
    rules: Ruleset,
    /// The kinds of rules that the config names.
    wanted: Rules,
}

/// Detaches one container. Rules that cannot be removed keep no pod from going: they stay recorded, for GC.
pub(super) fn del(plugin: &dyn LinkPlugin, call: &Call) -> Result<(), Error> {
    let key = AttachmentId::of(call);
    let owner = key.to(call.config.name());
    let records = Records::of(plugin.name(), call);
    let mut removal = Removal::new(plugin, call);
    // A record that tells of no link is one of a call that was killed early, or one that this version cannot read.
    let tells = |taken: &Taken<Step>| taken.steps.iter().any(Step::is_link);
    let taken = records.taken(&key)?.filter(tells);
    let needs_link = ipam::needs_link(call);
    if needs_link {
        plugin.addressing().ask(ipam::del, call)?;
    }
    let left = if let Some(taken) = &taken {
        removal.undo(&mut open()?, owner, taken)?
    } else {
        plugin.remove_unrecorded(call)?;
        removal.remove_unrecorded_rules(owner)
    };
    if !needs_link {
        plugin.addressing().ask(ipam::del, call)?;
    }
    if let Err(error) = left {
        call.note(Level::Error, error);
        return Ok(());
    }
    records.remove(&key)?;
    if records.is_last(call) {
        let mut used = removal.wanted;
        used.add(taken.iter().flat_map(|taken| &taken.steps));
        removal.remove_unused_rules(used);
    }
    plugin.sweep(call);
    Ok(())
}

/// Removes recorded attachments of this network that are not valid any more. Links without a record belong to no known
/// attachment and are left alone. Without a list IPAM is not asked either: a plugin of others could take its absence for an
/// empty list.
pub(super) fn gc(plugin: &dyn LinkPlugin, call: &Call) -> Result<(), Error> {
    let Some(valid) = gc::valid(call)? else {
        return Ok(());
    };
    let mut host = open()?;
    let records = Records::of(plugin.name(), call);
    let mut removal = Removal::new(plugin, call);
    let mut used = removal.wanted;
    let collected = records.collect(call, &valid, |key, taken| {
        used.add(&taken.steps);
        removal.undo(&mut host, key.to(call.config.name()), taken)?
    });
    let is_last = matches!(collected, Ok(true));
    let mut outcome = collected.map(drop);
    if used.ip_masq {
        outcome = outcome.and(masquerade::collect(
            &mut removal.rules,
            call.config.name(),
            &valid,
        ));
        // Which removed those without a user, too.
        used.ip_masq = false;
    }
    if is_last {
        removal.remove_unused_rules(used);
    }
    plugin.sweep(call);
    outcome = outcome.and(plugin.collect(call, &mut host));
    // One attachment that cannot be removed keeps nobody else's addresses from being collected.
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

    /// [`steps::undo`], and a search for the rules of steps that only a later version can read.
    fn undo(
        &mut self,
        host: &mut Socket,
        owner: Attachment<'_>,
        taken: &Taken<Step>,
    ) -> Result<Result<(), Error>, Error> {
        let left = steps::undo(self.call, host, &mut self.rules, owner, &taken.steps)?;
        if taken.is_whole {
            return Ok(left);
        }
        Ok(left.and(self.remove_unrecorded_rules(owner)))
    }

    /// Removes rules of an attachment, which are known by their comments.
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

    /// Removes rules and sets that attachments of the network shared. A failure does no harm. A concurrent ADD is safe: both
    /// commit only to the ruleset that they have read, and decide anew otherwise.
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
