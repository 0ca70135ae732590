//! Programs that come from Debian packages: those of the nodes, what a virtual machine is made of, Prometheus,
//! NetworkManager, Open vSwitch, and those of the pods of Kubernetes' own tests.
//!
//! They are unpacked into the cache, each set in a folder of its own, so that nobody waits for what he does not use:
//! nothing is installed on the host and no service of theirs is ever started there. Those of the nodes are laid over
//! `/usr` inside the cluster's own mount namespaces.

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
    /// Folder of the cache that they are unpacked in; also the name of its lock.
    folder: &'static str,
    /// Programs, by their place below `/`, and the packages that hold them. Those of the host do as well.
    programs: &'static [(&'static str, &'static str)],
    /// Packages whose files are taken from the cache alone, without what they depend on, and a file of each.
    apart: &'static [(&'static str, &'static str)],
    /// Whether nobody but root has a use for them.
    for_root: bool,
}

/// What a cluster needs.
const CLUSTER: Set = Set {
    folder: "debian",
    programs: NODE_PROGRAMS,
    apart: &[],
    for_root: true,
};

/// What a virtual machine needs. The kernel's package is the one that `linux-image-amd64` names; the guest's shell
/// has to be static, and a host's may not be.
const MACHINE: Set = Set {
    folder: "debian-vm",
    programs: &[
        ("usr/bin/qemu-system-x86_64", "qemu-system-x86"),
        ("usr/bin/kmod", "kmod"),
    ],
    apart: &[("boot", KERNEL), ("usr/bin/busybox", "busybox-static")],
    for_root: false,
};

/// What scrapes metrics and checks alerts. Its programs stand alone: what the package depends on is for browsers.
const PROMETHEUS: Set = Set {
    folder: "debian-prometheus",
    programs: &[],
    apart: &[("usr/bin/promtool", "prometheus")],
    for_root: false,
};

/// What configures hosts, with the bus that one talks to it by.
const NETWORK_MANAGER: Set = Set {
    folder: "debian-network-manager",
    programs: &[
        ("usr/sbin/NetworkManager", "network-manager"),
        ("usr/bin/dbus-daemon", "dbus"),
    ],
    apart: &[],
    for_root: false,
};

/// The database and the switch of Open vSwitch, with the programs that configure them.
const OPEN_VSWITCH: Set = Set {
    folder: "debian-open-vswitch",
    programs: &[
        ("usr/sbin/ovsdb-server", "openvswitch-common"),
        ("usr/lib/openvswitch-switch/ovs-vswitchd", "openvswitch-switch"),
    ],
    apart: &[],
    for_root: false,
};

/// What leases addresses in tests of the DHCP client.
const DNSMASQ: Set = Set {
    folder: "debian-dnsmasq",
    programs: &[(DNSMASQ_PROGRAM, "dnsmasq-base")],
    apart: &[],
    for_root: false,
};

/// What asks DNS servers as fast as they answer.
const DNSPERF: Set = Set {
    folder: "debian-dnsperf",
    programs: &[(DNSPERF_PROGRAM, "dnsperf")],
    apart: &[],
    for_root: false,
};

/// What pods of Kubernetes' own tests run.
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

/// The DHCP server, by its place below `/`.
pub const DNSMASQ_PROGRAM: &str = "usr/sbin/dnsmasq";

/// The program that measures DNS servers, by its place below `/`.
pub const DNSPERF_PROGRAM: &str = "usr/bin/dnsperf";

