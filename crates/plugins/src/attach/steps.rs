//! The recorded steps of ADD, and their undo for DEL and GC (cni-plugins §16).
//!
//! This module uses the plugins `egress_router`, `host_device`, `macvtap` and `ovs`, which use the driver: a record may
//! hold a step of any plugin, so one list has all steps, and each plugin undoes its own.

use std::path::Path;

use cni::{Error, plugin::Call};
use ipnet::IpNet;
use linux::{link::Mac, route::Socket, tap::DeviceNumber};
use serde::{Deserialize, Serialize};

use crate::{
    egress_router,
    host_device::{self, Hardware},
    macvtap,
    masquerade::{self, Backend},
    messages::Explain as _,
    ovs,
    pod::Pod,
    record::Attachment,
    ruleset::Ruleset,
    spoof_check, veth,
};

/// A recorded step of ADD.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum Step {
    /// Created a veth pair.
    Pair {
        /// Name of the host end.
        port: String,
    },
    /// Created a link in the pod.
    Link {
        kind: String,
        /// The temporary name. The link is then renamed to the attachment's interface name.
        name: String,
        /// The link's namespace.
        #[serde(rename = "in")]
        sandbox: Sandbox,
    },
    /// Moved a host device into the pod.
    Device {
        /// The name on the host.
        name: String,
        /// The target namespace.
        #[serde(rename = "to")]
        sandbox: Sandbox,
        #[serde(default, skip_serializing_if = "Hardware::is_unknown")]
        hardware: Hardware,
    },
    /// Added the host end as a port of an Open vSwitch bridge.
    OvsPort {
        /// The port's name.
        port: String,
        /// The database's address.
        socket: String,
        /// `CNI_NETNS`, which identifies the pod in the database.
        netns: String,
    },
    /// Added the MAC spoof check.
    SpoofCheck {
        /// Name of the host end.
        port: String,
        /// The pod's MAC.
        #[serde(with = "as_text")]
        mac: Mac,
    },
    /// Set up masquerading.
    Masquerade {
        /// The attempted backend.
        backend: Backend,
        /// The pod's addresses, with prefix lengths.
        addresses: Vec<IpNet>,
    },
    /// Made the pod's link that of its default route, with packet rules for redirected connections.
    Redirection {
        /// The pod's namespace.
        #[serde(rename = "in")]
        sandbox: Sandbox,
    },
    /// Created the device node of the pod's link.
    Node { path: String, major: u32, minor: u32 },
}

/// A network namespace that received a link. Its path may be reused later.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sandbox {
    /// `CNI_NETNS`.
    netns: String,
    /// The namespace's unique number, on kernels that provide it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    cookie: Option<u64>,
}

impl Sandbox {
    /// The pod's namespace.
    pub(crate) fn of(pod: &Pod) -> Self {
        Sandbox {
            netns: pod.path.clone(),
            cookie: pod.ns.cookie(),
        }
    }

    /// Looks up the namespace by its path or the call's path. Links in a namespace without a path end with it.
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
    /// The host end of the pair, for [`Step::Pair`].
    pub(crate) fn pair(&self) -> Option<&str> {
        match self {
            Step::Pair { port } => Some(port),
            _ => None,
        }
    }

    /// Whether the step creates the pod's link.
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
            Step::OvsPort { port, socket, netns } => ovs::remove_recorded(owner, port, socket, netns),
            Step::Pair { .. } | Step::Link { .. } | Step::Device { .. } | Step::Redirection { .. } => Ok(()),
        }
    }

    fn undo_link(&self, call: &Call, host: &mut Socket, owner: Attachment<'_>) -> Result<(), Error> {
        match self {
            Step::Pair { port } => veth::delete(call, host, port),
            Step::Link { kind, name, sandbox } => match sandbox.find(call)? {
                Some(mut pod) => pod.inside(|socket| {
                    // With its first name, the link is not the one with the interface's name.
                    if delete_of_kind(call, socket, name, kind)? {
                        return Ok(());
                    }
                    delete_of_kind(call, socket, owner.ifname, kind).map(drop)
                }),
                None => Ok(()),
            },
            Step::Device {
                name,
                sandbox,
                hardware,
            } => {
                let pod = sandbox.find(call)?;
                host_device::return_device(host, pod, owner.ifname, name, hardware)
            }
            Step::Redirection { sandbox } => match sandbox.find(call)? {
                Some(mut pod) => pod.inside(|socket| egress_router::undo(socket, owner.ifname)),
                None => Ok(()),
            },
            Step::OvsPort { .. } | Step::SpoofCheck { .. } | Step::Masquerade { .. } | Step::Node { .. } => {
                Ok(())
            }
        }
    }
}

/// Deletes a link if it still has the recorded kind. Returns whether it was there.
fn delete_of_kind(call: &Call, socket: &mut Socket, name: &str, kind: &str) -> Result<bool, Error> {
    let found = socket
        .find_link(name)
        .explain(|| format!("failed to lookup \"{name}\""))?;
    match found {
        Some(link) if link.is_kind(kind) => veth::delete(call, socket, name).map(|()| true),
        _ => Ok(false),
    }
}

/// Undoes steps. Fails if the link could not be removed. Otherwise returns the first error about rules, which have no
/// effect without the link. Missing links and rules are no error.
///
/// Sets the pair down before its rules are removed, so that no frame passes unchecked.
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

/// Sets the host end of a pair down.
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

/// The error for a pod that already has the interface of a pair. `left` are the recorded steps.
pub(crate) fn occupied_pair(ifname: &str, left: &[Step]) -> Error {
    veth::already_exists(ifname, left.iter().find_map(Step::pair).unwrap_or_default())
}

/// Serializes addresses in their text form.
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
    fn steps_have_a_readable_format() {
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
                    hardware: Hardware::default(),
                },
                r#"{"device":{"name":"eth1","to":{"netns":"/run/netns/x"}}}"#,
            ),
            (
                Step::Device {
                    name: "eth1".into(),
                    sandbox: Sandbox {
                        netns: "/run/netns/x".into(),
                        cookie: None,
                    },
                    hardware: Hardware {
                        parent: Some("0000:03:00.1".into()),
                        mac: Some("00:00:5e:00:53:01".into()),
                    },
                },
                r#"{"device":{"name":"eth1","to":{"netns":"/run/netns/x"},"hardware":{"parent":"0000:03:00.1","mac":"00:00:5e:00:53:01"}}}"#,
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
