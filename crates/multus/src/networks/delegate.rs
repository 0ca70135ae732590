//! One network of a pod: its CNI configuration and the attributes that the pod requests (multus.md §1, §4).

use crate::names;
use crate::networks::device_info::DeviceInfo;
use crate::sandbox::Sandbox;
use cni::args::CniArgs;
use cni::config::{LoadError, NetworkList};
use cni::json::{self, Object};
use cni::names::key;
use cni::selection::NetworkSelection;
use serde_json::Value;
use serde_json::value::RawValue;
use std::net::IpAddr;

/// Keys of `runtimeConfig` that delegates get.
const RUNTIME_KEYS: [&str; 7] = [
    "portMappings",
    "bandwidth",
    "ips",
    "mac",
    "infinibandGUID",
    DEVICE_ID,
    DEVICE_INFO_FILE,
];
const DEVICE_ID: &str = "deviceID";
const PCI_BUS_ID: &str = "pciBusID";
/// The capability argument with the path of the attachment's device-info file.
pub const DEVICE_INFO_FILE: &str = "CNIDeviceInfoFile";

/// The configuration is not usable as a delegate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Not a JSON object, or a key of the wrong type.
    #[error("failed to unmarshal Spec.Config: {0}")]
    Parse(#[source] json::Error),
    /// Neither one plugin nor a chain.
    #[error("LoadDelegateNetConfList: delegate must have the 'type' or 'plugin' field")]
    NoPlugin,
    /// A chain without plugins, or whose first plugin has no type.
    #[error("LoadDelegateNetConfList: a plugin delegate must have the 'type' field")]
    NoType,
    /// Multus would call itself for the same sandbox.
    #[error("a plugin of type \"{0}\" is multus itself, and cannot be part of one of its networks")]
    ProcessSettings(String),
}

impl From<json::Error> for Error {
    fn from(error: json::Error) -> Self {
        Self::Parse(error)
    }
}

/// The plugins of a configuration.
#[derive(Debug, Clone)]
enum Plugins {
    /// A single plugin: the configuration is the plugin's.
    Single(String),
    /// A chain: the configurations of its plugins, in order.
    Chain(Vec<Object>),
}

/// A CNI configuration, lossless: unknown keys reach the plugin unchanged.
#[derive(Debug, Clone)]
pub struct Config {
    object: Object,
    plugins: Plugins,
}

impl Config {
    /// Parses the configuration of a single plugin (key `type`) or of a chain (key `plugins`).
    pub fn parse(text: &[u8]) -> Result<Self, Error> {
        let object = Object::parse(text)?;
        let kind = string(&object, key::TYPE)?;
        let plugins = if kind.is_empty() {
            let chain = object.get(key::PLUGINS).ok_or(Error::NoPlugin)?;
            let chain: Vec<Object> = serde_json::from_str(chain.get()).map_err(json::Error::from)?;
            match chain.first() {
                Some(first) if !string(first, key::TYPE)?.is_empty() => Plugins::Chain(chain),
                _ => return Err(Error::NoType),
            }
        } else {
            Plugins::Single(kind)
        };
        Ok(Self { object, plugins })
    }

    /// Refuses a network whose plugin or IPAM plugin is multus itself. Stored attachments are exempt: DEL must accept
    /// them.
    pub fn refuse_own(self) -> Result<Self, Error> {
        let one = std::slice::from_ref(&self.object);
        for plugin in self.chain().unwrap_or(one) {
            let ipam = plugin
                .get(key::IPAM)
                .and_then(|ipam| serde_json::from_str(ipam.get()).ok());
            for part in [Some(plugin), ipam.as_ref()].into_iter().flatten() {
                let kind = string(part, key::TYPE)?;
                if is_own(&kind) {
                    return Err(Error::ProcessSettings(kind));
                }
            }
        }
        Ok(self)
    }

    /// Like [`Config::parse`], with `name` as the default of the configuration's name.
    pub fn parse_named(text: &[u8], name: &str) -> Result<Self, Error> {
        let mut config = Self::parse(text)?.refuse_own()?;
        if string(&config.object, key::NAME)?.is_empty() {
            config.object.set(key::NAME, &name)?;
        }
        Ok(config)
    }

