//! A name server in the network of a cluster.

use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::cluster::Cluster;
use crate::error::{At, Result};
use crate::run;

/// Port of name servers.
const PORT: u16 = 53;
/// Length of a message's header (RFC 1035).
const HEADER: usize = 12;

/// A name server that answers every query, until it is silenced.
#[derive(Debug)]
pub struct NameServer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    stop: AtomicBool,
    answers: Mutex<Answers>,
    asked: AtomicUsize,
}

/// The queries that are answered.
#[derive(Debug)]
enum Answers {
    All,
    None,
    /// Those that arrive before the command succeeds.
    Until(Box<Command>),
}

impl Shared {
    fn answers(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true if a query that has just arrived is to be answered.
    fn is_answering(&self) -> bool {
        let mut answers = self.answers();
        if let Answers::Until(command) = &mut *answers
            && run::output(command).is_ok()
        {
            *answers = Answers::None;
        }
        !matches!(*answers, Answers::None)
    }
}

impl NameServer {
    /// Starts a name server on all addresses of a node, or of `control`. It ends when this is dropped.
    pub fn start(cluster: &Cluster, node: &str) -> Result<Self> {
        let any = SocketAddr::from(([0, 0, 0, 0], PORT));
        let socket = cluster.udp_socket(node, any)?;
        socket
            .set_read_timeout(Some(Duration::from_millis(100)))
            .at("configure", Path::new("a name server's socket"))?;
        let shared = Arc::new(Shared {
            stop: AtomicBool::new(false),
            answers: Mutex::new(Answers::All),
            asked: AtomicUsize::new(0),
        });
        let theirs = Arc::clone(&shared);
        let thread = std::thread::spawn(move || serve(&socket, &theirs));
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Answers no query from now on.
    pub fn silence(&self) {
        *self.shared.answers() = Answers::None;
    }

    /// Answers queries until the command succeeds, and then none. Each query runs the command, so the order of events
    /// decides, and not their duration.
    pub fn silence_once(&self, command: Command) {
        *self.shared.answers() = Answers::Until(Box::new(command));
    }

    /// Answers all queries from now on.
    pub fn speak(&self) {
        *self.shared.answers() = Answers::All;
    }

    /// Number of received queries, answered or not.
    pub fn questions(&self) -> usize {
        self.shared.asked.load(Ordering::SeqCst)
    }
}

impl Drop for NameServer {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(socket: &UdpSocket, shared: &Shared) {
    let mut packet = [0; 1500];
    while !shared.stop.load(Ordering::SeqCst) {
        let (length, from) = match socket.recv_from(&mut packet) {
            Ok(received) => received,
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => continue,
            // The client reports the missing answer.
            Err(_) => return,
        };
        shared.asked.fetch_add(1, Ordering::SeqCst);
        if !shared.is_answering() {
            continue;
        }
        if let Some(answer) = answer(packet.get(..length).unwrap_or_default()) {
            let _ = socket.send_to(&answer, from);
        }
    }
}

/// Returns the query with one record of its type.
fn answer(question: &[u8]) -> Option<Vec<u8>> {
    let name = question.get(HEADER..)?.iter().position(|byte| *byte == 0)?;
    // Type and class follow the name.
    let end = HEADER + name + 5;
    let [high, low, ..] = question.get(end - 4..end)? else {
        return None;
    };
    let data: &[u8] = match (high, low) {
        (0, 1) => &[192, 0, 2, 254],
        (0, 2) => b"\x01a\x00",
        _ => &[0x20, 1, 0x0d, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1],
    };
    // Recursion available, one query, one answer.
    let mut answer = question.get(..2)?.to_vec();
    answer.extend([0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0]);
    answer.extend(question.get(HEADER..end)?);
    // The name of the query, its type, class Internet, and a TTL of a minute.
    answer.extend([0xc0, 12, *high, *low, 0, 1, 0, 0, 0, 60, 0]);
    answer.push(u8::try_from(data.len()).ok()?);
    answer.extend(data);
    Some(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answer_repeats_the_query_with_one_record() {
        let question = b"\x07\x08\x01\x00\x00\x01\x00\x00\x00\x00\x00\x00\x01a\x00\x00\x02\x00\x01";
        let expected = b"\x07\x08\x81\x80\x00\x01\x00\x01\x00\x00\x00\x00\x01a\x00\x00\x02\x00\x01\
            \xc0\x0c\x00\x02\x00\x01\x00\x00\x00\x3c\x00\x03\x01a\x00";
        assert_eq!(answer(question).unwrap(), expected);
        assert_eq!(answer(b"\x07\x08"), None);
        assert_eq!(answer(&question[..15]), None);
    }
}
