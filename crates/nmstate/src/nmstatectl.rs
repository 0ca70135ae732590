//! The engine's command line, as probes and runbooks of upstream's installations call it (nmstate §4.6).

use std::ffi::OsString;
use std::fs;
use std::io;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{Parser, Subcommand};
use k8s_openapi::jiff::Timestamp;
use kube_kit::process;
use program::terminal::{self, STDIN};
use serde_json::{Map, Value, json};
use thiserror::Error;

use crate::engine::{self, Backend, Engine, Options, Tool};
use crate::policy::enactment;
use crate::settings::{self, Settings};

/// Exit code of refused data, as in sysexits.
const REFUSED: u8 = 65;
/// Exit code of an invalid command line.
const WRONG_USAGE: u8 = 2;
/// Default time until an uncommitted change is rolled back, in seconds.
const TIMEOUT: u32 = 60;

/// Show and change the network of this host
#[derive(Debug, Parser)]
#[command(
    name = "nmstatectl",
    disable_version_flag = true,
    arg_required_else_help = true
)]
struct Cli {
    /// Print the version
    #[arg(short = 'V', long)]
    version: bool,
    /// Accepted for compatibility; errors include the engine's log
    #[arg(short, action = clap::ArgAction::Count, global = true)]
    verbose: u8,
    /// Accepted for compatibility; errors include the engine's log
    #[arg(short, global = true)]
    quiet: bool,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Show the state of the network
    #[command(alias = "s")]
    Show {
        /// Show this interface only, with its routes
        #[arg(value_name = "IFNAME")]
        interface: Option<String>,
        /// Print JSON instead of YAML
        #[arg(long)]
        json: bool,
        /// Read the kernel only, without NetworkManager
        #[arg(short, long)]
        kernel: bool,
        /// Leave out leased and learned settings
        #[arg(short, long)]
        running_config: bool,
        /// Include passwords and keys
        #[arg(short, long)]
        show_secrets: bool,
    },
    /// Apply desired states or policies
    #[command(aliases = ["a", "set"])]
    Apply {
        /// Files, applied one after the other [default: standard input]
        #[arg(value_name = "FILE")]
        files: Vec<String>,
        /// Configure the kernel only: the change is not persistent, and not rolled back
        #[arg(short, long)]
        kernel: bool,
        /// Do not verify the result
        #[arg(long)]
        no_verify: bool,
        /// Roll the change back after the timeout, unless it is committed
        #[arg(long)]
        no_commit: bool,
        /// Timeout of --no-commit, in seconds
        #[arg(short, long, default_value_t = TIMEOUT)]
        timeout: u32,
        /// Drop the change at the next boot
        #[arg(long)]
        memory_only: bool,
        /// Reset unmentioned settings of each interface
        #[arg(long)]
        override_iface: bool,
        /// Print passwords and keys
        #[arg(short, long)]
        show_secrets: bool,
    },
    /// Commit a change that was applied with --no-commit
    Commit {
        /// Checkpoint [default: the last one]
        #[arg(default_value = "", hide_default_value = true)]
        checkpoint: String,
    },
    /// Roll back a change that was applied with --no-commit
    Rollback {
        /// Checkpoint [default: the last one]
        #[arg(default_value = "", hide_default_value = true)]
        checkpoint: String,
    },
    /// Print the desired state of a policy with captures filled in
    #[command(alias = "p")]
    Policy {
        /// Policy file
        #[arg(value_name = "FILE", default_value = STDIN)]
        file: String,
        /// State that captures are evaluated on [default: that of this host]
        #[arg(short, long, value_name = "FILE")]
        current: Option<String>,
        /// Stored results of captures, which are not evaluated again
        #[arg(short = 'a', long, value_name = "FILE")]
        captured: Option<String>,
        /// Write the results of captures to this file
        #[arg(short, long, value_name = "FILE")]
        output_captured: Option<String>,
        /// Print JSON instead of YAML
        #[arg(long)]
        json: bool,
    },
    /// Print topologies and features of a desired state
    #[command(alias = "st")]
    Statistic {
        /// File with the desired state
        #[arg(value_name = "FILE", default_value = STDIN)]
        file: String,
        /// State before the change [default: that of this host]
        #[arg(short, long, value_name = "FILE")]
        current: Option<String>,
        /// Print JSON instead of YAML
        #[arg(long)]
        json: bool,
    },
    /// Print the desired state that reverts another one
    #[command(name = "gr", aliases = ["gen-revert", "generate-revert"])]
    Revert {
        /// File with the desired state
        #[arg(value_name = "FILE", default_value = STDIN)]
        file: String,
        /// State before the change [default: that of this host]
        #[arg(short, long, value_name = "FILE")]
        current: Option<String>,
        /// Print JSON instead of YAML
        #[arg(long)]
        json: bool,
    },
    /// Print configuration files for NetworkManager that yield a desired state
    #[command(name = "gc", alias = "gen-conf")]
    Configuration {
        /// File with the desired state
        #[arg(value_name = "FILE", default_value = STDIN)]
        file: String,
        /// Print JSON instead of YAML
        #[arg(long)]
        json: bool,
    },
    /// Validate a desired state or a policy, and print it in the library's format
    #[command(aliases = ["f", "fmt"])]
    Format {
        /// File with the desired state or policy
        #[arg(value_name = "FILE", default_value = STDIN)]
        file: String,
        /// Print JSON instead of YAML
        #[arg(long)]
        json: bool,
    },
    /// Print the version
    Version,
}

