//! Programs of the host.

use std::path::{Path, PathBuf};

use crate::names::PROGRAM_DIRECTORIES;

/// Path of a program. Ignores `PATH`.
pub(crate) fn find(program: &str) -> Option<PathBuf> {
    PROGRAM_DIRECTORIES
        .iter()
        .map(|directory| Path::new(directory).join(program))
        .find(|path| path.is_file())
}
