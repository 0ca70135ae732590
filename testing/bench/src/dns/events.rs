//! Measures the time from an event of the watch to its answer, by a server in one process with its monitor.
//!
//! A server without a processor answers late in any case. The kernel measures the time that the server, or this client,
//! waited for a processor, and the output lists it separately.

use std::fs;
use std::net::UdpSocket;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::bail;

use crate::cluster::Cluster;
use crate::{ALL_IN_ONE, Args, Asked, TIMEOUT, client, late, query};

/// Response codes (RFC 1035) for an existing name, and for a missing one.
const EXISTS: u8 = 0;
const NO_NAME: u8 = 3;
/// Interval between two queries for the name of a created or deleted instance.
const LOOK: Duration = Duration::from_micros(100);

/// The rate of events.
struct Series {
    what: &'static str,
    /// Number of instances that are created and deleted in turn.
    events: u32,
    /// Interval between two events.
    pause: Duration,
}

const ALL: [Series; 2] = [
    Series {
        what: "one by one",
        events: 500,
        // Some events arrive while zone files are written.
        pause: Duration::from_millis(10),
    },
    Series {
        what: "at rest",
        events: 100,
        // The zone files with the previous event are already written.
        pause: Duration::from_millis(250),
    },
];

/// Duration of one event.
#[derive(Clone, Copy, Debug, Default)]
struct Took {
    whole: Duration,
    /// The part without the time that server or client waited for a processor.
    served: Duration,
}

pub(crate) fn measure(cluster: &Cluster, args: &Args, server: u32) -> anyhow::Result<()> {
    let socket = client(ALL_IN_ONE)?;
    let (mut version, mut next) = (0, args.vms);
    for series in ALL {
        let mut times = [Vec::new(), Vec::new()];
        for n in next..next + series.events {
            let name = Asked::Interface.name(n);
            for ((event, code), times) in [("ADDED", EXISTS), ("DELETED", NO_NAME)]
                .into_iter()
                .zip(&mut times)
            {
                version += 1;
                let (waited, sent) = (waited(server), Instant::now());
                cluster.tell(event, n, version)?;
                while answer_code(&socket, version, &name)? != Some(code) {
                    if sent.elapsed() > TIMEOUT {
                        bail!("{name} is not answered as it should be after {event}");
                    }
                    thread::sleep(LOOK);
                }
                let whole = sent.elapsed();
                let served = whole.saturating_sub(self::waited(server).saturating_sub(waited));
                times.push(Took { whole, served });
                thread::sleep(series.pause);
            }
        }
        next += series.events;
        for (what, times) in ["comes", "goes"].into_iter().zip(times) {
            println!("    an instance {what}, {}: {}", series.what, shown(&times));
        }
    }
    Ok(())
}

fn shown(times: &[Took]) -> String {
    let sorted = |part: fn(&Took) -> Duration| {
        let mut all: Vec<_> = times.iter().map(part).collect();
        let late = late(&mut all);
        let median = all.get(all.len() / 2).copied().unwrap_or_default();
        (median.as_secs_f64() * 1000.0, late.as_secs_f64() * 1000.0)
    };
    let ((median, late), (_, served)) = (sorted(|took| took.whole), sorted(|took| took.served));
    format!(
        "answered after {median:.2} ms, 99 of 100 within {late:.2} ms, without waits for a processor {served:.2} ms"
    )
}

/// The time that the server's thread and this thread were ready, and did not run.
fn waited(server: u32) -> Duration {
    let paths = [
        format!("/proc/{server}/task/{server}/schedstat"),
        "/proc/thread-self/schedstat".to_owned(),
    ];
    let waits = paths
        .iter()
        .map(|path| fs::read_to_string(path).ok().and_then(|text| wait(&text)));
    waits.map(Option::unwrap_or_default).sum()
}

/// The second number of `schedstat`, in nanoseconds (`Documentation/scheduler/sched-stats.rst` of Linux).
fn wait(text: &str) -> Option<Duration> {
    let nanoseconds = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(Duration::from_nanos(nanoseconds))
}

/// The response code of a question for an address; `None` if the answer is lost.
fn answer_code(socket: &UdpSocket, id: u32, name: &str) -> anyhow::Result<Option<u8>> {
    let id = u16::try_from(id % 65_536)?;
    socket.send(&query(id, name))?;
    let mut room = [0; 512];
    let answered = socket.recv(&mut room).is_ok();
    Ok((answered && room[..2] == id.to_be_bytes()).then_some(room[3] % 16))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wait_for_a_processor_is_read() {
        assert_eq!(wait("1000 2500 3\n"), Some(Duration::from_nanos(2500)));
        assert_eq!(wait("x"), None);
    }

    #[test]
    fn time_without_waits_is_shown_apart() {
        let took = Took {
            whole: Duration::from_millis(30),
            served: Duration::from_millis(2),
        };
        assert_eq!(
            shown(&[took; 3]),
            "answered after 30.00 ms, 99 of 100 within 30.00 ms, without waits for a processor 2.00 ms"
        );
    }
}
