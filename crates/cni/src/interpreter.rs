//! Finds the interpreter of a program: the loader of a dynamically linked one, or the program in a script's first
//! line. Without it, the kernel refuses to start the program, with the error for a missing file.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, open};

/// Bytes of a program's head that are read, as many as kernels read of a script's first line.
const HEAD: usize = 256;
/// Limit of a path with its terminator, in bytes.
const LONGEST_PATH: usize = 4096;
/// Limit of program headers. Linkers write about a dozen.
const MOST_HEADERS: usize = 128;
/// Limit of nested interpreters in the kernel.
const LONGEST_CHAIN: usize = 5;

const SCRIPT: &[u8] = b"#!";
const ELF: &[u8] = b"\x7fELF";
/// `PT_INTERP`, the kind of the program header that names an interpreter.
const INTERPRETER: u64 = 3;

/// The missing interpreter of a program, or of its interpreter. `None` if none is missing, or the program is
/// unreadable.
pub(crate) fn missing(program: &Path) -> Option<PathBuf> {
    let mut program = program.to_owned();
    for _ in 0..LONGEST_CHAIN {
        // Never blocks on a pipe.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = File::from(open(&program, flags, Mode::empty()).ok()?);
        let interpreter = named(|offset, length| read(&file, offset, length))?;
        if interpreter.try_exists().is_ok_and(|exists| !exists) {
            return Some(interpreter);
        }
        program = interpreter;
    }
    None
}

/// Reads up to `length` bytes; fewer only at the end of the file.
fn read(file: &File, offset: u64, length: usize) -> Option<Vec<u8>> {
    let mut bytes = vec![0; length];
    let mut filled = 0;
    while filled < length {
        let position = offset.checked_add(u64::try_from(filled).ok()?)?;
        match file.read_at(&mut bytes[filled..], position) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(_) => return None,
        }
    }
    bytes.truncate(filled);
    Some(bytes)
}

/// The interpreter in a program's headers. `read` takes an offset and a maximum length.
fn named(read: impl Fn(u64, usize) -> Option<Vec<u8>>) -> Option<PathBuf> {
    let head = read(0, HEAD)?;
    let name = if let Some(line) = head.strip_prefix(SCRIPT) {
        let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
        let line = line.split(|byte| *byte == b'\n').next()?;
        line.split(is_blank).find(|word| !word.is_empty())?.to_vec()
    } else if head.starts_with(ELF) {
        let text = Elf::read(&head)?.interpreter(&head, read)?;
        text.split(|byte| *byte == 0).next()?.to_vec()
    } else {
        return None;
    };
    (!name.is_empty()).then(|| PathBuf::from(OsString::from_vec(name)))
}

/// Layout of an ELF file's headers.
struct Elf {
    little_endian: bool,
    /// Bytes of an address.
    word: usize,
    /// Offset of the program headers' offset, of their size, and of their count in the file's header.
    table: usize,
    entry_size: usize,
    entries: usize,
    /// Size of a program header, and the offsets of a segment's offset and size in it.
    entry: usize,
    offset: usize,
    size: usize,
}

impl Elf {
    fn read(head: &[u8]) -> Option<Self> {
        let little_endian = match head.get(5)? {
            1 => true,
            2 => false,
            _ => return None,
        };
        match head.get(4)? {
            1 => Some(Self {
                little_endian,
                word: 4,
                table: 28,
                entry_size: 42,
                entries: 44,
                entry: 32,
                offset: 4,
                size: 16,
            }),
            2 => Some(Self {
                little_endian,
                word: 8,
                table: 32,
                entry_size: 54,
                entries: 56,
                entry: 56,
                offset: 8,
                size: 32,
            }),
            _ => None,
        }
    }

