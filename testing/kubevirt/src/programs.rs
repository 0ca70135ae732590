//! KubeVirt's programs, and the objects of its installation, built once into the cache.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cluster::{Home, Progress, go, run};
use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// The version that is built, as a module version without the `v`.
pub const VERSION: &str = "1.5.0";
/// The Go module, below the directory of this package.
const MODULE: &str = "programs";
/// The program of this repository in the module, which prints the objects.
const PRINTER: &str = "kubevirt-objects";
const API: &str = "virt-api";
const CONTROLLER: &str = "virt-controller";
/// Files that determine the cache, besides Go.
const PINS: [&str; 2] = [
    include_str!("../programs/go.mod"),
    include_str!("../programs/kubevirt-objects/main.go"),
];
/// A fixed time, which is only printed.
const BUILD_DATE: &str = "2026-01-01T00:00:00Z";

/// Paths of KubeVirt's programs.
#[derive(Debug, Clone)]
pub struct Programs {
    dir: PathBuf,
}

impl Programs {
    /// Finds the programs in the cache, or builds them, which takes minutes and happens once.
    ///
    /// # Errors
    /// [`cluster::Error::Missing`] if they are not built and Go is missing.
    pub fn ensure(home: &Home, progress: &mut dyn Progress) -> Result<Self> {
        let pins = PINS.iter().fold(Sha256::new(), Sha256::chain_update);
        let pins: String = pins
            .finalize()
            .iter()
            .take(4)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let dir = home.dir(&format!("kubevirt/v{VERSION}-{pins}"))?;
        let programs = Self { dir };
        if programs.are_built() {
            return Ok(programs);
        }
        let _lock = home.lock("kubevirt", progress)?;
        // Another process may have built them meanwhile.
        if !programs.are_built() {
            progress.step(&format!("building KubeVirt {VERSION}, once: {API}, {CONTROLLER}"));
            programs.build(progress)?;
        }
        Ok(programs)
    }

    /// The API server of virtual machines.
    pub(crate) fn api(&self) -> PathBuf {
        self.dir.join(API)
    }

    /// The controllers.
    pub(crate) fn controller(&self) -> PathBuf {
        self.dir.join(CONTROLLER)
    }

    /// A directory of the cache.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the objects of an installation, as KubeVirt's operator creates them first.
    pub(crate) fn objects(&self) -> Result<Vec<Value>> {
        let path = self.objects_file();
        let text = fs::read_to_string(&path).map_err(|source| Error::File {
            what: "read",
            path: path.clone(),
            source,
        })?;
        let parsed: std::result::Result<Value, _> = serde_json::from_str(&text);
        let mut list = parsed.map_err(|source| Error::Objects { path, source })?;
        match list["items"].take() {
            Value::Array(items) => Ok(items),
            _ => Ok(Vec::new()),
        }
    }

    fn objects_file(&self) -> PathBuf {
        self.dir.join("objects.json")
    }

    /// The objects are built last.
    fn are_built(&self) -> bool {
        [self.api(), self.controller(), self.objects_file()]
            .iter()
            .all(|file| file.is_file())
    }

    fn build(&self, progress: &mut dyn Progress) -> Result<()> {
        let (api, controller, printer) = (self.api(), self.controller(), self.dir.join(PRINTER));
        let wanted = [
            (format!("./{PRINTER}"), printer.as_path()),
            (format!("kubevirt.io/kubevirt/cmd/{API}"), api.as_path()),
            (
                format!("kubevirt.io/kubevirt/cmd/{CONTROLLER}"),
                controller.as_path(),
            ),
        ];
        let mut flags = "-s -w".to_owned();
        for (name, value) in [
            ("gitVersion", format!("v{VERSION}")),
            ("gitCommit", format!("v{VERSION}")),
            ("gitTreeState", "clean".to_owned()),
            ("buildDate", BUILD_DATE.to_owned()),
        ] {
            flags.push_str(&format!(" -X kubevirt.io/client-go/version.{name}={value}"));
        }
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(MODULE);
        go::build(&source, &wanted, &flags, "do without KubeVirt", progress)?;
        let objects = run::output(&mut Command::new(&printer))?;
        let file = self.objects_file();
        let unfinished = file.with_extension("new");
        let written = fs::write(&unfinished, objects).and_then(|()| fs::rename(&unfinished, &file));
        written.map_err(|source| Error::File {
            what: "write",
            path: file,
            source,
        })?;
        // The printer is no longer needed.
        let _ = fs::remove_file(printer);
        Ok(())
    }
}