/// A command failed.
#[derive(Debug, Error)]
enum Error {
    #[error("{file}: {source}")]
    File {
        file: String,
        #[source]
        source: io::Error,
    },
    #[error("{file} is neither YAML nor JSON: {source}")]
    Malformed {
        file: String,
        #[source]
        source: serde_yaml::Error,
    },
    #[error("{0} is not a map of captured states")]
    Captured(String),
    #[error("Interface {0} not found")]
    NoInterface(String),
    #[error("NmstateError: {0}")]
    Engine(#[from] engine::Error),
    #[error("cannot start: {0}")]
    Start(#[source] io::Error),
    #[error("cannot be written: {0}")]
    Output(String),
}

/// Runs with these arguments, without the program's name.
pub(crate) fn run(arguments: &[OsString]) -> ExitCode {
    let argv = std::iter::once(OsString::from("nmstatectl")).chain(arguments.iter().cloned());
    let cli = match Cli::try_parse_from(argv) {
        Ok(cli) => cli,
        Err(error) => {
            // A closed output is no error.
            let _ = error.print();
            return match error.kind() {
                ErrorKind::DisplayHelp | ErrorKind::DisplayVersion => ExitCode::SUCCESS,
                _ => ExitCode::from(WRONG_USAGE),
            };
        }
    };
    let answered = match cli.command {
        _ if cli.version => Ok(version()),
        None => {
            terminal::remark("a command is missing, see nmstatectl --help\n");
            return ExitCode::from(WRONG_USAGE);
        }
        Some(command) => process::run(answer(command)).unwrap_or_else(|error| Err(Error::Start(error))),
    };
    match answered {
        Ok(text) => match terminal::print(&text) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::from(REFUSED),
        },
        Err(error) => {
            terminal::remark(format_args!("{error}\n"));
            ExitCode::from(REFUSED)
        }
    }
}

async fn answer(command: Command) -> Result<String, Error> {
    let is_kernel = matches!(
        command,
        Command::Show { kernel: true, .. } | Command::Apply { kernel: true, .. }
    );
    // In the handler's pod, commands and its probe use the handler's backend.
    let backend = if is_kernel {
        Backend::Kernel
    } else {
        Settings::read(settings::variable).backend
    };
    let engine = Engine::start(backend).map_err(Error::Start)?;
    match command {
        Command::Show {
            interface,
            json,
            running_config,
            show_secrets,
            ..
        } => {
            let state = engine.tool(Tool::Show {
                running_config_only: running_config,
                secrets: show_secrets,
            });
            let state = state.await?;
            match interface {
                None => written(&state, json),
                Some(name) => written(&of_interface(&state, &name)?, json),
            }
        }
        Command::Apply {
            files,
            no_verify,
            no_commit,
            timeout,
            memory_only,
            override_iface,
            show_secrets,
            ..
        } => {
            let options = Options {
                commit: !no_commit,
                timeout,
                verify: !no_verify,
                memory_only,
                replace: override_iface,
                secrets: show_secrets,
            };
            let files = if files.is_empty() {
                vec![STDIN.to_owned()]
            } else {
                files
            };
            let mut done = String::new();
            for file in files {
                let desired = read(&file)?;
                done += &written(&engine.tool(Tool::Apply { desired, options }).await?, false)?;
            }
            Ok(done)
        }
        Command::Commit { checkpoint } => Ok(named(&engine.tool(Tool::Commit(checkpoint)).await?)),
        Command::Rollback { checkpoint } => Ok(named(&engine.tool(Tool::Rollback(checkpoint)).await?)),
        Command::Policy {
            file,
            current,
            captured,
            output_captured,
            json,
        } => {
            let filled = engine.tool(Tool::Policy {
                policy: read(&file)?,
                current: current.as_deref().map(read).transpose()?,
                captured: captured.as_deref().map(states).transpose()?.unwrap_or_default(),
            });
            let filled = filled.await?;
            if let Some(file) = output_captured {
                let text = written(&cache(&filled["captured"]), json)?;
                fs::write(&file, text).map_err(|source| Error::File { file, source })?;
            }
            written(&filled["desired"], json)
        }
        Command::Statistic { file, current, json } => {
            let (desired, current) = (read(&file)?, current.as_deref().map(read).transpose()?);
            written(&engine.tool(Tool::Statistic { desired, current }).await?, json)
        }
        Command::Revert { file, current, json } => {
            let (desired, current) = (read(&file)?, current.as_deref().map(read).transpose()?);
            written(&engine.tool(Tool::Revert { desired, current }).await?, json)
        }
        Command::Configuration { file, json } => {
            written(&engine.tool(Tool::Configuration(read(&file)?)).await?, json)
        }
        Command::Format { file, json } => written(&engine.tool(Tool::Format(read(&file)?)).await?, json),
        Command::Version => Ok(version()),
    }
}

/// Reads a file or standard input, as YAML or JSON.
fn read(file: &str) -> Result<Value, Error> {
    let text = terminal::read(file).map_err(|source| Error::File {
        file: file.to_owned(),
        source,
    })?;
    // Documents that were copied from web pages contain no-break spaces.
    let text = text.replace('\u{a0}', " ");
    let value: Value = serde_yaml::from_str(&text).map_err(|source| Error::Malformed {
        file: file.to_owned(),
        source,
    })?;
    Ok(if value.is_null() { json!({}) } else { value })
}

/// Reads stored results of captures from a file that [`cache`] wrote.
fn states(file: &str) -> Result<Map<String, Value>, Error> {
    let Value::Object(cache) = read(file)? else {
        return Err(Error::Captured(file.to_owned()));
    };
    let states = cache.into_iter().map(|(name, mut entry)| {
        let state = entry.get_mut("state").map(Value::take);
        let state = state.ok_or_else(|| Error::Captured(file.to_owned()))?;
        Ok((name, state))
    });
    states.collect()
}

/// Results of captures, in the form of enactments.
fn cache(captured: &Value) -> Value {
    let now = Timestamp::now();
    let captured = captured.as_object().into_iter().flatten();
    let cache = captured.map(|(name, state)| (name.clone(), enactment::captured_state(state, now)));
    Value::Object(cache.collect())
}

/// One interface, its routes, and the rules for their tables.
fn of_interface(state: &Value, name: &str) -> Result<Value, Error> {
    let list = |section: &str, key: &str| -> Vec<Value> {
        let list = state.get(section).map(|section| &section[key]);
        list.and_then(Value::as_array).cloned().unwrap_or_default()
    };
    let is_of = |value: &Value, key: &str| value.get(key).and_then(Value::as_str) == Some(name);
    let interfaces = state.get("interfaces").and_then(Value::as_array);
    let found: Vec<&Value> = interfaces
        .into_iter()
        .flatten()
        .filter(|it| is_of(it, "name"))
        .collect();
    if found.is_empty() {
        return Err(Error::NoInterface(name.to_owned()));
    }
    let routes = |key: &str| -> Vec<Value> {
        let mut routes = list("routes", key);
        routes.retain(|route| is_of(route, "next-hop-interface"));
        routes
    };
    let (running, config) = (routes("running"), routes("config"));
    let tables: Vec<&Value> = config.iter().filter_map(|route| route.get("table-id")).collect();
    let mut rules = list("route-rules", "config");
    rules.retain(|rule| {
        rule.get("route-table")
            .is_some_and(|table| tables.contains(&table))
    });
    Ok(json!({
        "route-rules": { "config": rules },
        "routes": { "running": running, "config": config },
        "interfaces": found,
    }))
}

fn version() -> String {
    format!("{}\n", engine::program())
}

fn named(checkpoint: &Value) -> String {
    format!("{}\n", checkpoint.as_str().unwrap_or_default())
}

fn written(value: &Value, json: bool) -> Result<String, Error> {
    if json {
        let text = serde_json::to_string_pretty(value).map_err(|error| Error::Output(error.to_string()))?;
        return Ok(format!("{text}\n"));
    }
    let text = serde_yaml::to_string(value).map_err(|error| Error::Output(error.to_string()))?;
    Ok(format!("---\n{text}"))
}

#[cfg(test)]
mod tests;
