//! The plugin's side of the protocol: from environment and standard input to a result on standard output.
//!
//! ```text
//! environment ─┐
//!              ├─> validate ─> version gate ─> Plugin::{add,del,check,status,gc} ─> Outcome { stdout, stderr, code }
//! stdin ───────┘
//! ```

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::ExitCode;

use serde_json::json;

use crate::args::CniArgs;
use crate::config::NetworkConfig;
use crate::env::{Rejection, Request, Variables, Verb, is_identifier, variables};
use crate::error::{Error, code, internal};
use crate::exec::Resident;
use crate::json;
use crate::result::CniResult;
use crate::version::Version;

/// One call of a plugin.
#[derive(Debug, Clone)]
pub struct Call {
    /// Name of the plugin that the runtime called, also while another works for it in this process.
    pub plugin: &'static str,
    /// The validated environment.
    pub request: Request,
    /// The config.
    pub config: NetworkConfig,
    /// The config's version, which the plugin supports.
    pub version: Version,
    /// Standard input as it came.
    pub stdin: Vec<u8>,
    /// The whole environment, for delegation.
    pub variables: Variables,
    /// The process, if it lives on after the call: what the caller need not wait for may be left to a thread.
    pub resident: Option<Resident>,
}

impl Call {
    /// The pairs of `CNI_ARGS`.
    pub fn args(&self) -> Result<CniArgs, Error> {
        CniArgs::parse(&self.request.args)
    }
}

/// A CNI plugin. Verbs that a plugin does not implement succeed silently.
pub trait Plugin: Sync {
    /// Its name, as in `CNI <name> plugin`.
    fn name(&self) -> &'static str;

    /// What it says of itself when called by hand.
    fn about(&self) -> String {
        format!("CNI {} plugin {}", self.name(), env!("CARGO_PKG_VERSION"))
    }

    /// The config versions that it supports.
    fn versions(&self) -> &'static [Version] {
        &Version::ALL
    }

    /// Attaches; on an error nothing stays behind.
    fn add(&self, call: &Call) -> Result<CniResult, Error>;

    /// Detaches; succeeds for what is gone already.
    fn del(&self, call: &Call) -> Result<(), Error>;

    /// Verifies that an attachment is as ADD left it.
    fn check(&self, call: &Call) -> Result<(), Error> {
        let _ = call;
        Ok(())
    }

    /// Whether ADD could be served.
    fn status(&self, call: &Call) -> Result<(), Error> {
        let _ = call;
        Ok(())
    }

    /// Removes what belongs to no valid attachment.
    fn gc(&self, call: &Call) -> Result<(), Error> {
        let _ = call;
        Ok(())
    }
}

/// What a plugin's process leaves: its output and exit code.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The result or the error object.
    pub stdout: String,
    /// The text about the plugin, when it was called by hand.
    pub stderr: String,
    /// 0 or 1.
    pub code: u8,
}

/// Bytes of a config. The largest honest ones, of GC with the attachments of a whole node, are far below.
const LONGEST_CONFIG: u64 = 8 << 20;

/// Runs a plugin as this process: environment and standard input in, standard output and exit code out.
pub fn main(plugin: &dyn Plugin) -> ExitCode {
    let outcome = dispatch(plugin, &variables(), || read_config(std::io::stdin().lock()));
    // A runtime that no longer reads can not be told so.
    let _ = std::io::stdout().write_all(outcome.stdout.as_bytes());
    let _ = std::io::stderr().write_all(outcome.stderr.as_bytes());
    ExitCode::from(outcome.code)
}

fn read_config(from: impl Read) -> Result<Vec<u8>, Error> {
    let failed =
        |why: &dyn std::fmt::Display| Error::new(code::IO, format!("error reading from stdin: {why}"));
    let mut config = Vec::new();
    from.take(LONGEST_CONFIG + 1)
        .read_to_end(&mut config)
        .map_err(|error| failed(&error))?;
    if config.len() as u64 > LONGEST_CONFIG {
        return Err(failed(&format_args!("more than {} MiB", LONGEST_CONFIG >> 20)));
    }
    Ok(config)
}

/// Runs a plugin as a part of this process, which lives on. What it would have printed, or its error, is what a caller
/// of its program would have got.
pub fn run_resident(
    plugin: &dyn Plugin,
    variables: &Variables,
    config: &[u8],
    resident: Resident,
) -> Result<Vec<u8>, Error> {
    let outcome = work(plugin, variables, || read_config(config), Some(resident));
    let _ = std::io::stderr().write_all(outcome.stderr.as_bytes());
    if outcome.code == 0 {
        return Ok(outcome.stdout.into_bytes());
    }
    Err(json::from_slice(outcome.stdout.as_bytes()).unwrap_or_else(internal))
}

