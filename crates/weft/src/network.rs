//! `weft network`: the network of the cluster, for people.

use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};
use program::terminal;

/// Looks at the network of the cluster.
#[derive(Clone, Debug, ClapArgs)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    question: Question,
}

#[derive(Clone, Debug, Subcommand)]
enum Question {
    /// Show which endpoints the nodes reach, and which they do not
    Check(connectivity::cli::Args),
}

/// Prints the answer, and tells by the exit code how it went.
pub(crate) fn run(args: &Args) -> ExitCode {
    let answer = match &args.question {
        Question::Check(args) => connectivity::cli::answer(args),
    };
    terminal::answer(&answer.text, &answer.remarks, answer.code)
}
