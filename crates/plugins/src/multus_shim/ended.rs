//! The note that a daemon leaves for the shim when it exits, and the shim's handling of a daemon that does not come
//! back.
//!
//! ```text
//! <socket dir>/multus.sock    no listener
//! <socket dir>/ended          {"endedAt": 4711, "configuration": "/etc/cni/net.d/00-multus.conf"}
//! ```
//!
//! The daemon keeps the runtime's configuration when it exits, because it does not know whether it is restarted. On a
//! node from which multus was removed, no pod starts while the configuration exists, and only the shim can remove it.
//! A killed daemon leaves no note, because it is restarted.
//!
//! A restarted daemon first listens, then removes the note, then writes its configuration, which it also restores
//! after a removal. So the configuration exists in the end, whatever the order of shim and daemon.

use std::fs::{self, File, TryLockError};
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::MetadataExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni::{files, json};
use linux::files::{Links, open_regular};
use serde::{Deserialize, Serialize};

/// The CNI configuration that makes the runtime call the shim.
pub const CONF_FILE: &str = "00-multus.conf";
/// The note's name in the directory of the socket.
pub const NOTE: &str = "ended";
/// How long after its exit a daemon counts as removed for good: longer than a rolling update with a slow image pull.
/// Upstream's daemon removes its configuration at once.
pub const GONE: Duration = Duration::from_secs(2 * 60);
/// Maximum file size in bytes. A note and a configuration have a few hundred.
const MAX_FILE: u64 = 1024 * 1024;

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Note {
    /// Seconds since boot.
    ended_at: u64,
    /// Host path of the runtime's configuration.
    configuration: PathBuf,
}

/// Time since boot, including suspend (`CLOCK_BOOTTIME`). Independent of clock changes.
pub fn since_boot() -> Duration {
    let seconds = rustix::system::sysinfo().uptime;
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}

/// Writes the note: the daemon of the socket in `dir` exited `now` and kept the file at the host path
/// `configuration`.
///
/// # Errors
/// The note cannot be written. Then there is none, or the previous one.
pub fn leave(dir: &Path, configuration: &Path, now: Duration) -> io::Result<()> {
    let note = Note {
        ended_at: now.as_secs(),
        configuration: configuration.to_owned(),
    };
    files::write_lazily(&dir.join(NOTE), &serde_json::to_vec(&note)?, 0o600)
}

/// Removes the note. A missing note is no error.
///
/// # Errors
/// The note cannot be removed.
pub fn remove(dir: &Path) -> io::Result<()> {
    files::remove_if_present(&dir.join(NOTE))
}

/// Removes the runtime's configuration if the daemon of `socket` left a note at least [`GONE`] ago. Returns the
/// removed file, `None` if it is kept.
///
/// # Errors
/// The configuration cannot be removed.
pub(super) fn withdraw(socket: &Path, now: Duration) -> io::Result<Option<PathBuf>> {
    let path = socket.with_file_name(NOTE);
    let Some((file, note)) = read(&path) else {
        return Ok(None);
    };
    let age = now.checked_sub(Duration::from_secs(note.ended_at));
    if age.is_none_or(|age| age < GONE) || !claim(&file, &path)? || !is_silent(socket) {
        return Ok(None);
    }
    let Note { configuration, .. } = note;
    if !is_ours(&configuration) {
        return Ok(None);
    }
    // In this order: an interruption in between leaves the note for the next shim.
    fs::remove_file(&configuration)?;
    files::remove_if_present(&path)?;
    Ok(Some(configuration))
}

/// The note, if it is valid.
fn read(path: &Path) -> Option<(File, Note)> {
    let (file, text) = read_regular(path)?;
    let note: Note = serde_json::from_slice(&text).ok()?;
    let conf = &note.configuration;
    let is_known = conf.is_absolute() && conf.file_name().is_some_and(|name| name == CONF_FILE);
    is_known.then_some((file, note))
}

/// Locks the note, so that only one of several shims handles it. `false` if the note was removed or replaced since it
/// was read.
fn claim(note: &File, path: &Path) -> io::Result<bool> {
    match note.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Ok(false),
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let read = note.metadata()?;
    let there = fs::symlink_metadata(path);
    Ok(there.is_ok_and(|there| (there.dev(), there.ino()) == (read.dev(), read.ino())))
}

/// Whether the socket certainly has no listener.
fn is_silent(socket: &Path) -> bool {
    UnixStream::connect(socket)
        .is_err_and(|error| matches!(error.kind(), ErrorKind::NotFound | ErrorKind::ConnectionRefused))
}

