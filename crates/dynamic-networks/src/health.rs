//! The controller's own probe: `weft dynamic-networks --check` probes the controller instead of the multus daemon, so
//! that a restart of the daemon does not restart the controller.

use crate::daemon::post_once;
use anyhow::{Context as _, bail, ensure};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::any;
use clap::ValueEnum;
use hyper::body::Bytes;
use linux::files::is_deleted_directory;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

/// Path of the daemon's probe, and of the controller's.
pub(crate) const HEALTHZ: &str = "/healthz";
const READYZ: &str = "/readyz";
/// Timeout of an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// Kinds of probes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Probe {
    /// The controller works and can reach the container runtime.
    Live,
    /// The watch is synchronised, and the multus daemon answers.
    Ready,
}

struct Health {
    cri: PathBuf,
    synced: watch::Receiver<bool>,
    multus: PathBuf,
}

/// Serves the probes at a socket, until the task is aborted.
pub(crate) fn serve(
    socket: &Path,
    cri: PathBuf,
    multus: PathBuf,
    synced: watch::Receiver<bool>,
) -> io::Result<tokio::task::JoinHandle<()>> {
    // A leftover of an earlier process in the same container.
    cni::files::remove_if_present(socket)?;
    let listener = UnixListener::bind(socket)?;
    let router = Router::new()
        .route(HEALTHZ, any(live))
        .route(READYZ, any(ready))
        .with_state(Arc::new(Health { cri, synced, multus }));
    Ok(tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "the probe server failed");
        }
    }))
}

/// Fails when a mount is stale: the runtime's socket is mounted by itself, so a restarted runtime's socket is not
/// visible; and upstream's daemon recreates the directory of its socket at each start. Only a new container gets the
/// new mounts.
async fn live(State(health): State<Arc<Health>>) -> (StatusCode, String) {
    if health.multus.parent().is_some_and(is_deleted_directory) {
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            "the directory of the multus socket is gone: only a new container sees the new one\n".into(),
        );
    }
    match UnixStream::connect(&health.cri).await {
        Ok(_) => (StatusCode::OK, String::new()),
        Err(error) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("the container runtime does not answer: {error}\n"),
        ),
    }
}

async fn ready(State(health): State<Arc<Health>>) -> (StatusCode, String) {
    if !*health.synced.borrow() {
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            "the watch of pods is not synchronised yet\n".into(),
        );
    }
    match post_once(&health.multus, HEALTHZ, Bytes::new(), ANSWER_TIMEOUT).await {
        Ok((200, _)) => (StatusCode::OK, String::new()),
        Ok((status, _)) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("the multus daemon answers {status}\n"),
        ),
        Err(error) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("the multus daemon does not answer: {error}\n"),
        ),
    }
}

/// Probes the controller behind a socket.
pub(crate) async fn check(socket: &Path, what: Probe) -> anyhow::Result<()> {
    let path = match what {
        Probe::Live => HEALTHZ,
        Probe::Ready => READYZ,
    };
    let answer = post_once(socket, path, Bytes::new(), ANSWER_TIMEOUT * 2).await;
    let (status, body) = answer.with_context(|| format!("no answer at {}", socket.display()))?;
    ensure!(status == 200, "{}", String::from_utf8_lossy(&body).trim_end());
    Ok(())
}

/// The output of `curl --fail --unix-socket SOCKET localhost/healthz`, which upstream's probes run.
pub(crate) async fn probe_daemon(socket: &Path) -> anyhow::Result<String> {
    let (status, body) = post_once(socket, HEALTHZ, Bytes::new(), ANSWER_TIMEOUT).await?;
    if status >= 400 {
        bail!("the requested URL returned error: {status}");
    }
    Ok(String::from_utf8_lossy(&body).into_owned())
}
