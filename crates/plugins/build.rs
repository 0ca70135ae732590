//! Names this build of the plugins: a number over all that they are made of, for `src/mark.rs`.

use std::collections::BTreeSet;
use std::fs;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io;
use std::path::{Path, PathBuf};

/// Our own sources that are linked into a plugin, and the versions of all dependencies.
const SOURCES: [&str; 4] = ["src", "../cni/src", "../linux/src", "../../Cargo.lock"];

fn main() -> io::Result<()> {
    let mut files = BTreeSet::new();
    for source in SOURCES {
        println!("cargo:rerun-if-changed={source}");
        collect(Path::new(source), &mut files)?;
    }
    let mut hasher = DefaultHasher::new();
    env!("CARGO_PKG_VERSION").hash(&mut hasher);
    for file in files {
        file.hash(&mut hasher);
        fs::read(&file)?.hash(&mut hasher);
    }
    println!("cargo:rustc-env=WEFT_PLUGINS_BUILD={:016x}", hasher.finish());
    Ok(())
}

fn collect(path: &Path, files: &mut BTreeSet<PathBuf>) -> io::Result<()> {
    if !path.is_dir() {
        files.insert(path.to_owned());
        return Ok(());
    }
    for entry in fs::read_dir(path)? {
        collect(&entry?.path(), files)?;
    }
    Ok(())
}
