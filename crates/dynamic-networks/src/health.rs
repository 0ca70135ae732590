//! The controller's own probe: `weft dynamic-networks --check` asks the controller, not the multus daemon, so that a
//! daemon that restarts restarts nobody else.

use crate::daemon::post_once;
use anyhow::{Context as _, bail, ensure};
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::any;
use clap::ValueEnum;
use hyper::body::Bytes;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::watch;

/// The daemon's probe, and ours.
pub(crate) const HEALTHZ: &str = "/healthz";
const READYZ: &str = "/readyz";
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// What a probe asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Probe {
    /// Does the controller work, and does it see the container runtime?
    Live,
    /// Does it know the node's pods, and is the multus daemon there?
    Ready,
}

struct Health {
    cri: PathBuf,
    synced: watch::Receiver<bool>,
    multus: PathBuf,
}

/// Answers probes at a socket of the container until dropped.
pub(crate) fn serve(
    socket: &Path,
    cri: PathBuf,
    multus: PathBuf,
    synced: watch::Receiver<bool>,
) -> io::Result<tokio::task::JoinHandle<()>> {
    // Of a controller before this one in the same container.
    cni::files::remove_if_present(socket)?;
    let listener = UnixListener::bind(socket)?;
    let router = Router::new()
        .route(HEALTHZ, any(live))
        .route(READYZ, any(ready))
        .with_state(Arc::new(Health { cri, synced, multus }));
    Ok(tokio::spawn(async move {
        if let Err(error) = axum::serve(listener, router).await {
            tracing::error!(%error, "probes are answered no more");
        }
    }))
}

/// The runtime's socket is a mount of its own, which still shows the old one after the runtime was restarted; and the
/// directory of the daemon's socket is a mount that still shows a directory that was deleted, as the established daemon
/// does at each start: only a new container gets the new ones.
async fn live(State(health): State<Arc<Health>>) -> (StatusCode, String) {
    if health.multus.parent().is_some_and(is_deleted) {
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

/// Whether a directory was deleted while it is mounted, or open: then nothing leads to it any more.
fn is_deleted(directory: &Path) -> bool {
    fs::metadata(directory).is_ok_and(|found| found.nlink() == 0)
}

async fn ready(State(health): State<Arc<Health>>) -> (StatusCode, String) {
    if !*health.synced.borrow() {
        return (
            StatusCode::SERVICE_UNAVAILABLE,
            "the pods of the node are not known yet\n".into(),
        );
    }
    match post_once(&health.multus, HEALTHZ, Bytes::new(), PATIENCE).await {
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

/// Asks the controller behind a socket.
pub(crate) async fn check(socket: &Path, what: Probe) -> anyhow::Result<()> {
    let path = match what {
        Probe::Live => HEALTHZ,
        Probe::Ready => READYZ,
    };
    let answer = post_once(socket, path, Bytes::new(), PATIENCE * 2).await;
    let (status, body) = answer.with_context(|| format!("nobody answers at {}", socket.display()))?;
    ensure!(status == 200, "{}", String::from_utf8_lossy(&body).trim_end());
    Ok(())
}

/// What `curl --fail --unix-socket SOCKET localhost/healthz` prints, as established probes call it.
pub(crate) async fn ask_daemon(socket: &Path) -> anyhow::Result<String> {
    let (status, body) = post_once(socket, HEALTHZ, Bytes::new(), PATIENCE).await?;
    if status >= 400 {
        bail!("the requested URL returned error: {status}");
    }
    Ok(String::from_utf8_lossy(&body).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd as _;

    #[test]
    fn a_directory_that_is_made_anew_is_another_one() {
        let root = tempfile::tempdir().unwrap();
        let path = root.path().join("multus");
        fs::create_dir(&path).unwrap();
        let open = fs::File::open(&path).unwrap();
        let held = PathBuf::from(format!("/proc/self/fd/{}", open.as_raw_fd()));
        assert!(!is_deleted(&held));
        fs::remove_dir(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(is_deleted(&held));
        assert!(!is_deleted(&path));
        assert!(!is_deleted(&root.path().join("never was there")));
    }
}
