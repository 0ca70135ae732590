//! CAs and certificates for other purposes than webhooks.

use std::time::{Duration, SystemTime};

use rcgen::{CertificateParams, CertificateSigningRequestParams, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use x509_parser::prelude::{FromDer as _, X509Certificate};

pub use rcgen::ExtendedKeyUsagePurpose as Usage;

use super::issue::{self, Error};
use super::{Pair, bundle::pem, read};

/// The subject of a new certificate.
#[derive(Clone, Debug)]
#[allow(missing_docs, reason = "the types say it")]
pub struct Subject<'a> {
    /// Also a host name, if it is valid as one.
    pub common_name: &'a str,
    pub usages: Vec<Usage>,
}

/// Facts about a certificate with a matching key.
#[derive(Clone, Debug, Eq, PartialEq)]
#[allow(missing_docs, reason = "the types say it")]
pub struct Facts {
    /// Empty if it has none.
    pub common_name: String,
    pub not_before: SystemTime,
    pub not_after: SystemTime,
    /// Whether it may sign certificates.
    pub is_authority: bool,
    /// Encoded subject and issuer.
    names: (Vec<u8>, Vec<u8>),
}

impl Facts {
    /// Whether the other one signed it, by their names: names of CAs must be unique.
    pub fn is_signed_by(&self, authority: &Self) -> bool {
        self.names.1 == authority.names.0
    }
}

/// A request could not be signed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the texts document the variants")]
pub enum Refused {
    #[error("the CA certificate is unusable")]
    Certificate,
    #[error("the CA key is unusable")]
    Key,
    #[error("the request cannot be read: {0}")]
    Request(String),
    #[error("the request cannot be signed: {0}")]
    Sign(String),
}

/// Reads a certificate with its key; `None` if they do not match.
pub fn facts(pair: &Pair) -> Option<Facts> {
    let certificate = read::with_key(pair)?.into_iter().next()?;
    let (_, parsed) = X509Certificate::from_der(&certificate.der).ok()?;
    let common_name = parsed.subject().iter_common_name().next();
    let common_name = common_name.and_then(|name| name.as_str().ok());
    Some(Facts {
        common_name: common_name.unwrap_or_default().to_owned(),
        not_before: certificate.not_before,
        not_after: certificate.not_after,
        is_authority: read::authority(pair, certificate.not_before).is_some(),
        names: (
            parsed.subject().as_raw().to_vec(),
            parsed.issuer().as_raw().to_vec(),
        ),
    })
}

/// A new CA of this name.
///
/// # Errors
/// If the library fails, or a time is out of range.
pub fn new_authority(common_name: &str, life: Duration, now: SystemTime) -> Result<Pair, Error> {
    let key = issue::new_key()?;
    issue::authority_of(&key, common_name, life, now)
}

/// A new certificate, signed by the CA. It expires no later than the CA.
///
/// # Errors
/// If the CA cannot sign, the library fails, or a time is out of range.
pub fn new_certificate(
    authority: &Pair,
    subject: &Subject<'_>,
    life: Duration,
    now: SystemTime,
) -> Result<Pair, Error> {
    let key = issue::new_key()?;
    // A common name that is no host name has no subject alternative name.
    let hosts = CertificateParams::new(vec![subject.common_name.to_owned()]);
    let hosts = hosts
        .map(|parameters| parameters.subject_alt_names)
        .unwrap_or_default();
    issue::signed(
        &key,
        authority,
        subject.common_name,
        hosts,
        subject.usages.clone(),
        (life, now),
    )
}

