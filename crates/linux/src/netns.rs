//! Network namespaces: opening them as CNI does, and running code inside with a guaranteed return.

use std::{
    fs::File,
    os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Mode, OFlags, StatFs, fstat, fstatfs, open, statfs},
    net::{self, AddressFamily, SocketFlags, SocketType},
    thread::{LinkNameSpaceType, move_into_link_name_space},
};

use crate::{
    Errno, Error, Result,
    error::text,
    thread::{self, Own},
};

/// Magic numbers of the file systems of namespace files.
const NSFS: u32 = 0x6e73_6673;
const PROCFS: u32 = 0x9fa0;
/// The namespace of the calling thread, not of the process.
const THREAD_NAMESPACE: &str = "/proc/thread-self/ns/net";

/// The path is not an open network namespace (cni-plugins §2.1).
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The path cannot be read, usually because it does not exist.
    #[error("failed to Statfs \"{}\": {}", path.display(), text(*errno))]
    Statfs {
        /// The given path.
        path: PathBuf,
        /// The kernel's error number.
        errno: Errno,
    },
    /// The path exists, but its file system has no namespaces.
    #[error("unknown FS magic on \"{}\": {magic:x}", path.display())]
    NotNamespace {
        /// The given path.
        path: PathBuf,
        /// Magic number of its file system.
        magic: u32,
    },
}

impl OpenError {
    /// The namespace at the path is gone, even if another file took its place.
    pub fn is_gone(&self) -> bool {
        match self {
            OpenError::Statfs { errno, .. } => matches!(*errno, Errno::NOENT | Errno::NOTDIR | Errno::SRCH),
            OpenError::NotNamespace { .. } => true,
        }
    }
}

/// An open network namespace. It lives at least as long as this value.
#[derive(Debug)]
pub struct NetNs {
    file: OwnedFd,
}

impl NetNs {
    /// Opens the namespace at `path` (a bind mount, or a file in `/proc/<pid>/ns`). Another user may have chosen the
    /// path, and the open of a pipe could block: the file system is checked before the open, and again afterwards.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let failed = |errno| OpenError::Statfs {
            path: path.to_owned(),
            errno,
        };
        require_namespace(path, &statfs(path).map_err(failed)?)?;
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = open(path, flags, Mode::empty()).map_err(failed)?;
        require_namespace(path, &fstatfs(&file).map_err(failed)?)?;
        Ok(NetNs { file })
    }

    /// Returns the namespace of the calling thread.
    pub fn current() -> Result<Self> {
        let file = File::open(THREAD_NAMESPACE)
            .map_err(|e| Error::io("open network namespace", THREAD_NAMESPACE, &e))?;
        Ok(NetNs { file: file.into() })
    }

    /// Creates a namespace that lives only as long as the returned value, for tests.
    pub fn create_anonymous() -> Result<Self> {
        let thread = std::thread::Builder::new()
            .name("new-netns".into())
            .spawn(|| {
                unshare_network()?;
                NetNs::current()
            })
            .map_err(|e| Error::io("create network namespace", "", &e))?;
        thread
            .join()
            .unwrap_or_else(|_| Err(Error::kernel("create network namespace", "", Errno::IO)))
    }

    /// Both are the same namespace.
    pub fn same_as(&self, other: &NetNs) -> bool {
        match (fstat(&self.file), fstat(&other.file)) {
            (Ok(a), Ok(b)) => (a.st_dev, a.st_ino) == (b.st_dev, b.st_ino),
            _ => false,
        }
    }

    /// A number that the kernel assigns to no other namespace until the next boot. Inode numbers and paths are reused.
    /// `None` before Linux 5.14.
    pub fn cookie(&self) -> Option<u64> {
        let socket = self
            .run(|| {
                // Close-on-exec: a program that another thread starts now must not keep the namespace alive.
                let flags = SocketFlags::CLOEXEC;
                net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)
            })
            .ok()?
            .ok()?;
        let mut cookie = 0_u64;
        let mut length = libc::socklen_t::try_from(size_of_val(&cookie)).ok()?;
        #[allow(unsafe_code, reason = "no crate of the workspace has this option")]
        // SAFETY: the descriptor is open, and the kernel writes at most `length` bytes to `cookie`, which has that many.
        let done = unsafe {
            libc::getsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                libc::SO_NETNS_COOKIE,
                (&raw mut cookie).cast(),
                &raw mut length,
            )
        };
        (done == 0).then_some(cookie)
    }

    /// Runs `visit` on this thread inside the namespace, and returns the thread to its namespace, even if `visit`
    /// panics. A thread that cannot return must not continue: the process ends, or only the thread if it [is
    /// spared](thread::spare_this_thread).
    pub fn run<T>(&self, visit: impl FnOnce() -> T) -> Result<T> {
        let own = NetNs::current()?;
        enter(self)?;
        let _return = ReturnToNamespace(own);
        Ok(visit())
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// Fails if the file system has no namespaces.
fn require_namespace(path: &Path, kind: &StatFs) -> Result<(), OpenError> {
    // The type of the field differs between platforms. The magic numbers fit into 32 bits.
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "magic numbers have 32 bits"
    )]
    let magic = kind.f_type as u32;
    if magic == NSFS || magic == PROCFS {
        return Ok(());
    }
    Err(OpenError::NotNamespace {
        path: path.to_owned(),
        magic,
    })
}

/// Returns the thread to its namespace when dropped.
struct ReturnToNamespace(NetNs);

impl Drop for ReturnToNamespace {
    fn drop(&mut self) {
        if let Err(error) = enter(&self.0) {
            thread::end_lost_thread("network namespace", &error);
        }
    }
}

fn enter(namespace: &NetNs) -> Result<()> {
    move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network))
        .map_err(|errno| Error::kernel("enter network namespace", "", errno))
}

/// Moves the calling thread permanently into a new network namespace.
pub fn unshare_network() -> Result<()> {
    thread::unshare(Own::Network).map_err(|errno| Error::kernel("create network namespace", "", errno))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_path_and_plain_file_have_different_errors() {
        let missing = NetNs::open(Path::new("/nowhere/at/all")).unwrap_err();
        assert_eq!(
            missing.to_string(),
            "failed to Statfs \"/nowhere/at/all\": no such file or directory"
        );
        assert!(missing.is_gone());
        let plain = NetNs::open(Path::new("/sys/kernel")).unwrap_err();
        assert_eq!(plain.to_string(), "unknown FS magic on \"/sys/kernel\": 62656572");
        assert!(plain.is_gone());
    }

    #[test]
    fn pipe_or_socket_in_place_of_a_namespace_is_not_opened() {
        // cni-plugins#78
        let folder = std::env::temp_dir().join(format!("weft-netns-{}", std::process::id()));
        std::fs::create_dir(&folder).unwrap();
        let [pipe, socket] = ["pipe", "socket"].map(|name| folder.join(name));
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, fifo, Mode::RWXU, 0).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        for path in [&pipe, &socket] {
            let error = NetNs::open(path).unwrap_err();
            assert!(
                matches!(error, OpenError::NotNamespace { .. }) && error.is_gone(),
                "{error}"
            );
        }
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn namespace_equals_itself() {
        let a = NetNs::current().unwrap();
        let b = NetNs::open(Path::new("/proc/thread-self/ns/net")).unwrap();
        assert!(a.same_as(&b));
    }
}
