//! Measures the MAC pool against an API server: `cargo xtask bench macpool`.
//!
//! ```text
//!   this process (namespaces of its own: the ports that managers listen on are free)
//!      ├── etcd, kube-apiserver <── virtual machines and pods, by this process
//!      │        ▲ watches
//!      └── weft kubemacpool     <── reviews over TLS, by threads of this process
//! ```
//!
//! Clients and server share the machine's processors: reviews per second are a floor, the server's own time on processors
//! is what counts. Built without optimisation but for what it links, to be there at once; the encoding of a review is not
//! on the clock of its answer, yet it takes processor time from the server.

mod hostile;
mod http;
mod load;
mod manager;
mod objects;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context, bail};
use clap::Parser;
use cluster::{ApiServer, Progress, Steps, wait};
use linux::netns::unshare_network;
use linux::route::Socket;
use serde_json::{Value, json};

use crate::hostile::Hostility;
use crate::http::Server;
use crate::manager::{Certificate, Program};
use crate::objects::{NAMESPACE, Review};

#[derive(Debug, Parser)]
struct Args {
    /// The program to measure: a `weft`
    #[arg(long)]
    ours: PathBuf,
    /// Numbers of virtual machines to start among
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000])]
    vms: Vec<usize>,
    /// Starts at each number
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of each kind of review; the pool refuses more than 65,536 open admissions
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

/// Connections that objects are written by.
const WRITERS: usize = 4;
/// Numbers of clients that ask at the same time.
const CLIENTS: [usize; 2] = [1, 8];
/// Pods whose life is watched: created, running, deleted.
const PODS: usize = 334;
/// A manager that is left alone for so long has settled.
const REST: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_mins(2);

fn main() -> ExitCode {
    match measure(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &Args) -> anyhow::Result<()> {
    let ours = args.ours.canonicalize();
    let ours = ours.with_context(|| format!("cannot find {}", args.ours.display()))?;
    // On the only thread so far: what it starts is there too.
    unshare_network()?;
    linux::process::unshare_mounts()?;
    let mut socket = Socket::open()?;
    let loopback = socket.find_link("lo")?.context("no loopback interface")?;
    socket.set_up(&loopback)?;
    let _certificate = Certificate::new()?;
    println!("{}", facts(&ours)?);

    let mut steps = Steps::new();
    steps.step("starting an API server");
    let api = ApiServer::start()?;
    api.kubectl().apply(&objects::installation().to_string())?;
    let writer = writer(&api)?;
    wait_until_served(&writer)?;
    let program = Program {
        path: ours,
        kubeconfig: api.kubeconfig().to_owned(),
        log: std::env::temp_dir().join(format!("macpool-bench-{}.log", std::process::id())),
    };

    let mut sizes = args.vms.clone();
    sizes.sort_unstable();
    sizes.dedup();
    let time = Duration::from_secs(args.seconds);
    let mut starts = Vec::new();
    let mut reviews = Vec::new();
    let mut hostile = Vec::new();
    let mut calls = None;
    let mut machines = 0;
    for size in sizes {
        steps.step(&format!("writing virtual machines: {size}"));
        write(&writer, machines..size, |number| {
            let body = objects::machine(&format!("vm-{number:06}"), u32::try_from(number).ok());
            (
                "POST",
                format!("/apis/kubevirt.io/v1/namespaces/{NAMESPACE}/virtualmachines"),
                body,
            )
        })?;
        machines = size;
        let mut ready = Vec::new();
        for round in 1..args.rounds {
            steps.step(&format!("start {round} of {} among {size}", args.rounds));
            ready.push(program.start()?.1);
        }
        steps.step(&format!("start {0} of {0} among {size}", args.rounds));
        let (manager, took) = program.start()?;
        ready.push(took);
        ready.sort_unstable();
        std::thread::sleep(REST);
        let memory = manager.memory()?;
        steps.step(&format!("killing it among {size}"));
        let ((mut manager, _), outage) = load::outage(|| {
            manager.kill()?;
            program.start()
        })?;
        starts.push(table::Start {
            machines: size,
            ready,
            memory,
            outage,
        });
        if reviews.is_empty() {
            for review in Review::ALL {
                for clients in CLIENTS {
                    steps.step(&format!("{} by {clients} clients", review.name()));
                    let figures = load::measure(&manager, review, clients, time)?;
                    reviews.push((review, clients, figures));
                    // The objects of these reviews never appear: a manager has room for so many.
                    manager.kill()?;
                    manager = program.start()?.0;
                }
            }
            for hostility in Hostility::ALL {
                steps.step(&format!("reviews beside {}", hostility.name()));
                let (figures, memory) = hostile::measure(&manager, hostility, time)?;
                hostile.push((hostility, figures, memory));
                manager.kill()?;
                manager = program.start()?.0;
            }
        }
        if calls.is_none() {
            steps.step("pods come, run and go");
            calls = Some(pod_events(&api, &writer)?);
        }
        drop(manager);
    }
    let _ = fs::remove_file(&program.log);
    drop(steps);
    print!(
        "{}{}{}",
        table::starts(&starts),
        table::reviews(&reviews),
        table::hostile(&hostile)
    );
    if let Some((events, calls)) = calls {
        println!("\n{calls} API calls of the manager in {events} pod events");
    }
    Ok(())
}

/// What the figures depend on.
fn facts(ours: &Path) -> anyhow::Result<String> {
    let kernel = rustix::system::uname();
    let cores = std::thread::available_parallelism().context("cannot count processors")?;
    let size = fs::metadata(ours)
        .with_context(|| format!("cannot read {}", ours.display()))?
        .len();
    Ok(format!(
        "Linux {}, {cores} cores, clients and server on the same; weft {} of {} KiB",
        kernel.release().to_string_lossy(),
        env!("CARGO_PKG_VERSION"),
        size / 1024,
    ))
}

/// The way to the API server without a process for each request.
fn writer(api: &ApiServer) -> anyhow::Result<Server> {
    let port = api.url().rsplit_once(':').and_then(|(_, port)| port.parse().ok());
    let text = fs::read_to_string(api.kubeconfig()).context("cannot read the kubeconfig")?;
    let config: Value = serde_json::from_str(&text).context("the kubeconfig is not JSON")?;
    let token = config
        .pointer("/users/0/user/token")
        .and_then(Value::as_str)
        .map(str::to_owned);
    Server::new(port.context("the API server has no port")?, token)
}

/// Kinds that were just defined are served a moment later.
fn wait_until_served(server: &Server) -> anyhow::Result<()> {
    for kind in ["virtualmachines", "virtualmachineinstances"] {
        wait::until(kind, PATIENCE, || {
            let path = format!("/apis/kubevirt.io/v1/{kind}?limit=1");
            let asked = server
                .connect()
                .and_then(|mut connection| connection.ask("GET", &path, "application/json", b""));
            match asked {
                Ok(answer) if answer.status == 200 => Ok(()),
                Ok(answer) => Err(String::from_utf8_lossy(&answer.body).into_owned()),
                Err(error) => Err(format!("{error:#}")),
            }
        })?;
    }
    Ok(())
}

/// Sends one request for each number, by several connections.
fn write(
    server: &Server,
    numbers: std::ops::Range<usize>,
    request: impl Fn(usize) -> (&'static str, String, Value) + Sync,
) -> anyhow::Result<()> {
    let next = AtomicUsize::new(numbers.start);
    let writer = || -> anyhow::Result<()> {
        let mut connection = server.connect()?;
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= numbers.end {
                return Ok(());
            }
            let (method, path, body) = request(number);
            let kind = match method {
                "PATCH" => "application/merge-patch+json",
                _ => "application/json",
            };
            let answer = connection.ask(method, &path, kind, body.to_string().as_bytes())?;
            if !(200..300).contains(&answer.status) {
                bail!("{method} {path}: {}", String::from_utf8_lossy(&answer.body));
            }
        }
    };
    std::thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS).map(|_| scope.spawn(writer)).collect();
        writers.into_iter().try_for_each(|writer| match writer.join() {
            Ok(written) => written,
            Err(_) => bail!("a writer panicked"),
        })
    })
}

