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
/// The argument that tells a call as a linker from one as a command. The path of the map follows, and a digest of the
/// list: Cargo builds again if arguments change.
const MAP: &str = "--order-functions=";

/// Returns the compiler's flags that make this program the linker, and write the linker's map.
pub(crate) fn flags(map: &Path) -> anyhow::Result<Vec<String>> {
    // Only the linker for this processor, which comes with the compiler, takes an order of symbols.
    if !cfg!(target_arch = "x86_64") {
        return Ok(Vec::new());
    }
    let program = std::env::current_exe().context("unknown path of this program")?;
    let digest: String = Sha256::digest(list::LIST)
        .iter()
        .take(4)
        .map(|byte| format!("{byte:02x}"))
        .collect();
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
mod tests {
    use super::*;

    #[test]
    fn commands_are_no_calls_as_a_linker() {
        assert!(run(["image".into(), "--twice".into()].into_iter()).is_none());
    }

    #[cfg(target_arch = "x86_64")]
    #[test]
    fn listed_functions_come_first() {
        let dir = tempfile::tempdir().unwrap();
        let [source, program, map] = ["a.c", "a", "a.map"].map(|name| dir.path().join(name));
        fs::write(
            &source,
            "int early() { return 1; } int late() { return 2; } int main() { return early() + late(); }",
        )
        .unwrap();
        let sysroot = Command::new("rustc")
            .args(["--print", "sysroot"])
            .output()
            .unwrap();
        let sysroot = String::from_utf8(sysroot.stdout).unwrap();
        let lld = format!(
            "-B{}/lib/rustlib/x86_64-unknown-linux-gnu/bin/gcc-ld",
            sysroot.trim()
        );
        let mut args: Vec<OsString> = vec![
            "-ffunction-sections".into(),
            "-fuse-ld=lld".into(),
            lld.into(),
            "-o".into(),
        ];
        args.extend([program.clone().into(), source.into()]);
        let linked = |list: &str| {
            link(&args, &map, list).unwrap();
            assert_eq!(Command::new(&program).status().unwrap().code(), Some(3));
            let map = fs::read_to_string(&map).unwrap();
            let own = ["early", "late", "main"];
            let symbols = map::functions(&map)
                .into_iter()
                .map(|function| function.symbol.to_owned());
            symbols
                .filter(|symbol| own.contains(&symbol.as_str()))
                .collect::<Vec<_>>()
        };
        assert_eq!(linked(""), ["early", "late", "main"]);
        assert_eq!(
            linked(&list::text(["main", "late"].into_iter())),
            ["main", "late", "early"]
        );
    }
}
