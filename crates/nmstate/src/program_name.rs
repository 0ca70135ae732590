//! Arguments as they come, in the form that clap understands.

use std::ffi::OsString;
use std::path::Path;

use program::argv::go_flags;

use crate::settings;

/// The established name of all programs but the tool.
const MANAGER: &str = "manager";
/// The established tool, and commands whose arguments are not Go's.
const NMSTATECTL: &str = "nmstatectl";
const FOR_PEOPLE: [&str; 2] = [NMSTATECTL, "preview"];

/// Puts the command before the arguments that the program's name and variables that are set mean, and turns flags with
/// one dash into those of clap.
pub(crate) fn rewrite(argv: Vec<OsString>, is_set: impl Fn(&str) -> bool) -> Vec<OsString> {
    let mut argv = argv.into_iter();
    let program = argv.next().unwrap_or_else(|| OsString::from("weft-nmstate"));
    let name = Path::new(&program).file_name().unwrap_or_default();
    let command = if name == MANAGER {
        Some(OsString::from(settings::program(is_set)))
    } else if name == NMSTATECTL {
        Some(OsString::from(NMSTATECTL))
    } else {
        argv.next()
    };
    let verbatim = command
        .as_ref()
        .is_some_and(|command| FOR_PEOPLE.iter().any(|it| command == it));
    let mut rewritten = vec![program];
    rewritten.extend(command);
    if verbatim {
        rewritten.extend(argv);
    } else {
        rewritten.extend(go_flags(argv));
    }
    rewritten
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case(&["/usr/local/bin/manager", "--zap-time-encoding=iso8601"], &["handler", "--zap-time-encoding=iso8601"])]
    #[case(&["manager", "-execution-type", "client"], &["handler", "--execution-type", "client"])]
    #[case(&["weft-nmstate", "client", "-v=debug"], &["client", "-v=debug"])]
    #[case(&["/usr/bin/nmstatectl", "show", "lo", "-vv"], &["nmstatectl", "show", "lo", "-vv"])]
    #[case(&["/weft-nmstate", "nmstatectl", "show", "-vv"], &["nmstatectl", "show", "-vv"])]
    #[case(&["weft-nmstate", "--help"], &["--help"])]
    #[case(&["weft-nmstate"], &[])]
    fn name_and_flags_say_what_is_meant(#[case] given: &[&str], #[case] meant: &[&str]) {
        let given = given.iter().map(OsString::from).collect();
        let rewritten = rewrite(given, |_| false);
        let rest: Vec<&str> = rewritten[1..]
            .iter()
            .map(|argument| argument.to_str().expect("text"))
            .collect();
        assert_eq!(rest, meant);
    }
}
