//! The node programs that come from Debian packages.
//!
//! They are unpacked into the cache and laid over `/usr` inside the cluster's own mount namespaces: nothing is
//! installed on the host and no service of theirs is ever started there.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{At, Error, Result};
use crate::home::Home;
use crate::progress::Progress;
use crate::run;

/// Programs that a cluster needs, by their place below `/`, and the packages that hold them.
const PROGRAMS: &[(&str, &str)] = &[
    ("usr/bin/containerd", "containerd"),
    ("usr/bin/ctr", "containerd"),
    ("usr/sbin/runc", "runc"),
    ("usr/sbin/xtables-nft-multi", "iptables"),
    ("usr/sbin/nft", "nftables"),
    ("usr/bin/ip", "iproute2"),
    ("usr/sbin/conntrack", "conntrack"),
    ("usr/bin/socat", "socat"),
    ("usr/bin/busybox", "busybox-static"),
    ("usr/lib/cni/ptp", "containernetworking-plugins"),
    ("usr/bin/openssl", "openssl"),
];

/// Names that the package's installation script would have linked to `xtables-nft-multi`.
const XTABLES: &[&str] = &[
    "iptables",
    "iptables-save",
    "iptables-restore",
    "ip6tables",
    "ip6tables-save",
    "ip6tables-restore",
];

/// Where the programs are: on the host, or unpacked in the cache.
#[derive(Debug, Clone)]
pub struct Packages {
    unpacked: Option<PathBuf>,
}

impl Packages {
    /// What is there already, on the host or from an earlier time; nothing is brought in.
    pub(crate) fn present(home: &Home) -> Self {
        let root = home.path().join("debian/root");
        Self {
            unpacked: root.is_dir().then_some(root),
        }
    }

    /// A command that runs one of the programs on the host, with the libraries that lie beside it.
    pub(crate) fn command(&self, path: &str) -> Command {
        let file = self.file(path);
        let mut command = Command::new(&file);
        if let Some(libraries) = self.libraries()
            && self.unpacked().is_some_and(|root| file.starts_with(root))
        {
            command.env("LD_LIBRARY_PATH", libraries);
        }
        command
    }

    /// The directory of the libraries that were unpacked with the programs, if anything had to be unpacked.
    pub fn libraries(&self) -> Option<PathBuf> {
        let name = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        Some(self.unpacked.as_ref()?.join(name))
    }

    /// The directory to lay over `/`, if anything had to be unpacked.
    pub fn unpacked(&self) -> Option<&Path> {
        self.unpacked.as_deref()
    }

    /// A file by its place below `/`, such as `usr/lib/cni/ptp`.
    pub fn file(&self, path: &str) -> PathBuf {
        match &self.unpacked {
            Some(root) if root.join(path).exists() => root.join(path),
            _ => Path::new("/").join(path),
        }
    }

    /// Brings in what is missing. Fast when nothing is.
    pub fn ensure(home: &Home, progress: &mut dyn Progress) -> Result<Self> {
        let root = home.path().join("debian/root");
        if missing(&[Path::new("/")]).is_empty() {
            return Ok(Self { unpacked: None });
        }
        let here = Self {
            unpacked: Some(root.clone()),
        };
        if missing(&[Path::new("/"), &root]).is_empty() {
            return Ok(here);
        }
        let wanted = missing(&[Path::new("/")]);
        if !Path::new("/etc/debian_version").exists() || !rustix::process::geteuid().is_root() {
            return Err(Error::Missing(format!(
                "these programs are missing and can only be brought in by root on Debian; install the packages that hold them: {}",
                wanted.join(" ")
            )));
        }
        let _lock = home.lock("debian", progress)?;
        if !missing(&[Path::new("/"), &root]).is_empty() {
            fetch(home, &wanted, progress)?;
        }
        let lacking = missing(&[Path::new("/"), &root]);
        if lacking.is_empty() {
            return Ok(here);
        }
        Err(Error::Missing(format!(
            "the unpacked packages lack programs of: {}",
            lacking.join(" ")
        )))
    }
}

/// Packages none of whose places holds the program.
fn missing(roots: &[&Path]) -> Vec<&'static str> {
    let mut packages: Vec<&str> = PROGRAMS
        .iter()
        .filter(|(path, _)| !roots.iter().any(|root| root.join(path).exists()))
        .map(|(_, package)| *package)
        .collect();
    packages.dedup();
    packages
}

