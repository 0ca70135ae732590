//! Measures the secondary DNS server beside CoreDNS: `cargo xtask bench dns`.
//!
//! ```text
//! zone file with many names ──┬─> weft secondary-dns serve <──┬── queries over UDP, by threads of this process
//!                             └─> coredns <───────────────────┘
//! ```
//!
//! Both servers run all the time, and each kind of query is sent to both in turn.
//!
//! Clients and server share the machine's processors: queries per second are a lower bound, and the server's processor
//! time is the relevant result, printed as queries per second and core. Debian's dnsperf sends queries beside the
//! threads of this process. The monitor lists its instances from a stand-in for an API server in this process, which
//! generates them page by page: the measured start is an upper bound. The same stand-in sends events of single
//! instances, whose names are queried until they are answered.

#![allow(clippy::cast_precision_loss, reason = "figures for people")]

mod cluster;
mod dnsperf;
mod events;

use std::fs;
use std::net::{TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Parser;
use review_bench::http;

use crate::cluster::Cluster;

#[derive(Debug, Parser)]
struct Args {
    /// The measured program: a `weft`
    #[arg(long)]
    ours: PathBuf,
    /// The CoreDNS for comparison
    #[arg(long, value_name = "COREDNS")]
    theirs: PathBuf,
    /// Debian's dnsperf, which sends the same queries
    #[arg(long, value_name = "DNSPERF")]
    dnsperf: PathBuf,
    /// Virtual machines, each with two names
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=65_000))]
    vms: u32,
    /// Seconds of each kind of query
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

/// Additional arguments of Weft's server.
const OURS: [&str; 2] = ["secondary-dns", "serve"];
/// Number of measurements of each kind of query and server.
const ROUNDS: usize = 3;
/// Interval between queries of a client that measures latency, with a server that is not busy.
const PAUSE: Duration = Duration::from_micros(500);
/// Concurrent clients, and pending queries of each.
const CLIENTS: u32 = 4;
const UNDER_WAY: usize = 32;
/// Port of the monitor's probes.
const MONITOR: u16 = 8081;
/// Port of the server in one process with its monitor.
const ALL_IN_ONE: u16 = 5353;
/// After this time, a monitor has ended the work of its start.
const STARTED: Duration = Duration::from_secs(1);
/// After this time, an idle process has returned its memory.
const REST: Duration = Duration::from_secs(25);
/// Timeout of a start, and of an answer.
const TIMEOUT: Duration = Duration::from_secs(30);
const LOST: Duration = Duration::from_millis(200);

