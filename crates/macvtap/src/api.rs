//! Messages of kubelet's device plugin API `v1beta1`, with kubelet's field numbers. Unused fields are not declared.

use prost::Message;

/// The API version of the registration.
pub const VERSION: &str = "v1beta1";
/// Health of devices that pods can use.
pub const HEALTHY: &str = "Healthy";
/// Method of kubelet.
pub const REGISTER: &str = "/v1beta1.Registration/Register";

/// Methods of a plugin.
pub mod method {
    /// Takes an empty message, and answers with [`Options`](super::Options).
    pub const OPTIONS: &str = "/v1beta1.DevicePlugin/GetDevicePluginOptions";
    /// Takes an empty message, and answers with a stream of [`Devices`](super::Devices).
    pub const LIST_AND_WATCH: &str = "/v1beta1.DevicePlugin/ListAndWatch";
    /// Takes an [`AllocateRequest`](super::AllocateRequest), answers with an [`Allocated`](super::Allocated).
    pub const ALLOCATE: &str = "/v1beta1.DevicePlugin/Allocate";
    /// Answers without a preference.
    pub const PREFERRED_ALLOCATION: &str = "/v1beta1.DevicePlugin/GetPreferredAllocation";
    /// Does nothing.
    pub const PRE_START_CONTAINER: &str = "/v1beta1.DevicePlugin/PreStartContainer";
}

/// `DevicePluginOptions`: no optional calls.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub struct Options {}

/// `RegisterRequest`
#[derive(Clone, PartialEq, Eq, Message)]
pub struct RegisterRequest {
    /// Version of the API.
    #[prost(string, tag = "1")]
    pub version: String,
    /// File name of the plugin's socket, in kubelet's directory.
    #[prost(string, tag = "2")]
    pub endpoint: String,
    /// The resource name in pods.
    #[prost(string, tag = "3")]
    pub resource_name: String,
    /// Optional calls of the plugin.
    #[prost(message, optional, tag = "4")]
    pub options: Option<Options>,
}

/// `ListAndWatchResponse`: all devices.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Devices {
    /// The devices.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

/// `Device`
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Device {
    /// Identifier, unique in the resource.
    #[prost(string, tag = "1")]
    pub id: String,
    /// [`HEALTHY`] or another state.
    #[prost(string, tag = "2")]
    pub health: String,
}

/// `AllocateRequest`
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AllocateRequest {
    /// One request for each container.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<ContainerRequest>,
}

/// `ContainerAllocateRequest`
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerRequest {
    /// The devices that kubelet selected.
    #[prost(string, repeated, tag = "1")]
    pub ids: Vec<String>,
}

/// `AllocateResponse`
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Allocated {
    /// One answer for each container, in the order of the request.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<ContainerDevices>,
}

/// `ContainerAllocateResponse`
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerDevices {
    /// The devices of the container.
    #[prost(message, repeated, tag = "3")]
    pub devices: Vec<DeviceSpec>,
}

/// `DeviceSpec`
#[derive(Clone, PartialEq, Eq, Message)]
pub struct DeviceSpec {
    /// Path in the container.
    #[prost(string, tag = "1")]
    pub container_path: String,
    /// Path on the node.
    #[prost(string, tag = "2")]
    pub host_path: String,
    /// A combination of `r`, `w` and `m`.
    #[prost(string, tag = "3")]
    pub permissions: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_field_numbers_of_kubelet() {
        let request = RegisterRequest {
            version: "v".into(),
            endpoint: "e".into(),
            resource_name: "r".into(),
            options: Some(Options {}),
        };
        assert_eq!(request.encode_to_vec(), b"\x0a\x01v\x12\x01e\x1a\x01r\x22\x00");
        let device = Device {
            id: "i".into(),
            health: "h".into(),
        };
        let devices = Devices {
            devices: vec![device],
        };
        assert_eq!(devices.encode_to_vec(), b"\x0a\x06\x0a\x01i\x12\x01h");
        let spec = DeviceSpec {
            container_path: "c".into(),
            host_path: "h".into(),
            permissions: "p".into(),
        };
        let container = ContainerDevices { devices: vec![spec] };
        let allocated = Allocated {
            containers: vec![container],
        };
        let bytes = b"\x0a\x0b\x1a\x09\x0a\x01c\x12\x01h\x1a\x01p";
        assert_eq!(allocated.encode_to_vec(), bytes);
        let request = AllocateRequest::decode(&b"\x0a\x06\x0a\x01a\x0a\x01b"[..]).unwrap();
        assert_eq!(request.containers[0].ids, ["a", "b"]);
    }
}
