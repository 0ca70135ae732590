//! The command line for people: `weft macpool who`, `weft macpool usage`, and the same as a kubectl plugin.
//!
//! ```text
//! cluster ──> gather ──> Inventory: pool, owners, range ──> who, usage ──> text, exit code
//! ```
//!
//! The commands evaluate the cluster's objects with the manager's code; the manager need not run, and nothing is
//! written.

mod gather;
mod inventory;
mod text;

use clap::{Args as ClapArgs, Subcommand};
use cni::mac::{InvalidMac, Mac};
use kube_kit::connection::{self, Answer, Flags};

use crate::names;
use inventory::Inventory;

/// Shows the addresses of a cluster.
#[derive(Clone, Debug, ClapArgs)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Debug, Subcommand)]
enum Command {
    /// Show which pods and virtual machines have an address
    #[command(after_help = WHO_EXAMPLES)]
    Who(Who),
    /// Show how full the range is
    #[command(after_help = USAGE_EXAMPLES)]
    Usage(Usage),
}

const WHO_EXAMPLES: &str = "\
Examples:
  weft macpool who 02:00:00:00:00:05
  weft macpool who 0200.0000.0005 --context production

Exit code: 0 an object has it, 1 no object has it, 2 unknown or failed.";

const USAGE_EXAMPLES: &str = "\
Examples:
  weft macpool usage
  weft macpool usage --namespace kubemacpool-system

Exit code: 0 addresses are free, 1 the range is nearly full, 2 unknown or failed.";

/// Arguments of `weft macpool who`.
#[derive(Clone, Debug, ClapArgs)]
struct Who {
    /// The address, such as 02:00:00:00:00:05, 02-00-00-00-00-05 or 0200.0000.0005
    #[arg(value_name = "MAC")]
    mac: String,
    /// Namespace of the MAC pool [default: any]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    cluster: Flags,
}

/// Arguments of `weft macpool usage`.
#[derive(Clone, Debug, ClapArgs)]
struct Usage {
    /// Namespace of the MAC pool [default: any]
    #[arg(short, long, value_name = "NAMESPACE")]
    namespace: Option<String>,
    #[command(flatten)]
    cluster: Flags,
}

/// A command failed. Each text names the remedy.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Connection(#[from] connection::Error),
    #[error("{0}\nWrite it as 02:00:00:00:00:05, 02-00-00-00-00-05 or 0200.0000.0005.")]
    Mac(#[from] InvalidMac),
    #[error(
        "there is no MAC pool in {place}: no ConfigMap {}\nInstall it by `spec: {{kubeMacPool: {{}}}}` in the \
         NetworkAddonsConfig, or set your image in deploy/kubemacpool.yaml and apply that file.",
        names::RANGE_CONFIG_MAP
    )]
    NotInstalled { place: String },
    #[error("there is a MAC pool in each of the namespaces {}: choose one by --namespace", .0.join(", "))]
    Several(Vec<String>),
    #[error(
        "ConfigMap {name} has no valid range: {cause}\nCorrect its keys RANGE_START and RANGE_END, or rangeStart and rangeEnd \
         in the NetworkAddonsConfig if the operator deploys the pool."
    )]
    Range { name: String, cause: String },
}

/// Runs a command, and prints nothing.
pub fn answer(args: Args) -> Answer {
    connection::answer(async {
        match args.command {
            Command::Who(args) => who(&args).await,
            Command::Usage(args) => usage(&args).await,
        }
    })
}

async fn who(args: &Who) -> Result<Answer, Error> {
    let mac = Mac::parse(&args.mac)?;
    let client = connection::connect(&args.cluster).await?;
    let inventory = gather::inventory(&client, args.namespace.as_deref()).await?;
    let found = inventory.who(mac);
    // The holders of an address are known without a pool.
    let pool = match &inventory.range {
        Err(error) => Some(error.to_string()),
        Ok(_) => None,
    };
    Ok(Answer::new(
        text::who(mac, &found, inventory.range.as_ref().ok()),
        inventory.notes.iter().chain(&pool),
        !found.is_empty(),
    ))
}

async fn usage(args: &Usage) -> Result<Answer, Error> {
    let client = connection::connect(&args.cluster).await?;
    let inventory = gather::inventory(&client, args.namespace.as_deref()).await?;
    let notes = inventory.notes.clone();
    let report = inventory.usage()?;
    Ok(Answer::new(text::usage(&report), notes, !report.is_nearly_full()))
}

impl Inventory {
    /// How full the range is.
    fn usage(self) -> Result<inventory::Report, Error> {
        match self.range {
            Err(error) => Err(error),
            Ok(ref installed) => Ok(self.report(installed)),
        }
    }
}
