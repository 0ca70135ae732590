//! A log file of bounded size (multus.md §11): a full file becomes a backup, and old backups are deleted.

use crate::logging::with_digits;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, SystemTime};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{self, FormatTime as _};

/// Limits of a log file and of its backups.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Rotation {
    /// Maximum size of the file in bytes.
    pub max_size: u64,
    /// Maximum age of backups; `None` for no limit.
    pub max_age: Option<Duration>,
    /// Maximum number of backups; `None` for no limit.
    pub max_backups: Option<usize>,
}

/// A rotated log file.
#[derive(Debug)]
pub(crate) struct Rotated {
    path: PathBuf,
    rotation: Rotation,
    file: File,
    size: u64,
}

impl Rotated {
    /// Opens the file for appending; creates it and its directory if they do not exist.
    ///
    /// # Errors
    /// If the file or its directory cannot be created or opened.
    pub(crate) fn open(path: &Path, rotation: Rotation) -> io::Result<Self> {
        if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
            fs::DirBuilder::new().recursive(true).mode(0o755).create(dir)?;
        }
        let file = append(path)?;
        let size = file.metadata()?.len();
        Ok(Self {
            path: path.to_owned(),
            rotation,
            file,
            size,
        })
    }

    /// Makes a backup of the full file. If that fails, logging continues in the same file: a file that is too long is
    /// better than none.
    fn rotate(&mut self, now: SystemTime) -> io::Result<()> {
        fs::rename(&self.path, free(&self.path))?;
        self.file = append(&self.path)?;
        self.size = 0;
        self.clean(now);
        Ok(())
    }

    /// A backup that cannot be deleted is tried again at the next rotation.
    fn clean(&self, now: SystemTime) {
        let Rotation {
            max_age, max_backups, ..
        } = self.rotation;
        for (place, (_, backup)) in backups(&self.path).into_iter().rev().enumerate() {
            let age = fs::metadata(&backup)
                .and_then(|metadata| metadata.modified())
                .ok()
                .and_then(|modified| now.duration_since(modified).ok());
            let is_old = max_age.zip(age).is_some_and(|(most, age)| age > most);
            if is_old || max_backups.is_some_and(|most| place >= most) {
                let _ = fs::remove_file(backup);
            }
        }
    }
}

impl Write for Rotated {
    /// Writes whole lines.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let length = line.len() as u64;
        if self.size > 0 && self.size + length > self.rotation.max_size {
            let _ = self.rotate(SystemTime::now());
        }
        self.file.write_all(line)?;
        self.size += length;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(0o600)
        .open(path)
}

/// The name of a file without its extension, and the extension with its dot.
fn parts(path: &Path) -> (String, String) {
    let text = |part: Option<&std::ffi::OsStr>| part.unwrap_or_default().to_string_lossy().into_owned();
    let extension = path
        .extension()
        .map(|extension| format!(".{}", extension.to_string_lossy()));
    (text(path.file_stem()), extension.unwrap_or_default())
}

/// A free name for a backup: `multus-2026-01-02T03-04-05.678.log`, as upstream names them, so that the backups of both
/// programs count together.
fn free(path: &Path) -> PathBuf {
    let (stem, extension) = parts(path);
    loop {
        let backup = path.with_file_name(format!("{stem}-{}{extension}", stamp()));
        if !backup.exists() {
            return backup;
        }
        // The next millisecond has another name.
        thread::sleep(Duration::from_millis(1));
    }
}

/// The backups of a file, the oldest first, including those that upstream's program has compressed.
fn backups(path: &Path) -> Vec<(String, PathBuf)> {
    let (stem, extension) = parts(path);
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let Ok(entries) = fs::read_dir(dir.unwrap_or(Path::new("."))) else {
        return Vec::new();
    };
    let backup = |entry: fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let name = name.strip_suffix(".gz").unwrap_or(&name);
        let stamp = name
            .strip_prefix(&stem)?
            .strip_prefix('-')?
            .strip_suffix(&extension)?;
        is_stamp(stamp).then(|| (stamp.to_owned(), entry.path()))
    };
    let mut backups: Vec<_> = entries.filter_map(Result::ok).filter_map(backup).collect();
    backups.sort();
    backups
}

