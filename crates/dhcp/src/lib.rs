//! `weft dhcp-daemon`: acquires and renews the leases of the plugin `dhcp` (cni-plugins §8).
//!
//! ```text
//! plugin dhcp ──unix socket──> server ──> leases ──> one keeper for each attachment
//!                                                      machine: decides; clock: wakes it
//!                                                      exchange ──packets in the container's namespace──> DHCP server
//!                                                      store: /run/cni/weft/dhcp/*.json, read again at the start
//!                                                      place: the link, which a renewed lease may change
//! ```

mod changes;
mod check;
mod clock;
mod exchange;
mod frame;
mod keeper;
mod lease;
mod leases;
mod machine;
mod message;
mod names;
mod place;
mod server;
mod settings;
mod socket;
mod store;

use std::path::PathBuf;

use anyhow::Context as _;
use clap::Args as ClapArgs;
use kube_kit::shutdown::Shutdown;

use leases::Leases;
use settings::Settings;

/// Lease addresses from DHCP servers for the CNI plugin dhcp, and renew them
#[derive(Debug, Clone, ClapArgs)]
pub struct Args {
    /// File to write the process id to; an absolute path
    #[arg(long, value_name = "FILE")]
    pub pidfile: Option<PathBuf>,

    /// Where the host's root directory is in this container
    #[arg(long, value_name = "DIR")]
    pub hostprefix: Option<PathBuf>,

    /// Unix socket to listen on, as the host sees it
    #[arg(long, value_name = "PATH", default_value = plugins::names::DHCP_SOCKET)]
    pub socketpath: PathBuf,

    /// Request broadcast answers from servers
    #[arg(long)]
    pub broadcast: bool,

    /// How long to wait for the answers to one request, such as 10s
    #[arg(long, value_name = "DURATION", default_value = names::ATTEMPT)]
    pub timeout: String,

    /// Longest pause between two requests
    #[arg(long, value_name = "DURATION", default_value = names::RESEND_MAX)]
    pub resendmax: String,

    /// How long to try for a lease
    #[arg(long, value_name = "DURATION", default_value = names::TOTAL)]
    pub resendtimeout: String,

    /// Start nothing; succeed if the daemon answers at the socket (for a start-up probe)
    #[arg(long)]
    pub check: bool,
}

/// Keeps leases until SIGTERM or SIGINT. Leases stay valid when the daemon ends, and the next start adopts them.
///
/// # Errors
/// If a flag is invalid, another daemon has the socket, or the directory of the leases cannot be used; with `--check`,
/// if no daemon answers.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let is_check = args.check;
    let settings = Settings::try_from(args)?;
    if is_check {
        return check::answers(&settings.socket);
    }
    let shutdown = Shutdown::on_signals().context("cannot listen for signals")?;
    let listener = socket::listen(&settings.socket)?;
    let pid_file = settings
        .pid_file
        .as_deref()
        .map(socket::PidFile::write)
        .transpose()?;
    let leases = Leases::open(settings)?;
    leases.adopt().await;
    let watched = leases.clone();
    tokio::spawn(async move { watched.watch_clock().await });
    server::serve(&listener, &leases, &shutdown).await;
    drop((listener, pid_file));
    Ok(())
}
