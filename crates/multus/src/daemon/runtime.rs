//! Lists the sandboxes of this host's container runtimes (multus.md §5.4).

use crate::config::DaemonConfig;
use crate::names;
use kube_kit::cri::{self, Cri};
use kube_kit::grpc;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Minimum age of a record without a netns before the runtime's list alone is sufficient: its ADD has ended by then.
pub(crate) const SETTLED: Duration = Duration::from_mins(10);
/// gRPC code of a runtime without the CRI service.
const UNIMPLEMENTED: i32 = 12;

/// The sandboxes of a runtime are unknown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("no socket of a container runtime")]
    NoSocket,
    #[error("{}: {source}", socket.display())]
    Runtime { socket: PathBuf, source: cri::Error },
}

/// The sandboxes of all runtimes of this host. Every runtime that has a socket must answer.
pub(crate) async fn sandboxes(config: &DaemonConfig) -> Result<BTreeSet<String>, Error> {
    let sockets = match &config.cri_socket {
        Some(socket) => vec![socket.clone()],
        None => names::CRI_SOCKETS
            .iter()
            .map(|socket| config.on_host(Path::new(socket)))
            .filter(|socket| socket.exists())
            .collect(),
    };
    let mut known = None;
    for socket in sockets {
        let cri = Cri { socket };
        match cri.sandboxes().await {
            Ok(found) => known.get_or_insert_with(BTreeSet::new).extend(found),
            // A containerd without the CRI plugin.
            Err(cri::Error::Call {
                source: grpc::Error::Status(status),
                ..
            }) if status.code() as i32 == UNIMPLEMENTED => {}
            Err(source) => {
                return Err(Error::Runtime {
                    socket: cri.socket,
                    source,
                });
            }
        }
    }
    known.ok_or(Error::NoSocket)
}
