//! The DNS server: datagrams and connections of one port, each answered at once (secondary-dns §6).
//!
//! ```text
//! UDP ─ one task ───────────────┐
//! TCP ─ a task a connection ────┴──> answer::respond ──> metrics, log
//! ```

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kube_kit::shutdown::Shutdown;
use kube_kit::{lock, process};
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream, UdpSocket};
use tokio::task::{self, AbortHandle, JoinSet};
use tokio::time::timeout;

use crate::answer::{Reply, Site, Transport, respond};
use crate::metrics::{Drop as Dropped, Metrics};
use crate::query_log::{Line, QueryLog};

/// Maximum size of a query in bytes. Today's queries have some hundred. A longer query is truncated, and thus
/// malformed.
const LONGEST: usize = 4096;
/// Size of a connection's read buffer in bytes.
const AHEAD: usize = 1024;
/// Timeout of sending a datagram.
const SENDING: Duration = Duration::from_millis(100);
/// Pause after a failure to receive or accept, such as a lack of file descriptors.
const PAUSE: Duration = Duration::from_millis(100);
/// Size of the receive buffer for waiting datagrams in bytes. The kernel may allow less.
const WAITING: usize = 1 << 20;
/// Connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// Number of attempts to find a port that is free for both protocols, if any port will do.
const ATTEMPTS: usize = 16;

/// Limits for clients.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Maximum number of connections. Each further connection closes the one with the longest silence.
    pub connections: usize,
    /// Timeout for the client's next query, and for reading an answer.
    pub silence: Duration,
    /// Deadline for running answers at the shutdown.
    pub grace: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 256,
            silence: Duration::from_secs(10),
            grace: Duration::from_millis(300),
        }
    }
}

/// The parts that all queries share.
#[derive(Clone, Debug)]
pub struct Desk {
    /// The zones. They may be replaced at any time.
    pub site: Arc<Mutex<Site>>,
    /// Counts answers.
    pub metrics: Metrics,
    /// The log of queries, for blocks that request it.
    pub log: QueryLog,
}

/// A failure to listen.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen for DNS on port {port} over {protocol}")]
pub struct Error {
    port: u16,
    protocol: &'static str,
    #[source]
    source: io::Error,
}

/// A running server. It ends when it is stopped or dropped.
#[derive(Debug)]
pub struct Server {
    port: u16,
    stop: Shutdown,
    grace: Duration,
    tasks: JoinSet<()>,
}

impl Server {
    /// Listens on a port of all addresses, IPv6 and IPv4, over UDP and TCP. Port 0 selects a free one. Needs a running
    /// runtime.
    ///
    /// # Errors
    /// If the port is taken.
    pub fn start(port: u16, desk: &Desk, limits: Limits) -> Result<Self, Error> {
        let (datagrams, listener, port) = sockets(port)?;
        let stop = Shutdown::new();
        let mut tasks = JoinSet::new();
        tasks.spawn(answer_datagrams(datagrams, desk.clone()));
        tasks.spawn(answer_connections(listener, desk.clone(), limits, stop.clone()));
        Ok(Self {
            port,
            stop,
            grace: limits.grace,
            tasks,
        })
    }

    /// The port in use.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Accepts no more queries, and ends after the running answers.
    pub async fn stop(self) {
        let Self {
            stop,
            grace,
            mut tasks,
            ..
        } = self;
        stop.trigger();
        // The task of datagrams never ends. It answers a received datagram before its next wait.
        let _ = timeout(grace, tasks.join_next()).await;
    }
}

fn sockets(port: u16) -> Result<(UdpSocket, TcpListener, u16), Error> {
    let mut attempts = 0;
    loop {
        attempts += 1;
        let failed = |protocol| {
            move |source| Error {
                port,
                protocol,
                source,
            }
        };
        let datagrams = everywhere(port, SocketType::DGRAM, |fd| UdpSocket::from_std(fd.into()));
        let datagrams = datagrams.map_err(failed("UDP"))?;
        let taken = datagrams.local_addr().map_err(failed("UDP"))?.port();
        let listener = everywhere(taken, SocketType::STREAM, |fd| TcpListener::from_std(fd.into()));
        match listener {
            Ok(listener) => return Ok((datagrams, listener, taken)),
            Err(_) if port == 0 && attempts < ATTEMPTS => {}
            Err(source) => return Err(failed("TCP")(source)),
        }
    }
}

/// A socket on all addresses. A host without IPv6 has a socket for IPv4 only.
fn everywhere<S>(
    port: u16,
    kind: SocketType,
    made: impl Fn(std::os::fd::OwnedFd) -> io::Result<S>,
) -> io::Result<S> {
    let on = |address: IpAddr| {
        let family = match address {
            IpAddr::V4(_) => AddressFamily::INET,
            IpAddr::V6(_) => AddressFamily::INET6,
        };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = rustix::net::socket_with(family, kind, flags, None)?;
        if address.is_ipv6() {
            sockopt::set_ipv6_v6only(&socket, false)?;
        }
        if kind == SocketType::STREAM {
            // A restarted server gets its port back at once.
            sockopt::set_socket_reuseaddr(&socket, true)?;
        } else {
            sockopt::set_socket_recv_buffer_size(&socket, WAITING)?;
        }
        rustix::net::bind(&socket, &SocketAddr::new(address, port))?;
        if kind == SocketType::STREAM {
            rustix::net::listen(&socket, BACKLOG)?;
        }
        made(socket)
    };
    match on(Ipv6Addr::UNSPECIFIED.into()) {
        Err(error) if error.kind() != io::ErrorKind::AddrInUse => on(Ipv4Addr::UNSPECIFIED.into()),
        other => other,
    }
}

