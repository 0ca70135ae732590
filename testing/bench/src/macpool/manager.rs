//! The start of the MAC pool.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context;
use review_bench::program::{Program, write_certificate};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use crate::objects::{MANAGER_NAMESPACE, RANGE};

/// Listen address of the webhooks.
const PORT: u16 = 8000;
/// Directory of the program's certificate.
const CERTIFICATES: &str = "/tmp/k8s-webhook-server/serving-certs";
/// The part of that path that may be missing on this machine.
const MOUNTED: &str = "/tmp/k8s-webhook-server";

/// Returns the MAC pool of a `weft` for the cluster of a kubeconfig. It logs into a file of `directory`.
pub(crate) fn program(path: PathBuf, kubeconfig: &Path, directory: &Path) -> Program {
    let arguments = [
        "kubemacpool",
        "--v=production",
        "--metrics-addr=127.0.0.1:8443",
        "--kubeconfig",
    ];
    Program {
        path,
        arguments: arguments
            .map(Into::into)
            .into_iter()
            .chain([kubeconfig.into()])
            .collect(),
        environment: vec![
            ("POD_NAMESPACE", MANAGER_NAMESPACE),
            ("POD_NAME", "kubemacpool-mac-controller-manager-0"),
            ("RANGE_START", RANGE.0),
            ("RANGE_END", RANGE.1),
        ],
        port: PORT,
        probes: None,
        log: directory.join("log"),
    }
}

/// A certificate in the directory of managers. Only this process and its children see it.
pub(crate) struct Certificate {
    /// True if this machine had no such directory.
    created: bool,
}

impl Certificate {
    /// Creates a certificate.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let created = !Path::new(MOUNTED).exists();
        fs::create_dir_all(MOUNTED).with_context(|| format!("cannot create {MOUNTED}"))?;
        mount("tmpfs", MOUNTED, "tmpfs", MountFlags::empty(), None)
            .with_context(|| format!("cannot mount a tmpfs on {MOUNTED}"))?;
        let mounted = Self { created };
        fs::create_dir_all(CERTIFICATES).with_context(|| format!("cannot create {CERTIFICATES}"))?;
        write_certificate(Path::new(CERTIFICATES))?;
        Ok(mounted)
    }
}

impl Drop for Certificate {
    fn drop(&mut self) {
        // The mount ends with this process. The mount point belongs to the machine.
        if unmount(MOUNTED, UnmountFlags::DETACH).is_ok() && self.created {
            let _ = fs::remove_dir(MOUNTED);
        }
    }
}
