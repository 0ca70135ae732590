//! Hides secrets of documents in everything that others can read.

use serde_json::Value;

/// Replacement of a secret. The nmstate library interprets it as the secret that the host has.
pub const HIDDEN: &str = "<_password_hid_by_nmstate>";

/// Keys whose values are secret: of 802.1X, `MACsec` and `IPsec`.
const KEYS: [&str; 4] = ["password", "private-key-password", "mka-cak", "psk"];

/// The document with hidden secrets.
pub fn hidden(document: &Value) -> Value {
    let mut shown = document.clone();
    each(&mut shown, &mut |secret| *secret = HIDDEN.into());
    shown
}

/// Whether the document has a hidden secret.
pub fn has_hidden(document: &Value) -> bool {
    match document {
        Value::String(text) => text == HIDDEN,
        Value::Array(items) => items.iter().any(has_hidden),
        Value::Object(members) => members.values().any(has_hidden),
        _ => false,
    }
}

/// The text without the secrets of the document, in any quoting.
pub fn hidden_in(text: &str, document: &Value) -> String {
    // A marker that the text has already: a short secret may be a part of it.
    let mut secrets = vec![HIDDEN.to_owned()];
    each(&mut document.clone(), &mut |secret| match secret {
        Value::String(secret) => secrets.extend(quoted(secret)),
        secret => secrets.push(secret.to_string()),
    });
    secrets.retain(|secret| !secret.is_empty());
    secrets.sort_unstable();
    secrets.dedup();
    // All are found in the text itself. If they were replaced one after the other, a short secret would be found in the
    // replacements of others, and the text would grow with each.
    let mut found: Vec<(usize, usize)> = secrets
        .iter()
        .flat_map(|secret| text.match_indices(secret.as_str()))
        .map(|(start, secret)| (start, start + secret.len()))
        .collect();
    found.sort_unstable();
    let mut shown = String::with_capacity(text.len());
    let mut end = 0;
    for (start, its_end) in found {
        // One secret may contain or overlap another.
        if start >= end {
            shown.push_str(&text[end..start]);
            shown.push_str(HIDDEN);
        }
        end = end.max(its_end);
    }
    shown.push_str(&text[end..]);
    shown
}

/// The forms of a secret in texts: verbatim, escaped as JSON, and as Rust's `Debug`.
fn quoted(secret: &str) -> [String; 3] {
    let inside = |quoted: String| {
        let inside = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
        inside.unwrap_or_default().to_owned()
    };
    [
        secret.to_owned(),
        inside(Value::from(secret).to_string()),
        inside(format!("{secret:?}")),
    ]
}

