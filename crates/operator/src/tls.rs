//! From the TLS profile in the specification to what servers are told (operator §5.4).

use api::network_addons::{CIPHERS, TlsSecurityProfile};
use kube_kit::tls::ciphers::IANA_NAMES;

use crate::messages::specification;

/// TLS settings of a server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TlsSettings {
    /// Lowest version, such as `VersionTLS12`.
    pub min_version: String,
    /// Ciphers below TLS 1.3 by IANA's names, in order; none means the server's own choice.
    pub ciphers: Vec<&'static str>,
}

impl TlsSettings {
    /// What the profile means; none means Modern. A custom profile counts whatever the type says.
    ///
    /// # Errors
    /// The text for the condition, when the profile names no settings at all.
    pub fn of(profile: Option<&TlsSecurityProfile>) -> Result<Self, String> {
        let Some(profile) = profile else {
            return Ok(Self::new("VersionTLS13", &CIPHERS[..3]));
        };
        if let Some(custom) = &profile.custom {
            // A profile with ciphers alone leaves the version to us.
            let version = if custom.min_tls_version.is_empty() {
                "VersionTLS12"
            } else {
                &custom.min_tls_version
            };
            return Ok(Self::new(version, &custom.ciphers));
        }
        match profile.kind.as_str() {
            "Old" => Ok(Self::new("VersionTLS10", &CIPHERS)),
            "Intermediate" => Ok(Self::new("VersionTLS12", &CIPHERS[..9])),
            "Modern" => Ok(Self::new("VersionTLS13", &CIPHERS[..3])),
            "" => Err(specification::TLS_TYPE_MISSING.into()),
            "Custom" => Err(specification::TLS_CUSTOM_MISSING.into()),
            other => Err(specification::tls_type(other)),
        }
    }

    fn new(min_version: &str, ciphers: &[impl AsRef<str>]) -> Self {
        let mut chosen = Vec::new();
        for cipher in ciphers {
            let known = IANA_NAMES.iter().find(|(openssl, _)| *openssl == cipher.as_ref());
            if let Some((_, iana)) = known
                && !chosen.contains(iana)
            {
                chosen.push(*iana);
            }
        }
        Self {
            min_version: min_version.to_owned(),
            ciphers: chosen,
        }
    }

    /// Command-line arguments of a server; the one for ciphers is left out when there are none.
    pub fn arguments(&self) -> Vec<String> {
        let mut arguments = vec![format!("--tls-min-version={}", self.min_version)];
        if !self.ciphers.is_empty() {
            arguments.push(format!("--tls-cipher-suites={}", self.ciphers.join(",")));
        }
        arguments
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn arguments(profile: serde_json::Value) -> Vec<String> {
        let profile: Option<TlsSecurityProfile> = serde_json::from_value(profile).expect("a profile");
        TlsSettings::of(profile.as_ref()).expect("settings").arguments()
    }

    // operator#48
    #[test]
    fn without_a_profile_servers_speak_tls_1_3() {
        assert_eq!(arguments(json!(null)), ["--tls-min-version=VersionTLS13"]);
        assert_eq!(
            arguments(json!({ "type": "Modern", "modern": {} })),
            ["--tls-min-version=VersionTLS13"]
        );
    }

    // operator#49
    #[test]
    fn the_old_profile_has_eighteen_ciphers_in_order() {
        let ciphers = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,\
            TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,\
            TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,\
            TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA256,TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA256,\
            TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA,TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA,\
            TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA,TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA,\
            TLS_RSA_WITH_AES_128_GCM_SHA256,TLS_RSA_WITH_AES_256_GCM_SHA384,TLS_RSA_WITH_AES_128_CBC_SHA256,\
            TLS_RSA_WITH_AES_128_CBC_SHA,TLS_RSA_WITH_AES_256_CBC_SHA,TLS_RSA_WITH_3DES_EDE_CBC_SHA";
        assert_eq!(
            arguments(json!({ "type": "Old" })),
            [
                "--tls-min-version=VersionTLS10".to_owned(),
                format!("--tls-cipher-suites={ciphers}")
            ]
        );
    }

    // operator#50
    #[test]
    fn the_intermediate_profile_has_six_ciphers() {
        let ciphers = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,\
            TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,\
            TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256";
        assert_eq!(
            arguments(json!({ "type": "Intermediate", "intermediate": {} })),
            [
                "--tls-min-version=VersionTLS12".to_owned(),
                format!("--tls-cipher-suites={ciphers}")
            ]
        );
    }

    // operator#51, operator#52, operator#53
    #[test]
    fn a_custom_profile_counts_whatever_the_type_says() {
        let rsa = "--tls-cipher-suites=TLS_RSA_WITH_AES_128_CBC_SHA,TLS_RSA_WITH_AES_256_CBC_SHA";
        for kind in ["Custom", "Old", ""] {
            let custom = json!({ "ciphers": ["AES128-SHA", "AES256-SHA"], "minTLSVersion": "VersionTLS12" });
            let found = arguments(json!({ "type": kind, "custom": custom }));
            assert_eq!(found, ["--tls-min-version=VersionTLS12", rsa], "{kind}");
        }
        let custom = json!({
            "ciphers": ["TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384"], "minTLSVersion": "VersionTLS13",
        });
        assert_eq!(
            arguments(json!({ "type": "Custom", "custom": custom })),
            ["--tls-min-version=VersionTLS13"]
        );
        let custom = json!({
            "ciphers": ["AES128-SHA", "DHE-RSA-AES128-GCM-SHA256", "AES256-SHA", "AES128-SHA", "x"],
            "minTLSVersion": "VersionTLS11",
        });
        let found = arguments(json!({ "type": "Custom", "custom": custom }));
        assert_eq!(found, ["--tls-min-version=VersionTLS11", rsa]);
    }

    #[test]
    fn a_profile_without_settings_is_an_error() {
        for (profile, error) in [
            (
                json!({}),
                "failed to validate tlsSecurityProfile: type is missing",
            ),
            (
                json!({ "old": {} }),
                "failed to validate tlsSecurityProfile: type is missing",
            ),
            (
                json!({ "type": "Custom" }),
                "failed to validate tlsSecurityProfile: custom is missing for type Custom",
            ),
            (
                json!({ "type": "New" }),
                "failed to validate tlsSecurityProfile: type 'New' is not valid",
            ),
        ] {
            let profile: TlsSecurityProfile = serde_json::from_value(profile).expect("a profile");
            assert_eq!(TlsSettings::of(Some(&profile)), Err(error.to_owned()));
        }
    }
}
