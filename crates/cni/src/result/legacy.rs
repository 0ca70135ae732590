//! The result format of 0.1.0 and 0.2.0: at most one address per family, no interfaces.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{CniResult, Dns, IpConfig, Route};
use crate::error::{Error, internal};
use crate::version::Version;

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(super) struct Legacy {
    #[serde(skip_serializing_if = "Option::is_none")]
    ip4: Option<Address>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ip6: Option<Address>,
    dns: Dns,
}

#[derive(Debug, Serialize, Deserialize)]
struct Address {
    #[serde(deserialize_with = "crate::net::deserialize_cidr")]
    ip: IpNet,
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "super::lenient_ip"
    )]
    gateway: Option<IpAddr>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    routes: Vec<Route>,
}

impl From<Legacy> for CniResult {
    fn from(legacy: Legacy) -> Self {
        let mut result = Self {
            dns: legacy.dns,
            ..Self::default()
        };
        for address in [legacy.ip4, legacy.ip6].into_iter().flatten() {
            result.ips.push(IpConfig {
                address: address.ip,
                gateway: address.gateway,
                interface: None,
            });
            result.routes.extend(address.routes);
        }
        result
    }
}

impl TryFrom<&CniResult> for Legacy {
    type Error = Error;

    fn try_from(result: &CniResult) -> Result<Self, Error> {
        let of_family = |v4: bool| {
            let ip = result.ips.iter().find(|ip| ip.address.addr().is_ipv4() == v4)?;
            let routes = result
                .routes
                .iter()
                .filter(|route| route.dst.addr().is_ipv4() == v4);
            Some(Address {
                ip: ip.address,
                gateway: ip.gateway,
                routes: routes.map(|route| Route::new(route.dst, route.gw)).collect(),
            })
        };
        let legacy = Self {
            ip4: of_family(true),
            ip6: of_family(false),
            dns: result.dns.clone(),
        };
        if legacy.ip4.is_none() && legacy.ip6.is_none() {
            return Err(Error::internal("cannot convert: no valid IP addresses"));
        }
        Ok(legacy)
    }
}

impl Legacy {
    pub(super) fn to_json(&self, version: Version) -> Result<Value, Error> {
        let mut json = serde_json::to_value(self).map_err(internal)?;
        if let Some(members) = json.as_object_mut() {
            members.insert("cniVersion".into(), version.as_str().into());
        }
        Ok(json)
    }
}
