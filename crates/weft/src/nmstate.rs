//! `weft nmstate …`: questions about the networks of nodes.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};

/// Show the networks of nodes
#[derive(Clone, Debug, ClapArgs)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    question: Question,
}

#[derive(Clone, Debug, Subcommand)]
enum Question {
    /// Show the changes of a policy on each node, without applying them
    #[command(disable_help_flag = true)]
    Preview(Rest),
}

/// Arguments that the command parses itself.
#[derive(Clone, Debug, ClapArgs)]
struct Rest {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<OsString>,
}

/// Prints the answer, and returns its exit code.
pub(crate) fn run(args: &Args) -> ExitCode {
    let Question::Preview(rest) = &args.question;
    weft_nmstate::preview::run(&rest.arguments)
}
