//! The certificate authorities that the cluster trusts, and their injection into labelled `ConfigMap`s (§15.1, §15.2).
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
/// Label of `ConfigMaps` that get the bundle, with the value `true`.
pub const INJECT: &str = "config.openshift.io/inject-trusted-cabundle";
/// Annotation with the owner of the content.
pub const OWNING_COMPONENT: &str = "openshift.io/owning-component";
/// Annotation of the bundle with the name of the user's `ConfigMap` that it contains. Empty if the user's
/// authorities were the only ones, and the user withdrew them.
pub const USER_BUNDLE: &str = "networkoperator.openshift.io/user-bundle";
/// Default value of [`OWNING_COMPONENT`].
pub const COMPONENT: &str = "Networking / cluster-network-operator";

/// The bundle is invalid.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum Invalid {
    /// The bundle has no PEM block.
    #[error("no certificates found")]
    Empty,
    /// A PEM block is malformed.
    #[error("malformed PEM: {0}")]
    Pem(String),
    /// A PEM block is not a certificate.
    #[error("PEM block {0} is no certificate")]
    NoCertificate(usize),
    /// A certificate is malformed.
    #[error("certificate {0} is malformed")]
    Certificate(usize),
}

/// Validates a bundle: at least one PEM block, and only certificates. Comments between blocks are allowed.
///
/// # Errors
/// The first invalid block, counted from 1.
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
    // The library skips blocks of unknown kinds.
    let begun = bundle.matches("-----BEGIN ").count();
    match (count, begun) {
        (0, 0) => Err(Invalid::Empty),
        (count, begun) if count < begun => Err(Invalid::NoCertificate(begun)),
        _ => Ok(()),
    }
}

/// The bundle of the cluster: the user's bundle, followed by the system's bundle.
///
/// # Errors
/// If the user's bundle is invalid. The system's bundle is not validated, because users cannot correct it.
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

/// Digest of a bundle, to compare bundles.
pub type Digest = [u8; 32];

/// Computes the digest of a bundle.
pub fn digest(bundle: &str) -> Digest {
    Sha256::digest(bundle).into()
}

/// The bundle of the cluster, as it is stored.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Merged {
    /// Digest of the bundle.
    pub bundle: Option<Digest>,
    /// Value of [`USER_BUNDLE`].
    pub user: Option<String>,
}

impl Merged {
    /// The state to store. `None` leaves the bundle as it is: neither the user nor the system has one, and the present
    /// one is not the user's. It may be that of another operator.
    pub fn wanted(&self, user: &str, bundle: &str) -> Option<Self> {
        let user = if !user.is_empty() {
            Some(user.to_owned())
        } else if !bundle.is_empty() {
            None
        } else {
            self.user.as_ref()?;
            Some(String::new())
        };
        Some(Self {
            bundle: Some(digest(bundle)),
            user,
        })
    }
}

/// Observed state of a `ConfigMap` with the label.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Wanting {
    /// UID of the `ConfigMap`.
    pub uid: String,
    /// Digest of the bundle. The digest saves memory: bundles are large, and clusters have many such `ConfigMaps`.
    pub bundle: Option<Digest>,
    /// Owner of the content. Empty without an owner.
    pub component: String,
}

/// Change to a `ConfigMap`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Injection {
    /// UID of the `ConfigMap`.
    pub uid: String,
    /// True if the change sets the owner.
    pub sets_component: bool,
}

/// The change that gives a `ConfigMap` the bundle. `None` for a `ConfigMap` with the bundle and an owner.
pub fn injection(wanting: &Wanting, bundle: &Digest) -> Option<Injection> {
    let sets_component = wanting.component.is_empty();
    let differs = wanting.bundle.as_ref() != Some(bundle);
    // Server-side apply removes an omitted field: each change has to repeat the owner that the operator set.
    let is_ours = wanting.component == COMPONENT;
    (differs || sets_component).then(|| Injection {
        uid: wanting.uid.clone(),
        sets_component: sets_component || is_ours,
    })
}
