//! Decodes and validates requests: to `/cni` from the shim, and to `/delegate` from clients that plug networks
//! (multus.md §7.2).

use crate::names::{self, pod_args};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cni::args::CniArgs;
use cni::json::Object;
use cni::names::{CNI_ARGS, CNI_COMMAND, CNI_CONTAINERID, CNI_IFNAME, CNI_NETNS};
use cni::selection::{NetworkSelection, SelectionError, parse_networks};
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt;

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

/// Verbs about the plugin as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeVerb {
    /// Remove leftovers.
    Gc,
    /// Report whether ADD can be served.
    Status,
}

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
mod tests {
    use super::*;

    fn decode(env: &[(&str, &str)]) -> Result<Request, Error> {
        let env: BTreeMap<_, _> = env.iter().copied().collect();
        Request::decode(
            serde_json::json!({"env": env, "config": "e30="})
                .to_string()
                .as_bytes(),
        )
    }

    const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web-0;K8S_POD_UID=u1";

    #[test]
    fn complete_request_is_decoded() {
        let env = [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "c1"),
            ("CNI_NETNS", "/run/netns/a"),
            ("CNI_ARGS", ARGS),
            ("PATH", "/bin"),
        ];
        let Request::Pod {
            verb,
            sandbox,
            config,
        } = decode(&env).unwrap()
        else {
            panic!("not about a pod")
        };
        assert_eq!(verb, PodVerb::Add);
        assert_eq!(config, b"{}");
        assert_eq!(sandbox.ifname, "eth0");
        assert_eq!(sandbox.pod.to_string(), "ns/web-0/u1");
        assert_eq!(
            sandbox.to_string(),
            format!(r#"ContainerID:"c1" Netns:"/run/netns/a" IfName:"eth0" Args:"{ARGS}" Path:"""#)
        );
    }

    #[test]
    fn request_keys_match_case_insensitively() {
        // multus#12 (the daemon's own requests)
        let body = serde_json::json!({"Env": {"CNI_COMMAND": "ADD", "cni_containerid": "no", "CNI_CONTAINERID": "c1",
            "CNI_NETNS": "/n", "CNI_ARGS": ARGS}, "CONFIG": "e30=", "interfaceattributes": {"MAC": "02:00:00:00:00:01"},
            "other": 1});
        let Request::Network {
            sandbox,
            config,
            attributes,
            ..
        } = Request::decode_network(body.to_string().as_bytes()).unwrap()
        else {
            panic!("not about a network")
        };
        assert_eq!(
            (sandbox.container_id.as_str(), config.as_slice()),
            ("c1", &b"{}"[..])
        );
        assert_eq!(attributes.mac.as_deref(), Some("02:00:00:00:00:01"));
        for none in ["null", "[]", "", "{\"env\":7}", "{\"env\":{\"a\":1}}"] {
            let error = Request::decode(none.as_bytes()).unwrap_err().to_string();
            assert!(error.starts_with("failed to decode the request: "), "{error}");
        }
        let error = Request::decode(b"{\"env\":null}").unwrap_err().to_string();
        assert!(error.contains("unexpected or missing CNI_COMMAND"), "{error}");
    }

    #[test]
    fn missing_value_is_named() {
        let prefix = "could not extract the CNI command args: ";
        let complete = [
            ("CNI_COMMAND", "ADD"),
            ("CNI_CONTAINERID", "c"),
            ("CNI_NETNS", "/n"),
            ("CNI_ARGS", ARGS),
        ];
        for (missing, text) in [
            ("CNI_COMMAND", "unexpected or missing CNI_COMMAND"),
            ("CNI_CONTAINERID", "missing CNI_CONTAINERID"),
            ("CNI_NETNS", "missing CNI_NETNS"),
            ("CNI_ARGS", "missing CNI_ARGS"),
        ] {
            let env: Vec<_> = complete
                .iter()
                .copied()
                .filter(|(key, _)| *key != missing)
                .collect();
            assert_eq!(decode(&env).unwrap_err().to_string(), format!("{prefix}{text}"));
        }
    }

