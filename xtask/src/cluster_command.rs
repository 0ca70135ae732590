//! `cargo xtask cluster …`: the command line of `testing/cluster`.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;

use anyhow::{Context, bail};
use cluster::{Cluster, Options, Progress, Steps};

use crate::kubevirt_parts;

/// Commands for the cluster `WEFT_CLUSTER` (default `weft`) in `WEFT_HOME`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Start the cluster, or the parts of it that do not run
    Up {
        /// Also run KubeVirt's control plane, with simulated guests
        #[arg(long, conflicts_with = "without_network")]
        kubevirt: bool,
        /// Omit the pod network of a new cluster, so that you can install one
        #[arg(long)]
        without_network: bool,
    },
    /// Remove the cluster and everything in it; keep the caches
    Down,
    /// Show the cluster's programs and nodes; fail if the cluster is not up
    Status,
    /// Print the path of the cluster's kubeconfig
    Kubeconfig,
    /// Import the images of a docker archive into every node
    Load {
        /// The archive, as written by `cargo xtask image`
        archive: PathBuf,
    },
    /// Run a command on a node, a shell by default
    Shell {
        /// node01, node02 or control
        node: String,
        /// The command with its arguments
        #[arg(last = true)]
        command: Vec<OsString>,
    },
    /// Run the cluster's version of kubectl
    Kubectl {
        /// Arguments of kubectl
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<OsString>,
    },
    /// Print the output of a program, or list the log files
    Logs {
        /// Part of the file name, such as node01-kubelet, apiserver or audit
        component: Option<String>,
    },
}

pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    let cluster = Cluster::from_env()?;
    match args.command {
        Command::Up { kubevirt: true, .. } => up_with_kubevirt(&cluster),
        Command::Up {
            without_network: true,
            ..
        } => {
            let options = Options {
                pod_network: false,
                ..Options::from_env()?
            };
            up(&Cluster::new(options)?, &mut Steps::new())
        }
        Command::Up { .. } => up(&cluster, &mut Steps::new()),
        Command::Down => {
            cluster.down(&mut Steps::new())?;
            let remains = cluster.remains();
            if !remains.is_empty() {
                bail!("leftovers of the cluster:\n  {}", remains.join("\n  "));
            }
            Ok(())
        }
        Command::Status => status(&cluster),
        Command::Kubeconfig => {
            println!("{}", cluster.kubeconfig().display());
            Ok(())
        }
        Command::Load { archive } => {
            for reference in cluster.load(&archive)? {
                println!("{reference}");
            }
            Ok(())
        }
        Command::Shell { node, command } => {
            let command = if command.is_empty() {
                vec!["bash".into(), "-l".into()]
            } else {
                command
            };
            // exec only returns after an error. Otherwise the exit status is the command's.
            let error = cluster.node_command(&node, command)?.exec();
            Err(error).context("cannot run nsenter")
        }
        Command::Kubectl { args } => {
            let error = cluster.kubectl().command(args).exec();
            Err(error).context("cannot run kubectl")
        }
        Command::Logs { component } => logs(&cluster, component.as_deref()),
    }
}

/// Starts the cluster and prints how to use it.
pub(crate) fn up(cluster: &Cluster, steps: &mut Steps) -> anyhow::Result<()> {
    cluster.up(steps).with_context(|| {
        format!(
            "bringing up the cluster failed at: {}\n\
             it is safe to run the same command again; `cargo xtask cluster logs` lists the logs of the cluster's\n\
             programs, `cargo xtask cluster down` removes the cluster",
            steps.current()
        )
    })?;
    steps.step("the cluster is up");
    if !cluster.has_pod_network() {
        eprintln!("\n  Nodes are NotReady until a network is installed: `cargo xtask demo` installs Weft's.");
    }
    eprintln!("\n  export KUBECONFIG={}\n", cluster.kubeconfig().display());
    Ok(())
}

/// Starts the cluster with KubeVirt.
fn up_with_kubevirt(cluster: &Cluster) -> anyhow::Result<()> {
    let mut steps = Steps::new();
    steps.step("building KubeVirt, and downloading programs of the cluster");
    let (programs, stand_ins) = kubevirt_parts::build(cluster)?;
    up(cluster, &mut steps)?;
    kubevirt::up(cluster, &programs, &stand_ins, &mut steps)?;
    steps.step("KubeVirt is up");
    drop(steps);
    eprintln!(
        "\n  `cargo xtask demo` installs Weft on it, and `cargo xtask cluster logs virt` shows what KubeVirt does\n"
    );
    Ok(())
}

fn status(cluster: &Cluster) -> anyhow::Result<()> {
    let components = cluster.components();
    for component in &components {
        let state = if component.runs { "runs" } else { "DEAD" };
        println!(
            "{:8} {:24} {state}  {}",
            component.space,
            component.program,
            component.log.display()
        );
    }
    if components.iter().all(|component| !component.runs) {
        bail!("the cluster is down; `cargo xtask cluster up` starts it");
    }
    println!(
        "\n{}",
        cluster.kubectl().run(["get", "nodes", "--output", "wide"])?
    );
    if !cluster.is_up() {
        bail!("the cluster is incomplete; `cargo xtask cluster up` repairs it");
    }
    Ok(())
}

fn logs(cluster: &Cluster, component: Option<&str>) -> anyhow::Result<()> {
    let files = cluster.logs();
    let Some(component) = component else {
        for file in files {
            println!("{}", file.display());
        }
        return Ok(());
    };
    let named = |file: &&PathBuf| {
        file.file_name()
            .is_some_and(|name| name.to_string_lossy().contains(component))
    };
    let mut chosen = files.iter().filter(named).peekable();
    if chosen.peek().is_none() {
        bail!("no log has {component} in its name; `cargo xtask cluster logs` lists the logs");
    }
    for file in chosen {
        let mut file =
            std::fs::File::open(file).with_context(|| format!("cannot read {}", file.display()))?;
        std::io::copy(&mut file, &mut std::io::stdout())?;
    }
    Ok(())
}
