//! TLS profiles, as observed by clients of the metrics.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
};

use rustls::{SupportedCipherSuite, crypto::aws_lc_rs::cipher_suite};
use serde_json::{Value, json};
use stage::{DEADLINE, until};

use crate::{fixture::Fixture, metrics::Scraper};

const TLS_1_0: u16 = 0x0301;
const TLS_1_1: u16 = 0x0302;
const TLS_1_2: u16 = 0x0303;
const ECDHE_ECDSA_AES128_GCM: u16 = 0xc02b;
const ECDHE_ECDSA_AES128_CBC: u16 = 0xc009;
const RSA_AES128_CBC: u16 = 0x002f;
const RSA_3DES_CBC: u16 = 0x000a;

/// The only cipher and version that a client offers.
#[derive(Clone, Copy, Debug)]
enum Offer {
    /// An offer of a client that supports it, and requests the metrics.
    Spoken(SupportedCipherSuite),
    /// An offer in a `ClientHello` only: the TLS library supports neither versions below 1.2 nor CBC, as a client or a
    /// server.
    Greeted(u16, u16),
}

impl Offer {
    /// Whether the server accepts the offer, or answers with an alert. Any other answer is an error.
    fn is_accepted(self, address: SocketAddr) -> Result<bool, String> {
        match self {
            Self::Spoken(suite) => match Scraper::offering(suite).scrape(address) {
                Ok((401, _)) => Ok(true),
                Err(error) if error.contains("received fatal alert") => Ok(false),
                other => Err(format!("{other:?}")),
            },
            Self::Greeted(version, suite) => {
                greet(address, &hello(version, suite)).map_err(|error| error.to_string())
            }
        }
    }
}

/// Sends a `ClientHello`. Returns whether the answer is a handshake record and not an alert.
fn greet(address: SocketAddr, hello: &[u8]) -> std::io::Result<bool> {
    const ALERT: u8 = 21;
    const HANDSHAKE: u8 = 22;
    let mut stream = TcpStream::connect(address)?;
    stream.set_read_timeout(Some(DEADLINE))?;
    stream.write_all(hello)?;
    let mut kind = [0];
    stream.read_exact(&mut kind)?;
    match kind {
        [HANDSHAKE] => Ok(true),
        [ALERT] => Ok(false),
        [other] => Err(std::io::Error::other(format!("a record of type {other}"))),
    }
}

/// Extensions of a TLS 1.2 client except version and ciphers.
const EXTENSIONS: [u8; 22] = [
    // Groups: secp256r1.
    0, 10, 0, 4, 0, 2, 0, 23, //
    // Points: uncompressed.
    0, 11, 0, 2, 1, 0, //
    // Signatures: ECDSA with P-256 and SHA-256.
    0, 13, 0, 4, 0, 2, 4, 3,
];

/// A `ClientHello` in its record (RFC 5246, sections 6.2.1 and 7.4.1.2).
fn hello(version: u16, suite: u16) -> Vec<u8> {
    let [major, minor] = version.to_be_bytes();
    let mut body = vec![major, minor];
    // Random, and no session.
    body.extend([7; 32]);
    body.push(0);
    body.extend([0, 2]);
    body.extend(suite.to_be_bytes());
    // No compression.
    body.extend([1, 0]);
    body.extend(length(&EXTENSIONS));
    body.extend(EXTENSIONS);

    let mut message = vec![1_u8, 0];
    message.extend(length(&body));
    message.extend(body);
    let mut record = vec![22_u8, 3, 1];
    record.extend(length(&message));
    record.extend(message);
    record
}

fn length(bytes: &[u8]) -> [u8; 2] {
    u16::try_from(bytes.len()).expect("a short message").to_be_bytes()
}

/// A profile, with accepted and refused offers.
struct Case {
    profile: Value,
    accepted: Vec<Offer>,
    refused: Vec<Offer>,
}

/// A case with a custom profile.
fn custom(settings: &Value, accepted: &[Offer], refused: &[Offer]) -> Case {
    Case {
        profile: json!({ "type": "Custom", "custom": settings }),
        accepted: accepted.to_vec(),
        refused: refused.to_vec(),
    }
}

