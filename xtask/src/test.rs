//! `cargo xtask test`: everything that must hold, the least powerful first.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::num::NonZero;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Output, Stdio};
use std::thread::{self, JoinHandle};

use anyhow::Context;
use cluster::kubernetes::{Program, Programs};
use cluster::{Cluster, Helm, Home, Options, Packages, Progress, Steps, run};

use crate::libtest::{Reader, Totals, listed};
use crate::{explain, guest, image, install, paths};

/// What to test.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The tiers to run, all of them by default
    #[arg(value_enum)]
    tiers: Vec<Tier>,
    /// Keep the cluster of the e2e tier; it is also kept after a failure
    #[arg(long)]
    keep: bool,
}

/// Kinds of tests by what they need, least powerful first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(crate) enum Tier {
    /// Pure tests and the checks of the code itself; need nothing
    Unit,
    /// Plugins and netlink against the kernel, in network namespaces of their own; need root
    Namespaces,
    /// Components against a real API server; need Kubernetes' programs
    Api,
    /// What this machine's kernel lacks, in a virtual machine; needs Debian
    Vm,
    /// Everything on a two-node cluster; needs root
    E2e,
}

impl Tier {
    const ALL: [Self; 5] = [Self::Unit, Self::Namespaces, Self::Api, Self::Vm, Self::E2e];

    /// Name of its test programs: `tests/NAME/main.rs` or `tests/NAME.rs` in a crate.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Unit => "unit",
            Self::Namespaces => "namespaces",
            Self::Api => "api",
            Self::Vm => "vm",
            Self::E2e => "e2e",
        }
    }

    const fn needs_root(self) -> bool {
        matches!(self, Self::Namespaces | Self::E2e)
    }
}

/// Name of the cluster that the e2e tier uses unless `WEFT_CLUSTER` says otherwise: never somebody's demo.
const CLUSTER: &str = "test";

