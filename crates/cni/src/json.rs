//! JSON with the key rules of Go, which users' configs rely on.
//!
//! Keys match case-insensitively at every depth (a key names the field it equals, else one it folds to; of several keys
//! for a field the last wins), `null` leaves the default, unknown keys are ignored (`docs/behaviour/multus.md` §0). Serde's aliases can not do that: they
//! are case-sensitive, and two spellings of one key are an error. [`from_slice`] therefore reads the document once into
//! [`Node`]s, folds the keys of every struct onto the struct's field names, and only then lets serde build the type.
//!
//! [`Object`] is lossless: a config that is passed on keeps its text. Only keys that are set change; unknown keys,
//! the order of keys, and numbers beyond 2^53 are preserved.

mod fields;
mod node;
mod object;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use fields::fields_of;
pub use node::Node;
pub use object::Object;

/// A document could not be parsed. The message names line and column, or the key.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(pub(crate) String);

impl serde::de::Error for Error {
    fn custom<T: std::fmt::Display>(message: T) -> Self {
        Self(message.to_string())
    }
}

impl From<serde_json::Error> for Error {
    fn from(error: serde_json::Error) -> Self {
        Self(error.to_string())
    }
}

/// Parses `T` with Go's rules for keys. `T` must not use `serde(flatten)`, nor contain raw texts ([`Object`],
/// `RawValue`): read those by [`Object::get`].
pub fn from_slice<T: DeserializeOwned>(text: &[u8]) -> Result<T, Error> {
    let node: Node = serde_json::from_slice(text)?;
    T::deserialize(node)
}

/// [`from_slice`] for a text.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, Error> {
    from_slice(text.as_bytes())
}

/// Whether `key` names `field`, as Go folds: ASCII case, and the two letters outside ASCII that fold into it
/// (U+017F long s, U+212A Kelvin sign).
pub fn folds_to(key: &str, field: &str) -> bool {
    if key.is_ascii() {
        return key.eq_ignore_ascii_case(field);
    }
    let fold = |c: char| match c {
        '\u{17f}' => 's',
        '\u{212a}' => 'k',
        other => other.to_ascii_lowercase(),
    };
    key.chars().map(fold).eq(field.chars().map(fold))
}

/// The format of CNI plugins: indented by four spaces, without a final newline.
pub fn pretty(value: &impl Serialize) -> String {
    let mut out = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut out, formatter);
    match value.serialize(&mut serializer) {
        Ok(()) => String::from_utf8_lossy(&out).into_owned(),
        // Only maps with keys other than texts can fail, and no type here has them.
        Err(error) => format!("{{\"code\": 999, \"msg\": \"cannot print: {error}\"}}"),
    }
}

/// The text of a JSON document without the white space between its tokens: one line, numbers as they were written.
pub fn compact(text: &str) -> String {
    let (mut in_string, mut escaped) = (false, false);
    let keep = |c: &char| {
        if in_string {
            in_string = escaped || *c != '"';
            escaped = !escaped && *c == '\\';
            return true;
        }
        in_string = *c == '"';
        !c.is_ascii_whitespace()
    };
    text.chars().filter(keep).collect()
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(default, rename_all = "camelCase")]
    struct Outer {
        is_gateway: bool,
        mtu: u32,
        ipam: Inner,
        names: Vec<Inner>,
        wanted: Option<bool>,
        big: u64,
    }

    #[derive(Debug, Default, Deserialize, PartialEq)]
    #[serde(default)]
    struct Inner {
        subnet: String,
    }

    #[test]
    fn keys_match_in_any_case_at_every_depth() {
        // cni-plugins#7, multus#12
        let read: Outer = from_str(
            r#"{"ISGATEWAY": true, "Mtu": 9000, "IPAM": {"SubNet": "a"}, "names": [{"SUBNET": "b"}]}"#,
        )
        .unwrap();
        assert!(read.is_gateway);
        assert_eq!(read.mtu, 9000);
        assert_eq!(read.ipam.subnet, "a");
        assert_eq!(read.names[0].subnet, "b");
    }

    #[test]
    fn last_of_several_spellings_wins() {
        assert_eq!(from_str::<Outer>(r#"{"mtu": 1, "MTU": 2}"#).unwrap().mtu, 2);
        assert_eq!(from_str::<Outer>(r#"{"MTU": 2, "mtu": 1}"#).unwrap().mtu, 1);
        assert_eq!(from_str::<Outer>(r#"{"mtu": 1, "mtu": 3}"#).unwrap().mtu, 3);
        assert_eq!(from_str::<Outer>(r#"{"MTU": 1, "Mtu": 4}"#).unwrap().mtu, 4);
    }

    #[test]
    fn the_two_letters_outside_ascii_fold() {
        assert_eq!(
            from_str::<Inner>("{\"\u{17f}ubnet\": \"x\"}").unwrap().subnet,
            "x"
        );
    }

    #[test]
    fn null_leaves_the_default_and_unknown_keys_are_ignored() {
        let read: Outer =
            from_str(r#"{"mtu": null, "ipam": null, "wanted": null, "other": {"x": [1]}}"#).unwrap();
        assert_eq!(read, Outer::default());
    }

    #[test]
    fn a_wrong_type_is_an_error_that_names_the_key() {
        let error = from_str::<Outer>(r#"{"mtu": "big"}"#).unwrap_err().to_string();
        assert!(error.contains("mtu"), "{error}");
        assert!(from_str::<Outer>("{").is_err());
        assert!(from_str::<Outer>("[]").is_err());
    }

    #[test]
    fn compact_text_is_one_line_with_all_its_strings() {
        let text = "{ \"a b\" : \"c \\\" \\\\\" ,\n\t\"n\": [ 1.50 , 9007199254740993 ] }";
        assert_eq!(compact(text), r#"{"a b":"c \" \\","n":[1.50,9007199254740993]}"#);
    }

    #[test]
    fn large_numbers_are_exact() {
        assert_eq!(
            from_str::<Outer>(r#"{"big": 9007199254740993}"#).unwrap().big,
            9_007_199_254_740_993
        );
    }
}