/// The package that depends on the newest kernel's.
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
        let root = CLUSTER.root(home);
        Self {
            unpacked: root.is_dir().then_some(root),
        }
    }

    /// A command that runs one of the programs on the host, with the libraries and extensions that lie beside it.
    pub fn command(&self, path: &str) -> Command {
        let file = self.file(path);
        let mut command = Command::new(&file);
        if self.unpacked().is_some_and(|root| file.starts_with(root)) {
            command.envs(self.variables());
        }
        command
    }

    /// Variables by which programs that were unpacked find their libraries and extensions; none where nothing had to be
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

    /// The directory to lay over `/`, if anything had to be unpacked.
    pub fn unpacked(&self) -> Option<&Path> {
        self.unpacked.as_deref()
    }

    /// The directory to lay over `/usr`, if anything had to be unpacked.
    pub(crate) fn layer(&self) -> Option<String> {
        self.unpacked().map(|root| root.join("usr").display().to_string())
    }

    /// A file by its place below `/`, such as `usr/lib/cni/ptp`.
    pub fn file(&self, path: &str) -> PathBuf {
        match &self.unpacked {
            Some(root) if root.join(path).exists() => root.join(path),
            _ => Path::new("/").join(path),
        }
    }

    /// Brings in what a cluster lacks. Fast when that is nothing.
    pub fn ensure(home: &Home, progress: &mut dyn Progress) -> Result<Self> {
        CLUSTER.ensure(home, progress)
    }

    /// Brings in what a virtual machine lacks: qemu, a kernel below `boot` with its modules, and a static busybox.
    pub fn ensure_machine(home: &Home, progress: &mut dyn Progress) -> Result<Self> {
        MACHINE.ensure(home, progress)
    }

    /// Brings in `usr/bin/prometheus`, and `usr/bin/promtool`, which asks it, and checks and tests the rules of alerts.
    pub fn ensure_prometheus(home: &Home, progress: &mut dyn Progress) -> Result<Self> {
        PROMETHEUS.ensure(home, progress)
    }

    /// Brings in NetworkManager and the D-Bus daemon.
    pub fn ensure_network_manager(home: &Home, progress: &mut dyn Progress) -> Result<Self> {
        NETWORK_MANAGER.ensure(home, progress)
    }

    /// Brings in the daemons of Open vSwitch and `usr/bin/ovs-vsctl`.
    pub fn ensure_open_vswitch(home: &Home, progress: &mut dyn Progress) -> Result<Self> {
        OPEN_VSWITCH.ensure(home, progress)
    }

    /// Brings in dnsmasq, a DHCP server.
    pub fn ensure_dnsmasq(home: &Home, progress: &mut dyn Progress) -> Result<Self> {
        DNSMASQ.ensure(home, progress)
    }

    /// Brings in dnsperf, which measures DNS servers.
    pub fn ensure_dnsperf(home: &Home, progress: &mut dyn Progress) -> Result<Self> {
        DNSPERF.ensure(home, progress)
    }

    /// Brings in what pods of Kubernetes' own tests run: `usr/bin/curl`, `dash`, `dig`, `getent`, `nc.openbsd`, `ss` and
    /// `wget`.
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
                    "these programs are missing and can only be brought in by root on Debian; install the packages that hold them: {wanted}"
                )
            } else {
                format!("these packages of Debian are missing and can only be brought in on Debian: {wanted}")
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

    /// Packages whose files are neither on the host, where that counts, nor unpacked.
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
                    "Debian's package lists are missing or too old; as root: apt-get update".to_owned(),
                ));
            }
            progress.step("bringing in Debian's package lists");
            run::watched(
                Command::new("apt-get").args(["--quiet", "update"]),
                &log,
                progress,
            )
        };
        progress.step(&format!(
            "bringing in Debian packages: {}",
            self.missing(None).join(" ")
        ));
        let packages = if let Ok(packages) = self.resolve() {
            packages
        } else {
            update(progress)?;
            self.resolve()?
        };
        if run::watched(&mut download(&archives, &packages), &log, progress).is_err() {
            // Lists that are older than the archive name versions that are gone.
            update(progress)?;
            run::watched(&mut download(&archives, &self.resolve()?), &log, progress)?;
        }
        progress.step("unpacking them");
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

    /// The packages to download.
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

/// The packages of files that `exists` does not find.
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

/// Unpacks all archives into a fresh directory.
fn unpack(archives: &Path, fresh: &Path) -> Result<()> {
    if fresh.exists() {
        fs::remove_dir_all(fresh).at("remove", fresh)?;
    }
    // Packages still name places outside /usr; with these links everything ends up below it.
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

/// Reads the kernel's package from what `apt-cache depends` says about the one that depends on it.
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
        let missing = || lacking(CLUSTER.programs, |path| root.path().join(path).exists());
        let all = missing();
        assert!(all.contains(&"containerd") && all.contains(&"runc"));
        assert_eq!(all.iter().filter(|name| **name == "containerd").count(), 1);
        fs::create_dir_all(root.path().join("usr/sbin")).unwrap();
        fs::write(root.path().join("usr/sbin/runc"), "").unwrap();
        assert!(!missing().contains(&"runc"));
    }

    #[test]
    fn a_machine_never_takes_the_kernel_of_the_host() {
        let root = tempfile::tempdir().unwrap();
        assert!(MACHINE.missing(None).contains(&KERNEL));
        fs::create_dir_all(root.path().join("boot")).unwrap();
        assert!(!MACHINE.missing(Some(root.path())).contains(&KERNEL));
    }

    #[test]
    fn the_kernel_is_the_one_that_the_newest_depends_on() {
        let depends = "linux-image-amd64\n  Depends: linux-image-6.1.0-56-amd64\n  Suggests: linux-doc\n";
        assert_eq!(
            newest_kernel(depends).as_deref(),
            Some("linux-image-6.1.0-56-amd64")
        );
        assert_eq!(newest_kernel("linux-image-amd64\n"), None);
    }
}
