//! Addresses of the API and of the ingress in an on-premises `Infrastructure` (§18.4).
//!
//! ```text
//! spec:   apiServerInternalIPs, ingressIPs, machineNetworks   the request of the user
//!            │  validate                  ▲
//!            ▼                            │ an empty list
//! status: apiServerInternalIPs, ingressIPs, machineNetworks   what other components use
//!            │ first address              ▲
//!            ▼                            │ an empty list
//! status: apiServerInternalIP, ingressIP                      deprecated
//! ```

use std::net::IpAddr;

use serde_json::{Map, Value, json};

use crate::{
    cidr,
    messages::infrastructure as messages,
    objects::{platform, text, texts},
};

pub mod controller;

/// Platforms with such addresses, and their fields in spec and status.
const PLATFORMS: [(&str, &str); 5] = [
    ("BareMetal", "baremetal"),
    ("VSphere", "vsphere"),
    ("OpenStack", "openstack"),
    ("oVirt", "ovirt"),
    ("Nutanix", "nutanix"),
];
/// Platforms whose spec has these addresses too.
const WITH_SPEC: [&str; 3] = ["BareMetal", "VSphere", "OpenStack"];
/// Type of a load balancer that the user runs. It may serve API and ingress by one address.
const USER_MANAGED: &str = "UserManaged";

const API: &str = "apiServerInternalIPs";
const INGRESS: &str = "ingressIPs";
const NETWORKS: &str = "machineNetworks";
/// Lists of addresses, with the deprecated fields of their first address.
const SINGLE: [(&str, &str); 2] = [(API, "apiServerInternalIP"), (INGRESS, "ingressIP")];

/// Fields of an `Infrastructure` to write, as merge patches. `None` if nothing differs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// Fields of the spec.
    pub spec: Option<Value>,
    /// Fields of the status.
    pub status: Option<Value>,
}

/// Addresses of a platform, in its spec or status.
#[derive(Clone, Debug, Default, PartialEq)]
struct Addresses {
    api: Vec<String>,
    ingress: Vec<String>,
    networks: Vec<String>,
}

impl Addresses {
    fn of(platform: &Value) -> Self {
        let list = |key: &str| texts(platform, &format!("/{key}"));
        Self {
            api: list(API),
            ingress: list(INGRESS),
            networks: list(NETWORKS),
        }
    }

    /// The addresses in a status. An old installer wrote the deprecated fields alone.
    fn of_status(platform: &Value) -> Self {
        let mut addresses = Self::of(platform);
        for ((list, single), found) in SINGLE.iter().zip([&mut addresses.api, &mut addresses.ingress]) {
            let only = text(platform, &format!("/{single}"));
            if only.is_empty() || found.iter().any(|it| it == only) {
                continue;
            }
            if found.is_empty() {
                found.push(only.to_owned());
            } else {
                tracing::warn!(
                    "status has {single} {only}, which is not in {list}: the list takes precedence"
                );
            }
        }
        addresses
    }

    /// Fields with these addresses.
    fn fields(&self) -> Map<String, Value> {
        [
            (API, &self.api),
            (INGRESS, &self.ingress),
            (NETWORKS, &self.networks),
        ]
        .map(|(key, list)| (key.to_owned(), json!(list)))
        .into_iter()
        .collect()
    }

    /// Deprecated fields with the first addresses.
    fn single(&self) -> impl Iterator<Item = (String, Value)> {
        let firsts = SINGLE.iter().zip([&self.api, &self.ingress]);
        firsts.filter_map(|((_, single), list)| Some(((*single).to_owned(), json!(list.first()?))))
    }
}

/// The changes that make spec and status of an `Infrastructure` agree.
///
/// # Errors
/// If the spec requests addresses that are not allowed.
pub fn changes(infrastructure: &Value) -> Result<Changes, String> {
    if key(text(infrastructure, "/spec/platformSpec/type")).is_none() {
        return Ok(Changes::default());
    }
    let platform = platform(infrastructure);
    let Some(key) = key(platform) else {
        return Ok(Changes::default());
    };
    let status = infrastructure.pointer(&format!("/status/platformStatus/{key}"));
    // An installation by the user may have no fields of the platform.
    let Some(status) = status.filter(|status| status.is_object()) else {
        return Ok(Changes::default());
    };
    let current = Addresses::of_status(status);
    if !WITH_SPEC.contains(&platform) {
        let mut fields = current.fields();
        // Fields without addresses stay absent, and these platforms have no networks.
        fields.retain(|_, list| list.as_array().is_some_and(|list| !list.is_empty()));
        fields.shift_remove(NETWORKS);
        fields.extend(current.single());
        let status = different(fields, status).map(|fields| json!({ "platformStatus": { key: fields } }));
        return Ok(Changes { spec: None, status });
    }
    let spec = &infrastructure["spec"]["platformSpec"][key];
    let may_share = text(status, "/loadBalancer/type") == USER_MANAGED;
    let agreed = agree(&Addresses::of(spec), &current, may_share)?;
    let mut fields = agreed.fields();
    let in_spec = different(fields.clone(), spec);
    fields.extend(agreed.single());
    let in_status = different(fields, status);
    Ok(Changes {
        spec: in_spec.map(|fields| json!({ "platformSpec": { key: fields } })),
        status: in_status.map(|fields| json!({ "platformStatus": { key: fields } })),
    })
}

