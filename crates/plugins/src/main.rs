//! `weft-cni`: every CNI plugin of Weft in one binary, chosen by the name it is called by.

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
    // Nobody uses it while the program runs: it is there for those who read the file.
    black_box(mark::MARK);
    let mut arguments = std::env::args_os();
    let called_as = arguments.next().unwrap_or_default();
    let mut name = Path::new(&called_as)
        .file_name()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned();
    // For people who try things out: `weft-cni bridge`.
    if name == BINARY
        && let Some(first) = arguments.next()
    {
        name = first.to_string_lossy().into_owned();
    }
    // As the established shim answers people; runtimes give no arguments.
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

/// A runtime reads standard output, a person standard error: both are told.
fn unknown(name: &str) -> ExitCode {
    let known: Vec<_> = PLUGINS.iter().map(|plugin| plugin.name()).collect();
    let error = cni::Error::internal(format!("unknown plugin \"{name}\"")).with_details(format!(
        "known plugins, each also as {PREFIX}NAME: {}",
        known.join(", ")
    ));
    // Nobody is told when either is closed.
    let _ = writeln!(io::stdout(), "{}", cni::json::pretty(&error));
    let _ = writeln!(io::stderr(), "{error}");
    ExitCode::FAILURE
}