    /// The configuration of a file, with the plugins of the directory beside it.
    pub fn from_file(network: &NetworkList) -> Result<Self, Error> {
        let object = Object::parse(network.text.as_bytes())?;
        let plugins = match network.plugins.first() {
            Some(plugin) if network.single => Plugins::Single(plugin.plugin().to_owned()),
            _ => Plugins::Chain(
                network
                    .plugins
                    .iter()
                    .map(|plugin| plugin.object.clone())
                    .collect(),
            ),
        };
        let mut config = Self { object, plugins };
        config.store_chain()?;
        config.refuse_own()
    }

    /// The form that [`cni::chain`] calls.
    pub fn network(&self) -> Result<NetworkList, LoadError> {
        let text = self.object.to_json();
        match self.plugins {
            Plugins::Single(_) => NetworkList::parse_single(text.as_bytes()),
            Plugins::Chain(_) => NetworkList::parse(text.as_bytes()),
        }
    }

    /// The network's name; may be empty.
    pub fn name(&self) -> String {
        string(&self.object, key::NAME).unwrap_or_default()
    }

    /// `cniVersion`; may be empty.
    pub fn cni_version(&self) -> String {
        string(&self.object, key::CNI_VERSION).unwrap_or_default()
    }

    /// The type of the plugin, or of a chain's first plugin, for errors.
    pub fn plugin_type(&self) -> String {
        match &self.plugins {
            Plugins::Single(kind) => kind.clone(),
            Plugins::Chain(chain) => chain
                .first()
                .and_then(|plugin| string(plugin, key::TYPE).ok())
                .unwrap_or_default(),
        }
    }

    /// The chain's plugins; `None` for a single plugin.
    pub fn chain(&self) -> Option<&[Object]> {
        match &self.plugins {
            Plugins::Single(_) => None,
            Plugins::Chain(chain) => Some(chain),
        }
    }

    /// The whole configuration.
    pub fn object(&self) -> &Object {
        &self.object
    }

    /// Sets a top-level key.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), Error> {
        Ok(self.object.set(key, &value)?)
    }

    /// Replaces the plugins of a chain by those of `other` as long as position and type match. Old scratch files hold
    /// plugins without most of their keys; the result cache has them complete.
    pub fn complete_from(&mut self, other: &Self) -> Result<(), Error> {
        let (Plugins::Chain(ours), Plugins::Chain(theirs)) = (&mut self.plugins, &other.plugins) else {
            return Ok(());
        };
        let same_type = |a: &Object, b: &Object| matches!((string(a, key::TYPE), string(b, key::TYPE)), (Ok(a), Ok(b)) if a == b);
        for (our, their) in ours.iter_mut().zip(theirs) {
            if !same_type(our, their) {
                break;
            }
            *our = their.clone();
        }
        self.store_chain()
    }

    /// Whether both are equal, apart from the keys that multus itself sets: version and device.
    pub fn is_like(&self, other: &Self) -> bool {
        self.essence() == other.essence()
    }

    fn essence(&self) -> Value {
        // Cannot fail: it was parsed as an object.
        let mut whole: Value = serde_json::from_str(&self.object.to_json()).unwrap_or_default();
        let strip = |value: &mut Value| {
            if let Some(object) = value.as_object_mut() {
                for key in [key::CNI_VERSION, DEVICE_ID, PCI_BUS_ID] {
                    object.shift_remove(key);
                }
            }
        };
        strip(&mut whole);
        if let Some(plugins) = whole.get_mut(key::PLUGINS).and_then(Value::as_array_mut) {
            plugins.iter_mut().for_each(strip);
        }
        whole
    }

    /// Adds the device ID to every plugin.
    fn inject_device(&mut self, device: &str) -> Result<(), Error> {
        self.edit(|plugin| {
            plugin.set(DEVICE_ID, &device)?;
            Ok(plugin.set(PCI_BUS_ID, &device)?)
        })
    }

    /// Merges the pod's arguments into `args.cni` of every plugin. The pod's values win.
    fn inject_cni_args(&mut self, args: &Object) -> Result<(), Error> {
        self.edit(|plugin| Ok(plugin.merge_at(&["args", "cni"], args)?))
    }

    fn edit(&mut self, mut change: impl FnMut(&mut Object) -> Result<(), Error>) -> Result<(), Error> {
        match &mut self.plugins {
            Plugins::Single(_) => change(&mut self.object),
            Plugins::Chain(chain) => {
                chain.iter_mut().try_for_each(change)?;
                self.store_chain()
            }
        }
    }

    fn store_chain(&mut self) -> Result<(), Error> {
        if let Plugins::Chain(chain) = &self.plugins {
            self.object.set(key::PLUGINS, chain)?;
        }
        Ok(())
    }
}

