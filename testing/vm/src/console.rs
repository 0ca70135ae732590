//! The serial console: messages of `vm-init`, and their parser.
//!
//! ```text
//! (output of the firmware and the kernel)
//! vm-init: begin plugins
//! (output of the test program)
//! vm-init: end plugins 0
//! vm-init: done
//! ```

const PREFIX: &str = "vm-init: ";
const BEGIN: &str = "begin ";
const END: &str = "end ";
const DONE: &str = "done";
const BROKEN: &str = "broken ";
/// The kernel's message of a panic.
const PANIC: &str = "Kernel panic - not syncing";

/// Returns the line before the output of a test program.
pub fn begin(name: &str) -> String {
    format!("{PREFIX}{BEGIN}{name}")
}

/// Returns the line after the output, with the exit status as text.
pub fn end(name: &str, status: &str) -> String {
    format!("{PREFIX}{END}{name} {status}")
}

/// Returns the last line, before the machine powers off.
pub fn done() -> String {
    format!("{PREFIX}{DONE}")
}

/// Returns the last line if no test program could be run.
pub fn broken(cause: &str) -> String {
    format!("{PREFIX}{BROKEN}{cause}")
}

/// The meaning of a line of the console.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The start of a test program.
    Begin(String),
    /// A line of a test program's output.
    Line(String),
    /// The end of a test program, with its status.
    End(String, String),
    /// The end of all programs.
    Done,
    /// A failure of the guest or its kernel.
    Broken(String),
    /// An irrelevant line.
    Noise,
}

/// Parses the console, line by line.
#[derive(Debug, Default)]
pub struct Console {
    running: bool,
}

impl Console {
    /// Parses the next line. The terminal ends lines with a carriage return.
    pub fn line(&mut self, line: &str) -> Event {
        let line = line.trim_end_matches('\r');
        if let Some(at) = line.find(PANIC) {
            return Event::Broken(line[at..].to_owned());
        }
        // A program may end in the middle of a line.
        let Some((rest, message)) = line.split_once(PREFIX) else {
            return self.output(line);
        };
        if let Some(name) = message.strip_prefix(BEGIN) {
            self.running = true;
            Event::Begin(name.to_owned())
        } else if let Some((name, status)) = message.strip_prefix(END).and_then(|end| end.split_once(' ')) {
            self.running = false;
            Event::End(name.to_owned(), status.to_owned())
        } else if let Some(cause) = message.strip_prefix(BROKEN) {
            Event::Broken(cause.to_owned())
        } else if message == DONE && rest.is_empty() {
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
    fn console_of_a_run_is_parsed() {
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
    fn kernel_panic_within_a_test_is_found() {
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
