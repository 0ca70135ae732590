//! What has to happen in a child between fork and exec, or on a thread that works as a child would.

use std::{
    fs::{File, OpenOptions},
    os::unix::process::CommandExt as _,
    path::Path,
    process::Command,
    sync::Arc,
};

use rustix::{
    mount::{MountPropagationFlags, mount_change},
    thread::UnshareFlags,
};

use crate::{Error, Result};

/// The open door of a cgroup: its `cgroup.procs`.
#[derive(Debug)]
pub struct Door(File);

impl Door {
    /// Opens it.
    pub fn open(processes: &Path) -> Result<Self> {
        OpenOptions::new()
            .write(true)
            .open(processes)
            .map(Door)
            .map_err(|e| Error::io("open cgroup", processes.display().to_string(), &e))
    }

    /// Makes `command` run in the cgroup, or where it would have run when the kernel refuses.
    pub fn lead(self: &Arc<Self>, command: &mut Command) {
        let door = Arc::clone(self);
        let hook = move || {
            // Zero is the process that writes it.
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

/// Makes `root` the root directory of the calling thread, for good, and puts it there. The other threads of the process
/// keep theirs; those that this one starts from now on share its.
pub fn enter_root(root: &Path) -> Result<()> {
    let failed = |errno| Error::kernel("change root directory", root.display().to_string(), errno);
    #[allow(
        unsafe_code,
        reason = "only CLONE_FILES makes unshare unsafe, and it is not asked for"
    )]
    // SAFETY: root and working directory of its own do not touch the table of file descriptors.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FS) }.map_err(failed)?;
    rustix::process::chroot(root).map_err(failed)?;
    rustix::process::chdir("/").map_err(failed)
}

/// Puts the calling thread, for good, into a mount namespace of its own, in which mounts are not passed on to
/// others: for tests, and for threads that work on another root.
pub fn unshare_mounts() -> Result<()> {
    const DOING: &str = "create mount namespace";
    #[allow(
        unsafe_code,
        reason = "only CLONE_FILES makes unshare unsafe, and it is not asked for"
    )]
    // SAFETY: a new mount namespace does not touch the table of file descriptors.
    let done = unsafe { rustix::thread::unshare_unsafe(UnshareFlags::NEWNS) };
    done.and_then(|()| mount_change("/", MountPropagationFlags::PRIVATE | MountPropagationFlags::REC))
        .map_err(|errno| Error::kernel(DOING, "", errno))
}