fn main() -> ExitCode {
    match measure(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &Args) -> anyhow::Result<()> {
    let directory = tempfile::tempdir().context("cannot create a directory")?;
    measure_in(directory.path(), args)
}

fn measure_in(directory: &Path, args: &Args) -> anyhow::Result<()> {
    let zones = directory.join("zones");
    fs::create_dir(&zones)?;
    fs::write(zones.join("db.vm"), zone(args.vms))?;
    println!(
        "{} virtual machines, {} names, {CLIENTS} clients over UDP",
        args.vms,
        2 * args.vms
    );
    for is_logged in [false, true] {
        let ours = Server::start(Command::new(&args.ours).args(OURS), directory, &zones, is_logged)?;
        let theirs = Server::start(&mut Command::new(&args.theirs), directory, &zones, is_logged)?;
        println!(
            "\n{} the query log       answers a second and core          99 of 100 answers within    memory, MiB",
            if is_logged { "with" } else { "without" },
        );
        println!(
            "{:<28}    ours   theirs  ours/theirs      ours     theirs           ours  theirs",
            ""
        );
        for name in Asked::ALL {
            let what = name.text();
            let mut rates = [Vec::new(), Vec::new()];
            let mut times = [Vec::new(), Vec::new()];
            for _ in 0..ROUNDS {
                for (server, (rates, times)) in
                    [&ours, &theirs].into_iter().zip(rates.iter_mut().zip(&mut times))
                {
                    rates.push(server.rate(args, name)?);
                    times.extend(server.times(args, name)?);
                }
            }
            let [rate, their_rate] = rates.map(|mut all| middle(&mut all));
            let [time, their_time] = times.map(|mut all| late(&mut all));
            let [memory, their_memory] = [ours.memory()?.resident, theirs.memory()?.resident];
            println!(
                "{what:<28} {rate:>7.0}  {their_rate:>7.0}  {:>10.1}x  {:>6.2} ms  {:>6.2} ms         {memory:>6.1}  {their_memory:>6.1}",
                rate / their_rate,
                time.as_secs_f64() * 1000.0,
                their_time.as_secs_f64() * 1000.0,
            );
        }
        dnsperf::measure(directory, args, [&ours, &theirs])?;
        println!(
            "ready after {:.0} ms; theirs after {:.0} ms",
            ours.ready_after.as_secs_f64() * 1000.0,
            theirs.ready_after.as_secs_f64() * 1000.0,
        );
    }
    measure_monitor(directory, args)
}

/// Starts monitors with many instances.
fn measure_monitor(directory: &Path, args: &Args) -> anyhow::Result<()> {
    let cluster = Cluster::start(directory, args.vms)?;
    println!("\nthe monitor among {} instances:", args.vms);
    for mode in ["monitor", "all-in-one"] {
        let zones = directory.join(mode);
        fs::create_dir(&zones)?;
        let began = Instant::now();
        let process = Command::new(&args.ours)
            .args(["secondary-dns", mode, "--kubeconfig"])
            .arg(&cluster.kubeconfig)
            .arg("--zones")
            .arg(&zones)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let server = Server {
            process,
            port: 0,
            ready_after: Duration::ZERO,
        };
        while !is_ready() {
            if began.elapsed() > TIMEOUT {
                bail!("the monitor is not ready within {} s", TIMEOUT.as_secs());
            }
            thread::sleep(Duration::from_millis(1));
        }
        let ready = began.elapsed();
        while !zones.join("db.vm").exists() && began.elapsed() < TIMEOUT {
            thread::sleep(Duration::from_millis(1));
        }
        println!(
            "  {mode}: ready after {:.0} ms, zone file after {:.0} ms, {:.0} ms of a processor",
            ready.as_secs_f64() * 1000.0,
            began.elapsed().as_secs_f64() * 1000.0,
            server.processor_time()?.as_secs_f64() * 1000.0,
        );
        thread::sleep(STARTED);
        println!(
            "    a second later {}; at most {:.1} MiB until then",
            server.memory()?,
            server.peak()?
        );
        // The idle monitor returns the memory of its start.
        thread::sleep(REST);
        println!("    at rest {}", server.memory()?);
        if mode == "all-in-one" {
            events::measure(&cluster, args, server.process.id())?;
        }
    }
    Ok(())
}

/// Returns the result of the monitor's readiness probe.
fn is_ready() -> bool {
    http::plain(MONITOR, "/readyz").is_ok_and(|answer| answer.status == 200)
}

fn zone(vms: u32) -> String {
    let mut text =
        String::from("$ORIGIN vm. \n$TTL 60 \n@ IN SOA ns.vm. email.vm. (1 3600 3600 1209600 60)\n");
    for n in 0..vms {
        let address = std::net::Ipv4Addr::from(0x0a00_0000 + n);
        let namespace = n % 100;
        text.push_str(&format!(
            "nic1.vm{n}.ns{namespace} IN A {address}\nvm{n}.ns{namespace} IN A {address}\n"
        ));
    }
    text
}

struct Server {
    process: Child,
    port: u16,
    ready_after: Duration,
}

impl Server {
    fn start(command: &mut Command, directory: &Path, zones: &Path, is_logged: bool) -> anyhow::Result<Self> {
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let corefile = directory.join(format!("Corefile-{port}"));
        let log = if is_logged { "log" } else { "errors" };
        let zones = zones.display();
        fs::write(
            &corefile,
            format!(".:{port} {{\n auto {{\n  directory {zones}\n }}\n {log}\n}}\n"),
        )?;
        let began = Instant::now();
        let process = command
            .arg("-conf")
            .arg(&corefile)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot run {}", command.get_program().display()))?;
        let mut server = Self {
            process,
            port,
            ready_after: Duration::ZERO,
        };
        let socket = client(port)?;
        while began.elapsed() < TIMEOUT {
            // The port is closed at first, which is an error.
            let asked = socket.send(&query(0, &Asked::Interface.name(0)));
            let mut room = [0; 512];
            if asked.is_ok() && socket.recv(&mut room).is_ok() && room[3] % 16 == 0 {
                server.ready_after = began.elapsed();
                return Ok(server);
            }
            thread::sleep(Duration::from_millis(1));
        }
        bail!("the server does not answer within {} s", TIMEOUT.as_secs())
    }

    /// Measures answers per second and core, with continuous queries.
    fn rate(&self, args: &Args, what: Asked) -> anyhow::Result<f64> {
        let before = self.processor_time()?;
        let (answers, _) = ask(self.port, args, what)?;
        let busy = self.processor_time()?.saturating_sub(before);
        Ok(answers as f64 / busy.as_secs_f64().max(f64::EPSILON))
    }

    /// Measures latency, with a server that is not busy.
    fn times(&self, args: &Args, what: Asked) -> anyhow::Result<Vec<Duration>> {
        let socket = client(self.port)?;
        let (began, mut times) = (Instant::now(), Vec::new());
        let mut room = [0; 512];
        let mut n = 0;
        while began.elapsed() < Duration::from_secs(args.seconds) {
            let asked = Instant::now();
            socket.send(&query(0, &what.name(n)))?;
            if socket.recv(&mut room).is_ok() {
                times.push(asked.elapsed());
            }
            n = (n + 1) % args.vms;
            thread::sleep(PAUSE);
        }
        Ok(times)
    }

    /// Returns the processor time since the start, with a precision of a hundredth of a second.
    fn processor_time(&self) -> anyhow::Result<Duration> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.process.id()))?;
        let fields = stat.rsplit(')').next().unwrap_or_default();
        let ticks: Vec<u64> = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .flat_map(str::parse)
            .collect();
        let second = rustix::param::clock_ticks_per_second();
        Ok(Duration::from_secs_f64(
            ticks.iter().sum::<u64>() as f64 / second as f64,
        ))
    }

    /// Returns the largest resident memory so far, MiB.
    fn peak(&self) -> anyhow::Result<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.process.id()))?;
        Ok(mebibytes(&status, "VmHWM:"))
    }

    fn memory(&self) -> anyhow::Result<Memory> {
        let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.process.id()))?;
        Ok(Memory {
            resident: mebibytes(&rollup, "Rss:"),
            anonymous: mebibytes(&rollup, "Anonymous:"),
        })
    }
}

