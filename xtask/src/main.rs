//! The commands of this repository: `cargo xtask --help`.

mod bench;
mod board;
mod build;
mod cases;
mod cluster_command;
mod demo;
mod deny;
mod explain;
mod image;
mod install;
mod manifests;
mod paths;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Everything one does with this repository beyond `cargo build`.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show everything: from a fresh clone to pods that talk over a secondary network
    Demo(demo::Args),
    /// Bring up, use and remove a real two-node Kubernetes on this machine
    Cluster(cluster_command::Args),
    /// Build the container image, without a container engine
    Image(image::Args),
    /// Write what one applies to install the operator
    Manifests(manifests::Args),
    /// Run all checks and tests, or some tiers of them
    Test(test::Args),
    /// Check licences, sources and known vulnerabilities of dependencies
    Deny(deny::Args),
    /// Show which numbered cases of docs/behaviour are proven by tests
    Cases(cases::Args),
    /// Measure
    Bench(bench::Args),
}

fn main() -> ExitCode {
    match run(Cli::parse().command) {
        Ok(code) => code,
        Err(error) => {
            // What failed comes last, near the prompt; a backtrace would tell a newcomer nothing.
            for cause in error.chain().skip(1).collect::<Vec<_>>().iter().rev() {
                eprintln!("{cause}\n");
            }
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Demo(args) => demo::run(&args)?,
        Command::Cluster(args) => cluster_command::run(args)?,
        Command::Image(args) => image::run(&args)?,
        Command::Manifests(args) => manifests::run(args)?,
        Command::Test(args) => return Ok(test::run(&args)),
        Command::Deny(args) => deny::run(&args)?,
        Command::Cases(args) => cases::run(&args)?,
        Command::Bench(args) => bench::run(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}
