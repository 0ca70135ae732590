//! Client of the multus daemon: attaches and detaches one network of a pod (multus.md §13.3).
//!
//! Each call opens a connection to the socket's path, so it reaches a restarted daemon if the socket's directory is
//! mounted, not the socket. A call is retried while no daemon listens or the daemon is not ready.

use crate::config::Timeouts;
use crate::plan::{Attachment, DesiredNetwork};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cni::json::{self, Object};
use cni::result::CniResult;
use cni::selection::NetworkSelection;
use cni::version::Version;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Request, header};
use hyper_util::rt::TokioIo;
use kube_kit::cri::Sandbox;
use linux::backoff::Backoff;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::net::UnixStream;
use tokio::time::{Instant, sleep, timeout};

/// Path of calls about one network.
const DELEGATE: &str = "/delegate";
/// Back-off while a daemon restarts.
const BACKOFF: Backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
const OK: u16 = 200;
const UNAVAILABLE: u16 = 503;

/// A call failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// No daemon listens.
    #[error("failed to send CNI request: {0}")]
    Unreachable(#[source] io::Error),
    /// The connection closed before the answer.
    #[error("failed to send CNI request: {0}")]
    Dropped(#[source] hyper::Error),
    /// The answer could not be read.
    #[error("failed to send CNI request: {0}")]
    Malformed(#[source] hyper::Error),
    /// No answer in time.
    #[error("failed to send CNI request: no answer in time")]
    Late,
    /// The request cannot be encoded.
    #[error("failed to encode the CNI request: {0}")]
    Encode(String),
    /// The daemon returned an error.
    #[error("unexpected CNI response status {status}: '{body}'")]
    Status {
        status: u16,
        /// Body of the answer.
        body: String,
    },
    /// The daemon's answer is malformed.
    #[error("failed to unmarshal response '{body}': {cause}")]
    Answer {
        /// Body of the answer.
        body: String,
        cause: String,
    },
}

impl Error {
    /// Whether the daemon may have started to handle the call.
    pub(crate) fn may_have_begun(&self) -> bool {
        match self {
            Self::Unreachable(_) | Self::Encode(_) => false,
            Self::Status { status, .. } => *status != UNAVAILABLE,
            Self::Dropped(_) | Self::Malformed(_) | Self::Late | Self::Answer { .. } => true,
        }
    }
}

impl From<json::Error> for Error {
    fn from(error: json::Error) -> Self {
        Self::Encode(error.to_string())
    }
}

/// The pod of a call.
#[derive(Debug, Clone)]
pub(crate) struct Pod<'a> {
    pub namespace: &'a str,
    pub name: &'a str,
    pub uid: &'a str,
    pub sandbox: &'a Sandbox,
}

/// The multus daemon of this node.
#[derive(Debug, Clone)]
pub(crate) struct Daemon {
    /// The daemon's socket.
    pub socket: PathBuf,
    /// Timeouts of calls.
    pub timeouts: Timeouts,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Call<'a> {
    env: BTreeMap<&'static str, &'a str>,
    config: String,
    interface_attributes: Box<RawValue>,
}

#[derive(Deserialize)]
struct Answer {
    #[serde(rename = "Result")]
    result: Box<RawValue>,
}

impl Daemon {
    /// Attaches a network with the configuration of its definition.
    pub(crate) async fn add(
        &self,
        pod: &Pod<'_>,
        desired: &DesiredNetwork,
        config: &str,
    ) -> Result<CniResult, Error> {
        let attributes = attributes(&desired.element)?;
        let body = body("ADD", pod, &desired.ifname, config, &attributes)?;
        let answer = self.ask(body).await?;
        let parse = || {
            let Answer { result } = serde_json::from_slice(&answer).map_err(|error| error.to_string())?;
            CniResult::parse(result.get().as_bytes(), Version::LATEST).map_err(|error| error.to_string())
        };
        parse().map_err(|cause| Error::Answer {
            body: String::from_utf8_lossy(&answer).into_owned(),
            cause,
        })
    }

    /// Detaches a network. `config` may be missing when the definition is gone: our daemon has the configuration in
    /// its records.
    pub(crate) async fn del(
        &self,
        pod: &Pod<'_>,
        attachment: &Attachment,
        config: Option<&str>,
    ) -> Result<(), Error> {
        let (namespace, name) = attachment.definition();
        let mut attributes = Object::default();
        name_network(&mut attributes, namespace, name)?;
        let body = body(
            "DEL",
            pod,
            &attachment.ifname,
            config.unwrap_or_default(),
            &attributes,
        )?;
        self.ask(body).await.map(drop)
    }

    async fn ask(&self, body: Vec<u8>) -> Result<Bytes, Error> {
        let body = Bytes::from(body);
        let Timeouts { answer, daemon, .. } = self.timeouts;
        let deadline = Instant::now() + daemon;
        let mut backoff = BACKOFF;
        // The error of a daemon that crashed during the call. A repeated call completes or reports its work.
        let mut dropped = None;
        loop {
            let error = match post_once(&self.socket, DELEGATE, body.clone(), answer).await {
                Ok((OK, answer)) => return Ok(answer),
                Ok((status, answer)) => Error::Status {
                    status,
                    body: String::from_utf8_lossy(&answer).trim_end().to_owned(),
                },
                Err(error) => error,
            };
            let begun = error.may_have_begun();
            if begun && !matches!(error, Error::Dropped(_)) {
                return Err(error);
            }
            let pause = backoff.next_delay();
            let is_over = Instant::now() + pause >= deadline;
            if is_over || matches!(error, Error::Encode(_)) {
                return Err(dropped.filter(|_| !begun).unwrap_or(error));
            }
            if begun {
                dropped = Some(error);
            }
            sleep(pause).await;
        }
    }
}

/// Sends a POST over a unix socket. Returns status and body of the answer.
pub(crate) async fn post_once(
    socket: &Path,
    path: &str,
    body: Bytes,
    limit: Duration,
) -> Result<(u16, Bytes), Error> {
    let exchange = async {
        let stream = UnixStream::connect(socket).await.map_err(Error::Unreachable)?;
        let (mut sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(Error::Dropped)?;
        tokio::spawn(connection);
        let request = Request::post(path)
            .header(header::HOST, "dummy")
            .header(header::CONTENT_TYPE, "application/json")
            .header(header::CONNECTION, "close")
            .body(Full::new(body))
            .map_err(|error| Error::Encode(error.to_string()))?;
        let answer = sender.send_request(request).await.map_err(Error::Dropped)?;
        let status = answer.status().as_u16();
        let body = answer.into_body().collect().await.map_err(Error::Malformed)?;
        Ok((status, body.to_bytes()))
    };
    timeout(limit, exchange).await.unwrap_or(Err(Error::Late))
}

fn body(
    command: &str,
    pod: &Pod<'_>,
    ifname: &str,
    config: &str,
    attributes: &Object,
) -> Result<Vec<u8>, Error> {
    let Pod {
        namespace,
        name,
        uid,
        sandbox,
    } = pod;
    let args = format!("K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_UID={uid}");
    let call = Call {
        env: BTreeMap::from([
            ("CNI_COMMAND", command),
            ("CNI_CONTAINERID", &sandbox.id),
            ("CNI_NETNS", &sandbox.netns),
            ("CNI_IFNAME", ifname),
            ("CNI_ARGS", &args),
        ]),
        config: STANDARD.encode(config),
        interface_attributes: raw_text(attributes.to_json())?,
    };
    Ok(serde_json::to_vec(&call).map_err(json::Error::from)?)
}

/// The requested attributes, with the annotation's keys: `ips`, `mac` and `cni-args`, which every daemon reads, and
/// others, which upstream's daemon ignores.
fn attributes(element: &NetworkSelection) -> Result<Object, Error> {
    let NetworkSelection {
        name,
        namespace,
        interface: _,
        ips,
        mac,
        infiniband_guid,
        port_mappings,
        bandwidth,
        cni_args,
        device_id,
        default_route,
        ipam_claim_reference,
    } = element;
    let mut attributes = Object::default();
    name_network(&mut attributes, namespace, name)?;
    if !ips.is_empty() {
        attributes.set("ips", ips)?;
    }
    if !port_mappings.is_empty() {
        attributes.set("portMappings", port_mappings)?;
    }
    let texts = [
        ("mac", mac),
        ("infiniband-guid", infiniband_guid),
        ("deviceID", device_id),
        ("ipam-claim-reference", ipam_claim_reference),
    ];
    for (key, text) in texts {
        if let Some(text) = text {
            attributes.set(key, text)?;
        }
    }
    if let Some(bandwidth) = bandwidth {
        attributes.set("bandwidth", bandwidth)?;
    }
    if let Some(args) = cni_args {
        attributes.set_raw("cni-args", raw_text(args.to_json())?);
    }
    if let Some(gateways) = default_route {
        attributes.set("default-route", gateways)?;
    }
    Ok(attributes)
}

fn name_network(attributes: &mut Object, namespace: &str, name: &str) -> Result<(), Error> {
    attributes.set("name", &name)?;
    attributes.set("namespace", &namespace)?;
    Ok(())
}

fn raw_text(text: String) -> Result<Box<RawValue>, Error> {
    Ok(RawValue::from_string(text).map_err(json::Error::from)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use cni::selection::parse_networks;
    use serde_json::{Value, json};

    #[test]
    fn request_has_expected_body() {
        // multus#81 (the request)
        let annotation = r#"[{"name":"tenant","interface":"net1","ips":["10.1.1.7/24"],"mac":"02:00:00:00:00:07",
            "cni-args":{"big":9007199254740993},"portMappings":[{"hostPort":80,"containerPort":8080,"protocol":"tcp"}],
            "bandwidth":{"ingressRate":1000}}]"#;
        let element = parse_networks(annotation, "ns").unwrap().remove(0);
        let sandbox = Sandbox {
            id: "c1".into(),
            netns: "/run/netns/a".into(),
        };
        let pod = Pod {
            namespace: "ns",
            name: "web",
            uid: "u1",
            sandbox: &sandbox,
        };
        let text = body("ADD", &pod, "net1", "{}", &attributes(&element).unwrap()).unwrap();
        assert!(String::from_utf8_lossy(&text).contains("9007199254740993"));
        let sent: Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(
            sent["env"],
            json!({"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "c1", "CNI_NETNS": "/run/netns/a", "CNI_IFNAME": "net1",
                "CNI_ARGS": "K8S_POD_NAMESPACE=ns;K8S_POD_NAME=web;K8S_POD_UID=u1"})
        );
        assert_eq!(sent["config"], "e30=");
        let attributes = &sent["interfaceAttributes"];
        assert_eq!(attributes["ips"], json!(["10.1.1.7/24"]));
        assert_eq!(attributes["mac"], "02:00:00:00:00:07");
        assert_eq!(attributes["cni-args"], json!({"big": 9_007_199_254_740_993_i64}));
        assert_eq!(attributes["portMappings"][0]["containerPort"], 8080);
        assert_eq!(attributes["bandwidth"]["ingressRate"], 1000);
        assert_eq!(
            (&attributes["name"], &attributes["namespace"]),
            (&json!("tenant"), &json!("ns"))
        );
    }
}
