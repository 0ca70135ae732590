//! Stands in for every program of KubeVirt's launcher image: the pods of virtual machines are real, their guests are not.
//!
//! | called as | does |
//! |---|---|
//! | `cp SOURCE TARGET` | copies a file, as the init container of container disks wants it |
//! | anything, with `--no-op` | ends with success |
//! | anything else, such as `virt-launcher-monitor` | runs until SIGTERM or until its guest leaves, and ends with success |
//!
//! A guest leaves, after a migration or by its own shutdown, when anything connects to [`GUEST_PORT`] and sends a
//! request: the API server's proxy of pods reaches it on every node.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use nix::sys::signal::{SigSet, Signal};

/// Where a request ends the guest.
const GUEST_PORT: u16 = 32100;
/// How long one who connects may take to send the beginning of a request.
const PATIENCE: Duration = Duration::from_secs(5);

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
    // Before there are threads, so that none of them is ended by one. The first process of a container ignores them
    // unless they are blocked.
    signals
        .thread_block()
        .map_err(|error| format!("cannot block signals: {error}"))?;
    std::thread::spawn(|| match serve() {
        Ok(()) => {
            println!("the guest has left");
            std::process::exit(0)
        }
        // The containers of one pod share a network, and one of them suffices.
        Err(error) => println!("cannot listen on port {GUEST_PORT}: {error}"),
    });
    println!("a guest that does nothing runs");
    let signal = signals
        .wait()
        .map_err(|error| format!("cannot wait for a signal: {error}"))?;
    println!("{signal}: the guest is stopped");
    Ok(())
}

/// Waits for a request, and answers it.
fn serve() -> std::io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, GUEST_PORT))?;
    for stream in listener.incoming() {
        let mut stream = stream?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let mut beginning = [0; 1024];
        if stream.read(&mut beginning).is_ok_and(|length| length > 0) {
            // The guest leaves, whether the one who asked still listens or not.
            let _ = stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
            return Ok(());
        }
    }
    Ok(())
}
