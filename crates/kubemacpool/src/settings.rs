//! What the manager is told by flags and environment, checked (kubemacpool §2).

use std::num::ParseIntError;
use std::path::PathBuf;
use std::time::Duration;

use kube_kit::tls::{Authorities, Profile};

use crate::mac::{InvalidMac, Mac};
use crate::metrics::{Bind, InvalidBind};
use crate::names::{self, env};
use crate::range::{InvalidRange, NoShare, Range};
use crate::server::{self, Client, InvalidVersion};

#[cfg(test)]
mod tests;

/// The shortest wait for an object that was admitted: it takes a moment until it is stored and seen.
const SHORTEST_WAIT: Duration = Duration::from_secs(5);

/// Flags of the manager, and of the certificate manager that the environment makes of it.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = ENVIRONMENT)]
pub struct Args {
    /// production: log lines are JSON; anything else: they are for people, and more of them
    #[arg(short = 'v', long = "v", value_name = "MODE", default_value = PRODUCTION)]
    pub v: String,
    /// Kubeconfig file, outside a pod
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Where to serve the metrics over TLS; 0 for nowhere
    #[arg(long, value_name = "ADDRESS", default_value = ":8443")]
    pub metrics_addr: String,
    /// After how many seconds to look whether an admitted object came to be
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub wait_time: u32,
    /// Lowest version of TLS, as Go calls it
    #[arg(long, value_name = "VERSION", default_value = "VersionTLS13")]
    pub tls_min_version: String,
    /// Ciphers below TLS 1.3 by their names in Go, with commas between; none for all
    #[arg(long, value_name = "CIPHERS", default_value = "", hide_default_value = true)]
    pub tls_cipher_suites: String,
    /// How many managers hand out addresses, each its own part of the range: the one that the number at the end of its
    /// pod's name says
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    pub replicas: u32,
    /// Refuse an object that asks for an address which another one has, instead of a warning
    #[arg(long)]
    pub reject_duplicates: bool,
    /// Certificates, as PEM, of the authorities that issue the API server's client certificate. With it, only the API
    /// server may ask for reviews. Read at the start
    #[arg(long, value_name = "FILE", requires = "client_name")]
    pub client_ca_file: Option<PathBuf>,
    /// Common name of the API server's client certificate
    #[arg(long, value_name = "NAME", requires = "client_ca_file")]
    pub client_name: Option<String>,
}

/// What `weft kubemacpool --help` says last.
const ENVIRONMENT: &str = "\
POD_NAMESPACE, POD_NAME, RANGE_START and RANGE_END come from the environment.
With RUN_CERT_MANAGER there, whatever it holds, this is the certificate manager
instead, which reads CA_ROTATE_INTERVAL, CA_OVERLAP_INTERVAL,
CERT_ROTATE_INTERVAL and CERT_OVERLAP_INTERVAL.";

/// What `--v` says in production.
const PRODUCTION: &str = "production";

impl Args {
    /// Whether the log is for machines, and no more than is needed.
    pub fn production(&self) -> bool {
        self.v == PRODUCTION
    }
}

/// What the manager needs to know.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Its own namespace.
    pub namespace: String,
    /// Its own pod.
    pub pod: String,
    /// The range to begin with; the ConfigMap may say another one later.
    pub range: Range,
    /// Which part of it is to be handed out.
    pub share: Share,
    /// When to look whether an admitted object came to be.
    pub wait_time: Duration,
    /// Whether an address that others have is refused.
    pub reject_duplicates: bool,
    /// Where to serve metrics.
    pub metrics: Bind,
    /// Where and as whom to serve the webhooks.
    pub webhooks: server::Settings,
}

/// The part of a range that one of several replicas hands out of.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Share {
    /// Which one, counted from 0.
    pub ordinal: u32,
    /// How many there are.
    pub replicas: u32,
}

impl Share {
    /// All of it.
    pub const WHOLE: Self = Self {
        ordinal: 0,
        replicas: 1,
    };

    /// The part of a range.
    ///
    /// # Errors
    /// When there are fewer addresses than parts.
    pub fn of(self, range: &Range) -> Result<Range, NoShare> {
        if self == Self::WHOLE {
            return Ok(*range);
        }
        range.share(self.ordinal.into(), self.replicas.into())
    }
}

/// What of flags or environment makes no sense; texts of the established program.
#[derive(Debug, thiserror::Error)]
pub enum InvalidSettings {
    /// Where it runs is not known.
    #[error("Failed to load pod namespace from environment variable")]
    Namespace,
    /// As which pod it runs is not known.
    #[error("Failed to load pod name from environment variable")]
    Pod,
    /// An end of the range is not given.
    #[error("Failed to load mac address from environment variable: Environment variable {0} don't exist")]
    NoAddress(&'static str),
    /// An end of the range is no address.
    #[error("Failed to load mac address from environment variable")]
    Address(#[source] InvalidMac),
    /// The ends are no range.
    #[error(
        "Failed to run the kubemacpool manager: unable to create pool manager: failed to set initial ranges"
    )]
    Range(#[source] InvalidRange),
    /// The flag names no version.
    #[error(transparent)]
    Tls(#[from] InvalidVersion),
    /// The file of the client's authorities is of no use.
    #[error("cannot use the authorities of --client-ca-file {}", path.display())]
    Authorities {
        /// The file.
        path: PathBuf,
        /// Why not.
        #[source]
        cause: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The flag says no address.
    #[error(transparent)]
    Metrics(#[from] InvalidBind),
    /// A share is asked for, and the pod's name does not say which one.
    #[error("pod name {pod:?} does not end in the number of the replica, as those of a StatefulSet do")]
    Ordinal {
        /// The name.
        pod: String,
        /// What is wrong with what stands there.
        #[source]
        cause: ParseIntError,
    },
    /// There is no such share.
    #[error("--replicas {replicas} in pod {pod:?}")]
    Share {
        /// How many.
        replicas: u32,
        /// Where.
        pod: String,
        /// Why not.
        #[source]
        cause: NoShare,
    },
}

impl Settings {
    /// Reads flags, and the environment through `lookup`.
    ///
    /// # Errors
    /// When one of them is missing or makes no sense.
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
            wait_time: Duration::from_secs(args.wait_time.into()).max(SHORTEST_WAIT),
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
