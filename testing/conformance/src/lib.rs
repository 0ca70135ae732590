//! Kubernetes' end-to-end tests of networking, on a cluster of this repository.
//!
//! ```text
//! focus, excluded.txt ──> specs ──> ginkgo ──> e2e.test (network of the control plane) ──> API server, nodes, pods
//!                                     │                                    pods: agnhost, CoreDNS (built images)
//!                                     └──> report.json ──> table
//! ```
//!
//! * [`Parts`] has the programs, built once into the cache,
//! * [`run`] loads the images, starts the cluster's DNS server, and runs the specs.

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
pub use selection::{Excluded, FOCUS, QUICK_DUAL_STACK_FOCUS, QUICK_FOCUS};

/// The programs of a run.
#[derive(Debug, Clone)]
pub struct Parts {
    suite: Suite,
    coredns: PathBuf,
}

impl Parts {
    /// Finds the programs in the cache, or builds them, which takes minutes and happens once.
    ///
    /// # Errors
    /// [`cluster::Error::Missing`] if they are not built and Go is missing.
    pub fn ensure(home: &Home, progress: &mut dyn Progress) -> Result<Self> {
        Packages::ensure_suite(home, progress)?;
        Ok(Self {
            suite: Suite::ensure(home, progress)?,
            coredns: coredns::ensure(home, "do without Kubernetes' tests", progress)?,
        })
    }
}

/// The selection of specs.
#[derive(Debug, Clone)]
pub struct Wanted {
    /// Go regular expressions. A spec runs if one of them matches.
    pub focus: Vec<String>,
    /// Excluded specs.
    pub excluded: Vec<Excluded>,
    /// Number of concurrent specs.
    pub processes: usize,
}

/// The results of a run.
#[derive(Debug)]
pub struct Run {
    /// The results of the specs.
    pub results: Results,
    /// The output of the tests.
    pub log: PathBuf,
}

/// Runs the specs on a running cluster with a pod network.
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
        excluded: &wanted.excluded,
        processes: wanted.processes,
        dir: &dir,
    };
    progress.step("selecting specs");
    let selected = run.selected()?;
    progress.step("loading the images of the tests into the nodes");
    images::load(cluster, home, &parts.suite, progress)?;
    progress.step("starting the cluster's DNS server");
    dns::up(cluster, home, &parts.coredns, progress)?;
    let results = run.run(selected, progress)?;
    Ok(Run {
        results,
        log: run.log(),
    })
}
