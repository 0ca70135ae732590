//! The first call of each function in a process.
//!
//! A breakpoint replaces the first byte of each function. The first call meets it, and removes it.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context;
use nix::errno::Errno;
use nix::sys::ptrace::{self, Options};
use nix::sys::signal::Signal;
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::Pid;

use super::map::Function;

/// The instruction `int3`.
const BREAKPOINT: u8 = 0xcc;
/// Time between two looks for stopped threads, at first and at last.
const PAUSES: [Duration; 2] = [Duration::from_micros(50), Duration::from_millis(10)];
/// A thread that stops because of `PTRACE_INTERRUPT`, or because it is new.
const EVENT_STOP: i32 = 128;

/// Returns the functions that a process calls until then, by their indexes, in the order of their first calls. The process
/// runs on afterwards.
///
/// # Errors
/// If the process cannot be traced. If it ends, that is no error.
pub(super) fn first_calls(pid: i32, functions: &[Function<'_>], end: Instant) -> anyhow::Result<Vec<usize>> {
    let mut traced = Traced::stop(pid, functions)?;
    traced.set_breakpoints()?;
    traced.resume();
    let [first, last] = PAUSES;
    let mut pause = first;
    while Instant::now() < end && !traced.threads.is_empty() {
        if traced.serve(WaitPidFlag::WNOHANG)? {
            pause = first;
        } else {
            thread::sleep(pause);
            pause = last.min(pause * 2);
        }
    }
    traced.interrupt();
    while traced.running() {
        traced.serve(WaitPidFlag::empty())?;
    }
    traced.remove_breakpoints()?;
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
    /// The end is near: stopped threads are not resumed.
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
                ptrace::seize(thread, Options::PTRACE_O_TRACECLONE).context("cannot trace it")?;
                ptrace::interrupt(thread).context("cannot stop it")?;
                traced.threads.insert(thread, false);
            }
            if traced.threads.len() == known {
                break;
            }
        }
        while traced.running() {
            traced.serve(WaitPidFlag::empty())?;
        }
        Ok(traced)
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

    /// Some threads are not stopped.
    fn running(&self) -> bool {
        self.threads.values().any(|stopped| !stopped)
    }

    /// Serves a thread that stopped. Returns false if there is none.
    fn serve(&mut self, flags: WaitPidFlag) -> anyhow::Result<bool> {
        // Other threads of this program trace other processes.
        let flags = flags | WaitPidFlag::__WALL | WaitPidFlag::__WNOTHREAD;
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
                self.threads.insert(thread, true);
            }
            WaitStatus::PtraceEvent(thread, _, _) => {
                self.threads.insert(thread, false);
                let _ = ptrace::cont(thread, None);
            }
            WaitStatus::Stopped(thread, Signal::SIGTRAP) => {
                let signal = (!self.met_breakpoint(thread)?).then_some(Signal::SIGTRAP);
                let _ = ptrace::cont(thread, signal);
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
