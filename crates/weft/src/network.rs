//! `weft network`: the network of the cluster, for people.

use clap::{Args as ClapArgs, Subcommand};
use program::answer::Answer;

/// Looks at the network of the cluster.
#[derive(Clone, Debug, ClapArgs)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    question: Question,
}

#[derive(Clone, Debug, Subcommand)]
enum Question {
    /// Print what installs the operator that gives a cluster its network
    Manifests(cluster_network::cli::ManifestsArgs),
    /// Show what a configuration would change, and what of it is unsafe
    Plan(cluster_network::cli::PlanArgs),
    /// Show how the network is, and what is wrong with it
    Status(cluster_network::cli::StatusArgs),
    /// Show which endpoints the nodes reach, and which they do not
    Check(connectivity::cli::Args),
}

/// Runs a command, and returns its output.
pub(crate) fn answer(args: &Args) -> Answer {
    match &args.question {
        Question::Manifests(args) => cluster_network::cli::manifests(args),
        Question::Plan(args) => cluster_network::cli::plan(args),
        Question::Status(args) => cluster_network::cli::status(args),
        Question::Check(args) => connectivity::cli::answer(args),
    }
}
