//! Measures `weft-cni` beside Debian's CNI plugins and the bare kernel: `cargo xtask bench cni`.
//!
//! ```text
//!   this process (separate namespaces)
//!      ├── host "ours"     <── weft-cni, one process per call
//!      ├── host "theirs"   <── Debian's plugin, one process per call      each attaches its own containers,
//!      └── host "floor"    <── bare netlink from this process             in turn
//! ```
//!
//! Built without optimisation, for fast builds: the measured parts of this program are the start of a process by the C
//! library, a write, reads and a wait, equal for both, and a few netlink requests for the kernel's floor, whose
//! encoding takes microseconds.

mod attach;
mod call;
mod case;
mod contest;
mod stage;
mod statistics;
mod table;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use anyhow::Context;
use clap::Parser;
use cluster::{Home, Packages, Steps, run};

use crate::call::Plugins;
use crate::contest::Arena;
use crate::stage::{Scratch, Stage};

/// Plugins that are called, directly or by other plugins.
const PLUGINS: [&str; 10] = [
    "bandwidth",
    "bridge",
    "firewall",
    "host-local",
    "ipvlan",
    "macvlan",
    "portmap",
    "ptp",
    "static",
    "tuning",
];
/// Package of Debian's plugins.
const PACKAGE: &str = "containernetworking-plugins";

#[derive(Debug, Parser)]
struct Args {
    /// The measured plugins: a `weft-cni`
    #[arg(long)]
    ours: PathBuf,
    /// Directory of the plugins for comparison, by default Debian's. With links to another `weft-cni`, two builds are
    /// compared: copy both programs first, because the layout of a file in the page cache changes a start by 5 %. No
    /// package is downloaded then, and plugins find `nft` and `iptables` by PATH
    #[arg(long, value_name = "DIR")]
    theirs: Option<PathBuf>,
    /// Pairs of attachments per case, one by each plugin
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    pairs: u32,
    /// Measure attachments through multus instead, with this `weft`: `cargo xtask bench attach`
    #[arg(long, value_name = "WEFT")]
    attach: Option<PathBuf>,
    /// Use a real API server with `--attach`, instead of a stand-in that answers at once
    #[arg(long, requires = "attach")]
    api_server: bool,
    /// Cases to measure. Default: all. With `--attach`, cases whose names start with these
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
}

fn main() -> ExitCode {
    match measure(&Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn measure(args: &Args) -> anyhow::Result<()> {
    let mut steps = Steps::new();
    let packages = match args.theirs {
        Some(_) => None,
        None => Some(Packages::ensure(&Home::from_env()?, &mut steps)?),
    };
    let environment = environment(packages.as_ref());
    let scratch = Scratch::new()?;
    let arena = Arena {
        ours: Plugins {
            dir: links(&args.ours, scratch.path())?,
            environment: environment.clone(),
        },
        theirs: Plugins {
            dir: upstream(args, packages.as_ref()),
            environment,
        },
        nft: packages
            .as_ref()
            .map_or_else(|| "nft".into(), |packages| packages.file("usr/sbin/nft")),
        scratch: scratch.path().to_owned(),
        pairs: args.pairs,
    };
    println!("{}", facts(args, packages.as_ref())?);
    if let Some(weft) = &args.attach {
        let pairs = usize::try_from(args.pairs).unwrap_or(usize::MAX);
        let programs = attach::Programs {
            weft,
            plugins: &args.ours,
            theirs: &arena.theirs.dir,
        };
        return attach::measure(
            &programs,
            &args.cases,
            pairs,
            args.api_server,
            scratch.path(),
            &mut steps,
        );
    }
    let cases = case::chosen(&args.cases).map_err(anyhow::Error::msg)?;
    let mut stage = Stage::enter()?;
    for case in cases {
        if let Some(reason) = Arena::lacking(case, &mut stage)? {
            println!("\n{}\nskipped: {reason}", case.name);
            continue;
        }
        let outcome = arena.measure(case, &mut stage, &mut steps)?;
        print!("{}", table::table(case.name, &outcome));
    }
    Ok(())
}

/// Returns the directory of the plugins for comparison.
fn upstream(args: &Args, packages: Option<&Packages>) -> PathBuf {
    let of_package = packages.map(|packages| packages.file("usr/lib/cni"));
    args.theirs.clone().or(of_package).unwrap_or_default()
}

/// Returns a directory in which `program` has the names of the plugins.
fn links(program: &Path, scratch: &Path) -> anyhow::Result<PathBuf> {
    let program = program
        .canonicalize()
        .with_context(|| format!("cannot find {}", program.display()))?;
    let dir = scratch.join("plugins");
    fs::create_dir(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
    for name in PLUGINS {
        symlink(&program, dir.join(name)).with_context(|| format!("cannot link {name}"))?;
    }
    Ok(dir)
}

/// Returns the variables with which plugins run `nft` and `iptables`. Both sides get them.
fn environment(packages: Option<&Packages>) -> Vec<(&'static str, OsString)> {
    let system = ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from);
    let own = packages
        .and_then(Packages::unpacked)
        .map(|root| [root.join("usr/sbin"), root.join("usr/bin")]);
    let path = own.into_iter().flatten().chain(system);
    let mut environment = vec![("PATH", std::env::join_paths(path).unwrap_or_default())];
    let variables = packages.map(Packages::variables).unwrap_or_default();
    environment.extend(variables.into_iter().map(|(name, value)| (name, value.into())));
    environment
}

/// Returns the environment that results depend on.
fn facts(args: &Args, packages: Option<&Packages>) -> anyhow::Result<String> {
    let kernel = rustix::system::uname();
    let cores = std::thread::available_parallelism().context("cannot count processors")?;
    let size = fs::metadata(&args.ours)
        .with_context(|| format!("cannot read {}", args.ours.display()))?
        .len();
    let theirs = match &args.theirs {
        Some(dir) => dir.display().to_string(),
        None => format!(
            "{PACKAGE} {}",
            packages
                .and_then(version)
                .unwrap_or_else(|| "of unknown version".to_owned())
        ),
    };
    Ok(format!(
        "Linux {}, {cores} cores, {} pairs; weft-cni {} of {} KiB, {theirs}\n\
         Absolute times are this machine's and this minute's noise; ratios of one run are what counts.",
        kernel.release().to_string_lossy(),
        args.pairs,
        env!("CARGO_PKG_VERSION"),
        size / 1024,
    ))
}

/// Returns the version of the package of Debian's plugins, which do not print it.
fn version(packages: &Packages) -> Option<String> {
    let changelog = packages.file(&format!("usr/share/doc/{PACKAGE}/changelog.Debian.gz"));
    let text = run::output(
        Command::new("gzip")
            .args(["--decompress", "--stdout"])
            .arg(changelog),
    )
    .ok()?;
    let (_, rest) = text.lines().next()?.split_once('(')?;
    rest.split_once(')').map(|(version, _)| version.to_owned())
}
