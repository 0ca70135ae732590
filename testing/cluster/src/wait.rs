//! Waits for conditions, with evidence if they do not become true.

use std::time::{Duration, Instant};

use crate::error::{Error, Result};

/// Bounds of the delay between two checks: three times the duration of a check, so that waiting threads leave the
/// processors to the tested programs.
const SHORTEST_DELAY: Duration = Duration::from_millis(50);
const LONGEST_DELAY: Duration = Duration::from_secs(1);

/// A wait of this length prints a line with the latest error of the condition.
const LONG: Duration = Duration::from_secs(20);

/// Waits until `condition` returns `Ok`, and returns its value. After `deadline`, the error contains `what` and the
/// last error of the condition, which should describe the actual state.
///
/// ```no_run
/// # use std::time::Duration;
/// # let read_phase = || "Running".to_owned();
/// cluster::wait::until("the pod runs", Duration::from_secs(60), || match read_phase().as_str() {
///     "Running" => Ok(()),
///     other => Err(format!("its phase is {other}")),
/// })?;
/// # Ok::<(), cluster::Error>(())
/// ```
pub fn until<T, E: std::fmt::Display>(
    what: &str,
    deadline: Duration,
    mut condition: impl FnMut() -> std::result::Result<T, E>,
) -> Result<T> {
    let began = Instant::now();
    // The line explains slow tests that pass.
    let mut last = String::new();
    loop {
        let looked = Instant::now();
        let complaint = match condition() {
            Ok(value) => {
                if began.elapsed() >= LONG {
                    eprintln!("waited: {} s for {what}{last}", began.elapsed().as_secs());
                }
                return Ok(value);
            }
            Err(complaint) => complaint,
        };
        if began.elapsed() >= LONG && last.is_empty() {
            last = first_line(&complaint.to_string());
        }
        if began.elapsed() >= deadline {
            let complaint = complaint.to_string();
            let evidence = complaint.trim_start_matches('\n');
            return Err(Error::Timeout {
                what: what.to_owned(),
                seconds: deadline.as_secs(),
                evidence: if evidence.is_empty() {
                    String::new()
                } else {
                    format!(":\n{evidence}")
                },
            });
        }
        std::thread::sleep((looked.elapsed() * 3).clamp(SHORTEST_DELAY, LONGEST_DELAY));
    }
}

/// Binds a socket to an address that an earlier socket of this process may have had. A program that another thread
/// starts at that moment holds a closed socket until the program is executed.
///
/// # Errors
/// The last error of `bind`, after a minute.
pub fn bind<T>(bind: impl FnMut() -> std::io::Result<T>) -> Result<T> {
    until("a socket is bound", Duration::from_mins(1), bind)
}

fn first_line(complaint: &str) -> String {
    let line = complaint.lines().find(|line| !line.trim().is_empty());
    line.map(|line| format!(": {}", line.trim())).unwrap_or_default()
}

/// Like [`until`], for conditions without an error. `evidence` is only evaluated at the end.
pub fn until_some<T>(
    what: &str,
    deadline: Duration,
    mut condition: impl FnMut() -> Option<T>,
    evidence: impl FnOnce() -> String,
) -> Result<T> {
    match until(what, deadline, || condition().ok_or("")) {
        Err(Error::Timeout { what, seconds, .. }) => Err(Error::Timeout {
            what,
            seconds,
            evidence: evidence(),
        }),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn true_condition_ends_the_wait() {
        let mut count = 0;
        let value = until("the third call", Duration::from_mins(1), || {
            count += 1;
            if count == 3 { Ok(count) } else { Err("not yet") }
        });
        assert_eq!(value.unwrap(), 3);
    }

    #[test]
    fn long_wait_is_explained_by_the_first_line_of_the_error() {
        assert_eq!(
            first_line("\n  its phase is Pending\nevents"),
            ": its phase is Pending"
        );
        assert_eq!(first_line(""), "");
    }

    #[test]
    fn timeout_contains_the_last_error() {
        let error = until("the pod runs", Duration::ZERO, || {
            Err::<(), _>("its phase is Pending")
        })
        .unwrap_err();
        assert_eq!(
            error.to_string(),
            "gave up after 0 s waiting for the pod runs:\nits phase is Pending"
        );
    }
}