impl Desk {
    /// The answer in bytes, if there is one. Updates metrics and log.
    async fn serve(&self, message: &[u8], transport: Transport, peer: SocketAddr) -> Option<Vec<u8>> {
        let began = Instant::now();
        let answered = process::contained(async { respond(message, transport, &lock(&self.site)) }).await;
        let reply = match answered {
            Ok(Some(reply)) => reply,
            Ok(None) => {
                self.metrics.dropped(Dropped::NoQuery);
                return None;
            }
            Err(error) => {
                tracing::error!(%peer, %error, "cannot answer a query");
                self.metrics.dropped(Dropped::Failed);
                return None;
            }
        };
        self.record(message, transport, peer, &reply, began.elapsed());
        Some(reply.octets)
    }

    fn record(&self, message: &[u8], transport: Transport, peer: SocketAddr, reply: &Reply, took: Duration) {
        self.metrics.answered(reply, transport, took);
        if reply.log {
            let line = Line {
                peer: SocketAddr::new(peer.ip().to_canonical(), peer.port()),
                transport,
                size: message.len(),
                reply,
                took,
            };
            if !self.log.tell(&line) {
                self.metrics.dropped(Dropped::Log);
            }
        }
    }
}

async fn answer_datagrams(socket: UdpSocket, desk: Desk) {
    let mut room = vec![0; LONGEST];
    loop {
        let (length, peer) = match socket.recv_from(&mut room).await {
            Ok(received) => received,
            Err(error) => {
                tracing::debug!(%error, "cannot receive a datagram");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        let message = room.get(..length).unwrap_or_default();
        let Some(octets) = desk.serve(message, Transport::Udp, peer).await else {
            continue;
        };
        let sent = match socket.try_send_to(&octets, peer) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let sending = timeout(SENDING, socket.send_to(&octets, peer));
                sending.await.is_ok_and(|sent| sent.is_ok())
            }
            sent => sent.is_ok(),
        };
        if !sent {
            desk.metrics.dropped(Dropped::Unsent);
        }
    }
}

/// Time of a connection's last use, in nanoseconds since the server's start.
type LastUse = Arc<AtomicU64>;

async fn answer_connections(listener: TcpListener, desk: Desk, limits: Limits, stop: Shutdown) {
    let began = Instant::now();
    let mut tasks = JoinSet::new();
    let mut members: HashMap<task::Id, (AbortHandle, LastUse)> = HashMap::new();
    loop {
        tokio::select! {
            () = stop.wait() => break,
            Some(ended) = tasks.join_next_with_id(), if !tasks.is_empty() => {
                let id = match ended {
                    Ok((id, ())) => id,
                    Err(error) => error.id(),
                };
                members.remove(&id);
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    make_room(&mut members, &desk, limits.connections);
                    let last = LastUse::default();
                    let connection = Connection {
                        peer,
                        desk: desk.clone(),
                        silence: limits.silence,
                        stop: stop.clone(),
                        began,
                        last: Arc::clone(&last),
                    };
                    connection.is_used();
                    let handle = tasks.spawn(connection.converse(stream));
                    members.insert(handle.id(), (handle, last));
                }
                Err(error) => {
                    tracing::debug!(%error, "cannot accept a connection");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }
    drop(listener);
    while tasks.join_next().await.is_some() {}
}

/// Closes the connections with the longest silence until one more fits.
fn make_room(members: &mut HashMap<task::Id, (AbortHandle, LastUse)>, desk: &Desk, limit: usize) {
    while members.len() >= limit {
        let idle = members
            .iter()
            .min_by_key(|(_, (_, last))| last.load(Ordering::Relaxed))
            .map(|(id, _)| *id);
        let Some((handle, _)) = idle.and_then(|id| members.remove(&id)) else {
            return;
        };
        handle.abort();
        desk.metrics.dropped(Dropped::Connection);
    }
}

/// A client's connection.
struct Connection {
    peer: SocketAddr,
    desk: Desk,
    silence: Duration,
    stop: Shutdown,
    began: Instant,
    last: LastUse,
}

impl Connection {
    /// Answers queries in order, until the client closes the connection or exceeds the timeout.
    async fn converse(self, stream: TcpStream) {
        // Short answers are sent at once, too.
        let _ = stream.set_nodelay(true);
        let mut stream = BufReader::with_capacity(AHEAD, stream);
        loop {
            let query = tokio::select! {
                biased;
                query = timeout(self.silence, query(&mut stream)) => query,
                () = self.stop.wait() => return,
            };
            let Ok(Ok(query)) = query else { return };
            self.is_used();
            let Some(octets) = self.desk.serve(&query, Transport::Tcp, self.peer).await else {
                continue;
            };
            let Ok(length) = u16::try_from(octets.len()) else {
                return;
            };
            let framed = [&length.to_be_bytes()[..], &octets].concat();
            if !matches!(timeout(self.silence, stream.write_all(&framed)).await, Ok(Ok(()))) {
                return;
            }
            self.is_used();
        }
    }

    fn is_used(&self) {
        let now = u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.last.store(now, Ordering::Relaxed);
    }
}

/// The next query of a connection.
async fn query(stream: &mut BufReader<TcpStream>) -> io::Result<Vec<u8>> {
    let length = usize::from(stream.read_u16().await?);
    if length > LONGEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut query = vec![0; length];
    stream.read_exact(&mut query).await?;
    Ok(query)
}

#[cfg(test)]
mod tests;
