use clap::{Args as _, FromArgMatches as _};
use program::argv::go_flags;

use super::*;

fn args(flags: &[&str]) -> Args {
    let command = Args::augment_args(clap::Command::new("manager"));
    let flags = ["manager"].iter().chain(flags).map(Into::into);
    let matches = command.try_get_matches_from(go_flags(flags)).unwrap();
    Args::from_arg_matches(&matches).unwrap()
}

fn read(flags: &[&str]) -> Result<Settings, String> {
    Settings::read(&args(flags)).map_err(|error| error.to_string())
}

#[test]
fn flags_of_the_upstream_deployment_are_read() {
    let flags = [
        "--leader-elect",
        "--certificates-dir=/etc/ipam-controller/certificates",
        "--default-network-nad-namespace=test",
        "--tls-min-version=VersionTLS12",
        "-health-probe-bind-address",
        ":9081",
        "-v=5",
    ];
    let settings = read(&flags).unwrap();
    assert!(settings.elect && !settings.http2);
    assert_eq!(
        settings.certificates,
        PathBuf::from("/etc/ipam-controller/certificates")
    );
    assert_eq!(settings.default_namespace, "test");
    assert_eq!(settings.probes, Bind::Everywhere(9081));
    let defaults = read(&["--certificates-dir=", "--leader-elect=false"]).unwrap();
    assert!(!defaults.elect);
    assert!(
        defaults
            .certificates
            .ends_with("k8s-webhook-server/serving-certs")
    );
    assert_eq!(defaults.default_namespace, "ovn-kubernetes");
    assert_eq!(defaults.webhook, Bind::Everywhere(9443));
    assert_eq!(defaults.probes, Bind::Everywhere(8081));
}

#[test]
fn unknown_options_of_tls_are_refused() {
    // kubevirt-ipam#64
    for (flag, text) in [
        ("--tls-min-version=9.0", r#"TLS version not found for "9.0""#),
        (
            "--tls-cipher-suites=horcrux",
            "unable to find cipher suite IDs: key not found horcrux",
        ),
        (
            "--tls-curve-preferences=straight",
            "unable to find curve preference IDs: key not found straight",
        ),
    ] {
        assert_eq!(read(&[flag]).unwrap_err(), text);
    }
}

#[test]
fn options_of_tls_are_applied() {
    // kubevirt-ipam#65, kubevirt-ipam#66
    let profile = |flags: &[&str]| read(flags).unwrap().profile;
    assert_eq!(profile(&[]), Profile::default());
    assert_eq!(profile(&["--tls-min-version=VersionTLS13"]), Profile::default());
    let all = Profile::read("VersionTLS12", &[] as &[&str]);
    assert_eq!(profile(&["--tls-min-version="]), all);
    assert_eq!(profile(&["--tls-min-version=VersionTLS10"]), all);
    let one = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256";
    let two = "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256";
    let ciphers = format!("--tls-cipher-suites= {one} ,, {two}");
    assert_eq!(
        profile(&["--tls-min-version=VersionTLS12", &ciphers]),
        Profile::read("VersionTLS12", &[one, two])
    );
    assert_eq!(
        profile(&["--tls-min-version=VersionTLS13", &ciphers]),
        Profile::default()
    );
    let groups = Profile::default().narrowed(&[] as &[&str], &["secp256r1", "X25519"]);
    assert_eq!(profile(&["--tls-curve-preferences= CurveP256 ,X25519,"]), groups);
    assert_eq!(
        profile(&[
            "--tls-min-version=VersionTLS12",
            &ciphers,
            "--tls-curve-preferences=X25519MLKEM768"
        ]),
        Profile::read("VersionTLS12", &[one, two]).narrowed(&[] as &[&str], &["X25519MLKEM768"])
    );
}

#[test]
fn names_of_the_old_profile_are_accepted() {
    // kubevirt-ipam#67
    let old = "TLS_AES_128_GCM_SHA256,TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256,\
        TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,\
        TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,\
        TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,\
        TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256,TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256,\
        TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA,TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA,\
        TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA,TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA,\
        TLS_RSA_WITH_AES_128_GCM_SHA256,TLS_RSA_WITH_AES_256_GCM_SHA384,TLS_RSA_WITH_AES_128_CBC_SHA256,\
        TLS_RSA_WITH_AES_128_CBC_SHA,TLS_RSA_WITH_AES_256_CBC_SHA,TLS_RSA_WITH_3DES_EDE_CBC_SHA,\
        TLS_ECDHE_ECDSA_WITH_RC4_128_SHA,TLS_ECDHE_RSA_WITH_RC4_128_SHA,TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA,\
        TLS_RSA_WITH_RC4_128_SHA";
    let profile = |ciphers: &str| {
        let ciphers = format!("--tls-cipher-suites={ciphers}");
        read(&["--tls-min-version=VersionTLS10", &ciphers])
            .unwrap()
            .profile
    };
    let strong: Vec<_> = old.split(',').skip(3).take(6).collect();
    assert_eq!(profile(old), Profile::read("VersionTLS12", &strong));
    // No cipher remains: all supported ones are served.
    let weak = "TLS_RSA_WITH_AES_128_CBC_SHA,TLS_RSA_WITH_AES_256_CBC_SHA";
    assert_eq!(profile(weak), Profile::read("VersionTLS12", &[] as &[&str]));
}

#[test]
fn level_of_the_log_is_a_number() {
    let level = |flags: &[&str], variable: Option<&str>| args(flags).log_level(variable);
    assert_eq!(level(&[], None), Ok("info"));
    assert_eq!(level(&[], Some("0")), Ok("info"));
    assert_eq!(level(&[], Some("5")), Ok("debug"));
    assert_eq!(level(&["-v=2"], Some("5")), Ok("info"));
    assert_eq!(level(&["-v", "6"], Some("0")), Ok("debug"));
    let error = level(&[], Some("high")).unwrap_err().to_string();
    assert!(error.starts_with("failed to set log level: "), "{error}");
}