    /// The content of the segment that names the interpreter.
    fn interpreter(&self, head: &[u8], read: impl Fn(u64, usize) -> Option<Vec<u8>>) -> Option<Vec<u8>> {
        if self.number(head, self.entry_size, 2)? != u64::try_from(self.entry).ok()? {
            return None;
        }
        let count = usize::try_from(self.number(head, self.entries, 2)?).ok()?;
        let table = self.number(head, self.table, self.word)?;
        let headers = read(table, count.min(MOST_HEADERS) * self.entry)?;
        let header = headers
            .chunks_exact(self.entry)
            .find(|header| self.number(header, 0, 4) == Some(INTERPRETER))?;
        let size = usize::try_from(self.number(header, self.size, self.word)?).ok()?;
        read(
            self.number(header, self.offset, self.word)?,
            size.min(LONGEST_PATH),
        )
    }

    /// The number of this many bytes at an offset.
    fn number(&self, bytes: &[u8], at: usize, length: usize) -> Option<u64> {
        let field = bytes.get(at..at + length)?;
        let append = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
        Some(if self.little_endian {
            field.iter().rev().fold(0, append)
        } else {
            field.iter().fold(0, append)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use proptest::prelude::*;

    use super::*;
    use crate::env::Variables;
    use crate::exec::Invoker;

    fn slice(bytes: &[u8], offset: u64, length: usize) -> Option<Vec<u8>> {
        let start = usize::try_from(offset).ok()?.min(bytes.len());
        let end = start.saturating_add(length).min(bytes.len());
        Some(bytes[start..end].to_vec())
    }

    fn interpreter(bytes: &[u8]) -> Option<String> {
        let path = named(|offset, length| slice(bytes, offset, length))?;
        Some(path.to_str().unwrap().to_owned())
    }

    /// A program of 32 or 64 bits with two program headers, of which the second names the interpreter behind them.
    fn elf(class: u8, order: u8, machine: u64, name: &[u8]) -> Vec<u8> {
        let head = [ELF, &[class, order]].concat();
        let layout = Elf::read(&head).unwrap();
        let header = if class == 1 { 52 } else { 64 };
        let mut bytes = vec![0; header + 2 * layout.entry];
        let name_at = bytes.len();
        let mut put = |at: usize, length: usize, number: u64| {
            let little = number.to_le_bytes();
            for (index, byte) in little.iter().take(length).enumerate() {
                let place = if layout.little_endian {
                    index
                } else {
                    length - 1 - index
                };
                bytes[at + place] = *byte;
            }
        };
        // A shared object of this version of the format.
        put(16, 2, 3);
        put(18, 2, machine);
        put(20, 4, 1);
        put(layout.table, layout.word, header as u64);
        put(layout.entry_size, 2, layout.entry as u64);
        put(layout.entries, 2, 2);
        put(header, 4, 1);
        let second = header + layout.entry;
        put(second, 4, INTERPRETER);
        put(second + layout.offset, layout.word, name_at as u64);
        put(second + layout.size, layout.word, name.len() as u64);
        bytes[..head.len()].copy_from_slice(&head);
        bytes.extend_from_slice(name);
        bytes
    }

    #[test]
    fn loaders_of_every_kind_of_program_are_found() {
        for class in [1, 2] {
            for order in [1, 2] {
                let program = elf(class, order, 62, b"/lib64/ld-linux-x86-64.so.2\0");
                assert_eq!(
                    interpreter(&program).as_deref(),
                    Some("/lib64/ld-linux-x86-64.so.2"),
                    "{class} {order}"
                );
            }
        }
        let own = fs::read("/proc/self/exe").unwrap();
        if let Some(loader) = interpreter(&own) {
            assert!(Path::new(&loader).exists(), "{loader}");
        }
    }

    #[test]
    fn the_first_word_of_a_script_is_its_interpreter() {
        for (text, expected) in [
            ("#!/bin/sh\necho", Some("/bin/sh")),
            ("#! \t/usr/bin/env  python3\n", Some("/usr/bin/env")),
            ("#!/bin/sh", Some("/bin/sh")),
            ("#!/bin/sh\r\n", Some("/bin/sh\r")),
            ("#!\n/bin/sh", None),
            ("#!", None),
            ("echo", None),
            ("", None),
        ] {
            assert_eq!(interpreter(text.as_bytes()).as_deref(), expected, "{text:?}");
        }
    }

    #[test]
    fn garbage_names_no_interpreter() {
        let whole = elf(2, 1, 62, b"/lib/ld.so\0");
        for length in 0..whole.len() - 11 {
            assert_eq!(interpreter(&whole[..length]), None, "{length}");
        }
        for (at, byte) in [(4, 3), (5, 0), (54, 55), (56, 0), (56, 1)] {
            let mut damaged = whole.clone();
            damaged[at] = byte;
            assert_eq!(interpreter(&damaged), None, "{at}");
        }
        // A static program, and one with an empty name.
        let mut other = whole.clone();
        other[64 + 56] = 2;
        assert_eq!(interpreter(&other), None);
        assert_eq!(interpreter(&elf(2, 1, 62, b"\0")), None);
    }

    #[test]
    fn reads_are_limited_whatever_headers_contain() {
        let mut program = elf(2, 1, 62, b"/lib/ld.so\0");
        program[56] = 0xff;
        program[57] = 0xff;
        let second = 64 + 56;
        program[second + 32..second + 39].fill(0xff);
        program.resize(1 << 20, 0);
        let most = Cell::new(0_usize);
        let name = named(|offset, length| {
            most.set(most.get().max(length));
            slice(&program, offset, length)
        });
        assert_eq!(name.as_deref(), Some(Path::new("/lib/ld.so")));
        assert!(most.get() <= 8192, "{}", most.get());
        // An offset behind all that there can be.
        program[second + 8..second + 16].fill(0xff);
        assert_eq!(interpreter(&program), None);
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..512)) {
            interpreter_or_none(&bytes);
        }

        #[test]
        fn damaged_headers_never_panic(
            class in 1..3_u8,
            changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        ) {
            let mut bytes = elf(class, 1, 62, b"/lib/ld.so\0");
            for (place, value) in changes {
                let place = place.index(bytes.len());
                bytes[place] = value;
            }
            interpreter_or_none(&bytes);
        }
    }

    /// The name need not be text.
    fn interpreter_or_none(bytes: &[u8]) {
        let _ = named(|offset, length| slice(bytes, offset, length));
    }

    #[test]
    fn error_of_missing_interpreter_has_name_and_advice() {
        // cni-plugins#80
        let folder = tempfile::tempdir().unwrap();
        let failure = |name: &str, content: &[u8]| {
            let path = folder.path().join(name);
            fs::write(&path, content).unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
            let error = Invoker::default().run_at(&path, &Variables::new(), b"{}");
            let message = error.unwrap_err().msg;
            let begin = format!("failed to run plugin {}: ", path.display());
            message.strip_prefix(&begin).unwrap_or(&message).to_owned()
        };
        let expected = |interpreter: &str| {
            format!(
                "it needs the interpreter {interpreter}, which does not exist in this file system: if multus runs the \
                 host's plugins in its container, set chrootDir to the host's root"
            )
        };
        assert_eq!(failure("script", b"#!/nowhere/sh\n"), expected("/nowhere/sh"));
        assert_eq!(failure("dos", b"#!/bin/sh\r\n"), expected("/bin/sh\\r"));
        let first = folder.path().join("script").display().to_string();
        let by_script = format!("#!{first}\n");
        assert_eq!(failure("second", by_script.as_bytes()), expected("/nowhere/sh"));
        // A file that is missing itself is called so.
        let path = folder.path().join("none");
        let error = Invoker::default().run_at(&path, &Variables::new(), b"{}");
        let message = error.unwrap_err().msg;
        assert!(message.contains("No such file or directory"), "{message}");

        let machine = match std::env::consts::ARCH {
            "x86_64" => 62,
            "aarch64" => 183,
            other => {
                println!("skipped: a linked program for {other}");
                return;
            }
        };
        let linked = elf(2, 1, machine, b"/nowhere/ld-linux.so.2\0");
        assert_eq!(failure("linked", &linked), expected("/nowhere/ld-linux.so.2"));
    }
}
