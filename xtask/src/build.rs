//! The development build of all programs: daemons, plugins, tests, and the programs of the tests' image.
//!
//! ```text
//! cargo build --workspace … ── JSON messages ──> Inventory: programs, as they are built
//!                          └── lints and errors ──> printed at the end
//! ```
//!
//! Cargo unifies the features of all packages that a command selects, so all commands select the workspace with its
//! tests. Clippy compiles the crates of the workspace: it reports lints during the build, so that lints need no second
//! build.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, bail};
use cluster::{Progress, run};
use serde_json::Value;

use crate::paths;

/// The selection of all development builds. `e2e` has few tests; their presence gives dependencies the same features as
/// a build with all tests.
const SELECTION: [&str; 2] = ["build", "--workspace"];
/// The program of all daemons.
pub(crate) const WEFT: &str = "weft";
/// The program of all plugins.
pub(crate) const CNI: &str = "weft-cni";
const PRODUCT: [&str; 6] = ["--bin", WEFT, "--bin", CNI, "--test", "e2e"];
const STAND_INS: [&str; 6] = [
    "--bin",
    kubevirt::HANDLER_STAND_IN,
    "--bin",
    kubevirt::LAUNCHER_STAND_IN,
    "--test",
    "e2e",
];
const PROGRAMS: [&str; 3] = ["--bins", "--test", "e2e"];
const EVERYTHING: [&str; 1] = ["--all-targets"];
/// Interval of progress reports.
const POLL: Duration = Duration::from_millis(200);

/// The extent of a build.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extent {
    /// The programs of an image.
    Product,
    /// The stand-ins for missing parts of KubeVirt.
    StandIns,
    /// Also measuring and testing programs.
    Programs,
    /// Also all tests.
    Everything,
}

/// A built program.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Program {
    /// The package.
    pub(crate) package: String,
    /// Name of the target: `weft`, or `unit` for the test program `tests/unit`.
    pub(crate) target: String,
    /// The kind of target.
    pub(crate) kind: Kind,
    /// The file.
    pub(crate) file: PathBuf,
    /// Directory of the package.
    pub(crate) dir: PathBuf,
}

/// The kind of a program's target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// A program of the product or its tests.
    Binary,
    /// The unit tests of a library or a program.
    UnitTests,
    /// Integration tests.
    IntegrationTests,
}

/// The programs of a running or finished build.
#[derive(Debug, Clone, Default)]
pub(crate) struct Inventory(Arc<(Mutex<Found>, Condvar)>);

#[derive(Debug, Default)]
struct Found {
    programs: Vec<Program>,
    /// The result, once the build ended.
    ended: Option<bool>,
}

impl Inventory {
    /// Waits until the requested programs are built, or the build ends.
    pub(crate) fn wait<T>(&self, mut wanted: impl FnMut(&[Program]) -> Option<T>) -> Option<T> {
        let (found, changed) = &*self.0;
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(wanted) = wanted(&found.programs) {
                return Some(wanted);
            }
            if found.ended.is_some() {
                return None;
            }
            found = changed.wait(found).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits for a program.
    pub(crate) fn binary(&self, name: &str) -> anyhow::Result<PathBuf> {
        let is_it = |program: &&Program| program.kind == Kind::Binary && program.target == name;
        self.wait(|programs| Some(programs.iter().find(is_it)?.file.clone()))
            .with_context(|| format!("{name} was not built"))
    }

    /// Waits for the end of the build and returns all programs. Empty if the build failed.
    pub(crate) fn all(&self) -> Option<Vec<Program>> {
        self.wait(|_| None::<()>);
        let found = self.found();
        let mut programs = found.programs.clone();
        programs.sort();
        found.ended?.then_some(programs)
    }

    fn found(&self) -> MutexGuard<'_, Found> {
        self.0.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, program: Program) {
        self.found().programs.push(program);
        self.0.1.notify_all();
    }

    fn end(&self, built: bool) {
        self.found().ended = Some(built);
        self.0.1.notify_all();
    }
}

/// The result of a build.
#[derive(Debug, Default)]
pub(crate) struct Built {
    /// Remarks of compiler and Clippy about the workspace's crates, each once.
    pub(crate) remarks: BTreeSet<String>,
    /// Number of compiled crates, and of all crates.
    pub(crate) compiled: usize,
    pub(crate) crates: usize,
}

/// Builds programs, and reports each as soon as it is built. Remarks are not an error here: the caller decides about
/// them.
pub(crate) fn build(
    extent: Extent,
    inventory: &Inventory,
    progress: &mut dyn Progress,
) -> anyhow::Result<Built> {
    let built = try_build(extent, inventory, progress);
    inventory.end(built.is_ok());
    built
}

