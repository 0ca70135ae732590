//! The authorities that the cluster trusts, and `ConfigMaps` of others that get them (§15.1, §15.2).
//!
//! ```text
//! ConfigMap of the user ──┐
//!                         ├─ merge ──> trusted-ca-bundle ── injection ──> ConfigMaps with the label
//! bundle of the system ───┘
//! ```

use rustls::pki_types::pem::{PemObject as _, SectionKind};
use sha2::{Digest as _, Sha256};
use x509_parser::prelude::{FromDer as _, X509Certificate};

pub mod controller;
#[cfg(test)]
mod tests;

/// Key of the bundle in `ConfigMaps`.
pub const BUNDLE: &str = "ca-bundle.crt";
/// Label of `ConfigMaps` that get the bundle, when it is `true`.
pub const INJECT: &str = "config.openshift.io/inject-trusted-cabundle";
/// Annotation that says who owns the content.
pub const OWNING_COMPONENT: &str = "openshift.io/owning-component";
/// Its value where nobody else has set one.
pub const COMPONENT: &str = "Networking / cluster-network-operator";

/// A bundle is none.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Invalid {
    /// There is no PEM block.
    #[error("no certificates found")]
    Empty,
    /// A PEM block is broken.
    #[error("malformed PEM: {0}")]
    Pem(String),
    /// A PEM block is something else.
    #[error("PEM block {0} is no certificate")]
    NoCertificate(usize),
    /// A certificate can't be read.
    #[error("certificate {0} is malformed")]
    Certificate(usize),
}

/// Checks that a bundle has certificates, and nothing else in PEM. Comments between them are fine.
///
/// # Errors
/// Which block is wrong, counted from 1.
pub fn check(bundle: &str) -> Result<(), Invalid> {
    let mut count = 0;
    for block in <(SectionKind, Vec<u8>)>::pem_slice_iter(bundle.as_bytes()) {
        count += 1;
        let (kind, der) = block.map_err(|error| Invalid::Pem(error.to_string()))?;
        if kind != SectionKind::Certificate {
            return Err(Invalid::NoCertificate(count));
        }
        X509Certificate::from_der(&der).map_err(|_| Invalid::Certificate(count))?;
    }
    // Blocks of unknown kinds are passed over by the library.
    let begun = bundle.matches("-----BEGIN ").count();
    match (count, begun) {
        (0, 0) => Err(Invalid::Empty),
        (count, begun) if count < begun => Err(Invalid::NoCertificate(begun)),
        _ => Ok(()),
    }
}

/// The bundle of the cluster: what the user trusts, and what the system does.
///
/// # Errors
/// When the user's bundle is none. That of the system is not the user's concern.
pub fn merge(user: Option<&str>, system: &str) -> Result<String, Invalid> {
    match user {
        None => Ok(system.to_owned()),
        Some(user) => {
            check(user)?;
            if system.is_empty() {
                return Ok(user.to_owned());
            }
            Ok(format!("{user}\n{system}"))
        }
    }
}

/// Tells bundles apart.
pub type Digest = [u8; 32];

/// The digest of a bundle.
pub fn digest(bundle: &str) -> Digest {
    Sha256::digest(bundle).into()
}

/// What is known of a `ConfigMap` that wants the bundle.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Wanting {
    /// Digest of its bundle: bundles are large, and there are many `ConfigMaps`.
    pub bundle: Option<Digest>,
    /// Who owns the content; empty if nobody says.
    pub component: String,
}

/// What to apply to a `ConfigMap`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Injection {
    /// Whether the owner is set as well.
    pub sets_component: bool,
}

/// What to apply to a `ConfigMap`, so that it has the bundle. Nothing if it has.
pub fn injection(wanting: &Wanting, bundle: &Digest) -> Option<Injection> {
    let sets_component = wanting.component.is_empty();
    let differs = wanting.bundle.as_ref() != Some(bundle);
    // What was set once must be applied again with each change, or it is taken away.
    let is_ours = wanting.component == COMPONENT;
    (differs || sets_component).then_some(Injection {
        sets_component: sets_component || is_ours,
    })
}
