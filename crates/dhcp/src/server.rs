//! Answers the plugins: one request and one answer per connection, each one line of JSON.

use std::io;
use std::sync::Arc;

use kube_kit::shutdown::Shutdown;
use plugins::dhcp::wire::{Answer, MAX_LINE, Request};
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::UnixStream;
use tokio::sync::Semaphore;
use tokio::time::{sleep, timeout};
use tracing::warn;

use crate::leases::Leases;
use crate::names::{MAX_CONNECTIONS, TIMEOUT};
use crate::socket::Listener;

/// Pause after a failure to accept a connection, for example for a lack of file descriptors.
const PAUSE: std::time::Duration = std::time::Duration::from_millis(100);

/// Answers until the shutdown. Connections above the limit wait.
pub(crate) async fn serve(listener: &Listener, leases: &Leases, shutdown: &Shutdown) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        let accepted = async {
            let place = places.clone().acquire_owned().await;
            (place, listener.listener.accept().await)
        };
        let (place, accepted) = tokio::select! {
            accepted = accepted => accepted,
            () = shutdown.wait() => return,
        };
        match accepted {
            Ok((stream, _)) => {
                let leases = leases.clone();
                tokio::spawn(async move {
                    if let Err(error) = converse(stream, &leases).await {
                        warn!(%error, "a connection failed");
                    }
                    drop(place);
                });
            }
            Err(error) => {
                warn!(%error, "cannot accept a connection");
                sleep(PAUSE).await;
            }
        }
    }
}

async fn converse(stream: UnixStream, leases: &Leases) -> io::Result<()> {
    let peer = stream.peer_cred()?.uid();
    if peer != 0 && peer != rustix::process::geteuid().as_raw() {
        return Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            format!("user {peer} may not ask for leases"),
        ));
    }
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::new(reader.take(MAX_LINE));
    let mut line = Vec::new();
    timeout(TIMEOUT, reader.read_until(b'\n', &mut line)).await??;
    let answer = match serde_json::from_slice(&line) {
        Ok(request) => {
            // A plugin that was killed or gave up closes its connection.
            let mut rest = [0; 1];
            tokio::select! {
                answer = answer(request, leases) => answer,
                _ = reader.read(&mut rest) => return Ok(()),
            }
        }
        Err(error) => Answer::Failed(format!("cannot read the request: {error}")),
    };
    let mut line = serde_json::to_vec(&answer)?;
    line.push(b'\n');
    timeout(TIMEOUT, writer.write_all(&line)).await?
}

async fn answer(request: Request, leases: &Leases) -> Answer {
    let outcome = match request {
        Request::Status => Ok(Answer::Done),
        Request::Allocate(allocation) => leases.allocate(allocation).await.map(Answer::Lease),
        Request::Release(attachment) => leases.release(&attachment).await.map(|()| Answer::Done),
        Request::Gc(valid) => leases.collect(&valid).await.map(|()| Answer::Done),
    };
    outcome.unwrap_or_else(Answer::Failed)
}
