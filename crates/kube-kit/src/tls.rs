//! TLS of a server: its versions, ciphers and certificate, which can change while it runs.
//!
//! ```text
//! profile, identity ──> Tls ──> ServerConfig, created when one of them changes
//!                        ▲
//!        each handshake ─┘ uses the current one
//! ```

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use rustls::crypto::{CryptoProvider, aws_lc_rs};
use rustls::pki_types::pem::{self, PemObject};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::danger::ClientCertVerifier;
use rustls::server::{NoServerSessionStorage, ServerConfig, VerifierBuilderError, WebPkiClientVerifier};
use rustls::sign::{CertifiedKey, SingleCertAndKey};
use rustls::{CipherSuite, NamedGroup, ProtocolVersion, RootCertStore, SupportedCipherSuite, version};
use thiserror::Error;

use crate::lock;

pub mod ciphers;
pub mod files;

#[cfg(test)]
mod tests;

/// Protocols in the form of ALPN.
const HTTP_1: &[u8] = b"http/1.1";
pub(crate) const HTTP_2: &[u8] = b"h2";

/// Validity of a self-signed certificate. Clients do not verify it, so its expiry must never stop a server.
const VALIDITY: Duration = Duration::from_hours(24 * 365 * 10);
/// Tolerated clock skew of clients.
const CLOCK_SKEW: Duration = Duration::from_hours(24);

/// An invalid certificate, key or setting.
#[derive(Debug, Error)]
pub enum Error {
    /// The certificate cannot be created.
    #[error("cannot create a certificate")]
    Make(#[from] rcgen::Error),
    /// A certificate or a key is not valid PEM.
    #[error("cannot read the {what} as PEM")]
    Pem {
        /// `certificate` or `key`.
        what: &'static str,
        /// The cause.
        #[source]
        source: pem::Error,
    },
    /// A certificate of a certificate authority is invalid.
    #[error("cannot use a certificate of the certificate authorities")]
    Authority(#[source] rustls::Error),
    /// The certificate authorities cannot verify clients.
    #[error("cannot use the certificates of the certificate authorities")]
    Authorities(#[from] VerifierBuilderError),
    /// Certificate and key are invalid, or do not match.
    #[error("cannot use the certificate and its key")]
    Use(#[from] rustls::Error),
}

/// Versions and ciphers of a server. The default is TLS 1.3 alone.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Profile {
    /// Ciphers of TLS 1.2, best first; if empty, only TLS 1.3 is served.
    tls12: Vec<SupportedCipherSuite>,
    /// Ciphers of TLS 1.3; if empty, all supported ones.
    tls13: Vec<SupportedCipherSuite>,
    /// Groups of the key exchange, best first; if empty, all supported ones in the library's order.
    groups: Vec<NamedGroup>,
    /// Configured ciphers that are not supported.
    lacking: Vec<String>,
}

impl Profile {
    /// Parses a minimum version such as `VersionTLS12`, and ciphers below TLS 1.3 by their IANA names, best first.
    /// Without ciphers, all supported ones are served. A version below 1.2, or an unknown one, counts as 1.2.
    /// Unsupported ciphers are ignored; if none remains, only TLS 1.3 is served, with all its ciphers.
    pub fn read(min_version: &str, ciphers: &[impl AsRef<str>]) -> Self {
        let ours = || {
            aws_lc_rs::ALL_CIPHER_SUITES
                .iter()
                .filter(|suite| is_tls12(suite))
        };
        let mut profile = Self::default();
        if min_version == "VersionTLS13" {
            return profile;
        }
        if ciphers.is_empty() {
            profile.tls12.extend(ours());
        }
        for cipher in ciphers.iter().map(AsRef::as_ref) {
            match ours().find(|suite| suite.suite().as_str() == Some(cipher)) {
                Some(suite) if profile.tls12.contains(suite) => {}
                Some(suite) => profile.tls12.push(*suite),
                None => profile.lacking.push(cipher.to_owned()),
            }
        }
        profile
    }

    /// Restricts the profile to these ciphers of TLS 1.3 and these groups of the key exchange, both by IANA names, the
    /// groups best first. Unsupported ones are ignored; if none remains, all stay.
    #[must_use]
    pub fn narrowed(mut self, ciphers: &[impl AsRef<str>], groups: &[impl AsRef<str>]) -> Self {
        let asked = |suite: &&SupportedCipherSuite| {
            // The library has other names for them.
            let name = suite.suite().as_str().unwrap_or_default();
            let name = name.replace("TLS13_", "TLS_");
            ciphers.iter().any(|cipher| cipher.as_ref() == name)
        };
        self.tls13 = tls13().filter(asked).copied().collect();
        let known = aws_lc_rs::default_provider().kx_groups;
        let find = |group: &str| known.iter().find(|it| it.name().as_str() == Some(group));
        self.groups = groups
            .iter()
            .filter_map(|group| find(group.as_ref()))
            .map(|group| group.name())
            .collect();
        self
    }

    /// The crypto provider with the chosen ciphers and groups.
    fn provider(&self) -> CryptoProvider {
        let mut provider = aws_lc_rs::default_provider();
        let mut suites: Vec<_> = self.tls13.clone();
        if suites.is_empty() {
            suites.extend(tls13());
        }
        suites.extend(&self.tls12);
        provider.cipher_suites = suites;
        if !self.groups.is_empty() {
            let known = std::mem::take(&mut provider.kx_groups);
            let find = |name: &NamedGroup| known.iter().copied().find(|group| group.name() == *name);
            provider.kx_groups = self.groups.iter().filter_map(find).collect();
        }
        provider
    }
}

fn tls13() -> impl Iterator<Item = &'static SupportedCipherSuite> {
    aws_lc_rs::ALL_CIPHER_SUITES
        .iter()
        .filter(|suite| !is_tls12(suite))
}

fn is_tls12(suite: &SupportedCipherSuite) -> bool {
    suite.version().version == ProtocolVersion::TLSv1_2
}

/// DNS names of a Service in its cluster.
pub fn service_names(service: &str, namespace: &str) -> Vec<String> {
    vec![
        format!("{service}.{namespace}.svc"),
        format!("{service}.{namespace}.svc.cluster.local"),
        format!("{service}.{namespace}"),
        service.to_owned(),
    ]
}

/// The certificate of a server, with its key.
#[derive(Clone)]
pub struct Identity(Arc<CertifiedKey>);

impl fmt::Debug for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Identity")
            .field("certificates", &self.0.cert.len())
            .finish_non_exhaustive()
    }
}

