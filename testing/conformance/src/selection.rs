//! Selection of specs: those that a focus matches, except excluded ones.

use crate::error::{Error, Result};

/// The excluded specs, with their reasons.
const EXCLUDED: &str = include_str!("../excluded.txt");

/// The default focus: Go regular expressions. A spec is selected if one of them matches its name.
pub const FOCUS: [&str; 5] = [
    r"\[sig-network\].*\[Conformance\]",
    r"\[sig-network\] HostPort",
    r"\[sig-network\] \[Feature:IPv6DualStack\]",
    r"\[sig-network\] Networking Granular Checks",
    r"\[sig-network\] Services",
];

/// A focus on quick specs of each area, for the whole test run.
pub const QUICK_FOCUS: [&str; 5] = [
    r"\[sig-network\] DNS should provide DNS for (services|pods for Hostname) \[Conformance\]",
    r"\[sig-network\] HostPort",
    r"\[sig-network\] Networking Granular Checks: Pods .*: (http|udp) .*\[Conformance\]",
    r"\[sig-network\] Services should (allow pods to hairpin|be rejected when no endpoints|preserve source pod IP)",
    r"\[sig-network\] Services should (have session affinity work|support externalTrafficPolicy=Local for type=NodePort)",
];

/// A focus on quick specs that need dual stack.
pub const QUICK_DUAL_STACK_FOCUS: [&str; 2] = [
    r"\[sig-network\] \[Feature:IPv6DualStack\] should (have|create)",
    r"\[sig-network\] \[Feature:IPv6DualStack\] Granular Checks: .*-Service: (http|udp)",
];

/// The text of specs that need dual stack.
const DUAL_STACK: &str = "[Feature:IPv6DualStack]";

/// Specs that are excluded for the same reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Excluded {
    /// The reason.
    pub reason: String,
    /// Texts. A spec is excluded if its name contains one of them.
    pub parts: Vec<String>,
}

impl Excluded {
    /// Returns all groups of the file in this crate.
    pub fn all() -> Result<Vec<Self>> {
        parse(EXCLUDED)
    }

    /// Returns the groups that also apply to a cluster with dual stack.
    pub fn for_dual_stack() -> Result<Vec<Self>> {
        let mut groups = Self::all()?;
        groups.retain(|group| group.parts != [DUAL_STACK]);
        Ok(groups)
    }

    fn matches(&self, name: &str) -> bool {
        self.parts.iter().any(|part| name.contains(part))
    }
}

/// Returns the first reason to exclude the spec `name`.
pub(crate) fn reason<'a>(excluded: &'a [Excluded], name: &str) -> Option<&'a str> {
    let group = excluded.iter().find(|group| group.matches(name))?;
    Some(&group.reason)
}

/// Parses the file. A line is a reason, and the indented lines below it are its texts. Lines that start with `#` are
/// comments.
fn parse(text: &str) -> Result<Vec<Excluded>> {
    let mut groups: Vec<Excluded> = Vec::new();
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    for (line, text) in lines {
        let content = text.trim();
        if content.is_empty() || content.starts_with('#') {
            continue;
        }
        if !text.starts_with(char::is_whitespace) {
            groups.push(Excluded {
                reason: content.to_owned(),
                parts: Vec::new(),
            });
        } else if let Some(group) = groups.last_mut() {
            group.parts.push(content.to_owned());
        } else {
            return Err(Error::Excluded {
                line,
                what: "a text precedes the first reason",
            });
        }
    }
    Ok(groups)
}

/// Returns a Go regular expression that matches exactly `text`.
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
    fn reason_in_the_file_has_texts() {
        let groups = Excluded::all().unwrap();
        assert!(!groups.is_empty());
        for group in groups {
            assert!(!group.parts.is_empty(), "{} has no text", group.reason);
            assert!(group.reason.ends_with('.'), "{} is not a sentence", group.reason);
        }
    }

    #[test]
    fn specs_of_dual_stack_are_excluded_only_without_it() {
        let spec = "[sig-network] [Feature:IPv6DualStack] should have ipv4 and ipv6 internal node ip";
        assert!(reason(&Excluded::all().unwrap(), spec).is_some());
        let groups = Excluded::for_dual_stack().unwrap();
        assert_eq!(reason(&groups, spec), None);
        let other = format!("{spec} [Feature:SCTPConnectivity]");
        assert!(reason(&groups, &other).is_some());
    }

    #[test]
    fn first_reason_applies() {
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
            "excluded.txt, line 2: a text precedes the first reason"
        );
    }

    #[test]
    fn punctuation_is_literal() {
        assert_eq!(literally("[sig-network] a+b"), r"\[sig\-network\] a\+b");
    }
}
