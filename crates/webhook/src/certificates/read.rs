//! Reads certificates and keys, and verifies them like TLS clients.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rustls::{
    RootCertStore,
    client::{WebPkiServerVerifier, danger::ServerCertVerifier},
    crypto::{CryptoProvider, aws_lc_rs},
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
    sign::CertifiedKey,
};
use x509_parser::{certificate::X509Certificate, prelude::FromDer, time::ASN1Time};

use super::Pair;

/// A parsed certificate.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct Certificate {
    pub(super) der: CertificateDer<'static>,
    pub(super) not_before: SystemTime,
    pub(super) not_after: SystemTime,
    /// Whether it may sign certificates.
    is_authority: bool,
}

impl Certificate {
    fn read(der: CertificateDer<'static>) -> Option<Self> {
        let (_, parsed) = X509Certificate::from_der(&der).ok()?;
        let constrained = parsed.basic_constraints().ok()?;
        let usage = parsed.key_usage().ok()?;
        let is_authority = constrained.is_some_and(|constraints| constraints.value.ca)
            && usage.is_none_or(|usage| usage.value.key_cert_sign());
        Some(Self {
            not_before: system_time(parsed.validity().not_before),
            not_after: system_time(parsed.validity().not_after),
            is_authority,
            der,
        })
    }

    /// Both limits are inclusive.
    pub(super) fn is_valid_at(&self, now: SystemTime) -> bool {
        self.not_before <= now && !self.is_expired_at(now)
    }

    pub(super) fn is_expired_at(&self, now: SystemTime) -> bool {
        self.not_after < now
    }

    /// When to renew it, if it is usable until then: earlier by the overlap, but not in the first fifth of its
    /// lifetime. Otherwise an overlap of the whole lifetime would renew it all the time.
    pub(super) fn renewal(&self, until: SystemTime, overlap: Duration) -> SystemTime {
        let wanted = until.checked_sub(overlap).unwrap_or(UNIX_EPOCH);
        wanted.max(self.not_before + self.early(until))
    }

    /// Whether it is in the first fifth of its lifetime.
    pub(super) fn is_fresh_at(&self, now: SystemTime) -> bool {
        now < self.not_before + self.early(self.not_after)
    }

    fn early(&self, until: SystemTime) -> Duration {
        until.duration_since(self.not_before).unwrap_or_default() / 5
    }
}

/// Times before 1970 become 1970.
fn system_time(time: ASN1Time) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(u64::try_from(time.timestamp()).unwrap_or_default())
}

/// The certificates in a PEM; unreadable ones are skipped.
pub(super) fn certificates(pem: &[u8]) -> Vec<Certificate> {
    CertificateDer::pem_slice_iter(pem)
        .filter_map(Result::ok)
        .filter_map(Certificate::read)
        .collect()
}

/// The CA with this certificate and key, if it can sign at this time.
pub(super) fn authority(pair: &Pair, now: SystemTime) -> Option<Certificate> {
    let certificate = with_key(pair)?.into_iter().next()?;
    (certificate.is_authority && certificate.is_valid_at(now)).then_some(certificate)
}

/// A server's certificates, if the key matches the first one.
pub(super) fn with_key(pair: &Pair) -> Option<Vec<Certificate>> {
    let certificates = certificates(&pair.certificate);
    let chain: Vec<_> = certificates
        .iter()
        .map(|certificate| certificate.der.clone())
        .collect();
    let key = private_key(&pair.key)?;
    CertifiedKey::from_der(chain, key, &provider()).ok()?;
    Some(certificates)
}

/// A private key in PKCS#1, PKCS#8 or SEC 1.
pub(super) fn private_key(pem: &[u8]) -> Option<PrivateKeyDer<'static>> {
    PrivateKeyDer::from_pem_slice(pem).ok()
}

/// Until when a client with these roots accepts the server's certificates for this host name; `None` if it does not
/// now.
pub(super) fn trusted_until(
    chain: &[Certificate],
    roots: &[Certificate],
    host: &str,
    now: SystemTime,
) -> Option<SystemTime> {
    let (first, rest) = chain.split_first()?;
    let rest: Vec<_> = rest.iter().map(|certificate| certificate.der.clone()).collect();
    let host = ServerName::try_from(host.to_owned()).ok()?;
    let since_1970 = now.duration_since(UNIX_EPOCH).ok()?;
    let trusts = |root: &&Certificate| {
        let mut store = RootCertStore::empty();
        if store.add(root.der.clone()).is_err() {
            return false;
        }
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider()).build();
        verifier.is_ok_and(|verifier| {
            verifier
                .verify_server_cert(
                    &first.der,
                    &rest,
                    &host,
                    &[],
                    UnixTime::since_unix_epoch(since_1970),
                )
                .is_ok()
        })
    };
    // Clients such as the API server check the dates of the root too.
    let roots = roots.iter().filter(|root| root.is_valid_at(now));
    let end = roots.filter(trusts).map(|root| root.not_after).max()?;
    Some(end.min(first.not_after))
}

fn provider() -> Arc<CryptoProvider> {
    Arc::new(aws_lc_rs::default_provider())
}
