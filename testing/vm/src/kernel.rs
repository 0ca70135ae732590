//! The kernel of Debian's package.

use std::fs;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

use cluster::{Packages, run};

use crate::error::{At, Error, Result};
use crate::modules::Modules;

/// A kernel and its modules.
#[derive(Debug, Clone)]
pub(crate) struct Kernel {
    /// The bootable image.
    pub(crate) image: PathBuf,
    /// Directory of the modules.
    modules: PathBuf,
}

/// A module to load, with its file here and its path in the guest.
#[derive(Debug)]
pub(crate) struct Module {
    pub(crate) file: PathBuf,
    pub(crate) path: PathBuf,
}

impl Kernel {
    /// Returns the kernel. The first call lists the dependencies of its modules.
    pub(crate) fn find(packages: &Packages) -> Result<Self> {
        let boot = packages.file("boot");
        let mut versions: Vec<String> = fs::read_dir(&boot)
            .at("read", &boot)?
            .filter_map(|entry| {
                let name = entry.ok()?.file_name();
                Some(name.to_str()?.strip_prefix("vmlinuz-")?.to_owned())
            })
            .collect();
        versions.sort();
        let version = versions.pop().ok_or_else(|| Error::Kernel {
            root: boot.display().to_string(),
            lack: "is missing".to_owned(),
        })?;
        let kernel = Self {
            image: boot.join(format!("vmlinuz-{version}")),
            modules: packages.file("usr/lib/modules").join(&version),
        };
        if !kernel.dependencies().exists() {
            let root = packages.file("boot");
            let root = root.parent().unwrap_or(Path::new("/"));
            // `kmod` has many names, which are absolute links that leave the directory of the unpacked packages.
            let mut depmod = packages.command("usr/bin/kmod");
            run::output(depmod.arg0("depmod").arg("-b").arg(root).arg(&version))?;
        }
        Ok(kernel)
    }

    fn dependencies(&self) -> PathBuf {
        self.modules.join("modules.dep")
    }

    /// Returns the modules to load for `wanted`, in order.
    pub(crate) fn closure(&self, wanted: &[&str]) -> Result<Vec<Module>> {
        let read = |path: &Path| fs::read_to_string(path).at("read", path);
        let dependencies = read(&self.dependencies())?;
        let builtin = read(&self.modules.join("modules.builtin"))?;
        let paths = Modules::read(&dependencies, &builtin)
            .closure(wanted)
            .map_err(|name| Error::Kernel {
                root: self.modules.display().to_string(),
                lack: format!("has no module {name}"),
            })?;
        Ok(paths
            .into_iter()
            .map(|path| Module {
                file: self.modules.join(path),
                path: Path::new("/lib/modules").join(path),
            })
            .collect())
    }
}