fn each(document: &mut Value, found: &mut dyn FnMut(&mut Value)) {
    match document {
        Value::Object(members) => {
            for (key, value) in members {
                if KEYS.contains(&key.as_str()) {
                    each_below(value, found);
                } else {
                    each(value, found);
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| each(item, found)),
        _ => {}
    }
}

/// Handles everything below the key of a secret. An unquoted password may be a number, and the library's error repeats
/// it.
fn each_below(secret: &mut Value, found: &mut dyn FnMut(&mut Value)) {
    match secret {
        Value::Object(members) => members.values_mut().for_each(|member| each_below(member, found)),
        Value::Array(items) => items.iter_mut().for_each(|item| each_below(item, found)),
        Value::Null => {}
        secret if secret == HIDDEN => {}
        secret => found(secret),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_hidden_at_any_depth() {
        let document = json!({"interfaces": [
            {"name": "eth1", "802.1x": {"identity": "me", "password": "first", "private-key-password": "first2"}},
            {"name": "macsec0", "macsec": {"mka-cak": "00ff", "mka-ckn": "aa"}},
            {"name": "ipsec0", "libreswan": {"psk": "third", "left": "192.0.2.1"}}]});
        assert_eq!(
            hidden(&document),
            json!({"interfaces": [
                {"name": "eth1", "802.1x": {"identity": "me", "password": HIDDEN, "private-key-password": HIDDEN}},
                {"name": "macsec0", "macsec": {"mka-cak": HIDDEN, "mka-ckn": "aa"}},
                {"name": "ipsec0", "libreswan": {"psk": HIDDEN, "left": "192.0.2.1"}}]})
        );
        assert_eq!(
            hidden_in("me: first2 and first, 00ff, third of 192.0.2.1", &document),
            format!("me: {HIDDEN} and {HIDDEN}, {HIDDEN}, {HIDDEN} of 192.0.2.1")
        );
    }

    #[test]
    fn secrets_that_are_no_strings_are_hidden() {
        let document = json!({"interfaces": [
            {"name": "eth1", "mtu": 1500, "802.1x": {"password": 12_345_678, "private-key-password": true}}]});
        let shown = hidden(&document);
        assert_eq!(
            shown,
            json!({"interfaces": [
                {"name": "eth1", "mtu": 1500, "802.1x": {"password": HIDDEN, "private-key-password": HIDDEN}}]})
        );
        assert_eq!(
            hidden_in(
                "invalid type: integer `12345678`, boolean `true`, 1500",
                &document
            ),
            format!("invalid type: integer `{HIDDEN}`, boolean `{HIDDEN}`, 1500")
        );
        assert_eq!((has_hidden(&document), has_hidden(&shown)), (false, true));
    }

    #[test]
    fn everything_below_the_key_of_a_secret_is_hidden() {
        let document = json!({"password": ["first", {"a": "second", "b": [3, null]}], "name": ["first"]});
        assert_eq!(
            hidden(&document),
            json!({"password": [HIDDEN, {"a": HIDDEN, "b": [HIDDEN, null]}], "name": ["first"]})
        );
    }

    #[test]
    fn keys_of_secrets_are_those_of_the_library() {
        let document = json!({"interfaces": [
            {"name": "eth1", "type": "ethernet", "state": "up", "802.1x": {
                "identity": "me", "eap-methods": ["tls"], "password": "first", "private-key": "/a",
                "private-key-password": "second", "client-cert": "/b", "ca-cert": "/c"}},
            {"name": "macsec0", "type": "macsec", "state": "up", "macsec": {
                "encrypt": true, "base-iface": "eth1", "mka-cak": "50b71a8ef0bd5751ea76de6d6c98c03a",
                "mka-ckn": "f2b4297d39da7330910a74abc0449feb45b5c0b9fc23df1430e1898fcf1c4550",
                "port": 0, "validation": "strict", "send-sci": true}},
            {"name": "ipsec0", "type": "ipsec", "state": "up", "libreswan": {
                "psk": "third", "left": "192.0.2.1", "right": "192.0.2.2"}}]});
        let mut state: nmstate::NetworkState = serde_json::from_value(document).expect("a state");
        let whole = serde_json::to_value(&state).expect("JSON");
        state.hide_secrets();
        let expected = serde_json::to_value(&state).expect("JSON");
        assert_ne!(whole, expected);
        assert_eq!(hidden(&whole), expected);
    }

    #[test]
    fn secrets_that_occur_in_the_replacement_are_hidden_once() {
        let interfaces = vec![json!({"802.1x": {"password": "s", "private-key-password": "pass"}}); 100];
        let document = json!({ "interfaces": interfaces });
        let shown = hidden_in("x s pass", &document);
        assert_eq!(shown, format!("x {HIDDEN} {HIDDEN}"));
        assert_eq!(hidden_in(&shown, &document), shown);
    }

    #[test]
    fn overlapping_secrets_leave_no_part() {
        let document = json!({"password": ["abc", "cde", "b"]});
        assert_eq!(
            hidden_in("xabcdex abccde", &document),
            format!("x{HIDDEN}x {HIDDEN}{HIDDEN}")
        );
    }

    proptest! {
        #[test]
        fn secrets_are_hidden_in_any_quoting(
            secret in "[a-z\"\\\\\\n\t'äñ€ ]{4,12}",
            before in "[A-Z ]{0,5}",
        ) {
            // Letters at both ends separate the secret from the quotes around it.
            let secret = format!("x{secret}z");
            let document = json!({"802.1x": {"password": secret.clone()}});
            let text = format!("{before}{secret} {secret:?} {} {document} {document:?}", Value::from(secret.clone()));
            let shown = hidden_in(&text, &document);
            for form in quoted(&secret) {
                prop_assert!(!shown.replace(HIDDEN, "").contains(&form), "{shown}");
            }
        }
    }
}
