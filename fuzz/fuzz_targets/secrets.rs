//! Documents of node state, and texts about them: no secret of a document is left in what others can read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use serde_json::Value;
use weft_nmstate::render::PolicySpec;
use weft_nmstate::secrets::{HIDDEN, has_hidden, hidden, hidden_in};
use weft_nmstate::{filter, legacy, yaml};

/// Aliases make much of a few bytes: a larger document is read, but not searched for secrets.
const LIMIT: usize = 64 * 1024;
/// Keys of secrets.
const KEYS: [&str; 4] = ["password", "private-key-password", "mka-cak", "psk"];

// Documents as YAML or JSON, a zero byte, a text.
fuzz_target!(|input: &str| {
    let (documents, text) = input.split_once('\0').unwrap_or((input, ""));
    for document in yaml::documents(documents).unwrap_or_default() {
        check(&document, text);
        // As the spec of a policy, and as the state of a host.
        let _ = PolicySpec::read(&document);
        let _ = legacy::max_unavailable(&document);
        let _ = (legacy::needs_lldp(&document), legacy::priority(&document));
        let _ = filter::report(document, |name| name.starts_with("veth"));
    }
});

fn check(document: &Value, text: &str) {
    let whole = document.to_string();
    if whole.len() > LIMIT {
        return;
    }
    let mut found = Vec::new();
    collect(document, false, &mut found);
    let shown = hidden(document);
    let mut left = Vec::new();
    collect(&shown, false, &mut left);
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(has_hidden(&shown), has_hidden(document) || !found.is_empty());
    // The document in the quoting of both kinds of error texts.
    let shown = hidden_in(&format!("{text} {whole} {document:?}"), document);
    for secret in found.iter().filter(|secret| !secret.is_empty()) {
        // The replacement may contain a short secret.
        for part in shown.split(HIDDEN) {
            assert!(!part.contains(secret.as_str()), "{secret:?} in {part:?}");
        }
    }
}

/// The secrets of a document, verbatim and as JSON.
fn collect(document: &Value, secret: bool, found: &mut Vec<String>) {
    match document {
        Value::Object(members) => {
            for (key, value) in members {
                collect(value, secret || KEYS.contains(&key.as_str()), found);
            }
        }
        Value::Array(items) => items.iter().for_each(|item| collect(item, secret, found)),
        Value::String(text) if secret && text != HIDDEN => {
            let quoted = document.to_string();
            found.extend([text.clone(), quoted[1..quoted.len() - 1].to_owned()]);
        }
        Value::Bool(_) | Value::Number(_) if secret => found.push(document.to_string()),
        _ => {}
    }
}
