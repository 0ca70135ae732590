//! Programs from Debian packages: for the nodes, virtual machines, Prometheus, NetworkManager, Open vSwitch, and the
//! pods of Kubernetes' tests.
//!
//! They are unpacked into the cache, each set in a separate directory, so that each user waits only for its own set.
//! Nothing is installed on the host, and none of their services is started there. The programs of the nodes are
//! overlaid on `/usr` in the mount namespaces of the cluster.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::{At, Error, Result};
use crate::home::Home;
use crate::progress::Progress;
use crate::run;

/// Packages with one purpose.
#[derive(Debug)]
struct Set {
    /// Directory of the unpacked packages in the cache, and name of the lock.
    folder: &'static str,
    /// Programs by their path below `/`, and their packages. Programs of the host are used too.
    programs: &'static [(&'static str, &'static str)],
    /// Packages that are used only from the cache, without their dependencies, each with one of its files.
    apart: &'static [(&'static str, &'static str)],
    /// True if only root can use them.
    for_root: bool,
}

/// The packages of a cluster.
const CLUSTER: Set = Set {
    folder: "debian",
    programs: NODE_PROGRAMS,
    apart: &[],
    for_root: true,
};

/// The packages of a virtual machine. `linux-image-amd64` names the package of the kernel. The guest's shell must be
/// static, and the shell of a host may not be.
const MACHINE: Set = Set {
    folder: "debian-vm",
    programs: &[
        ("usr/bin/qemu-system-x86_64", "qemu-system-x86"),
        ("usr/bin/kmod", "kmod"),
    ],
    apart: &[("boot", KERNEL), ("usr/bin/busybox", "busybox-static")],
    for_root: false,
};

/// Prometheus scrapes metrics, and promtool checks alerts. The programs need no dependencies: those are for browsers.
const PROMETHEUS: Set = Set {
    folder: "debian-prometheus",
    programs: &[],
    apart: &[("usr/bin/promtool", "prometheus")],
    for_root: false,
};

/// NetworkManager, with the D-Bus daemon for its clients.
const NETWORK_MANAGER: Set = Set {
    folder: "debian-network-manager",
    programs: &[
        ("usr/sbin/NetworkManager", "network-manager"),
        ("usr/bin/dbus-daemon", "dbus"),
    ],
    apart: &[],
    for_root: false,
};

/// The database and the switch of Open vSwitch, with their tools.
const OPEN_VSWITCH: Set = Set {
    folder: "debian-open-vswitch",
    programs: &[
        ("usr/sbin/ovsdb-server", "openvswitch-common"),
        ("usr/lib/openvswitch-switch/ovs-vswitchd", "openvswitch-switch"),
    ],
    apart: &[],
    for_root: false,
};

/// The DHCP server for tests of the DHCP client.
const DNSMASQ: Set = Set {
    folder: "debian-dnsmasq",
    programs: &[(DNSMASQ_PROGRAM, "dnsmasq-base")],
    apart: &[],
    for_root: false,
};

/// A load generator for DNS servers.
const DNSPERF: Set = Set {
    folder: "debian-dnsperf",
    programs: &[(DNSPERF_PROGRAM, "dnsperf")],
    apart: &[],
    for_root: false,
};

/// Programs in the pods of Kubernetes' tests.
const SUITE: Set = Set {
    folder: "debian-conformance",
    programs: &[
        ("usr/bin/curl", "curl"),
        ("usr/bin/dash", "dash"),
        ("usr/bin/dig", "bind9-dnsutils"),
        ("usr/bin/getent", "libc-bin"),
        ("usr/bin/nc.openbsd", "netcat-openbsd"),
        ("usr/bin/ss", "iproute2"),
        ("usr/bin/wget", "wget"),
    ],
    apart: &[],
    for_root: false,
};

/// Path of the DHCP server below `/`.
pub const DNSMASQ_PROGRAM: &str = "usr/sbin/dnsmasq";

/// Path of dnsperf below `/`.
pub const DNSPERF_PROGRAM: &str = "usr/bin/dnsperf";

/// The package that depends on the newest kernel.
const KERNEL: &str = "linux-image-amd64";

