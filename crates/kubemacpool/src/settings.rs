//! Settings of the manager from flags and environment (kubemacpool §2).

use std::num::ParseIntError;
use std::path::PathBuf;
use std::time::Duration;

use cni::mac::{InvalidMac, Mac};
use kube_kit::tls::{Authorities, Profile};

use crate::metrics::{Bind, InvalidBind};
use crate::names::{self, env};
use crate::range::{InvalidRange, NoShare, Range};
use crate::server::{self, Client, InvalidVersion};

#[cfg(test)]
mod tests;

/// Minimum wait for an admitted object, which takes a moment until it is stored and observed.
const MIN_WAIT: Duration = Duration::from_secs(5);

/// Flags of the manager and of the certificate manager.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = ENVIRONMENT)]
pub struct Args {
    /// production writes JSON log lines; any other value writes human-readable debug output
    #[arg(short = 'v', long = "v", value_name = "MODE", default_value = PRODUCTION)]
    pub v: String,
    /// Kubeconfig file, outside a pod
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Address of the metrics over TLS; 0 disables them
    #[arg(long, value_name = "ADDRESS", default_value = ":8443")]
    pub metrics_addr: String,
    /// Seconds after which to check whether an admitted object was created
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub wait_time: u32,
    /// Lowest TLS version, by its name in Go
    #[arg(long, value_name = "VERSION", default_value = "VersionTLS13")]
    pub tls_min_version: String,
    /// Ciphers below TLS 1.3, by their names in Go, separated by commas; all if empty
    #[arg(long, value_name = "CIPHERS", default_value = "", hide_default_value = true)]
    pub tls_cipher_suites: String,
    /// Number of managers, each of which allocates from its own part of the range; the ordinal at the end of the pod
    /// name selects the part
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub replicas: u32,
    /// Deny an object that requests the address of another one, instead of a warning
    #[arg(long)]
    pub reject_duplicates: bool,
    /// PEM file with the certificate authorities of the API server's client certificate, read at the start. With it,
    /// only the API server may send reviews
    #[arg(long, value_name = "FILE", requires = "client_name")]
    pub client_ca_file: Option<PathBuf>,
    /// Common name of the API server's client certificate
    #[arg(long, value_name = "NAME", requires = "client_ca_file")]
    pub client_name: Option<String>,
}

/// Last part of `weft kubemacpool --help`.
const ENVIRONMENT: &str = "\
POD_NAMESPACE, POD_NAME, RANGE_START and RANGE_END come from the environment.
If RUN_CERT_MANAGER is set to any value, the program is the certificate manager
instead, which reads CA_ROTATE_INTERVAL, CA_OVERLAP_INTERVAL,
CERT_ROTATE_INTERVAL and CERT_OVERLAP_INTERVAL.";

/// Value of `--v` in production.
const PRODUCTION: &str = "production";

impl Args {
    /// Whether the log is JSON without debug output.
    pub fn production(&self) -> bool {
        self.v == PRODUCTION
    }
}

/// Settings of the manager.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Namespace of the manager.
    pub namespace: String,
    /// Pod name of the manager.
    pub pod: String,
    /// The initial range; the ConfigMap may replace it.
    pub range: Range,
    /// The part of the range to allocate from.
    pub share: Share,
    /// When to check whether an admitted object was created.
    pub wait_time: Duration,
    /// Whether an object is denied that requests the address of another one.
    pub reject_duplicates: bool,
    /// Address of the metrics.
    pub metrics: Bind,
    /// Settings of the webhook server.
    pub webhooks: server::Settings,
}

/// The part of a range that one of several replicas allocates from.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Share {
    /// Ordinal of the part, from 0.
    pub ordinal: u32,
    /// Number of parts.
    pub replicas: u32,
}

impl Share {
    /// The whole range.
    pub const WHOLE: Self = Self {
        ordinal: 0,
        replicas: 1,
    };

    /// The part of a range.
    ///
    /// # Errors
    /// If the range has fewer addresses than parts.
    pub fn of(self, range: &Range) -> Result<Range, NoShare> {
        if self == Self::WHOLE {
            return Ok(*range);
        }
        range.share(self.ordinal.into(), self.replicas.into())
    }
}

