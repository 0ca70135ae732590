//! Flags in the form of Go programs, converted for clap.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Converts long flags with one dash, which Go programs accept: clap would parse `-node-name` as several short flags.
/// Single letters stay unchanged, and so does everything after `--`.
pub fn go_flags(arguments: impl Iterator<Item = OsString>) -> impl Iterator<Item = OsString> {
    let mut verbatim = false;
    arguments.map(move |argument| {
        verbatim |= argument == "--";
        if verbatim || !is_go_flag(&argument) {
            return argument;
        }
        let mut bytes = b"-".to_vec();
        bytes.extend(argument.as_bytes());
        OsString::from_vec(bytes)
    })
}

/// Whether this is `-name` or `-name=value`, with a name of at least two characters that is not a number.
fn is_go_flag(argument: &OsStr) -> bool {
    let bytes = argument.as_bytes();
    let name = bytes.split(|byte| *byte == b'=').next().unwrap_or_default();
    match name {
        [b'-', first, _, ..] => first.is_ascii_alphabetic(),
        _ => false,
    }
}
