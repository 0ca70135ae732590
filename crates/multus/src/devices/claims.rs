//! Devices that a pod was given by dynamic resource allocation: its claims say which, the drivers' slices say what a
//! network knows them by (multus.md §4.4, 3).
//!
//! ```text
//! pod.status ── names ──> ResourceClaim ── driver, pool, device ──> ResourceSlices ── attributes ──> resource, device ID
//! ```
//!
//! Devices without those two attributes are none for networks, such as GPUs, and are passed over. A mapping of an
//! extended resource is the exception: whoever made it said that the device has one.

use super::Devices;
use crate::cluster::{ClusterView, ReadError};
use kube_kit::path::{self, NotAName};
use kube_kit::watch::Name;
use serde::Deserialize;
use serde_json::Value;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::time::timeout;

/// How long all look-ups of one call may take.
const PATIENCE: Duration = Duration::from_secs(20);
/// Slices asked for at once. Each has up to 128 devices with all their attributes, and a node has a few.
const PAGE: usize = 50;
/// Where claims and what drivers offer are.
const RESOURCES: &str = "/apis/resource.k8s.io/v1";
/// The attributes of a device that networks know it by.
const DEVICE_ID: &str = "k8s.cni.cncf.io/deviceID";
const RESOURCE_NAME: &str = "k8s.cni.cncf.io/resourceName";

/// Why the claims of a pod don't say which devices it has.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server does not say.
    #[error("failed to get {what}: {source}")]
    Lookup {
        /// What was looked for.
        what: String,
        /// What it said instead.
        source: ReadError,
    },
    /// It says something else.
    #[error("failed to read {what}: {source}")]
    Parse {
        /// What was looked for.
        what: String,
        /// Where.
        source: serde_json::Error,
    },
    /// Nothing was allocated.
    #[error("claim {0} has no device allocation")]
    NotAllocated(String),
    /// The mapping names a request that nothing was allocated for.
    #[error("request {request} not found in claim {claim}")]
    NoRequest {
        /// The request.
        request: String,
        /// The claim.
        claim: String,
    },
    /// The mapping names a device of another resource.
    #[error(
        "device {device}: {RESOURCE_NAME} is \"{found}\" but extended resource mapping for request \"{request}\" is \"{mapped}\""
    )]
    OtherResource {
        /// The device.
        device: String,
        /// Its resource.
        found: String,
        /// The request.
        request: String,
        /// The resource of the mapping.
        mapped: String,
    },
    /// The mapping names a device that its driver does not offer here.
    #[error("device {device} not found in the ResourceSlices of driver {driver}")]
    NoDevice {
        /// The device.
        device: String,
        /// Its driver.
        driver: String,
    },
    /// The mapping names a device that networks know nothing of.
    #[error("device {device} has no attribute {attribute}")]
    NoAttribute {
        /// The device.
        device: String,
        /// What it lacks.
        attribute: &'static str,
    },
    /// The pod's status names a claim that can't be one.
    #[error(transparent)]
    Name(#[from] NotAName),
    /// It took too long.
    #[error("the claims of the pod could not be read within {} s", PATIENCE.as_secs())]
    Silent,
}

impl Error {
    /// Whether the API server has no claims or shows us none: it may be older than those, or we may have less rights.
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

/// The claims of a pod, as far as its networks may need to know.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodClaims {
    node: String,
    names: BTreeSet<String>,
    extended: Option<Extended>,
}

/// The claim that stands for resources which were asked for as extended ones.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Extended {
    resource_claim_name: String,
    request_mappings: Vec<Mapping>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Mapping {
    request_name: String,
    resource_name: String,
}

/// What is read of a pod's specification.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodSpec {
    node_name: String,
    resource_claims: Option<Vec<ClaimName>>,
}

/// A claim of a pod; made from a template, its status has the name.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ClaimName {
    resource_claim_name: Option<String>,
}

impl PodClaims {
    /// Those of a pod; `None` for nearly every pod.
    pub fn of(spec: PodSpec, status: &Value) -> Option<Self> {
        let read = |key: &str| status.get(key).filter(|value| !value.is_null());
        let generated = read("resourceClaimStatuses")
            .and_then(|value| Vec::<ClaimName>::deserialize(value).ok())
            .unwrap_or_default();
        let extended =
            read("extendedResourceClaimStatus").and_then(|value| Extended::deserialize(value).ok());
        let claims = spec.resource_claims.into_iter().flatten().chain(generated);
        let names: BTreeSet<_> = claims.filter_map(|claim| claim.resource_claim_name).collect();
        (!names.is_empty() || extended.is_some()).then_some(Self {
            node: spec.node_name,
            names,
            extended,
        })
    }

    /// Adds the devices of these claims.
    pub(super) async fn add_to(
        &self,
        devices: &mut Devices,
        namespace: &str,
        cluster: &impl ClusterView,
    ) -> Result<(), Error> {
        let mut known = Known {
            cluster,
            namespace,
            node: &self.node,
            drivers: BTreeMap::new(),
        };
        timeout(PATIENCE, known.add_all(self, devices))
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

/// A device that a claim was given.
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

/// All other attributes are skipped while parsing.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Attributes {
    #[serde(rename = "k8s.cni.cncf.io/deviceID")]
    device_id: Option<Attribute>,
    #[serde(rename = "k8s.cni.cncf.io/resourceName")]
    resource_name: Option<Attribute>,
}

/// One of another type is none.
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

/// What was read so far, each driver once.
struct Known<'a, C> {
    cluster: &'a C,
    namespace: &'a str,
    node: &'a str,
    drivers: BTreeMap<String, Pools>,
}

impl<C: ClusterView> Known<'_, C> {
    async fn add_all(&mut self, claims: &PodClaims, devices: &mut Devices) -> Result<(), Error> {
        for name in &claims.names {
            for allocated in self.claim(name).await? {
                let found = self.attributes(&allocated).await?;
                let named = found.and_then(|found| found.resource_name().zip(found.device_id()));
                if let Some((resource, device)) = named {
                    devices.add(resource, device.to_owned());
                } else {
                    let device = &allocated.device;
                    tracing::warn!(claim = name, device, "a claimed device is none for networks");
                }
            }
        }
        if let Some(extended) = &claims.extended {
            self.add_extended(extended, devices).await?;
        }
        Ok(())
    }

    async fn add_extended(&mut self, extended: &Extended, devices: &mut Devices) -> Result<(), Error> {
        let claim = &extended.resource_claim_name;
        let results = self.claim(claim).await?;
        for Mapping {
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
                        // While a driver replaces its slices, those of old are still there.
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