    #[test]
    fn empty_pod_name_is_error() {
        let with = |args| {
            decode(&[
                ("CNI_COMMAND", "DEL"),
                ("CNI_CONTAINERID", "c"),
                ("CNI_ARGS", args),
            ])
            .map(|_| ())
            .unwrap_err()
        };
        let prefix = "could not extract the kubernetes runtime args: ";
        assert_eq!(
            with("K8S_POD_NAME").to_string(),
            format!("{prefix}invalid CNI_ARG 'K8S_POD_NAME'")
        );
        assert_eq!(
            with("a=b=c").to_string(),
            format!("{prefix}invalid CNI_ARG 'a=b=c'")
        );
        assert_eq!(
            with("K8S_POD_NAME=a").to_string(),
            format!("{prefix}missing K8S_POD_NAMESPACE")
        );
        assert_eq!(
            with("K8S_POD_NAMESPACE=a").to_string(),
            format!("{prefix}missing K8S_POD_NAME")
        );
        assert_eq!(
            with("K8S_POD_NAMESPACE=;K8S_POD_NAME=a").to_string(),
            "required CNI variable missing. pod name: a; pod namespace: "
        );
    }

    #[test]
    fn status_and_gc_need_only_verb() {
        // multus#52
        for args in [None, Some("")] {
            let mut env = vec![("CNI_COMMAND", "STATUS")];
            env.extend(args.map(|args| ("CNI_ARGS", args)));
            assert!(matches!(
                decode(&env).unwrap(),
                Request::Node {
                    verb: NodeVerb::Status,
                    ..
                }
            ));
            env[0].1 = "GC";
            assert!(matches!(
                decode(&env).unwrap(),
                Request::Node {
                    verb: NodeVerb::Gc,
                    ..
                }
            ));
        }
    }

    fn network(command: &str, attributes: &str) -> Result<Request, Error> {
        let body = format!(
            r#"{{"env":{{"CNI_COMMAND":"{command}","CNI_CONTAINERID":"c1","CNI_NETNS":"/n","CNI_IFNAME":"net1",
                "CNI_ARGS":"{ARGS}"}},"config":"e30="{attributes}}}"#
        );
        Request::decode_network(body.as_bytes())
    }

    #[test]
    fn interface_attributes_are_decoded() {
        // multus#81 (the daemon's part)
        let attributes =
            r#","interfaceAttributes":{"ips":["10.1.1.7/24"],"mac":"02:00:00:00:00:07","cni-args":{"k":1}}"#;
        let Request::Network {
            verb,
            sandbox,
            config,
            attributes,
        } = network("ADD", attributes).unwrap()
        else {
            panic!("not about a network")
        };
        assert_eq!(
            (verb, sandbox.ifname.as_str(), config.as_slice()),
            (PodVerb::Add, "net1", b"{}".as_slice())
        );
        assert_eq!(attributes.ips, ["10.1.1.7/24"]);
        assert_eq!(attributes.mac.as_deref(), Some("02:00:00:00:00:07"));
        assert_eq!(attributes.cni_args.unwrap().to_json(), r#"{"k":1}"#);
        for none in [
            "",
            r#","interfaceAttributes":null"#,
            r#","interfaceAttributes":{"cni-args":null}"#,
        ] {
            let Request::Network { attributes, .. } = network("DEL", none).unwrap() else {
                panic!("not about a network")
            };
            assert_eq!(*attributes, NetworkSelection::default());
        }
    }

    #[test]
    fn malformed_attributes_are_error() {
        let refused = |command, attributes| network(command, attributes).unwrap_err().to_string();
        assert_eq!(refused("GC", ""), "unknown cmd type: GC");
        assert_eq!(
            refused("ADD", r#","interfaceAttributes":{"mac":"x"}"#),
            "failed to decode the request: interfaceAttributes: parsePodNetworkAnnotation: failed to mac: address x: \
             invalid MAC address"
        );
        assert!(matches!(
            network("STATUS", "").unwrap(),
            Request::NetworkStatus { .. }
        ));
    }

    #[test]
    fn unknown_verb_is_error() {
        assert_eq!(
            decode(&[("CNI_COMMAND", "FOO")]).unwrap_err().to_string(),
            "unknown cmd type: FOO"
        );
    }
}
