//! The filter of older releases, which hides interfaces whose names match a pattern (nmstate §5.3).

use serde::Deserialize;

use crate::yaml::{self, Malformed};

/// Content of the ConfigMap's file.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Config {
    interfaces_filter: Option<String>,
}

/// Hidden names: `*` matches any text, `?` any character, `[a-c]` and `[!a-c]` one of a set, `{veth*,cali*}` one of
/// several patterns.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Names {
    /// Patterns without braces.
    patterns: Vec<String>,
}

/// Maximum number of patterns that braces expand to.
const MAX_PATTERNS: usize = 256;

impl Names {
    /// Reads the ConfigMap's file; without a pattern nothing is hidden.
    pub(crate) fn read(file: &str) -> Result<Self, Malformed> {
        let config: Option<Config> = yaml::document(file)?;
        let pattern = config.unwrap_or_default().interfaces_filter;
        Ok(Self::new(&pattern.unwrap_or_default()))
    }

    /// Names that match a pattern; none for an empty pattern.
    pub(crate) fn new(pattern: &str) -> Self {
        let mut patterns = Vec::new();
        if !pattern.is_empty() {
            expand(pattern, &mut patterns);
        }
        Self { patterns }
    }

    /// Whether a name matches.
    pub(crate) fn contains(&self, name: &str) -> bool {
        let name: Vec<char> = name.chars().collect();
        self.patterns.iter().any(|pattern| {
            let pattern: Vec<char> = pattern.chars().collect();
            matches(&pattern, &name)
        })
    }
}

/// Expands the first braces of a pattern, and recurses.
fn expand(pattern: &str, patterns: &mut Vec<String>) {
    let braces = pattern.find('{').and_then(|open| {
        let mut depth = 0_u32;
        let mut cuts = vec![open];
        for (at, character) in pattern[open..].char_indices().map(|(at, it)| (open + at, it)) {
            match character {
                '{' => depth += 1,
                '}' if depth == 1 => {
                    cuts.push(at);
                    return Some(cuts);
                }
                '}' => depth -= 1,
                ',' if depth == 1 => cuts.push(at),
                _ => {}
            }
        }
        None
    });
    let Some(cuts) = braces else {
        if patterns.len() < MAX_PATTERNS {
            patterns.push(pattern.to_owned());
        }
        return;
    };
    let (Some(open), Some(close)) = (cuts.first(), cuts.last()) else {
        return;
    };
    for cut in cuts.windows(2) {
        if patterns.len() >= MAX_PATTERNS {
            return;
        }
        let one = &pattern[cut[0] + 1..cut[1]];
        expand(
            &format!("{}{one}{}", &pattern[..*open], &pattern[close + 1..]),
            patterns,
        );
    }
}

/// Whether a whole name matches a pattern without braces. It backtracks only to the last `*`, so the time is bounded by
/// the product of both lengths.
fn matches(pattern: &[char], name: &[char]) -> bool {
    let (mut at, mut read) = (0, 0);
    let mut retry = None;
    while read < name.len() {
        match element(&pattern[at..]) {
            Some((Element::Any, length)) => {
                retry = Some((at + length, read));
                at += length;
                continue;
            }
            Some((Element::One(set), length)) if set.has(name[read]) => {
                at += length;
                read += 1;
                continue;
            }
            _ => {}
        }
        let Some((after, from)) = retry else {
            return false;
        };
        retry = Some((after, from + 1));
        (at, read) = (after, from + 1);
    }
    pattern[at..].iter().all(|character| *character == '*')
}

enum Element<'a> {
    Any,
    One(Set<'a>),
}

enum Set<'a> {
    All,
    Exactly(char),
    Listed { inverted: bool, list: &'a [char] },
}

impl Set<'_> {
    fn has(&self, character: char) -> bool {
        match self {
            Self::All => true,
            Self::Exactly(one) => *one == character,
            Self::Listed { inverted, list } => {
                let mut rest = *list;
                let mut found = false;
                while let [first, ..] = rest {
                    if let [_, '-', last, ..] = rest {
                        found |= (*first..=*last).contains(&character);
                        rest = &rest[3..];
                    } else {
                        found |= *first == character;
                        rest = &rest[1..];
                    }
                }
                found != *inverted
            }
        }
    }
}

/// The first element of a pattern, and its length in characters.
fn element(pattern: &[char]) -> Option<(Element<'_>, usize)> {
    let one = |set, length| Some((Element::One(set), length));
    match pattern {
        [] => None,
        ['*', ..] => Some((Element::Any, 1)),
        ['?', ..] => one(Set::All, 1),
        ['\\', escaped, ..] => one(Set::Exactly(*escaped), 2),
        ['[', rest @ ..] => {
            let Some(end) = rest.iter().position(|character| *character == ']') else {
                return one(Set::Exactly('['), 1);
            };
            let inverted = rest.first() == Some(&'!');
            let list = &rest[usize::from(inverted)..end];
            one(Set::Listed { inverted, list }, end + 2)
        }
        [other, ..] => one(Set::Exactly(*other), 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case("veth*", &["veth0", "veth"], &["eth0", "xveth0"])]
    #[case("{veth*,cali*}", &["veth0", "cali12"], &["eth0", "xveth,cali"])]
    #[case("*", &["", "lo"], &[])]
    #[case("e?h[0-3]", &["eth0", "exh3"], &["eth4", "eth"])]
    #[case("eth[!01]", &["eth2"], &["eth0", "eth1"])]
    #[case("a{b{c,d},e}*f", &["abcf", "abdxf", "aef"], &["abf", "acf"])]
    #[case("eth{0", &["eth{0"], &["eth0"])]
    #[case("v*h*0", &["veth0", "vhh10"], &["veth1"])]
    fn pattern_matches_names(#[case] pattern: &str, #[case] those: &[&str], #[case] others: &[&str]) {
        let names = Names::new(pattern);
        for name in those {
            assert!(names.contains(name), "{pattern} {name}");
        }
        for name in others {
            assert!(!names.contains(name), "{pattern} {name}");
        }
    }

    #[test]
    fn pattern_is_read_from_the_file() {
        let names = |file| Names::read(file).expect("a file");
        assert_eq!(names("interfaces_filter: 'veth*'\n"), Names::new("veth*"));
        for nothing in ["interfaces_filter: \"\"", "interfaces_filter:", "", "other: 1"] {
            assert_eq!(names(nothing), Names::default());
            assert!(!names(nothing).contains(""));
        }
        assert!(Names::read("interfaces_filter: [1").is_err());
    }

    proptest! {
        #[test]
        fn hostile_pattern_terminates(pattern in r"[a\*\?\[\]!\-\{\},\\]{0,24}", name in "[a\\[b]{0,15}") {
            Names::new(&pattern).contains(&name);
        }
    }
}