/// Builds the programs of an extent and returns the inventory.
pub(crate) fn programs(extent: Extent, progress: &mut dyn Progress) -> anyhow::Result<Inventory> {
    progress.step("building the programs");
    let inventory = Inventory::default();
    build(extent, &inventory, progress)?;
    Ok(inventory)
}

fn command(extent: Extent) -> Command {
    let mut cargo = paths::cargo();
    cargo.args(SELECTION).args(match extent {
        Extent::Product => &PRODUCT[..],
        Extent::StandIns => &STAND_INS[..],
        Extent::Programs => &PROGRAMS[..],
        Extent::Everything => &EVERYTHING[..],
    });
    cargo.args(["--keep-going", "--message-format", "json"]);
    cargo.env("RUSTC_WORKSPACE_WRAPPER", "clippy-driver");
    // By default, Cargo prints its count only to terminals.
    cargo.envs([
        ("CARGO_TERM_PROGRESS_WHEN", "always"),
        ("CARGO_TERM_PROGRESS_WIDTH", "120"),
    ]);
    cargo
}

fn try_build(extent: Extent, inventory: &Inventory, progress: &mut dyn Progress) -> anyhow::Result<Built> {
    let log = paths::target().join(format!("build-{}.log", std::process::id()));
    std::fs::create_dir_all(paths::target()).context("cannot create the folder of builds")?;
    let file = std::fs::File::create(&log).with_context(|| format!("cannot create {}", log.display()))?;
    let mut cargo = command(extent);
    cargo.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(file);
    let mut child = cargo.spawn().context("cannot run cargo")?;
    let messages = child.stdout.take().context("cargo has no output")?;
    let found = inventory.clone();
    let reader = std::thread::spawn(move || read(BufReader::new(messages), &found));
    while !reader.is_finished() {
        progress.tick(&counted(&run::newest_line(&log)));
        std::thread::sleep(POLL);
    }
    let built = reader
        .join()
        .map_err(|_| anyhow::anyhow!("cannot read the messages of cargo"))??;
    let status = child.wait().context("cannot wait for cargo")?;
    if !status.success() {
        let remarks: String = built.remarks.into_iter().collect();
        let messages = std::fs::read_to_string(&log).unwrap_or_default();
        bail!(
            "it does not build ({status})\n{remarks}{}",
            run::tail(&outcome(&messages))
        );
    }
    let _ = std::fs::remove_file(&log);
    Ok(built)
}

/// Parses Cargo's messages: one JSON object per line.
fn read(messages: impl BufRead, inventory: &Inventory) -> anyhow::Result<Built> {
    let mut built = Built::default();
    for line in messages.lines() {
        let line = line.context("cannot read the messages of cargo")?;
        let message: Value = serde_json::from_str(&line).context("cannot parse a message of cargo")?;
        match message["reason"].as_str() {
            Some("compiler-artifact") => {
                built.crates += 1;
                built.compiled += usize::from(message["fresh"] == false);
                if let Some(program) = program(&message) {
                    inventory.add(program);
                }
            }
            Some("compiler-message") => {
                let rendered = message["message"]["rendered"].as_str().unwrap_or_default();
                // Cargo repeats the number of remarks at the end.
                if message["message"]["spans"]
                    .as_array()
                    .is_some_and(|spans| !spans.is_empty())
                {
                    built.remarks.insert(rendered.to_owned());
                }
            }
            _ => {}
        }
    }
    Ok(built)
}

fn program(artifact: &Value) -> Option<Program> {
    let file = PathBuf::from(artifact["executable"].as_str()?);
    let target = &artifact["target"];
    let kind = if artifact["profile"]["test"] != true {
        Kind::Binary
    } else if target["kind"][0] == "test" {
        Kind::IntegrationTests
    } else {
        Kind::UnitTests
    };
    let manifest = Path::new(artifact["manifest_path"].as_str()?);
    Some(Program {
        package: package(artifact["package_id"].as_str()?).to_owned(),
        target: target["name"].as_str()?.to_owned(),
        kind,
        file,
        dir: manifest.parent()?.to_owned(),
    })
}

/// Returns the name in `path+file:///w/crates/nmstate#weft-nmstate@0.1.0`, or in `…/crates/api#0.1.0`.
fn package(id: &str) -> &str {
    let (path, version) = id.rsplit_once('#').unwrap_or((id, ""));
    match version.split_once('@') {
        Some((name, _)) => name,
        None => path.rsplit('/').next().unwrap_or(path),
    }
}

/// Returns Cargo's text without the list of current crates.
fn outcome(messages: &str) -> String {
    let is_progress = |line: &str| {
        ["Building ", "Compiling "]
            .iter()
            .any(|verb| line.starts_with(verb))
    };
    let lines = messages.split(['\n', '\r']).map(str::trim);
    let lines = lines.filter(|line| !line.is_empty() && !is_progress(line));
    lines.collect::<Vec<_>>().join("\n")
}

