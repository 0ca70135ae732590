//! Which specs are run: those that a focus matches, without those that are left out for a reason.

use crate::error::{Error, Result};

/// The specs that are left out, with their reasons.
const LEFT_OUT: &str = include_str!("../left-out.txt");

/// What is run where no focus is given, as regular expressions of Go, any of which may match the name of a spec.
pub const FOCUS: [&str; 5] = [
    r"\[sig-network\].*\[Conformance\]",
    r"\[sig-network\] HostPort",
    r"\[sig-network\] \[Feature:IPv6DualStack\]",
    r"\[sig-network\] Networking Granular Checks",
    r"\[sig-network\] Services",
];

/// Specs that are left out for the same reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// Why.
    pub reason: String,
    /// Texts; a spec is left out when its name contains one of them.
    pub parts: Vec<String>,
}

impl LeftOut {
    /// All of them, as the file beside this crate lists them.
    pub fn all() -> Result<Vec<Self>> {
        parse(LEFT_OUT)
    }

    fn matches(&self, name: &str) -> bool {
        self.parts.iter().any(|part| name.contains(part))
    }
}

/// The first reason to leave out the spec `name`.
pub(crate) fn reason<'a>(left_out: &'a [LeftOut], name: &str) -> Option<&'a str> {
    let group = left_out.iter().find(|group| group.matches(name))?;
    Some(&group.reason)
}

/// A reason is a line, and the indented lines below it are the texts that it holds for. Lines that begin with `#` are
/// comments.
fn parse(text: &str) -> Result<Vec<LeftOut>> {
    let mut groups: Vec<LeftOut> = Vec::new();
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    for (line, text) in lines {
        let content = text.trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        if !text.starts_with(char::is_whitespace) {
            groups.push(LeftOut {
                reason: content.to_owned(),
                parts: Vec::new(),
            });
        } else if let Some(group) = groups.last_mut() {
            group.parts.push(content.to_owned());
        } else {
            return Err(Error::LeftOut {
                line,
                what: "a text stands before the first reason",
            });
        }
    }
    Ok(groups)
}

/// A regular expression of Go that matches `text` and nothing else.
pub(crate) fn literally(text: &str) -> String {
    let mut pattern = String::with_capacity(text.len() * 2);
    for c in text.chars() {
        if c.is_ascii_punctuation() {
            pattern.push('\\');
        }
        pattern.push(c);
    }
    pattern
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_of_the_file_has_texts() {
        let groups = LeftOut::all().unwrap();
        assert!(!groups.is_empty());
        for group in groups {
            assert!(!group.parts.is_empty(), "{} has no text", group.reason);
            assert!(group.reason.ends_with('.'), "{} is no sentence", group.reason);
        }
    }

    #[test]
    fn first_reason_counts() {
        let groups =
            parse("# comment\nNo cloud.\n    LoadBalancer\n    [Provider:\nSlow.\n    Load\n").unwrap();
        assert_eq!(reason(&groups, "Services LoadBalancer works"), Some("No cloud."));
        assert_eq!(reason(&groups, "under Load"), Some("Slow."));
        assert_eq!(reason(&groups, "Services works"), None);
    }

    #[test]
    fn text_without_a_reason_is_refused() {
        let error = parse("\n   LoadBalancer\n").unwrap_err();
        assert_eq!(
            error.to_string(),
            "left-out.txt, line 2: a text stands before the first reason"
        );
    }

    #[test]
    fn punctuation_means_itself() {
        assert_eq!(literally("[sig-network] a+b"), r"\[sig\-network\] a\+b");
    }
}
