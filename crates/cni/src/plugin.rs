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
use crate::error::{Error, code};
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

/// Runs a plugin on an environment and an input, without touching this process' own.
pub fn dispatch(
    plugin: &dyn Plugin,
    variables: &Variables,
    stdin: impl FnOnce() -> Result<Vec<u8>, Error>,
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
    match answer(plugin, request, variables, stdin) {
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
mod tests {
    use super::*;

    struct Fake;

    impl Plugin for Fake {
        fn name(&self) -> &'static str {
            "fake"
        }
        fn add(&self, call: &Call) -> Result<CniResult, Error> {
            if call.config.object.contains("fail") {
                return Err(Error::new(code::TRY_AGAIN_LATER, "later"));
            }
            let mut result = CniResult::default();
            result.interfaces.push(crate::result::Interface {
                name: call.request.ifname.clone(),
                ..Default::default()
            });
            Ok(result)
        }
        fn del(&self, _: &Call) -> Result<(), Error> {
            Ok(())
        }
    }

    fn environment(verb: &str, netns: &str) -> Variables {
        [
            ("CNI_COMMAND", verb),
            ("CNI_CONTAINERID", "c"),
            ("CNI_NETNS", netns),
            ("CNI_IFNAME", "net1"),
            ("CNI_PATH", "/x"),
        ]
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
    }

    fn run(verb: &str, netns: &str, stdin: &str) -> Outcome {
        dispatch(&Fake, &environment(verb, netns), || Ok(stdin.as_bytes().to_vec()))
    }

    fn error(verb: &str, stdin: &str) -> Error {
        let outcome = run(verb, "/nowhere", stdin);
        assert_eq!(outcome.code, 1);
        serde_json::from_str(&outcome.stdout).unwrap()
    }

    #[test]
    fn called_by_hand_it_introduces_itself() {
        // cni-plugins#1
        let outcome = dispatch(&Fake, &Variables::new(), || Err(Error::internal("not read")));
        assert_eq!((outcome.code, outcome.stdout.as_str()), (0, ""));
        let lines: Vec<_> = outcome.stderr.lines().collect();
        assert!(lines[0].starts_with("CNI fake plugin "), "{lines:?}");
        assert_eq!(
            lines[1],
            "CNI protocol versions supported: 0.1.0, 0.2.0, 0.3.0, 0.3.1, 0.4.0, 1.0.0, 1.1.0"
        );
    }

    #[test]
    fn version_is_one_line() {
        // cni-plugins#3
        let variables = [("CNI_COMMAND".to_owned(), "VERSION".to_owned())].into();
        let outcome = dispatch(&Fake, &variables, || Err(Error::internal("not read")));
        assert_eq!(
            outcome.stdout,
            "{\"cniVersion\":\"1.1.0\",\"supportedVersions\":[\"0.1.0\",\"0.2.0\",\"0.3.0\",\"0.3.1\",\"0.4.0\",\"1.0.0\",\"1.1.0\"]}\n"
        );
    }

    #[test]
    fn a_result_is_printed_in_the_configs_version() {
        let outcome = run("ADD", "/nowhere", r#"{"cniVersion":"0.4.0","name":"n"}"#);
        assert_eq!(outcome.code, 0);
        assert_eq!(
            outcome.stdout,
            "{\n    \"cniVersion\": \"0.4.0\",\n    \"dns\": {},\n    \"interfaces\": [\n        {\n            \"name\": \"net1\"\n        }\n    ]\n}"
        );
        // cni-plugins#9
        assert_eq!(
            error("ADD", r#"{"cniVersion":"0.2.0","name":"n"}"#).msg,
            "cannot convert: no valid IP addresses"
        );
    }

    #[test]
    fn configs_are_validated_in_order() {
        // cni-plugins#4
        assert_eq!(error("ADD", "nonsense").code, 6);
        assert!(
            error("ADD", "nonsense")
                .msg
                .starts_with("error unmarshall network config: ")
        );
        let missing = error("ADD", r#"{"cniVersion":"9.9.9"}"#);
        assert_eq!((missing.code, missing.msg.as_str()), (7, "missing network name"));
        let odd = error("ADD", r#"{"name":"my net"}"#);
        assert_eq!(
            odd,
            Error::new(7, "invalid characters found in network name").with_details("my net")
        );
    }

    #[test]
    fn an_unknown_verb_is_named_after_what_is_wrong_with_the_config() {
        let said = |stdin: &str| {
            let error = error("DANCE", stdin);
            (error.code, error.msg)
        };
        assert_eq!(
            said(r#"{"name":"n"}"#),
            (4, "unknown CNI_COMMAND: DANCE".to_owned())
        );
        assert_eq!(said("{}"), (7, "missing network name".to_owned()));
        assert_eq!(said("").0, 6);
    }

    #[test]
    fn configs_are_bounded_in_length_and_depth() {
        let error_of = |length: u64| read_config(std::io::repeat(b' ').take(length)).unwrap_err();
        assert_eq!(read_config(std::io::empty()).unwrap(), b"");
        assert_eq!(
            read_config(std::io::repeat(b' ').take(8 << 20)).unwrap().len(),
            8 << 20
        );
        assert_eq!(
            error_of(u64::MAX),
            Error::new(5, "error reading from stdin: more than 8 MiB")
        );
        for (open, close) in [("[", "]"), (r#"{"x":"#, "}")] {
            let deep = format!("{}1{}", open.repeat(1_000_000), close.repeat(1_000_000));
            for key in ["x", "prevResult", "ipam", "args"] {
                let error = error("ADD", &format!(r#"{{"name":"n","{key}":{deep}}}"#));
                assert_eq!(error.code, 6, "{error}");
                assert!(error.msg.contains("recursion limit exceeded"), "{error}");
            }
        }
    }

    #[test]
    fn a_config_that_is_no_text_is_refused() {
        for (stdin, why) in [
            (&b"\xff\xfe{\0}"[..], "expected value"),
            (b"{\"name\":\"\xff\"}", "invalid unicode"),
            (b"{\"name\":\"\\ud800\"}", "hex escape"),
            (b"{\"name\":\"n\",\"mtu\":1e999}", "number out of range"),
            (b"[]", "expected an object"),
        ] {
            let outcome = dispatch(&Fake, &environment("ADD", "/nowhere"), || Ok(stdin.to_vec()));
            let error: Error = serde_json::from_str(&outcome.stdout).unwrap();
            assert_eq!(error.code, 6, "{error}");
            assert!(error.msg.contains(why), "{error}");
        }
    }

    #[test]
    fn verbs_are_gated_by_version() {
        // cni-plugins#5
        let of = |verb: &str, version: &str| {
            let error = error(verb, &format!(r#"{{"cniVersion":"{version}","name":"n"}}"#));
            (error.code, error.msg)
        };
        assert_eq!(
            of("CHECK", "0.3.1"),
            (1, "config version does not allow CHECK".into())
        );
        assert_eq!(of("GC", "1.0.0"), (1, "config version does not allow GC".into()));
        assert_eq!(
            of("STATUS", "1.0.0"),
            (1, "config version does not allow STATUS".into())
        );
        let silent = run("GC", "/nowhere", r#"{"cniVersion":"1.1.0","name":"n"}"#);
        assert_eq!(silent, Outcome::default());
    }

    #[test]
    fn errors_keep_their_code() {
        assert_eq!(error("ADD", r#"{"name":"n","fail":1}"#), Error::new(11, "later"));
    }

    #[test]
    fn the_plugins_own_namespace_is_refused() {
        let outcome = run("ADD", "/proc/self/ns/net", r#"{"name":"n","cniVersion":"1.0.0"}"#);
        let error: Error = serde_json::from_str(&outcome.stdout).unwrap();
        assert_eq!(
            (error.code, error.msg.as_str()),
            (
                8,
                "plugin's netns and netns from CNI_NETNS should not be the same"
            )
        );
    }
}
