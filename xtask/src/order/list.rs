//! The recorded functions, in their order: a digest of each name in a line.
//!
//! The names themselves would take 1.8 MiB.

use std::collections::{BTreeSet, HashMap};

use sha2::{Digest, Sha256};

/// The file, below the root of this repository, and its content.
pub(super) const FILE: &str = "xtask/src/order/functions.txt";
pub(super) const LIST: &str = include_str!("functions.txt");
const HEADER: &str =
    "# Digests of the functions that daemons call, in their order. Written by `cargo xtask order`.";

/// Returns the file for these symbols.
pub(super) fn text<'a>(symbols: impl Iterator<Item = &'a str>) -> String {
    let mut seen = BTreeSet::new();
    let mut text = format!("{HEADER}\n");
    for digest in symbols.map(digest).filter(|digest| seen.insert(digest.clone())) {
        text.push_str(&digest);
        text.push('\n');
    }
    text
}

/// Returns those of these symbols that are in a list, in its order.
pub(super) fn select<'a>(list: &str, symbols: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let places: HashMap<&str, usize> = entries(list)
        .enumerate()
        .map(|(place, digest)| (digest, place))
        .collect();
    let mut found: Vec<(usize, &str)> = symbols
        .filter_map(|symbol| Some((*places.get(digest(symbol).as_str())?, symbol)))
        .collect();
    found.sort_by_key(|(place, _)| *place);
    found.into_iter().map(|(_, symbol)| symbol).collect()
}

/// Returns the number of functions in a list, and how many of them these symbols contain.
pub(super) fn known<'a>(list: &str, symbols: impl Iterator<Item = &'a str>) -> [usize; 2] {
    let present: BTreeSet<String> = symbols.map(digest).collect();
    let found = entries(list).filter(|entry| present.contains(*entry));
    [entries(list).count(), found.count()]
}

/// Returns the digests of a list.
fn entries(list: &str) -> impl Iterator<Item = &str> {
    list.lines().filter(|line| !line.starts_with('#'))
}

fn digest(symbol: &str) -> String {
    short(&Sha256::digest(any_build(symbol)))
}

/// Returns the beginning of a digest as text.
pub(super) fn short(digest: &[u8]) -> String {
    digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// Removes the parts of a symbol that differ between builds: the identities of crates, references to an earlier
/// position, and the numbers of copies (<https://doc.rust-lang.org/rustc/symbol-mangling/v0.html>).
fn any_build(symbol: &str) -> String {
    if !symbol.starts_with("_R") {
        return symbol.to_owned();
    }
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    let mut rest = match symbol.rsplit_once('.') {
        Some((name, number)) if is_number(number) => name,
        _ => symbol,
    };
    let mut text = String::new();
    while let Some(next) = rest.chars().next() {
        let tag = ["Cs", "B"].into_iter().find(|tag| rest.starts_with(tag));
        let number = tag.and_then(|tag| {
            let (number, after) = rest[tag.len()..].split_once('_')?;
            let is_number = number.bytes().all(|byte| byte.is_ascii_alphanumeric());
            is_number.then_some((tag, after))
        });
        if let Some((tag, after)) = number {
            text.push_str(tag);
            rest = after;
        } else {
            text.push(next);
            rest = &rest[next.len_utf8()..];
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_no_parts_of_a_build() {
        for (symbol, expected) in [
            (
                "_RNvMs5_NtNtCsjrHSEGnQ3l9_3std2io5errorNtB5_5Error4kind.14640",
                "_RNvMs5_NtNtCs3std2io5errorNtB5Error4kind",
            ),
            ("_RNvC4core3one.x", "_RNvC4core3one.x"),
            ("aws_lc_B1_x", "aws_lc_B1_x"),
        ] {
            assert_eq!(any_build(symbol), expected);
        }
    }

    #[test]
    fn functions_of_another_build_are_selected_in_the_order_of_the_list() {
        let list = text(["_RNvCs1_4core3two", "free", "_RNvCs1_4core3two", "gone"].into_iter());
        assert_eq!(entries(&list).count(), 3);
        let symbols = [
            "_RNvCs2_4core3one",
            "free",
            "_RNvCs2_4core3two",
            "_RNvCs2_4core3two.7",
        ];
        assert_eq!(
            select(&list, symbols.into_iter()),
            ["_RNvCs2_4core3two", "_RNvCs2_4core3two.7", "free"]
        );
    }
}
