//! Messages of kubelet's device plugin API `v1beta1`. Only fields that are read or written are declared, with kubelet's
//! numbers.

use prost::Message;

/// Version that a plugin registers with.
pub const VERSION: &str = "v1beta1";
/// State of a device that pods can have.
pub const HEALTHY: &str = "Healthy";
/// Method of kubelet.
pub const REGISTER: &str = "/v1beta1.Registration/Register";

/// Methods of a plugin.
pub mod method {
    /// Takes nothing, answers with [`Options`](super::Options).
    pub const OPTIONS: &str = "/v1beta1.DevicePlugin/GetDevicePluginOptions";
    /// Takes nothing, answers with one [`Devices`](super::Devices) after the other.
    pub const LIST_AND_WATCH: &str = "/v1beta1.DevicePlugin/ListAndWatch";
    /// Takes an [`AllocateRequest`](super::AllocateRequest), answers with an [`Allocated`](super::Allocated).
    pub const ALLOCATE: &str = "/v1beta1.DevicePlugin/Allocate";
    /// Answers with no preference.
    pub const PREFERRED_ALLOCATION: &str = "/v1beta1.DevicePlugin/GetPreferredAllocation";
    /// Does nothing.
    pub const PRE_START_CONTAINER: &str = "/v1beta1.DevicePlugin/PreStartContainer";
}

/// `DevicePluginOptions`: no other calls are wanted.
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
    /// Name that pods request.
    #[prost(string, tag = "3")]
    pub resource_name: String,
    /// Calls that the plugin wants.
    #[prost(message, optional, tag = "4")]
    pub options: Option<Options>,
}

/// `ListAndWatchResponse`: all devices.
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Devices {
    /// Each of them.
    #[prost(message, repeated, tag = "1")]
    pub devices: Vec<Device>,
}

/// `Device`
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Device {
    /// Identifier, unique in the resource.
    #[prost(string, tag = "1")]
    pub id: String,
    /// [`HEALTHY`] or not.
    #[prost(string, tag = "2")]
    pub health: String,
}

/// `AllocateRequest`
#[derive(Clone, PartialEq, Eq, Message)]
pub struct AllocateRequest {
    /// One for each container.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<ContainerRequest>,
}

/// `ContainerAllocateRequest`
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerRequest {
    /// The devices that kubelet chose.
    #[prost(string, repeated, tag = "1")]
    pub ids: Vec<String>,
}

/// `AllocateResponse`
#[derive(Clone, PartialEq, Eq, Message)]
pub struct Allocated {
    /// One for each container, in the order of the request.
    #[prost(message, repeated, tag = "1")]
    pub containers: Vec<ContainerDevices>,
}

/// `ContainerAllocateResponse`
#[derive(Clone, PartialEq, Eq, Message)]
pub struct ContainerDevices {
    /// What the container is given.
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
    /// Of `r`, `w` and `m`.
    #[prost(string, tag = "3")]
    pub permissions: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_have_the_numbers_of_kubelets_api() {
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
