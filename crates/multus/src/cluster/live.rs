//! The cluster by single requests: for what no watch knows.

use super::{LookupError, Nad, Pod, ReadError, WatchedPod, WriteError};
use crate::names;
use crate::request::PodRef;
use api::net_attach_def::NetworkAttachmentDefinition;
use cni::names::NETWORK_STATUS_ANNOTATION;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::Client;
use kube_kit::client::message;
use kube_kit::events::{Kind, Recorder};
use kube_kit::object::NETWORK_ATTACHMENT_DEFINITION;
use kube_kit::pod::{self, PodBody};
use kube_kit::watch::Name;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// How long one request may take, and how long requests are repeated: the runtime waits for minutes.
const REQUEST: Duration = Duration::from_secs(5);
const PATIENCE: Duration = Duration::from_secs(15);
const FIRST_PAUSE: Duration = Duration::from_millis(250);
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Writing the status: attempts, and the pause between them, as the established client does.
const WRITE_ATTEMPTS: u32 = 5;
const WRITE_PAUSE: Duration = Duration::from_millis(10);

/// The API server, asked anew each time.
pub struct Live {
    client: Client,
    recorder: Recorder,
}

impl Live {
    /// Asks by this client; events name the node.
    pub fn new(client: Client, node: Option<&str>) -> Self {
        let recorder = Recorder::on_host(client.clone(), names::COMPONENT, node.unwrap_or_default());
        Self { client, recorder }
    }

    async fn body(&self, namespace: &str, name: &str) -> Result<Option<PodBody>, LookupError> {
        let path = pod::path(&Name::new(namespace, name))?;
        match timeout(REQUEST, pod::get(&self.client, &path)).await {
            Ok(Ok(text)) => PodBody::parse(&text)
                .map(Some)
                .map_err(|error| LookupError(error.to_string())),
            Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(None),
            Ok(Err(error)) => Err(LookupError(message(&error))),
            Err(_) => Err(LookupError("no answer from the API server".into())),
        }
    }

    /// The pod, by a read that is repeated as long as the API server has a transient reason not to answer.
    pub async fn pod(&self, namespace: &str, name: &str) -> Result<Option<Pod>, LookupError> {
        let path = pod::path(&Name::new(namespace, name))?;
        let text = match self.read(&path).await {
            Ok(text) => text,
            Err(ReadError::NotFound(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let pod: WatchedPod = serde_json::from_str(&text).map_err(|error| LookupError(error.to_string()))?;
        Ok(Some(pod.into()))
    }

    /// The NAD; that there is none is an error.
    pub async fn nad(&self, namespace: &str, name: &str) -> Result<Nad, LookupError> {
        let path = NETWORK_ATTACHMENT_DEFINITION.path_of(&Name::new(namespace, name))?;
        let text = self.read(&path).await?;
        let nad: NetworkAttachmentDefinition =
            serde_json::from_str(&text).map_err(|error| LookupError(error.to_string()))?;
        Ok(nad.into())
    }

    /// Any object or list, by its path: the API server's text, by a read that is repeated in the same way.
    pub async fn read(&self, path: &str) -> Result<String, ReadError> {
        let deadline = Instant::now() + PATIENCE;
        let mut pause = FIRST_PAUSE;
        loop {
            let failure = match timeout(REQUEST, pod::get(&self.client, path)).await {
                Ok(Ok(text)) => return Ok(text),
                Ok(Err(kube::Error::Api(status))) if status.code == 404 => {
                    return Err(ReadError::NotFound(status.message.clone()));
                }
                Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                    return Err(ReadError::Forbidden(status.message.clone()));
                }
                Ok(Err(kube::Error::Api(status))) if !matches!(status.code, 429 | 500 | 503 | 504) => {
                    return Err(ReadError::Other(status.message.clone()));
                }
                Ok(Err(error)) => message(&error),
                Err(_) => "no answer from the API server".into(),
            };
            if Instant::now() + pause >= deadline {
                return Err(ReadError::Other(failure));
            }
            sleep(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn put_status(&self, pod: &Pod, body: &PodBody) -> Result<(), LookupError> {
        let name = Name::new(&*pod.namespace, &*pod.name);
        match timeout(REQUEST, pod::replace_status(&self.client, &name, body)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) => Err(LookupError(message(&error))),
            Err(_) => Err(LookupError("no answer from the API server".into())),
        }
    }

    /// Publishes an event about a pod. Never fails: what can't be published is logged.
    pub fn event(
        &self,
        pod: &PodRef,
        kind: Kind,
        reason: &'static str,
        text: String,
    ) -> impl Future<Output = ()> + Send + use<> {
        let recorder = self.recorder.clone();
        let regarding = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Pod".into()),
            namespace: Some(pod.namespace.clone()),
            name: Some(pod.name.clone()),
            uid: pod.uid.clone(),
            ..ObjectReference::default()
        };
        async move {
            // Whether it could be published is in the log.
            let _ = recorder.publish(&regarding, kind, reason, &text).await;
        }
    }

    /// Writes the network status of a pod, by an update of `pods/status`: patching is more than the role allows. Nothing
    /// is written when the pod has this status already.
    pub async fn write_status(&self, pod: &Pod, status: &str) -> Result<(), WriteError> {
        let mut body = pod.body.clone();
        let mut cause = String::new();
        for attempt in 0..WRITE_ATTEMPTS {
            if attempt > 0 {
                sleep(WRITE_PAUSE).await;
            }
            let current = match body.take() {
                Some(body) => body,
                None => match self.body(&pod.namespace, &pod.name).await {
                    Ok(Some(body)) => Arc::new(body),
                    Ok(None) => return Ok(()),
                    Err(error) => {
                        cause = error.0;
                        continue;
                    }
                },
            };
            if !pod.uid.is_empty() && current.uid() != pod.uid {
                return Err(WriteError::OtherPod {
                    namespace: pod.namespace.clone(),
                    name: pod.name.clone(),
                    expected: pod.uid.clone(),
                    found: current.uid().to_owned(),
                });
            }
            if current.annotation(NETWORK_STATUS_ANNOTATION) == Some(status) {
                return Ok(());
            }
            match self
                .put_status(pod, &current.with_annotation(NETWORK_STATUS_ANNOTATION, status))
                .await
            {
                Ok(()) => return Ok(()),
                // A conflict, mostly: what was known of the pod is old. Read it and try again.
                Err(error) => cause = error.0,
            }
        }
        Err(WriteError::Failed {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            cause,
        })
    }
}
