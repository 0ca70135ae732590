//! Keeps the processors busy, for tests that fail only where they wait for their turn.

use std::num::NonZero;
use std::process::{Child, Command, Stdio};

/// Endless loops, one more than there are processors; they end when this is dropped, and with this process.
#[derive(Debug)]
pub(super) struct Load(Vec<Child>);

impl Load {
    pub(super) fn start() -> Self {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let spin = || {
            Command::new("setpriv")
                .args(["--pdeathsig", "KILL", "sh", "-c", "while :; do :; done"])
                .stdin(Stdio::null())
                .spawn()
        };
        Self((0..=processors).filter_map(|_| spin().ok()).collect())
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_processes_end_with_it() {
        let load = Load::start();
        let pids: Vec<u32> = load.0.iter().map(Child::id).collect();
        assert!(pids.len() > 1, "{pids:?}");
        drop(load);
        assert!(
            pids.iter()
                .all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists())
        );
    }
}
