//! `kubeconfig_generator`: obtains a certificate of this node for the thin-mode plugin and writes a kubeconfig that
//! refers to it (multus.md §7.8).

use super::{Rotator, Settings};
use crate::names;
use crate::thin::kubeconfig::{Trust, with_certificate};
use anyhow::Context as _;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use clap::Args as ClapArgs;
use cni::files::write_atomically;
use kube::config::{Cluster, Kubeconfig};
use kube_kit::shutdown::Shutdown;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// Write a kubeconfig with a certificate of this node, and renew the certificate in time
#[derive(Debug, Clone, ClapArgs)]
pub struct Args {
    /// Directory of the certificates: the same path in this container and on the host
    #[arg(long, value_name = "DIR", default_value = "/tmp")]
    pub certdir: PathBuf,
    /// Kubeconfig with an identity of the node
    #[arg(long, value_name = "FILE", default_value = "/tmp/kubeconfig")]
    pub bootstrap_config: PathBuf,
    /// The kubeconfig to write
    #[arg(long, value_name = "FILE", default_value = "/run/multus/kubeconfig")]
    pub kubeconfig: PathBuf,
    /// Requested lifetime of a certificate
    #[arg(long, value_name = "DURATION", default_value = "10m")]
    pub cert_duration: String,
}

/// Writes the kubeconfig and renews its certificate until SIGTERM or SIGINT.
///
/// # Errors
/// No certificate in time, or a file cannot be written.
pub async fn run(args: Args) -> anyhow::Result<()> {
    let shutdown = Shutdown::on_signals()?;
    let node = env::var(names::NODE_NAME).ok();
    serve(args, node.as_deref(), shutdown).await
}

/// [`run`], with its inputs as arguments.
///
/// # Errors
/// As [`run`].
pub async fn serve(args: Args, node: Option<&str>, shutdown: Shutdown) -> anyhow::Result<()> {
    let Args {
        certdir,
        bootstrap_config,
        kubeconfig,
        cert_duration,
    } = args;
    let (bootstrap, dir) = (bootstrap_config.to_string_lossy(), certdir.to_string_lossy());
    let settings = Settings::new(node, &bootstrap, &dir, &cert_duration)?;
    let keeper = tokio::select! {
        keeper = Rotator::start(settings) => keeper?,
        () = shutdown.wait() => return Ok(()),
    };
    let text = text(&bootstrap_config, &keeper.file())?;
    if let Some(dir) = kubeconfig.parent() {
        fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    }
    write_atomically(&kubeconfig, text.as_bytes(), 0o600)
        .with_context(|| format!("cannot write {}", kubeconfig.display()))?;
    tracing::info!(file = %kubeconfig.display(), "wrote the kubeconfig");
    tokio::select! {
        () = keeper.keep() => {}
        () = shutdown.wait() => {}
    }
    fs::remove_file(&kubeconfig).with_context(|| format!("cannot remove {}", kubeconfig.display()))
}

/// The kubeconfig's text: the bootstrap kubeconfig's cluster, and the certificate as user.
fn text(bootstrap: &Path, certificate: &Path) -> anyhow::Result<String> {
    let config = Kubeconfig::read_from(bootstrap)?;
    let cluster = cluster(config).with_context(|| format!("{} names no cluster", bootstrap.display()))?;
    let authority = match (
        &cluster.certificate_authority_data,
        &cluster.certificate_authority,
    ) {
        (Some(data), _) => Some(data.clone()),
        (None, Some(file)) => {
            let pem = fs::read(file).with_context(|| format!("cannot read {file}"))?;
            Some(STANDARD.encode(pem))
        }
        (None, None) => None,
    };
    let trust = match &authority {
        Some(authority) => Trust::Authority(authority),
        None if cluster.insecure_skip_tls_verify == Some(true) => Trust::Nothing,
        None => Trust::System,
    };
    let server = cluster.server.unwrap_or_default();
    Ok(with_certificate(&server, trust, certificate))
}

/// The cluster of the current context.
fn cluster(config: Kubeconfig) -> Option<Cluster> {
    let current = config.current_context?;
    let context = config
        .contexts
        .into_iter()
        .find(|context| context.name == current)?
        .context?;
    config
        .clusters
        .into_iter()
        .find(|cluster| cluster.name == context.cluster)?
        .cluster
}