const NODE_PROGRAMS: &[(&str, &str)] = &[
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

/// Names that the installation script of the package would link to `xtables-nft-multi`.
const XTABLES: &[&str] = &[
    "iptables",
    "iptables-save",
    "iptables-restore",
    "ip6tables",
    "ip6tables-save",
    "ip6tables-restore",
];

/// Packages that are available on the host or unpacked in the cache.
#[derive(Debug, Clone)]
pub struct Packages {
    unpacked: Option<PathBuf>,
}

impl Packages {
    /// Returns the packages that are available already, without a download.
    pub(crate) fn present(home: &Home) -> Self {
        let root = CLUSTER.root(home);
        Self {
            unpacked: root.is_dir().then_some(root),
        }
    }

    /// Returns a command that runs one of the programs on the host, with its unpacked libraries and extensions.
    pub fn command(&self, path: &str) -> Command {
        let file = self.file(path);
        let mut command = Command::new(&file);
        if self.unpacked().is_some_and(|root| file.starts_with(root)) {
            command.envs(self.variables());
        }
        command
    }

    /// Returns the variables by which unpacked programs find their libraries and extensions. Empty if nothing was
    /// unpacked.
    pub fn variables(&self) -> Vec<(&'static str, PathBuf)> {
        let name = format!("usr/lib/{}-linux-gnu", std::env::consts::ARCH);
        let libraries = self.unpacked.as_ref().map(|root| root.join(name));
        let variables = |libraries: PathBuf| {
            [
                ("XTABLES_LIBDIR", libraries.join("xtables")),
                ("LD_LIBRARY_PATH", libraries),
            ]
        };
        libraries.map(variables).into_iter().flatten().collect()
    }

    /// Returns the directory to overlay on `/`, if packages were unpacked.
    pub fn unpacked(&self) -> Option<&Path> {
        self.unpacked.as_deref()
    }

    /// Returns the directory to overlay on `/usr`, if packages were unpacked.
    pub(crate) fn layer(&self) -> Option<String> {
        self.unpacked().map(|root| root.join("usr").display().to_string())
    }

    /// Returns a file by its path below `/`, such as `usr/lib/cni/ptp`.
    pub fn file(&self, path: &str) -> PathBuf {
        match &self.unpacked {
            Some(root) if root.join(path).exists() => root.join(path),
            _ => Path::new("/").join(path),
        }
    }

    /// Downloads missing packages of a cluster. Fast if none are missing.
    pub fn ensure(home: &Home, progress: &mut dyn Progress) -> Result<Self> {
        CLUSTER.ensure(home, progress)
    }

    /// Downloads missing packages of a virtual machine: qemu, a kernel in `boot` with its modules, and a static
    /// busybox.
    pub fn ensure_machine(home: &Home, progress: &mut dyn Progress) -> Result<Self> {
        MACHINE.ensure(home, progress)
    }

    /// Downloads `usr/bin/prometheus`, and `usr/bin/promtool`, which sends queries, and checks and tests alerting
    /// rules.
    pub fn ensure_prometheus(home: &Home, progress: &mut dyn Progress) -> Result<Self> {
        PROMETHEUS.ensure(home, progress)
    }

    /// Downloads NetworkManager and the D-Bus daemon.
    pub fn ensure_network_manager(home: &Home, progress: &mut dyn Progress) -> Result<Self> {
        NETWORK_MANAGER.ensure(home, progress)
    }

    /// Downloads the daemons of Open vSwitch and `usr/bin/ovs-vsctl`.
    pub fn ensure_open_vswitch(home: &Home, progress: &mut dyn Progress) -> Result<Self> {
        OPEN_VSWITCH.ensure(home, progress)
    }

    /// Downloads dnsmasq, a DHCP server.
    pub fn ensure_dnsmasq(home: &Home, progress: &mut dyn Progress) -> Result<Self> {
        DNSMASQ.ensure(home, progress)
    }

    /// Downloads dnsperf, which measures DNS servers.
    pub fn ensure_dnsperf(home: &Home, progress: &mut dyn Progress) -> Result<Self> {
        DNSPERF.ensure(home, progress)
    }

    /// Downloads the programs in the pods of Kubernetes' tests: `usr/bin/curl`, `dash`, `dig`, `getent`, `nc.openbsd`,
    /// `ss` and `wget`.
    pub fn ensure_suite(home: &Home, progress: &mut dyn Progress) -> Result<Self> {
        SUITE.ensure(home, progress)
    }
}

impl Set {
    fn root(&self, home: &Home) -> PathBuf {
        home.path().join(self.folder).join("root")
    }

    fn ensure(&self, home: &Home, progress: &mut dyn Progress) -> Result<Packages> {
        let root = self.root(home);
        if self.missing(None).is_empty() {
            return Ok(Packages { unpacked: None });
        }
        let here = Packages {
            unpacked: Some(root.clone()),
        };
        if self.missing(Some(&root)).is_empty() {
            return Ok(here);
        }
        let wanted = self.missing(None);
        let debian = Path::new("/etc/debian_version").exists();
        if !debian || self.for_root && !is_root() {
            let wanted = wanted.join(" ");
            return Err(Error::Missing(if self.for_root {
                format!(
                    "programs are missing, and only root on Debian can download them; install these packages: {wanted}"
                )
            } else {
                format!("these Debian packages are missing, and can only be downloaded on Debian: {wanted}")
            }));
        }
        let _lock = home.lock(self.folder, progress)?;
        if !self.missing(Some(&root)).is_empty() {
            self.fetch(home, progress)?;
        }
        let lacking = self.missing(Some(&root));
        if lacking.is_empty() {
            return Ok(here);
        }
        Err(Error::Incomplete(format!(
            "the unpacked packages lack files of: {}",
            lacking.join(" ")
        )))
    }

    /// Returns the packages whose files are neither unpacked nor, if allowed, on the host.
    fn missing(&self, unpacked: Option<&Path>) -> Vec<&'static str> {
        let unpacked = |path: &str| unpacked.is_some_and(|root| root.join(path).exists());
        let programs = lacking(self.programs, |path| {
            Path::new("/").join(path).exists() || unpacked(path)
        });
        [programs, lacking(self.apart, unpacked)].concat()
    }

    fn fetch(&self, home: &Home, progress: &mut dyn Progress) -> Result<()> {
        let dir = home.dir(self.folder)?;
        let archives = dir.join("archives");
        fs::create_dir_all(&archives).at("create", &archives)?;
        let log = dir.join("apt.log");
        let update = |progress: &mut dyn Progress| {
            if !is_root() {
                return Err(Error::Missing(
                    "Debian's package lists are missing or outdated; run as root: apt-get update".to_owned(),
                ));
            }
            progress.step("downloading Debian's package lists");
            run::watched(
                Command::new("apt-get").args(["--quiet", "update"]),
                &log,
                progress,
            )
        };
        progress.step(&format!(
            "downloading Debian packages: {}",
            self.missing(None).join(" ")
        ));
        let packages = if let Ok(packages) = self.resolve() {
            packages
        } else {
            update(progress)?;
            self.resolve()?
        };
        if run::watched(&mut download(&archives, &packages), &log, progress).is_err() {
            // Outdated lists name versions that the archive no longer has.
            update(progress)?;
            run::watched(&mut download(&archives, &self.resolve()?), &log, progress)?;
        }
        progress.step("unpacking the packages");
        let fresh = dir.join("root.new");
        unpack(&archives, &fresh)?;
        for name in XTABLES {
            let link = fresh.join("usr/sbin").join(name);
            if fresh.join("usr/sbin/xtables-nft-multi").exists() && !link.exists() {
                std::os::unix::fs::symlink("xtables-nft-multi", &link).at("create", &link)?;
            }
        }
        let root = self.root(home);
        if root.exists() {
            fs::remove_dir_all(&root).at("remove", &root)?;
        }
        fs::rename(&fresh, &root).at("create", &root)?;
        fs::remove_dir_all(&archives).at("remove", &archives)
    }

    /// Returns the packages to download.
    fn resolve(&self) -> Result<Vec<String>> {
        let programs = lacking(self.programs, |path| Path::new("/").join(path).exists());
        let mut packages = if programs.is_empty() {
            Vec::new()
        } else {
            to_install(&run::output(
                Command::new("apt-get")
                    .args([
                        "--simulate",
                        "--no-install-recommends",
                        "--option",
                        "Debug::NoLocking=1",
                        "install",
                    ])
                    .args(programs)
                    .env("LC_ALL", "C"),
            )?)
        };
        for (_, package) in self.apart {
            packages.push(if *package == KERNEL {
                let depends = run::output(
                    Command::new("apt-cache")
                        .args(["depends", KERNEL])
                        .env("LC_ALL", "C"),
                )?;
                newest_kernel(&depends)
                    .ok_or_else(|| Error::Missing(format!("Debian's {KERNEL} names no kernel")))?
            } else {
                (*package).to_owned()
            });
        }
        Ok(packages)
    }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Returns the packages of files for which `exists` is false.
fn lacking(files: &[(&'static str, &'static str)], exists: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let mut packages: Vec<&str> = files
        .iter()
        .filter(|(path, _)| !exists(path))
        .map(|(_, package)| *package)
        .collect();
    packages.dedup();
    packages
}

fn download(archives: &Path, packages: &[String]) -> Command {
    let mut download = Command::new("apt-get");
    download
        .current_dir(archives)
        .args(["--quiet", "--option", "APT::Sandbox::User=root", "download"])
        .args(packages);
    download
}

/// Unpacks all archives into a new directory.
fn unpack(archives: &Path, fresh: &Path) -> Result<()> {
    if fresh.exists() {
        fs::remove_dir_all(fresh).at("remove", fresh)?;
    }
    // Some packages have files outside of /usr. With these links, all files are unpacked below it.
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        let target = fresh.join("usr").join(name);
        fs::create_dir_all(&target).at("create", &target)?;
        let link = fresh.join(name);
        std::os::unix::fs::symlink(format!("usr/{name}"), &link).at("create", &link)?;
    }
    for entry in fs::read_dir(archives).at("read", archives)? {
        let archive = entry.at("read", archives)?.path();
        if archive.extension().is_none_or(|extension| extension != "deb") {
            continue;
        }
        let unpack = "dpkg-deb --fsys-tarfile \"$1\" | tar --extract --directory \"$2\" --keep-directory-symlink --no-same-owner";
        run::output(
            Command::new("sh")
                .args(["-c", unpack, "sh"])
                .arg(&archive)
                .arg(fresh),
        )?;
    }
    Ok(())
}

