//! What plugins share that are chained after the one that made the interface: the result that comes in and goes out,
//! and the records of what they did.
//!
//! ```text
//! prevResult ──> begin(record) ──> what the plugin does ──> prevResult
//! DEL, GC    ──> record ──> undo ──> forget
//! ```

use std::collections::BTreeSet;

use cni::{
    Error,
    note::Level,
    plugin::Call,
    result::{CniResult, IpConfig},
};
use serde::de::DeserializeOwned;

use crate::record::{AttachmentId, Journal, Records, Taken, valid_attachments};

/// The result of the plugins before; without one the error is `missing`.
pub(crate) fn previous(call: &Call, missing: &str) -> Result<CniResult, Error> {
    call.config.prev_result()?.ok_or_else(|| Error::internal(missing))
}

/// The addresses of the container's interface. Those that are of no interface count too.
pub(crate) fn addresses<'a>(result: &'a CniResult, ifname: &'a str) -> impl Iterator<Item = &'a IpConfig> {
    result.ips.iter().filter(move |ip| {
        ip.interface.is_none_or(|index| {
            let interface = result.interfaces.get(index);
            interface.is_some_and(|interface| interface.name == ifname && interface.sandbox.is_some())
        })
    })
}

/// Begins the record of an attachment. What an ADD before did, which ended or was killed, is taken back first.
pub(crate) fn begin<S: DeserializeOwned>(
    records: &Records,
    key: &AttachmentId,
    undo: impl FnOnce(&Taken<S>) -> Result<(), Error>,
) -> Result<Journal, Error> {
    if let Some(journal) = records.begin(key)? {
        return Ok(journal);
    }
    if let Some(taken) = records.taken(key)? {
        undo(&taken)?;
    }
    records.remove(key)?;
    records.begin(key)?.ok_or_else(|| {
        let AttachmentId { container_id, ifname } = key;
        Error::internal(format!("another ADD of {ifname} of {container_id} is under way"))
    })
}

/// Forgets an attachment that was taken back. Whether it was the last of the network.
pub(crate) fn forget(call: &Call, records: &Records, key: &AttachmentId) -> Result<bool, Error> {
    records.remove(key)?;
    Ok(is_last(call, records))
}

fn is_last(call: &Call, records: &Records) -> bool {
    records.remove_if_empty().unwrap_or_else(|error| {
        call.note(Level::Warn, error);
        false
    })
}

/// The attachments that GC must leave alone; `None`, with a note, where the config does not say.
pub(crate) fn valid(call: &Call) -> Result<Option<BTreeSet<AttachmentId>>, Error> {
    let Some(valid) = valid_attachments(call)? else {
        return Ok(None);
    };
    let id = |attachment: cni::config::ValidAttachment| AttachmentId {
        container_id: attachment.container_id,
        ifname: attachment.ifname,
    };
    Ok(Some(valid.into_iter().map(id).collect()))
}

/// Takes back what recorded attachments of the network did that are not valid any more. Whether none is left; an error
/// of one keeps no other from being taken back.
pub(crate) fn collect<S: DeserializeOwned>(
    call: &Call,
    records: &Records,
    valid: &BTreeSet<AttachmentId>,
    mut undo: impl FnMut(&AttachmentId, &Taken<S>) -> Result<(), Error>,
) -> Result<bool, Error> {
    let mut outcome = Ok(());
    for key in records.keys()?.iter().filter(|key| !valid.contains(key)) {
        let collected = records.taken::<S>(key).and_then(|taken| match taken {
            Some(taken) => {
                undo(key, &taken)?;
                forget_collected(call, records, key, taken.is_whole)
            }
            // There was a DEL meanwhile.
            None => Ok(()),
        });
        outcome = outcome.and(collected);
    }
    let last = is_last(call, records);
    outcome.map(|()| last)
}

fn forget_collected(call: &Call, records: &Records, key: &AttachmentId, is_whole: bool) -> Result<(), Error> {
    if is_whole {
        return records.remove(key);
    }
    let AttachmentId { container_id, ifname } = key;
    call.note(
        Level::Warn,
        format_args!(
            "the record of {ifname} of {container_id} has steps of a later version and stays for it"
        ),
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_other_interfaces_are_left_out() {
        let result = CniResult::parse(
            br#"{"cniVersion":"1.0.0","interfaces":[{"name":"br0"},{"name":"net1"},{"name":"net1","sandbox":"/x"}],
                "ips":[{"address":"10.0.0.1/24"},{"address":"10.0.0.2/24","interface":0},
                {"address":"10.0.0.3/24","interface":1},{"address":"10.0.0.4/24","interface":2},
                {"address":"10.0.0.5/24","interface":9}]}"#,
            cni::Version::LATEST,
        )
        .unwrap();
        let found: Vec<_> = addresses(&result, "net1")
            .map(|ip| ip.address.to_string())
            .collect();
        assert_eq!(found, ["10.0.0.1/24", "10.0.0.4/24"]);
    }
}