impl Identity {
    /// A new key with a self-signed certificate for these DNS names; the first one is its common name. Valid for ten
    /// years.
    ///
    /// # Errors
    /// If a name is not a valid DNS name.
    pub fn self_signed(names: &[String]) -> Result<Self, Error> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new(names)?;
        if let Some(name) = names.first() {
            params.distinguished_name.push(DnType::CommonName, name);
        }
        let now = SystemTime::now();
        params.not_before = (now - CLOCK_SKEW).into();
        params.not_after = (now + VALIDITY).into();
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        let certificate = params.self_signed(&key)?;
        Self::new(
            vec![certificate.into()],
            PrivateKeyDer::Pkcs8(key.serialize_der().into()),
        )
    }

    /// A certificate chain and its key as PEM, the content of a Secret of type `kubernetes.io/tls`.
    ///
    /// # Errors
    /// If one of them is invalid, or they do not match.
    pub fn from_pem(certificates: &[u8], key: &[u8]) -> Result<Self, Error> {
        let cannot_read = |what| move |source| Error::Pem { what, source };
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(certificates).collect();
        let chain = chain.map_err(cannot_read("certificate"))?;
        if chain.is_empty() {
            return Err(cannot_read("certificate")(pem::Error::NoItemsFound));
        }
        let key = PrivateKeyDer::from_pem_slice(key).map_err(cannot_read("key"))?;
        Self::new(chain, key)
    }

    /// The certificate itself.
    #[cfg(test)]
    pub(crate) fn certificate(&self) -> &CertificateDer<'static> {
        &self.0.cert[0]
    }

    fn new(chain: Vec<CertificateDer<'static>>, key: PrivateKeyDer<'static>) -> Result<Self, Error> {
        let provider = aws_lc_rs::default_provider();
        Ok(Self(Arc::new(CertifiedKey::from_der(chain, key, &provider)?)))
    }
}

/// The certificate authorities of a server's clients.
#[derive(Debug, Clone)]
pub struct Authorities(Arc<dyn ClientCertVerifier>);

impl Authorities {
    /// Parses certificates of certificate authorities as PEM. Clients without a certificate are accepted, for probes; a
    /// certificate of another authority fails the handshake.
    ///
    /// # Errors
    /// If there is no certificate, or one is invalid.
    pub fn from_pem(certificates: &[u8]) -> Result<Self, Error> {
        let what = "certificates of the certificate authorities";
        let cannot_read = |source| Error::Pem { what, source };
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(certificates) {
            let certificate = certificate.map_err(cannot_read)?;
            roots.add(certificate).map_err(Error::Authority)?;
        }
        let provider = Arc::new(aws_lc_rs::default_provider());
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
            .allow_unauthenticated()
            .build()?;
        Ok(Self(verifier))
    }
}

