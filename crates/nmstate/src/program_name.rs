//! Rewrites arguments for clap.

use std::ffi::OsString;
use std::path::Path;

use program::argv::go_flags;

use crate::settings;

/// The name of these programs in the image.
const OWN: &str = "weft-nmstate";
/// Upstream's name of all programs but the tool.
const MANAGER: &str = "manager";
/// Path of the program of the same name in upstream's image of the MAC pool.
const MAC_POOL: &str = "/manager";
/// Upstream's tool, and commands whose arguments are not in Go's form.
const NMSTATECTL: &str = "nmstatectl";
const FOR_PEOPLE: [&str; 2] = [NMSTATECTL, "preview"];
/// The command that checks whether the handler is ready.
const HEALTHY: &str = "healthy";
/// Programs in the probes of upstream's handlers: `cat /tmp/healthy` and `bash -c "nmstatectl show lo 2>&1"`
/// (behaviour §11). The image has neither program, and this one only serves these two command lines.
const CAT: &str = "cat";
const BASH: &str = "bash";

/// Whether a program of this name is one of the node state's.
pub(crate) fn is_meant(program: &Path) -> bool {
    let name = program.file_name().unwrap_or_default();
    program != Path::new(MAC_POOL)
        && [OWN, MANAGER, NMSTATECTL, CAT, BASH]
            .iter()
            .any(|known| name == *known)
}

/// Inserts the command that the program's name and the set variables select, and turns Go's flags with one dash into
/// clap's form.
pub(crate) fn rewrite(argv: Vec<OsString>, is_set: impl Fn(&str) -> bool) -> Vec<OsString> {
    let mut argv = argv.into_iter();
    let program = argv.next().unwrap_or_else(|| OsString::from(OWN));
    let name = Path::new(&program).file_name().unwrap_or_default();
    let rest = argv.collect();
    let words = if name == MANAGER {
        after(settings::program(is_set), rest)
    } else if name == NMSTATECTL {
        after(NMSTATECTL, rest)
    } else if name == CAT {
        after(HEALTHY, rest)
    } else if name == BASH {
        probed(rest)
    } else {
        rest
    };
    let mut argv = words.into_iter();
    let command = argv.next();
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

/// A command with its arguments.
fn after(command: &str, arguments: Vec<OsString>) -> Vec<OsString> {
    [OsString::from(command)].into_iter().chain(arguments).collect()
}

/// The command in `bash -c "nmstatectl …"`; other arguments stay, and are refused.
fn probed(arguments: Vec<OsString>) -> Vec<OsString> {
    let line = match arguments.as_slice() {
        [flag, line] if flag == "-c" => line.to_str().unwrap_or_default(),
        _ => "",
    };
    let words = line.strip_suffix("2>&1").unwrap_or(line).split_whitespace();
    if words.clone().next() == Some(NMSTATECTL) {
        words.map(OsString::from).collect()
    } else {
        after(BASH, arguments)
    }
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
    #[case(&["cat", "/tmp/healthy"], &["healthy", "/tmp/healthy"])]
    #[case(&["bash", "-c", "nmstatectl show lo 2>&1"], &["nmstatectl", "show", "lo"])]
    #[case(&["/usr/bin/bash", "-c", "nmstatectl show lo -vv 2>&1"], &["nmstatectl", "show", "lo", "-vv"])]
    #[case(&["bash", "-c", "rm nmstatectl"], &["bash", "-c", "rm nmstatectl"])]
    #[case(&["bash"], &["bash"])]
    #[case(&["weft-nmstate", "--help"], &["--help"])]
    #[case(&["weft-nmstate"], &[])]
    fn name_and_flags_select_the_command(#[case] given: &[&str], #[case] meant: &[&str]) {
        let given = given.iter().map(OsString::from).collect();
        let rewritten = rewrite(given, |_| false);
        let rest: Vec<&str> = rewritten[1..]
            .iter()
            .map(|argument| argument.to_str().expect("text"))
            .collect();
        assert_eq!(rest, meant);
    }

    #[rstest]
    #[case("/weft-nmstate", true)]
    #[case("manager", true)]
    #[case("/usr/local/bin/manager", true)]
    #[case("/usr/bin/nmstatectl", true)]
    #[case("bash", true)]
    #[case("cat", true)]
    #[case("/manager", false)]
    #[case("/weft", false)]
    #[case("", false)]
    fn manager_of_the_mac_pool_is_recognised_by_its_path(#[case] program: &str, #[case] meant: bool) {
        assert_eq!(is_meant(Path::new(program)), meant);
    }
}
