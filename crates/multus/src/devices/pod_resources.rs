//! Kubelet's pod-resources API, asked for everybody's devices.
//!
//! Only the fields that are read are declared, with the numbers of kubelet's `v1`.

use super::Devices;
use crate::request::PodRef;
use kube_kit::grpc::{self, unary};
use prost::Message;
use std::path::Path;
use std::time::Duration;

/// Below kubelet's directory.
pub(super) const SOCKET: &str = "pod-resources/kubelet.sock";
const METHOD: &str = "/v1.PodResourcesLister/List";
/// How long the whole call may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// `ListPodResourcesResponse`
#[derive(Clone, PartialEq, Message)]
struct Response {
    #[prost(message, repeated, tag = "1")]
    pods: Vec<PodResources>,
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

/// `ContainerDevices`: those of one resource, or some of them.
#[derive(Clone, PartialEq, Message)]
struct Group {
    #[prost(string, tag = "1")]
    resource: String,
    #[prost(string, repeated, tag = "2")]
    ids: Vec<String>,
}

/// The devices of a pod, as kubelet tells.
pub(super) async fn devices_of(socket: &Path, pod: &PodRef) -> Result<Devices, grpc::Error> {
    let Response { pods } = unary(socket, METHOD, (), PATIENCE).await?;
    let mut devices = Devices::default();
    let wanted = pods
        .into_iter()
        .filter(|found| found.name == pod.name && found.namespace == pod.namespace);
    for group in wanted
        .flat_map(|found| found.containers)
        .flat_map(|found| found.devices)
    {
        for id in group.ids {
            devices.add(&group.resource, id);
        }
    }
    Ok(devices)
}

#[cfg(test)]
mod tests;
