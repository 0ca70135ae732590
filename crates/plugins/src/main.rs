//! `weft-cni`: every CNI plugin of Weft in one binary, selected by the name of the executable.

use std::{
    hint::black_box,
    io::{self, Write as _},
    path::Path,
    process::ExitCode,
};

use plugins::{
    PLUGINS, mark,
    names::{BINARY, PREFIX},
    plugin_by_name,
};

/// The program lives for a millisecond: few calls of the kernel for its pages count more than their number. The allocator of
/// musl makes 30 of them where this one makes two.
#[global_allocator]
static ALLOCATOR: dlmalloc::GlobalDlmalloc = dlmalloc::GlobalDlmalloc;

fn main() -> ExitCode {
    // Unused at run time: keeps the mark in the binary.
    black_box(mark::MARK);
    let mut arguments = std::env::args_os();
    let called_as = arguments.next().unwrap_or_default();
    let mut name = Path::new(&called_as)
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    // For manual calls: `weft-cni bridge`.
    if name == BINARY
        && let Some(first) = arguments.next()
    {
        name = first.to_string_lossy().into_owned();
    }
    // Like upstream's shim. Runtimes pass no arguments.
    let wants_version = arguments
        .next()
        .is_some_and(|first| matches!(first.to_str(), Some("--version" | "-version" | "-v")));
    match plugin_by_name(&name) {
        Some(plugin) if wants_version => {
            let version = env!("CARGO_PKG_VERSION");
            let _ = writeln!(io::stdout(), "{}: version:{version}", plugin.name());
            ExitCode::SUCCESS
        }
        Some(plugin) => cni::plugin::main(plugin),
        None => unknown(&name),
    }
}

/// Reports an unknown plugin on standard output for a runtime and on standard error for a user.
fn unknown(name: &str) -> ExitCode {
    let known: Vec<_> = PLUGINS.iter().map(|plugin| plugin.name()).collect();
    let error = cni::Error::internal(format!("unknown plugin \"{name}\"")).with_details(format!(
        "known plugins, each also as {PREFIX}NAME: {}",
        known.join(", ")
    ));
    // Best effort: either stream may be closed.
    let _ = writeln!(io::stdout(), "{}", cni::json::pretty(&error));
    let _ = writeln!(io::stderr(), "{error}");
    ExitCode::FAILURE
}
