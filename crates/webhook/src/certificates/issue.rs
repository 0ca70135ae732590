//! Issues certificates.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_RSA_SHA256, RsaKeySize, SanType,
};
use rustls::pki_types::CertificateDer;
use x509_parser::{asn1_rs::nom::Finish as _, der_parser::der::parse_der, time::ASN1Time};

use super::{Identity, Intervals, Pair, bundle::pem, read};

/// Certificates are valid from a little earlier, for clients whose clock is late.
const LATE: Duration = Duration::from_mins(5);

/// Certificates could not be issued.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the texts document the variants")]
pub enum Error {
    #[error("cannot issue a certificate: {0}")]
    Library(#[from] rcgen::Error),
    #[error("cannot issue a certificate: the CA is unusable")]
    NoAuthority,
    #[error("cannot issue a certificate: a time is out of range")]
    Time,
    #[error("cannot issue a certificate: the new key cannot be encoded")]
    Key,
    /// The process ends, or the library panicked.
    #[error("cannot issue a certificate: no key was made: {0}")]
    Interrupted(#[from] tokio::task::JoinError),
}

/// A new RSA 2048 key, which every TLS profile and every reader of the Secrets supports.
pub(super) fn new_key() -> Result<KeyPair, Error> {
    Ok(KeyPair::generate_rsa_for(&PKCS_RSA_SHA256, RsaKeySize::_2048)?)
}

/// A new CA with this key.
pub(super) fn authority(
    key: &KeyPair,
    identity: &Identity,
    intervals: &Intervals,
    now: SystemTime,
) -> Result<Pair, Error> {
    authority_of(key, &identity.authority, intervals.ca_life(), now)
}

/// A new CA with this name and key.
pub(super) fn authority_of(
    key: &KeyPair,
    common_name: &str,
    life: Duration,
    now: SystemTime,
) -> Result<Pair, Error> {
    let mut parameters = parameters(common_name, now - early(life), now + life)?;
    parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    parameters.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
        KeyUsagePurpose::KeyCertSign,
    ];
    pair(parameters.self_signed(key)?.der(), key)
}

/// A new server certificate with this key, signed by the CA. It expires no later than the CA.
pub(super) fn serving(
    key: &KeyPair,
    authority: &Pair,
    identity: &Identity,
    intervals: &Intervals,
    now: SystemTime,
) -> Result<Pair, Error> {
    let hosts = CertificateParams::new(identity.hosts())?.subject_alt_names;
    let usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let life = (intervals.cert_life(), now);
    signed(key, authority, &identity.common_name(), hosts, usages, life)
}

/// A new certificate with this key, signed by the CA. It expires no later than the CA.
pub(super) fn signed(
    key: &KeyPair,
    authority: &Pair,
    common_name: &str,
    hosts: Vec<SanType>,
    usages: Vec<ExtendedKeyUsagePurpose>,
    (life, now): (Duration, SystemTime),
) -> Result<Pair, Error> {
    let certificate = read::authority(authority, now).ok_or(Error::NoAuthority)?;
    let signer = read::private_key(&authority.key).ok_or(Error::NoAuthority)?;
    let issuer = Issuer::from_ca_cert_der(&certificate.der, KeyPair::try_from(&signer)?)?;
    let start = (now - early(life)).max(certificate.not_before);
    let end = (now + life).min(certificate.not_after);
    let mut parameters = parameters(common_name, start, end)?;
    parameters.subject_alt_names = hosts;
    parameters.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
    ];
    parameters.extended_key_usages = usages;
    parameters.use_authority_key_identifier_extension = true;
    pair(parameters.signed_by(key, &issuer)?.der(), key)
}

/// How much earlier than now a certificate of this lifetime is valid.
pub(super) fn early(life: Duration) -> Duration {
    LATE.min(life / 10)
}

pub(super) fn set_validity(
    parameters: &mut CertificateParams,
    not_before: SystemTime,
    not_after: SystemTime,
) -> Result<(), Error> {
    let time = |time: SystemTime| {
        let seconds = time
            .duration_since(UNIX_EPOCH)
            .map_err(|_| Error::Time)?
            .as_secs();
        let seconds = i64::try_from(seconds).map_err(|_| Error::Time)?;
        ASN1Time::from_timestamp(seconds)
            .map(|time| time.to_datetime())
            .map_err(|_| Error::Time)
    };
    parameters.not_before = time(not_before)?;
    parameters.not_after = time(not_after)?;
    Ok(())
}

fn parameters(
    common_name: &str,
    not_before: SystemTime,
    not_after: SystemTime,
) -> Result<CertificateParams, Error> {
    let mut parameters = CertificateParams::default();
    parameters.distinguished_name = DistinguishedName::new();
    parameters
        .distinguished_name
        .push(DnType::CommonName, common_name);
    set_validity(&mut parameters, not_before, not_after)?;
    Ok(parameters)
}

fn pair(certificate: &CertificateDer<'_>, key: &KeyPair) -> Result<Pair, Error> {
    Ok(Pair {
        certificate: pem("CERTIFICATE", certificate).into_bytes(),
        key: key_pem(key)?.into_bytes(),
    })
}

/// A key as PEM. RSA keys are PKCS#1, the only form that the upstream certificate managers read: the last element of
/// PKCS#8.
pub(super) fn key_pem(key: &KeyPair) -> Result<String, Error> {
    if key.algorithm() != &PKCS_RSA_SHA256 {
        return Ok(key.serialize_pem());
    }
    let (_, pkcs8) = parse_der(key.serialized_der()).finish().map_err(|_| Error::Key)?;
    let elements = pkcs8.as_sequence().map_err(|_| Error::Key)?;
    let inner = elements.get(2).ok_or(Error::Key)?;
    Ok(pem("RSA PRIVATE KEY", inner.as_slice().map_err(|_| Error::Key)?))
}
