//! Processes, distinguished from later ones with the same number.

use std::fmt;
use std::fs;
use std::path::Path;

use crate::error::{At, Error, Result};

/// A process: its number and the time of its start, because the kernel uses numbers again.
///
/// Its text, `NUMBER-START`, can name files that belong to it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    number: u32,
    /// In the kernel's ticks since the machine started.
    started: u64,
}

impl Process {
    /// This process.
    pub fn current() -> Result<Self> {
        let path = Path::new("/proc/self/stat");
        let stat = fs::read_to_string(path).at("read", path)?;
        let own = Seen::read(&stat).map(|seen| seen.process);
        own.ok_or_else(|| Error::Incomplete(format!("{} has an unknown form", path.display())))
    }

    /// The process that has this number now.
    pub fn of(number: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
        Some(Seen::read(&stat)?.process)
    }

    /// The process that a text names, whether it lives or not. A space may stand for the dash.
    pub fn parse(text: &str) -> Option<Self> {
        let (number, started) = text.trim().split_once(['-', ' '])?;
        Some(Self {
            number: number.parse().ok()?,
            started: started.parse().ok()?,
        })
    }

    /// Its number.
    pub fn number(self) -> u32 {
        self.number
    }

    /// Whether it runs. One that has ended, but that its parent has not collected yet, does not.
    pub fn lives(self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.number)).unwrap_or_default();
        Seen::read(&stat).is_some_and(|seen| seen.process == self && !seen.ended)
    }
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.number, self.started)
    }
}

/// A process as `/proc/PID/stat` describes it.
struct Seen {
    process: Process,
    ended: bool,
}

impl Seen {
    /// Reads `NUMBER (NAME) STATE …`, where the name may hold spaces and parentheses, and the start is field 22.
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
        let seen = Seen::read(&format!("42 (a) b) S {rest}")).unwrap();
        assert_eq!(
            (seen.process.to_string().as_str(), seen.ended),
            ("42-4711", false)
        );
        assert!(Seen::read(&format!("42 (sh) Z {rest}")).unwrap().ended);
        assert!(Seen::read("42 (sh").is_none());
    }

    #[test]
    fn process_lives_until_it_ends() {
        let own = Process::current().unwrap();
        assert_eq!((own.number(), own.lives()), (std::process::id(), true));
        assert_eq!(Process::parse(&own.to_string()), Some(own));
        // As space.sh writes it.
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
