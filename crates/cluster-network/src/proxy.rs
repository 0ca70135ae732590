//! The cluster's proxy: what users say about it is checked, and completed by what must never go through it (§15.1).
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

/// What users say.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default, rename_all = "camelCase")]
pub struct Spec {
    /// URL of the proxy for requests without TLS.
    pub http_proxy: String,
    /// URL of the proxy for requests over TLS.
    pub https_proxy: String,
    /// What does not go through it: domains, addresses and blocks of them, with commas between; or `*`.
    pub no_proxy: String,
    /// URLs that must answer through the proxy before it counts.
    pub readiness_endpoints: Vec<String>,
    /// `ConfigMap` in `openshift-config` with authorities.
    #[serde(rename = "trustedCA")]
    pub trusted_ca: Reference,
}

/// An object by its name.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq)]
#[serde(default)]
pub struct Reference {
    /// Empty for none.
    pub name: String,
}

/// What everybody is told.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Status {
    /// As users say it.
    pub http_proxy: String,
    /// As users say it.
    pub https_proxy: String,
    /// Completed.
    pub no_proxy: String,
}

/// What is wrong with what users say.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Invalid {
    /// There are exceptions, and no proxy.
    #[error("{}", messages::proxy::NO_PROXY_SET)]
    NoProxySet,
    /// The proxy is no URL of this scheme.
    #[error("{}", messages::proxy::wrong_scheme(field, schemes))]
    Scheme {
        /// Which of the two.
        field: &'static str,
        /// What it may be.
        schemes: &'static str,
    },
    /// This exception is nothing that can be one.
    #[error("{}", messages::proxy::invalid_no_proxy(.0))]
    NoProxy(String),
}

impl Spec {
    /// Whether anything is said about a proxy.
    pub fn is_set(&self) -> bool {
        ![&self.http_proxy, &self.https_proxy, &self.no_proxy]
            .into_iter()
            .all(String::is_empty)
    }

    /// Exceptions that users ask for.
    fn exceptions(&self) -> impl Iterator<Item = &str> {
        self.no_proxy
            .split(',')
            .map(str::trim)
            .filter(|it| !it.is_empty())
    }
}

/// Checks what users say.
///
/// # Errors
/// What is wrong first.
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

/// No proxy at all.
const EVERYTHING: &str = "*";

fn has_scheme(url: &str, scheme: &str) -> bool {
    let rest = url.strip_prefix(scheme).and_then(|rest| rest.strip_prefix("://"));
    rest.is_some_and(|rest| !rest.split('/').next().unwrap_or_default().is_empty())
}

/// A domain, with a dot at its beginning or end if it wants; an address; or a block of addresses.
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
    // What looks like an address is none of these.
    let has_letter = domain.bytes().any(|byte| byte.is_ascii_alphabetic());
    domain.len() <= LONGEST && has_letter && domain.split('.').all(is_label)
}

/// What the platform says about itself (`Infrastructure.config.openshift.io`).
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Infrastructure {
    /// Name of the object.
    pub name: String,
    /// URL of the API server for those inside of the cluster.
    pub internal_url: String,
    /// Such as `AWS`.
    pub platform: String,
    /// Region, where the platform has some.
    pub region: String,
    /// Which of Azure's clouds it is; empty for the public one.
    pub azure_cloud: String,
    /// URL of Azure's resource manager, where it is one's own.
    pub azure_endpoint: String,
    /// Whether the control plane is hosted by another cluster.
    pub is_hosted: bool,
}

/// What the status of the cluster's `Network` says.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Network {
    /// Name of the object.
    pub name: String,
    /// Addresses of services.
    pub services: Vec<String>,
    /// Addresses of pods.
    pub pods: Vec<String>,
}

/// What the installer was told about machines.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Installation {
    /// There is no such `ConfigMap`: a cluster of another installer.
    Unknown,
    /// There is one without the key.
    NoConfig,
    /// Blocks of addresses of machines.
    Machines(Vec<String>),
}

/// Why the exceptions can't be completed.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Missing {
    /// The internal URL.
    #[error("{}", messages::proxy::no_internal_url(.0))]
    InternalUrl(String),
    /// Addresses of services.
    #[error("{}", messages::proxy::no_services(.0))]
    Services(String),
    /// Addresses of pods.
    #[error("{}", messages::proxy::no_pods(.0))]
    Pods(String),
    /// What the installer was told.
    #[error("{}", messages::proxy::NO_INSTALL_CONFIG)]
    InstallConfig,
}

/// What everybody is told about the proxy.
///
/// # Errors
/// When something is missing without which pods would reach their own cluster through the proxy.
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

/// Address of the service that tells machines about themselves, on most clouds.
const METADATA: &str = "169.254.169.254";
/// The same, and more, on Azure.
const AZURE_WIRE: &str = "168.63.129.16";

fn no_proxy(
    spec: &Spec,
    infrastructure: &Infrastructure,
    installation: &Installation,
    network: &Network,
) -> Result<String, Missing> {
    let internal = host(&infrastructure.internal_url)
        .ok_or_else(|| Missing::InternalUrl(infrastructure.name.clone()))?;
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
    all.insert(internal.to_owned());
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

/// Host of a URL, IPv6 addresses without brackets.
fn host(url: &str) -> Option<&str> {
    let (_, rest) = url.split_once("://")?;
    let authority = rest.split(['/', '?', '#']).next()?.rsplit('@').next()?;
    let host = match authority.strip_prefix('[') {
        Some(bracketed) => bracketed.split(']').next()?,
        None => authority.split(':').next()?,
    };
    Some(host).filter(|host| !host.is_empty())
}

/// The part of the installer's configuration that is read.
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
    /// Reads the installer's configuration, which is YAML.
    ///
    /// # Errors
    /// When it is malformed.
    pub fn read(config: &str) -> Result<Self, serde_saphyr::Error> {
        let InstallConfig { networking } = serde_saphyr::from_str(config)?;
        let all = networking.machine_network.into_iter().map(|network| network.cidr);
        let all = networking.machine_cidr.into_iter().chain(all);
        Ok(Self::Machines(all.filter(|block| !block.is_empty()).collect()))
    }
}
