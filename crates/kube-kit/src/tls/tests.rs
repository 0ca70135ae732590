use super::*;

fn suites(profile: &Profile) -> Vec<&'static str> {
    let chosen = profile.tls12.iter();
    chosen.filter_map(|suite| suite.suite().as_str()).collect()
}

const ECDSA_AES: &str = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
const RSA_CHACHA: &str = "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256";
const CBC: &str = "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA";
const NONE: [&str; 0] = [];

#[test]
fn read_keeps_order_and_ignores_unsupported_ciphers() {
    let profile = Profile::read("VersionTLS12", &[RSA_CHACHA, CBC, ECDSA_AES, RSA_CHACHA]);
    assert_eq!(suites(&profile), [RSA_CHACHA, ECDSA_AES]);
    assert_eq!(profile.lacking, [CBC]);
}

#[test]
fn version_below_1_2_is_served_as_1_2() {
    for version in ["VersionTLS10", "VersionTLS11", "VersionTLS12", "VersionSSL30", ""] {
        assert_eq!(
            suites(&Profile::read(version, &[ECDSA_AES])),
            [ECDSA_AES],
            "{version}"
        );
        // Without configured ciphers, all supported ones are served.
        assert_eq!(Profile::read(version, &NONE).tls12.len(), 6, "{version}");
    }
}

#[test]
fn tls_1_3_is_served_alone_if_configured_or_without_other_ciphers() {
    for profile in [
        Profile::default(),
        Profile::read("VersionTLS13", &[ECDSA_AES]),
        Profile::read("VersionTLS13", &NONE),
        Profile::read("VersionTLS12", &[CBC]),
    ] {
        assert_eq!(suites(&profile), NONE);
        let provider = profile.provider();
        assert_eq!(provider.cipher_suites.len(), 3, "its ciphers can't be chosen");
    }
}

#[test]
fn narrowed_restricts_tls_1_3_ciphers_and_groups() {
    let groups = |profile: &Profile| {
        let groups = profile.provider().kx_groups;
        let names = groups.iter().map(|group| group.name().as_str());
        names.map(Option::unwrap_or_default).collect::<Vec<_>>()
    };
    let usual = Profile::default();
    assert_eq!(
        groups(&usual),
        ["X25519MLKEM768", "X25519", "secp256r1", "secp384r1"]
    );
    let narrowed = usual.clone().narrowed(
        &["TLS_AES_256_GCM_SHA384", "TLS_AES_128_CCM_SHA256", ECDSA_AES],
        &["secp384r1", "secp521r1", "X25519"],
    );
    assert_eq!(groups(&narrowed), ["secp384r1", "X25519"]);
    let suites: Vec<_> = narrowed
        .provider()
        .cipher_suites
        .iter()
        .map(SupportedCipherSuite::suite)
        .collect();
    assert_eq!(suites, [CipherSuite::TLS13_AES_256_GCM_SHA384]);
    // A restriction that leaves nothing has no effect.
    let nothing = usual.clone().narrowed(&[ECDSA_AES], &["secp521r1"]);
    assert_eq!(nothing, usual);
}

#[test]
fn self_signed_certificate_has_names_and_long_validity() {
    let names = ["metrics.addons.svc".to_owned(), "metrics".to_owned()];
    let identity = Identity::self_signed(&names).expect("an identity");
    let (_, certificate) =
        x509_parser::parse_x509_certificate(identity.certificate()).expect("a certificate");
    assert_eq!(certificate.subject().to_string(), "CN=metrics.addons.svc");
    let alternatives = certificate
        .subject_alternative_name()
        .expect("readable names")
        .expect("names");
    let found: Vec<_> = alternatives
        .value
        .general_names
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(found, ["DNSName(metrics.addons.svc)", "DNSName(metrics)"]);
    let validity = certificate.validity();
    assert!(validity.is_valid());
    let years = (validity.not_after.timestamp() - validity.not_before.timestamp()) / (365 * 24 * 3600);
    assert_eq!(years, 10);
    assert!(!certificate.is_ca(), "it vouches for itself alone");
}

#[test]
fn from_pem_reads_content_of_secret() {
    for algorithm in [
        &rcgen::PKCS_ECDSA_P256_SHA256,
        &rcgen::PKCS_ECDSA_P384_SHA384,
        &rcgen::PKCS_RSA_SHA256,
    ] {
        let key = KeyPair::generate_for(algorithm).expect("a key");
        let params = CertificateParams::new(["webhook.addons.svc".to_owned()]).expect("parameters");
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        Identity::from_pem(certificate.as_bytes(), key.serialize_pem().as_bytes()).expect("an identity");
    }
}

#[test]
fn from_pem_refuses_invalid_identity() {
    let pem = || {
        let key = KeyPair::generate().expect("a key");
        let params = CertificateParams::new(["x".to_owned()]).expect("parameters");
        let certificate = params.self_signed(&key).expect("a certificate").pem();
        (certificate, key.serialize_pem())
    };
    let ((certificate, key), (_, other)) = (pem(), pem());
    let refused = |certificate: &str, key: &str| {
        Identity::from_pem(certificate.as_bytes(), key.as_bytes())
            .expect_err("a refusal")
            .to_string()
    };
    assert_eq!(refused(&certificate, ""), "cannot read the key as PEM");
    assert_eq!(refused("", &key), "cannot read the certificate as PEM");
    assert_eq!(
        refused(&certificate, &other),
        "cannot use the certificate and its key"
    );
}
