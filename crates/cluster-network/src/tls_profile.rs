//! The TLS profile of an OpenShift cluster, as settings of programs that the operator deploys (§17.6).

use kube_kit::tls::ciphers::{IANA_NAMES, STRONG, in_full};
use serde_json::Value;

use crate::objects::{text, texts};

const TLS_1_2: &str = "VersionTLS12";
const TLS_1_3: &str = "VersionTLS13";
/// Policies under which these programs keep their own settings.
const OWN_SETTINGS: [&str; 2] = ["", "LegacyAdheringComponentsOnly"];

/// A minimum version, and ciphers below TLS 1.3. The ciphers of TLS 1.3 cannot be configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Profile {
    min_version: String,
    /// Names of OpenSSL and of IANA, best first.
    ciphers: Vec<(&'static str, &'static str)>,
}

impl Profile {
    /// The profile in an `APIServer`. `None` if its policy does not require the profile. Ciphers that Go does not have
    /// are dropped.
    pub fn of(api_server: &Value) -> Option<Self> {
        let policy = text(api_server, "/spec/tlsAdherence");
        if OWN_SETTINGS.contains(&policy) {
            return None;
        }
        let custom = "/spec/tlsSecurityProfile/custom";
        Some(match text(api_server, "/spec/tlsSecurityProfile/type") {
            "Old" => Self::new("VersionTLS10", IANA_NAMES.to_vec()),
            "Modern" => Self::new(TLS_1_3, Vec::new()),
            "Custom" if api_server.pointer(custom).is_some_and(Value::is_object) => {
                let names = texts(api_server, &format!("{custom}/ciphers"));
                let known = |name: &String| {
                    let name = in_full(name);
                    let mut all = IANA_NAMES.iter().copied();
                    all.find(|(openssl, iana)| name == *openssl || name == *iana)
                };
                let ciphers: Vec<_> = names.iter().filter_map(known).collect();
                // Without a cipher, lower versions cannot be served.
                let min_version = if ciphers.is_empty() && !names.is_empty() {
                    TLS_1_3
                } else {
                    text(api_server, &format!("{custom}/minTLSVersion"))
                };
                Self::new(min_version, ciphers)
            }
            _ => Self::new(TLS_1_2, IANA_NAMES[..STRONG].to_vec()),
        })
    }

    fn new(min_version: &str, ciphers: Vec<(&'static str, &'static str)>) -> Self {
        let known = ["VersionTLS10", "VersionTLS11", TLS_1_2, TLS_1_3];
        let min_version = if known.contains(&min_version) {
            min_version
        } else {
            TLS_1_2
        };
        Self {
            min_version: min_version.to_owned(),
            ciphers: if min_version == TLS_1_3 {
                Vec::new()
            } else {
                ciphers
            },
        }
    }

    /// Flags of Kubernetes' programs.
    pub fn flags(&self) -> Vec<String> {
        let mut flags = vec![format!("--tls-min-version={}", self.min_version)];
        if !self.ciphers.is_empty() {
            let names: Vec<&str> = self.ciphers.iter().map(|(_, iana)| *iana).collect();
            flags.push(format!("--tls-cipher-suites={}", names.join(",")));
        }
        flags
    }

