//! Logs one line per query, in the upstream server's format (secondary-dns §7).

use std::fmt::Write as _;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use crate::answer::{Reply, Transport};
use crate::metrics::{code, protocol};

/// Maximum number of queued lines. Further lines are dropped: a log without a reader must not delay answers.
const WAITING: usize = 1024;
/// Lines are collected for this time. Waking the writer for each line costs more than the rest of a query.
const GATHERING: Duration = Duration::from_millis(5);
/// Bytes of a typical line.
const USUAL: usize = 160;

/// Bits of a header's second word with the names of their flags, in the order of the line.
const FLAGS: [(u16, &str); 7] = [
    (0x8000, "qr"),
    (0x0400, "aa"),
    (0x0200, "tc"),
    (0x0100, "rd"),
    (0x0080, "ra"),
    (0x0020, "ad"),
    (0x0010, "cd"),
];

/// The content of a line.
#[derive(Clone, Copy, Debug)]
pub struct Line<'a> {
    /// The client.
    pub peer: SocketAddr,
    /// Transport of the query.
    pub transport: Transport,
    /// Size of the query in bytes.
    pub size: usize,
    /// Answer to the query.
    pub reply: &'a Reply,
    /// Duration of the answer.
    pub took: Duration,
}

/// Writes lines. Clones share the output.
#[derive(Clone, Debug)]
pub struct QueryLog(SyncSender<String>);

impl QueryLog {
    /// Writes to standard output in a thread that ends with the last clone.
    ///
    /// # Errors
    /// If no thread can be created.
    pub fn to_stdout() -> io::Result<Self> {
        Self::to(io::stdout())
    }

    /// Writes to any output.
    ///
    /// # Errors
    /// If no thread can be created.
    pub fn to(output: impl Write + Send + 'static) -> io::Result<Self> {
        let (sender, lines) = sync_channel(WAITING);
        let writer = thread::Builder::new()
            .name("query-log".to_owned())
            .stack_size(64 << 10);
        writer.spawn(move || write(&lines, output))?;
        Ok(Self(sender))
    }

    /// Queues a line. `false` if the queue is full.
    pub fn tell(&self, line: &Line<'_>) -> bool {
        self.0.try_send(text(line)).is_ok()
    }
}

/// Writes single lines at a low rate, and collected lines at a high rate.
fn write(lines: &Receiver<String>, mut output: impl Write) {
    let mut block = String::new();
    while let Ok(line) = lines.recv() {
        block.clear();
        block.push_str(&line);
        for line in lines.try_iter().take(WAITING) {
            block.push_str(&line);
        }
        // A failed write cannot be reported anywhere.
        let _ = output.write_all(block.as_bytes()).and_then(|()| output.flush());
        thread::sleep(GATHERING);
    }
}

fn text(line: &Line<'_>) -> String {
    let Line {
        peer,
        transport,
        size,
        reply,
        took,
    } = line;
    let word = |at: usize| match (reply.octets.get(at), reply.octets.get(at + 1)) {
        (Some(high), Some(low)) => u16::from_be_bytes([*high, *low]),
        _ => 0,
    };
    let mut text = String::with_capacity(USUAL);
    // Writing to a String cannot fail.
    let _ = write!(text, "[INFO] {peer} - {} \"", word(0));
    if let Some(query) = &reply.question {
        let mut name = query.name().to_ascii();
        name.make_ascii_lowercase();
        let _ = write!(text, "{} {} {name}", query.query_type(), query.query_class());
    }
    let usual = match transport {
        Transport::Udp => 512,
        Transport::Tcp => 65535,
    };
    let (wants_signatures, room) = reply.edns.unwrap_or((false, usual));
    let (protocol, code) = (protocol(*transport), code(reply.code));
    let _ = write!(text, " {protocol} {size} {wants_signatures} {room}\" {code} ");
    let set = FLAGS.iter().filter(|(bit, _)| word(2) & bit != 0);
    for (place, (_, name)) in set.enumerate() {
        text.push_str(if place == 0 { "" } else { "," });
        text.push_str(name);
    }
    let _ = writeln!(text, " {} {:.9}s", reply.octets.len(), took.as_secs_f64());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use hickory_proto::op::{Query, ResponseCode};
    use hickory_proto::rr::{Name, RecordType};

    fn reply() -> Reply {
        let mut octets = vec![0; 58];
        octets[..4].copy_from_slice(&[0x12, 0x67, 0x85, 0x00]);
        let name = Name::from_ascii("Nic1.vmi1.ns1.vm.").unwrap();
        Reply {
            octets,
            code: ResponseCode::NoError,
            question: Some(Query::query(name, RecordType::A)),
            edns: None,
            log: true,
        }
    }

    fn line(reply: &Reply) -> Line<'_> {
        Line {
            peer: "10.1.2.3:40000".parse().unwrap(),
            transport: Transport::Udp,
            size: 42,
            reply,
            took: Duration::from_micros(101),
        }
    }

    #[test]
    fn lines_have_the_form_of_coredns() {
        assert_eq!(
            text(&line(&reply())),
            "[INFO] 10.1.2.3:40000 - 4711 \"A IN nic1.vmi1.ns1.vm. udp 42 false 512\" NOERROR qr,aa,rd 58 0.000101000s\n"
        );
        let signed = Reply {
            edns: Some((true, 4096)),
            ..reply()
        };
        let signed = Line {
            peer: "[::1]:1".parse().unwrap(),
            transport: Transport::Tcp,
            ..line(&signed)
        };
        let text = text(&signed);
        assert!(text.starts_with("[INFO] [::1]:1 - 4711 \"A IN"), "{text}");
        assert!(text.contains(" tcp 42 true 4096\" "), "{text}");
    }

    #[test]
    fn full_log_delays_no_query() {
        /// Blocks until the test ends.
        struct Stuck(std::sync::mpsc::Receiver<()>);
        impl Write for Stuck {
            fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
                let _ = self.0.recv();
                Ok(bytes.len())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let (end, stuck) = std::sync::mpsc::channel();
        let log = QueryLog::to(Stuck(stuck)).unwrap();
        let reply = reply();
        // The writer has already taken some lines.
        let logged = (0..10 * WAITING).filter(|_| log.tell(&line(&reply))).count();
        assert!((WAITING..=3 * WAITING).contains(&logged), "{logged}");
        drop(end);
    }
}
