//! The command line of the add-ons for people: `weft render`, `weft diff`, `weft status`.
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

use kube_kit::connection::Answer;
use program::answer::FINDINGS;

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

/// Runs a command, and returns its output.
pub fn answer(command: Command) -> Answer {
    match command {
        Command::Render(args) => render::run(&args).unwrap_or_else(|error| Answer {
            // Without a cluster, each error is about the specification or its environment.
            code: FINDINGS,
            ..Answer::failed(&error)
        }),
        Command::Diff(args) => kube_kit::connection::answer(diff::run(&args)),
        Command::Status(args) => kube_kit::connection::answer(status::run(&args)),
    }
}
