//! The steps of ADD that DEL and GC take back, as they stand in an attachment's record (cni-plugins §16).

use std::path::Path;

use cni::{Error, plugin::Call};
use ipnet::IpNet;
use linux::{link::Mac, route::Socket, tap::DeviceNumber};
use serde::{Deserialize, Serialize};

use crate::{
    host_device, macvtap,
    masquerade::{self, Backend},
    messages::Explain as _,
    ovs,
    pod::Pod,
    record::Attachment,
    ruleset::Ruleset,
    spoof_check, veth,
};

/// A step of ADD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Step {
    /// A pair was made.
    Pair {
        /// Name of the host's end.
        port: String,
    },
    /// A link was made in the container.
    Link {
        /// Its kind.
        kind: String,
        /// Its first name; afterwards it has that of the attachment.
        name: String,
        /// Where it is.
        #[serde(rename = "in")]
        sandbox: Sandbox,
    },
    /// A device of the host was moved into the container.
    Device {
        /// Its name on the host.
        name: String,
        /// Where it went.
        #[serde(rename = "to")]
        sandbox: Sandbox,
    },
    /// The host's end of a pair was made a port of a bridge of Open vSwitch.
    OvsPort {
        /// Its name.
        port: String,
        /// Address of the database.
        socket: String,
        /// `CNI_NETNS`, by which the database names the container.
        netns: String,
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
    /// The device node of the container's link was made, as the kernel made none.
    Node {
        /// Where.
        path: String,
        /// The number of its device.
        major: u32,
        /// The number of its device.
        minor: u32,
    },
}

/// A network namespace that was given a link. Its path may be another's later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sandbox {
    /// `CNI_NETNS`.
    netns: String,
    /// The number that no other namespace has, where the kernel tells it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cookie: Option<u64>,
}

impl Sandbox {
    /// The namespace of a container.
    pub(crate) fn of(pod: &Pod) -> Self {
        Sandbox {
            netns: pod.path.clone(),
            cookie: pod.ns.cookie(),
        }
    }

    /// The namespace, if it is still to be found: at its path, or at the one of the call. Links in one that is not went
    /// with it, or will.
    fn find(&self, call: &Call) -> Result<Option<Pod>, Error> {
        let given = call.request.netns.as_deref();
        for path in [Some(Path::new(&self.netns)), given].into_iter().flatten() {
            if let Some(pod) = Pod::remaining_at(path)?
                && self.is(&pod)
            {
                return Ok(Some(pod));
            }
        }
        Ok(None)
    }

    fn is(&self, pod: &Pod) -> bool {
        self.cookie.is_none_or(|cookie| pod.ns.cookie() == Some(cookie))
    }
}

impl Step {
    /// The host's end of the pair, in the step that makes it.
    pub(crate) fn pair(&self) -> Option<&str> {
        match self {
            Step::Pair { port } => Some(port),
            _ => None,
        }
    }

    /// Whether it is the step that gives the container a link.
    pub(super) fn is_link(&self) -> bool {
        matches!(self, Step::Pair { .. } | Step::Link { .. } | Step::Device { .. })
    }

    fn undo_beside_link(&self, rules: &mut Ruleset, owner: Attachment<'_>) -> Result<(), Error> {
        match self {
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
            Step::Node { path, major, minor } => {
                let number = DeviceNumber {
                    major: *major,
                    minor: *minor,
                };
                macvtap::remove_node(path, number)
            }
            Step::OvsPort { port, socket, netns } => ovs::take_back(owner, port, socket, netns),
            Step::Pair { .. } | Step::Link { .. } | Step::Device { .. } => Ok(()),
        }
    }

    fn undo_link(&self, call: &Call, host: &mut Socket, owner: Attachment<'_>) -> Result<(), Error> {
        match self {
            Step::Pair { port } => veth::delete(call, host, port),
            Step::Link { kind, name, sandbox } => match sandbox.find(call)? {
                Some(mut pod) => pod.inside(|socket| {
                    delete_of_kind(call, socket, owner.ifname, kind)?;
                    delete_of_kind(call, socket, name, kind)
                }),
                None => Ok(()),
            },
            Step::Device { name, sandbox } => {
                host_device::give_back(host, sandbox.find(call)?, owner.ifname, name)
            }
            Step::OvsPort { .. } | Step::SpoofCheck { .. } | Step::Masquerade { .. } | Step::Node { .. } => {
                Ok(())
            }
        }
    }
}

/// Removes a link unless it is something else by now.
fn delete_of_kind(call: &Call, socket: &mut Socket, name: &str, kind: &str) -> Result<(), Error> {
    let found = socket
        .find_link(name)
        .explain(|| format!("failed to lookup \"{name}\""))?;
    match found {
        Some(link) if link.is_kind(kind) => veth::delete(call, socket, name),
        _ => Ok(()),
    }
}

/// Takes steps back. An error if the link is still there; else the first error about rules, which harm nobody without
/// the link. Links and rules that are gone already are fine.
///
/// A pair passes nothing any more before its rules go, so that no frame passes unchecked.
pub(super) fn undo(
    call: &Call,
    host: &mut Socket,
    rules: &mut Ruleset,
    owner: Attachment<'_>,
    steps: &[Step],
) -> Result<Result<(), Error>, Error> {
    let mut left = Ok(());
    if steps.iter().any(|step| !step.is_link()) {
        for port in steps.iter().filter_map(Step::pair) {
            silence_port(host, port)?;
        }
        for step in steps.iter().rev() {
            left = left.and(step.undo_beside_link(rules, owner));
        }
    }
    for step in steps.iter().rev() {
        step.undo_link(call, host, owner)?;
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
                Step::Link {
                    kind: "macvlan".into(),
                    name: "veth1".into(),
                    sandbox: Sandbox {
                        netns: "/run/netns/x".into(),
                        cookie: Some(7),
                    },
                },
                r#"{"link":{"kind":"macvlan","name":"veth1","in":{"netns":"/run/netns/x","cookie":7}}}"#,
            ),
            (
                Step::Device {
                    name: "eth1".into(),
                    sandbox: Sandbox {
                        netns: "/run/netns/x".into(),
                        cookie: None,
                    },
                },
                r#"{"device":{"name":"eth1","to":{"netns":"/run/netns/x"}}}"#,
            ),
            (
                Step::OvsPort {
                    port: "veth1".into(),
                    socket: "unix:/s".into(),
                    netns: "/run/netns/x".into(),
                },
                r#"{"ovsPort":{"port":"veth1","socket":"unix:/s","netns":"/run/netns/x"}}"#,
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
            (
                Step::Node {
                    path: "/dev/tap7".into(),
                    major: 246,
                    minor: 3,
                },
                r#"{"node":{"path":"/dev/tap7","major":246,"minor":3}}"#,
            ),
        ];
        for (step, text) in steps {
            assert_eq!(serde_json::to_string(&step).unwrap(), text);
            assert_eq!(serde_json::from_str::<Step>(text).unwrap(), step);
        }
    }
}
