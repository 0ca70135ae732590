//! The one command line of `curl` that probes of the established deployment execute (multus.md §13.5). The image has no
//! curl; under that name it has this.

use crate::health;
use clap::Args as ClapArgs;
use std::path::PathBuf;

/// What the probe asks for.
const URL: &str = "localhost/healthz";

/// Ask the multus daemon behind a socket whether it works, as `curl --fail --unix-socket SOCKET localhost/healthz`
#[derive(Debug, Clone, ClapArgs)]
pub struct Args {
    /// Fail when the answer is an error
    #[arg(long, required = true)]
    pub fail: bool,
    /// The daemon's socket
    #[arg(long, value_name = "SOCKET")]
    pub unix_socket: PathBuf,
    /// localhost/healthz, and nothing else
    #[arg(value_parser = [URL])]
    pub url: String,
}

/// Asks once and prints the answer.
///
/// # Errors
/// When nobody answers, or with an error.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        fail: _,
        unix_socket,
        url: _,
    } = args;
    print!("{}", health::ask_daemon(&unix_socket).await?);
    Ok(())
}
