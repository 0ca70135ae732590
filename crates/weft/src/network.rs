//! `weft network`: questions about the network of the cluster.

use clap::{Args as ClapArgs, Subcommand};
use program::answer::Answer;

/// Show the network of the cluster
#[derive(Clone, Debug, ClapArgs)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    question: Question,
}

#[derive(Clone, Debug, Subcommand)]
enum Question {
    /// Print the manifests that install the cluster network operator
    Manifests(Box<cluster_network::cli::ManifestsArgs>),
    /// Show the changes of a configuration, and which of them are unsafe
    Plan(cluster_network::cli::PlanArgs),
    /// Show the state and the problems of the network
    Status(cluster_network::cli::StatusArgs),
    /// Run the connectivity checks, and show which endpoints are reached
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
