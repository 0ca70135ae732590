//! Moves programs that the daemon starts out of its own memory limit (multus.md §15, 1).
//!
//! A program counts against its parent's cgroup, and many run when many pods start: with a memory limit for the
//! daemon alone, the kernel would kill them or the daemon. So they are moved to a cgroup outside Kubernetes' limits,
//! like plugins that the runtime starts. Without a limit they are not moved, because the move takes 10 ms, longer
//! than most plugins run.
//!
//! The move is best effort: if the node does not allow it, programs count against the daemon's limit.

use linux::process::Door;
use std::fs;
use std::path::{Path, PathBuf};

/// Cgroups of this process.
const OWN: &str = "/proc/self/cgroup";
/// Mount point of the hierarchies, below the host's root.
const MOUNT: &str = "sys/fs/cgroup";
/// The memory hierarchy of cgroup v1.
const MEMORY: &str = "memory";
/// Files of a cgroup.
const PROCESSES: &str = "cgroup.procs";
const LIMIT_V1: &str = "memory.limit_in_bytes";
const LIMIT_V2: &str = "memory.max";
/// Bytes from which a cgroup v1 limit means no limit: the kernel rounds the largest number down to a page.
const NO_LIMIT: u64 = 1 << 62;

/// A cgroup outside this process' memory limit, if it has a limit. `root` is the host's root directory.
pub(crate) fn cgroup_exit(root: &Path) -> Option<Door> {
    let own = fs::read_to_string(OWN).ok()?;
    let place = exit(&own, &root.join(MOUNT))?;
    Door::open(&place)
        .inspect_err(|error| tracing::info!(%error, "cannot open the root cgroup: plugins count against the daemon's memory limit"))
        .ok()
}

/// The `cgroup.procs` file outside the limit, if the cgroups in `own` have one.
fn exit(own: &str, mount: &Path) -> Option<PathBuf> {
    let (hierarchy, path, limit) = own
        .lines()
        .find_map(|line| {
            let mut parts = line.splitn(3, ':').skip(1);
            let (controllers, path) = (parts.next()?, parts.next()?);
            let v1 = controllers.split(',').any(|controller| controller == MEMORY);
            v1.then(|| (mount.join(MEMORY), path, LIMIT_V1))
        })
        .or_else(|| {
            let path = own.lines().find_map(|line| line.strip_prefix("0::"))?;
            Some((mount.to_owned(), path, LIMIT_V2))
        })?;
    let limit = fs::read_to_string(hierarchy.join(path.trim_start_matches('/')).join(limit)).ok()?;
    // "max" is no number.
    let limited = limit.trim().parse::<u64>().is_ok_and(|limit| limit < NO_LIMIT);
    limited.then(|| hierarchy.join(PROCESSES))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with_limit(own: &str, file: &str, limit: &str) -> Option<PathBuf> {
        let mount = tempfile::tempdir().unwrap();
        let file = mount.path().join(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(file, limit).unwrap();
        let place = exit(own, mount.path())?;
        Some(place.strip_prefix(mount.path()).unwrap().to_owned())
    }

    #[test]
    fn cgroup_v2_limit_is_found() {
        let own = "0::/kubepods.slice/pod1/multus\n";
        let file = "kubepods.slice/pod1/multus/memory.max";
        assert_eq!(with_limit(own, file, "52428800\n"), Some("cgroup.procs".into()));
        assert_eq!(with_limit(own, file, "max\n"), None);
        // Another view of the tree: nothing is known.
        assert_eq!(with_limit("0::/\n", file, "52428800\n"), None);
    }

    #[test]
    fn cgroup_v1_limit_is_found() {
        let own = "5:devices:/x\n4:memory:/kubepods/multus\n3:cpu,cpuacct:/x\n0::/\n";
        let file = "memory/kubepods/multus/memory.limit_in_bytes";
        assert_eq!(
            with_limit(own, file, "52428800\n"),
            Some("memory/cgroup.procs".into())
        );
        assert_eq!(with_limit(own, file, "9223372036854771712\n"), None);
        assert_eq!(with_limit("", file, "52428800\n"), None);
    }
}
