//! The cluster-wide proxy: validates its configuration, and completes the list of destinations that bypass it (§15.1).
//!
//! ```text
//! Proxy ── validate ──┐
//! Infrastructure ─────┤
//! install-config ─────┼── no_proxy ──> status of Proxy
//! Network (status) ───┘
//! ConfigMaps ── trust::merge ──> trusted-ca-bundle
//! ```

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::Deserialize;

use crate::messages;

pub mod controller;
pub mod readiness;
#[cfg(test)]
mod tests;

/// Desired state of the proxy.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct Spec {
    /// URL of the proxy for requests without TLS.
    pub http_proxy: String,
    /// URL of the proxy for requests over TLS.
    pub https_proxy: String,
    /// Destinations that bypass the proxy: domains, addresses and blocks of addresses, separated by commas; or `*`.
    pub no_proxy: String,
    /// URLs that must answer through the proxy before the proxy is used.
    pub readiness_endpoints: Vec<String>,
    /// `ConfigMap` in `openshift-config` with certificate authorities.
    #[serde(rename = "trustedCA")]
    pub trusted_ca: Reference,
}

/// A reference to an object, by its name.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct Reference {
    /// Name of the object. Empty for none.
    pub name: String,
}

/// Effective proxy settings for all components.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Status {
    /// Copy of the desired state.
    pub http_proxy: String,
    /// Copy of the desired state.
    pub https_proxy: String,
    /// Complete list of destinations that bypass the proxy.
    pub no_proxy: String,
}

/// Error in the desired state.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Invalid {
    /// `noProxy` is set without a proxy.
    #[error("{}", messages::proxy::NO_PROXY_SET)]
    NoProxySet,
    /// The URL of the proxy lacks an allowed scheme.
    #[error("{}", messages::proxy::wrong_scheme(field, schemes))]
    Scheme {
        /// Name of the field.
        field: &'static str,
        /// Allowed schemes.
        schemes: &'static str,
    },
    /// An entry of `noProxy` is invalid.
    #[error("{}", messages::proxy::invalid_no_proxy(.0))]
    NoProxy(String),
}

impl Spec {
    /// True if the desired state has any setting of a proxy.
    pub fn is_set(&self) -> bool {
        ![&self.http_proxy, &self.https_proxy, &self.no_proxy]
            .into_iter()
            .all(String::is_empty)
    }

    /// Entries of `noProxy`.
    fn exceptions(&self) -> impl Iterator<Item = &str> {
        self.no_proxy
            .split(',')
            .map(str::trim)
            .filter(|it| !it.is_empty())
    }
}

/// Validates the desired state.
///
/// # Errors
/// The first error.
pub fn validate(spec: &Spec) -> Result<(), Invalid> {
    if !spec.is_set() {
        return Ok(());
    }
    if spec.http_proxy.is_empty() && spec.https_proxy.is_empty() {
        return Err(Invalid::NoProxySet);
    }
    let check = |url: &str, field, schemes: &'static [&'static str], text| {
        let fine = url.is_empty() || schemes.iter().any(|scheme| has_scheme(url, scheme));
        if fine {
            Ok(())
        } else {
            Err(Invalid::Scheme { field, schemes: text })
        }
    };
    check(&spec.http_proxy, "httpProxy", &["http"], "http")?;
    check(
        &spec.https_proxy,
        "httpsProxy",
        &["http", "https"],
        "http or https",
    )?;
    if spec.no_proxy == EVERYTHING {
        return Ok(());
    }
    match spec.exceptions().find(|entry| !may_be_excepted(entry)) {
        Some(entry) => Err(Invalid::NoProxy(entry.to_owned())),
        None => Ok(()),
    }
}

/// Value of `noProxy` with which all requests bypass the proxy.
const EVERYTHING: &str = "*";

fn has_scheme(url: &str, scheme: &str) -> bool {
    let rest = url.strip_prefix(scheme).and_then(|rest| rest.strip_prefix("://"));
    rest.is_some_and(|rest| !rest.split('/').next().unwrap_or_default().is_empty())
}

/// True for a domain, with an optional dot at its start or end; for an address; and for a block of addresses.
fn may_be_excepted(entry: &str) -> bool {
    entry.parse::<IpAddr>().is_ok() || entry.parse::<IpNet>().is_ok() || is_domain(entry)
}

fn is_domain(entry: &str) -> bool {
    const LONGEST: usize = 253;
    let domain = entry.strip_prefix('.').unwrap_or(entry);
    let domain = domain.strip_suffix('.').unwrap_or(domain);
    let is_label = |label: &str| {
        let edge = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        label.len() <= 63
            && label
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
            && edge(label.bytes().next())
            && edge(label.bytes().last())
    };
    // A malformed address is no domain.
    let has_letter = domain.bytes().any(|byte| byte.is_ascii_alphabetic());
    domain.len() <= LONGEST && has_letter && domain.split('.').all(is_label)
}

/// The platform, from `Infrastructure.config.openshift.io`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Infrastructure {
    /// Name of the object.
    pub name: String,
    /// URL of the API server for clients inside the cluster.
    pub internal_url: String,
    /// Name of the platform, such as `AWS`.
    pub platform: String,
    /// Region, on platforms with regions.
    pub region: String,
    /// Cloud of Azure. Empty for the public cloud.
    pub azure_cloud: String,
    /// URL of Azure's resource manager, in a private cloud.
    pub azure_endpoint: String,
    /// True if another cluster hosts the control plane.
    pub is_hosted: bool,
    /// True if clients inside the cluster reach the API server through the proxy: its internal URL is that for clients
    /// outside.
    pub has_proxied_api_server: bool,
}

