//! Flags and environment, validated (kubevirt-ipam §3).

use std::path::PathBuf;

use clap::ArgAction;
use kube_kit::serve::{Bind, InvalidBind};
use kube_kit::tls::{Profile, ciphers};
use program::glog;

use crate::names;

#[cfg(test)]
mod tests;

/// Flags of the controller.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = ENVIRONMENT)]
pub struct Args {
    /// Where probes are answered
    #[arg(long, value_name = "ADDRESS", default_value = ":8081")]
    pub health_probe_bind_address: String,
    /// Where the metrics are served, without TLS; 0 for nowhere
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:8080")]
    pub metrics_bind_address: String,
    /// Let one of several replicas write, which holds a Lease
    #[arg(long, value_name = "BOOL", hide_possible_values = true, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    pub leader_elect: bool,
    /// Offer HTTP/2 at the webhook
    #[arg(long = "enable-http2", value_name = "BOOL", hide_possible_values = true, num_args = 0..=1, require_equals = true, default_value_t = false, default_missing_value = "true", action = ArgAction::Set)]
    pub enable_http2: bool,
    /// Directory with tls.crt and tls.key of the webhook; empty for k8s-webhook-server/serving-certs in the directory for
    /// temporary files
    #[arg(long, value_name = "DIR", default_value = "", hide_default_value = true)]
    pub certificates_dir: String,
    /// Namespace in the element of the default network
    #[arg(long, value_name = "NAMESPACE", default_value = names::DEFAULT_NETWORK_NAMESPACE)]
    pub default_network_nad_namespace: String,
    /// Lowest version of TLS, as Go calls it; empty for the lowest that is served
    #[arg(long, value_name = "VERSION", default_value = "VersionTLS13")]
    pub tls_min_version: String,
    /// Ciphers below TLS 1.3 by their names in Go, with commas between; none for all
    #[arg(long, value_name = "CIPHERS", default_value = "", hide_default_value = true)]
    pub tls_cipher_suites: String,
    /// Groups of the key exchange by their names in Go, with commas between; none for all
    #[arg(long, value_name = "CURVES", default_value = "", hide_default_value = true)]
    pub tls_curve_preferences: String,
    /// Kubeconfig file, outside a pod
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,

    #[command(flatten)]
    #[allow(missing_docs, reason = "the flags of klog")]
    pub log_flags: glog::Flags,
}

/// The last part of `weft kubevirt-ipam --help`.
const ENVIRONMENT: &str = "\
LOG_LEVEL is the log level if the flag -v is not set. From level 4 on, the log
explains decisions.";

/// The log explains decisions from this level on.
const VERBOSE: i32 = 4;

/// The environment variable with the log level is not a number.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
#[error("failed to set log level: strconv.ParseInt: parsing {0:?}: invalid syntax")]
pub struct InvalidLevel(String);

impl Args {
    /// The log filter. `level` is the value of the environment variable [`names::LOG_LEVEL`].
    ///
    /// # Errors
    /// If the variable is no number.
    pub fn log_level(&self, level: Option<&str>) -> Result<&'static str, InvalidLevel> {
        let level = match level {
            Some(text) => text.parse::<i32>().map_err(|_| InvalidLevel(text.to_owned()))?,
            None => 0,
        };
        let verbose = self.log_flags.level().unwrap_or(level) >= VERBOSE;
        Ok(if verbose { "debug" } else { "info" })
    }
}

/// Settings of the program.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Address of the webhook.
    pub webhook: Bind,
    /// Address of the probes.
    pub probes: Bind,
    /// Address of the metrics.
    pub metrics: Bind,
    /// Whether replicas elect a leader.
    pub elect: bool,
    /// Whether the webhook offers HTTP/2.
    pub http2: bool,
    /// Directory with `tls.crt` and `tls.key`.
    pub certificates: PathBuf,
    /// Namespace in the element of the default network.
    pub default_namespace: String,
    /// TLS versions, ciphers and groups.
    pub profile: Profile,
}

