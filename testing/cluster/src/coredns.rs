//! CoreDNS, built once into the cache.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::go;
use crate::home::Home;
use crate::progress::Progress;

/// The version that is built, as a module version without the `v`.
pub const VERSION: &str = "1.12.4";

/// Number of plugins in `coredns/main.go`. Another number lets caches build it again.
const PLUGINS: u32 = 7;

/// Returns CoreDNS with the plugins of `coredns/main.go`, from the cache or built.
///
/// # Errors
/// [`crate::Error::Missing`] if it is not built and Go is missing. `otherwise` completes the sentence "install Go, or
/// …".
pub fn ensure(home: &Home, otherwise: &str, progress: &mut dyn Progress) -> Result<PathBuf> {
    let program = home
        .dir(&format!("coredns/v{VERSION}-{PLUGINS}"))?
        .join("coredns");
    if program.is_file() {
        return Ok(program);
    }
    let _lock = home.lock("coredns", progress)?;
    // Another process may have built it meanwhile.
    if !program.is_file() {
        progress.step(&format!("building CoreDNS {VERSION}, once"));
        let wanted = ("weft.dev/testing/cluster/coredns".to_owned(), program.as_path());
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("coredns");
        go::build(&source, &[wanted], "-s -w", otherwise, progress)?;
    }
    Ok(program)
}
