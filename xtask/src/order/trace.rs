//! The first call of each function in a process.
//!
//! A breakpoint replaces the first byte of each function. The first call meets it, and removes it.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::map::Function;

/// The instruction `int3`.
const BREAKPOINT: u8 = 0xcc;
/// Shortest and longest pause between two looks for stopped threads.
const PAUSES: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(10)];
/// Time within which all threads of a process must stop.
const PATIENCE: Duration = Duration::from_secs(10);
/// The event of a thread that `PTRACE_INTERRUPT` stopped, or that is new.
const EVENT_STOP: i32 = 128;

/// Returns the functions that a process calls before `end`, by their indexes, in the order of their first calls. The process
/// runs on afterwards.
///
/// # Errors
/// If the process cannot be traced. If it ends, that is no error.
pub(super) fn first_calls(pid: i32, functions: &[Function<'_>], end: Instant) -> anyhow::Result<Vec<usize>> {
    let mut traced = Traced::stop(pid, functions)?;
    traced.set_breakpoints()?;
    traced.resume();
    let recorded = traced.record(end);
    traced.interrupt();
    let settled = traced.settle();
    traced.remove_breakpoints()?;
    recorded.and(settled)?;
    for thread in traced.threads.keys() {
        // It may have been killed.
        let _ = ptrace::detach(*thread, None);
    }
    Ok(traced.calls)
}

/// A process with breakpoints.
struct Traced<'a> {
    functions: &'a [Function<'a>],
    by_address: HashMap<u64, usize>,
    memory: File,
    /// The first bytes of all functions.
    bytes: Vec<u8>,
    /// True for threads that are stopped and stay so.
    threads: HashMap<Pid, bool>,
    /// Recording has ended, or not begun: stopped threads stay stopped.
    ends: bool,
    called: BTreeSet<usize>,
    calls: Vec<usize>,
}

impl<'a> Traced<'a> {
    /// Stops all threads of a process.
    fn stop(pid: i32, functions: &'a [Function<'a>]) -> anyhow::Result<Self> {
        let memory = File::options()
            .read(true)
            .write(true)
            .open(format!("/proc/{pid}/mem"))
            .context("cannot open its memory")?;
        let by_address = functions
            .iter()
            .enumerate()
            .map(|(index, it)| (it.address, index))
            .collect();
        let mut traced = Self {
            functions,
            by_address,
            memory,
            bytes: vec![0; functions.len()],
            threads: HashMap::new(),
            ends: true,
            called: BTreeSet::new(),
            calls: Vec::new(),
        };
        // A thread that is not stopped yet may start another one.
        loop {
            let tasks = fs::read_dir(format!("/proc/{pid}/task")).context("cannot list its threads")?;
            let known = traced.threads.len();
            for task in tasks {
                let name = task.context("cannot list its threads")?.file_name();
                let Some(thread) = name
                    .to_str()
                    .and_then(|name| name.parse().ok())
                    .map(Pid::from_raw)
                else {
                    continue;
                };
                if traced.threads.contains_key(&thread) {
                    continue;
                }
                match ptrace::seize(thread, Options::PTRACE_O_TRACECLONE) {
                    // It has ended.
                    Err(Errno::ESRCH) => continue,
                    seized => seized.context("cannot trace it")?,
                }
                if ptrace::interrupt(thread).is_ok() {
                    traced.threads.insert(thread, false);
                }
            }
            if traced.threads.len() == known {
                break;
            }
        }
        traced.settle()?;
        Ok(traced)
    }

    /// Records until `end`, or until the process ends.
    fn record(&mut self, end: Instant) -> anyhow::Result<()> {
        let [first, last] = PAUSES;
        let mut pause = first;
        while Instant::now() < end && !self.threads.is_empty() {
            if self.serve()? {
                pause = first;
            } else {
                thread::sleep(pause);
                pause = last.min(pause * 2);
            }
        }
        Ok(())
    }

    /// Waits until all threads are stopped.
    fn settle(&mut self) -> anyhow::Result<()> {
        let end = Instant::now() + PATIENCE;
        while self.threads.values().any(|stopped| !stopped) {
            ensure!(
                Instant::now() < end,
                "its threads did not stop within {} s",
                PATIENCE.as_secs()
            );
            if !self.serve()? {
                thread::sleep(PAUSES[0]);
            }
        }
        Ok(())
    }

    fn set_breakpoints(&mut self) -> anyhow::Result<()> {
        for (index, function) in self.functions.iter().enumerate() {
            let byte = &mut self.bytes[index..=index];
            self.memory
                .read_exact_at(byte, function.address)
                .context("cannot read its program")?;
        }
        for function in self.functions {
            self.write(function.address, BREAKPOINT)?;
        }
        Ok(())
    }

    fn remove_breakpoints(&self) -> anyhow::Result<()> {
        if self.threads.is_empty() {
            return Ok(());
        }
        for (function, byte) in self.functions.iter().zip(&self.bytes) {
            self.write(function.address, *byte)?;
        }
        Ok(())
    }

    fn write(&self, address: u64, byte: u8) -> anyhow::Result<()> {
        self.memory
            .write_all_at(&[byte], address)
            .context("cannot write to its program")
    }

    fn resume(&mut self) {
        self.ends = false;
        for (thread, stopped) in &mut self.threads {
            *stopped = false;
            let _ = ptrace::cont(*thread, None);
        }
    }

    fn interrupt(&mut self) {
        self.ends = true;
        for thread in self.threads.keys() {
            let _ = ptrace::interrupt(*thread);
        }
    }

    /// Handles the stop of one thread. Returns false if no thread has stopped.
    fn serve(&mut self) -> anyhow::Result<bool> {
        // Other threads of this program trace other processes.
        let flags = WaitPidFlag::WNOHANG | WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
        let status = match waitpid(None, Some(flags)) {
            Ok(WaitStatus::StillAlive) => return Ok(false),
            Ok(status) => status,
            Err(Errno::EINTR) => return Ok(true),
            Err(Errno::ECHILD) => {
                self.threads.clear();
                return Ok(false);
            }
            Err(error) => return Err(error).context("cannot wait for its threads"),
        };
        match status {
            WaitStatus::Exited(thread, _) | WaitStatus::Signaled(thread, _, _) => {
                self.threads.remove(&thread);
            }
            WaitStatus::PtraceEvent(thread, _, EVENT_STOP) if self.ends => {
                // The thread may have met a breakpoint just before: it takes that signal first.
                let meets = has_pending_trap(thread);
                self.threads.insert(thread, !meets);
                if meets {
                    let _ = ptrace::cont(thread, None);
                }
            }
            WaitStatus::PtraceEvent(thread, _, _) => {
                self.threads.insert(thread, false);
                let _ = ptrace::cont(thread, None);
            }
            WaitStatus::Stopped(thread, Signal::SIGTRAP) => {
                let met = self.met_breakpoint(thread)?;
                if met && self.ends {
                    self.threads.insert(thread, true);
                } else {
                    let _ = ptrace::cont(thread, (!met).then_some(Signal::SIGTRAP));
                }
            }
            WaitStatus::Stopped(thread, signal) => {
                let _ = ptrace::cont(thread, signal);
            }
            _ => {}
        }
        Ok(true)
    }

    /// Records the function, removes its breakpoint, and lets the thread execute it. Returns false if the thread stopped
    /// elsewhere.
    fn met_breakpoint(&mut self, thread: Pid) -> anyhow::Result<bool> {
        let Ok(mut registers) = ptrace::getregs(thread) else {
            return Ok(true);
        };
        let next = next_instruction(&mut registers);
        let address = *next - 1;
        let Some(index) = self.by_address.get(&address).copied() else {
            return Ok(false);
        };
        // Two threads may meet it at once.
        if self.called.insert(index) {
            self.calls.push(index);
            self.write(address, self.bytes[index])?;
        }
        *next = address;
        let _ = ptrace::setregs(thread, registers);
        Ok(true)
    }
}

