//! Bundles of trusted CA certificates, the newest first.

use std::time::SystemTime;

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::read::Certificate;

/// Limit of certificates in a bundle; the oldest are dropped.
const LIMIT: usize = 100;

/// The desired bundle: the CA, then the bundle's other unexpired certificates.
pub(super) fn extended(
    authority: Option<&Certificate>,
    bundle: &[Certificate],
    now: SystemTime,
) -> Vec<Certificate> {
    let mut extended: Vec<Certificate> = authority.into_iter().cloned().collect();
    for certificate in bundle {
        if !certificate.is_expired_at(now) && !extended.contains(certificate) {
            extended.push(certificate.clone());
        }
    }
    extended.truncate(LIMIT);
    extended
}

pub(super) fn to_pem(bundle: &[Certificate]) -> Vec<u8> {
    let pem: String = bundle
        .iter()
        .map(|certificate| pem("CERTIFICATE", &certificate.der))
        .collect();
    pem.into_bytes()
}

/// A PEM section (RFC 7468).
pub(super) fn pem(label: &str, der: &[u8]) -> String {
    const LINE: usize = 64;
    let text = STANDARD.encode(der);
    let mut pem = format!("-----BEGIN {label}-----\n");
    let mut rest = text.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(LINE));
        pem.push_str(line);
        pem.push('\n');
        rest = after;
    }
    pem.push_str(&format!("-----END {label}-----\n"));
    pem
}