/// Returns a size in a file of the kernel, which has kibibytes. A missing one counts as 0.
fn mebibytes(file: &str, key: &str) -> f64 {
    let line = file.lines().find_map(|line| line.strip_prefix(key));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    number.unwrap_or_default() / 1024.0
}

/// Returns the memory of a process, MiB.
struct Memory {
    resident: f64,
    anonymous: f64,
}

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:.1} MiB Rss, {:.1} of it anonymous",
            self.resident, self.anonymous
        )
    }
}

/// Returns the median.
fn middle(all: &mut [f64]) -> f64 {
    all.sort_by(f64::total_cmp);
    all.get(all.len() / 2).copied().unwrap_or_default()
}

/// Returns the 99th percentile.
fn late(all: &mut [Duration]) -> Duration {
    all.sort();
    all.get(all.len() * 99 / 100).copied().unwrap_or_default()
}

impl Drop for Server {
    fn drop(&mut self) {
        // The process may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn client(port: u16) -> anyhow::Result<UdpSocket> {
    let socket = UdpSocket::bind("127.0.0.1:0")?;
    socket.connect(("127.0.0.1", port))?;
    socket.set_read_timeout(Some(LOST))?;
    Ok(socket)
}

/// Kinds of queries.
#[derive(Clone, Copy)]
enum Asked {
    Interface,
    Missing,
    Elsewhere,
}

impl Asked {
    const ALL: [Self; 3] = [Self::Interface, Self::Missing, Self::Elsewhere];

    fn text(self) -> &'static str {
        match self {
            Self::Interface => "addresses",
            Self::Missing => "names that do not exist",
            Self::Elsewhere => "names of other zones",
        }
    }

    fn name(self, n: u32) -> String {
        match self {
            Self::Interface => format!("nic1.vm{n}.ns{}.vm", n % 100),
            Self::Missing => format!("nic1.absent{n}.ns{}.vm", n % 100),
            Self::Elsewhere => format!("host{n}.example.com"),
        }
    }
}

fn query(id: u16, name: &str) -> Vec<u8> {
    let mut message = id.to_be_bytes().to_vec();
    message.extend([1, 0, 0, 1, 0, 0, 0, 0, 0, 1]);
    for label in name.split('.') {
        message.push(u8::try_from(label.len()).unwrap_or_default());
        message.extend(label.as_bytes());
    }
    // A for IN, and an OPT record for 1232 octets, like from resolvers.
    message.extend([0, 0, 1, 0, 1, 0, 0, 41, 4, 208, 0, 0, 0, 0, 0, 0]);
    message
}

/// Sends queries as fast as answers arrive, and counts the answers.
fn ask(port: u16, args: &Args, what: Asked) -> anyhow::Result<(u64, Duration)> {
    let (stop, answers) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let mut clients = Vec::new();
    for first in 0..CLIENTS {
        let queries: Vec<Vec<u8>> = (first..args.vms.max(CLIENTS))
            .step_by(CLIENTS as usize)
            .map(|n| query(u16::try_from(n % 65_536).unwrap_or_default(), &what.name(n)))
            .collect();
        let (socket, stop, answers) = (client(port)?, Arc::clone(&stop), Arc::clone(&answers));
        clients.push(thread::spawn(move || {
            let mut next = queries.iter().cycle();
            let mut room = [0; 512];
            let mut send = || next.next().map(|query| socket.send(query));
            for _ in 0..UNDER_WAY {
                send();
            }
            while !stop.load(Ordering::Relaxed) {
                // Lost answers are no longer awaited.
                if socket.recv(&mut room).is_ok() {
                    answers.fetch_add(1, Ordering::Relaxed);
                }
                send();
            }
        }));
    }
    let began = Instant::now();
    thread::sleep(Duration::from_secs(args.seconds));
    stop.store(true, Ordering::Relaxed);
    let took = began.elapsed();
    for client in clients {
        if client.join().is_err() {
            bail!("a client failed");
        }
    }
    Ok((answers.load(Ordering::Relaxed).max(1), took))
}
