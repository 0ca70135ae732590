//! The environment of a plugin call (cni-plugins §1.1).

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::{Error, code};
use crate::names::{
    CNI_ARGS, CNI_COMMAND, CNI_CONTAINERID, CNI_IFNAME, CNI_NETNS, CNI_NETNS_OVERRIDE, CNI_PATH,
};

/// Environment variables by name.
pub type Variables = BTreeMap<String, String>;

/// The environment of this process. Invalid UTF-8 is replaced.
pub fn variables() -> Variables {
    std::env::vars_os()
        .map(|(name, value)| {
            (
                name.to_string_lossy().into_owned(),
                value.to_string_lossy().into_owned(),
            )
        })
        .collect()
}

/// The verbs of the CNI specification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Attach.
    Add,
    /// Detach.
    Del,
    /// Verify an attachment.
    Check,
    /// Remove all but the valid attachments.
    Gc,
    /// Report readiness.
    Status,
    /// Print the supported versions.
    Version,
}

impl Verb {
    /// The value of `CNI_COMMAND`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Add => "ADD",
            Self::Del => "DEL",
            Self::Check => "CHECK",
            Self::Gc => "GC",
            Self::Status => "STATUS",
            Self::Version => "VERSION",
        }
    }

    const fn needs_sandbox(self) -> bool {
        matches!(self, Self::Add | Self::Del | Self::Check)
    }

    const fn needs_netns(self) -> bool {
        matches!(self, Self::Add | Self::Check)
    }
}

impl fmt::Display for Verb {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for Verb {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        [
            Self::Add,
            Self::Del,
            Self::Check,
            Self::Gc,
            Self::Status,
            Self::Version,
        ]
        .into_iter()
        .find(|verb| verb.as_str() == text)
        .ok_or_else(|| invalid(format!("unknown CNI_COMMAND: {text}")))
    }
}

/// The validated environment of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The verb.
    pub verb: Verb,
    /// The sandbox; empty for GC, STATUS and VERSION.
    pub container_id: String,
    /// Path of the sandbox's network namespace; none when the variable is empty or missing, and for GC, STATUS and
    /// VERSION.
    pub netns: Option<PathBuf>,
    /// The interface in the sandbox; empty for GC, STATUS and VERSION.
    pub ifname: String,
    /// `CNI_ARGS` verbatim.
    pub args: String,
    /// Directories of plugins.
    pub path: Vec<PathBuf>,
    /// Whether the sandbox may be the plugin's own namespace.
    pub netns_override: bool,
}

/// The environment is not a valid request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Rejection {
    /// Only `CNI_COMMAND` is missing: a manual call.
    ManualCall,
    /// Unknown verb. Errors of the config have priority.
    UnknownVerb(Error),
    /// Any other error.
    Invalid(Error),
}

impl Request {
    /// Validates the environment. Invalid values are reported at once, in the specification's order; missing ones
    /// together: `required env variables [CNI_X,CNI_Y] missing` (code 4).
    pub fn from_variables(variables: &Variables) -> Result<Self, Rejection> {
        let of = |name: &str| variables.get(name).map_or("", String::as_str);
        let command = of(CNI_COMMAND);
        let known: Result<Verb, Error> = command.parse();
        let verb = known.as_ref().ok().copied();
        let sandbox = verb.is_some_and(Verb::needs_sandbox);
        let mut missing = Vec::new();
        if command.is_empty() {
            missing.push(CNI_COMMAND);
        }
        // Variables that the verb does not need may be leftovers of another call, and are ignored.
        if sandbox {
            match of(CNI_CONTAINERID) {
                "" => missing.push(CNI_CONTAINERID),
                id => validate_container_id(id).map_err(Rejection::Invalid)?,
            }
        }
        if of(CNI_NETNS).is_empty() && verb.is_some_and(Verb::needs_netns) {
            missing.push(CNI_NETNS);
        }
        if sandbox {
            match of(CNI_IFNAME) {
                "" => missing.push(CNI_IFNAME),
                name => validate_ifname(name).map_err(Rejection::Invalid)?,
            }
        }
        if of(CNI_PATH).is_empty() && verb.is_some_and(|verb| verb != Verb::Version) {
            missing.push(CNI_PATH);
        }
        if missing == [CNI_COMMAND] {
            return Err(Rejection::ManualCall);
        }
        if !missing.is_empty() {
            let list = missing.join(",");
            return Err(Rejection::Invalid(invalid(format!(
                "required env variables [{list}] missing"
            ))));
        }
        let verb = known.map_err(Rejection::UnknownVerb)?;
        let of_sandbox = |name: &str| if sandbox { of(name) } else { "" };
        let switch = of(CNI_NETNS_OVERRIDE);
        Ok(Self {
            verb,
            container_id: of_sandbox(CNI_CONTAINERID).to_owned(),
            netns: Some(of_sandbox(CNI_NETNS))
                .filter(|path| !path.is_empty())
                .map(PathBuf::from),
            ifname: of_sandbox(CNI_IFNAME).to_owned(),
            args: of(CNI_ARGS).to_owned(),
            path: of(CNI_PATH)
                .split(':')
                .filter(|dir| !dir.is_empty())
                .map(PathBuf::from)
                .collect(),
            netns_override: switch == "1" || switch.eq_ignore_ascii_case("true"),
        })
    }
}

fn invalid(msg: impl Into<String>) -> Error {
    Error::new(code::INVALID_ENVIRONMENT, msg)
}

