//! The command line for people: `weft render`, `weft diff`, `weft status`, and the same as a plugin of kubectl
//! (`kubectl weft …`).
//!
//! ```text
//! file ──> input ──┐
//! flags, Deployment ──> environment ──┴──> render ──> print
//! cluster ──> connection ──> observe ──────> diff, status ──> print, exit code
//! ```
//!
//! What is decided is what the operator decides, by its own code; nothing is ever written to a cluster.

mod connection;
mod diff;
mod environment;
mod input;
mod render;
mod status;
mod unknown;

use std::{
    ffi::OsString,
    fmt::Display,
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
};

use clap::{Parser as _, Subcommand as _, error::ErrorKind};
use kube_kit::process;

/// Name of the program as a plugin of kubectl.
pub const PLUGIN: &str = "kubectl-weft";

/// What `kubectl weft --help` says first.
const ABOUT: &str = "\
Looks at the network add-ons of a cluster, and at what their operator does

  kubectl weft status              how the add-ons are, and what to do
  kubectl weft diff -f cr.yaml     what a NetworkAddonsConfig would change
  kubectl weft render -f cr.yaml   what it means, without a cluster";

/// Exit code of a specification that is rejected, of differences, and of what is not available.
const FAILURE: u8 = 1;
/// Exit code of a command line that can't be understood, and of a question that can't be answered.
const TROUBLE: u8 = 2;

/// Commands for people. They print; they do not log.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// Print the objects that the operator would apply, without a cluster
    #[command(long_about = render::ABOUT)]
    Render(render::Args),
    /// Show what the operator would change in the cluster
    #[command(long_about = diff::ABOUT)]
    Diff(diff::Args),
    /// Show how the add-ons are, and what to do about it
    #[command(long_about = status::ABOUT)]
    Status(status::Args),
}

/// The commands alone.
#[derive(Debug, clap::Parser)]
#[command(name = "kubectl weft", bin_name = "kubectl weft", version, about = ABOUT, arg_required_else_help = true)]
struct Plugin {
    #[command(subcommand)]
    command: Command,
}

/// Whether the program was called as a plugin of kubectl; the first argument is its name.
pub fn is_plugin(argv: &[OsString]) -> bool {
    let program = argv.first().map(Path::new).and_then(Path::file_name);
    program.is_some_and(|name| name == PLUGIN)
}

/// Whether a command line is for people: flags are kubectl's, not Go's, and exit codes answer questions.
pub fn is_for_people(argv: &[OsString]) -> bool {
    let commands = Command::augment_subcommands(clap::Command::new(PLUGIN));
    argv.get(1)
        .and_then(|command| command.to_str())
        .is_some_and(|name| commands.find_subcommand(name).is_some())
}

/// Runs the program as a plugin of kubectl.
pub fn plugin(argv: Vec<OsString>) -> ExitCode {
    match Plugin::try_parse_from(argv) {
        Ok(plugin) => run(plugin.command),
        Err(error) => refuse(&error),
    }
}

/// Shows help, or what is wrong with the arguments.
pub fn refuse(error: &clap::Error) -> ExitCode {
    // Nothing can be done when even that can't be shown.
    let _ = error.print();
    match error.kind() {
        ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
        _ => trouble(),
    }
}

fn trouble() -> ExitCode {
    ExitCode::from(TROUBLE)
}

/// What a command has to say.
#[derive(Debug, Eq, PartialEq)]
pub struct Answer {
    /// For standard output.
    pub text: String,
    /// For standard error.
    pub remarks: String,
    /// Exit code.
    pub code: u8,
}

/// Runs a command: prints what it has to say, and tells by the exit code how it went.
pub fn run(command: Command) -> ExitCode {
    let answer = answer(command);
    eprint!("{}", answer.remarks);
    let mut stdout = io::stdout().lock();
    match stdout
        .write_all(answer.text.as_bytes())
        .and_then(|()| stdout.flush())
    {
        // Whoever reads only the head of it is no failure.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("error: cannot write to standard output: {error}");
            trouble()
        }
        _ => ExitCode::from(answer.code),
    }
}

/// Runs a command, and prints nothing.
pub fn answer(command: Command) -> Answer {
    match command {
        Command::Render(args) => match render::run(&args) {
            Ok((text, notes)) => said(text, &notes, true),
            Err(error) => failed(&error, FAILURE),
        },
        Command::Diff(args) => match wait(diff::run(&args)) {
            Ok(outcome) => said(outcome.text, &outcome.notes, !outcome.differs),
            Err(error) => failed(&error, TROUBLE),
        },
        Command::Status(args) => match wait(status::run(&args)) {
            Ok(outcome) => said(outcome.text, &[], outcome.available),
            Err(error) => failed(&error, TROUBLE),
        },
    }
}

fn wait<T, E: From<connection::Error>>(work: impl Future<Output = Result<T, E>>) -> Result<T, E> {
    process::run(work).unwrap_or_else(|error| Err(connection::Error::Runtime(error).into()))
}

fn said(text: String, notes: &[String], is_well: bool) -> Answer {
    Answer {
        text,
        remarks: notes.iter().map(|note| format!("note: {note}\n")).collect(),
        code: if is_well { 0 } else { FAILURE },
    }
}

fn failed(error: &dyn Display, code: u8) -> Answer {
    Answer {
        text: String::new(),
        remarks: format!("error: {error}\n"),
        code,
    }
}
