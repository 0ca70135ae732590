//! Flags as Go programs take them, in the form that clap understands.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

/// Go programs accept one dash before long names; clap would take `-node-name` for a row of short ones. Single letters
/// stay as they are, and so does everything after `--`.
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

/// `-name` or `-name=value` with a name of two characters at least that is not a number.
fn is_go_flag(argument: &OsStr) -> bool {
    let bytes = argument.as_bytes();
    let name = bytes.split(|byte| *byte == b'=').next().unwrap_or_default();
    match name {
        [b'-', first, _, ..] => first.is_ascii_alphabetic(),
        _ => false,
    }
}
