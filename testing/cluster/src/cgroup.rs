//! Control groups of a cluster, on version 1, version 2 and both together.
//!
//! Every process of a cluster is in a group `weft-ID` of every hierarchy. It enters the group before it does anything
//! else, so that all processes can be found.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::{At, Error, Result};

/// A mounted hierarchy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Hierarchy {
    mount: PathBuf,
    /// Mount options that select the hierarchy on version 1. `None` for version 2.
    options: Option<String>,
}

/// Parses the hierarchies from the lines of `/proc/self/mountinfo`.
fn hierarchies(mountinfo: &str) -> Vec<Hierarchy> {
    let mut found = Vec::new();
    for line in mountinfo.lines() {
        let Some((left, right)) = line.split_once(" - ") else {
            continue;
        };
        let (Some(mount), mut right) = (left.split(' ').nth(4), right.split(' ')) else {
            continue;
        };
        let kind = right.next().unwrap_or_default();
        let options = right.nth(1).unwrap_or_default();
        let options = match kind {
            "cgroup2" => None,
            "cgroup" => {
                let keep =
                    |option: &&str| !["rw", "ro", "clone_children", "xattr", "seclabel"].contains(option);
                let mut options: Vec<&str> = options
                    .split(',')
                    .filter(keep)
                    .filter(|o| !o.starts_with("release_agent"))
                    .collect();
                if options.iter().all(|option| option.starts_with("name=")) {
                    options.insert(0, "none");
                }
                Some(options.join(","))
            }
            _ => continue,
        };
        let mount = PathBuf::from(mount);
        if mount.starts_with("/sys/fs/cgroup") && !found.iter().any(|known: &Hierarchy| known.mount == mount)
        {
            found.push(Hierarchy { mount, options });
        }
    }
    found
}

/// The groups of one cluster.
#[derive(Debug, Clone)]
pub(crate) struct Groups {
    hierarchies: Vec<Hierarchy>,
    name: String,
}

impl Groups {
    /// Returns the groups `name` of all hierarchies of this machine, without creating them.
    pub(crate) fn new(name: &str) -> Result<Self> {
        let path = Path::new("/proc/self/mountinfo");
        let hierarchies = hierarchies(&fs::read_to_string(path).at("read", path)?);
        if hierarchies.is_empty() {
            return Err(Error::Missing(
                "no cgroup hierarchy is mounted on this machine".to_owned(),
            ));
        }
        Ok(Self {
            hierarchies,
            name: name.to_owned(),
        })
    }

    fn roots(&self) -> impl Iterator<Item = PathBuf> {
        self.hierarchies
            .iter()
            .map(|hierarchy| hierarchy.mount.join(&self.name))
    }

    /// Creates the groups of a space. Returns the files that move its first process into them, one per hierarchy.
    pub(crate) fn create(&self, space: &str) -> Result<Vec<PathBuf>> {
        let mut entries = Vec::new();
        for hierarchy in &self.hierarchies {
            let top = hierarchy.mount.join(&self.name);
            let group = top.join(space);
            if hierarchy.options.is_none() {
                hand_down(&hierarchy.mount)?;
            }
            make(&top)?;
            if hierarchy.options.is_none() {
                hand_down(&top)?;
            }
            make(&group)?;
            make(&group.join("system"))?;
            entries.push(group.join("cgroup.procs"));
        }
        Ok(entries)
    }

    /// Moves the processes of a new space into a separate group below its root, and enables all controllers for the
    /// other groups: version 2 forbids both in one group.
    pub(crate) fn settle(&self, space: &str) -> Result<()> {
        for hierarchy in &self.hierarchies {
            let group = hierarchy.mount.join(&self.name).join(space);
            let procs = group.join("cgroup.procs");
            for pid in fs::read_to_string(&procs).at("read", &procs)?.lines() {
                // A process that ended meanwhile needs no move.
                let _ = fs::write(group.join("system/cgroup.procs"), pid);
            }
            if hierarchy.options.is_none() {
                hand_down(&group)?;
            }
        }
        Ok(())
    }

