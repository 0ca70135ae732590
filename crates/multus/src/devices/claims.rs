//! Devices from dynamic resource allocation: the pod's `ResourceClaims` name the devices, and the drivers'
//! `ResourceSlices` hold their attributes (multus.md §4.4, 3).
//!
//! ```text
//! pod.status ── names ──> ResourceClaim ── driver, pool, device ──> ResourceSlices ── attributes ──> resource, device ID
//! ```
//!
//! Devices without these two attributes, such as GPUs, are not for networks and are ignored. In a mapping of an
//! extended resource, a missing attribute is an error.

use super::Devices;
use crate::cluster::pod_claims::{ExtendedClaim, PodClaims, RequestMapping};
use crate::cluster::{ClusterView, ReadError};
use kube_kit::path::{self, NotAName};
use kube_kit::watch::Name;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::time::Duration;
use tokio::time::timeout;

/// Timeout of all lookups of one call.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(20);
/// Page size of slices. A slice has up to 128 devices with all attributes, and a node has a few slices.
const PAGE: usize = 50;
/// API path of `ResourceClaims` and `ResourceSlices`.
const RESOURCES: &str = "/apis/resource.k8s.io/v1";
/// The attributes that identify a device to networks.
const DEVICE_ID: &str = "k8s.cni.cncf.io/deviceID";
const RESOURCE_NAME: &str = "k8s.cni.cncf.io/resourceName";

/// The devices of a pod's claims are unknown.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("failed to get {what}: {source}")]
    Lookup { what: String, source: ReadError },
    /// An object is malformed.
    #[error("failed to read {what}: {source}")]
    Parse { what: String, source: serde_json::Error },
    /// The claim has no allocation.
    #[error("claim {0} has no device allocation")]
    NotAllocated(String),
    /// The mapping names a request without an allocation.
    #[error("request {request} not found in claim {claim}")]
    NoRequest { request: String, claim: String },
    /// The mapping names a device of another resource.
    #[error(
        "device {device}: {RESOURCE_NAME} is \"{found}\" but extended resource mapping for request \"{request}\" is \"{mapped}\""
    )]
    OtherResource {
        device: String,
        found: String,
        request: String,
        /// The resource of the mapping.
        mapped: String,
    },
    /// The mapping names a device that its driver does not offer here.
    #[error("device {device} not found in the ResourceSlices of driver {driver}")]
    NoDevice { device: String, driver: String },
    /// The mapping names a device that networks know nothing of.
    #[error("device {device} has no attribute {attribute}")]
    NoAttribute {
        device: String,
        /// The missing attribute.
        attribute: &'static str,
    },
    /// The pod's status names a claim that can't be one.
    #[error(transparent)]
    Name(#[from] NotAName),
    /// The lookups timed out.
    #[error("the claims of the pod could not be read within {} s", LOOKUP_TIMEOUT.as_secs())]
    Silent,
}

impl Error {
    /// Whether claims are unavailable: the API server does not serve them, or this process may not read them.
    pub fn is_refused(&self) -> bool {
        matches!(
            self,
            Self::Lookup {
                source: ReadError::NotFound(_) | ReadError::Forbidden(_),
                ..
            }
        )
    }
}

impl PodClaims {
    /// Adds the devices of these claims.
    pub(super) async fn add_to(
        &self,
        devices: &mut Devices,
        namespace: &str,
        cluster: &impl ClusterView,
    ) -> Result<(), Error> {
        let mut known = ClaimReader {
            cluster,
            namespace,
            node: &self.node,
            drivers: BTreeMap::new(),
        };
        timeout(LOOKUP_TIMEOUT, known.add_all(self, devices))
            .await
            .map_err(|_| Error::Silent)?
    }
}

#[derive(Deserialize)]
struct Claim {
    #[serde(default)]
    status: Option<ClaimStatus>,
}

#[derive(Deserialize)]
struct ClaimStatus {
    #[serde(default)]
    allocation: Option<Allocation>,
}

#[derive(Deserialize)]
struct Allocation {
    #[serde(default)]
    devices: AllocatedDevices,
}

#[derive(Default, Deserialize)]
struct AllocatedDevices {
    #[serde(default)]
    results: Option<Vec<Allocated>>,
}

/// A device that is allocated to a claim.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Allocated {
    request: String,
    driver: String,
    pool: String,
    device: String,
}

#[derive(Deserialize)]
struct SliceList {
    #[serde(default)]
    metadata: ListMeta,
    #[serde(default)]
    items: Vec<Slice>,
}

#[derive(Default, Deserialize)]
struct ListMeta {
    #[serde(rename = "continue", default)]
    next: Option<String>,
}

#[derive(Deserialize)]
struct Slice {
    spec: SliceSpec,
}

#[derive(Deserialize)]
struct SliceSpec {
    pool: Pool,
    #[serde(default)]
    devices: Option<Vec<Device>>,
}

#[derive(Deserialize)]
struct Pool {
    name: String,
    #[serde(default)]
    generation: i64,
}

#[derive(Deserialize)]
struct Device {
    name: String,
    #[serde(default)]
    attributes: Option<Attributes>,
}

/// Other attributes are skipped while parsing.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Attributes {
    #[serde(rename = "k8s.cni.cncf.io/deviceID")]
    device_id: Option<Attribute>,
    #[serde(rename = "k8s.cni.cncf.io/resourceName")]
    resource_name: Option<Attribute>,
}

/// An attribute of another type counts as missing.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Attribute {
    string: Option<String>,
}

impl Attributes {
    fn device_id(&self) -> Option<&str> {
        self.device_id.as_ref()?.string.as_deref()
    }