fn key(platform: &str) -> Option<&'static str> {
    let found = PLATFORMS.iter().find(|(name, _)| *name == platform);
    found.map(|(_, key)| *key)
}

/// The fields that differ from the live ones.
fn different(mut fields: Map<String, Value>, live: &Value) -> Option<Map<String, Value>> {
    fields.retain(|key, value| live.get(key.as_str()) != Some(value));
    (!fields.is_empty()).then_some(fields)
}

/// The addresses for both spec and status.
fn agree(requested: &Addresses, current: &Addresses, may_share: bool) -> Result<Addresses, String> {
    let Addresses {
        api,
        ingress,
        networks,
    } = requested;
    check_networks(networks, &current.networks).map_err(|error| messages::networks(&error))?;
    check_addresses(api, ingress, may_share).map_err(|error| messages::addresses(&error))?;
    for (kind, list) in [(messages::API, api), (messages::INGRESS, ingress)] {
        check_in_networks(list, networks).map_err(|error| messages::in_networks(kind, &error))?;
    }
    let next = |kind: &str, requested: &Vec<String>, current: &Vec<String>| {
        let Some(first) = requested.first() else {
            return Ok(current.clone());
        };
        let now = current.first().map(String::as_str).unwrap_or_default();
        if first != now {
            return Err(messages::synchronised(kind, &messages::first_address(now, first)));
        }
        Ok(requested.clone())
    };
    Ok(Addresses {
        api: next(messages::API, api, &current.api)?,
        ingress: next(messages::INGRESS, ingress, &current.ingress)?,
        networks: networks.clone(),
    })
}

/// The first network stays, and the networks are never removed altogether.
fn check_networks(requested: &[String], current: &[String]) -> Result<(), String> {
    let Some(now) = current.first() else {
        return Ok(());
    };
    match requested.first() {
        None => Err(messages::NETWORKS_REMOVED.to_owned()),
        Some(first) if first != now => Err(messages::first_network(now, first)),
        Some(_) => Ok(()),
    }
}

/// One address each, or one of each family.
fn check_addresses(api: &[String], ingress: &[String], may_share: bool) -> Result<(), String> {
    for (kind, list) in [(messages::API, api), (messages::INGRESS, ingress)] {
        if list.len() > 2 {
            return Err(messages::too_many(kind, list.len()));
        }
    }
    if api.len() != ingress.len() {
        return Err(messages::unequal_numbers(api.len(), ingress.len()));
    }
    if !may_share && let Some((api, ingress)) = api.iter().zip(ingress).find(|(api, ingress)| api == ingress)
    {
        return Err(messages::equal(api, ingress));
    }
    for (kind, list) in [(messages::API, api), (messages::INGRESS, ingress)] {
        if list.len() > 1 && !is_dual_stack(list)? {
            return Err(messages::one_family(kind));
        }
    }
    Ok(())
}

fn is_dual_stack(list: &[String]) -> Result<bool, String> {
    let list: Vec<IpAddr> = list.iter().map(|text| parse(text)).collect::<Result<_, _>>()?;
    Ok(list.iter().any(IpAddr::is_ipv4) && list.iter().any(IpAddr::is_ipv6))
}

/// Each address is in one of the networks, if there are any.
fn check_in_networks(addresses: &[String], networks: &[String]) -> Result<(), String> {
    if networks.is_empty() {
        return Ok(());
    }
    let mut blocks = Vec::new();
    for network in networks {
        blocks.push(cidr::parse_masked(network).map_err(|error| error.to_string())?);
    }
    for text in addresses {
        let address = parse(text)?;
        if !blocks.iter().any(|block| block.contains(&address)) {
            return Err(messages::in_no_network(text));
        }
    }
    Ok(())
}

fn parse(address: &str) -> Result<IpAddr, String> {
    address.parse().map_err(|_| messages::no_address(address))
}

#[cfg(test)]
mod tests;
