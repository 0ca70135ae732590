//! URL paths of the API server with names from other sources.
//!
//! Annotations and reviews contain names that no API server has validated. A name with a slash or a question mark would
//! address another object, and an empty name would list all of them.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};

use crate::watch::Name;

/// Characters that are encoded in a query: all but the unreserved ones (RFC 3986 §2.3).
const RESERVED: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'.')
    .remove(b'_')
    .remove(b'~');

/// A text that cannot be the name of an object or of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid resource name {0:?}: it must consist of letters, digits, '-', '.', '_', '~' or ':'")]
pub struct NotAName(String);

impl From<NotAName> for kube::Error {
    fn from(error: NotAName) -> Self {
        Self::BuildRequest(kube::core::request::Error::Validation(error.to_string()))
    }
}

/// Checks that a text is a valid path segment without encoding: letters, digits, `-`, `.`, `_`, `~` and `:` (RFC 3986
/// §2.3; names of roles contain the colon), and neither `.` nor `..`.
///
/// # Errors
/// If it contains anything else; the error has the text.
pub fn segment(text: &str) -> Result<&str, NotAName> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:".contains(&byte);
    if matches!(text, "" | "." | "..") || !text.bytes().all(is_plain) {
        return Err(NotAName(text.to_owned()));
    }
    Ok(text)
}

/// Whether a text is a DNS label (RFC 1123), such as the name of a namespace: lower-case letters, digits and inner
/// hyphens, at most 63.
#[must_use]
pub fn is_label(text: &str) -> bool {
    const LONGEST: usize = 63;
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=LONGEST).contains(&text.len())
        && text.bytes().all(is_inner)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// The URL path of a namespaced object: `api` is `/api/v1` or `/apis/<group>/<version>`, `resource` its plural.
///
/// # Errors
/// If namespace or name is not a valid path segment.
pub fn namespaced(api: &str, resource: &str, name: &Name) -> Result<String, NotAName> {
    let (namespace, name) = (segment(&name.namespace)?, segment(&name.name)?);
    Ok(format!("{api}/namespaces/{namespace}/{resource}/{name}"))
}

/// Checks a namespace and a name before a request of `kube`, which inserts them into a path unchecked.
///
/// # Errors
/// If namespace or name is not a valid path segment.
pub fn check(namespace: &str, name: &str) -> Result<(), NotAName> {
    segment(namespace).and(segment(name)).map(drop)
}

/// Encodes a value of a query.
pub fn query(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_has_letters_digits_and_inner_hyphens() {
        let longest = "a".repeat(63);
        for right in ["a", "0", "kube-system", longest.as_str()] {
            assert!(is_label(right), "{right}");
        }
        let too_long = "a".repeat(64);
        for wrong in ["", "-a", "a-", "A", "a.b", "a,b", "a b", "é", too_long.as_str()] {
            assert!(!is_label(wrong), "{wrong}");
        }
    }

    #[test]
    fn segment_refuses_name_that_changes_path() {
        // multus#106
        for wrong in [
            "",
            ".",
            "..",
            "x?watch=1",
            "../../b/network-attachment-definitions/secret",
            "a/b",
            "a%2fb",
            "a b",
            "é",
            "a\n",
        ] {
            assert_eq!(segment(wrong), Err(NotAName(wrong.into())));
            assert_eq!(check("ns", wrong), Err(NotAName(wrong.into())));
            assert_eq!(check(wrong, "n"), Err(NotAName(wrong.into())));
            assert!(namespaced("/api/v1", "pods", &Name::new("ns", wrong)).is_err());
            assert!(namespaced("/api/v1", "pods", &Name::new(wrong, "n")).is_err());
        }
        for right in [
            "a",
            "kube-system",
            "a.b-c.example.com",
            "system:node",
            "...",
            "A_b~1",
        ] {
            assert_eq!(segment(right), Ok(right));
        }
        assert_eq!(
            namespaced(
                "/apis/k8s.cni.cncf.io/v1",
                "network-attachment-definitions",
                &Name::new("a", "b")
            )
            .unwrap(),
            "/apis/k8s.cni.cncf.io/v1/namespaces/a/network-attachment-definitions/b"
        );
    }

    #[test]
    fn query_encodes_reserved_characters() {
        assert_eq!(
            query("spec.nodeName=n,spec.driver=x/y&limit=1"),
            "spec.nodeName%3Dn%2Cspec.driver%3Dx%2Fy%26limit%3D1"
        );
        assert_eq!(query("é~"), "%C3%A9~");
    }
}
