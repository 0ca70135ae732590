//! The sandbox of a call and its pod, as the runtime identifies them.

use crate::names::pod_args;
use cni::args::CniArgs;
use std::fmt;

/// A pod, as the runtime identifies it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodRef {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID; old runtimes do not send it.
    pub uid: Option<String>,
}

impl PodRef {
    /// The pod in `CNI_ARGS`; missing values are empty.
    pub fn named_in(args: &CniArgs) -> Self {
        let value = |key| args.get(key).unwrap_or_default().to_owned();
        Self {
            namespace: value(pod_args::NAMESPACE),
            name: value(pod_args::NAME),
            uid: Some(value(pod_args::UID)).filter(|uid| !uid.is_empty()),
        }
    }
}

impl fmt::Display for PodRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}/{}/{}",
            self.namespace,
            self.name,
            self.uid.as_deref().unwrap_or_default()
        )
    }
}

/// A sandbox and its pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// `CNI_NETNS`; empty when the namespace is gone (DEL).
    pub netns: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `CNI_ARGS` verbatim, for the log.
    pub args: String,
    /// The pod.
    pub pod: PodRef,
}

impl fmt::Display for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            container_id,
            netns,
            ifname,
            args,
            ..
        } = self;
        write!(
            f,
            r#"ContainerID:"{container_id}" Netns:"{netns}" IfName:"{ifname}" Args:"{args}" Path:"""#
        )
    }
}

/// Verbs about one sandbox.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodVerb {
    /// Attach.
    Add,
    /// Detach.
    Del,
    /// Verify the attachment.
    Check,
}

impl PodVerb {
    /// The verb of the CNI specification.
    pub fn text(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
        }
    }
}

impl fmt::Display for PodVerb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text())
    }
}
