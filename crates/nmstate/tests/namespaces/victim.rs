//! A handler that is killed: another process on the host of the test, which changes it and never commits.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use weft_nmstate::engine::{Backend, Engine};

use crate::host::wait;
use crate::kernel::takeover;

/// Timeout of every wait on a slow machine.
pub(crate) const DEADLINE: Duration = Duration::from_mins(1);
/// Variable that enables [`change_that_is_never_committed`], with its directory.
const DIRECTORY: &str = "WEFT_TEST_VICTIM";
/// Variable with the backend of the change.
const BACKEND: &str = "WEFT_TEST_VICTIM_BACKEND";
/// The file that exists once the victim has applied its change.
pub(crate) const APPLIED: &str = "applied";

/// Runs [`change_that_is_never_committed`] as another process on the host of the calling thread.
pub(crate) fn start(state: &Path, backend: Backend) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim::change_that_is_never_committed", "--nocapture"])
        .env(DIRECTORY, state)
        .env(BACKEND, format!("{backend:?}"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Kills it as soon as a file exists.
pub(crate) fn kill_once_there_is(victim: &mut Child, file: &Path) {
    let started = Instant::now();
    while !file.exists() {
        assert!(started.elapsed() < DEADLINE, "nothing was applied");
        assert_eq!(victim.try_wait().unwrap(), None, "it ended by itself");
        std::thread::yield_now();
    }
    victim.kill().unwrap();
    victim.wait().unwrap();
}

/// Nothing unless it is started as a victim.
#[test]
fn change_that_is_never_committed() {
    let Some(state) = std::env::var_os(DIRECTORY) else {
        return;
    };
    let state = PathBuf::from(state);
    let backend = match std::env::var(BACKEND).as_deref() {
        Ok("Kernel") => Backend::Kernel,
        _ => Backend::NetworkManager,
    };
    let engine = Engine::start_in(backend, &state).unwrap();
    wait(engine.apply(takeover())).unwrap();
    fs::write(state.join(APPLIED), "").unwrap();
    loop {
        std::thread::park();
    }
}
