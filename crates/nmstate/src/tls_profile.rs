//! Maps the TLS profile of an OpenShift cluster to the settings of our servers (nmstate §10.6).
//!
//! ```text
//! operator:  APIServer spec.tlsSecurityProfile ──> parse ──> Profile ──> ConfigMap, profile.json
//! webhook, metrics:                 profile.json ──> Profile::from_json ──> settings ──> kube_kit::tls
//! ```
//!
//! With every profile, our servers offer no TLS below 1.2 and no cipher without forward secrecy and
//! authenticated encryption; such entries are dropped silently. Unknown or unsupported entries are dropped and
//! reported.

use std::fs;

use anyhow::Context as _;
use kube_kit::tls;
use kube_kit::tls::ciphers::{IANA_NAMES, STRONG, in_full};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;
use thiserror::Error;

#[cfg(test)]
mod tests;

/// A profile cannot be used, and the servers do not start.
#[derive(Clone, Debug, Eq, Error, PartialEq)]
pub(crate) enum InvalidProfile {
    /// Unknown type of profile.
    #[error("unknown TLS profile type {0:?}")]
    Type(String),
    /// Type Custom without settings.
    #[error("TLS profile of type Custom without custom settings")]
    NoCustom,
    /// A field has another form than its kind prescribes.
    #[error("malformed TLS profile: {0}")]
    Malformed(String),
    /// Unknown TLS version.
    #[error("unknown TLS version {0:?}")]
    Version(String),
    /// None of the ciphers is supported.
    #[error("the TLS profile names ciphers, but none that is supported: {0}")]
    Ciphers(String),
    /// None of the groups is supported.
    #[error("the TLS profile names curves, but none that is supported: {0}")]
    Curves(String),
}

/// A profile in OpenShift's terms: the operator writes it, and the servers read it.
#[derive(Clone, Debug, Default, Deserialize, Eq, PartialEq, Serialize)]
pub(crate) struct Profile {
    /// Ciphers by OpenSSL's or IANA's names, best first; empty for all.
    #[serde(default, deserialize_with = "or_default")]
    pub ciphers: Vec<String>,
    /// The lowest version, such as `VersionTLS12`; empty for 1.2.
    #[serde(default, rename = "minTLSVersion", deserialize_with = "or_default")]
    pub min_version: String,
    /// Groups of the key exchange, best first; empty for all.
    #[serde(
        default,
        deserialize_with = "or_default",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub curves: Vec<String>,
}

/// The settings that follow from a profile.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settings {
    /// Settings of the servers.
    pub tls: tls::Profile,
    /// Dropped entries of the profile, for people.
    pub ignored: Option<String>,
}

fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Option::deserialize(deserializer).map(Option::unwrap_or_default)
}

/// Reads `spec.tlsSecurityProfile` of the cluster's `APIServer`. The default is Intermediate.
///
/// # Errors
/// If the type is unknown, or the settings of a Custom profile are missing or malformed.
pub(crate) fn parse(profile: Option<&Value>) -> Result<Profile, InvalidProfile> {
    let Some(profile) = profile.filter(|profile| !profile.is_null()) else {
        return Ok(intermediate());
    };
    if !profile.is_object() {
        return Err(InvalidProfile::Malformed("not an object".to_owned()));
    }
    let kind = match profile.get("type") {
        None | Some(Value::Null) => "",
        Some(Value::String(kind)) => kind,
        Some(_) => return Err(InvalidProfile::Malformed("type is not a string".to_owned())),
    };
    match kind {
        "" | "Intermediate" => Ok(intermediate()),
        "Old" => Ok(Profile::of("VersionTLS10", &[&TLS_1_3, &IANA_NAMES])),
        "Modern" => Ok(Profile::of("VersionTLS13", &[&TLS_1_3])),
        "Custom" => match profile.get("custom") {
            None | Some(Value::Null) => Err(InvalidProfile::NoCustom),
            Some(custom) => {
                Profile::deserialize(custom).map_err(|error| InvalidProfile::Malformed(error.to_string()))
            }
        },
        other => Err(InvalidProfile::Type(other.to_owned())),
    }
}

/// The settings of our servers: from the file with the profile on OpenShift, TLS 1.2 and later elsewhere.
///
/// # Errors
/// If the file is missing or unusable: no server is better than one that offers refused settings.
pub(crate) fn of_servers(is_openshift: Option<&str>, file: &str) -> anyhow::Result<tls::Profile> {
    if is_openshift != Some("true") {
        return Ok(tls::Profile::read("VersionTLS12", &[""; 0]));
    }
    let text = fs::read_to_string(file).with_context(|| format!("cannot read the TLS profile {file}"))?;
    let settings = Profile::from_json(&text).and_then(|profile| profile.settings());
    let settings = settings.with_context(|| format!("cannot use the TLS profile {file}"))?;
    if let Some(ignored) = settings.ignored {
        tracing::warn!(file, ignored, "TLS profile");
    }
    Ok(settings.tls)
}