fn next_instruction(registers: &mut nix::libc::user_regs_struct) -> &mut u64 {
    #[cfg(target_arch = "x86_64")]
    return &mut registers.rip;
    #[cfg(not(target_arch = "x86_64"))]
    return &mut registers.pc;
}

/// Returns true if a thread has not taken the signal of a breakpoint yet.
fn has_pending_trap(thread: Pid) -> bool {
    let status = fs::read_to_string(format!("/proc/{thread}/status")).unwrap_or_default();
    let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    let pending = pending.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    pending.is_some_and(|mask| mask & (1 << (Signal::SIGTRAP as i32 - 1)) != 0)
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::order::link::tests::linked;
    use crate::order::map;

    const SOURCE: &str = "
#include <pthread.h>
#include <unistd.h>
int first() { return 1; }
int second() { return 2; }
int third() { return 3; }
int never() { return 4; }
void *thread(void *none) { for (;;) { third(); usleep(100); } }
int main(int argc, char **argv) {
    pthread_t started;
    if (argc > 1) return never();
    pthread_create(&started, 0, thread, 0);
    for (;;) { first(); second(); usleep(100); }
}";

    #[test]
    fn process_runs_on_after_its_calls_were_recorded() {
        let dir = tempfile::tempdir().unwrap();
        let (program, map) = linked(dir.path(), SOURCE, "");
        let functions = map::functions(&map);
        let mut process = Command::new(program).spawn().unwrap();
        let pid = i32::try_from(process.id()).unwrap();
        let mut record = || {
            let end = Instant::now() + Duration::from_millis(500);
            let called = first_calls(pid, &functions, end).unwrap();
            assert!(process.try_wait().unwrap().is_none(), "the process has ended");
            let names = called.into_iter().map(|index| functions[index].symbol);
            names
                .filter(|name| ["first", "second", "third", "never"].contains(name))
                .collect::<Vec<_>>()
        };
        let mut names = BTreeSet::new();
        let patience = Instant::now() + Duration::from_secs(60);
        while names.len() < 3 && Instant::now() < patience {
            names.extend(record());
        }
        // The process can be recorded again.
        names.extend(record());
        assert_eq!(names, BTreeSet::from(["first", "second", "third"]));
        process.kill().unwrap();
        process.wait().unwrap();
    }
}
