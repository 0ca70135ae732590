//! Programs from the Go module proxy, built once into the cache.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::error::{At, Error, Result};
use crate::progress::Progress;
use crate::run;

/// A program to build: its package, and the file for the result.
pub type Wanted<'a> = (String, &'a Path);

/// Builds programs of the module in the directory `source`, all in one command, so that some are compiled while one is
/// linked by a single processor. `flags` are flags of Go's linker. `otherwise` names the alternative to Go, and
/// completes the sentence "install Go, or …".
///
/// # Errors
/// [`Error::Missing`] if Go is missing.
pub fn build(
    source: &Path,
    programs: &[Wanted<'_>],
    flags: &str,
    otherwise: &str,
    progress: &mut dyn Progress,
) -> Result<()> {
    build_programs(source, programs, flags, Linked::Go, otherwise, progress)
}

/// Builds programs with parts in C as [`build`] builds programs. They are static, too.
///
/// # Errors
/// [`Error::Missing`] where there is no Go.
pub fn build_with_c(
    source: &Path,
    programs: &[Wanted<'_>],
    flags: &str,
    otherwise: &str,
    progress: &mut dyn Progress,
) -> Result<()> {
    let flags = format!("{flags} -linkmode external -extldflags -static");
    build_programs(source, programs, &flags, Linked::C, otherwise, progress)
}

/// Which parts a program has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Linked {
    Go,
    C,
}

fn build_programs(
    source: &Path,
    programs: &[Wanted<'_>],
    flags: &str,
    linked: Linked,
    otherwise: &str,
    progress: &mut dyn Progress,
) -> Result<()> {
    let Some(dir) = programs.first().and_then(|(_, file)| file.parent()) else {
        return Ok(());
    };
    // An incomplete program must never be taken for a complete one.
    let unfinished = dir.join("new");
    fs::create_dir_all(&unfinished).at("create", &unfinished)?;
    let mut go = command(source, &["build"], flags, otherwise)?;
    if linked == Linked::C {
        go.env("CGO_ENABLED", "1");
    }
    go.arg("-o").arg(&unfinished);
    go.args(programs.iter().map(|(package, _)| package));
    run::watched(&mut go, &dir.join("build.log"), progress)?;
    for (package, file) in programs {
        fs::rename(unfinished.join(name(package)), file).at("create", file)?;
    }
    fs::remove_dir_all(&unfinished).at("remove", &unfinished)
}

/// Builds the test program of a package, like [`build`].
///
/// # Errors
/// [`Error::Missing`] if Go is missing.
pub fn build_tests(
    source: &Path,
    (package, file): &Wanted<'_>,
    flags: &str,
    otherwise: &str,
    progress: &mut dyn Progress,
) -> Result<()> {
    let unfinished = file.with_extension("new");
    // Otherwise Go checks all dependencies too, which takes as long as the build.
    let mut go = command(source, &["test", "-c", "-vet=off"], flags, otherwise)?;
    go.arg("-o").arg(&unfinished).arg(package);
    run::watched(&mut go, &file.with_extension("build.log"), progress)?;
    fs::rename(&unfinished, file).at("create", file)
}

/// Returns the common part of the command. The caller adds packages and `-o`.
fn command(source: &Path, subcommand: &[&str], flags: &str, otherwise: &str) -> Result<Command> {
    if Command::new("go").arg("version").output().is_err() {
        return Err(Error::Missing(format!(
            "Go is missing: install version 1.24 or newer (https://go.dev/dl), or {otherwise}"
        )));
    }
    // Niced: other builds have steps that wait for each other, while this build uses every processor all the time.
    let mut go = Command::new("nice");
    go.arg("go").args(subcommand);
    go.current_dir(source)
        .env("CGO_ENABLED", "0")
        // The compiler ends before its garbage matters: less collection takes a fifth of the time away.
        .env("GOGC", "400")
        .env_remove("GOFLAGS")
        .env_remove("GOWORK")
        .env_remove("GOOS")
        .env_remove("GOARCH");
    // With -v, Go prints each compiled package.
    go.args([
        "-v",
        "-mod=readonly",
        "-trimpath",
        // These programs are never debugged, and debug information takes a tenth of the time.
        "-gcflags=all=-dwarf=false",
        "-ldflags",
        flags,
    ]);
    Ok(go)
}

/// Returns Go's name of a package's program: the last part of its path that is not a version.
fn name(package: &str) -> &str {
    let is_version = |part: &&str| {
        part.strip_prefix('v')
            .is_some_and(|number| number.parse::<u32>().is_ok())
    };
    package
        .rsplit('/')
        .find(|part| !is_version(part))
        .unwrap_or(package)
}

#[cfg(test)]
mod tests {
    use super::name;

    #[test]
    fn program_has_the_name_of_its_package_without_the_version() {
        assert_eq!(name("go.etcd.io/etcd/server/v3"), "server");
        assert_eq!(name("k8s.io/kubernetes/cmd/kubelet"), "kubelet");
    }
}
