//! The owner of a cluster: the process that removes it. A file beside the cluster's directory names it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{At, Result};
use crate::process::Process;

/// Suffix of the file name, after the name of the cluster.
const SUFFIX: &str = ".owner";

/// The file that names the owner of a cluster.
#[derive(Debug)]
pub(super) struct Ownership(PathBuf);

impl Ownership {
    /// Returns the ownership of the cluster `name`, whose directory is in `clusters`.
    pub(super) fn of(clusters: &Path, name: &str) -> Self {
        Self(clusters.join(format!("{name}{SUFFIX}")))
    }

    /// Returns the owner, running or not.
    fn owner(&self) -> Option<Process> {
        Process::parse(&fs::read_to_string(&self.0).ok()?)
    }

    /// Returns the owner, if it is another running process.
    pub(super) fn other_than(&self, own: Process) -> Option<Process> {
        self.owner().filter(|owner| *owner != own && owner.lives())
    }

    /// Returns true if the owner has ended.
    pub(super) fn is_abandoned(&self) -> bool {
        self.owner().is_some_and(|owner| !owner.lives())
    }

    /// Writes the owner. After a crash, the file is complete or absent.
    pub(super) fn write(&self, owner: Process) -> Result<()> {
        if let Some(dir) = self.0.parent() {
            fs::create_dir_all(dir).at("create", dir)?;
        }
        let unfinished = self.0.with_extension("new");
        fs::write(&unfinished, owner.to_string()).at("write", &unfinished)?;
        fs::rename(&unfinished, &self.0).at("create", &self.0)
    }

    /// Removes the file, if it exists.
    pub(super) fn remove(&self) -> Result<()> {
        match fs::remove_file(&self.0) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).at("remove", &self.0),
            _ => Ok(()),
        }
    }
}

/// Returns the names of the clusters in `clusters` whose owner has ended.
pub(super) fn abandoned(clusters: &Path) -> Vec<String> {
    let entries = fs::read_dir(clusters).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter_map(|entry| {
            let file = entry.file_name();
            let name = file.to_str()?.strip_suffix(SUFFIX)?;
            Ownership::of(clusters, name)
                .is_abandoned()
                .then(|| name.to_owned())
        })
        .collect();
    names.sort();
    names
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    /// A process that has ended.
    fn gone() -> Process {
        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
        process
    }

    #[test]
    fn abandoned_names_clusters_of_dead_processes_alone() {
        let dir = tempfile::tempdir().unwrap();
        let clusters = dir.path().join("clusters");
        assert_eq!(abandoned(&clusters), [] as [String; 0]);
        let of = |name: &str| Ownership::of(&clusters, name);
        let own = Process::current().unwrap();
        of("living").write(own).unwrap();
        assert_eq!(of("living").other_than(own), None);
        for name in ["test-1", "killed-7"] {
            of(name).write(gone()).unwrap();
        }
        // A persistent cluster has no owner, and a malformed file names none.
        fs::create_dir(clusters.join("kept")).unwrap();
        fs::write(clusters.join("broken.owner"), "").unwrap();
        assert_eq!(abandoned(&clusters), ["killed-7", "test-1"]);

        assert_eq!(of("test-1").other_than(own), None);
        of("test-1").remove().unwrap();
        of("test-1").remove().unwrap();
        of("killed-7").write(own).unwrap();
        assert_eq!(abandoned(&clusters), [] as [String; 0]);

        let mut other = Command::new("sleep").arg("1000").spawn().unwrap();
        let living = Process::of(other.id()).unwrap();
        of("taken").write(living).unwrap();
        assert_eq!(of("taken").other_than(own), Some(living));
        other.kill().unwrap();
        other.wait().unwrap();
        assert_eq!(of("taken").other_than(own), None);
        assert_eq!(abandoned(&clusters), ["taken"]);
    }
}