/// The server has an ECDSA certificate, so that it never selects a cipher with RSA. Each case differs from the previous
/// one in some offer, which shows the moment when its profile takes effect.
fn cases() -> Vec<Case> {
    let (aes128, aes256, chacha) = (
        Offer::Spoken(cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256),
        Offer::Spoken(cipher_suite::TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384),
        Offer::Spoken(cipher_suite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256),
    );
    let tls13 = [
        Offer::Spoken(cipher_suite::TLS13_AES_128_GCM_SHA256),
        Offer::Spoken(cipher_suite::TLS13_AES_256_GCM_SHA384),
        Offer::Spoken(cipher_suite::TLS13_CHACHA20_POLY1305_SHA256),
    ];
    let below = [
        Offer::Greeted(TLS_1_0, ECDHE_ECDSA_AES128_CBC),
        Offer::Greeted(TLS_1_1, ECDHE_ECDSA_AES128_GCM),
    ];
    let cbc =
        [ECDHE_ECDSA_AES128_CBC, RSA_AES128_CBC, RSA_3DES_CBC].map(|suite| Offer::Greeted(TLS_1_2, suite));
    let greeted = Offer::Greeted(TLS_1_2, ECDHE_ECDSA_AES128_GCM);
    let rsa_cbc = ["AES128-SHA", "AES256-SHA"];
    vec![
        Case {
            profile: json!({ "type": "Old", "old": {} }),
            accepted: [&tls13[..], &[aes128, aes256, chacha, greeted]].concat(),
            refused: [below, [cbc[0], cbc[1]]].concat(),
        },
        // No supported cipher of TLS 1.2 remains.
        custom(
            &json!({ "ciphers": rsa_cbc, "minTLSVersion": "VersionTLS12" }),
            &tls13,
            &[&[aes128, aes256, chacha, greeted][..], &cbc].concat(),
        ),
        custom(
            &json!({ "ciphers": ["AES128-SHA", "ECDHE-ECDSA-AES256-GCM-SHA384"], "minTLSVersion": "VersionTLS12" }),
            &[tls13[0], aes256],
            &[aes128, chacha, greeted, cbc[1]],
        ),
        // Ciphers of TLS 1.3 cannot be configured.
        custom(
            &json!({
                "ciphers": ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384"], "minTLSVersion": "VersionTLS13",
            }),
            &tls13,
            &[aes128, aes256, chacha, greeted],
        ),
        // A lower version is served as TLS 1.2.
        custom(
            &json!({ "ciphers": ["ECDHE-ECDSA-CHACHA20-POLY1305"], "minTLSVersion": "VersionTLS11" }),
            &[tls13[0], chacha],
            &[&[aes128, aes256][..], &below].concat(),
        ),
        // The default version is TLS 1.2.
        custom(
            &json!({ "ciphers": ["ECDHE-ECDSA-AES128-GCM-SHA256"] }),
            &[tls13[0], aes128, greeted],
            &[&[aes256, chacha][..], &below].concat(),
        ),
        // Without ciphers all supported ones are used; a custom profile takes effect with any type.
        Case {
            profile: json!({ "type": "Modern", "custom": { "minTLSVersion": "VersionTLS12" } }),
            accepted: vec![tls13[2], aes128, aes256, chacha],
            refused: [below, [cbc[0], cbc[2]]].concat(),
        },
    ]
}

// operator#49, operator#51, operator#52
#[test]
fn metrics_server_accepts_supported_offers_of_profile() {
    let fixture = Fixture::running();
    for Case {
        profile,
        accepted,
        refused,
    } in cases()
    {
        fixture.configure(&json!({ "tlsSecurityProfile": profile }));
        until(&format!("the profile {profile}"), || {
            let is_so = |offer: &Offer, expected: bool| match offer.is_accepted(fixture.metrics_address()) {
                Ok(found) if found == expected => Ok(()),
                other => Err(format!("{offer:?}: {other:?} instead of {expected}")),
            };
            accepted.iter().try_for_each(|offer| is_so(offer, true))?;
            refused.iter().try_for_each(|offer| is_so(offer, false))
        });
    }
}
