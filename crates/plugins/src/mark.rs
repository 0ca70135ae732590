//! The mark of a build: a program that links the plugins recognises a `weft-cni` of the same sources.
//!
//! `weft-cni` contains a mark with a hash of its sources. If a program finds its own hash in a file, it may run its
//! linked plugins instead of the file.

use std::io::{self, BufRead};

/// The hash of the sources in hexadecimal.
const NUMBER: &str = env!("WEFT_PLUGINS_BUILD");
/// The text before the hash. Only `weft-cni` contains both in sequence.
const BEFORE: &str = "weft-cni, build ";
/// The delimiter of the mark, a rare byte in programs.
const DELIMITER: u8 = 7;

/// The mark. Only for `weft-cni`.
#[doc(hidden)]
pub const MARK: &str = concat!("\u{7}weft-cni, build ", env!("WEFT_PLUGINS_BUILD"), "\u{7}");

/// Whether a program is the `weft-cni` of this build. Reads it up to the mark.
pub fn is_this_build(mut program: impl BufRead) -> io::Result<bool> {
    let mut piece = Vec::new();
    loop {
        piece.clear();
        if program.read_until(DELIMITER, &mut piece)? == 0 {
            return Ok(false);
        }
        let text = piece.strip_suffix(&[DELIMITER]);
        let number = text.and_then(|text| text.strip_prefix(BEFORE.as_bytes()));
        if number == Some(NUMBER.as_bytes()) {
            return Ok(true);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_is_recognised_by_its_mark() {
        let is_this = |text: &str| is_this_build(text.as_bytes()).unwrap();
        assert!(is_this(MARK));
        assert!(is_this(&format!("ELF\u{7}, code\u{7}{MARK}\u{7}more")));
        assert!(!is_this("ELF, code\u{7}weft-cni, build 0123456789abcdef\u{7}"));
        assert!(!is_this(&format!("\u{7}{NUMBER}\u{7}")));
        assert!(!is_this(MARK.trim_end_matches('\u{7}')), "it has an end");
        assert!(!is_this(""));
    }
}
