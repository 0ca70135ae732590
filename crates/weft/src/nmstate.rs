//! `weft nmstate …`: commands of the node state programs, which are a binary of their own beside this one.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::Command;

use clap::{Args as ClapArgs, Subcommand};

/// The binary with the node state programs.
const PROGRAM: &str = "weft-nmstate";

/// Looks at the networks of nodes.
#[derive(Clone, Debug, ClapArgs)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    question: Question,
}

#[derive(Clone, Debug, Subcommand)]
enum Question {
    /// Show what a policy would change on each node, and change nothing
    #[command(disable_help_flag = true)]
    Preview(Rest),
}

/// Arguments that the program reads itself.
#[derive(Clone, Debug, ClapArgs)]
struct Rest {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Becomes the program beside this one, or the one in `PATH`. Comes back only when there is none, with what to say.
pub(crate) fn become_program(args: Args) -> String {
    let Question::Preview(rest) = args.question;
    let arguments = || std::iter::once(OsString::from("preview")).chain(rest.arguments.iter().cloned());
    let here = std::env::current_exe().ok();
    let beside = here
        .as_deref()
        .and_then(Path::parent)
        .map(|directory| directory.join(PROGRAM));
    let mut error = None;
    for program in beside.into_iter().chain([PROGRAM.into()]) {
        let failed = Command::new(&program).args(arguments()).exec();
        if failed.kind() != io::ErrorKind::NotFound {
            return format!("cannot run {}: {failed}", program.display());
        }
        error = Some(failed);
    }
    let cause = error.map(|error| error.to_string()).unwrap_or_default();
    format!(
        "cannot find the program {PROGRAM}: {cause}\nIt lies beside weft in the image; in a clone, `cargo build --package \
         {PROGRAM}` makes it."
    )
}
