//! Kubeconfig files, found and merged as client-go does.

use std::ffi::OsStr;
use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use kube::config::{Kubeconfig, KubeconfigError};

use crate::client::chain;

/// The variable with a file, or a list of files.
pub(crate) const VARIABLE: &str = "KUBECONFIG";

/// A file that cannot be used.
#[derive(Debug)]
pub(crate) struct Unusable {
    pub(crate) path: PathBuf,
    pub(crate) source: KubeconfigError,
}

impl Unusable {
    /// The file does not exist.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(&self.source, KubeconfigError::ReadConfig(error, _) if error.kind() == ErrorKind::NotFound)
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (path, text) = (self.path.display().to_string(), chain(&self.source));
        if !text.contains(&path) {
            write!(f, "{path}: ")?;
        }
        f.write_str(&text)
    }
}

/// Reads a file.
pub(crate) fn read(path: &Path) -> Result<Kubeconfig, Unusable> {
    Kubeconfig::read_from(path).map_err(|source| Unusable {
        path: path.to_owned(),
        source,
    })
}

/// Reads the files of `KUBECONFIG`. `None` if it names none.
pub(crate) fn of_environment() -> Result<Option<Kubeconfig>, Unusable> {
    merged(&std::env::var_os(VARIABLE).unwrap_or_default())
}

/// Reads and merges a list of files, of which earlier ones win. Missing files are skipped, unless all are missing. `None`
/// for an empty list.
fn merged(list: &OsStr) -> Result<Option<Kubeconfig>, Unusable> {
    let (mut merged, mut missing) = (None, None);
    let paths = std::env::split_paths(list).filter(|path| !path.as_os_str().is_empty());
    for path in paths {
        let mut next = match read(&path) {
            Err(error) if error.is_missing() => {
                missing.get_or_insert(error);
                continue;
            }
            next => next?,
        };
        next.current_context = next.current_context.filter(|context| !context.is_empty());
        let all = Kubeconfig::merge(merged.unwrap_or_default(), next);
        merged = Some(all.map_err(|source| Unusable { path, source })?);
    }
    match (merged, missing) {
        (None, Some(missing)) => Err(missing),
        (merged, _) => Ok(merged),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn missing_files_of_a_list_are_skipped_unless_all_are_missing() {
        let folder = tempfile::tempdir().expect("a directory");
        let path = |name: &str| folder.path().join(name);
        for (name, context) in [("first", "of-first"), ("second", "of-second"), ("unset", "''")] {
            fs::write(
                path(name),
                format!("{{kind: Config, current-context: {context}}}"),
            )
            .expect("a file");
        }
        fs::write(path("broken"), "[").expect("a file");
        let merge = |names: &[&str]| {
            let list = std::env::join_paths(names.iter().map(|name| path(name))).expect("a list");
            merged(&list).map(|found| found.and_then(|it| it.current_context))
        };
        let found = merge(&["missing", "unset", "first", "gone", "second"]).expect("three files");
        assert_eq!(found.as_deref(), Some("of-first"));
        let error = merge(&["missing", "gone"]).expect_err("no file");
        assert!(error.is_missing() && error.path == path("missing"), "{error}");
        let error = merge(&["first", "broken"]).expect_err("a malformed file");
        let text = error.to_string();
        assert!(
            !error.is_missing() && text.matches(&*path("broken").to_string_lossy()).count() == 1,
            "{text}"
        );
        assert!(merged(OsStr::new(":")).is_ok_and(|found| found.is_none()));
    }
}
