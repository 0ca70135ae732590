//! Kubelet's calls for one resource.

use crate::api::{
    AllocateRequest, Allocated, ContainerDevices, Device, DeviceSpec, Devices, HEALTHY, Options, method,
};
use crate::device;
use crate::names::DEVICES;
use crate::resource::Resource;
use futures::{Stream, stream};
use kube_kit::grpc::server::{self, Answer, Call, Status};
use std::path::PathBuf;
use std::sync::Arc;
use tokio::sync::watch;

/// Permissions of a container on its device.
const PERMISSIONS: &str = "rw";
/// Maximum number of devices of one call, more than a container can use.
const MOST_ALLOCATED: usize = 1000;

/// The shared state of the calls for a resource.
#[derive(Debug, Clone)]
pub(crate) struct Service {
    pub(crate) resource: Arc<Resource>,
    /// True if the lower device exists.
    pub(crate) present: watch::Receiver<bool>,
    /// Directory of the node's devices.
    pub(crate) device_dir: PathBuf,
}

impl Service {
    /// Answers one call.
    pub(crate) async fn answer(self, call: Call) -> Answer {
        match call.uri().path() {
            method::OPTIONS => server::unary(call, |()| async { Ok(Options {}) }).await,
            method::LIST_AND_WATCH => server::streaming::<(), _, _>(call, self.devices()).await,
            method::ALLOCATE => server::unary(call, move |request| self.clone().allocate(request)).await,
            // Kubelet never calls these, because the options do not request them.
            method::PREFERRED_ALLOCATION | method::PRE_START_CONTAINER => {
                server::unary(call, |()| async { Ok(()) }).await
            }
            _ => server::unimplemented(),
        }
    }

    /// Streams all devices while the lower device exists, and none otherwise: at once, and at each change.
    fn devices(&self) -> impl Stream<Item = Devices> + Send + 'static {
        let resource = self.resource.clone();
        let state = (self.present.clone(), None);
        stream::unfold(state, move |(mut present, sent)| {
            let resource = resource.clone();
            async move {
                loop {
                    let now = *present.borrow_and_update();
                    if sent != Some(now) {
                        return Some((devices(&resource, now), (present, Some(now))));
                    }
                    present.changed().await.ok()?;
                }
            }
        })
    }

    async fn allocate(self, request: AllocateRequest) -> Result<Allocated, Status> {
        self.check(&request)?;
        // The kernel takes milliseconds to delete a link.
        let made = tokio::task::spawn_blocking(move || {
            let containers = request.containers.into_iter();
            containers
                .map(|container| self.make(&container.ids))
                .collect::<Result<_, _>>()
        });
        let made = made.await.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Allocated { containers: made? })
    }

    fn check(&self, request: &AllocateRequest) -> Result<(), Status> {
        let ids = request.containers.iter().flat_map(|container| &container.ids);
        if ids.clone().count() > MOST_ALLOCATED {
            let text = format!("more than {MOST_ALLOCATED} devices in one call");
            return Err(Status::invalid_argument(text));
        }
        match ids.into_iter().find(|id| !self.resource.has_device(id)) {
            Some(id) => {
                let name = self.resource.full_name();
                Err(Status::invalid_argument(format!("{name} has no device {id:?}")))
            }
            None => Ok(()),
        }
    }

    /// Creates the macvtaps of one container.
    fn make(&self, ids: &[String]) -> Result<ContainerDevices, Status> {
        let specs = ids.iter().map(|id| {
            let made = device::make(id, &self.resource, &self.device_dir);
            let node = made.map_err(|error| {
                tracing::error!(device = id, %error, "cannot allocate a device");
                Status::unknown(error.to_string())
            })?;
            let path = format!("{DEVICES}/{node}");
            tracing::info!(device = id, path, "allocated a device");
            Ok(DeviceSpec {
                container_path: path.clone(),
                host_path: path,
                permissions: PERMISSIONS.to_owned(),
            })
        });
        let devices = specs.collect::<Result<_, Status>>()?;
        Ok(ContainerDevices { devices })
    }
}

fn devices(resource: &Resource, present: bool) -> Devices {
    let listed = present.then(|| resource.devices());
    let devices = listed.into_iter().flatten().map(|id| Device {
        id,
        health: HEALTHY.to_owned(),
    });
    Devices {
        devices: devices.collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::ContainerRequest;
    use futures::StreamExt as _;
    use linux::link::MacVlanMode;
    use std::path::Path;

    fn service(present: watch::Receiver<bool>) -> Service {
        let resource = Resource {
            name: "net".into(),
            lower_device: "no-such-link".into(),
            mode: Ok(MacVlanMode::Bridge),
            capacity: 2,
        };
        Service {
            resource: Arc::new(resource),
            present,
            device_dir: Path::new("/dev").to_owned(),
        }
    }

    #[tokio::test]
    async fn devices_are_reported_at_once_and_at_each_change() {
        // cni-plugins#67
        let (present, seen) = watch::channel(false);
        let mut lists = Box::pin(service(seen).devices());
        let mut counts = Vec::new();
        for change in [None, Some(true), Some(false)] {
            if let Some(change) = change {
                present.send_replace(change);
            }
            counts.push(lists.next().await.unwrap().devices.len());
        }
        assert_eq!(counts, [0, 2, 0]);
        drop(present);
        assert_eq!(lists.next().await, None);
    }

    #[tokio::test]
    async fn allocate_of_impossible_device_is_refused_by_name() {
        let (_present, seen) = watch::channel(true);
        let service = service(seen);
        let request = |ids: &[&str]| AllocateRequest {
            containers: vec![ContainerRequest {
                ids: ids.iter().map(|id| (*id).to_owned()).collect(),
            }],
        };
        let foreign = service.clone().allocate(request(&["netMvp0", "netMvp2"])).await;
        let text = foreign.unwrap_err().message().to_owned();
        assert_eq!(text, "macvtap.network.kubevirt.io/net has no device \"netMvp2\"");
        let absent = service.clone().allocate(request(&["netMvp0"])).await.unwrap_err();
        let begin = "failed to lookup lowerDevice \"no-such-link\": ";
        assert!(absent.message().starts_with(begin), "{absent}");
        let many = service.allocate(request(&["netMvp0"; 1001])).await.unwrap_err();
        assert_eq!(many.message(), "more than 1000 devices in one call");
    }
}
