//! The linker of the program of all daemons: it links twice, because only the map of the first link has the names of
//! this build.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use anyhow::Context;
use sha2::{Digest, Sha256};

use super::{list, map};

/// The linker for C, which rustc would call.
const LINKER: &str = "cc";
/// The argument that tells a call as a linker from one as a command. A digest of the order follows, and the path of the
/// map: Cargo builds again if arguments change.
const MAP: &str = "--order-functions=";

/// Returns the compiler's flags that make this program the linker, and write the linker's map.
pub(crate) fn flags(map: &Path) -> anyhow::Result<Vec<String>> {
    // Only the linker for this processor, which comes with the compiler, takes an order of symbols.
    if !cfg!(target_arch = "x86_64") {
        return Ok(Vec::new());
    }
    let program = std::env::current_exe().context("unknown path of this program")?;
    let parts = [
        list::LIST,
        include_str!("link.rs"),
        include_str!("list.rs"),
        include_str!("map.rs"),
    ];
    let digest = parts.iter().fold(Sha256::new(), Sha256::chain_update);
    let digest = list::short(&digest.finalize());
    Ok(vec![
        format!("-Clinker={}", program.display()),
        format!("-Clink-arg={MAP}{digest}:{}", map.display()),
    ])
}

/// Links, if the arguments are those of a linker.
pub(crate) fn run(args: impl Iterator<Item = OsString>) -> Option<anyhow::Result<ExitCode>> {
    let mut map = None;
    let mut linking = Vec::new();
    for arg in args {
        match arg
            .to_str()
            .and_then(|arg| arg.strip_prefix(MAP)?.split_once(':'))
        {
            Some((_, file)) => map = Some(file.to_owned()),
            None => linking.push(arg),
        }
    }
    Some(link(&linking, Path::new(&map?), list::LIST))
}

fn link(args: &[OsString], map: &Path, list: &str) -> anyhow::Result<ExitCode> {
    let linked = |more: &[String]| {
        let mut linker = Command::new(LINKER);
        linker
            .args(args)
            .arg(format!("-Wl,--no-demangle,-Map={}", map.display()))
            .args(more);
        linker.status().with_context(|| format!("cannot run {LINKER}"))
    };
    if !linked(&[])?.success() {
        return Ok(ExitCode::FAILURE);
    }
    let text = fs::read_to_string(map).with_context(|| format!("cannot read {}", map.display()))?;
    let functions = map::functions(&text);
    let order = list::select(list, functions.iter().map(|function| function.symbol));
    let file = map.with_extension("order");
    fs::write(&file, order.join("\n")).with_context(|| format!("cannot write {}", file.display()))?;
    let status = linked(&[
        format!("-Wl,--symbol-ordering-file={}", file.display()),
        "-Wl,--no-warn-symbol-ordering".to_owned(),
    ])?;
    Ok(if status.success() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

#[cfg(test)]
pub(super) mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn commands_are_no_calls_as_a_linker() {
        assert!(run(["image".into(), "--twice".into()].into_iter()).is_none());
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn listed_functions_come_first() {
        const SOURCE: &str =
            "int early() { return 1; } int late() { return 2; } int main() { return early() + late(); }";
        let dir = tempfile::tempdir().unwrap();
        let linked = |list: &str| {
            let (program, map) = linked(dir.path(), SOURCE, list);
            assert_eq!(Command::new(program).status().unwrap().code(), Some(3));
            let own = ["early", "late", "main"];
            let symbols = map::functions(&map).into_iter().map(|function| function.symbol);
            symbols
                .filter(|symbol| own.contains(symbol))
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(linked(""), ["early", "late", "main"]);
        assert_eq!(
            linked(&list::text(["main", "late"].into_iter())),
            ["main", "late", "early"]
        );
    }

    /// Links a static C program by a list. Returns its path and its map.
    #[cfg(target_arch = "x86_64")]
    pub(in crate::order) fn linked(dir: &Path, source: &str, list: &str) -> (PathBuf, String) {
        let [file, program, map] = ["a.c", "a", "a.map"].map(|name| dir.join(name));
        fs::write(&file, source).unwrap();
        let sysroot = Command::new("rustc")
            .args(["--print", "sysroot"])
            .output()
            .unwrap();
        let sysroot = String::from_utf8(sysroot.stdout).unwrap();
        let lld = format!(
            "-B{}/lib/rustlib/x86_64-unknown-linux-gnu/bin/gcc-ld",
            sysroot.trim()
        );
        let options = [
            "-ffunction-sections",
            "-static",
            "-no-pie",
            "-fuse-ld=lld",
            lld.as_str(),
            "-o",
        ];
        let mut args: Vec<OsString> = options.into_iter().map(OsString::from).collect();
        args.extend([program.clone().into(), file.into()]);
        let code = link(&args, &map, list).unwrap();
        assert_eq!(format!("{code:?}"), format!("{:?}", ExitCode::SUCCESS));
        (program, fs::read_to_string(map).unwrap())
    }
}
