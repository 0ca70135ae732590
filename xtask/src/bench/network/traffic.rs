//! Traffic between network namespaces of pods.

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use cluster::Cluster;

/// Port of the servers, and port for first packets of new pods.
pub(super) const PORT: u16 = 8080;
pub(super) const ARRIVALS: u16 = 8081;

/// Timeout of a connection.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Bytes per read or write of a transfer.
const CHUNK: usize = 1 << 16;

/// Starts a server in the network namespace of a process. It answers a single byte with the same byte, and drops longer
/// input. It ends with this process.
pub(super) fn serve(pid: i32) -> anyhow::Result<()> {
    let listener = listen(pid, PORT)?;
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            // The client reports a failed connection.
            let _ = answer(stream);
        }
    });
    Ok(())
}

fn answer(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; CHUNK];
    loop {
        match stream.read(&mut buffer)? {
            0 => return Ok(()),
            1 => stream.write_all(&buffer[..1])?,
            _ => {}
        }
    }
}

/// Times of connections to a server that only accepts them.
#[derive(Debug)]
pub(super) struct Arrivals(Receiver<Instant>);

impl Arrivals {
    /// Starts the server in the network namespace of a process.
    pub(super) fn listen(pid: i32) -> anyhow::Result<Self> {
        let listener = listen(pid, ARRIVALS)?;
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            for _ in listener.incoming().flatten() {
                if sender.send(Instant::now()).is_err() {
                    return;
                }
            }
        });
        Ok(Self(receiver))
    }

    /// Forgets earlier connections.
    pub(super) fn clear(&self) {
        self.0.try_iter().for_each(drop);
    }

    /// Waits for the next connection.
    pub(super) fn next(&self, timeout: Duration) -> Option<Instant> {
        self.0.recv_timeout(timeout).ok()
    }
}

fn listen(pid: i32, port: u16) -> anyhow::Result<TcpListener> {
    Cluster::on_network_of(pid, || TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)))
        .with_context(|| format!("cannot listen on port {port} of a pod"))
}

/// Durations of round trips of a byte, on one connection.
pub(super) fn round_trips(pid: i32, address: &str, count: usize) -> anyhow::Result<Vec<Duration>> {
    on_network(pid, address, |server| {
        let mut stream = connect(server)?;
        // The first exchange fills the caches.
        exchange(&mut stream)?;
        (0..count).map(|_| timed(|| exchange(&mut stream))).collect()
    })
}

/// Durations of a new connection with a round trip of a byte.
pub(super) fn connections(pid: i32, address: &str, count: usize) -> anyhow::Result<Vec<Duration>> {
    on_network(pid, address, |server| {
        (0..count)
            .map(|_| timed(|| exchange(&mut connect(server)?)))
            .collect()
    })
}

/// Rate of one transfer in MiB per second, until the server has read the last byte.
pub(super) fn rate(pid: i32, address: &str, bytes: usize) -> anyhow::Result<f64> {
    let time = on_network(pid, address, |server| {
        let mut stream = connect(server)?;
        let chunk = vec![7; CHUNK];
        timed(|| {
            for _ in 0..bytes / CHUNK {
                stream.write_all(&chunk)?;
            }
            stream.shutdown(Shutdown::Write)?;
            io::copy(&mut stream, &mut io::sink()).map(drop)
        })
    })?;
    #[expect(clippy::cast_precision_loss, reason = "a figure for people")]
    Ok((bytes >> 20) as f64 / time.as_secs_f64())
}

fn on_network<T: Send>(
    pid: i32,
    address: &str,
    work: impl FnOnce(SocketAddr) -> io::Result<T> + Send,
) -> anyhow::Result<T> {
    let address: Ipv4Addr = address
        .parse()
        .with_context(|| format!("bad address {address:?} of a pod or Service"))?;
    let server = SocketAddr::from((address, PORT));
    Cluster::on_network_of(pid, || work(server)).with_context(|| format!("no traffic with {server}"))
}

fn connect(server: SocketAddr) -> io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&server, TIMEOUT)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

fn exchange(stream: &mut TcpStream) -> io::Result<()> {
    stream.write_all(&[1])?;
    stream.read_exact(&mut [0])
}

fn timed(work: impl FnOnce() -> io::Result<()>) -> io::Result<Duration> {
    let began = Instant::now();
    work()?;
    Ok(began.elapsed())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_answers_single_bytes_and_drops_transfers() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let server = listener.local_addr().unwrap();
        let answering = thread::spawn(move || answer(listener.accept().unwrap().0));
        let mut stream = connect(server).unwrap();
        exchange(&mut stream).unwrap();
        stream.write_all(&vec![7; CHUNK]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        io::copy(&mut stream, &mut io::sink()).unwrap();
        answering.join().unwrap().unwrap();
    }
}