/// An invalid flag. The texts are upstream's.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum InvalidSettings {
    /// Unknown version of TLS.
    #[error("TLS version not found for {0:?}")]
    Version(String),
    /// Unknown cipher.
    #[error("unable to find cipher suite IDs: key not found {0}")]
    Cipher(String),
    /// Unknown group.
    #[error("unable to find curve preference IDs: key not found {0}")]
    Curve(String),
    /// The flag has no valid address.
    #[error(transparent)]
    Address(#[from] InvalidBind),
}

impl Settings {
    /// Reads flags.
    ///
    /// # Errors
    /// If a flag is invalid.
    pub fn read(args: &Args) -> Result<Self, InvalidSettings> {
        let Args {
            health_probe_bind_address,
            metrics_bind_address,
            leader_elect,
            enable_http2,
            certificates_dir,
            default_network_nad_namespace,
            tls_min_version,
            tls_cipher_suites,
            tls_curve_preferences,
            kubeconfig: _,
            log_flags: _,
        } = args;
        let certificates = if certificates_dir.is_empty() {
            std::env::temp_dir().join(names::CERTIFICATES)
        } else {
            PathBuf::from(certificates_dir)
        };
        Ok(Self {
            webhook: Bind::Everywhere(names::WEBHOOK_PORT),
            probes: health_probe_bind_address.parse()?,
            metrics: metrics_bind_address.parse()?,
            elect: *leader_elect,
            http2: *enable_http2,
            certificates,
            default_namespace: default_network_nad_namespace.clone(),
            profile: profile(tls_min_version, tls_cipher_suites, tls_curve_preferences)?,
        })
    }
}

/// Valid values of the flag.
const VERSIONS: [&str; 4] = ["VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionTLS13"];
/// Ciphers of TLS 1.3, which cannot be selected.
const ALWAYS: [&str; 3] = [
    "TLS_AES_128_GCM_SHA256",
    "TLS_AES_256_GCM_SHA384",
    "TLS_CHACHA20_POLY1305_SHA256",
];
/// Insecure ciphers that profiles may name, besides those with names in OpenSSL.
const LEGACY: [&str; 4] = [
    "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    "TLS_RSA_WITH_RC4_128_SHA",
];
/// Names of groups in Go, and at IANA.
const CURVES: [(&str, &str); 5] = [
    ("X25519", "X25519"),
    ("CurveP256", "secp256r1"),
    ("CurveP384", "secp384r1"),
    ("CurveP521", "secp521r1"),
    ("X25519MLKEM768", "X25519MLKEM768"),
];

/// Versions below 1.2 are served as 1.2. Unavailable ciphers are left out; if none remains, all are served.
fn profile(version: &str, ciphers: &str, curves: &str) -> Result<Profile, InvalidSettings> {
    if !version.is_empty() && !VERSIONS.contains(&version) {
        return Err(InvalidSettings::Version(version.to_owned()));
    }
    if VERSIONS[..2].contains(&version) {
        tracing::info!(version, "TLS below 1.2 is served as 1.2");
    }
    let (mut served, mut lacking) = (Vec::new(), Vec::new());
    for cipher in items(ciphers) {
        let name = ciphers::in_full(cipher);
        let known = ciphers::IANA_NAMES.iter().position(|(_, iana)| *iana == name);
        match known {
            Some(place) if place < ciphers::STRONG => served.push(name),
            Some(_) => lacking.push(name),
            None if LEGACY.contains(&name.as_str()) => lacking.push(name),
            None if ALWAYS.contains(&name.as_str()) => {}
            None => return Err(InvalidSettings::Cipher(cipher.to_owned())),
        }
    }
    if !lacking.is_empty() {
        tracing::info!(
            ciphers = lacking.join(","),
            "ciphers that are not served are left out"
        );
    }
    let group = |curve: &str| {
        let known = CURVES.iter().find(|(name, _)| *name == curve);
        known
            .map(|(_, iana)| *iana)
            .ok_or_else(|| InvalidSettings::Curve(curve.to_owned()))
    };
    let groups: Vec<_> = items(curves).map(group).collect::<Result<_, _>>()?;
    Ok(Profile::read(version, &served).narrowed(&[] as &[&str], &groups))
}

fn items(list: &str) -> impl Iterator<Item = &str> {
    list.split(',').map(str::trim).filter(|item| !item.is_empty())
}