/// Whether a configuration calls the shim.
fn is_ours(configuration: &Path) -> bool {
    #[derive(Deserialize)]
    struct Configuration {
        r#type: String,
    }
    let text = read_regular(configuration).map(|(_, text)| text);
    let configuration = text.and_then(|text| json::from_slice::<Configuration>(&text).ok());
    configuration.is_some_and(|configuration| configuration.r#type == super::NAME)
}

/// Reads a regular file without following a symbolic link.
fn read_regular(path: &Path) -> Option<(File, Vec<u8>)> {
    let file = open_regular(path, Links::Refuse).ok()?;
    let mut text = Vec::new();
    (&file).take(MAX_FILE).read_to_end(&mut text).ok()?;
    Some((file, text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::net::{AddressFamily, SocketAddrUnix, SocketType};
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    const ENDED: Duration = Duration::from_secs(1000);
    const LATER: Duration = Duration::from_secs(1120);
    const OURS: &str = r#"{"cniVersion":"0.3.1","name":"multus-cni-network","type":"multus-shim"}"#;

    struct Node(tempfile::TempDir);

    impl Node {
        /// A daemon that ended orderly and kept its configuration.
        fn left() -> Self {
            let node = Self(tempfile::tempdir().unwrap());
            fs::write(node.conf(), OURS).unwrap();
            leave(node.0.path(), &node.conf(), ENDED).unwrap();
            node
        }

        fn conf(&self) -> PathBuf {
            self.0.path().join(CONF_FILE)
        }

        fn note(&self) -> PathBuf {
            self.0.path().join(NOTE)
        }

        fn socket(&self) -> PathBuf {
            self.0.path().join("multus.sock")
        }

        fn withdraw(&self, now: Duration) -> Option<PathBuf> {
            withdraw(&self.socket(), now).unwrap()
        }

        fn names(&self) -> Vec<String> {
            let entries = fs::read_dir(self.0.path()).unwrap();
            let mut names: Vec<_> = entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .collect();
            names.sort();
            names
        }

        /// Nothing happens, whenever.
        fn stays(&self, why: &str) {
            let before = self.names();
            assert_eq!(self.withdraw(LATER), None, "{why}");
            assert_eq!(self.names(), before, "{why}");
        }
    }

    #[test]
    fn withdraw_after_grace_period_removes_the_configuration() {
        let node = Node::left();
        // A socket that a daemon left behind. It never listened: a child that another test just starts may still hold it.
        let left = rustix::net::socket(AddressFamily::UNIX, SocketType::STREAM, None).unwrap();
        rustix::net::bind(&left, &SocketAddrUnix::new(node.socket()).unwrap()).unwrap();
        assert_eq!(node.withdraw(LATER), Some(node.conf()));
        assert_eq!(node.names(), ["multus.sock"]);
        assert_eq!(node.withdraw(LATER), None);
    }

    #[test]
    fn withdraw_within_grace_period_keeps_the_configuration() {
        let node = Node::left();
        assert_eq!(node.withdraw(Duration::from_secs(1119)), None);
        // A note of another boot.
        assert_eq!(node.withdraw(Duration::from_secs(999)), None);
        assert_eq!(node.names(), [CONF_FILE, NOTE]);
        // A newer end counts anew.
        leave(node.0.path(), &node.conf(), LATER).unwrap();
        node.stays("a newer end");
    }

    #[test]
    fn withdraw_without_note_keeps_the_configuration() {
        let node = Node::left();
        remove(node.0.path()).unwrap();
        remove(node.0.path()).unwrap();
        node.stays("no note");
        assert_eq!(node.names(), [CONF_FILE]);
    }

    #[test]
    fn withdraw_with_restarted_daemon_keeps_the_configuration() {
        let node = Node::left();
        let _daemon = UnixListener::bind(node.socket()).unwrap();
        node.stays("it listens");
    }

    #[test]
    fn note_is_claimed_once_and_not_after_replacement() {
        let node = Node::left();
        let (other, _) = read(&node.note()).unwrap();
        assert!(claim(&other, &node.note()).unwrap());
        node.stays("another shim is at it");
        leave(node.0.path(), &node.conf(), LATER).unwrap();
        assert!(!claim(&other, &node.note()).unwrap(), "another note");
        remove(node.0.path()).unwrap();
        assert!(!claim(&other, &node.note()).unwrap(), "no note");
    }

    #[test]
    fn foreign_rules_are_kept() {
        let node = Node::left();
        for text in [
            "{",
            r#"{"type":"multus"}"#,
            r#"{"plugins":[{"type":"multus-shim"}]}"#,
        ] {
            fs::write(node.conf(), text).unwrap();
            node.stays(text);
        }
        fs::write(node.0.path().join("other"), OURS).unwrap();
        fs::remove_file(node.conf()).unwrap();
        node.stays("nothing there");
        symlink(node.0.path().join("other"), node.conf()).unwrap();
        node.stays("a link");
    }

    #[test]
    fn invalid_note_is_ignored() {
        let node = Node::left();
        let whole = fs::read_to_string(node.note()).unwrap();
        let other = node.0.path().join("10-multus.conf");
        fs::write(&other, OURS).unwrap();
        let half = whole[..whole.len() / 2].to_owned();
        let of = |path: &Path| format!(r#"{{"endedAt":1,"configuration":"{}"}}"#, path.display());
        for text in [half, String::new(), of(Path::new(CONF_FILE)), of(&other)] {
            fs::write(node.note(), &text).unwrap();
            node.stays(&text);
        }
        fs::remove_file(node.note()).unwrap();
        fs::write(node.0.path().join("elsewhere"), whole).unwrap();
        symlink(node.0.path().join("elsewhere"), node.note()).unwrap();
        node.stays("a link");
        fs::remove_file(node.note()).unwrap();
        fs::create_dir(node.note()).unwrap();
        node.stays("a directory");
    }

    #[test]
    fn clock_matches_the_kernel() {
        let text = fs::read_to_string("/proc/uptime").unwrap();
        let seconds: f64 = text.split(' ').next().unwrap().parse().unwrap();
        let uptime = Duration::from_secs_f64(seconds);
        assert!(since_boot().abs_diff(uptime) < Duration::from_secs(60));
    }
}
