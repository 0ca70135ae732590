use serde_json::json;

use super::*;

const INTERMEDIATE: &str = r#"{"ciphers":["TLS_AES_128_GCM_SHA256","TLS_AES_256_GCM_SHA384","TLS_CHACHA20_POLY1305_SHA256","ECDHE-ECDSA-AES128-GCM-SHA256","ECDHE-RSA-AES128-GCM-SHA256","ECDHE-ECDSA-AES256-GCM-SHA384","ECDHE-RSA-AES256-GCM-SHA384","ECDHE-ECDSA-CHACHA20-POLY1305","ECDHE-RSA-CHACHA20-POLY1305"],"minTLSVersion":"VersionTLS12"}"#;

const NONE: [&str; 0] = [];

fn custom(min_version: &str, ciphers: &[&str], curves: &[&str]) -> Profile {
    let custom = json!({ "ciphers": ciphers, "minTLSVersion": min_version, "curves": curves });
    parse(Some(&json!({ "type": "Custom", "custom": custom }))).expect("a profile")
}

// nmstate#84
#[test]
fn missing_profile_is_intermediate() {
    for profile in [
        None,
        Some(json!(null)),
        Some(json!({})),
        Some(json!({ "type": "" })),
        Some(json!({ "type": "Intermediate" })),
    ] {
        let parsed = parse(profile.as_ref()).expect("a profile");
        assert_eq!(parsed.to_json(), INTERMEDIATE, "{profile:?}");
        let settings = parsed.settings().expect("settings");
        assert_eq!(settings.ignored, None);
        assert_eq!(
            settings.tls,
            tls::Profile::read(
                "VersionTLS12",
                &[
                    "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
                    "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
                    "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384",
                    "TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384",
                    "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
                    "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
                ]
            )
            .narrowed(
                &[
                    "TLS_AES_128_GCM_SHA256",
                    "TLS_AES_256_GCM_SHA384",
                    "TLS_CHACHA20_POLY1305_SHA256"
                ],
                &NONE
            )
        );
    }
}

// nmstate#84
#[test]
fn malformed_profile_is_refused() {
    for (profile, text) in [
        (
            json!({ "type": "Ancient" }),
            "unknown TLS profile type \"Ancient\"",
        ),
        (
            json!({ "type": "Custom" }),
            "TLS profile of type Custom without custom settings",
        ),
        (
            json!({ "type": "Custom", "custom": null }),
            "TLS profile of type Custom without custom settings",
        ),
        (json!("Old"), "malformed TLS profile: not an object"),
        (
            json!({ "type": 1 }),
            "malformed TLS profile: type is not a string",
        ),
        (
            json!({ "type": "Custom", "custom": { "ciphers": "all" } }),
            "malformed TLS profile: invalid type: string \"all\", expected a sequence",
        ),
    ] {
        assert_eq!(parse(Some(&profile)).expect_err("an error").to_string(), text);
    }
    let error = custom("TLSv1.2", &[], &[]).settings().expect_err("an error");
    assert_eq!(error.to_string(), "unknown TLS version \"TLSv1.2\"");
}

// nmstate#84
#[test]
fn ciphers_without_support_below_1_3_are_refused() {
    for ciphers in [&["RC4-MD5"][..], &["AES128-SHA", "invented"]] {
        for version in ["", "VersionTLS10", "VersionTLS12"] {
            let error = custom(version, ciphers, &[]).settings().expect_err("an error");
            let names = ciphers.join(", ");
            assert_eq!(
                error.to_string(),
                format!("the TLS profile names ciphers, but none that is supported: {names}")
            );
        }
        // TLS 1.3 has its own ciphers, and no others.
        let settings = custom("VersionTLS13", ciphers, &[]).settings().expect("settings");
        assert_eq!(settings.tls, tls::Profile::default());
    }
}

// nmstate#84
#[test]
fn ciphers_of_1_3_only_raise_the_version() {
    let settings = custom("VersionTLS12", &["TLS_AES_128_GCM_SHA256"], &[])
        .settings()
        .expect("settings");
    assert_eq!(settings.ignored, None);
    assert_eq!(
        settings.tls,
        tls::Profile::default().narrowed(&["TLS_AES_128_GCM_SHA256"], &NONE)
    );
    let modern = parse(Some(&json!({ "type": "Modern" }))).expect("a profile");
    assert_eq!(modern.min_version, "VersionTLS13");
    let three = [
        "TLS_AES_128_GCM_SHA256",
        "TLS_AES_256_GCM_SHA384",
        "TLS_CHACHA20_POLY1305_SHA256",
    ];
    assert_eq!(modern.ciphers, three);
    assert_eq!(
        modern.settings().expect("settings").tls,
        tls::Profile::default().narrowed(&three, &NONE)
    );
}

// nmstate#84
#[test]
fn unknown_curves_are_reported_and_refused_alone() {
    let settings = custom("VersionTLS13", &[], &["sect571r1", "P-256", "x25519"])
        .settings()
        .expect("settings");
    assert_eq!(
        settings.ignored.as_deref(),
        Some("unsupported curves ignored: sect571r1")
    );
    assert_eq!(
        settings.tls,
        tls::Profile::default().narrowed(&NONE, &["secp256r1", "X25519"])
    );
    let error = custom("VersionTLS12", &[], &["sect571r1", "P-521"])
        .settings()
        .expect_err("an error");
    assert_eq!(
        error.to_string(),
        "the TLS profile names curves, but none that is supported: sect571r1, P-521"
    );
}

#[test]
fn ciphers_have_names_of_openssl_iana_or_go_and_unknown_ones_are_reported() {
    let ciphers = [
        "ECDHE-RSA-CHACHA20-POLY1305",
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305",
        "invented",
        "AES128-SHA",
    ];
    let settings = custom("VersionTLS11", &ciphers, &["invented too", "X25519"])
        .settings()
        .expect("settings");
    assert_eq!(
        settings.ignored.as_deref(),
        Some("unsupported ciphers ignored: invented; unsupported curves ignored: invented too")
    );
    let expected = [
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
    ];
    assert_eq!(
        settings.tls,
        tls::Profile::read("VersionTLS12", &expected).narrowed(&NONE, &["X25519"])
    );
}

#[test]
fn profile_old_is_served_as_far_as_is_safe() {
    let old = parse(Some(&json!({ "type": "Old" }))).expect("a profile");
    assert_eq!(
        (old.ciphers.len(), old.min_version.as_str()),
        (21, "VersionTLS10")
    );
    let intermediate = Profile::from_json(INTERMEDIATE).expect("a profile");
    assert_eq!(old.settings(), intermediate.settings());
}

#[test]
fn profile_survives_serialization() {
    let profile = custom("VersionTLS12", &["invented"], &["P-256"]);
    assert_eq!(
        profile.to_json(),
        r#"{"ciphers":["invented"],"minTLSVersion":"VersionTLS12","curves":["P-256"]}"#
    );
    assert_eq!(Profile::from_json(&profile.to_json()), Ok(profile));
    // Go's form of an empty profile.
    let empty = r#"{"ciphers":null,"minTLSVersion":""}"#;
    assert_eq!(Profile::from_json(empty), Ok(Profile::default()));
    let settings = Profile::default().settings().expect("settings");
    assert_eq!(settings.tls, tls::Profile::read("VersionTLS12", &NONE));
    for text in ["", "[1]", "{\"ciphers\":1}", "null"] {
        assert!(
            matches!(Profile::from_json(text), Err(InvalidProfile::Malformed(_))),
            "{text}"
        );
    }
}