/// Returns Cargo's count, `Building [===>   ] 137/368: serde, …`, as text.
fn counted(line: &str) -> String {
    let count = line.split_once("] ").and_then(|(_, rest)| rest.split_once(": "));
    match count.and_then(|(count, crates)| Some((count.split_once('/')?, crates))) {
        Some(((done, all), crates)) => format!("{done} of {all} crates: {crates}"),
        None => line.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn artifact(id: &str, target: &Value, test: bool, executable: Option<&str>) -> String {
        let message = json!({
            "reason": "compiler-artifact", "package_id": id, "manifest_path": "/w/crates/x/Cargo.toml",
            "target": target, "profile": { "test": test }, "executable": executable, "fresh": false,
        });
        format!("{message}\n")
    }

    #[test]
    fn programs_are_identified_by_the_messages_of_cargo() {
        let kind = |kind: &str, name: &str| json!({ "kind": [kind], "name": name });
        let messages = [
            artifact("registry+x#serde@1.0.0", &kind("lib", "serde"), false, None),
            artifact(
                "path+file:///w/crates/nmstate#weft-nmstate@0.1.0",
                &kind("lib", "weft_nmstate"),
                true,
                Some("/t/a"),
            ),
            artifact(
                "path+file:///w/crates/plugins#0.1.0",
                &kind("bin", "weft-cni"),
                false,
                Some("/t/weft-cni"),
            ),
            artifact(
                "path+file:///w/crates/plugins#0.1.0",
                &kind("test", "vm"),
                true,
                Some("/t/vm-1"),
            ),
            format!(
                "{}\n",
                json!({ "reason": "compiler-message", "message": { "rendered": "warning: x", "spans": [1] } })
            ),
            format!(
                "{}\n",
                json!({ "reason": "compiler-message", "message": { "rendered": "1 warning", "spans": [] } })
            ),
        ];
        let inventory = Inventory::default();
        let built = read(messages.concat().as_bytes(), &inventory).unwrap();
        inventory.end(true);
        assert_eq!((built.crates, built.compiled), (4, 4));
        assert_eq!(built.remarks, BTreeSet::from(["warning: x".to_owned()]));
        let found: Vec<_> = inventory
            .all()
            .unwrap()
            .into_iter()
            .map(|program| (program.package, program.target, program.kind))
            .collect();
        let expected = |package: &str, target: &str, kind| (package.to_owned(), target.to_owned(), kind);
        assert_eq!(
            found,
            [
                expected("plugins", "vm", Kind::IntegrationTests),
                expected("plugins", "weft-cni", Kind::Binary),
                expected("weft-nmstate", "weft_nmstate", Kind::UnitTests),
            ]
        );
        assert_eq!(inventory.binary("weft-cni").unwrap(), Path::new("/t/weft-cni"));
        assert!(inventory.binary("vm").is_err(), "tests are no binaries");
    }

    #[test]
    fn wait_for_a_program_ends_when_the_build_fails() {
        let inventory = Inventory::default();
        inventory.end(false);
        assert!(inventory.binary("weft").is_err());
        assert_eq!(inventory.all(), None);
    }

    #[test]
    fn count_of_cargo_is_printed_as_text() {
        let line = "    Building [====>      ] 137/368: serde, kube(bin)";
        assert_eq!(counted(line), "137 of 368 crates: serde, kube(bin)");
        assert_eq!(counted("   Compiling serde v1.0.0"), "   Compiling serde v1.0.0");
    }

    #[test]
    fn failed_build_prints_its_errors_without_the_progress() {
        let messages = "   Compiling serde v1.0.0\r    Building [=>  ] 1/9: serde\r\nerror: could not compile `multus`\n\
                    warning: build failed\n   Compiling kube v5.0.0\n";
        assert_eq!(
            outcome(messages),
            "error: could not compile `multus`\nwarning: build failed"
        );
    }

    #[test]
    fn builds_select_the_same_features() {
        for extent in [
            Extent::Product,
            Extent::StandIns,
            Extent::Programs,
            Extent::Everything,
        ] {
            let command = command(extent);
            let arguments: Vec<_> = command.get_args().collect();
            assert!(arguments.contains(&"--workspace".as_ref()), "{arguments:?}");
            assert!(!arguments.contains(&"--package".as_ref()), "{arguments:?}");
            // Dependencies of tests are in all builds or in none.
            let tests = ["--test", "--all-targets"];
            assert!(
                tests.iter().any(|tests| arguments.contains(&tests.as_ref())),
                "{arguments:?}"
            );
        }
    }
}
