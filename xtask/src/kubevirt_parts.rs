//! The parts of KubeVirt on a cluster: its programs, built by Go, and the stand-ins, built by Cargo.

use std::thread;

use anyhow::anyhow;
use cluster::{Cluster, Home, Progress};
use kubevirt::{HANDLER_STAND_IN, LAUNCHER_STAND_IN, Programs, StandIns};

use crate::board::Board;
use crate::build::{self, Extent, Inventory};

/// Builds all parts and the missing programs of the cluster concurrently: the first time, this takes minutes.
pub(crate) fn build(cluster: &Cluster) -> anyhow::Result<(Programs, StandIns)> {
    let home = Home::from_env()?;
    let board = Board::new();
    thread::scope(|scope| {
        let others = scope.spawn(|| -> anyhow::Result<Programs> {
            cluster.prepare(&mut board.lane("cluster"))?;
            Ok(Programs::ensure(&home, &mut board.lane("kubevirt"))?)
        });
        let stand_ins = stand_ins(&build::programs(Extent::StandIns, &mut board.lane("stand-ins"))?)?;
        let programs = others
            .join()
            .map_err(|_| anyhow!("the build of KubeVirt panicked"))??;
        Ok((programs, stand_ins))
    })
}

/// Waits for the stand-ins of a build.
pub(crate) fn stand_ins(inventory: &Inventory) -> anyhow::Result<StandIns> {
    Ok(StandIns {
        handler: inventory.binary(HANDLER_STAND_IN)?,
        launcher: inventory.binary(LAUNCHER_STAND_IN)?,
    })
}

/// Returns KubeVirt's programs, or the reason why this machine cannot have them.
pub(crate) fn programs(progress: &mut dyn Progress) -> anyhow::Result<Result<Programs, String>> {
    match Programs::ensure(&Home::from_env()?, progress) {
        Err(kubevirt::Error::Cluster(cluster::Error::Missing(why))) => Ok(Err(why)),
        programs => Ok(Ok(programs?)),
    }
}
