//! The mark of a build, by which a program that has the plugins too tells that a file is nothing but them.
//!
//! `weft-cni` carries a mark with the number of its sources. A program that finds the number of its own in a file may
//! run the plugins that it was linked with instead of the file: they are made of the same sources.

use std::io::{self, BufRead};

/// The number of the sources: hexadecimal digits.
const NUMBER: &str = env!("WEFT_PLUGINS_BUILD");
/// The text before the number. `weft-cni` alone has the two side by side.
const BEFORE: &str = "weft-cni, build ";
/// The byte around the mark, which is rare in programs.
const DELIMITER: u8 = 7;

/// The mark. Only for the program that it marks.
#[doc(hidden)]
pub const MARK: &str = concat!("\u{7}weft-cni, build ", env!("WEFT_PLUGINS_BUILD"), "\u{7}");

/// Whether a program is the `weft-cni` of this build. Reads it up to its mark.
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
    fn a_program_is_known_by_its_mark() {
        let is_this = |text: &str| is_this_build(text.as_bytes()).unwrap();
        assert!(is_this(MARK));
        assert!(is_this(&format!("ELF\u{7}, code\u{7}{MARK}\u{7}more")));
        assert!(!is_this("ELF, code\u{7}weft-cni, build 0123456789abcdef\u{7}"));
        assert!(!is_this(&format!("\u{7}{NUMBER}\u{7}")));
        assert!(!is_this(MARK.trim_end_matches('\u{7}')), "it has an end");
        assert!(!is_this(""));
    }
}
