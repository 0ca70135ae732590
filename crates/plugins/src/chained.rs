//! Shared code of the chained plugins: `prevResult` and records. See [`crate::record::gc`] for GC.
//!
//! ```text
//! prevResult ──> begin(record) ──> the plugin's changes ──> prevResult
//! DEL        ──> record ──> undo ──> forget
//! ```

use cni::{
    Error,
    plugin::Call,
    result::{CniResult, IpConfig},
};
use serde::de::DeserializeOwned;

use crate::record::{AttachmentId, Journal, RecordedSteps, Records};

/// Returns `prevResult`. Without one the error is `missing`.
pub(crate) fn previous(call: &Call, missing: &str) -> Result<CniResult, Error> {
    call.config.prev_result()?.ok_or_else(|| Error::internal(missing))
}

/// The addresses of the pod's interface, and addresses without an interface.
pub(crate) fn addresses<'a>(result: &'a CniResult, ifname: &'a str) -> impl Iterator<Item = &'a IpConfig> {
    result.ips.iter().filter(move |ip| {
        ip.interface.is_none_or(|index| {
            let interface = result.interfaces.get(index);
            interface.is_some_and(|interface| interface.name == ifname && interface.sandbox.is_some())
        })
    })
}

/// Creates an attachment's record. Undoes the steps of an earlier ADD first.
pub(crate) fn begin<S: DeserializeOwned>(
    records: &Records,
    key: &AttachmentId,
    undo: impl FnOnce(&RecordedSteps<S>) -> Result<(), Error>,
) -> Result<Journal, Error> {
    if let Some(journal) = records.begin(key)? {
        return Ok(journal);
    }
    if let Some(recorded) = records.read(key)? {
        undo(&recorded)?;
    }
    records.remove(key)?;
    records.begin(key)?.ok_or_else(|| {
        let AttachmentId { container_id, ifname } = key;
        Error::internal(format!("another ADD of {ifname} of {container_id} is under way"))
    })
}

/// Removes the record of a removed attachment. Returns whether it was the network's last one.
pub(crate) fn forget(call: &Call, records: &Records, key: &AttachmentId) -> Result<bool, Error> {
    records.remove(key)?;
    Ok(records.is_last(call))
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