/// Parses the simulation, which has one line `Inst NAME …` per package.
fn to_install(simulation: &str) -> Vec<String> {
    let name = |line: &str| {
        line.strip_prefix("Inst ")?
            .split_whitespace()
            .next()
            .map(str::to_owned)
    };
    simulation.lines().filter_map(name).collect()
}

/// Parses the name of the kernel's package from the output of `apt-cache depends` for the metapackage.
fn newest_kernel(depends: &str) -> Option<String> {
    depends
        .lines()
        .filter_map(|line| line.trim().strip_prefix("Depends: "))
        .find(|package| package.starts_with("linux-image-"))
        .map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_parsed_from_the_simulation() {
        let simulation = "The following NEW packages will be installed:\n  runc\n\
            Inst libssl3 [3.0.19-1] (3.0.22-1 Debian-Security:12 [amd64])\n\
            Inst runc (1.1.5+ds1-1+deb12u1 Debian:12.15/oldstable [amd64])\n\
            Conf runc (1.1.5+ds1-1+deb12u1 Debian:12.15/oldstable [amd64])\n";
        assert_eq!(to_install(simulation), ["libssl3", "runc"]);
    }

    #[test]
    fn package_is_missing_if_its_program_is_nowhere() {
        let root = tempfile::tempdir().unwrap();
        let missing = || lacking(CLUSTER.programs, |path| root.path().join(path).exists());
        let all = missing();
        assert!(all.contains(&"containerd") && all.contains(&"runc"));
        assert_eq!(all.iter().filter(|name| **name == "containerd").count(), 1);
        fs::create_dir_all(root.path().join("usr/sbin")).unwrap();
        fs::write(root.path().join("usr/sbin/runc"), "").unwrap();
        assert!(!missing().contains(&"runc"));
    }

    #[test]
    fn machine_never_uses_the_kernel_of_the_host() {
        let root = tempfile::tempdir().unwrap();
        assert!(MACHINE.missing(None).contains(&KERNEL));
        fs::create_dir_all(root.path().join("boot")).unwrap();
        assert!(!MACHINE.missing(Some(root.path())).contains(&KERNEL));
    }

    #[test]
    fn kernel_is_the_dependency_of_the_metapackage() {
        let depends = "linux-image-amd64\n  Depends: linux-image-6.1.0-56-amd64\n  Suggests: linux-doc\n";
        assert_eq!(
            newest_kernel(depends).as_deref(),
            Some("linux-image-6.1.0-56-amd64")
        );
        assert_eq!(newest_kernel("linux-image-amd64\n"), None);
    }
}
