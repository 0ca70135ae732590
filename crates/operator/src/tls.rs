//! Converts the TLS profile in the specification into settings of servers (operator §5.4).

use api::network_addons::{CIPHERS, TlsSecurityProfile};
use kube_kit::tls::ciphers::IANA_NAMES;

use crate::messages::specification;

/// TLS settings of a server.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct TlsSettings {
    /// Minimum version, such as `VersionTLS12`.
    pub(crate) min_version: String,
    /// IANA names of the ciphers below TLS 1.3, in order; empty for the server's default.
    pub(crate) ciphers: Vec<&'static str>,
}

impl TlsSettings {
    /// The settings of a profile; `None` counts as Modern. Custom settings take effect with any type.
    ///
    /// # Errors
    /// The text for the condition, if the profile is invalid.
    pub(crate) fn of(profile: Option<&TlsSecurityProfile>) -> Result<Self, String> {
        let Some(profile) = profile else {
            return Ok(Self::new("VersionTLS13", &CIPHERS[..3]));
        };
        if let Some(custom) = &profile.custom {
            // A profile may have ciphers alone.
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

    /// Command-line arguments of a server; without the argument for ciphers if there are none.
    pub(crate) fn arguments(&self) -> Vec<String> {
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
    fn absent_profile_means_tls_1_3() {
        assert_eq!(arguments(json!(null)), ["--tls-min-version=VersionTLS13"]);
        assert_eq!(
            arguments(json!({ "type": "Modern", "modern": {} })),
            ["--tls-min-version=VersionTLS13"]
        );
    }

    // operator#49
    #[test]
    fn old_profile_has_eighteen_ciphers_in_order() {
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
    fn intermediate_profile_has_six_ciphers() {
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
    fn custom_settings_take_effect_with_any_type() {
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
    fn profile_without_settings_is_refused() {
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
