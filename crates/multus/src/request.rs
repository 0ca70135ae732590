//! What a shim sends to `/cni`, decoded and checked (multus.md §7.2).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt;

/// Why a request is not worked on.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not the expected JSON.
    #[error("failed to decode the request: {0}")]
    Body(#[source] serde_json::Error),
    /// `config` is not base64.
    #[error("failed to decode the request: config: {0}")]
    Config(#[source] base64::DecodeError),
    /// A CNI variable is missing.
    #[error("could not extract the CNI command args: {0}")]
    Command(&'static str),
    /// `CNI_ARGS` does not say which pod.
    #[error("could not extract the kubernetes runtime args: {0}")]
    Kubernetes(String),
    /// A verb that there is not.
    #[error("unknown cmd type: {0}")]
    Unknown(String),
    /// The pod is named with an empty name or namespace.
    #[error("required CNI variable missing. pod name: {name}; pod namespace: {namespace}")]
    PodName {
        /// As given.
        name: String,
        /// As given.
        namespace: String,
    },
}

/// Verbs about one pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodVerb {
    /// Attach.
    Add,
    /// Detach.
    Del,
    /// Is it still attached?
    Check,
}

impl fmt::Display for PodVerb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
        })
    }
}

/// Verbs about the plugin as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NodeVerb {
    /// Clean up what no attachment owns.
    Gc,
    /// Can the plugin serve an ADD?
    Status,
}

/// A pod by name, as the runtime gave it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodRef {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// UID; runtimes of old don't send it.
    pub uid: Option<String>,
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

/// A sandbox and the pod it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sandbox {
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// `CNI_NETNS`; empty when the namespace is gone (DEL).
    pub netns: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `CNI_ARGS` as given, for the log.
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

/// A request that is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// About one pod.
    Pod {
        /// What to do.
        verb: PodVerb,
        /// With which sandbox.
        sandbox: Sandbox,
        /// The runtime's configuration.
        config: Vec<u8>,
    },
    /// About no pod.
    Node {
        /// What to do.
        verb: NodeVerb,
        /// The runtime's configuration.
        config: Vec<u8>,
    },
}

#[derive(Deserialize)]
struct Body {
    #[serde(default)]
    env: BTreeMap<String, String>,
    #[serde(default)]
    config: Option<String>,
}

impl Request {
    /// Decodes the body of a POST to `/cni`.
    pub fn decode(body: &[u8]) -> Result<Self, Error> {
        let Body { env, config } = serde_json::from_slice(body).map_err(Error::Body)?;
        let config = STANDARD
            .decode(config.unwrap_or_default())
            .map_err(Error::Config)?;
        let command = env.get("CNI_COMMAND").filter(|command| !command.is_empty());
        let verb = match command.map(String::as_str) {
            None => return Err(Error::Command("unexpected or missing CNI_COMMAND")),
            Some("GC") => {
                return Ok(Self::Node {
                    verb: NodeVerb::Gc,
                    config,
                });
            }
            Some("STATUS") => {
                return Ok(Self::Node {
                    verb: NodeVerb::Status,
                    config,
                });
            }
            Some("ADD") => PodVerb::Add,
            Some("DEL") => PodVerb::Del,
            Some("CHECK") => PodVerb::Check,
            Some(other) => return Err(Error::Unknown(other.to_owned())),
        };
        let sandbox = sandbox(verb, &env)?;
        Ok(Self::Pod {
            verb,
            sandbox,
            config,
        })
    }
}

fn sandbox(verb: PodVerb, env: &BTreeMap<String, String>) -> Result<Sandbox, Error> {
    let required = |key: &str, missing| env.get(key).cloned().ok_or(Error::Command(missing));
    let container_id = required("CNI_CONTAINERID", "missing CNI_CONTAINERID")?;
    let netns = match env.get("CNI_NETNS") {
        Some(netns) => netns.clone(),
        // A runtime may say nothing about a namespace that is gone (cni-plugins.md §1.1).
        None if verb == PodVerb::Del => String::new(),
        None => return Err(Error::Command("missing CNI_NETNS")),
    };
    let args = required("CNI_ARGS", "missing CNI_ARGS")?;
    let ifname = env.get("CNI_IFNAME").cloned().unwrap_or_else(|| "eth0".into());
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
    let namespace = required("K8S_POD_NAMESPACE")?;
    let name = required("K8S_POD_NAME")?;
    if name.is_empty() || namespace.is_empty() {
        return Err(Error::PodName { name, namespace });
    }
    let uid = required("K8S_POD_UID").ok().filter(|uid| !uid.is_empty());
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
    fn a_complete_request() {
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
    fn what_is_missing_is_named() {
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
    fn the_pod_must_be_named() {
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
    fn status_and_gc_need_nothing_else() {
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

    #[test]
    fn an_unknown_verb() {
        assert_eq!(
            decode(&[("CNI_COMMAND", "FOO")]).unwrap_err().to_string(),
            "unknown cmd type: FOO"
        );
    }
}
