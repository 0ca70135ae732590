//! Output of the commands for people, and their exit codes.

use std::fmt::Display;
use std::process::ExitCode;

use crate::terminal;

/// Exit code: nothing is wrong, nothing differs, or the answer is yes.
pub const WELL: u8 = 0;
/// Exit code: something is wrong or differs, or the answer is no.
pub const FINDINGS: u8 = 1;
/// Exit code: the command line is invalid, the question has no answer, or the output cannot be written.
pub const TROUBLE: u8 = 2;

/// Output of a command for people.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Answer {
    /// Standard output.
    pub text: String,
    /// Standard error.
    pub remarks: String,
    /// Exit code.
    pub code: u8,
}

impl Answer {
    /// A text with notes, and the exit code [`WELL`] or [`FINDINGS`].
    pub fn new<N: Display>(
        text: impl Into<String>,
        notes: impl IntoIterator<Item = N>,
        is_well: bool,
    ) -> Self {
        let notes = notes.into_iter();
        Self {
            text: text.into(),
            remarks: notes.map(|note| format!("note: {note}\n")).collect(),
            code: if is_well { WELL } else { FINDINGS },
        }
    }

    /// The same without notes.
    pub fn plain(text: impl Into<String>, is_well: bool) -> Self {
        Self::new(text, [""; 0], is_well)
    }

    /// An error instead of an answer, with the exit code [`TROUBLE`].
    pub fn failed(error: &impl Display) -> Self {
        Self {
            remarks: format!("error: {error}\n"),
            code: TROUBLE,
            ..Self::default()
        }
    }

    /// Prints the text to standard output and the remarks to standard error, and returns the exit code.
    ///
    /// Both contain text of the cluster's users: their control characters are replaced, because they could steer the
    /// terminal.
    pub fn print(&self) -> ExitCode {
        terminal::remark(harmless(&self.remarks));
        match terminal::print(&harmless(&self.text)) {
            Ok(()) => ExitCode::from(self.code),
            Err(error) => {
                terminal::remark(format_args!("error: cannot write to standard output: {error}\n"));
                ExitCode::from(TROUBLE)
            }
        }
    }
}

fn harmless(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n' && c != '\t', "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(harmless("a\tb\nc \u{1b}[2J\r\u{9b}ä"), "a\tb\nc ?[2J??ä");
    }

    #[test]
    fn answer_has_exit_code_and_marked_notes() {
        let answer = Answer::new("text\n", ["one", "two"], false);
        assert_eq!(
            (answer.text.as_str(), answer.remarks.as_str(), answer.code),
            ("text\n", "note: one\nnote: two\n", 1)
        );
        assert_eq!(Answer::plain("", true), Answer::default());
        let failed = Answer::failed(&"no cluster");
        assert_eq!((failed.remarks.as_str(), failed.code), ("error: no cluster\n", 2));
    }
}
