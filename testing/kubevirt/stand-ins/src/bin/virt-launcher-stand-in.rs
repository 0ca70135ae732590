//! Stand-in for every program of KubeVirt's launcher image: the pods of virtual machines are real, and their guests are
//! not.
//!
//!
//! called as
//! effect
//!
//! |---|---|
//!
//! `cp SOURCE TARGET`
//! copies a file, as in the init container of container disks
//!
//!
//! any name, with `--no-op`
//! exits with success
//!
//!
//! any other name, such as `virt-launcher-monitor`
//! runs until SIGTERM or until its guest leaves, and exits with success
//!
//!
//! A guest leaves, after a migration or its own shutdown, when a client sends a request to [`GUEST_PORT`]. The API
//! server's proxy of pods reaches the port on every node.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

/// Port for the request that ends the guest.
const GUEST_PORT: u16 = 32100;
/// Timeout of a client's request.
const TIMEOUT: Duration = Duration::from_secs(5);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().collect();
    let program = words.first().map(Path::new).and_then(Path::file_name);
    let arguments: Vec<&str> = words.iter().skip(1).map(String::as_str).collect();
    let outcome = match (program.and_then(|name| name.to_str()), &arguments[..]) {
        (Some("cp"), [source, target]) => std::fs::copy(source, target)
            .map(drop)
            .map_err(|error| format!("cannot copy {source} to {target}: {error}")),
        _ if arguments.contains(&"--no-op") => Ok(()),
        _ => guest(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
    }
}

/// Runs until SIGTERM or until the guest leaves.
fn guest() -> Result<(), String> {
    let mut signals = SigSet::empty();
    signals.add(Signal::SIGTERM);
    signals.add(Signal::SIGINT);
    // Signals are blocked before threads exist, so that no thread is ended by one. The first process of a container
    // ignores signals unless they are blocked.
    signals
        .thread_block()
        .map_err(|error| format!("cannot block signals: {error}"))?;
    std::thread::spawn(|| match serve() {
        Ok(()) => {
            println!("the guest left");
            std::process::exit(0)
        }
        // The containers of a pod share a network, and one listener suffices.
        Err(error) => println!("cannot listen on port {GUEST_PORT}: {error}"),
    });
    println!("an idle guest runs");
    let signal = signals
        .wait()
        .map_err(|error| format!("cannot wait for a signal: {error}"))?;
    println!("{signal}: the guest stops");
    Ok(())
}

/// Waits for a request, and answers it.
fn serve() -> std::io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, GUEST_PORT))?;
    for stream in listener.incoming() {
        let mut stream = stream?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        let mut beginning = [0; 1024];
        if stream.read(&mut beginning).is_ok_and(|length| length > 0) {
            // The guest leaves even if the client is gone.
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            return Ok(());
        }
    }
    Ok(())
}
