//! `--check`: probes the daemon.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{Context as _, ensure};
use plugins::dhcp::wire::{Answer, MAX_LINE, Request};

use crate::names::TIMEOUT;

/// Succeeds if a daemon answers at `socket`.
pub(crate) fn answers(socket: &Path) -> anyhow::Result<()> {
    let answer = ask(socket).with_context(|| format!("no DHCP daemon answers at {}", socket.display()))?;
    ensure!(answer == Answer::Done, "the DHCP daemon answers {answer:?}");
    Ok(())
}

fn ask(socket: &Path) -> anyhow::Result<Answer> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut line = serde_json::to_vec(&Request::Status)?;
    line.push(b'\n');
    stream.write_all(&line)?;
    let mut answer = Vec::new();
    BufReader::new(stream.take(MAX_LINE)).read_until(b'\n', &mut answer)?;
    Ok(serde_json::from_slice(&answer)?)
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread::spawn;

    use super::*;

    #[test]
    fn check_passes_when_the_daemon_answers() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let error = format!("{:#}", answers(&socket).unwrap_err());
        assert!(error.starts_with("no DHCP daemon answers at "), "{error}");

        let listener = UnixListener::bind(&socket).unwrap();
        let daemon = spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            BufReader::new(&stream).read_line(&mut request).unwrap();
            stream.write_all(b"\"done\"\n").unwrap();
            request
        });
        answers(&socket).unwrap();
        assert_eq!(daemon.join().unwrap(), "\"status\"\n");
    }
}