/// Runs a plugin on an environment and an input, without touching this process' own.
pub fn dispatch(
    plugin: &dyn Plugin,
    variables: &Variables,
    stdin: impl FnOnce() -> Result<Vec<u8>, Error>,
) -> Outcome {
    work(plugin, variables, stdin, None)
}

fn work(
    plugin: &dyn Plugin,
    variables: &Variables,
    stdin: impl FnOnce() -> Result<Vec<u8>, Error>,
    resident: Option<Resident>,
) -> Outcome {
    let request = match Request::from_variables(variables) {
        Ok(request) => request,
        Err(Rejection::NotCalledByARuntime) => {
            let versions: Vec<&str> = plugin.versions().iter().map(|version| version.as_str()).collect();
            let stderr = format!(
                "{}\nCNI protocol versions supported: {}\n",
                plugin.about(),
                versions.join(", ")
            );
            return Outcome {
                stderr,
                ..Outcome::default()
            };
        }
        Err(Rejection::UnknownVerb(error)) => {
            return failure(&parse(stdin).err().unwrap_or(error));
        }
        Err(Rejection::Invalid(error)) => return failure(&error),
    };
    match answer(plugin, request, variables, stdin, resident) {
        Ok(stdout) => Outcome {
            stdout,
            ..Outcome::default()
        },
        Err(error) => failure(&error),
    }
}

fn failure(error: &Error) -> Outcome {
    Outcome {
        stdout: json::pretty(error),
        stderr: String::new(),
        code: 1,
    }
}

fn answer(
    plugin: &dyn Plugin,
    request: Request,
    variables: &Variables,
    stdin: impl FnOnce() -> Result<Vec<u8>, Error>,
    resident: Option<Resident>,
) -> Result<String, Error> {
    if request.verb == Verb::Version {
        let supported: Vec<&str> = plugin.versions().iter().map(|version| version.as_str()).collect();
        let line = json!({ "cniVersion": Version::LATEST.as_str(), "supportedVersions": supported });
        return Ok(format!("{line}\n"));
    }
    let (stdin, config) = parse(stdin)?;
    let version = config.version(plugin.versions())?;
    gate(request.verb, version)?;
    let call = Call {
        plugin: plugin.name(),
        request,
        config,
        version,
        stdin,
        variables: variables.clone(),
        resident,
    };
    match call.request.verb {
        Verb::Add => {
            refuse_own_netns(&call.request)?;
            let result = plugin.add(&call)?;
            Ok(json::pretty(&result.to_json(version)?))
        }
        Verb::Del => {
            refuse_own_netns(&call.request)?;
            plugin.del(&call).map(|()| String::new())
        }
        Verb::Check => plugin.check(&call).map(|()| String::new()),
        Verb::Status => plugin.status(&call).map(|()| String::new()),
        Verb::Gc => plugin.gc(&call).map(|()| String::new()),
        Verb::Version => Ok(String::new()),
    }
}

/// Standard input, and the config that it is.
fn parse(stdin: impl FnOnce() -> Result<Vec<u8>, Error>) -> Result<(Vec<u8>, NetworkConfig), Error> {
    let stdin = stdin()?;
    let config = NetworkConfig::parse(&stdin).map_err(|error| {
        Error::new(
            code::DECODING,
            format!("error unmarshall network config: {error}"),
        )
    })?;
    validate_name(config.name())?;
    Ok((stdin, config))
}

fn validate_name(name: &str) -> Result<(), Error> {
    if name.is_empty() {
        return Err(Error::new(code::INVALID_NETWORK_CONFIG, "missing network name"));
    }
    if !is_identifier(name) {
        return Err(Error::new(
            code::INVALID_NETWORK_CONFIG,
            "invalid characters found in network name",
        )
        .with_details(name));
    }
    Ok(())
}

/// CHECK came with 0.4.0, GC and STATUS with 1.1.0 (code 1).
fn gate(verb: Verb, version: Version) -> Result<(), Error> {
    let allowed = match verb {
        Verb::Check => version.has_check(),
        Verb::Gc | Verb::Status => version.has_gc_and_status(),
        Verb::Add | Verb::Del | Verb::Version => true,
    };
    if allowed {
        return Ok(());
    }
    Err(Error::new(
        code::INCOMPATIBLE_VERSION,
        format!("config version does not allow {verb}"),
    ))
}

/// Refuses a sandbox that is this thread's own namespace, before anything is changed in it (code 8). A path that can not
/// be looked at is no error here.
fn refuse_own_netns(request: &Request) -> Result<(), Error> {
    let Some(netns) = request.netns.as_deref().filter(|_| !request.netns_override) else {
        return Ok(());
    };
    let identity = |path: &Path| fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
    let own = identity(Path::new("/proc/thread-self/ns/net"));
    if own.is_some() && identity(netns) == own {
        return Err(Error::new(
            code::INVALID_NETNS,
            "plugin's netns and netns from CNI_NETNS should not be the same",
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
