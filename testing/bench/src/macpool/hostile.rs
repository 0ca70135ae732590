//! A hostile client, beside another client that sends reviews.

use std::collections::VecDeque;
use std::net::Ipv4Addr;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Context;

use review_bench::http::{Connection, Server};
use review_bench::load::{self, Figures, Pace};
use review_bench::program::Manager;

use crate::objects::{self, Review};

/// Address of the hostile client.
const ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);
/// More connections than the server's limit.
const CONNECTIONS: usize = 600;
/// Threads of the hostile client.
const THREADS: usize = 2;

/// Behaviour of the hostile client.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Hostility {
    /// Opens connections, starts a request on each, and keeps them open.
    SlowHeads,
    /// Opens connections as fast as it can.
    Handshakes,
    /// Sends reviews of the maximum size.
    LargeBodies,
}

impl Hostility {
    pub(crate) const ALL: [Self; 3] = [Self::SlowHeads, Self::Handshakes, Self::LargeBodies];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::SlowHeads => "slow heads",
            Self::Handshakes => "handshakes",
            Self::LargeBodies => "7 MiB bodies",
        }
    }

    /// Attacks until `stop`. `begun` is released once the attack has its full force.
    fn attack(self, server: &Server, begun: &Barrier, stop: &AtomicBool) -> anyhow::Result<()> {
        let kept = match self {
            Self::SlowHeads => (0..CONNECTIONS / THREADS).map(|_| slow(server)).collect(),
            Self::Handshakes | Self::LargeBodies => Ok(VecDeque::new()),
        };
        let body = objects::large_review();
        let mut large = None;
        begun.wait();
        let mut kept = kept?;
        while !stop.load(Ordering::Relaxed) {
            // The server may close these connections at any time.
            match self {
                Self::SlowHeads => {
                    kept.pop_front();
                    kept.extend(slow(server).ok());
                }
                Self::Handshakes => drop(server.connect()),
                Self::LargeBodies => {
                    let Ok(mut connection) = large.take().map_or_else(|| server.connect(), Ok) else {
                        continue;
                    };
                    let path = Review::PodCreate.path();
                    if connection.ask("POST", path, "application/json", &body).is_ok() {
                        large = Some(connection);
                    }
                }
            }
        }
        Ok(())
    }
}

fn slow(server: &Server) -> anyhow::Result<Connection> {
    let mut connection = server.connect()?;
    connection.begin(Review::PodCreate.path())?;
    Ok(connection)
}

/// Sends reviews by one client while another is hostile. Also returns the server's memory at the end, kibibytes.
pub(crate) fn measure(
    manager: &Manager,
    hostility: Hostility,
    time: Duration,
) -> anyhow::Result<(Figures, u64)> {
    let server = manager.server().clone().from(ADDRESS);
    let (begun, stop) = (Barrier::new(THREADS + 1), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let hostile: Vec<_> = (0..THREADS)
            .map(|_| scope.spawn(|| hostility.attack(&server, &begun, &stop)))
            .collect();
        begun.wait();
        let figures = load::measure(manager, &Review::MachineCreate.reviews(), 1, Pace::Full, time);
        let memory = manager.memory();
        stop.store(true, Ordering::Relaxed);
        for thread in hostile {
            thread.join().ok().context("a client panicked")??;
        }
        Ok((figures?, memory?.0))
    })
}
