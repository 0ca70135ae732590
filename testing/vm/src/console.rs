//! The serial console: what `vm-init` says there, and how it is read.
//!
//! ```text
//! (what the firmware and the kernel print)
//! vm-init: begin plugins
//! (what the test program prints)
//! vm-init: end plugins 0
//! vm-init: done
//! ```

const PREFIX: &str = "vm-init: ";
const BEGIN: &str = "begin ";
const END: &str = "end ";
const DONE: &str = "done";
const BROKEN: &str = "broken ";
/// The kernel's last words.
const PANIC: &str = "Kernel panic - not syncing";

/// The line before the output of a test program.
pub fn begin(name: &str) -> String {
    format!("{PREFIX}{BEGIN}{name}")
}

/// The line after it, with its exit status in words.
pub fn end(name: &str, status: &str) -> String {
    format!("{PREFIX}{END}{name} {status}")
}

/// The last line, after which the machine powers off.
pub fn done() -> String {
    format!("{PREFIX}{DONE}")
}

/// The last line when not even the first program could be run.
pub fn broken(why: &str) -> String {
    format!("{PREFIX}{BROKEN}{why}")
}

/// What a line of the console means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A test program begins.
    Begin(String),
    /// A line of its output.
    Line(String),
    /// It ended, with this status.
    End(String, String),
    /// Everything was run.
    Done,
    /// The guest gave up, or its kernel did.
    Broken(String),
    /// Nothing of interest.
    Noise,
}

/// Reads the console, line by line.
#[derive(Debug, Default)]
pub struct Console {
    running: bool,
}

impl Console {
    /// Takes the next line. The terminal ends lines with a carriage return.
    pub fn line(&mut self, line: &str) -> Event {
        let line = line.trim_end_matches('\r');
        if let Some(at) = line.find(PANIC) {
            return Event::Broken(line[at..].to_owned());
        }
        // A program may have ended in the midst of a line.
        let Some((rest, said)) = line.split_once(PREFIX) else {
            return self.output(line);
        };
        if let Some(name) = said.strip_prefix(BEGIN) {
            self.running = true;
            Event::Begin(name.to_owned())
        } else if let Some((name, status)) = said.strip_prefix(END).and_then(|end| end.split_once(' ')) {
            self.running = false;
            Event::End(name.to_owned(), status.to_owned())
        } else if let Some(why) = said.strip_prefix(BROKEN) {
            Event::Broken(why.to_owned())
        } else if said == DONE && rest.is_empty() {
            Event::Done
        } else {
            self.output(line)
        }
    }

    fn output(&self, line: &str) -> Event {
        if self.running {
            Event::Line(line.to_owned())
        } else {
            Event::Noise
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_is_read_to_its_end() {
        let mut console = Console::default();
        let lines = [
            "SeaBIOS (version 1.16.2)\r".to_owned(),
            begin("plugins") + "\r",
            "test a_vlan ... ok\r".to_owned(),
            "half a line ".to_owned() + &end("plugins", "exit status: 0") + "\r",
            "[   10.1] reboot: Power down\r".to_owned(),
            done(),
        ];
        let events = lines.map(|line| console.line(&line));
        assert_eq!(
            events,
            [
                Event::Noise,
                Event::Begin("plugins".to_owned()),
                Event::Line("test a_vlan ... ok".to_owned()),
                Event::End("plugins".to_owned(), "exit status: 0".to_owned()),
                Event::Noise,
                Event::Done,
            ]
        );
    }

    #[test]
    fn the_end_of_the_kernel_is_seen_also_within_a_test() {
        let mut console = Console::default();
        console.line(&begin("plugins"));
        let panic = "[    3.2] Kernel panic - not syncing: Attempted to kill init!\r";
        assert_eq!(
            console.line(panic),
            Event::Broken("Kernel panic - not syncing: Attempted to kill init!".to_owned())
        );
        assert_eq!(
            console.line(&broken("no such module")),
            Event::Broken("no such module".to_owned())
        );
    }
}