    fn resource_name(&self) -> Option<&str> {
        self.resource_name.as_ref()?.string.as_deref()
    }
}

/// Devices of one driver by pool and name, with the generation of the pool.
type Pools = BTreeMap<(String, String), (i64, Attributes)>;

/// Reads claims and slices; each driver's slices once.
struct ClaimReader<'a, C> {
    cluster: &'a C,
    namespace: &'a str,
    node: &'a str,
    drivers: BTreeMap<String, Pools>,
}

impl<C: ClusterView> ClaimReader<'_, C> {
    async fn add_all(&mut self, claims: &PodClaims, devices: &mut Devices) -> Result<(), Error> {
        for name in &claims.names {
            for allocated in self.claim(name).await? {
                let found = self.attributes(&allocated).await?;
                let named = found.and_then(|found| found.resource_name().zip(found.device_id()));
                if let Some((resource, device)) = named {
                    devices.add(resource, device.to_owned());
                } else {
                    let device = &allocated.device;
                    tracing::warn!(
                        claim = name,
                        device,
                        "claimed device is not a network device, ignoring it"
                    );
                }
            }
        }
        if let Some(extended) = &claims.extended {
            self.add_extended(extended, devices).await?;
        }
        Ok(())
    }

    async fn add_extended(&mut self, extended: &ExtendedClaim, devices: &mut Devices) -> Result<(), Error> {
        let claim = &extended.resource_claim_name;
        let results = self.claim(claim).await?;
        for RequestMapping {
            request_name,
            resource_name,
        } in &extended.request_mappings
        {
            let mut requested = results.iter().filter(|result| result.request == *request_name);
            let first = requested.next().ok_or_else(|| Error::NoRequest {
                request: request_name.clone(),
                claim: claim.clone(),
            })?;
            for allocated in std::iter::once(first).chain(requested) {
                let lacks = |attribute| Error::NoAttribute {
                    device: allocated.device.clone(),
                    attribute,
                };
                let found = self.attributes(allocated).await?.ok_or_else(|| Error::NoDevice {
                    device: allocated.device.clone(),
                    driver: allocated.driver.clone(),
                })?;
                let resource = found.resource_name().ok_or_else(|| lacks(RESOURCE_NAME))?;
                let device = found.device_id().ok_or_else(|| lacks(DEVICE_ID))?;
                if resource != resource_name {
                    return Err(Error::OtherResource {
                        device: allocated.device.clone(),
                        found: resource.to_owned(),
                        request: request_name.clone(),
                        mapped: resource_name.clone(),
                    });
                }
                devices.add(resource, device.to_owned());
            }
        }
        Ok(())
    }

    async fn claim(&self, name: &str) -> Result<Vec<Allocated>, Error> {
        let namespace = self.namespace;
        let path = path::namespaced(RESOURCES, "resourceclaims", &Name::new(namespace, name))?;
        let claim: Claim = self
            .read(&path, || format!("ResourceClaim {namespace}/{name}"))
            .await?;
        let results = claim
            .status
            .and_then(|status| status.allocation)
            .and_then(|allocation| allocation.devices.results);
        results
            .filter(|results| !results.is_empty())
            .ok_or_else(|| Error::NotAllocated(name.to_owned()))
    }

    async fn attributes(&mut self, allocated: &Allocated) -> Result<Option<&Attributes>, Error> {
        let Allocated {
            driver, pool, device, ..
        } = allocated;
        if !self.drivers.contains_key(driver) {
            let pools = self.slices(driver).await?;
            self.drivers.insert(driver.clone(), pools);
        }
        let pools = self.drivers.get(driver);
        let found = pools.and_then(|pools| pools.get(&(pool.clone(), device.clone())));
        Ok(found.map(|(_, attributes)| attributes))
    }

    /// The devices that a driver offers on the node.
    async fn slices(&self, driver: &str) -> Result<Pools, Error> {
        let mut selector = format!("spec.driver={driver}");
        if !self.node.is_empty() {
            selector = format!("spec.nodeName={},{selector}", self.node);
        }
        let first = format!(
            "{RESOURCES}/resourceslices?fieldSelector={}&limit={PAGE}",
            path::query(&selector)
        );
        let mut pools = Pools::new();
        let mut path = first.clone();
        loop {
            let page: SliceList = self
                .read(&path, || format!("ResourceSlices of driver {driver}"))
                .await?;
            for Slice { spec } in page.items {
                for device in spec.devices.unwrap_or_default() {
                    let (name, attributes) = (device.name, device.attributes.unwrap_or_default());
                    let found = (spec.pool.generation, attributes);
                    match pools.entry((spec.pool.name.clone(), name)) {
                        Entry::Vacant(entry) => {
                            entry.insert(found);
                        }
                        // While a driver replaces its slices, the old generation still exists.
                        Entry::Occupied(mut entry) if entry.get().0 < found.0 => {
                            entry.insert(found);
                        }
                        Entry::Occupied(_) => {}
                    }
                }
            }
            match page.metadata.next.filter(|next| !next.is_empty()) {
                Some(next) => path = format!("{first}&continue={}", path::query(&next)),
                None => return Ok(pools),
            }
        }
    }

    async fn read<T: serde::de::DeserializeOwned>(
        &self,
        path: &str,
        what: impl Fn() -> String,
    ) -> Result<T, Error> {
        let text = self.cluster.read(path).await;
        let text = text.map_err(|source| Error::Lookup { what: what(), source })?;
        serde_json::from_str(&text).map_err(|source| Error::Parse { what: what(), source })
    }
}

#[cfg(test)]
mod tests;
