//! Stands in for `curl` in the image: the single command line that the probes of upstream's deployment run (multus.md
//! §13.5).

use crate::health;
use clap::Args as ClapArgs;
use std::path::PathBuf;

/// The URL of the probe.
const URL: &str = "localhost/healthz";

/// Probe the multus daemon, like `curl --fail --unix-socket SOCKET localhost/healthz`
#[derive(Debug, Clone, ClapArgs)]
pub struct Args {
    /// Fail if the answer is an error
    #[arg(long, required = true)]
    pub fail: bool,
    /// Socket of the daemon
    #[arg(long, value_name = "SOCKET")]
    pub unix_socket: PathBuf,
    /// Always localhost/healthz
    #[arg(value_parser = [URL])]
    pub url: String,
}

/// Sends one request and prints the answer.
///
/// # Errors
/// No answer, or an error status.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let Args {
        fail: _,
        unix_socket,
        url: _,
    } = args;
    print!("{}", health::probe_daemon(&unix_socket).await?);
    Ok(())
}