/// The common name of a certificate.
pub(crate) fn common_name(certificate: &CertificateDer<'_>) -> Option<String> {
    let (_, certificate) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let name = certificate.subject().iter_common_name().next()?;
    name.as_str().ok().map(str::to_owned)
}

/// The TLS settings of a server. Clones share them. A change takes effect with the next handshake, and does not affect
/// open connections.
#[derive(Debug, Clone)]
pub struct Tls(Arc<Mutex<Settings>>);

#[derive(Debug)]
struct Settings {
    http2: bool,
    profile: Profile,
    identity: Identity,
    authorities: Option<Authorities>,
    config: Arc<ServerConfig>,
}

impl Tls {
    /// Settings with the default profile: TLS 1.3 alone.
    ///
    /// # Errors
    /// If the settings are invalid.
    pub fn new(identity: Identity) -> Result<Self, Error> {
        Self::speaking(identity, false)
    }

    /// Like [`Tls::new`], for a server that offers HTTP/2 besides HTTP/1.1.
    ///
    /// # Errors
    /// If the settings are invalid.
    pub fn with_http2(identity: Identity) -> Result<Self, Error> {
        Self::speaking(identity, true)
    }

    fn speaking(identity: Identity, http2: bool) -> Result<Self, Error> {
        let profile = Profile::default();
        let config = config(http2, &profile, &identity, None)?;
        Ok(Self(Arc::new(Mutex::new(Settings {
            http2,
            profile,
            identity,
            authorities: None,
            config,
        }))))
    }

    /// Requests certificates of these certificate authorities from clients.
    ///
    /// # Errors
    /// If the settings would be invalid; they stay unchanged.
    pub fn set_authorities(&self, authorities: Authorities) -> Result<(), Error> {
        let mut settings = lock(&self.0);
        let Settings {
            http2,
            profile,
            identity,
            ..
        } = &*settings;
        settings.config = config(*http2, profile, identity, Some(&authorities))?;
        settings.authorities = Some(authorities);
        Ok(())
    }

    /// Sets versions and ciphers. Logs unsupported ciphers once per change.
    ///
    /// # Errors
    /// If the settings would be invalid; they stay unchanged.
    pub fn set_profile(&self, profile: Profile) -> Result<(), Error> {
        let mut settings = lock(&self.0);
        if settings.profile == profile {
            return Ok(());
        }
        settings.config = config(
            settings.http2,
            &profile,
            &settings.identity,
            settings.authorities.as_ref(),
        )?;
        let ciphers: Vec<_> = profile.tls12.iter().map(SupportedCipherSuite::suite).collect();
        tracing::info!(
            tls12 = names(&ciphers),
            lacking = profile.lacking.join(","),
            "TLS profile"
        );
        settings.profile = profile;
        Ok(())
    }

    /// Sets the certificate.
    ///
    /// # Errors
    /// If the settings would be invalid; they stay unchanged.
    pub fn set_identity(&self, identity: Identity) -> Result<(), Error> {
        let mut settings = lock(&self.0);
        settings.config = config(
            settings.http2,
            &settings.profile,
            &identity,
            settings.authorities.as_ref(),
        )?;
        settings.identity = identity;
        Ok(())
    }

    /// The configuration of the next handshake.
    pub(crate) fn config(&self) -> Arc<ServerConfig> {
        Arc::clone(&lock(&self.0).config)
    }
}

fn names(ciphers: &[CipherSuite]) -> String {
    let names: Vec<_> = ciphers.iter().filter_map(CipherSuite::as_str).collect();
    names.join(",")
}

fn config(
    http2: bool,
    profile: &Profile,
    identity: &Identity,
    authorities: Option<&Authorities>,
) -> Result<Arc<ServerConfig>, Error> {
    let versions: &[_] = if profile.tls12.is_empty() {
        &[&version::TLS13]
    } else {
        &[&version::TLS13, &version::TLS12]
    };
    let builder =
        ServerConfig::builder_with_provider(Arc::new(profile.provider())).with_protocol_versions(versions)?;
    let builder = match authorities {
        Some(Authorities(verifier)) => builder.with_client_cert_verifier(Arc::clone(verifier)),
        None => builder.with_no_client_auth(),
    };
    let mut config = builder.with_cert_resolver(Arc::new(SingleCertAndKey::from(Arc::clone(&identity.0))));
    let offered: &[_] = if http2 { &[HTTP_2, HTTP_1] } else { &[HTTP_1] };
    config.alpn_protocols = offered.iter().map(|protocol| protocol.to_vec()).collect();
    config.ignore_client_order = true;
    // Clients keep their connections; resumable sessions would outlive a change of the settings, and need memory.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}