/// The attributes that a pod requests for one of its networks.
#[derive(Debug, Clone, Default)]
pub struct Requests {
    /// Name of the interface in the pod.
    pub interface: Option<String>,
    /// Its MAC address.
    pub mac: Option<String>,
    /// Its InfiniBand GUID.
    pub infiniband_guid: Option<String>,
    /// The device ID that the pod names. It is not an allocation: it only reaches plugins that declare the
    /// capability, by `runtimeConfig`.
    pub device_id: Option<String>,
    /// Its addresses, plain or CIDR.
    pub ips: Vec<String>,
    /// Port mappings, verbatim.
    pub port_mappings: Option<Box<RawValue>>,
    /// Bandwidth limits, verbatim.
    pub bandwidth: Option<Box<RawValue>>,
    /// Gateways of the pod's default routes. An empty list keeps the network's own route.
    pub default_route: Option<Vec<IpAddr>>,
}

impl Requests {
    /// The attributes of an element of the networks annotation.
    pub fn of(selection: &NetworkSelection) -> Result<Self, Error> {
        let port_mappings = &selection.port_mappings;
        Ok(Self {
            interface: selection.interface.clone(),
            mac: selection.mac.clone(),
            infiniband_guid: selection.infiniband_guid.clone(),
            device_id: selection.device_id.clone(),
            ips: selection.ips.clone(),
            port_mappings: if port_mappings.is_empty() {
                None
            } else {
                Some(raw(port_mappings)?)
            },
            bandwidth: selection.bandwidth.as_ref().map(raw).transpose()?,
            default_route: selection.default_route.clone(),
        })
    }
}

/// One network of a pod.
#[derive(Debug, Clone)]
pub struct Delegate {
    /// The name for users: `<namespace>/<name>` of the NAD, or the configuration's name.
    pub display_name: String,
    /// The CNI configuration.
    pub config: Config,
    /// The requested attributes.
    pub requests: Requests,
    /// The device plugin resource that the NAD names.
    pub resource_name: Option<String>,
    /// The device that kubelet or a resource claim allocated.
    pub device_id: Option<String>,
}

impl Delegate {
    /// A network without requested attributes.
    pub fn new(display_name: String, config: Config) -> Self {
        Self {
            display_name,
            config,
            requests: Requests::default(),
            resource_name: None,
            device_id: None,
        }
    }

    /// A network whose configuration is inline in multus' own.
    pub fn inline(text: &RawValue) -> Result<Self, Error> {
        let config = Config::parse(text.get().as_bytes())?.refuse_own()?;
        Ok(Self::new(config.name(), config))
    }

    /// Assigns an allocated device: every plugin's configuration gets its ID.
    pub fn set_device(&mut self, device: String) -> Result<(), Error> {
        self.config.inject_device(&device)?;
        self.device_id = Some(device);
        Ok(())
    }

    /// Adds the pod's `cni-args` to every plugin.
    pub fn set_cni_args(&mut self, args: &Object) -> Result<(), Error> {
        self.config.inject_cni_args(args)
    }

    /// Adds the attributes that a pod requests.
    pub fn ask(&mut self, selection: &NetworkSelection) -> Result<(), Error> {
        if let Some(args) = &selection.cni_args {
            self.set_cni_args(args)?;
        }
        self.requests = Requests::of(selection)?;
        Ok(())
    }

    /// The device ID for plugins with the capability: the allocated one, else the one that the pod names.
    pub fn device(&self) -> Option<&str> {
        self.device_id.as_deref().or(self.requests.device_id.as_deref())
    }

