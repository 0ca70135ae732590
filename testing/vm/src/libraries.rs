//! Shared libraries of dynamic programs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use cluster::run;

/// Returns the libraries of these programs and their loader, with the paths in the guest.
pub(crate) fn of<'a>(
    programs: impl Iterator<Item = &'a PathBuf>,
    first: Option<&Path>,
) -> BTreeMap<PathBuf, PathBuf> {
    let mut all = BTreeMap::new();
    for program in programs {
        let mut ldd = Command::new("ldd");
        if let Some(first) = first {
            ldd.env("LD_LIBRARY_PATH", first);
        }
        // ldd fails for static programs.
        let listed = run::output(ldd.arg(program)).unwrap_or_default();
        all.extend(listed.lines().filter_map(library));
    }
    all
}

/// Parses a line of `ldd`: `NAME => FILE (ADDRESS)`, or `FILE (ADDRESS)` for the loader.
fn library(line: &str) -> Option<(PathBuf, PathBuf)> {
    let (place, _) = line.trim().rsplit_once(" (0x")?;
    let Some((name, file)) = place.split_once(" => ") else {
        return place.starts_with('/').then(|| (place.into(), place.into()));
    };
    let folder = format!("/lib/{}-linux-gnu", std::env::consts::ARCH);
    Some((file.into(), Path::new(&folder).join(name)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_and_loader_are_parsed() {
        let shown = |path: PathBuf| path.display().to_string();
        let name = |line: &str| -> Option<(String, String)> {
            let (file, path) = library(line)?;
            Some((shown(file), shown(path)))
        };
        let folder = format!("/lib/{}-linux-gnu", std::env::consts::ARCH);
        assert_eq!(
            name("\tlibnm.so.0 => /cache/usr/lib/libnm.so.0 (0x00007f)"),
            Some((
                "/cache/usr/lib/libnm.so.0".to_owned(),
                format!("{folder}/libnm.so.0")
            ))
        );
        let loader = "/lib64/ld-linux-x86-64.so.2";
        assert_eq!(
            name(&format!("\t{loader} (0x00007f)")),
            Some((loader.to_owned(), loader.to_owned()))
        );
        assert_eq!(name("\tlinux-vdso.so.1 (0x00007f)"), None);
        assert_eq!(name("\tnot a dynamic executable"), None);
    }
}
