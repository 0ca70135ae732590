//! Keeps the processors busy, to find tests that fail when they have to wait for a processor.

use std::num::NonZero;
use std::process::{Child, Command, Stdio};

use anyhow::Context;

/// Endless loops, one more than there are processors. They end with this value, and with this process.
#[derive(Debug, Default)]
pub(super) struct Load(Vec<Child>);

impl Load {
    /// # Errors
    /// If a loop cannot be started, because the processors would be less busy than the flag requests.
    pub(super) fn start() -> anyhow::Result<Self> {
        let processors = std::thread::available_parallelism().map_or(1, NonZero::get);
        let mut load = Self::default();
        for _ in 0..=processors {
            let mut spin = Command::new("setpriv");
            spin.args(["--pdeathsig", "KILL", "sh", "-c", "while :; do :; done"]);
            let child = spin.stdin(Stdio::null()).spawn();
            load.0
                .push(child.context("cannot keep the processors busy with setpriv")?);
        }
        Ok(load)
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
    fn processes_end_with_the_load() {
        let load = Load::start().unwrap();
        let pids: Vec<u32> = load.0.iter().map(Child::id).collect();
        assert!(pids.len() > 1, "{pids:?}");
        drop(load);
        assert!(
            pids.iter()
                .all(|pid| !std::path::Path::new(&format!("/proc/{pid}")).exists())
        );
    }
}
