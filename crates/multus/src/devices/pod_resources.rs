//! Client of kubelet's pod-resources API.
//!
//! Declares only the fields that are read, with the numbers of kubelet's `v1`.

use super::Devices;
use crate::sandbox::PodRef;
use kube_kit::grpc::{self, unary};
use prost::Message;
use std::path::Path;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout};

/// Path below kubelet's directory.
pub(super) const SOCKET: &str = "pod-resources/kubelet.sock";
const METHOD: &str = "/v1.PodResourcesLister/List";
/// gRPC's code for too many calls.
const RESOURCE_EXHAUSTED: i32 = 8;
/// Timeout of all attempts.
const JOB_TIMEOUT: Duration = Duration::from_secs(10);
/// Delay between attempts.
const PAUSE: Duration = Duration::from_millis(100);

/// `ListPodResourcesResponse`: the devices of all pods of the node.
#[derive(Clone, PartialEq, Message)]
pub struct Response {
    #[prost(message, repeated, tag = "1")]
    pods: Vec<PodResources>,
}

impl Response {
    /// The devices of a pod.
    pub fn devices_of(self, namespace: &str, name: &str) -> Devices {
        let mut devices = Devices::default();
        let wanted = self
            .pods
            .into_iter()
            .filter(|found| found.name == name && found.namespace == namespace);
        for group in wanted
            .flat_map(|found| found.containers)
            .flat_map(|found| found.devices)
        {
            for id in group.ids {
                devices.add(&group.resource, id);
            }
        }
        devices
    }
}

/// `PodResources`
#[derive(Clone, PartialEq, Message)]
struct PodResources {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    namespace: String,
    #[prost(message, repeated, tag = "3")]
    containers: Vec<Container>,
}

/// `ContainerResources`
#[derive(Clone, PartialEq, Message)]
struct Container {
    #[prost(message, repeated, tag = "2")]
    devices: Vec<Group>,
}

/// `ContainerDevices`: devices of one resource. A resource may have several of these.
#[derive(Clone, PartialEq, Message)]
struct Group {
    #[prost(string, tag = "1")]
    resource: String,
    #[prost(string, repeated, tag = "2")]
    ids: Vec<String>,
}

/// The devices of a pod.
pub(super) async fn devices_of(socket: &Path, pod: &PodRef) -> Result<Devices, grpc::Error> {
    let listed = timeout(JOB_TIMEOUT, ask(socket)).await;
    let response = listed.unwrap_or(Err(grpc::Error::Late(JOB_TIMEOUT)))?;
    Ok(response.devices_of(&pod.namespace, &pod.name))
}

/// Lists all pods' devices. Retries while kubelet restarts or is overloaded: it limits calls to some hundred a
/// second.
async fn ask(socket: &Path) -> Result<Response, grpc::Error> {
    let deadline = Instant::now() + JOB_TIMEOUT - 2 * PAUSE;
    loop {
        let error = match unary(socket, METHOD, (), JOB_TIMEOUT).await {
            Ok(response) => return Ok(response),
            Err(error) => error,
        };
        let is_transient = match &error {
            grpc::Error::Connect(_) => true,
            grpc::Error::Status(status) => status.code() as i32 == RESOURCE_EXHAUSTED,
            grpc::Error::Http(_) | grpc::Error::Late(_) => false,
        };
        if !is_transient || Instant::now() >= deadline {
            return Err(error);
        }
        sleep(PAUSE).await;
    }
}

#[cfg(test)]
mod tests;
