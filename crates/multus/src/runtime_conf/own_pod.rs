//! The pod of this process, by its service account token.

use crate::names;
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use kube_kit::watch::Name;
use serde::Deserialize;
use std::fs;
use std::path::Path;

/// A pod that a token is bound to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwnPod {
    /// Namespace and name.
    pub name: Name,
    /// UID.
    pub uid: String,
}

/// Claims of the token, a JWT (RFC 7519) with Kubernetes' private claim (KEP-1205).
#[derive(Deserialize)]
struct Claims {
    #[serde(rename = "kubernetes.io")]
    kubernetes: Kubernetes,
}

#[derive(Deserialize)]
struct Kubernetes {
    namespace: String,
    pod: Bound,
}

#[derive(Deserialize)]
struct Bound {
    name: String,
    uid: String,
}

impl OwnPod {
    /// The pod of this process; `None` outside a pod.
    pub fn read() -> Option<Self> {
        Self::of_token(&fs::read_to_string(Path::new(names::ACCOUNT_DIR).join(names::TOKEN)).ok()?)
    }

    /// The pod that a token is bound to; `None` for an unbound token.
    pub fn of_token(token: &str) -> Option<Self> {
        let claims = URL_SAFE_NO_PAD.decode(token.trim().split('.').nth(1)?).ok()?;
        let Claims {
            kubernetes: Kubernetes { namespace, pod },
        } = serde_json::from_slice(&claims).ok()?;
        Some(Self {
            name: Name::new(&namespace, &pod.name),
            uid: pod.uid,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn token_identifies_its_pod() {
        let token = |claims: &serde_json::Value| {
            let part = |text: &str| URL_SAFE_NO_PAD.encode(text);
            format!(
                "{}.{}.c2ln\n",
                part(r#"{"alg":"RS256"}"#),
                part(&claims.to_string())
            )
        };
        let of = |claims| OwnPod::of_token(&token(&claims));
        let bound = json!({"aud": ["x"], "kubernetes.io": {"namespace": "ns", "node": {"name": "n", "uid": "1"},
            "pod": {"name": "multus-abcde", "uid": "u"}, "serviceaccount": {"name": "multus", "uid": "s"}}});
        let expected = OwnPod {
            name: Name::new("ns", "multus-abcde"),
            uid: "u".into(),
        };
        assert_eq!(of(bound), Some(expected));
        let unbound =
            json!({"kubernetes.io": {"namespace": "ns", "serviceaccount": {"name": "multus", "uid": "s"}}});
        assert_eq!(of(unbound), None);
        assert_eq!(of(json!({"sub": "system:serviceaccount:ns:multus"})), None);
        for malformed in ["", "a", "a.b", "a.!.c"] {
            assert_eq!(OwnPod::of_token(malformed), None, "{malformed}");
        }
    }
}
