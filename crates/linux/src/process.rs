//! Work of a child between fork and exec, and of threads that replace a child.

use std::{
    fs::{File, OpenOptions},
    os::fd::{FromRawFd as _, OwnedFd, RawFd},
    os::unix::process::CommandExt as _,
    path::Path,
    process::Command,
    sync::Arc,
};

use rustix::{
    fs::{CWD, Mode, OFlags, openat},
    mount::{MountPropagationFlags, mount_change},
    process::{chdir, chroot, fchdir},
};

use crate::{
    Error, Result,
    thread::{self, Own},
};

/// The open `cgroup.procs` of a cgroup.
#[derive(Debug)]
pub struct Door(File);

impl Door {
    /// Opens the file.
    pub fn open(processes: &Path) -> Result<Self> {
        OpenOptions::new()
            .write(true)
            .open(processes)
            .map(Door)
            .map_err(|e| Error::io("open cgroup", processes.display().to_string(), &e))
    }

    /// Makes `command` run in the cgroup, or in the cgroup of this process if the kernel refuses.
    pub fn lead(self: &Arc<Self>, command: &mut Command) {
        let door = Arc::clone(self);
        let hook = move || {
            // Zero stands for the writing process.
            let _ = rustix::io::write(&door.0, b"0");
            Ok(())
        };
        #[allow(
            unsafe_code,
            reason = "there is no safe way to run code between fork and exec"
        )]
        // SAFETY: the hook makes one system call on a file that was opened before the fork; it neither allocates nor
        // takes a lock.
        unsafe {
            command.pre_exec(hook);
        }
    }
}

/// Runs `visit` on this thread with `root` as its root and working directory. Restores both directories of the thread,
/// even if `visit` panics. Other threads keep their directories; threads and processes that `visit` starts keep `root`.
/// If the directories cannot be restored, the thread or the process ends, as with
/// [`NetNs::run`](crate::netns::NetNs::run).
pub fn with_root<T>(root: &Path, visit: impl FnOnce() -> T) -> Result<T> {
    let failed = |errno| Error::kernel(ROOT, root.display().to_string(), errno);
    let before = place("/").map_err(failed)?;
    let directory = place(".").map_err(failed)?;
    thread::unshare(Own::Directories).map_err(failed)?;
    chroot(root).map_err(failed)?;
    // Created after unshare: before it, the return would change the directories of all threads.
    let _restore = RestoreDirectories {
        root: before,
        directory,
    };
    chdir("/").map_err(failed)?;
    Ok(visit())
}

const ROOT: &str = "change root directory";

/// Opens a directory for a later return.
fn place(path: &str) -> rustix::io::Result<OwnedFd> {
    openat(
        CWD,
        path,
        OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
        Mode::empty(),
    )
}

/// Restores the directories of the thread when dropped.
struct RestoreDirectories {
    root: OwnedFd,
    directory: OwnedFd,
}

impl Drop for RestoreDirectories {
    fn drop(&mut self) {
        // Threads that were started meanwhile share root and directory until then.
        let done = thread::unshare(Own::Directories)
            .and_then(|()| fchdir(&self.root))
            .and_then(|()| chroot("."))
            .and_then(|()| fchdir(&self.directory));
        if let Err(errno) = done {
            thread::end_lost_thread("root directory", &Error::kernel(ROOT, "", errno));
        }
    }
}

/// Moves the calling thread permanently into a new mount namespace that does not propagate mounts: for tests and
/// benchmarks.
pub fn unshare_mounts() -> Result<()> {
    const DOING: &str = "create mount namespace";
    thread::unshare(Own::Mounts)
        .and_then(|()| mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC))
        .map_err(|errno| Error::kernel(DOING, "", errno))
}

/// The first passed socket, by the convention of service managers.
const FIRST_PASSED: RawFd = 3;

/// Takes the sockets that a service manager such as systemd opened for this process (`LISTEN_PID` and `LISTEN_FDS`).
///
/// Call this once, before the process opens files.
pub fn take_passed_sockets() -> Vec<OwnedFd> {
    let number = |name| std::env::var(name).ok()?.parse::<u32>().ok();
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Vec::new();
    }
    let passed = RawFd::try_from(number("LISTEN_FDS").unwrap_or_default()).unwrap_or_default();
    (FIRST_PASSED..FIRST_PASSED.saturating_add(passed))
        .filter_map(|fd| {
            // A descriptor that is not open is no socket.
            let is_open = std::fs::exists(format!("/proc/self/fd/{fd}")).unwrap_or_default();
            #[allow(unsafe_code, reason = "inherited descriptors have no owner yet")]
            // SAFETY: the descriptor is open, and no other part of this process owns it.
            is_open.then(|| unsafe { OwnedFd::from_raw_fd(fd) })
        })
        .collect()
}
