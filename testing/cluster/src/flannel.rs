//! flannel, which the pod network is measured beside, built once into the cache. It takes Go 1.25 and a C compiler.

use std::path::{Path, PathBuf};

use crate::error::Result;
use crate::go::{self, Wanted};
use crate::home::Home;
use crate::progress::Progress;

/// The version of the daemon, as a module version without the `v`.
pub const VERSION: &str = "0.28.4";

/// Daemon and plugin, with the modules that pin them.
const DAEMON: (&str, &str) = ("daemon", "github.com/flannel-io/flannel");
const PLUGIN: (&str, &str) = (
    "plugin",
    "github.com/containernetworking/plugins/plugins/meta/flannel",
);

/// The programs of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Flannel {
    /// The daemon, `flanneld`.
    pub daemon: PathBuf,
    /// The CNI plugin, `flannel`.
    pub plugin: PathBuf,
}

/// Finds the programs in the cache, or builds them, which takes a minute or two.
///
/// # Errors
/// [`crate::Error::Missing`] where they are not built and there is no Go.
pub fn ensure(home: &Home, progress: &mut dyn Progress) -> Result<Flannel> {
    let cache = home.dir(&format!("flannel/v{VERSION}"))?;
    let _lock = home.lock("flannel", progress)?;
    let mut built = |(module, package): (&str, &str), build: Build| -> Result<PathBuf> {
        // Both packages give programs of one name.
        let program = cache.join(module).join("flannel");
        if !program.is_file() {
            progress.step(&format!("building flannel's {module}, once"));
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("flannel").join(module);
            let wanted = [(package.to_owned(), program.as_path())];
            build(&source, &wanted, "-s -w", "run another benchmark", progress)?;
        }
        Ok(program)
    };
    Ok(Flannel {
        // One of its back ends has parts in C, which the others do not use.
        daemon: built(DAEMON, go::build_with_c)?,
        plugin: built(PLUGIN, go::build)?,
    })
}

type Build = fn(&Path, &[Wanted<'_>], &str, &str, &mut dyn Progress) -> Result<()>;