/// Flags or environment are invalid; the texts are those of upstream.
#[derive(Debug, thiserror::Error)]
pub enum InvalidSettings {
    /// The namespace is unknown.
    #[error("Failed to load pod namespace from environment variable")]
    Namespace,
    /// The pod name is unknown.
    #[error("Failed to load pod name from environment variable")]
    Pod,
    /// An end of the range is missing.
    #[error("Failed to load mac address from environment variable: Environment variable {0} don't exist")]
    NoAddress(&'static str),
    /// An end of the range is no MAC address.
    #[error("Failed to load mac address from environment variable")]
    Address(#[source] InvalidMac),
    /// The ends form no range.
    #[error(
        "Failed to run the kubemacpool manager: unable to create pool manager: failed to set initial ranges"
    )]
    Range(#[source] InvalidRange),
    /// Unknown TLS version.
    #[error(transparent)]
    Tls(#[from] InvalidVersion),
    /// The client's certificate authorities cannot be read.
    #[error("cannot use the certificate authorities of --client-ca-file {}", path.display())]
    Authorities {
        /// Path of the file.
        path: PathBuf,
        /// Cause.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The address of the metrics is invalid.
    #[error(transparent)]
    Metrics(#[from] InvalidBind),
    /// The pod name has no ordinal.
    #[error("pod name {pod:?} does not end in the number of the replica, as those of a StatefulSet do")]
    Ordinal {
        /// Pod name.
        pod: String,
        /// Cause.
        #[source]
        cause: ParseIntError,
    },
    /// The part does not exist.
    #[error("--replicas {replicas} in pod {pod:?}")]
    Share {
        /// Number of parts.
        replicas: u32,
        /// Pod name.
        pod: String,
        /// Cause.
        #[source]
        cause: NoShare,
    },
}

impl Settings {
    /// Reads flags, and the environment through `lookup`.
    ///
    /// # Errors
    /// If a setting is missing or invalid.
    pub fn read(args: &Args, lookup: impl Fn(&str) -> Option<String>) -> Result<Self, InvalidSettings> {
        let set = |name: &str| lookup(name).filter(|value| !value.is_empty());
        let profile = server::profile(&args.tls_min_version, &args.tls_cipher_suites)?;
        let namespace = set(env::POD_NAMESPACE).ok_or(InvalidSettings::Namespace)?;
        let pod = set(env::POD_NAME).ok_or(InvalidSettings::Pod)?;
        let address = |name| {
            let text = lookup(name).ok_or(InvalidSettings::NoAddress(name))?;
            Mac::parse(&text).map_err(InvalidSettings::Address)
        };
        let (start, end) = (address(env::RANGE_START)?, address(env::RANGE_END)?);
        let range = Range::new(start, end).map_err(InvalidSettings::Range)?;
        Ok(Self {
            share: share(args.replicas, &pod, &range)?,
            namespace,
            pod,
            range,
            wait_time: Duration::from_secs(args.wait_time.into()).max(MIN_WAIT),
            reject_duplicates: args.reject_duplicates,
            metrics: args.metrics_addr.parse()?,
            webhooks: webhooks(profile, client(args)?),
        })
    }
}

fn client(args: &Args) -> Result<Option<Client>, InvalidSettings> {
    let (Some(path), Some(name)) = (&args.client_ca_file, &args.client_name) else {
        return Ok(None);
    };
    let invalid = |cause| InvalidSettings::Authorities {
        path: path.clone(),
        cause,
    };
    let certificates = std::fs::read(path).map_err(|error| invalid(error.into()))?;
    Ok(Some(Client {
        authorities: Authorities::from_pem(&certificates).map_err(|error| invalid(error.into()))?,
        name: name.clone(),
    }))
}

fn webhooks(profile: Profile, client: Option<Client>) -> server::Settings {
    server::Settings {
        bind: Bind::Everywhere(names::WEBHOOK_PORT),
        certificates: names::SERVING_CERTIFICATES.into(),
        profile,
        client,
    }
}

fn share(replicas: u32, pod: &str, range: &Range) -> Result<Share, InvalidSettings> {
    if replicas == 1 {
        return Ok(Share::WHOLE);
    }
    let number = pod.rsplit('-').next().unwrap_or_default();
    let ordinal = number.parse().map_err(|cause| InvalidSettings::Ordinal {
        pod: pod.to_owned(),
        cause,
    })?;
    let share = Share { ordinal, replicas };
    share.of(range).map_err(|cause| InvalidSettings::Share {
        replicas,
        pod: pod.to_owned(),
        cause,
    })?;
    Ok(share)
}
