//! The command line for people: `weft render`, `weft diff`, `weft status`.
//!
//! ```text
//! file ──> input ──┐
//! flags, Deployment ──> environment ──┴──> render ──> print
//! cluster ──> connection ──> observe ──────> diff, status ──> print, exit code
//! ```
//!
//! The commands run the operator's own code up to its plan, and write nothing to a cluster.

mod connection;
mod diff;
mod environment;
mod input;
mod render;
mod status;
mod unknown;

use std::fmt::Display;

use kube_kit::process;

/// Exit code of a rejected specification, of differences, and of components that are not available.
const FAILURE: u8 = 1;
/// Exit code of an invalid command line, and of a cluster that cannot be read.
const TROUBLE: u8 = 2;

/// Commands for people. They print to standard output, and do not log.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Command {
    /// Print the objects that the operator would apply, without a cluster
    #[command(long_about = render::ABOUT)]
    Render(render::Args),
    /// Show what the operator would change in the cluster
    #[command(long_about = diff::ABOUT)]
    Diff(diff::Args),
    /// Show the state of the add-ons, and the next step
    #[command(long_about = status::ABOUT)]
    Status(status::Args),
}

/// Output of a command.
#[derive(Debug, Eq, PartialEq)]
pub struct Answer {
    /// Standard output.
    pub text: String,
    /// Standard error.
    pub remarks: String,
    /// Exit code.
    pub code: u8,
}

/// Runs a command, and returns its output.
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
    process::run(work).unwrap_or_else(|error| {
        Err(connection::Error::from(kube_kit::connection::Error::Runtime(error)).into())
    })
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
