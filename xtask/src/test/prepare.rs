//! Foreign programs that tiers need: downloaded or built once, during the build of the workspace.

use std::collections::BTreeSet;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::Scope;
use std::time::Duration;

use cluster::kubernetes::{Program, Programs};
use cluster::{Helm, Home, Packages, Progress, coredns};

use super::{Tier, guest, is_root};
use crate::board::{Board, Lane};
use crate::kubevirt_parts;

/// Interval of progress reports.
const POLL: Duration = Duration::from_millis(200);

/// The result: the failure as text, for each tier that needs the program.
type Done = Option<Result<(), String>>;

/// A running download or build.
#[derive(Debug, Clone, Default)]
struct Part(Arc<(Mutex<Done>, Condvar)>);

impl Part {
    fn end(&self, outcome: Result<(), String>) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        self.0.1.notify_all();
    }

    fn wait(&self, progress: &mut dyn Progress) -> anyhow::Result<()> {
        let (done, changed) = &*self.0;
        let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(outcome) = &*done {
                return outcome.clone().map_err(anyhow::Error::msg);
            }
            progress.tick("");
            done = changed
                .wait_timeout(done, POLL)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

/// The running downloads and builds for the tiers of a run.
#[derive(Debug, Default)]
pub(super) struct Prepared {
    /// Programs of an API server without nodes.
    api: Part,
    /// Programs of clusters.
    kubernetes: Part,
    packages: Part,
    kubevirt: Part,
}

impl Prepared {
    /// Starts to provide the missing programs of these tiers. Debian's packages are downloaded one after the other, and
    /// Go builds one program after the other, both at the same time.
    pub(super) fn start<'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        tiers: &BTreeSet<Tier>,
        board: &Board,
    ) {
        let begin = |part: &Part, name, work: fn(&BTreeSet<Tier>, &mut Lane) -> anyhow::Result<()>| {
            let (part, mut lane, tiers) = (part.clone(), board.lane(name), tiers.clone());
            scope.spawn(move || part.end(work(&tiers, &mut lane).map_err(|error| format!("{error:#}"))));
        };
        begin(&self.packages, "packages", packages);
        let (api, whole) = (self.api.clone(), self.kubernetes.clone());
        let (mut lane, wanted) = (board.lane("kubernetes"), tiers.clone());
        scope.spawn(move || {
            let text = |error: anyhow::Error| format!("{error:#}");
            // The tier `api` begins while Go builds the rest.
            let built = for_api(&wanted, &mut lane).map_err(text);
            api.end(built.clone());
            whole.end(built.and_then(|()| for_clusters(&wanted, &mut lane).map_err(text)));
            // A test whose program is missing tries again, and fails.
            if let Err(error) = for_single_tests(&wanted, &mut lane) {
                lane.step(&format!("failed: {error:#}"));
            }
        });
        if tiers.contains(&Tier::Kubevirt) && is_root() {
            let (before, part, mut lane) = (
                self.kubernetes.clone(),
                self.kubevirt.clone(),
                board.lane("kubevirt"),
            );
            // More tiers wait for Kubernetes, and Go uses all processors anyway.
            scope.spawn(move || {
                let built = before
                    .wait(&mut lane)
                    .and_then(|()| kubevirt_parts::programs(&mut lane).map(drop));
                // The tier reports a missing program.
                part.end(built.map_err(|error| format!("{error:#}")));
            });
        } else {
            self.kubevirt.end(Ok(()));
        }
    }

    /// Waits for the programs of a tier.
    pub(super) fn wait(&self, tier: Tier, progress: &mut dyn Progress) -> anyhow::Result<()> {
        self.packages.wait(progress)?;
        match tier {
            Tier::Api => self.api.wait(progress),
            Tier::E2e => self.kubernetes.wait(progress),
            Tier::Kubevirt => {
                self.kubernetes.wait(progress)?;
                self.kubevirt.wait(progress)
            }
            _ => Ok(()),
        }
    }
}

fn for_api(tiers: &BTreeSet<Tier>, lane: &mut Lane) -> anyhow::Result<()> {
    if tiers.contains(&Tier::Api) {
        let home = Home::from_env()?;
        Programs::ensure(&home, &Program::API, lane)?;
        Helm::ensure(&home, lane)?;
    }
    Ok(())
}

fn for_clusters(tiers: &BTreeSet<Tier>, lane: &mut Lane) -> anyhow::Result<()> {
    let on_clusters = Tier::ON_CLUSTERS.iter().any(|tier| tiers.contains(tier));
    if on_clusters && is_root() {
        Programs::ensure(&Home::from_env()?, &Program::ALL, lane)?;
    }
    Ok(())
}

/// Programs that single tests need. These tests wait for them.
fn for_single_tests(tiers: &BTreeSet<Tier>, lane: &mut Lane) -> anyhow::Result<()> {
    if tiers.contains(&Tier::Api) {
        coredns::ensure(&Home::from_env()?, "leave the tier `api` out", lane)?;
    }
    suite(tiers, lane)
}

/// The tests of Kubernetes.
fn suite(tiers: &BTreeSet<Tier>, lane: &mut Lane) -> anyhow::Result<()> {
    if tiers.contains(&Tier::E2e) && is_root() {
        conformance::Parts::ensure(&Home::from_env()?, lane)?;
    }
    Ok(())
}

fn packages(tiers: &BTreeSet<Tier>, lane: &mut Lane) -> anyhow::Result<()> {
    let home = Home::from_env()?;
    // Root's unit tests of packet rules run nft.
    if is_root() {
        Packages::ensure(&home, lane)?;
    }
    if tiers.contains(&Tier::Namespaces) || tiers.contains(&Tier::Api) {
        match Packages::ensure_open_vswitch(&home, lane) {
            Err(cluster::Error::Missing(_)) if !is_root() => {}
            other => drop(other?),
        }
    }
    let on_clusters = Tier::ON_CLUSTERS.iter().any(|tier| tiers.contains(tier));
    if tiers.contains(&Tier::Namespaces) || on_clusters {
        match Packages::ensure_network_manager(&home, lane) {
            Err(cluster::Error::Missing(_)) if !is_root() => {}
            other => drop(other?),
        }
    }
    if tiers.contains(&Tier::Namespaces) && is_root() {
        drop(Packages::ensure_dnsmasq(&home, lane)?);
    }
    if tiers.contains(&Tier::Api) {
        match Packages::ensure_prometheus(&home, lane) {
            // Tests without the program print what they skip.
            Err(cluster::Error::Missing(_)) => {}
            other => drop(other?),
        }
    }
    if tiers.contains(&Tier::Vm) {
        // The tier reports a missing program.
        let _ = guest::ensure(lane)?;
    }
    Ok(())
}
