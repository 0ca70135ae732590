//! Secrets in documents, and how they are kept out of what others read.

use serde_json::Value;

/// What stands for a secret. The nmstate library takes it for whatever the host has.
pub const HIDDEN: &str = "<_password_hid_by_nmstate>";

/// Keys whose values are secret: of 802.1X, `MACsec` and `IPsec`.
const KEYS: [&str; 4] = ["password", "private-key-password", "mka-cak", "psk"];

/// The document as others may read it.
pub fn hidden(document: &Value) -> Value {
    let mut shown = document.clone();
    each(&mut shown, &mut |secret| *secret = HIDDEN.into());
    shown
}

/// Whether something in the document is hidden.
pub fn has_hidden(document: &Value) -> bool {
    match document {
        Value::String(text) => text == HIDDEN,
        Value::Array(items) => items.iter().any(has_hidden),
        Value::Object(members) => members.values().any(has_hidden),
        _ => false,
    }
}

/// The text without the secrets of the document.
pub fn hidden_in(text: &str, document: &Value) -> String {
    let mut secrets = Vec::new();
    each(&mut document.clone(), &mut |secret| {
        secrets.push(secret.as_str().map_or_else(|| secret.to_string(), str::to_owned));
    });
    // The longest first: one secret may be part of another.
    secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    secrets
        .iter()
        .filter(|secret| !secret.is_empty())
        .fold(text.to_owned(), |text, secret| {
            text.replace(secret.as_str(), HIDDEN)
        })
}

fn each(document: &mut Value, found: &mut dyn FnMut(&mut Value)) {
    match document {
        Value::Object(members) => {
            for (key, value) in members {
                match value {
                    // A password without quotes may be no text, and is refused with its value in the error.
                    Value::String(_) | Value::Number(_) | Value::Bool(_) if KEYS.contains(&key.as_str()) => {
                        if value != HIDDEN {
                            found(value);
                        }
                    }
                    value => each(value, found),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| each(item, found)),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn secrets_are_hidden_wherever_they_are() {
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
    fn secrets_that_are_no_texts_are_hidden() {
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
}
