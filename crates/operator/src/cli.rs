//! The command line for people: `weft render`, `weft diff`, `weft status`.
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

use std::fmt::Display;

use kube_kit::process;

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
