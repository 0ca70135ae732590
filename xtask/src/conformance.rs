//! `cargo xtask conformance`: Kubernetes' tests of networking, on a cluster of this repository.

use std::num::NonZero;
use std::process::ExitCode;
use std::thread;

use anyhow::{Context, anyhow, ensure};
use cluster::{Cluster, Home, Options, Progress, Steps};
use conformance::{Excluded, FOCUS, Parts, QUICK_DUAL_STACK_FOCUS, QUICK_FOCUS, Wanted};

use crate::board::Board;
use crate::{build, explain, image, install, manifests};

/// Default name of the cluster, if `WEFT_CLUSTER` is not set, and what follows it with the network of Debian's plugins,
/// and with dual stack. Clusters that differ in these can be kept beside each other.
const CLUSTER: &str = "conformance";
const PLAIN: &str = "-plain";
const DUAL_STACK: &str = "-dual-stack";
/// Namespaces of the pod network, of kube-proxy and of their operator.
const NAMESPACES: [&str; 3] = [
    install::POD_NETWORK_NAMESPACE,
    install::KUBE_PROXY_NAMESPACE,
    install::NETWORK_NAMESPACE,
];

/// Arguments of the command.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "each is a flag of the command line")]
pub(crate) struct Args {
    /// Run the specs whose names match this Go regular expression, except excluded ones; can be repeated
    #[arg(long, value_name = "REGEX")]
    focus: Vec<String>,
    /// Run only some quick specs: without --dual-stack, those that `cargo xtask test` runs too, in about a minute
    #[arg(long, conflicts_with = "focus")]
    quick: bool,
    /// Number of concurrent specs; twice the number of processors by default
    #[arg(long, value_name = "NUMBER")]
    processes: Option<NonZero<usize>>,
    /// Connect the pods by Debian's plugins instead of Weft: specs that fail there too are no defects of Weft
    #[arg(long)]
    plain: bool,
    /// Give nodes, pods and Services IPv6 addresses beside those of IPv4, and also run the specs that need both
    #[arg(long)]
    dual_stack: bool,
    /// Keep the cluster, and reuse it in the next run
    #[arg(long)]
    keep: bool,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut steps = Steps::new();
    let home = Home::from_env()?;
    let cluster = cluster(args)?;
    let wanted = wanted(args)?;
    steps.step("building Weft and Kubernetes' tests, and downloading programs of the cluster");
    let (built, parts) = prepare(&cluster, &home, args.plain)?;
    if !args.keep {
        // A run does not start with the cluster of an interrupted run.
        cluster.claim(&mut steps)?;
        cluster.down(&mut steps)?;
        cluster.claim(&mut steps)?;
    }
    let outcome = up(&cluster, built.as_ref(), args, &mut steps)
        .and_then(|()| Ok(conformance::run(&cluster, &home, &parts, &wanted, &mut steps)?));
    if outcome.is_err() {
        eprint!("{}", explain::cluster(&cluster, &NAMESPACES));
    }
    let removed = if args.keep {
        Ok(())
    } else {
        cluster.down(&mut steps)
    };
    let run = outcome?;
    removed?;
    steps.step("done");
    drop(steps);
    println!(
        "\n{}\nall that the tests printed: {}",
        run.results.table(),
        run.log.display()
    );
    if args.keep {
        println!(
            "the cluster: export KUBECONFIG={}",
            cluster.kubeconfig().display()
        );
    }
    Ok(if run.results.is_success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn cluster(args: &Args) -> anyhow::Result<Cluster> {
    let mut options = Options {
        network_manager: false,
        pod_network: args.plain,
        kube_proxy: args.plain,
        dual_stack: args.dual_stack,
        ..Options::from_env()?
    };
    if std::env::var_os("WEFT_CLUSTER").is_none_or(|name| name.is_empty()) {
        let parts = [(args.plain, PLAIN), (args.dual_stack, DUAL_STACK)];
        let ends = parts.into_iter().filter(|(applies, _)| *applies);
        options.name = [CLUSTER].into_iter().chain(ends.map(|(_, end)| end)).collect();
    }
    Ok(Cluster::new(options)?)
}

fn wanted(args: &Args) -> anyhow::Result<Wanted> {
    let processors = thread::available_parallelism().context("cannot count the processors")?;
    Ok(Wanted {
        focus: if args.quick {
            let also = args.dual_stack.then_some(QUICK_DUAL_STACK_FOCUS);
            let all = QUICK_FOCUS.into_iter().chain(also.into_iter().flatten());
            all.map(str::to_owned).collect()
        } else if args.focus.is_empty() {
            FOCUS.map(str::to_owned).into()
        } else {
            args.focus.clone()
        },
        excluded: if args.dual_stack {
            Excluded::for_dual_stack()?
        } else {
            Excluded::all()?
        },
        processes: args.processes.map_or_else(|| processors.get() * 2, NonZero::get),
    })
}

/// Builds the tested image and Kubernetes' programs concurrently: both take minutes the first time.
fn prepare(cluster: &Cluster, home: &Home, plain: bool) -> anyhow::Result<(Option<image::Built>, Parts)> {
    let board = Board::new();
    thread::scope(|scope| {
        let others = scope.spawn(|| -> anyhow::Result<Parts> {
            let mut lane = board.lane("kubernetes");
            cluster.prepare(&mut lane)?;
            Ok(Parts::ensure(home, &mut lane)?)
        });
        let built = if plain {
            None
        } else {
            let mut lane = board.lane("weft");
            let inventory = build::programs(build::Extent::Product, &mut lane)?;
            let built = image::development(&inventory, &mut lane)?;
            manifests::write(&built)?;
            Some(built)
        };
        let parts = others
            .join()
            .map_err(|_| anyhow!("the build of Kubernetes' tests panicked"))??;
        Ok((built, parts))
    })
}

/// Starts the cluster, and lets the cluster network operator of an image connect its pods.
fn up(cluster: &Cluster, built: Option<&image::Built>, args: &Args, steps: &mut Steps) -> anyhow::Result<()> {
    let name = cluster.name();
    for (flag, is_given, was_given) in [
        ("--dual-stack", args.dual_stack, cluster.has_dual_stack()),
        ("--plain", args.plain, cluster.has_kube_proxy()),
    ] {
        let (created, advice) = if was_given {
            ("with", "add")
        } else {
            ("without", "omit")
        };
        ensure!(
            is_given == was_given,
            "cluster {name} was created {created} {flag}, and keeps its network: {advice} {flag}, or remove the cluster \
             with `WEFT_CLUSTER={name} cargo xtask cluster down`"
        );
    }
    cluster.up(steps)?;
    let Some(built) = built else {
        return Ok(());
    };
    install::cluster_network(cluster, built, steps)
}