    /// Name of the interface in the pod, for the delegate at `index` of the pod's list. 0 is the master.
    pub fn interface_name(&self, index: usize, sandbox: &Sandbox) -> String {
        match (&self.requests.interface, index) {
            (Some(name), _) => name.clone(),
            (None, 0) => sandbox.ifname.clone(),
            (None, index) => format!("net{index}"),
        }
    }

    /// Capability arguments: the runtime's own and, except for the master, those that the pod requests. Each plugin
    /// gets those that its `capabilities` declare.
    pub fn capability_args(
        &self,
        index: usize,
        runtime: &Object,
        sandbox: &Sandbox,
        info: &DeviceInfo,
    ) -> Result<Object, Error> {
        let mut args = Object::default();
        for key in RUNTIME_KEYS {
            if let Some(value) = runtime.get(key).filter(|value| !is_empty(value)) {
                args.set_raw(key, value.to_owned());
            }
        }
        if index > 0 {
            let Requests {
                mac,
                infiniband_guid,
                ips,
                port_mappings,
                bandwidth,
                ..
            } = &self.requests;
            let asked = [
                ("portMappings", port_mappings.clone()),
                ("bandwidth", bandwidth.clone()),
                ("ips", if ips.is_empty() { None } else { Some(raw(ips)?) }),
                ("mac", mac.as_ref().map(raw).transpose()?),
                ("infinibandGUID", infiniband_guid.as_ref().map(raw).transpose()?),
                (DEVICE_ID, self.device().map(raw).transpose()?),
            ];
            for (key, value) in asked {
                if let Some(value) = value {
                    args.set_raw(key, value);
                }
            }
        }
        if args.contains(DEVICE_ID) {
            let Sandbox { container_id, .. } = sandbox;
            let interface = self.interface_name(index, sandbox);
            let file = info.of_attachment(&self.display_name, container_id, &interface);
            args.set(DEVICE_INFO_FILE, &file)?;
        }
        Ok(args)
    }

    /// `CNI_ARGS` of the delegate, in upstream's order. `own` are the pairs that multus itself was called with: they
    /// fill in keys that have no value, and the others are appended. `adding` adds the requested MAC and addresses.
    pub fn cni_args(&self, sandbox: &Sandbox, own: &CniArgs, adding: bool) -> CniArgs {
        let Sandbox {
            container_id, pod, ..
        } = sandbox;
        let mut args = vec![
            ("IgnoreUnknown", "true".to_owned()),
            ("K8S_POD_NAMESPACE", pod.namespace.clone()),
            ("K8S_POD_NAME", pod.name.clone()),
            ("K8S_POD_INFRA_CONTAINER_ID", container_id.clone()),
            ("K8S_POD_UID", pod.uid.clone().unwrap_or_default()),
        ];
        for (key, value) in own.pairs() {
            match args.iter_mut().find(|(known, _)| known == key) {
                Some((_, empty)) if empty.is_empty() => empty.clone_from(value),
                _ => args.push((key, value.clone())),
            }
        }
        if adding {
            args.extend(self.requests.mac.clone().map(|mac| ("MAC", mac)));
            if !self.requests.ips.is_empty() {
                args.push(("IP", self.requests.ips.join(",")));
            }
        }
        args.into_iter()
            .map(|(key, value)| (key.to_owned(), value))
            .collect()
    }
}

/// Whether a plugin of this type is multus, under one of the names that its shim has.
fn is_own(kind: &str) -> bool {
    kind == names::THIN || plugins::plugin_by_name(kind).is_some_and(|plugin| plugin.name() == names::SHIM)
}

fn raw(value: &(impl serde::Serialize + ?Sized)) -> Result<Box<RawValue>, Error> {
    Ok(serde_json::value::to_raw_value(value).map_err(json::Error::from)?)
}

fn string(object: &Object, key: &str) -> Result<String, Error> {
    Ok(object.read(key)?.unwrap_or_default())
}

fn is_empty(value: &RawValue) -> bool {
    matches!(value.get(), "\"\"" | "[]" | "{}")
}

#[cfg(test)]
mod tests;
