//! The manifests, complete except for parts that depend on the cluster and on the `NMState`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde_json::Value;
use thiserror::Error;

use crate::yaml::{self, Malformed};

/// The manifests cannot be used.
#[derive(Debug, Error)]
pub enum Error {
    /// A file or directory cannot be read.
    #[error("cannot read manifests from {}", path.display())]
    Read {
        /// Path of the file or directory.
        path: PathBuf,
        /// Cause.
        #[source]
        source: io::Error,
    },
    /// The directory has no manifests.
    #[error("no manifests rendered from {}", .0.display())]
    Empty(PathBuf),
    /// A file is missing.
    #[error("no manifests in file {0}")]
    Missing(&'static str),
    /// A file is malformed.
    #[error("malformed manifests in file {file}")]
    Syntax {
        /// File name.
        file: &'static str,
        /// Cause.
        #[source]
        source: Malformed,
    },
}

/// The manifests by file name.
#[derive(Clone, Debug)]
pub struct Files(BTreeMap<String, String>);

macro_rules! embedded {
    ($($file:literal),* $(,)?) => { [$(($file, include_str!(concat!("manifests/", $file)))),*] };
}

impl Files {
    /// The manifests in the program.
    pub fn embedded() -> Self {
        let files = embedded![
            "namespace.yaml",
            "rbac.yaml",
            "cluster-reader.yaml",
            "network-policies.yaml",
            "workloads.yaml",
            "services.yaml",
            "admission.yaml",
            "monitoring.yaml",
            "openshift.yaml",
            "console-plugin.yaml",
        ];
        Self(
            files
                .into_iter()
                .map(|(name, text)| (name.to_owned(), text.to_owned()))
                .collect(),
        )
    }

    /// The manifests in a directory, which must have all files except that of the console plugin.
    ///
    /// # Errors
    /// If the directory cannot be read, or has no manifests.
    pub fn from_directory(directory: &Path) -> Result<Self, Error> {
        let failed = |path: &Path| {
            let path = path.to_owned();
            |source| Error::Read { path, source }
        };
        let mut files = BTreeMap::new();
        let entries = match fs::read_dir(directory) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(Error::Empty(directory.to_owned()));
            }
            entries => entries.map_err(failed(directory))?,
        };
        for entry in entries {
            let path = entry.map_err(failed(directory))?.path();
            if path.extension().is_some_and(|extension| extension == "yaml") {
                let name = path
                    .file_name()
                    .unwrap_or_default()
                    .to_string_lossy()
                    .into_owned();
                files.insert(name, fs::read_to_string(&path).map_err(failed(&path))?);
            }
        }
        if files.is_empty() {
            return Err(Error::Empty(directory.to_owned()));
        }
        Ok(Self(files))
    }

    /// Whether the file exists.
    pub fn has(&self, file: &str) -> bool {
        self.0.contains_key(file)
    }

    /// The objects in a file, in order.
    ///
    /// # Errors
    /// If the file is missing or malformed.
    pub fn objects(&self, file: &'static str) -> Result<Vec<Value>, Error> {
        let text = self.0.get(file).ok_or(Error::Missing(file))?;
        yaml::documents(text).map_err(|source| Error::Syntax { file, source })
    }
}
