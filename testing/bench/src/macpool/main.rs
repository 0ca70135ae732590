//! Measures the MAC pool with an API server: `cargo xtask bench macpool`.
//!
//! ```text
//!   this process (separate namespaces: the ports of managers are free)
//!      ├── etcd, kube-apiserver <── virtual machines and pods, by this process
//!      │        ▲ watches
//!      └── weft kubemacpool     <── reviews over TLS, by threads of this process
//! ```

mod hostile;
mod manager;
mod objects;
mod outage;
mod table;

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use cluster::{ApiServer, Progress, Steps};
use review_bench::api::{facts, isolate, wait_until_served, write, writer};
use review_bench::http::Server;
use review_bench::load::{self, Pace};
use review_bench::table::Row;
use serde_json::{Value, json};

use crate::hostile::Hostility;
use crate::manager::Certificate;
use crate::objects::{NAMESPACE, Review};

#[derive(Debug, Parser)]
struct Args {
    /// The measured program: a `weft`
    #[arg(long)]
    ours: PathBuf,
    /// Numbers of virtual machines at the start
    #[arg(long, value_delimiter = ',', default_values_t = [1_000, 10_000])]
    vms: Vec<usize>,
    /// Starts at each number
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of each kind of review; the pool refuses more than 65,536 open admissions
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
}

/// Numbers of concurrent clients.
const CLIENTS: [u32; 2] = [1, 8];
/// Number of pods that are created, run and deleted.
const PODS: usize = 334;
/// A manager is at rest after this time without requests.
const REST: Duration = Duration::from_secs(2);

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
    let _certificate = Certificate::new()?;
    println!("{}", facts(&ours)?);

    let mut steps = Steps::new();
    steps.step("starting an API server");
    let api = ApiServer::start()?;
    api.kubectl().apply(&objects::installation().to_string())?;
    let writer = writer(&api)?;
    wait_until_served(&writer, &objects::SERVED)?;
    let directory = tempfile::tempdir().context("cannot create a directory")?;
    let program = manager::program(ours, api.kubeconfig(), directory.path());
    let server = program.server()?;

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
        let ((mut manager, _), outage) = outage::outage(&server, || {
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
                    let figures = load::measure(&manager, &review.reviews(), clients, Pace::Full, time)?;
                    reviews.push(Row {
                        name: review.name(),
                        clients: clients.to_string(),
                        figures,
                    });
                    // The objects of these reviews never appear, and the manager limits their number.
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
            steps.step("creating, running and deleting pods");
            calls = Some(pod_events(&api, &writer)?);
        }
        drop(manager);
    }
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

/// Creates, runs and deletes pods. Returns the number of events, and of requests of the manager except watches.
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
    // The manager sends its requests shortly after the events.
    std::thread::sleep(REST);
    let text = fs::read(&log).context("no audit log")?;
    let new = text.get(usize::try_from(mark)?..).unwrap_or_default();
    let lines = String::from_utf8_lossy(new).into_owned();
    let entries = lines
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let calls = entries.filter(|entry| {
        let agent = entry["userAgent"].as_str().unwrap_or_default();
        let is_answer = entry["stage"] == "ResponseComplete";
        is_answer && agent.starts_with("weft/kubemacpool") && entry["verb"] != "watch"
    });
    Ok((3 * PODS, calls.count()))
}
