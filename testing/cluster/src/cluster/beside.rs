//! Programs beside Kubernetes on the machine of the control plane, and their certificates and accounts.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use super::Cluster;
use crate::control_plane;
use crate::debian::Packages;
use crate::error::{At, Error, Result};
use crate::network;
use crate::pki::Pki;
use crate::wait;

/// Directory of these programs in the cluster's directory. The machine of the control plane has it at the same path.
const FOLDER: &str = "beside";
/// Restarts a program whenever it ends, until SIGTERM, which the program receives too.
const AGAIN: &str = "trap 'wait; exit 0' TERM; while :; do \"$@\" & wait $!; sleep 1; done";
/// Deadline for a program to end by itself.
const TIMEOUT: Duration = Duration::from_secs(30);
/// The lifetime of the cluster's certificates.
const TOKEN_LIFETIME: &str = "--duration=87600h";

/// A certificate and its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Certificate {
    /// The certificate, as PEM.
    pub certificate: PathBuf,
    /// The key, as PEM.
    pub key: PathBuf,
}

impl Cluster {
    /// Returns the address of the control plane for nodes and pods.
    pub const fn control_address(&self) -> &'static str {
        network::CONTROL
    }

    /// Returns address and port of the API server for nodes and pods. They need no Service.
    pub fn api_server(&self) -> String {
        format!("{}:{}", network::CONTROL, control_plane::PORT)
    }

    /// Starts a long-running program on the machine of the control plane, independent of this process: the program ends
    /// with the cluster. A running program is kept, unless its file or its arguments differ now. A program that ends is
    /// started again, like by a kubelet.
    ///
    /// The program is copied, so that a new build does not affect it. Returns true if it was started.
    pub fn start_beside(&self, program: &Path, arguments: &[String]) -> Result<bool> {
        let name = file_name(program)?;
        let dir = self.dir.join(FOLDER);
        fs::create_dir_all(&dir).at("create", &dir)?;
        let copy = dir.join(name);
        let command = dir.join(format!("{name}.command"));
        let wanted = format!("{}\n{}\n", identity(program)?, arguments.join("\n"));
        let same = fs::read_to_string(&command).is_ok_and(|text| text == wanted);
        if same && self.control.runs(name) {
            return Ok(false);
        }
        self.stop_beside(name)?;
        let unfinished = dir.join(format!("{name}.new"));
        fs::copy(program, &unfinished).at("copy", program)?;
        fs::rename(&unfinished, &copy).at("create", &copy)?;
        fs::write(&command, wanted).at("write", &command)?;
        let shell = ["sh", "-c", AGAIN, "sh"].map(str::to_owned);
        let argv: Vec<String> = shell
            .into_iter()
            .chain([copy.display().to_string()])
            .chain(arguments.iter().cloned())
            .collect();
        self.control.start(name, &argv)
    }

    /// Ends such a program with SIGTERM, or else with SIGKILL. Does nothing if it does not run.
    pub fn stop_beside(&self, name: &str) -> Result<()> {
        let gone = || (!self.control.runs(name)).then_some(());
        for signal in ["TERM", "KILL"] {
            if gone().is_some() {
                return Ok(());
            }
            // The signal reaches the whole session, which may have ended.
            let script = format!("kill -s {signal} -- \"-$(cat /run/weft/{name}.pid)\" 2>/dev/null || :");
            self.control.script(&script, Stdio::null())?;
            let ended = wait::until_some(&format!("the end of {name}"), TIMEOUT, gone, String::new);
            if signal == "KILL" {
                ended?;
            }
        }
        Ok(())
    }

    /// Waits until such a program listens on a TCP port.
    ///
    /// # Errors
    /// If it does not before `deadline`; the error contains the end of its log.
    pub fn wait_beside(&self, name: &str, port: u16, deadline: Duration) -> Result<()> {
        self.control.wait_listening(name, port, deadline)
    }

    /// Returns a certificate of the cluster's certificate authority. `names` are `DNS:NAME` and `IP:ADDRESS`.
    pub fn certificate(&self, name: &str, subject: &str, names: &[String]) -> Result<Certificate> {
        let pki = self.pki(&Packages::present(&self.options.home))?;
        pki.certificate(name, subject, names)?;
        let file = |end: &str| pki.file(&format!("{name}.{end}"));
        Ok(Certificate {
            certificate: file("crt"),
            key: file("key"),
        })
    }

    /// Returns the certificate of the cluster's certificate authority.
    pub fn authority(&self) -> PathBuf {
        self.dir.join("pki/ca.crt")
    }

    /// Returns a kubeconfig of a service account for programs beside Kubernetes. It is created once.
    pub fn service_account(&self, namespace: &str, name: &str) -> Result<PathBuf> {
        let pki = self.pki(&Packages::present(&self.options.home))?;
        let file = pki.file(&format!("{namespace}-{name}.kubeconfig"));
        if !file.exists() {
            let ask = ["create", "token", "--namespace", namespace, name, TOKEN_LIFETIME];
            let token = self.kubectl().run(ask)?;
            pki.kubeconfig_with(&file, &control_plane::server(), name, token.trim())?;
        }
        Ok(file)
    }

    pub(super) fn pki(&self, packages: &Packages) -> Result<Pki> {
        Pki::new(&self.dir.join("pki"), packages)
    }

    /// Returns the names of the programs that were started beside Kubernetes, running or not.
    pub(super) fn beside(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir.join(FOLDER))
            .into_iter()
            .flatten()
            .flatten();
        let mut names: Vec<String> = entries
            .filter_map(|entry| Some(entry.file_name().to_str()?.strip_suffix(".command")?.to_owned()))
            .collect();
        names.sort();
        names
    }
}

fn file_name(program: &Path) -> Result<&str> {
    let name = program.file_name().and_then(|name| name.to_str());
    name.ok_or_else(|| Error::Missing(format!("{} is not a program", program.display())))
}

/// Distinguishes a file from another build of it.
fn identity(program: &Path) -> Result<String> {
    let meta = fs::metadata(program).at("read", program)?;
    let modified = meta.modified().at("read", program)?;
    let since = modified.duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    Ok(format!("{} {}", meta.len(), since.as_nanos()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identity_of_another_build_differs() {
        let dir = tempfile::tempdir().unwrap();
        let program = dir.path().join("program");
        fs::write(&program, "one").unwrap();
        let first = identity(&program).unwrap();
        assert_eq!(identity(&program).unwrap(), first);
        fs::write(&program, "another").unwrap();
        assert_ne!(identity(&program).unwrap(), first);
        assert_eq!(file_name(&program).unwrap(), "program");
    }
}