    /// Returns the mounts for `space.sh`.
    pub(crate) fn mounts(&self) -> String {
        if let [Hierarchy { options: None, .. }] = &self.hierarchies[..] {
            return "- -".to_owned();
        }
        let line = |hierarchy: &Hierarchy| {
            let name = hierarchy
                .mount
                .file_name()
                .map(|name| name.to_string_lossy().into_owned())
                .unwrap_or_default();
            format!("{name} {}", hierarchy.options.as_deref().unwrap_or("v2"))
        };
        self.hierarchies.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    /// Returns all processes in the groups of `space`, or of the whole cluster.
    pub(crate) fn processes(&self, space: Option<&str>) -> Vec<i32> {
        let mut pids = Vec::new();
        for root in self.roots() {
            walk(
                &space.map_or(root.clone(), |space| root.join(space)),
                &mut |dir| {
                    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap_or_default();
                    // 0 stands for a process in another pid namespace.
                    pids.extend(
                        text.lines()
                            .filter_map(|line| line.parse::<i32>().ok())
                            .filter(|pid| *pid > 0),
                    );
                },
            );
        }
        pids.sort_unstable();
        pids.dedup();
        pids
    }

    /// Ends all processes in the groups of `space`, or of the whole cluster, and removes the groups.
    pub(crate) fn remove(&self, space: Option<&str>, deadline: Duration) -> Result<()> {
        let began = Instant::now();
        loop {
            let pids = self.processes(space);
            for pid in &pids {
                if let Some(pid) = rustix::process::Pid::from_raw(*pid) {
                    let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
                }
            }
            let mut remaining = Vec::new();
            for root in self.roots() {
                let mut dirs = Vec::new();
                walk(
                    &space.map_or(root.clone(), |space| root.join(space)),
                    &mut |dir| dirs.push(dir.to_owned()),
                );
                dirs.retain(|dir| fs::remove_dir(dir).is_err() && dir.exists());
                remaining.extend(dirs);
            }
            if pids.is_empty() && remaining.is_empty() {
                return Ok(());
            }
            if began.elapsed() > deadline {
                return Err(Error::Timeout {
                    what: "the end of the cluster's processes".to_owned(),
                    seconds: deadline.as_secs(),
                    evidence: format!("\n    processes {pids:?}\n    groups {remaining:?}"),
                });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns the directories that exist, to check for leftovers.
    pub(crate) fn existing(&self) -> Vec<PathBuf> {
        self.roots().filter(|root| root.exists()).collect()
    }
}

/// Calls `visit` for every directory of the tree, children first.
fn walk(dir: &Path, visit: &mut dyn FnMut(&Path)) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&entry.path(), visit);
        }
    }
    visit(dir);
}

fn make(group: &Path) -> Result<()> {
    fs::create_dir_all(group).at("create", group)?;
    // On version 1 these files are empty at first, and a group without them accepts no process.
    for name in ["cpuset.cpus", "cpuset.mems"] {
        let file = group.join(name);
        if let (Some(parent), Ok(own)) = (group.parent(), fs::read_to_string(&file))
            && own.trim().is_empty()
            && let Ok(value) = fs::read_to_string(parent.join(name))
            && !value.trim().is_empty()
        {
            fs::write(&file, value).at("write", &file)?;
        }
    }
    let clone = group.join("cgroup.clone_children");
    if clone.exists() {
        fs::write(&clone, "1").at("write", &clone)?;
    }
    Ok(())
}

/// Enables the controllers of a version 2 group for its children.
fn hand_down(group: &Path) -> Result<()> {
    let file = group.join("cgroup.subtree_control");
    let controllers = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
    let enabled = fs::read_to_string(&file).unwrap_or_default();
    for controller in controllers.split_whitespace() {
        if enabled.split_whitespace().any(|name| name == controller)
            || fs::write(&file, format!("+{controller}")).is_ok()
        {
            continue;
        }
        // In a container the root of the hierarchy contains processes, which version 2 forbids here.
        let leaf = group.join("weft-others");
        fs::create_dir_all(&leaf).at("create", &leaf)?;
        for pid in fs::read_to_string(group.join("cgroup.procs"))
            .unwrap_or_default()
            .lines()
        {
            let _ = fs::write(leaf.join("cgroup.procs"), pid);
        }
        fs::write(&file, format!("+{controller}")).at("write", &file)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HYBRID: &str = "\
28 20 0:25 / /sys/fs/cgroup rw,relatime shared:8 - tmpfs tmpfs rw,mode=755
29 28 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
30 28 0:27 / /sys/fs/cgroup/systemd rw,relatime - cgroup cgroup rw,xattr,release_agent=/lib/x,name=systemd
31 28 0:28 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw,nsdelegate
";

    #[test]
    fn hierarchies_of_both_versions_are_parsed() {
        let groups = Groups {
            hierarchies: hierarchies(HYBRID),
            name: "weft-1".to_owned(),
        };
        assert_eq!(
            groups.mounts(),
            "cpu,cpuacct cpu,cpuacct\nsystemd none,name=systemd\nunified v2"
        );
    }

    #[test]
    fn single_version_2_hierarchy_is_mounted_at_the_top() {
        let line = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate,memory_recursiveprot";
        let groups = Groups {
            hierarchies: hierarchies(line),
            name: "weft-1".to_owned(),
        };
        assert_eq!(groups.mounts(), "- -");
    }
}