/// Runs the tiers and prints the counts as the last line.
pub(crate) fn run(args: &Args) -> ExitCode {
    let mut steps = Steps::new();
    let tiers: BTreeSet<Tier> = if args.tiers.is_empty() {
        Tier::ALL.into()
    } else {
        args.tiers.iter().copied().collect()
    };
    let mut totals = Totals::default();
    let mut left_out = Vec::new();
    let mut broken = Vec::new();
    // From the beginning: where tests are compiled too, nobody waits for the processors that it takes, and while it is
    // linked, on one of them, the tests of all other tiers run.
    let mut image = (tiers.contains(&Tier::E2e) && is_root())
        .then(Beside::image)
        .flatten();
    let mut machine = None;
    for tier in &tiers {
        let tier = *tier;
        if tier == Tier::Api && tiers.contains(&Tier::Vm) {
            machine = Beside::tier(Tier::Vm);
        }
        if tier == Tier::E2e
            && let Some(image) = image.take()
        {
            steps.step("waiting for the image");
            // What is wrong with it the tier tells, which builds what is missing.
            let _ = image.output();
        }
        let done = if tier == Tier::Vm
            && let Some(machine) = machine.take()
        {
            steps.step("waiting for tier vm, which began with tier api");
            machine.totals().map(Outcome::Ran)
        } else if tier.needs_root() && !is_root() {
            Ok(Outcome::LeftOut("needs root".to_owned()))
        } else {
            run_tier(tier, args.keep, &mut steps)
        };
        let done = done.and_then(|outcome| match outcome {
            Outcome::Ran(totals) => Ok(totals),
            Outcome::LeftOut(why) => {
                left_out.push(format!("tier {}: {why}", tier.name()));
                count(tier)
            }
        });
        match done {
            Ok(done) => totals += done,
            Err(error) => {
                broken.push(format!("tier {}: {error:#}", tier.name()));
                totals.failed += 1;
            }
        }
    }
    for problem in &broken {
        println!("\n{problem}");
    }
    for reason in &left_out {
        println!("\nleft out: {reason}");
    }
    println!("\n{totals}");
    // A failure is not an error of this program: the counts stay the last line.
    if totals.failed > 0 {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// This program once more, on processors that a tier leaves idle.
struct Beside(JoinHandle<std::io::Result<Output>>);

impl Beside {
    /// Builds the image, which takes minutes: for the e2e tier.
    fn image() -> Option<Self> {
        let mut build = Command::new(itself());
        build.arg("image");
        Self::start(build)
    }

    /// Runs a tier. What it prints is kept until somebody asks, or two tiers could not be told apart.
    fn tier(tier: Tier) -> Option<Self> {
        let mut run = Command::new(itself());
        run.args(["test", tier.name()]);
        Self::start(run)
    }

    fn start(mut command: Command) -> Option<Self> {
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let child = command.spawn().ok()?;
        Some(Self(thread::spawn(|| child.wait_with_output())))
    }

    /// Waits for its end.
    fn output(self) -> anyhow::Result<String> {
        let ended = self
            .0
            .join()
            .map_err(|_| anyhow::anyhow!("nobody waited for its end"))?;
        let ended = ended.context("cannot wait for its end")?;
        Ok(String::from_utf8_lossy(&ended.stdout).into_owned())
    }

    /// Shows what the tier printed, which ends with its counts.
    fn totals(self) -> anyhow::Result<Totals> {
        let output = self.output()?;
        let output = output.trim_end();
        let (shown, counts) = output.rsplit_once('\n').unwrap_or(("", output));
        println!("{shown}");
        Totals::read(counts).with_context(|| format!("it ended with \"{counts}\" instead of its counts"))
    }
}

/// This program, whose path may be that of a newer build by now.
fn itself() -> String {
    format!("/proc/{}/exe", std::process::id())
}

/// How a tier ended.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Its tests ran.
    Ran(Totals),
    /// This machine cannot run them, for this reason.
    LeftOut(String),
}

fn run_tier(tier: Tier, keep: bool, steps: &mut Steps) -> anyhow::Result<Outcome> {
    steps.step(&format!("tier {}", tier.name()));
    let totals = match tier {
        Tier::Unit => {
            let mut totals = checks(steps);
            // Root's unit tests of packet rules have them read by nft.
            if is_root() {
                Packages::ensure(&Home::from_env()?, steps)?;
            }
            totals += cargo_test(tier, &[], steps)?;
            totals
        }
        Tier::Namespaces => {
            // Here rather than in the first test that asks, because it may take minutes.
            let home = Home::from_env()?;
            Packages::ensure(&home, steps)?;
            Packages::ensure_network_manager(&home, steps)?;
            cargo_test(tier, &[], steps)?
        }
        Tier::Api => {
            // Here rather than in the first test that asks, because it may take minutes.
            let home = Home::from_env()?;
            Programs::ensure(&home, &Program::API, steps)?;
            match Packages::ensure_prometheus(&home, steps) {
                // The tests that need it say what they leave out.
                Err(cluster::Error::Missing(_)) => {}
                other => drop(other?),
            }
            Helm::ensure(&home, steps)?;
            cargo_test(tier, &[], steps)?
        }
        Tier::Vm => return guest::run(&programs(tier)?.0, steps),
        Tier::E2e => {
            let mut options = Options::from_env()?;
            if std::env::var_os("WEFT_CLUSTER").is_none() {
                CLUSTER.clone_into(&mut options.name);
            }
            let name = options.name.clone();
            let cluster = Cluster::new(options)?;
            let built = image::build(steps)?;
            eprint!("{}", built.sizes());
            cluster.up(steps)?;
            let installed =
                install::install(&cluster, &built, steps).and_then(|()| install::bridges(&cluster, steps));
            if let Err(error) = installed {
                eprint!("{}", explain::cluster(&cluster, &[install::NAMESPACE]));
                return Err(error);
            }
            let environment = [
                ("WEFT_CLUSTER", PathBuf::from(&name)),
                ("WEFT_E2E_IMAGE", PathBuf::from(&built.reference)),
                ("WEFT_E2E_CNI_BINARY", image::cni_binary()),
                ("KUBECONFIG", cluster.kubeconfig()),
            ];
            let totals = cargo_test(tier, &environment, steps)?;
            if totals.failed == 0 && !keep {
                cluster.down(steps)?;
            } else {
                eprintln!(
                    "the cluster is kept: export KUBECONFIG={}",
                    cluster.kubeconfig().display()
                );
                eprintln!("remove it with: WEFT_CLUSTER={name} cargo xtask cluster down");
            }
            totals
        }
    };
    Ok(Outcome::Ran(totals))
}

/// Formatting, lints and citations: one test each. That generated files are fresh is tested beside their
/// generators.
fn checks(steps: &mut Steps) -> Totals {
    let mut totals = Totals::default();
    let mut check = |name: &str, outcome: anyhow::Result<()>| match outcome {
        Ok(()) => totals.passed += 1,
        Err(error) => {
            println!("{name}: FAILED\n{error:#}");
            totals.failed += 1;
        }
    };
    let quiet = |args: &[&str]| -> anyhow::Result<()> {
        run::output(paths::cargo().args(args))?;
        Ok(())
    };
    steps.step("checking the formatting");
    check(
        "formatting (repair: cargo fmt --all)",
        quiet(&["fmt", "--all", "--check"]),
    );
    steps.step("checking lints");
    let log = paths::target().join(format!("clippy-{}.log", std::process::id()));
    for (name, which) in [
        ("lints", &TOGETHER[..]),
        ("lints of what is built apart", &["--package", APART]),
    ] {
        let mut clippy = paths::cargo();
        clippy.arg("clippy").args(which);
        clippy.args(["--all-targets", "--", "--deny", "warnings"]);
        check(name, run::watched(&mut clippy, &log, steps).map_err(Into::into));
    }
    steps.step("checking citations of conformance cases");
    check("citations", crate::cases::check());
    totals
}

/// Test programs of a tier: the packages that have one and the names of the programs.
fn programs(tier: Tier) -> anyhow::Result<(BTreeSet<String>, BTreeSet<String>)> {
    let metadata = run::output(paths::cargo().args(["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: serde_json::Value =
        serde_json::from_str(&metadata).context("cannot read what Cargo says about the workspace")?;
    Ok(select(tier, &metadata))
}

fn select(tier: Tier, metadata: &serde_json::Value) -> (BTreeSet<String>, BTreeSet<String>) {
    let mut packages = BTreeSet::new();
    let mut programs = BTreeSet::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        for target in package["targets"].as_array().into_iter().flatten() {
            let is_test = target["kind"]
                .as_array()
                .into_iter()
                .flatten()
                .any(|kind| kind == "test");
            let (Some(package), Some(program)) = (package["name"].as_str(), target["name"].as_str()) else {
                continue;
            };
            let own = Tier::ALL
                .into_iter()
                .find(|tier| tier.name() == program)
                .unwrap_or(Tier::Unit);
            if is_test && own == tier {
                packages.insert(package.to_owned());
                programs.insert(program.to_owned());
            }
        }
    }
    (packages, programs)
}

/// The package that is never built in one command with others (see the head of its Cargo.toml).
pub(crate) const APART: &str = "weft-nmstate";

/// All other packages.
const TOGETHER: [&str; 3] = ["--workspace", "--exclude", APART];

/// The packages that go into one command, command by command.
pub(crate) fn commands(packages: &BTreeSet<String>) -> Vec<BTreeSet<String>> {
    let (apart, together): (BTreeSet<_>, BTreeSet<_>) =
        packages.iter().cloned().partition(|name| name == APART);
    let mut commands = vec![together, apart];
    commands.retain(|packages| !packages.is_empty());
    commands
}

/// The commands that run a tier: none when it has no tests.
fn tests(tier: Tier) -> anyhow::Result<Vec<Command>> {
    let (packages, programs) = programs(tier)?;
    let test = || {
        let mut cargo = paths::cargo();
        cargo.args(["test", "--no-fail-fast"]);
        cargo
    };
    let integration = |cargo: &mut Command| {
        cargo.args(programs.iter().flat_map(|name| ["--test", name]));
    };
    if tier != Tier::Unit {
        let commands = commands(&packages).into_iter().map(|packages| {
            let mut cargo = test();
            cargo.args(packages.iter().flat_map(|name| ["--package", name]));
            integration(&mut cargo);
            cargo
        });
        return Ok(commands.collect());
    }
    let mut together = test();
    together.args(TOGETHER).args(["--lib", "--bins"]);
    integration(&mut together);
    let mut apart = test();
    apart.args(["--package", APART, "--lib", "--bins"]);
    Ok(vec![together, apart])
}

/// How many tests of a program run at a time.
const TEST_THREADS: &str = "RUST_TEST_THREADS";
/// Tests against an API server wait most of the time.
const API_TESTS_PER_PROCESSOR: usize = 4;

/// Runs a tier's tests and shows what matters of their output.
fn cargo_test(tier: Tier, environment: &[(&str, PathBuf)], steps: &mut Steps) -> anyhow::Result<Totals> {
    steps.step(&format!("running the tests of tier {}", tier.name()));
    let mut totals = Totals::default();
    for cargo in tests(tier)? {
        totals += run_tests(tier, cargo, environment)?;
    }
    Ok(totals)
}

fn run_tests(tier: Tier, mut cargo: Command, environment: &[(&str, PathBuf)]) -> anyhow::Result<Totals> {
    cargo
        .args(["--", "--show-output"])
        .envs(environment.iter().map(|(name, value)| (name, value)));
    if tier == Tier::Api && std::env::var_os(TEST_THREADS).is_none() {
        let processors = thread::available_parallelism().map_or(1, NonZero::get);
        cargo.env(TEST_THREADS, (API_TESTS_PER_PROCESSOR * processors).to_string());
    }
    let mut child = cargo
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context("cannot run cargo test")?;
    let mut reader = Reader::default();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line.context("cannot read the output of cargo test")?;
            if let Some(shown) = reader.line(&String::from_utf8_lossy(&line)) {
                println!("{shown}");
            }
        }
    }
    let status = child.wait().context("cannot wait for cargo test")?;
    let mut totals = reader.totals();
    if !status.success() && totals.failed == 0 {
        // Something did not compile, or a test program died: no result line tells.
        println!("`{}` failed ({status})", run::shown(&cargo));
        totals.failed += 1;
    }
    Ok(totals)
}

/// Counts a tier's tests as skipped, without running them.
fn count(tier: Tier) -> anyhow::Result<Totals> {
    let mut totals = Totals::default();
    for mut cargo in tests(tier)? {
        totals.skipped += listed(&run::output(cargo.args(["--", "--list"]))?);
    }
    Ok(totals)
}

pub(crate) fn is_root() -> bool {
    // Nothing but root can read this directory.
    std::fs::read_dir("/proc/1/fd").is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_belong_to_the_tier_of_their_name_and_else_to_unit() {
        let metadata = serde_json::json!({ "packages": [
            { "name": "plugins", "targets": [
                { "name": "plugins", "kind": ["lib"] },
                { "name": "namespaces", "kind": ["test"] },
                { "name": "tree", "kind": ["test"] },
            ] },
            { "name": "operator", "targets": [{ "name": "api", "kind": ["test"] }] },
        ] });
        let names = |values: &[&str]| -> BTreeSet<String> {
            values.iter().map(|value| (*value).to_owned()).collect()
        };
        assert_eq!(
            select(Tier::Namespaces, &metadata),
            (names(&["plugins"]), names(&["namespaces"]))
        );
        assert_eq!(
            select(Tier::Unit, &metadata),
            (names(&["plugins"]), names(&["tree"]))
        );
        assert_eq!(
            select(Tier::Api, &metadata),
            (names(&["operator"]), names(&["api"]))
        );
        assert_eq!(select(Tier::E2e, &metadata), (names(&[]), names(&[])));
    }
}
