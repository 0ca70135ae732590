//! `cargo xtask conformance`: Kubernetes' own tests of networking on a cluster of this repository.

use std::num::NonZero;
use std::process::ExitCode;
use std::thread;

use anyhow::Context;
use cluster::{Cluster, Home, Options, Progress, Steps};
use conformance::{FOCUS, LeftOut, Parts, Wanted};

/// Name of the cluster where `WEFT_CLUSTER` names none.
const CLUSTER: &str = "conformance";

/// Which specs to run, and what becomes of the cluster.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Run the specs whose names this regular expression of Go matches, but those that are left out; may be repeated
    #[arg(long, value_name = "REGEX")]
    focus: Vec<String>,
    /// How many specs run at the same time; twice the number of processors by default
    #[arg(long, value_name = "NUMBER")]
    processes: Option<NonZero<usize>>,
    /// Keep the cluster, and run on it again the next time
    #[arg(long)]
    keep: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut steps = Steps::new();
    let home = Home::from_env()?;
    let mut options = Options::from_env()?;
    if std::env::var_os("WEFT_CLUSTER").is_none_or(|name| name.is_empty()) {
        CLUSTER.clone_into(&mut options.name);
    }
    let cluster = Cluster::new(options)?;
    steps.step("building Kubernetes' tests, and bringing in what the cluster needs");
    let parts = Parts::ensure(&home, &mut steps)?;
    if !args.keep {
        cluster.claim(&mut steps)?;
    }
    cluster.up(&mut steps)?;
    let outcome = conformance::run(&cluster, &home, &parts, &wanted(args)?, &mut steps);
    if !args.keep {
        cluster.down(&mut steps)?;
    }
    let run = outcome?;
    steps.step("done");
    drop(steps);
    print!(
        "\n{}\nall that the tests printed: {}\n",
        run.results.table(),
        run.log.display()
    );
    if args.keep {
        println!(
            "the cluster stays: export KUBECONFIG={}",
            cluster.kubeconfig().display()
        );
    }
    Ok(if run.results.is_success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn wanted(args: &Args) -> anyhow::Result<Wanted> {
    let processors = thread::available_parallelism().context("cannot count the processors")?;
    Ok(Wanted {
        focus: if args.focus.is_empty() {
            FOCUS.map(str::to_owned).into()
        } else {
            args.focus.clone()
        },
        left_out: LeftOut::all()?,
        processes: args.processes.map_or(processors.get() * 2, NonZero::get),
    })
}