/// Lets pods come, run and go: how many events that were, and how many requests of the manager, its watches apart.
fn pod_events(api: &ApiServer, server: &Server) -> anyhow::Result<(usize, usize)> {
    let log = api.audit_log();
    let end = || fs::metadata(&log).map(|log| log.len()).context("no audit log");
    let mark = end()?;
    let pods = format!("/api/v1/namespaces/{NAMESPACE}/pods");
    let name = |number: usize| format!("pod-{number:06}");
    write(server, 0..PODS, |number| {
        let mut pod = objects::pod(&name(number));
        let mac = format!("02:00:00:01:{:02x}:{:02x}", number / 256, number % 256);
        let networks = json!([{ "name": "blue", "namespace": NAMESPACE, "mac": mac, "cni-args": null }]);
        pod["metadata"]["annotations"] = json!({ "k8s.v1.cni.cncf.io/networks": networks.to_string() });
        ("POST", pods.clone(), pod)
    })?;
    write(server, 0..PODS, |number| {
        let running = json!({
            "metadata": { "annotations": { "k8s.v1.cni.cncf.io/network-status": "[]" } },
            "status": { "phase": "Running" },
        });
        ("PATCH", format!("{pods}/{}/status", name(number)), running)
    })?;
    write(server, 0..PODS, |number| {
        let at_once = json!({ "kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0 });
        ("DELETE", format!("{pods}/{}", name(number)), at_once)
    })?;
    // What it would ask because of them, it asks soon.
    std::thread::sleep(REST);
    let text = fs::read(&log).context("no audit log")?;
    let new = text.get(usize::try_from(mark)?..).unwrap_or_default();
    let lines = String::from_utf8_lossy(new).into_owned();
    let entries = lines
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let calls = entries.filter(|entry| {
        let agent = entry["userAgent"].as_str().unwrap_or_default();
        agent.starts_with("weft/kubemacpool") && entry["verb"] != "watch"
    });
    Ok((3 * PODS, calls.count()))
}
