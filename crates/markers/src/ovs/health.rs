//! The file of the marker's probes, which check its age.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use thiserror::Error;

/// Maximum age of the file of a working marker.
const FRESH: Duration = Duration::from_mins(2);

/// The marker is not healthy, or its health is unknown.
#[derive(Debug, Error)]
pub(super) enum Error {
    #[error(
        "cannot write the file of the liveness probe {}: {cause}; mount a writable directory in its place",
        .path.display()
    )]
    Write { path: PathBuf, cause: io::Error },
    #[error("the marker has not started: cannot read {}: {cause}", .path.display())]
    Read { path: PathBuf, cause: io::Error },
    #[error("the marker last updated {} s ago, in {}", .age.as_secs(), .path.display())]
    Old { path: PathBuf, age: Duration },
}

/// Sets the time of the file to now; creates it if it does not exist.
pub(super) fn touch(path: &Path) -> Result<(), Error> {
    let written = || {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        let file = File::options().create(true).append(true).open(path)?;
        file.set_modified(SystemTime::now())
    };
    written().map_err(|cause| Error::Write {
        path: path.to_owned(),
        cause,
    })
}

/// Touches the file at every interval, for ever. It runs on the same thread as the marker, so a hanging marker does not
/// touch the file.
pub(super) async fn keep(path: &Path, interval: Duration) -> Error {
    loop {
        tokio::time::sleep(interval).await;
        if let Err(error) = touch(path) {
            return error;
        }
    }
}

/// Fails unless the file is fresh. A time in the future is fresh: the clock was set back.
pub(super) fn check(path: &Path) -> Result<(), Error> {
    let modified = fs::metadata(path).and_then(|file| file.modified());
    let modified = modified.map_err(|cause| Error::Read {
        path: path.to_owned(),
        cause,
    })?;
    match modified.elapsed() {
        Ok(age) if age >= FRESH => Err(Error::Old {
            path: path.to_owned(),
            age,
        }),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The result of a check after this time was written to the file.
    fn checked(time: SystemTime) -> Result<(), String> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("new/healthy");
        touch(&path).expect("touched");
        let file = File::options().append(true).open(&path).expect("the file");
        file.set_modified(time).expect("a time");
        check(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn check_of_file_older_than_two_minutes_fails() {
        // cni-plugins#65
        let now = SystemTime::now();
        assert_eq!(checked(now), Ok(()));
        assert_eq!(checked(now - Duration::from_secs(90)), Ok(()));
        assert_eq!(checked(now + Duration::from_hours(1)), Ok(()));
        let error = checked(now - Duration::from_secs(120)).expect_err("an error");
        assert!(
            error.starts_with("the marker last updated 120 s ago, in /"),
            "{error}"
        );
    }

    #[test]
    fn check_of_missing_file_fails() {
        let error = check(Path::new("/nowhere/healthy")).expect_err("an error");
        assert_eq!(
            error.to_string(),
            "the marker has not started: cannot read /nowhere/healthy: No such file or directory (os error 2)"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn keep_touches_file() {
        // cni-plugins#65
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("healthy");
        let keeping = keep(&path, Duration::from_mins(1));
        assert!(
            tokio::time::timeout(Duration::from_secs(61), keeping)
                .await
                .is_err()
        );
        assert!(check(&path).is_ok());
    }
}