/// Status of the cluster's `Network`.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Network {
    /// Name of the object.
    pub name: String,
    /// Blocks of services.
    pub services: Vec<String>,
    /// Blocks of pods.
    pub pods: Vec<String>,
}

/// Configuration of the installer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Installation {
    /// The `ConfigMap` does not exist: the cluster has another installer.
    Unknown,
    /// The `ConfigMap` lacks the key.
    NoConfig,
    /// Blocks of addresses of machines.
    Machines(Vec<String>),
}

/// Observed value without which the list cannot be completed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Missing {
    /// Internal URL of the API server.
    #[error("{}", messages::proxy::no_internal_url(.0))]
    InternalUrl(String),
    /// Blocks of services.
    #[error("{}", messages::proxy::no_services(.0))]
    Services(String),
    /// Blocks of pods.
    #[error("{}", messages::proxy::no_pods(.0))]
    Pods(String),
    /// Configuration of the installer.
    #[error("{}", messages::proxy::NO_INSTALL_CONFIG)]
    InstallConfig,
}

/// The effective proxy settings.
///
/// # Errors
/// If a value is missing. Without it, pods would reach their own cluster through the proxy.
pub fn status(
    spec: &Spec,
    infrastructure: &Infrastructure,
    installation: &Installation,
    network: &Network,
) -> Result<Status, Missing> {
    if !spec.is_set() {
        return Ok(Status::default());
    }
    let no_proxy = if spec.no_proxy == EVERYTHING {
        EVERYTHING.to_owned()
    } else {
        no_proxy(spec, infrastructure, installation, network)?
    };
    Ok(Status {
        http_proxy: spec.http_proxy.clone(),
        https_proxy: spec.https_proxy.clone(),
        no_proxy,
    })
}

/// Address of the metadata service on most clouds.
const METADATA: &str = "169.254.169.254";
/// Address of Azure's metadata service and other services of its platform.
const AZURE_WIRE: &str = "168.63.129.16";

fn no_proxy(
    spec: &Spec,
    infrastructure: &Infrastructure,
    installation: &Installation,
    network: &Network,
) -> Result<String, Missing> {
    let internal = if infrastructure.has_proxied_api_server {
        None
    } else {
        let internal = host(&infrastructure.internal_url);
        Some(internal.ok_or_else(|| Missing::InternalUrl(infrastructure.name.clone()))?)
    };
    if network.services.is_empty() {
        return Err(Missing::Services(network.name.clone()));
    }
    if network.pods.is_empty() {
        return Err(Missing::Pods(network.name.clone()));
    }
    let machines: &[String] = match installation {
        Installation::Unknown => &[],
        Installation::NoConfig => return Err(Missing::InstallConfig),
        Installation::Machines(blocks) => blocks,
    };
    let mut all: BTreeSet<String> = ["127.0.0.1", "localhost", ".svc", ".cluster.local"]
        .map(str::to_owned)
        .into();
    all.extend(spec.exceptions().map(str::to_owned));
    all.extend(machines.iter().filter(|block| *block != "0.0.0.0/0").cloned());
    all.extend(internal.map(str::to_owned));
    all.extend(network.services.iter().cloned());
    all.extend(network.pods.iter().cloned());
    all.extend(of_platform(infrastructure));
    Ok(all.into_iter().collect::<Vec<_>>().join(","))
}

fn of_platform(infrastructure: &Infrastructure) -> Vec<String> {
    const FIRST_REGION: &str = "us-east-1";
    const PUBLIC: &str = "AzurePublicCloud";
    let Infrastructure {
        platform,
        region,
        azure_cloud,
        azure_endpoint,
        is_hosted,
        ..
    } = infrastructure;
    let mut all = Vec::new();
    if ["AWS", "GCP", "Azure", "OpenStack"].contains(&platform.as_str()) {
        all.push(METADATA.to_owned());
    }
    match platform.as_str() {
        "AWS" if region == FIRST_REGION => all.push(".ec2.internal".to_owned()),
        "AWS" => all.push(format!(".{region}.compute.internal")),
        "GCP" => all.extend(
            [
                "metadata",
                "metadata.google.internal",
                "metadata.google.internal.",
            ]
            .map(str::to_owned),
        ),
        "Azure" => {
            if !azure_cloud.is_empty() && azure_cloud != PUBLIC {
                all.push(AZURE_WIRE.to_owned());
            }
            all.extend(host(azure_endpoint).map(str::to_owned));
        }
        _ => {}
    }
    if *is_hosted {
        all.push(".hypershift.local".to_owned());
    }
    all
}

/// Host of a URL. IPv6 addresses have no brackets.
fn host(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?.rsplit('@').next()?;
    let host = match authority.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next()?,
        None => authority.split(':').next()?,
    };
    Some(host).filter(|host| !host.is_empty())
}

/// The fields of the installer's configuration that the operator reads.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct InstallConfig {
    networking: Networking,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Networking {
    #[serde(rename = "machineCIDR")]
    machine_cidr: Option<String>,
    machine_network: Vec<MachineNetwork>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct MachineNetwork {
    cidr: String,
}

impl Installation {
    /// Parses the installer's configuration, which is YAML.
    ///
    /// # Errors
    /// If the YAML is malformed.
    pub fn read(config: &str) -> Result<Self, serde_saphyr::Error> {
        let InstallConfig { networking } = serde_saphyr::from_str(config)?;
        let all = networking.machine_network.into_iter().map(|network| network.cidr);
        let all = networking.machine_cidr.into_iter().chain(all);
        Ok(Self::Machines(all.filter(|block| !block.is_empty()).collect()))
    }
}