fn intermediate() -> Profile {
    Profile::of("VersionTLS12", &[&TLS_1_3, &IANA_NAMES[..STRONG]])
}

impl Profile {
    fn of(min_version: &str, ciphers: &[&[(&str, &str)]]) -> Self {
        let names = ciphers.iter().copied().flatten();
        Self {
            ciphers: names.map(|(openssl, _)| (*openssl).to_owned()).collect(),
            min_version: min_version.to_owned(),
            curves: Vec::new(),
        }
    }

    /// Parses the output of [`Profile::to_json`].
    ///
    /// # Errors
    /// If it is malformed.
    pub(crate) fn from_json(text: &str) -> Result<Self, InvalidProfile> {
        serde_json::from_str(text).map_err(|error| InvalidProfile::Malformed(error.to_string()))
    }

    /// The profile for the servers: `{"ciphers":[…],"minTLSVersion":"…"}`, with `curves` if there are any.
    pub(crate) fn to_json(&self) -> String {
        // Strings can always be serialized.
        serde_json::to_string(self).unwrap_or_default()
    }

    /// The settings that follow from the profile.
    ///
    /// # Errors
    /// If none of the ciphers or groups is supported, or the version is unknown.
    pub(crate) fn settings(&self) -> Result<Settings, InvalidProfile> {
        let below_1_3 = match self.min_version.as_str() {
            "" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12" => true,
            "VersionTLS13" => false,
            other => return Err(InvalidProfile::Version(other.to_owned())),
        };
        let mut tls13 = Vec::new();
        let mut tls12 = Vec::new();
        let mut unknown_ciphers = Vec::new();
        let (strong, weak) = IANA_NAMES.split_at(STRONG);
        for cipher in &self.ciphers {
            let name = in_full(cipher);
            let known = |table: &[(&str, &'static str)]| {
                let mut entries = table.iter();
                entries.find_map(|(openssl, iana)| (name == *openssl || name == *iana).then_some(*iana))
            };
            if let Some(iana) = known(&TLS_1_3) {
                tls13.push(iana);
            } else if let Some(iana) = known(strong) {
                tls12.push(iana);
            } else if known(weak).is_none() {
                unknown_ciphers.push(cipher.as_str());
            }
        }
        if below_1_3 && !self.ciphers.is_empty() && tls13.is_empty() && tls12.is_empty() {
            return Err(InvalidProfile::Ciphers(self.ciphers.join(", ")));
        }
        let mut groups = Vec::new();
        let mut unknown_curves = Vec::new();
        for curve in &self.curves {
            match GROUPS.iter().find(|(name, _)| curve == name) {
                Some((_, iana)) => groups.push(*iana),
                None => unknown_curves.push(curve.as_str()),
            }
        }
        if groups.is_empty() && !self.curves.is_empty() {
            return Err(InvalidProfile::Curves(self.curves.join(", ")));
        }
        // With ciphers of TLS 1.3 alone, lower versions have none.
        let alone = !below_1_3 || (tls12.is_empty() && !self.ciphers.is_empty());
        let min_version = if alone { "VersionTLS13" } else { "VersionTLS12" };
        Ok(Settings {
            tls: tls::Profile::read(min_version, &tls12).narrowed(&tls13, &groups),
            ignored: ignored(&unknown_ciphers, &unknown_curves),
        })
    }
}

fn ignored(ciphers: &[&str], curves: &[&str]) -> Option<String> {
    let part = |what: &str, names: &[&str]| {
        (!names.is_empty()).then(|| format!("unsupported {what} ignored: {}", names.join(", ")))
    };
    let parts: Vec<_> = [part("ciphers", ciphers), part("curves", curves)]
        .into_iter()
        .flatten()
        .collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}

/// Ciphers of TLS 1.3, whose names are the same at OpenSSL and IANA.
const TLS_1_3: [(&str, &str); 3] = [
    ("TLS_AES_128_GCM_SHA256", "TLS_AES_128_GCM_SHA256"),
    ("TLS_AES_256_GCM_SHA384", "TLS_AES_256_GCM_SHA384"),
    ("TLS_CHACHA20_POLY1305_SHA256", "TLS_CHACHA20_POLY1305_SHA256"),
];

/// Supported groups of the key exchange, by the names of IANA, OpenSSL and NIST.
const GROUPS: [(&str, &str); 8] = [
    ("X25519MLKEM768", "X25519MLKEM768"),
    ("X25519", "X25519"),
    ("x25519", "X25519"),
    ("secp256r1", "secp256r1"),
    ("prime256v1", "secp256r1"),
    ("P-256", "secp256r1"),
    ("secp384r1", "secp384r1"),
    ("P-384", "secp384r1"),
];
