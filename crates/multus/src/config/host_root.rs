//! Finds the host's root directory for a daemon without `chrootDir`.
//!
//! Plugins are programs of the host. A dynamically linked plugin needs the host's libraries, which the image lacks.
//! With `hostPID`, the root of the host's first process provides them.

use crate::config::DaemonConfig;
use linux::files::identity;
use std::path::{Path, PathBuf};

/// Root of the first process.
pub(crate) const FIRST_ROOT: &str = "/proc/1/root";

/// The configuration with the root of the first process as `chrootDir`, if it names none and that root is the host's.
pub(crate) fn completed(mut config: DaemonConfig, first: &Path) -> DaemonConfig {
    if config.chroot_dir.is_none()
        && let Some(root) = of(first, &config.bin_dir())
    {
        tracing::info!(root = %root.display(), "chrootDir is not set: plugins run in the root of the host's first process");
        config.chroot_dir = Some(root);
    }
    config
}

/// The root of the host's first process, if it has the same plugin directory at the same path. Without `hostPID` the first
/// process is our own or a pod's, and the directories differ; likewise for a nested host.
pub(crate) fn find(bin_dir: &Path) -> Option<PathBuf> {
    of(Path::new(FIRST_ROOT), bin_dir)
}

fn of(first: &Path, bin_dir: &Path) -> Option<PathBuf> {
    let below = bin_dir.strip_prefix("/").ok()?;
    let plugins = identity(bin_dir)?;
    let is_other = identity(first)? != identity(Path::new("/"))?;
    let is_host = is_other && identity(&first.join(below)) == Some(plugins);
    is_host.then(|| first.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn root_with_same_plugins_is_hosts() {
        // multus#118
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("bin");
        fs::create_dir(&bin).unwrap();
        let (host, other) = (dir.path().join("host"), dir.path().join("other"));
        let below = |root: &Path| root.join(bin.strip_prefix("/").unwrap());
        for root in [&host, &other] {
            fs::create_dir_all(below(root).parent().unwrap()).unwrap();
        }
        // In the place of a mount.
        symlink(&bin, below(&host)).unwrap();
        fs::create_dir(below(&other)).unwrap();
        assert_eq!(of(&host, &bin), Some(host));
        assert_eq!(of(&other, &bin), None, "another directory at that path");
        assert_eq!(of(Path::new("/"), &bin), None, "the root that we have already");
        assert_eq!(of(&dir.path().join("none"), &bin), None);
        assert_eq!(of(&other, &dir.path().join("none")), None);
        assert_eq!(of(&other, Path::new("relative")), None);
    }
    #[test]
    fn configuration_without_chroot_dir_gets_the_root_of_the_host() {
        // multus#118
        let dir = tempfile::tempdir().unwrap();
        let (bin, host, other) = (
            dir.path().join("bin"),
            dir.path().join("host"),
            dir.path().join("other"),
        );
        fs::create_dir(&bin).unwrap();
        fs::create_dir(&other).unwrap();
        let below = host.join(bin.strip_prefix("/").unwrap());
        fs::create_dir_all(below.parent().unwrap()).unwrap();
        symlink(&bin, below).unwrap();
        let chroot_dir = |set: Option<&str>, first: &Path| {
            let mut config = json!({ "binDir": bin });
            if let Some(set) = set {
                config["chrootDir"] = json!(set);
            }
            let config = DaemonConfig::parse(config.to_string().as_bytes()).unwrap();
            completed(config, first).chroot_dir
        };
        assert_eq!(chroot_dir(None, &host), Some(host.clone()));
        assert_eq!(chroot_dir(None, &other), None, "not the host's root");
        let set = dir.path().to_str();
        assert_eq!(chroot_dir(set, &host).as_deref(), Some(dir.path()));
    }
}
