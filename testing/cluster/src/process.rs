//! Processes, distinguished from later processes with the same number.

use std::fmt;
use std::fs;
use std::path::Path;

use crate::error::{At, Error, Result};

/// A process: its number and start time, because the kernel reuses numbers.
///
/// Its text, `NUMBER-START`, can be part of file names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    number: u32,
    /// In the kernel's ticks since boot.
    started: u64,
}

impl Process {
    /// Returns this process.
    pub fn current() -> Result<Self> {
        let path = Path::new("/proc/self/stat");
        let stat = fs::read_to_string(path).at("read", path)?;
        let own = Stat::read(&stat).map(|stat| stat.process);
        own.ok_or_else(|| Error::Incomplete(format!("{} has an unknown form", path.display())))
    }

    /// Returns the process that has this number now.
    pub fn of(number: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
        Some(Stat::read(&stat)?.process)
    }

    /// Parses a process, running or not. A space may replace the dash.
    pub fn parse(text: &str) -> Option<Self> {
        let (number, started) = text.trim().split_once(['-', ' '])?;
        Some(Self {
            number: number.parse().ok()?,
            started: started.parse().ok()?,
        })
    }

    /// The process number.
    pub fn number(self) -> u32 {
        self.number
    }

    /// Returns true if it runs. A zombie does not run.
    pub fn lives(self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.number)).unwrap_or_default();
        Stat::read(&stat).is_some_and(|seen| seen.process == self && !seen.ended)
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.number, self.started)
    }
}

/// A process as described by `/proc/PID/stat`.
struct Stat {
    process: Process,
    ended: bool,
}

impl Stat {
    /// Parses `NUMBER (NAME) STATE …`. The name may contain spaces and parentheses, and the start time is field 22.
    fn read(stat: &str) -> Option<Self> {
        let (number, _) = stat.split_once(' ')?;
        let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
        Some(Self {
            process: Process {
                number: number.parse().ok()?,
                started: fields.get(19)?.parse().ok()?,
            },
            ended: matches!(*fields.first()?, "Z" | "X"),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn process_read_from_stat_has_number_start_and_state() {
        let rest = "1 7 7 0 -1 4194560 9 0 0 0 1 2 0 0 20 0 1 0 4711 1 2 3";
        let stat = Stat::read(&format!("42 (a) b) S {rest}")).unwrap();
        assert_eq!(
            (stat.process.to_string().as_str(), stat.ended),
            ("42-4711", false)
        );
        assert!(Stat::read(&format!("42 (sh) Z {rest}")).unwrap().ended);
        assert!(Stat::read("42 (sh").is_none());
    }

    #[test]
    fn process_lives_until_it_ends() {
        let own = Process::current().unwrap();
        assert_eq!((own.number(), own.lives()), (std::process::id(), true));
        assert_eq!(Process::parse(&own.to_string()), Some(own));
        // The form that space.sh writes.
        assert_eq!(
            Process::parse(&format!("{} {}\n", own.number, own.started)),
            Some(own)
        );
        let later = Process {
            started: own.started + 1,
            ..own
        };
        assert!(!later.lives(), "another process of the same number");

        let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
        let process = Process::of(child.id()).unwrap();
        assert!(process.lives());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(!process.lives());
    }
}