/// Whether a text is `^[a-zA-Z0-9][a-zA-Z0-9_.\-]*$`, as container ids and network names must be.
pub fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

/// Checks a container id's characters (code 4).
pub fn validate_container_id(id: &str) -> Result<(), Error> {
    if is_identifier(id) {
        return Ok(());
    }
    Err(invalid("invalid characters in containerID").with_details(id))
}

/// Checks an interface name as the kernel does (code 4): 1 to 15 bytes, no `/`, `:` or white space, not `.` or `..`.
/// A NUL, at which the kernel would cut the name, counts as white space.
pub fn validate_ifname(name: &str) -> Result<(), Error> {
    const MAX: usize = 15;
    if name.is_empty() {
        return Err(invalid("interface name is empty"));
    }
    if name.len() > MAX {
        return Err(invalid("interface name is too long")
            .with_details("interface name should be less than 16 characters"));
    }
    if name == "." || name == ".." {
        return Err(invalid("interface name is . or .."));
    }
    if name.contains(|c: char| matches!(c, '/' | ':' | '\0') || c.is_whitespace()) {
        return Err(invalid("interface name contains / or : or whitespace characters"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Variables {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    fn add() -> Variables {
        environment(&[
            (CNI_COMMAND, "ADD"),
            (CNI_CONTAINERID, "c1"),
            (CNI_NETNS, "/run/netns/x"),
            (CNI_IFNAME, "net1"),
            (CNI_PATH, "/a:/b"),
        ])
    }

    fn error(variables: &Variables) -> Error {
        match Request::from_variables(variables) {
            Err(Rejection::Invalid(error)) => error,
            other => panic!("expected an error, got {other:?}"),
        }
    }

    #[test]
    fn a_full_environment_is_a_request() {
        let request = Request::from_variables(&add()).unwrap();
        assert_eq!(request.verb, Verb::Add);
        assert_eq!(request.path, [PathBuf::from("/a"), PathBuf::from("/b")]);
        assert!(!request.netns_override);
    }

    #[test]
    fn missing_command_alone_is_manual_call() {
        // cni-plugins#1
        assert_eq!(
            Request::from_variables(&Variables::new()),
            Err(Rejection::ManualCall)
        );
    }

    #[test]
    fn missing_variables_are_reported_together() {
        // cni-plugins#2
        let error = error(&environment(&[(CNI_COMMAND, "ADD")]));
        assert_eq!(error.code, 4);
        assert_eq!(
            error.msg,
            "required env variables [CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME,CNI_PATH] missing"
        );
        for verb in ["GC", "STATUS"] {
            let error = self::error(&environment(&[(CNI_COMMAND, verb)]));
            assert_eq!(error.msg, "required env variables [CNI_PATH] missing");
        }
    }

    #[test]
    fn each_verb_has_required_variables() {
        let mut del = add();
        del.insert(CNI_COMMAND.into(), "DEL".into());
        del.remove(CNI_NETNS);
        assert_eq!(Request::from_variables(&del).unwrap().netns, None);
        assert!(Request::from_variables(&environment(&[(CNI_COMMAND, "VERSION")])).is_ok());
    }

    #[test]
    fn invalid_values_are_named() {
        // cni-plugins#4
        for (name, value, msg, details) in [
            (CNI_CONTAINERID, "a b", "invalid characters in containerID", "a b"),
            (
                CNI_IFNAME,
                "sixteen-chars-xx",
                "interface name is too long",
                "interface name should be less than 16 characters",
            ),
            (CNI_IFNAME, "..", "interface name is . or ..", ""),
            (
                CNI_IFNAME,
                "a/b",
                "interface name contains / or : or whitespace characters",
                "",
            ),
            (
                CNI_IFNAME,
                "a\0b",
                "interface name contains / or : or whitespace characters",
                "",
            ),
            (
                CNI_IFNAME,
                "a b",
                "interface name contains / or : or whitespace characters",
                "",
            ),
        ] {
            let mut variables = add();
            variables.insert(name.into(), value.into());
            assert_eq!(error(&variables), invalid(msg).with_details(details));
        }
        let mut variables = add();
        variables.insert(CNI_COMMAND.into(), "DANCE".into());
        let unknown = Rejection::UnknownVerb(invalid("unknown CNI_COMMAND: DANCE"));
        assert_eq!(Request::from_variables(&variables), Err(unknown));
    }

    #[test]
    fn unneeded_variables_are_ignored() {
        for verb in ["GC", "STATUS", "VERSION"] {
            let mut variables = add();
            variables.insert(CNI_COMMAND.into(), verb.into());
            variables.insert(CNI_CONTAINERID.into(), "a b".into());
            variables.insert(CNI_IFNAME.into(), "sixteen-chars-xx".into());
            let request = Request::from_variables(&variables).unwrap();
            assert_eq!((request.container_id.as_str(), request.ifname.as_str()), ("", ""));
            assert_eq!(request.netns, None);
        }
    }

    #[test]
    fn the_override_has_three_spellings() {
        for (value, on) in [
            ("1", true),
            ("TRUE", true),
            ("true", true),
            ("0", false),
            ("yes", false),
        ] {
            let mut variables = add();
            variables.insert(CNI_NETNS_OVERRIDE.into(), value.into());
            assert_eq!(Request::from_variables(&variables).unwrap().netns_override, on);
        }
    }
}
