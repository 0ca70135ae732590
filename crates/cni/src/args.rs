//! `CNI_ARGS`: `K=V;K2=V2` (cni-plugins §1.4).

use crate::error::{Error, code};

/// The pairs of `CNI_ARGS`, in order. Keys are case-sensitive.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CniArgs(Vec<(String, String)>);

/// Key that permits unknown keys.
const IGNORE_UNKNOWN: &str = "IgnoreUnknown";

impl CniArgs {
    /// Parses pairs separated by `;`. Each must have exactly one `=`.
    pub fn parse(text: &str) -> Result<Self, Error> {
        if text.is_empty() {
            return Ok(Self::default());
        }
        let pair = |pair: &str| {
            pair.split_once('=')
                .filter(|(_, value)| !value.contains('='))
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .ok_or_else(|| invalid(format!("ARGS: invalid pair \"{pair}\"")))
        };
        text.split(';').map(pair).collect::<Result<_, _>>().map(Self)
    }

    /// The last value of a key.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0
            .iter()
            .rev()
            .find(|(known, _)| known == key)
            .map(|(_, value)| value.as_str())
    }

    /// The pairs in order.
    pub fn pairs(&self) -> &[(String, String)] {
        &self.0
    }

    /// Checks that every key is in `known`, unless `IgnoreUnknown` is true.
    pub fn require_known(&self, known: &[&str]) -> Result<(), Error> {
        if self.ignores_unknown()? {
            return Ok(());
        }
        let unknown: Vec<String> = self
            .0
            .iter()
            .filter(|(key, _)| key != IGNORE_UNKNOWN && !known.contains(&key.as_str()))
            .map(|(key, value)| format!("\"{key}={value}\""))
            .collect();
        if unknown.is_empty() {
            return Ok(());
        }
        Err(invalid(format!("ARGS: unknown args [{}]", unknown.join(" "))))
    }

    fn ignores_unknown(&self) -> Result<bool, Error> {
        let Some(value) = self.get(IGNORE_UNKNOWN) else {
            return Ok(false);
        };
        match value.to_ascii_lowercase().as_str() {
            "1" | "true" => Ok(true),
            "0" | "false" => Ok(false),
            _ => Err(invalid(format!(
                "ARGS: error parsing value of pair \"{IGNORE_UNKNOWN}={value}\": boolean unmarshal error: invalid input {value}"
            ))),
        }
    }
}

impl std::fmt::Display for CniArgs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, (key, value)) in self.0.iter().enumerate() {
            write!(f, "{}{key}={value}", if index == 0 { "" } else { ";" })?;
        }
        Ok(())
    }
}

impl FromIterator<(String, String)> for CniArgs {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(pairs: T) -> Self {
        Self(pairs.into_iter().collect())
    }
}

fn invalid(msg: String) -> Error {
    Error::new(code::INTERNAL, msg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_in_order() {
        let args =
            CniArgs::parse("IgnoreUnknown=1;K8S_POD_NAME=a;MAC=02:00:00:00:00:01;MAC=02:00:00:00:00:02")
                .unwrap();
        assert_eq!(args.get("MAC"), Some("02:00:00:00:00:02"));
        assert_eq!(args.get("mac"), None);
        assert_eq!(args.pairs().len(), 4);
        assert_eq!(CniArgs::parse(&args.to_string()).unwrap(), args);
        assert_eq!(CniArgs::parse("").unwrap(), CniArgs::default());
    }

    #[test]
    fn a_pair_has_exactly_one_equals_sign() {
        for (text, pair) in [("a", "a"), ("a=b;c", "c"), ("a=b=c", "a=b=c"), ("a=b;", "")] {
            assert_eq!(
                CniArgs::parse(text).unwrap_err().msg,
                format!("ARGS: invalid pair \"{pair}\"")
            );
        }
    }

    #[test]
    fn unknown_keys_need_permission() {
        let known = &["MAC"];
        let of = |text: &str| {
            CniArgs::parse(text)
                .unwrap()
                .require_known(known)
                .map_err(|error| error.msg)
        };
        assert_eq!(of("MAC=x"), Ok(()));
        assert_eq!(of("IgnoreUnknown=TRUE;X=1"), Ok(()));
        assert_eq!(
            of("X=1;MAC=x;Y=2"),
            Err("ARGS: unknown args [\"X=1\" \"Y=2\"]".into())
        );
        assert_eq!(
            of("IgnoreUnknown=0;X=1"),
            Err("ARGS: unknown args [\"X=1\"]".into())
        );
        assert_eq!(
            of("IgnoreUnknown=maybe"),
            Err("ARGS: error parsing value of pair \"IgnoreUnknown=maybe\": boolean unmarshal error: invalid input maybe".into())
        );
    }
}