    /// Directives of nginx.
    pub fn nginx(&self) -> String {
        let all = ["TLSv1", "TLSv1.1", "TLSv1.2", "TLSv1.3"];
        let lowest = match self.min_version.as_str() {
            "VersionTLS10" => 0,
            "VersionTLS11" => 1,
            TLS_1_3 => 3,
            _ => 2,
        };
        let mut directives = format!("ssl_protocols {};\n", all[lowest..].join(" "));
        if !self.ciphers.is_empty() {
            let names: Vec<&str> = self.ciphers.iter().map(|(openssl, _)| *openssl).collect();
            directives += &format!("ssl_ciphers {};\n", names.join(":"));
        }
        directives + "ssl_prefer_server_ciphers on;\n"
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::Profile;

    fn strict(profile: &Value) -> Profile {
        let api_server =
            json!({ "spec": { "tlsAdherence": "StrictAllComponents", "tlsSecurityProfile": profile } });
        Profile::of(&api_server).expect("a profile")
    }

    // cluster-network#158
    #[test]
    fn profile_counts_only_if_the_policy_requires_it() {
        for policy in ["", "LegacyAdheringComponentsOnly"] {
            let modern =
                json!({ "spec": { "tlsAdherence": policy, "tlsSecurityProfile": { "type": "Modern" } } });
            assert_eq!(Profile::of(&modern), None, "{policy}");
        }
        assert_eq!(
            Profile::of(&json!({ "spec": { "tlsSecurityProfile": { "type": "Modern" } } })),
            None
        );
        let default = strict(&Value::Null);
        let ciphers = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,\
                       TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,\
                       TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256";
        assert_eq!(
            default.flags(),
            [
                "--tls-min-version=VersionTLS12".to_owned(),
                format!("--tls-cipher-suites={ciphers}")
            ]
        );
        assert_eq!(
            default.nginx(),
            "ssl_protocols TLSv1.2 TLSv1.3;\n\
             ssl_ciphers ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:\
             ECDHE-RSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:ECDHE-RSA-CHACHA20-POLY1305;\n\
             ssl_prefer_server_ciphers on;\n"
        );
        assert_eq!(strict(&json!({ "type": "Custom" })), default);
    }

    // cluster-network#158
    #[test]
    fn modern_profile_has_no_ciphers() {
        let modern = strict(&json!({ "type": "Modern" }));
        assert_eq!(modern.flags(), ["--tls-min-version=VersionTLS13"]);
        assert_eq!(
            modern.nginx(),
            "ssl_protocols TLSv1.3;\nssl_prefer_server_ciphers on;\n"
        );
    }

    // cluster-network#158
    #[test]
    fn custom_profile_names_ciphers_of_openssl_or_iana() {
        let custom = |min: &str, ciphers: Value| {
            strict(&json!({ "type": "Custom", "custom": { "minTLSVersion": min, "ciphers": ciphers } }))
        };
        let mixed = json!([
            "TLS_AES_128_GCM_SHA256",
            "AES128-SHA",
            "x; include /etc/passwd",
            "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
        ]);
        let old = custom("VersionTLS11", mixed);
        assert_eq!(
            old.flags(),
            [
                "--tls-min-version=VersionTLS11",
                "--tls-cipher-suites=TLS_RSA_WITH_AES_128_CBC_SHA,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
            ]
        );
        assert_eq!(
            old.nginx(),
            "ssl_protocols TLSv1.1 TLSv1.2 TLSv1.3;\n\
             ssl_ciphers AES128-SHA:ECDHE-RSA-AES128-GCM-SHA256;\nssl_prefer_server_ciphers on;\n"
        );
        for (min, ciphers, expected) in [
            (
                "VersionTLS12",
                json!(["TLS_AES_128_GCM_SHA256"]),
                "--tls-min-version=VersionTLS13",
            ),
            ("VersionTLS12", json!([]), "--tls-min-version=VersionTLS12"),
            ("VersionTLS9", json!([]), "--tls-min-version=VersionTLS12"),
        ] {
            assert_eq!(custom(min, ciphers).flags(), [expected]);
        }
    }

    // cluster-network#158
    #[test]
    fn old_profile_begins_with_version_1_0() {
        let old = strict(&json!({ "type": "Old" }));
        assert_eq!(old.flags()[0], "--tls-min-version=VersionTLS10");
        assert!(
            old.nginx()
                .starts_with("ssl_protocols TLSv1 TLSv1.1 TLSv1.2 TLSv1.3;\n")
        );
        assert!(old.flags()[1].ends_with("TLS_RSA_WITH_3DES_EDE_CBC_SHA"));
    }
}
