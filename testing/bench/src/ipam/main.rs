//! Measures KubeVirt IPAM with an API server: `cargo xtask bench ipam`.
//!
//! ```text
//!   this process (separate namespaces: the ports of the controller are free)
//!      ├── etcd, kube-apiserver <── virtual machines, instances and their claims, by this process
//!      │        ▲ watches, writes
//!      └── weft kubevirt-ipam   <── reviews of launcher pods over TLS, by threads of this process
//! ```
//!
//! Half of the virtual machines are on a network whose plugin assigns addresses, and half on a network with the
//! controller's pool.

mod claims;
mod objects;
mod table;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use cluster::{ApiServer, Progress, Steps};
use review_bench::api::{facts, isolate, wait_until_served, writer};
use review_bench::load::{self, Pace};
use review_bench::program::{Manager, Program, write_certificate};
use review_bench::table::Row;

use crate::claims::Order;
use crate::objects::{Network, Review};

#[derive(Debug, Parser)]
struct Args {
    /// The measured program: a `weft`
    #[arg(long)]
    ours: PathBuf,
    /// Running virtual machines, each with a claim
    #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u32).range(2..=1_000_000))]
    vms: u32,
    /// Number of measured starts
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of each kind of review
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// Instances to create on each network
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    instances: u32,
}

/// Address of the webhook.
const PORT: u16 = 9443;
/// Address of readiness probes.
const PROBES: u16 = 8081;
/// Numbers of clients that send reviews continuously.
const CLIENTS: [u32; 2] = [1, 8];
/// Reviews per second of paced clients, and the number of these clients.
const RATE: u32 = 200;
const PACED_CLIENTS: u32 = 8;
/// After this time, an idle process has returned its memory.
const REST: Duration = Duration::from_secs(25);

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
    isolate()?;
    println!("{}", facts(&ours)?);
    let directory = tempfile::tempdir().context("cannot create a directory")?;
    measure_in(directory.path(), ours, args)
}

fn measure_in(directory: &Path, ours: PathBuf, args: &Args) -> anyhow::Result<()> {
    write_certificate(directory)?;
    let mut steps = Steps::new();
    steps.step("starting an API server");
    let api = ApiServer::start()?;
    api.kubectl().apply(&objects::kinds()?.to_string())?;
    let writer = writer(&api)?;
    wait_until_served(&writer, &objects::SERVED)?;
    api.kubectl().apply(&objects::networks().to_string())?;
    steps.step(&format!("writing virtual machines with claims: {}", args.vms));
    claims::populate(&writer, args.vms)?;

    let program = program(ours, api.kubeconfig(), directory);
    let mut ready = Vec::new();
    for round in 1..args.rounds {
        steps.step(&format!("start {round} of {}", args.rounds));
        ready.push(program.start()?.1);
    }
    steps.step(&format!("start {0} of {0}, and a rest", args.rounds));
    let (manager, took) = program.start()?;
    ready.push(took);
    ready.sort_unstable();
    std::thread::sleep(REST);
    let memory = manager.memory()?;
    let reviews = reviews(&manager, args, &mut steps)?;

    let mut waits = Vec::new();
    let mut first = args.vms;
    for network in Network::ALL {
        for order in Order::ALL {
            steps.step(&format!("new instances, {}, {}", network.name(), order.name()));
            let numbers = first..first + args.instances;
            first = numbers.end;
            waits.push((network, order, claims::measure(&writer, network, order, numbers)?));
        }
    }
    let after = manager.memory()?;
    drop(steps);
    print!(
        "{}{}{}",
        table::start(args.vms, &ready, memory, after),
        review_bench::table::reviews(&reviews),
        table::claims(&waits)
    );
    Ok(())
}

fn reviews(manager: &Manager, args: &Args, steps: &mut Steps) -> anyhow::Result<Vec<Row>> {
    let full = CLIENTS.map(|clients| (clients, Pace::Full, clients.to_string()));
    let paced = (PACED_CLIENTS, Pace::PerSecond(RATE), format!("{RATE}/s"));
    let mut rows = Vec::new();
    for review in Review::ALL {
        let kind = review.reviews(args.vms);
        for (clients, pace, shown) in full.clone().into_iter().chain([paced.clone()]) {
            steps.step(&format!("reviews: {}, {shown}", kind.name));
            let time = Duration::from_secs(args.seconds);
            rows.push(Row {
                name: kind.name,
                clients: shown,
                figures: load::measure(manager, &kind, clients, pace, time)?,
            });
        }
    }
    Ok(rows)
}

/// The controller, the only replica.
fn program(path: PathBuf, kubeconfig: &Path, directory: &Path) -> Program {
    let mut arguments = vec![
        "kubevirt-ipam".into(),
        "--certificates-dir".into(),
        directory.into(),
    ];
    arguments.extend(["--kubeconfig".into(), kubeconfig.into()]);
    Program {
        path,
        arguments,
        environment: Vec::new(),
        port: PORT,
        probes: Some(PROBES),
        log: directory.join("log"),
    }
}
