//! Kubernetes' own end-to-end tests of networking, run against a cluster of this repository.
//!
//! ```text
//! focus, left-out.txt ──> specs ──> ginkgo ──> e2e.test (network of the control plane) ──> API server, nodes, pods
//!                                     │                                    pods: agnhost, CoreDNS (images of ours)
//!                                     └──> report.json ──> table
//! ```
//!
//! * [`Parts`] are programs, built once into the cache,
//! * [`run`] loads the images, starts the cluster's DNS, and runs the specs.

mod dns;
mod error;
mod images;
mod report;
mod selection;
mod suite;

use std::path::PathBuf;

use cluster::kubernetes::Suite;
use cluster::{Cluster, Home, Packages, Progress, coredns};

pub use error::{Error, Result};
pub use report::{Outcome, Results, Spec};
pub use selection::{FOCUS, LeftOut};

/// What is built or brought in before a run.
#[derive(Debug, Clone)]
pub struct Parts {
    suite: Suite,
    coredns: PathBuf,
}

impl Parts {
    /// Finds it in the cache, or builds it, which takes minutes and is done once.
    ///
    /// # Errors
    /// [`cluster::Error::Missing`] where it is not built and there is no Go.
    pub fn ensure(home: &Home, progress: &mut dyn Progress) -> Result<Self> {
        Packages::ensure_suite(home, progress)?;
        Ok(Self {
            suite: Suite::ensure(home, progress)?,
            coredns: coredns::ensure(home, "do without Kubernetes' tests", progress)?,
        })
    }
}

/// What to run, and how.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Regular expressions of Go; a spec that one of them matches is run.
    pub focus: Vec<String>,
    /// Specs that are not run.
    pub left_out: Vec<LeftOut>,
    /// How many specs run at the same time.
    pub processes: usize,
}

/// What a run leaves behind.
#[derive(Debug)]
pub struct Run {
    /// What became of the specs.
    pub results: Results,
    /// What the tests printed.
    pub log: PathBuf,
}

/// Runs the specs on a cluster that is up and whose pods have a network.
pub fn run(
    cluster: &Cluster,
    home: &Home,
    parts: &Parts,
    wanted: &Wanted,
    progress: &mut dyn Progress,
) -> Result<Run> {
    let dir = home.dir(&format!("conformance/{}", cluster.name()))?;
    let run = suite::Run {
        suite: &parts.suite,
        cluster,
        focus: &wanted.focus,
        left_out: &wanted.left_out,
        processes: wanted.processes,
        dir: &dir,
    };
    progress.step("selecting specs");
    let selected = run.selected()?;
    progress.step("loading the images of the tests into the nodes");
    images::load(cluster, home, &parts.suite, progress)?;
    progress.step("starting the cluster's DNS");
    dns::up(cluster, home, &parts.coredns, progress)?;
    let results = run.run(selected, progress)?;
    Ok(Run {
        results,
        log: run.log(),
    })
}
