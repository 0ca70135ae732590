//! The commands of this repository: `cargo xtask --help`.

mod bench;
mod board;
mod build;
mod cases;
mod cluster_command;
mod conformance;
mod default_network;
mod demo;
mod deny;
mod explain;
mod image;
mod install;
mod kubevirt_parts;
mod manifests;
mod order;
mod paths;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Build, test, run and measure Weft
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", disable_help_subcommand = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Build Weft, start a two-node cluster with Weft's pod network, and connect two pods over a secondary network
    Demo(demo::Args),
    /// Start, use and remove a two-node Kubernetes cluster on this machine
    Cluster(cluster_command::Args),
    /// Build the container image, without a container engine
    Image(image::Args),
    /// Record which functions running daemons call, and order the functions of the program by them
    ///
    /// Build the image, and start clusters with all daemons: `cargo xtask demo`, and with another `WEFT_CLUSTER` `cargo xtask
    /// demo --network`. While this command runs, let the daemons do their usual work: create and delete pods with
    /// networks, and virtual machines. Processes that start later are not recorded, and programs that daemons start fail.
    /// Afterwards, remove the clusters: traced processes hold a copy of the program until they end. If this command is
    /// interrupted, they crash and start again.
    Order(order::Args),
    /// Write the manifests that install the operator
    Manifests(manifests::Args),
    /// Run all checks and tests, or some tiers of them
    Test(test::Args),
    /// Run Kubernetes' tests of networking on a separate cluster
    Conformance(conformance::Args),
    /// Check licences, sources and known vulnerabilities of dependencies
    Deny(deny::Args),
    /// Show which numbered cases of docs/behaviour are proven by tests
    Cases(cases::Args),
    /// Measure time, memory and sizes
    Bench(bench::Args),
}

fn main() -> ExitCode {
    let outcome = order::link(std::env::args_os().skip(1)).unwrap_or_else(|| run(Cli::parse().command));
    match outcome {
        Ok(code) => code,
        Err(error) => {
            // The failed step is printed last, near the prompt. A backtrace would not help newcomers.
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
        Command::Order(args) => order::run(&args)?,
        Command::Manifests(args) => manifests::run(args)?,
        Command::Test(args) => return test::run(&args),
        Command::Conformance(args) => return conformance::run(&args),
        Command::Deny(args) => deny::run(&args)?,
        Command::Cases(args) => cases::run(&args)?,
        Command::Bench(args) => bench::run(&args)?,
    }
    Ok(ExitCode::SUCCESS)
}