/// The CA followed by the bundle's other unexpired certificates; `None` if the bundle has exactly these.
pub fn renewed_bundle(bundle: &str, authority: &Pair, now: SystemTime) -> Option<String> {
    let known = read::certificates(bundle.as_bytes());
    let own = read::certificates(&authority.certificate);
    let rest = known
        .iter()
        .filter(|it| !it.is_expired_at(now) && !own.iter().any(|own| own.der == it.der));
    let wanted: Vec<_> = own.iter().take(1).chain(rest).collect();
    let is_same = wanted.len() == known.len()
        && wanted
            .iter()
            .all(|it| known.iter().any(|known| known.der == it.der));
    (!is_same).then(|| wanted.iter().map(|it| pem("CERTIFICATE", &it.der)).collect())
}

/// Signs a request (PKCS#10, as PEM). The certificate has the request's subject, names and key, but the given usages,
/// and is never a CA. Returns the certificate as PEM.
///
/// # Errors
/// If the CA or the request is unusable.
pub fn sign_request(
    authority: &Pair,
    request: &str,
    usages: Vec<Usage>,
    (life, now): (Duration, SystemTime),
) -> Result<String, Refused> {
    let certificates = read::certificates(&authority.certificate);
    let certificate = certificates.first().ok_or(Refused::Certificate)?;
    let key = read::private_key(&authority.key).ok_or(Refused::Key)?;
    let certificate = read::authority(authority, now)
        .filter(|it| it.der == certificate.der)
        .ok_or_else(|| {
            if read::with_key(authority).is_none() {
                Refused::Key
            } else {
                Refused::Certificate
            }
        })?;
    let key = KeyPair::try_from(&key).map_err(|_| Refused::Key)?;
    let issuer = Issuer::from_ca_cert_der(&certificate.der, key).map_err(|_| Refused::Certificate)?;
    let mut request = CertificateSigningRequestParams::from_pem(request)
        .map_err(|error| Refused::Request(error.to_string()))?;
    let sign = |error: &dyn std::fmt::Display| Refused::Sign(error.to_string());
    let start = (now - issue::early(life)).max(certificate.not_before);
    let end = (now + life).min(certificate.not_after);
    let parameters = &mut request.params;
    issue::set_validity(parameters, start, end).map_err(|error| sign(&error))?;
    parameters.is_ca = IsCa::NoCa;
    parameters.key_usages = vec![
        KeyUsagePurpose::DigitalSignature,
        KeyUsagePurpose::KeyEncipherment,
    ];
    parameters.extended_key_usages = usages;
    parameters.use_authority_key_identifier_extension = true;
    parameters.name_constraints = None;
    parameters.custom_extensions.clear();
    let signed = request.signed_by(&issuer).map_err(|error| sign(&error))?;
    Ok(signed.pem())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_hours(24);

    fn now() -> SystemTime {
        SystemTime::now()
    }

    fn request(change: impl FnOnce(&mut CertificateParams)) -> String {
        let key = KeyPair::generate().expect("a key");
        let mut parameters = CertificateParams::new(vec!["node1".to_owned()]).expect("names");
        parameters
            .distinguished_name
            .push(rcgen::DnType::CommonName, "chassis-1");
        change(&mut parameters);
        let request = parameters.serialize_request(&key).expect("a request");
        request.pem().expect("PEM")
    }

    fn sign(authority: &Pair, request: &str) -> Result<String, Refused> {
        sign_request(authority, request, vec![Usage::ClientAuth], (DAY, now()))
    }

    #[test]
    fn certificate_is_matched_to_its_issuer() {
        let authority = new_authority("ca@1", DAY * 10, now()).expect("an authority");
        let other = new_authority("ca@2", DAY * 10, now()).expect("an authority");
        let subject = Subject {
            common_name: "ovn",
            usages: vec![Usage::ClientAuth, Usage::ServerAuth],
        };
        let pair = new_certificate(&authority, &subject, DAY, now()).expect("a certificate");
        let found = facts(&pair).expect("facts");
        assert_eq!((found.common_name.as_str(), found.is_authority), ("ovn", false));
        assert!(found.is_signed_by(&facts(&authority).expect("facts")));
        assert!(!found.is_signed_by(&facts(&other).expect("facts")));
        assert!(facts(&authority).expect("facts").is_authority);
        let chain = read::certificates(&pair.certificate);
        let roots = read::certificates(&authority.certificate);
        assert!(read::trusted_until(&chain, &roots, "ovn", now()).is_some());
        let mixed = Pair {
            key: other.key,
            ..pair
        };
        assert_eq!(facts(&mixed), None);
    }

    #[test]
    fn invalid_host_name_is_ignored() {
        let authority = new_authority("ca@1", DAY * 10, now()).expect("an authority");
        let subject = Subject {
            common_name: "not a höst",
            usages: vec![Usage::ClientAuth],
        };
        let pair = new_certificate(&authority, &subject, DAY, now()).expect("a certificate");
        assert_eq!(facts(&pair).expect("facts").common_name, "not a höst");
    }

    #[test]
    fn signed_request_is_no_ca_and_is_short_lived() {
        let authority = new_authority("ca@1", DAY * 10, now()).expect("an authority");
        let wants_more = request(|parameters| {
            parameters.is_ca = IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
            parameters.not_after = rcgen::date_time_ymd(2999, 1, 1);
        });
        // The library ignores a requested CA constraint; in any case the result is no CA.
        if let Ok(signed) = sign(&authority, &wants_more) {
            let der = read::certificates(signed.as_bytes()).remove(0).der;
            let (_, parsed) = X509Certificate::from_der(&der).expect("a certificate");
            assert!(!parsed.is_ca());
        }
        let signed = sign(&authority, &request(|_| {})).expect("signed");
        let certificate = read::certificates(signed.as_bytes()).remove(0);
        assert!(certificate.not_after <= now() + DAY);
        let roots = read::certificates(&authority.certificate);
        let (_, parsed) = X509Certificate::from_der(&certificate.der).expect("a certificate");
        let (_, root) = X509Certificate::from_der(&roots[0].der).expect("a certificate");
        assert_eq!(parsed.issuer().as_raw(), root.subject().as_raw());
        let names: Vec<_> = parsed
            .subject()
            .iter_common_name()
            .filter_map(|name| name.as_str().ok())
            .collect();
        assert_eq!(names, ["chassis-1"]);
    }

    #[test]
    fn corrupt_certificate_is_an_error() {
        let authority = new_authority("ca@1", DAY * 10, now()).expect("an authority");
        let other = new_authority("ca@2", DAY * 10, now()).expect("an authority");
        let request = request(|_| {});
        let error = |certificate: &[u8], key: &[u8], request: &str| {
            let pair = Pair {
                certificate: certificate.to_vec(),
                key: key.to_vec(),
            };
            sign(&pair, request).expect_err("refused")
        };
        assert!(matches!(
            error(b"x", &authority.key, &request),
            Refused::Certificate
        ));
        assert!(matches!(
            error(&authority.certificate, b"x", &request),
            Refused::Key
        ));
        assert!(matches!(
            error(&authority.certificate, &other.key, &request),
            Refused::Key
        ));
        assert!(matches!(
            error(&authority.certificate, &authority.key, "x"),
            Refused::Request(_)
        ));
    }

    #[test]
    fn bundle_keeps_valid_certificates() {
        let old = new_authority("ca@1", DAY, now() - DAY * 2).expect("an authority");
        let before = new_authority("ca@2", DAY * 10, now()).expect("an authority");
        let new = new_authority("ca@3", DAY * 10, now()).expect("an authority");
        let text = |pair: &Pair| String::from_utf8(pair.certificate.clone()).expect("PEM");
        let bundle = renewed_bundle(&(text(&old) + &text(&before)), &new, now()).expect("another one");
        assert_eq!(bundle, text(&new) + &text(&before));
        assert_eq!(renewed_bundle(&bundle, &new, now()), None);
        assert_eq!(renewed_bundle("", &new, now()), Some(text(&new)));
    }
}
