//! Runs programs, with useful errors.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use crate::error::{At, Error, Result};
use crate::progress::Progress;

/// Number of lines of a failed program's output in its error.
const TAIL: usize = 40;

/// Returns the command line, as in a shell.
pub fn shown(command: &Command) -> String {
    let mut line = quoted(&command.get_program().to_string_lossy());
    for arg in command.get_args() {
        line.push(' ');
        line.push_str(&quoted(&arg.to_string_lossy()));
    }
    line
}

fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,@+%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    let word: String = if word.len() > 200 {
        word.chars().take(200).chain("…".chars()).collect()
    } else {
        word.to_owned()
    };
    format!("'{}'", word.replace('\'', r"'\''"))
}

/// Returns the last lines of `text`, each indented, starting with a line break. Empty for an empty text.
pub fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(TAIL)..]
        .iter()
        .map(|line| format!("\n    {line}"))
        .collect()
}

pub(crate) fn failure(command: &Command, status: ExitStatus, output: &str) -> Error {
    Error::Command {
        command: shown(command),
        status: status.to_string(),
        output: tail(output),
    }
}

fn not_started(command: &Command, source: std::io::Error) -> Error {
    Error::Io {
        what: format!("cannot run `{}`", shown(command)),
        source,
    }
}

/// Runs a command and returns its standard output. The error contains standard error.
pub fn output(command: &mut Command) -> Result<String> {
    let done = command
        .stdin(Stdio::null())
        .output()
        .map_err(|source| not_started(command, source))?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    if done.status.success() {
        return Ok(text);
    }
    Err(failure(
        command,
        done.status,
        &(text + &String::from_utf8_lossy(&done.stderr)),
    ))
}

/// Like [`output`], with the standard input of the command.
pub(crate) fn output_keeping_input(command: &mut Command) -> Result<String> {
    let done = command.output().map_err(|source| not_started(command, source))?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    if done.status.success() {
        return Ok(text);
    }
    Err(failure(
        command,
        done.status,
        &(text + &String::from_utf8_lossy(&done.stderr)),
    ))
}

/// Runs a command with `input` as its standard input, and returns its standard output.
pub fn output_with_input(command: &mut Command, input: &[u8]) -> Result<String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|source| not_started(command, source))?;
    if let Some(mut stdin) = child.stdin.take() {
        // A program that does not read its input explains itself by its exit status.
        let _ = stdin.write_all(input);
    }
    let done = child
        .wait_with_output()
        .map_err(|source| not_started(command, source))?;
    let text = String::from_utf8_lossy(&done.stdout).into_owned();
    if done.status.success() {
        return Ok(text);
    }
    Err(failure(
        command,
        done.status,
        &(text + &String::from_utf8_lossy(&done.stderr)),
    ))
}

/// Runs a long command with its output in `log`, and reports its newest line to `progress`.
pub fn watched(command: &mut Command, log: &Path, progress: &mut dyn Progress) -> Result<()> {
    let file = File::create(log).at("create", log)?;
    let copy = file.try_clone().at("write", log)?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(file)
        .stderr(copy)
        .spawn()
        .map_err(|source| not_started(command, source))?;
    loop {
        if let Some(status) = child.try_wait().map_err(|source| not_started(command, source))? {
            if status.success() {
                return Ok(());
            }
            return Err(failure(
                command,
                status,
                &std::fs::read_to_string(log).unwrap_or_default(),
            ));
        }
        progress.tick(&newest_line(log));
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Returns the newest line of a file that is being written, perhaps incomplete. Of a line that replaces itself, such as
/// a counter, returns the last form.
pub fn newest_line(path: &Path) -> String {
    let mut text = String::new();
    if let Ok(mut file) = File::open(path) {
        let length = file.metadata().map_or(0, |meta| meta.len());
        let _ = file.seek(SeekFrom::Start(length.saturating_sub(400)));
        let mut bytes = Vec::new();
        let _ = file.read_to_end(&mut bytes);
        text = String::from_utf8_lossy(&bytes).into_owned();
    }
    newest(&text).to_owned()
}

fn newest(text: &str) -> &str {
    text.split(['\n', '\r'])
        .map(|line| line.trim().trim_start_matches("\u{1b}[K"))
        .rfind(|line| !line.is_empty())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_is_valid_in_a_shell() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo 'a b'", "", "x=1"]);
        assert_eq!(shown(&command), r"sh -c 'echo '\''a b'\''' '' x=1");
    }

    #[test]
    fn newest_line_of_a_counter_is_its_last_form() {
        assert_eq!(newest("one\n  1/9: a\r  2/9: b\r"), "2/9: b");
        assert_eq!(newest("one\ntwo\n\n"), "two");
        assert_eq!(newest(""), "");
    }

    #[test]
    fn failure_contains_the_output_of_the_program() {
        let error = output(Command::new("sh").args(["-c", "echo no such bridge >&2; exit 3"])).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("exit status: 3") && text.contains("\n    no such bridge"),
            "{text}"
        );
    }
}