fn fetch(home: &Home, wanted: &[&str], progress: &mut dyn Progress) -> Result<()> {
    let dir = home.dir("debian")?;
    let archives = home.dir("debian/archives")?;
    let log = dir.join("apt.log");
    progress.step(&format!("bringing in Debian packages: {}", wanted.join(" ")));
    let packages = if let Ok(packages) = resolve(wanted) {
        packages
    } else {
        progress.step("bringing in Debian's package lists");
        run::watched(
            Command::new("apt-get").args(["--quiet", "update"]),
            &log,
            progress,
        )?;
        resolve(wanted)?
    };
    let mut download = Command::new("apt-get");
    download
        .current_dir(&archives)
        .args(["--quiet", "--option", "APT::Sandbox::User=root", "download"]);
    if run::watched(download.args(&packages), &log, progress).is_err() {
        // Lists that are older than the archive name versions that are gone.
        run::watched(
            Command::new("apt-get").args(["--quiet", "update"]),
            &log,
            progress,
        )?;
        run::watched(&mut download, &log, progress)?;
    }

    let fresh = dir.join("root.new");
    if fresh.exists() {
        fs::remove_dir_all(&fresh).at("remove", &fresh)?;
    }
    // Packages still name places outside /usr; with these links everything ends up below it.
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        let target = fresh.join("usr").join(name);
        fs::create_dir_all(&target).at("create", &target)?;
        let link = fresh.join(name);
        std::os::unix::fs::symlink(format!("usr/{name}"), &link).at("create", &link)?;
    }
    for entry in fs::read_dir(&archives).at("read", &archives)? {
        let archive = entry.at("read", &archives)?.path();
        if archive.extension().is_none_or(|extension| extension != "deb") {
            continue;
        }
        let unpack = "dpkg-deb --fsys-tarfile \"$1\" | tar --extract --directory \"$2\" --keep-directory-symlink --no-same-owner";
        run::output(
            Command::new("sh")
                .args(["-c", unpack, "sh"])
                .arg(&archive)
                .arg(&fresh),
        )?;
    }
    for name in XTABLES {
        let link = fresh.join("usr/sbin").join(name);
        if fresh.join("usr/sbin/xtables-nft-multi").exists() && !link.exists() {
            std::os::unix::fs::symlink("xtables-nft-multi", &link).at("create", &link)?;
        }
    }
    let root = dir.join("root");
    if root.exists() {
        fs::remove_dir_all(&root).at("remove", &root)?;
    }
    fs::rename(&fresh, &root).at("create", &root)?;
    fs::remove_dir_all(&archives).at("remove", &archives)
}

/// The packages that would have to be installed for `wanted` to work on this machine.
fn resolve(wanted: &[&str]) -> Result<Vec<String>> {
    let mut simulate = Command::new("apt-get");
    simulate.args([
        "--simulate",
        "--no-install-recommends",
        "--option",
        "Debug::NoLocking=1",
        "install",
    ]);
    Ok(to_install(&run::output(
        simulate.args(wanted).env("LC_ALL", "C"),
    )?))
}

/// Reads the simulation: one line `Inst NAME …` a package.
fn to_install(simulation: &str) -> Vec<String> {
    let name = |line: &str| {
        line.strip_prefix("Inst ")?
            .split_whitespace()
            .next()
            .map(str::to_owned)
    };
    simulation.lines().filter_map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_to_install_are_read_from_the_simulation() {
        let simulation = "The following NEW packages will be installed:\n  runc\n\
            Inst libssl3 [3.0.19-1] (3.0.22-1 Debian-Security:12 [amd64])\n\
            Inst runc (1.1.5+ds1-1+deb12u1 Debian:12.15/oldstable [amd64])\n\
            Conf runc (1.1.5+ds1-1+deb12u1 Debian:12.15/oldstable [amd64])\n";
        assert_eq!(to_install(simulation), ["libssl3", "runc"]);
    }

    #[test]
    fn a_package_is_missing_when_no_place_holds_its_program() {
        let root = tempfile::tempdir().unwrap();
        let all = missing(&[root.path()]);
        assert!(all.contains(&"containerd") && all.contains(&"runc"));
        assert_eq!(all.iter().filter(|name| **name == "containerd").count(), 1);
        fs::create_dir_all(root.path().join("usr/sbin")).unwrap();
        fs::write(root.path().join("usr/sbin/runc"), "").unwrap();
        assert!(!missing(&[root.path()]).contains(&"runc"));
    }
}
