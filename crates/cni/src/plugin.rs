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
use crate::exec::{Invoker, Resident};
use crate::json;
use crate::names::CNI_COMMAND;
use crate::result::CniResult;
use crate::version::Version;

/// One call of a plugin.
#[derive(Debug, Clone)]
pub struct Call {
    /// Name of the plugin that the runtime called, even while it delegates to another plugin in this process.
    pub plugin: &'static str,
    /// The validated environment.
    pub request: Request,
    /// The config.
    pub config: NetworkConfig,
    /// The config's version, which the plugin supports.
    pub version: Version,
    /// Standard input, verbatim.
    pub stdin: Vec<u8>,
    /// The complete environment, for delegation.
    pub variables: Variables,
    /// Set if the process continues after the call. Then the plugin may leave work to a thread.
    pub resident: Option<Resident>,
}

impl Call {
    /// The pairs of `CNI_ARGS`.
    pub fn args(&self) -> Result<CniArgs, Error> {
        CniArgs::parse(&self.request.args)
    }

    /// Runs an IPAM plugin with the environment and the complete config of this call (cni-plugins §1.6). Returns the
    /// result of ADD; a result without a version gets the config's.
    pub fn delegate(&self, plugin: &str, verb: Verb) -> Result<Option<CniResult>, Error> {
        let resident = self.resident.as_ref();
        let invoker = Invoker {
            dirs: self.request.path.clone(),
            base: self.variables.clone(),
            prepare: resident.and_then(|resident| resident.prepare.clone()),
            // A process of a single call has its caller's timeout.
            limit: resident.map(Resident::left),
        };
        let variables = [(CNI_COMMAND.to_owned(), verb.as_str().to_owned())].into();
        let printed = invoker.run(plugin, &variables, &self.stdin)?;
        match verb {
            Verb::Add => CniResult::parse(&printed, self.version).map(Some),
            _ => Ok(None),
        }
    }
}

/// A CNI plugin. Verbs without an implementation succeed.
pub trait Plugin: Sync {
    /// The plugin's name, as in `CNI <name> plugin`.
    fn name(&self) -> &'static str;

    /// Description for a manual call.
    fn about(&self) -> String {
        format!("CNI {} plugin {}", self.name(), env!("CARGO_PKG_VERSION"))
    }

    /// The supported config versions.
    fn versions(&self) -> &'static [Version] {
        &Version::ALL
    }

    /// Attaches. Rolls back on an error.
    fn add(&self, call: &Call) -> Result<CniResult, Error>;

    /// Detaches. A missing attachment is no error.
    fn del(&self, call: &Call) -> Result<(), Error>;

    /// Verifies that an attachment is as ADD made it.
    fn check(&self, call: &Call) -> Result<(), Error> {
        let _ = call;
        Ok(())
    }

    /// Reports whether ADD could be served.
    fn status(&self, call: &Call) -> Result<(), Error> {
        let _ = call;
        Ok(())
    }

    /// Removes leftovers: state that belongs to no valid attachment.
    fn gc(&self, call: &Call) -> Result<(), Error> {
        let _ = call;
        Ok(())
    }
}

/// Output and exit code of a plugin's process.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The result or the error object.
    pub stdout: String,
    /// The description, for a manual call.
    pub stderr: String,
    /// 0 or 1.
    pub code: u8,
}

/// Size limit of a config, in bytes. The largest real ones, of GC with a whole node's attachments, are far smaller.
const LONGEST_CONFIG: u64 = 8 << 20;

/// Runs a plugin as this process, by its environment and standard input.
pub fn main(plugin: &dyn Plugin) -> ExitCode {
    let outcome = dispatch(plugin, &variables(), || read_config(std::io::stdin().lock()));
    // The runtime may have closed the pipes.
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

/// Runs a plugin in a process that continues afterwards. Returns the same output or error as the plugin's program.
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

/// Runs a plugin with the given environment and input instead of this process' own.
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
        Err(Rejection::ManualCall) => {
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

/// Standard input, verbatim and parsed.
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

/// Refuses a sandbox that is this thread's own namespace, before any change (code 8). An unreadable path is no error
/// here.
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