/// The time in the names of log backups: `2026-01-02T03-04-05.678`.
fn stamp() -> String {
    let mut date = String::new();
    // Writing to a string cannot fail.
    let _ = time::SystemTime.format_time(&mut Writer::new(&mut date));
    with_digits(&date, 3).trim_end_matches('Z').replace(':', "-")
}

/// Whether this is a time in the name of a backup: `2026-01-02T03-04-05.678`.
fn is_stamp(text: &str) -> bool {
    const SHAPE: &[u8] = b"0000-00-00T00-00-00.000";
    text.len() == SHAPE.len()
        && text.bytes().zip(SHAPE).all(|(byte, shape)| match shape {
            b'0' => byte.is_ascii_digit(),
            other => byte == *other,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    const ROTATION: Rotation = Rotation {
        max_size: 10,
        max_age: None,
        max_backups: Some(2),
    };

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .expect("a directory")
            .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
            .collect();
        names.sort();
        names
    }

    #[test]
    fn full_file_becomes_backup_and_number_is_limited() {
        let root = tempfile::tempdir().expect("a directory");
        let dir = root.path().join("new");
        let path = dir.join("multus.log");
        let mut log = Rotated::open(&path, ROTATION).expect("a log");
        for other in ["multus-notes.log", "other-2026-01-02T03-04-05.678.log"] {
            fs::write(dir.join(other), "stays").expect("a file");
        }
        // A backup of upstream's program, the oldest of all.
        fs::write(dir.join("multus-2020-01-02T03-04-05.678.log.gz"), "").expect("a file");
        for line in ["first\n", "second\n", "third\n", "fourth\n"] {
            log.write_all(line.as_bytes()).expect("a line");
        }
        assert_eq!(fs::read_to_string(&path).expect("the log"), "fourth\n");
        let mode = fs::metadata(&path).expect("the log").permissions().mode() & 0o777;
        assert_eq!(mode, 0o600);
        let texts: Vec<_> = backups(&path)
            .iter()
            .map(|(_, backup)| fs::read_to_string(backup).expect("a backup"))
            .collect();
        assert_eq!(texts, ["second\n", "third\n"]);
        assert_eq!(names(&dir).len(), 5, "{:?}", names(&dir));
    }

    #[test]
    fn existing_content_counts_and_is_kept() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("log");
        fs::write(&path, "12345678").expect("a file");
        let mut log = Rotated::open(&path, ROTATION).expect("a log");
        log.write_all(b"9\n").expect("a line");
        assert_eq!(fs::read_to_string(&path).expect("the log"), "123456789\n");
        log.write_all(b"\n").expect("a line");
        assert_eq!(fs::read_to_string(&path).expect("the log"), "\n");
        // A line that exceeds the maximum size gets a file of its own.
        log.write_all(b"12345678901234\n").expect("a line");
        assert_eq!(fs::read_to_string(&path).expect("the log"), "12345678901234\n");
    }

    #[test]
    fn old_backups_are_deleted() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("log");
        let rotation = Rotation {
            max_age: Some(Duration::from_secs(3600)),
            max_backups: None,
            ..ROTATION
        };
        let mut log = Rotated::open(&path, rotation).expect("a log");
        let backup = dir.path().join("log-2026-01-02T03-04-05.678");
        let file = File::create(&backup).expect("a file");
        let hours = |count: u64| SystemTime::now() - Duration::from_secs(count * 3600);
        file.set_modified(hours(0)).expect("a time");
        log.rotate(SystemTime::now()).expect("a rotation");
        assert!(backup.exists());
        file.set_modified(hours(2)).expect("a time");
        log.rotate(SystemTime::now()).expect("a rotation");
        assert!(!backup.exists());
        assert_eq!(backups(&path).len(), 2);
    }

    #[test]
    fn stamp_is_valid_time_of_backup() {
        let stamp = stamp();
        assert_eq!(stamp.len(), "2026-01-02T03-04-05.678".len(), "{stamp}");
    }
}
