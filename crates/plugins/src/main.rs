//! `weft-cni`: every CNI plugin of Weft in one binary, chosen by the name it is called by.

use std::{path::Path, process::ExitCode};

use plugins::{
    PLUGINS,
    names::{BINARY, PREFIX},
    plugin_by_name,
};

fn main() -> ExitCode {
    let mut arguments = std::env::args();
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
        name = first;
    }
    // As the established shim answers people; runtimes give no arguments.
    let wants_version = matches!(arguments.next().as_deref(), Some("--version" | "-version" | "-v"));
    match plugin_by_name(&name) {
        Some(plugin) if wants_version => {
            println!("{}: version:{}", plugin.name(), env!("CARGO_PKG_VERSION"));
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
    println!("{}", cni::json::pretty(&error));
    eprintln!("{error}");
    ExitCode::FAILURE
}
