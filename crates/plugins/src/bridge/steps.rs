//! The steps of ADD that DEL and GC take back, as they stand in an attachment's record.

use cni::{Error, plugin::Call};
use ipnet::IpNet;
use linux::{link::Mac, route::Socket};
use serde::{Deserialize, Serialize};

use crate::{
    masquerade::{self, Backend},
    messages::Explain as _,
    record::Attachment,
    ruleset::Ruleset,
    spoof_check, veth,
};

/// A step of ADD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) enum Step {
    /// A pair was made.
    Pair {
        /// Name of the host's end.
        port: String,
    },
    /// The container's frames are checked for their sender.
    SpoofCheck {
        /// Name of the host's end.
        port: String,
        /// The container's address.
        #[serde(with = "as_text")]
        mac: Mac,
    },
    /// The container's packets take on an address of the host.
    Masquerade {
        /// The backend that was tried.
        backend: Backend,
        /// The container's addresses, each with its subnet.
        addresses: Vec<IpNet>,
    },
}

impl Step {
    /// The host's end of the pair, in the step that makes it.
    pub(super) fn pair(&self) -> Option<&str> {
        match self {
            Step::Pair { port } => Some(port),
            _ => None,
        }
    }

    fn undo_rules(&self, rules: &mut Ruleset, owner: Attachment<'_>) -> Result<(), Error> {
        match self {
            Step::Pair { .. } => Ok(()),
            Step::SpoofCheck { port, mac } => spoof_check::tear_down(
                rules,
                owner,
                Some(spoof_check::Port {
                    name: port,
                    mac: *mac,
                }),
            ),
            Step::Masquerade { backend, addresses } => {
                masquerade::tear_down(rules, owner, Some((*backend, addresses)))
            }
        }
    }
}

/// Takes steps back. An error if the pair is still there; else the first error of what is left and harms nobody
/// without it. What is gone already is fine.
///
/// The pair passes nothing any more before its rules go, so that no frame passes unchecked.
pub(super) fn undo(
    call: &Call,
    host: &mut Socket,
    rules: &mut Ruleset,
    owner: Attachment<'_>,
    steps: &[Step],
) -> Result<Result<(), Error>, Error> {
    let mut left = Ok(());
    if steps.iter().any(|step| step.pair().is_none()) {
        for port in steps.iter().filter_map(Step::pair) {
            silence_port(host, port)?;
        }
        for step in steps {
            left = left.and(step.undo_rules(rules, owner));
        }
    }
    for port in steps.iter().filter_map(Step::pair) {
        veth::delete(call, host, port)?;
    }
    Ok(left)
}

/// Sets the host's end of a pair down.
fn silence_port(host: &mut Socket, name: &str) -> Result<(), Error> {
    let silenced = match host.find_link(name) {
        Ok(Some(link)) => host.set_down(&link),
        Ok(None) => Ok(()),
        Err(error) => Err(error),
    };
    match silenced {
        Err(error) if error.is_not_found() => Ok(()),
        done => done.explain(|| format!("failed to set \"{name}\" down")),
    }
}

/// Addresses as people write them.
mod as_text {
    use linux::link::Mac;
    use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

    #[allow(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
    pub(super) fn serialize<S: Serializer>(mac: &Mac, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(mac)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Mac, D::Error> {
        let text = std::borrow::Cow::<str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_recorded_in_words() {
        let steps = [
            (
                Step::Pair { port: "veth1".into() },
                r#"{"pair":{"port":"veth1"}}"#,
            ),
            (
                Step::SpoofCheck {
                    port: "veth1".into(),
                    mac: "02:00:00:00:00:01".parse().unwrap(),
                },
                r#"{"spoofCheck":{"port":"veth1","mac":"02:00:00:00:00:01"}}"#,
            ),
            (
                Step::Masquerade {
                    backend: Backend::Nftables,
                    addresses: vec!["10.1.2.2/24".parse().unwrap()],
                },
                r#"{"masquerade":{"backend":"nftables","addresses":["10.1.2.2/24"]}}"#,
            ),
        ];
        for (step, text) in steps {
            assert_eq!(serde_json::to_string(&step).unwrap(), text);
            assert_eq!(serde_json::from_str::<Step>(text).unwrap(), step);
        }
    }
}
