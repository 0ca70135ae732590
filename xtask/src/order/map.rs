//! The linker's map.
//!
//! ```text
//!    VMA    LMA  Size Align Out     In      Symbol
//! af7a00 af7a00 1a9d3   64 .text
//! af7a00 af7a00    11    1         /a/libc.a(malloc.o):(.text)
//! af7a00 af7a00    11    1                 malloc
//! ```

/// A function of the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Function<'a> {
    pub(super) address: u64,
    pub(super) bytes: u64,
    pub(super) symbol: &'a str,
}

/// Columns of the names.
const OUTPUT: usize = 0;
const INPUT: usize = 8;

/// Returns the functions of a program. A function with several names is there several times.
pub(super) fn functions(map: &str) -> Vec<Function<'_>> {
    let mut is_code = false;
    let mut found = Vec::new();
    for Line {
        column,
        name,
        function,
    } in map.lines().filter_map(Line::read)
    {
        match column {
            OUTPUT => is_code = name.starts_with(".text"),
            INPUT => {}
            _ if is_code && function.bytes > 0 => found.push(function),
            _ => {}
        }
    }
    found
}

struct Line<'a> {
    column: usize,
    name: &'a str,
    function: Function<'a>,
}

impl<'a> Line<'a> {
    fn read(line: &'a str) -> Option<Self> {
        let mut rest = line;
        let mut numbers = [""; 4];
        for number in &mut numbers {
            let (word, after) = rest.trim_start().split_once(' ')?;
            *number = word;
            rest = after;
        }
        let [address, _, bytes, _] = numbers;
        let name = rest.trim_start();
        Some(Self {
            column: rest.len() - name.len(),
            name,
            function: Function {
                address: u64::from_str_radix(address, 16).ok()?,
                bytes: u64::from_str_radix(bytes, 16).ok()?,
                symbol: name,
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAP: &str = "             VMA              LMA     Size Align Out     In      Symbol
          200600           200600   360794   128 .rodata
          200600           200600      240     8         /t/weft.o:(.rodata.a)
          200600           200600      240     8                 a
          af7a00           af7a00  1a9d3d8    64 .text
          af7a00           af7a00       11     1         /t/weft.o:(.text._RNvCsabc_4core3one)
          af7a00           af7a00       11     1                 _RNvCsabc_4core3one
          af7a20           af7a20     5c56    16         /usr/lib/libc.a(malloc.o):(.text)
          af7a20           af7a20       15     1                 free
          af7a40           af7a40        0     1                 label
";

    #[test]
    fn functions_are_the_symbols_of_code() {
        let function = |address, bytes, symbol| Function {
            address,
            bytes,
            symbol,
        };
        assert_eq!(
            functions(MAP),
            [
                function(0xaf_7a00, 0x11, "_RNvCsabc_4core3one"),
                function(0xaf_7a20, 0x15, "free"),
            ]
        );
    }
}
