//! Decodes and validates requests: to `/cni` from the shim, and to `/delegate` from clients that plug networks
//! (multus.md §7.2).

use crate::names::{self, pod_args};
use crate::sandbox::{PodRef, PodVerb, Sandbox};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cni::json::Object;
use cni::names::{CNI_ARGS, CNI_COMMAND, CNI_CONTAINERID, CNI_IFNAME, CNI_NETNS};
use cni::selection::{NetworkSelection, SelectionError, parse_networks};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::collections::BTreeMap;

/// A request is invalid.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not the expected JSON.
    #[error("failed to decode the request: {0}")]
    Body(#[source] serde_json::Error),
    /// `config` is not base64.
    #[error("failed to decode the request: config: {0}")]
    Config(#[source] base64::DecodeError),
    /// `interfaceAttributes` are malformed.
    #[error("failed to decode the request: interfaceAttributes: {0}")]
    Attributes(#[source] SelectionError),
    /// No verb.
    #[error("could not extract the CNI command args: unexpected or missing {CNI_COMMAND}")]
    NoVerb,
    /// A CNI variable is missing.
    #[error("could not extract the CNI command args: missing {0}")]
    Missing(&'static str),
    /// `CNI_ARGS` does not identify the pod.
    #[error("could not extract the kubernetes runtime args: {0}")]
    Kubernetes(String),
    /// Unknown verb.
    #[error("unknown cmd type: {0}")]
    Unknown(String),
    /// The pod's name or namespace is empty.
    #[error("required CNI variable missing. pod name: {name}; pod namespace: {namespace}")]
    PodName {
        /// As given.
        name: String,
        /// As given.
        namespace: String,
    },
}

/// Verbs about the plugin as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeVerb {
    /// Remove leftovers.
    Gc,
    /// Report whether ADD can be served.
    Status,
}

/// A valid request.
#[derive(Debug, Clone, PartialEq)]
pub enum Request {
    /// All networks of a sandbox.
    Pod {
        /// The verb.
        verb: PodVerb,
        /// The sandbox.
        sandbox: Sandbox,
        /// The runtime's configuration.
        config: Vec<u8>,
    },
    /// The whole node.
    Node {
        /// The verb.
        verb: NodeVerb,
        /// The runtime's configuration.
        config: Vec<u8>,
    },
    /// One network of a running sandbox.
    Network {
        /// The verb.
        verb: PodVerb,
        /// The sandbox; its interface is the network's.
        sandbox: Sandbox,
        /// The network's configuration; may be empty for an attached network.
        config: Vec<u8>,
        /// The requested attributes. Name and namespace are the NAD's, if the caller names it.
        attributes: Box<NetworkSelection>,
    },
    /// STATUS of one network.
    NetworkStatus {
        /// The network's configuration.
        config: Vec<u8>,
        /// The requested attributes.
        attributes: Box<NetworkSelection>,
    },
}

/// The body of a request. Keys match as in Go, because upstream's clients send them too.
struct Body {
    env: BTreeMap<String, String>,
    config: String,
    interface_attributes: Option<Box<RawValue>>,
}

impl Body {
    fn parse(body: &[u8]) -> Result<Self, Error> {
        fn part<T: DeserializeOwned + Default>(body: &Object, key: &str) -> Result<T, serde_json::Error> {
            // Names of environment variables are case-sensitive.
            body.get(key)
                .map_or_else(|| Ok(T::default()), |value| serde_json::from_str(value.get()))
        }
        let body: Object = serde_json::from_slice(body).map_err(Error::Body)?;
        Ok(Self {
            env: part(&body, "env").map_err(Error::Body)?,
            config: part(&body, "config").map_err(Error::Body)?,
            interface_attributes: body.get("interfaceAttributes").map(ToOwned::to_owned),
        })
    }

    fn config(&self) -> Result<Vec<u8>, Error> {
        STANDARD.decode(&self.config).map_err(Error::Config)
    }

    fn command(&self) -> Result<&str, Error> {
        self.env
            .get(CNI_COMMAND)
            .map(String::as_str)
            .filter(|command| !command.is_empty())
            .ok_or(Error::NoVerb)
    }
}

impl Request {
    /// The verb of the CNI specification.
    pub fn verb(&self) -> &'static str {
        match self {
            Self::Pod { verb, .. } | Self::Network { verb, .. } => verb.text(),
            Self::Node {
                verb: NodeVerb::Gc, ..
            } => "GC",
            Self::Node {
                verb: NodeVerb::Status,
                ..
            }
            | Self::NetworkStatus { .. } => "STATUS",
        }
    }

    /// Decodes the body of a POST to `/cni`.
    pub fn decode(body: &[u8]) -> Result<Self, Error> {
        let body = Body::parse(body)?;
        let config = body.config()?;
        let node = |verb| Self::Node {
            verb,
            config: config.clone(),
        };
        let verb = match body.command()? {
            "GC" => return Ok(node(NodeVerb::Gc)),
            "STATUS" => return Ok(node(NodeVerb::Status)),
            other => pod_verb(other)?,
        };
        let sandbox = sandbox(verb, &body.env)?;
        Ok(Self::Pod {
            verb,
            sandbox,
            config,
        })
    }

    /// Decodes the body of a POST to `/delegate`, which has no GC.
    pub fn decode_network(body: &[u8]) -> Result<Self, Error> {
        let body = Body::parse(body)?;
        let config = body.config()?;
        let attributes = || attributes(body.interface_attributes.as_deref()).map(Box::new);
        let verb = match body.command()? {
            "STATUS" => {
                let attributes = attributes()?;
                return Ok(Self::NetworkStatus { config, attributes });
            }
            other => pod_verb(other)?,
        };
        let sandbox = sandbox(verb, &body.env)?;
        Ok(Self::Network {
            verb,
            sandbox,
            config,
            attributes: attributes()?,
        })
    }

    /// Whether the verb is DEL, which is served in every phase.
    pub fn is_del(&self) -> bool {
        matches!(
            self,
            Self::Pod {
                verb: PodVerb::Del,
                ..
            } | Self::Network {
                verb: PodVerb::Del,
                ..
            }
        )
    }
}

fn pod_verb(command: &str) -> Result<PodVerb, Error> {
    match command {
        "ADD" => Ok(PodVerb::Add),
        "DEL" => Ok(PodVerb::Del),
        "CHECK" => Ok(PodVerb::Check),
        other => Err(Error::Unknown(other.to_owned())),
    }
}

/// Parses `interfaceAttributes`, which have the keys of an element of the networks annotation: upstream's `ips`,
/// `mac` and `cni-args`, and all others.
fn attributes(attributes: Option<&RawValue>) -> Result<NetworkSelection, Error> {
    let Some(attributes) = attributes else {
        return Ok(NetworkSelection::default());
    };
    let found = parse_networks(&format!("[{}]", attributes.get()), "").map_err(Error::Attributes)?;
    Ok(found.into_iter().next().unwrap_or_default())
}

fn sandbox(verb: PodVerb, env: &BTreeMap<String, String>) -> Result<Sandbox, Error> {
    let required = |key| env.get(key).cloned().ok_or(Error::Missing(key));
    let container_id = required(CNI_CONTAINERID)?;
    let netns = match env.get(CNI_NETNS) {
        Some(netns) => netns.clone(),
        // A runtime may omit a namespace that is gone (cni-plugins.md §1.1).
        None if verb == PodVerb::Del => String::new(),
        None => return Err(Error::Missing(CNI_NETNS)),
    };
    let args = required(CNI_ARGS)?;
    let ifname = env
        .get(CNI_IFNAME)
        .cloned()
        .unwrap_or_else(|| names::MASTER_INTERFACE.into());
    let pod = pod(&args)?;
    Ok(Sandbox {
        container_id,
        netns,
        ifname,
        args,
        pod,
    })
}

fn pod(args: &str) -> Result<PodRef, Error> {
    let mut found = BTreeMap::new();
    for item in args.split(';').filter(|item| !item.is_empty()) {
        let pair = item.split_once('=').filter(|(_, value)| !value.contains('='));
        let (key, value) = pair.ok_or_else(|| Error::Kubernetes(format!("invalid CNI_ARG '{item}'")))?;
        found.insert(key, value);
    }
    let mut required = |key: &str| {
        found
            .remove(key)
            .map(str::to_owned)
            .ok_or_else(|| Error::Kubernetes(format!("missing {key}")))
    };
    let namespace = required(pod_args::NAMESPACE)?;
    let name = required(pod_args::NAME)?;
    if name.is_empty() || namespace.is_empty() {
        return Err(Error::PodName { name, namespace });
    }
    let uid = required(pod_args::UID).ok().filter(|uid| !uid.is_empty());
    Ok(PodRef { namespace, name, uid })
}

#[cfg(test)]
mod tests;
