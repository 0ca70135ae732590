//! The command line of the engine, as probes and runbooks of established installations call it (nmstate §4.6).

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

/// Exit code of what was refused: the data were wrong, as sysexits says it.
const REFUSED: u8 = 65;
/// Exit code of a wrong command line.
const WRONG_USAGE: u8 = 2;
/// How long a change that is not committed stays, in seconds.
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
    /// Accepted: what is logged stands in errors
    #[arg(short, action = clap::ArgAction::Count, global = true)]
    verbose: u8,
    /// Accepted: what is logged stands in errors
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
        /// This interface only, with its routes
        #[arg(value_name = "IFNAME")]
        interface: Option<String>,
        /// JSON instead of YAML
        #[arg(long)]
        json: bool,
        /// What the kernel knows, without NetworkManager
        #[arg(short, long)]
        kernel: bool,
        /// Without what was leased or learned
        #[arg(short, long)]
        running_config: bool,
        /// With passwords and keys
        #[arg(short, long)]
        show_secrets: bool,
    },
    /// Make the network what documents or policies say
    #[command(aliases = ["a", "set"])]
    Apply {
        /// Files, one after the other [default: standard input]
        #[arg(value_name = "FILE")]
        files: Vec<String>,
        /// By the kernel alone: nothing lasts, nothing is rolled back
        #[arg(short, long)]
        kernel: bool,
        /// Do not check that the host became what was asked for
        #[arg(long)]
        no_verify: bool,
        /// Undo the change when the time is over, unless it is committed
        #[arg(long)]
        no_commit: bool,
        /// That time, in seconds
        #[arg(short, long, default_value_t = TIMEOUT)]
        timeout: u32,
        /// Forget the change with the next start of the host
        #[arg(long)]
        memory_only: bool,
        /// Reset what is not said of an interface
        #[arg(long)]
        override_iface: bool,
        /// Print passwords and keys
        #[arg(short, long)]
        show_secrets: bool,
    },
    /// Keep what was applied without commit
    Commit {
        /// The checkpoint [default: the last one]
        #[arg(default_value = "", hide_default_value = true)]
        checkpoint: String,
    },
    /// Undo what was applied without commit
    Rollback {
        /// The checkpoint [default: the last one]
        #[arg(default_value = "", hide_default_value = true)]
        checkpoint: String,
    },
    /// Print the document that a policy means
    #[command(alias = "p")]
    Policy {
        /// Policy file
        #[arg(value_name = "FILE", default_value = STDIN)]
        file: String,
        /// State that captures look at [default: that of this host]
        #[arg(short, long, value_name = "FILE")]
        current: Option<String>,
        /// What captures found before; they are not evaluated
        #[arg(short = 'a', long, value_name = "FILE")]
        captured: Option<String>,
        /// Write what captures found
        #[arg(short, long, value_name = "FILE")]
        output_captured: Option<String>,
        /// JSON instead of YAML
        #[arg(long)]
        json: bool,
    },
    /// Print topologies and features that a document uses
    #[command(alias = "st")]
    Statistic {
        /// Document
        #[arg(value_name = "FILE", default_value = STDIN)]
        file: String,
        /// State before it [default: that of this host]
        #[arg(short, long, value_name = "FILE")]
        current: Option<String>,
        /// JSON instead of YAML
        #[arg(long)]
        json: bool,
    },
    /// Print what undoes a document
    #[command(name = "gr", aliases = ["gen-revert", "generate-revert"])]
    Revert {
        /// Document
        #[arg(value_name = "FILE", default_value = STDIN)]
        file: String,
        /// State before it [default: that of this host]
        #[arg(short, long, value_name = "FILE")]
        current: Option<String>,
        /// JSON instead of YAML
        #[arg(long)]
        json: bool,
    },
    /// Print files that configure a host so before it starts
    #[command(name = "gc", alias = "gen-conf")]
    Configuration {
        /// Document
        #[arg(value_name = "FILE", default_value = STDIN)]
        file: String,
        /// JSON instead of YAML
        #[arg(long)]
        json: bool,
    },
    /// Check a document or a policy, and print it as the library writes it
    #[command(aliases = ["f", "fmt"])]
    Format {
        /// Document or policy
        #[arg(value_name = "FILE", default_value = STDIN)]
        file: String,
        /// JSON instead of YAML
        #[arg(long)]
        json: bool,
    },
    /// Print the version
    Version,
}

/// Why there is no answer.
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

/// Runs with these arguments, the program's name apart.
pub fn run(arguments: &[OsString]) -> ExitCode {
    let argv = std::iter::once(OsString::from("nmstatectl")).chain(arguments.iter().cloned());
    let cli = match Cli::try_parse_from(argv) {
        Ok(cli) => cli,
        Err(error) => {
            // Whoever closed the output has no need of the text.
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
            eprintln!("a command is missing, see nmstatectl --help");
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
            eprintln!("{error}");
            ExitCode::from(REFUSED)
        }
    }
}

async fn answer(command: Command) -> Result<String, Error> {
    let is_kernel = matches!(
        command,
        Command::Show { kernel: true, .. } | Command::Apply { kernel: true, .. }
    );
    // In the handler's pod, its probe among them, hosts are read in the handler's way.
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

/// A file or standard input, as YAML or JSON.
fn read(file: &str) -> Result<Value, Error> {
    let text = terminal::read(file).map_err(|source| Error::File {
        file: file.to_owned(),
        source,
    })?;
    // Documents that were copied from web pages have spaces that are none.
    let text = text.replace('\u{a0}', " ");
    let value: Value = serde_yaml::from_str(&text).map_err(|source| Error::Malformed {
        file: file.to_owned(),
        source,
    })?;
    Ok(if value.is_null() { json!({}) } else { value })
}

/// What captures found, from a file as [`cache`] makes it.
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

/// What captures found, as enactments have it.
fn cache(captured: &Value) -> Value {
    let now = Timestamp::now();
    let captured = captured.as_object().into_iter().flatten();
    let cache = captured.map(|(name, state)| (name.clone(), enactment::captured_state(state, now)));
    Value::Object(cache.collect())
}

/// One interface, and routes through it with the rules for their tables.
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
