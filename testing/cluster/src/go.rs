//! Programs that are built from the Go module proxy, once, into the cache.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::error::{At, Error, Result};
use crate::progress::Progress;
use crate::run;

/// Builds `package` as the module in `testing/cluster/<module>` pins it. `otherwise` says what helps where there is no
/// Go.
pub(crate) fn build(
    module: &str,
    package: &str,
    flags: &str,
    file: &Path,
    otherwise: &str,
    progress: &mut dyn Progress,
) -> Result<()> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(module);
    if Command::new("go").arg("version").output().is_err() {
        return Err(Error::Missing(format!(
            "Go is missing: install version 1.24 or newer (https://go.dev/dl), or {otherwise}"
        )));
    }
    // A half-written program must never be taken for a whole one.
    let unfinished = file.with_extension("new");
    let mut go = Command::new("go");
    go.current_dir(source)
        .env("CGO_ENABLED", "0")
        .env_remove("GOFLAGS")
        .env_remove("GOOS")
        .env_remove("GOARCH");
    go.args(["build", "-mod=readonly", "-trimpath", "-ldflags", flags, "-o"]);
    go.arg(&unfinished).arg(package);
    run::watched(&mut go, &file.with_extension("log"), progress)?;
    fs::rename(&unfinished, file).at("create", file)
}
