//! Flags of Go's logging libraries (glog and klog), which existing manifests pass. They have no effect unless a program
//! [reads](Flags::is_verbose) one.

use clap::Args;

/// `-v 3 -logtostderr` and the others. A switch takes a value only after `=`.
#[derive(Debug, Clone, Default, Args)]
pub struct Flags {
    #[arg(short = 'v', long = "v", hide = true, value_name = "LEVEL")]
    v: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    logtostderr: Option<String>,
    #[arg(long, hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    alsologtostderr: Option<String>,
    #[arg(long = "add_dir_header", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    add_dir_header: Option<String>,
    #[arg(long = "one_output", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    one_output: Option<String>,
    #[arg(long = "skip_headers", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    skip_headers: Option<String>,
    #[arg(long = "skip_log_headers", hide = true, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    skip_log_headers: Option<String>,
    #[arg(long, hide = true)]
    stderrthreshold: Option<String>,
    #[arg(long, hide = true)]
    vmodule: Option<String>,
    #[arg(long = "log_dir", hide = true)]
    log_dir: Option<String>,
    #[arg(long = "log_file", hide = true)]
    log_file: Option<String>,
    #[arg(long = "log_file_max_size", hide = true)]
    log_file_max_size: Option<String>,
    #[arg(long = "log_backtrace_at", hide = true)]
    log_backtrace_at: Option<String>,
}

/// Minimum level of `-v` for logging decisions.
const VERBOSE: i32 = 4;

impl Flags {
    /// Whether `-v` requests debug lines.
    pub fn is_verbose(&self) -> bool {
        self.level().is_some_and(|level| level >= VERBOSE)
    }

    /// The value of `-v`, if it is a number.
    pub fn level(&self) -> Option<i32> {
        self.v.as_deref()?.parse().ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::argv::go_flags;
    use clap::Parser;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        flags: Flags,
        rest: Option<String>,
    }

    #[test]
    fn level_of_four_or_more_is_verbose() {
        // multus#123
        for (arguments, is_verbose) in [
            (&["-v=3"][..], false),
            (&["-v=4"], true),
            (&["-v", "5"], true),
            (&["--v=10"], true),
            (&["-v=x"], false),
            (&[], false),
        ] {
            let arguments = ["program"].iter().chain(arguments).map(Into::into);
            let program = Program::try_parse_from(go_flags(arguments)).unwrap();
            assert_eq!(program.flags.is_verbose(), is_verbose);
        }
    }

    fn parse(arguments: &[&str]) -> Option<String> {
        let arguments = ["program"].iter().chain(arguments).map(Into::into);
        match Program::try_parse_from(go_flags(arguments)) {
            Ok(program) => program.rest,
            Err(error) => panic!("{error}"),
        }
    }

    #[test]
    fn flags_are_accepted_in_every_spelling() {
        let switches = [
            "logtostderr",
            "alsologtostderr",
            "add_dir_header",
            "one_output",
            "skip_headers",
            "skip_log_headers",
        ];
        for name in switches {
            for dashes in ["-", "--"] {
                let flag = format!("{dashes}{name}");
                // The next argument is not its value.
                assert_eq!(parse(&[&flag, "rest"]).as_deref(), Some("rest"), "{flag}");
                assert_eq!(parse(&[&format!("{flag}=false")]), None);
            }
        }
        let values = [
            "v",
            "stderrthreshold",
            "vmodule",
            "log_dir",
            "log_file",
            "log_file_max_size",
            "log_backtrace_at",
        ];
        for name in values {
            for dashes in ["-", "--"] {
                let flag = format!("{dashes}{name}");
                assert_eq!(parse(&[&flag, "2"]), None, "{flag}");
                assert_eq!(parse(&[&format!("{flag}=2")]), None);
            }
        }
    }
}
