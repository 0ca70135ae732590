//! Memory that a process has and does not need.

use std::fs;
use std::io;
use std::ops::Range;

use rustix::mm::{Advice, madvise};

/// The kernel's figures for each mapping of this process.
const MAPPINGS: &str = "/proc/self/smaps";

/// Lets all threads share one heap, from now on. The C library gives threads heaps of their own otherwise, which they
/// leave behind half empty; where little is allocated at once that costs more than waiting for each other. Of the C
/// libraries only glibc does that.
pub fn share_one_heap() {
    #[allow(unsafe_code, reason = "the C library's allocator has no safe interface")]
    // SAFETY: it takes two numbers, and a lock of its own.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Gives back to the kernel what was freed, and the pages of the program that were read for a work which may not come
/// again: those that are needed after all are in the page cache.
///
/// # Errors
/// When the kernel does not say what this process has mapped.
pub fn give_back() -> io::Result<()> {
    #[allow(unsafe_code, reason = "the C library's allocator has no safe interface")]
    // SAFETY: it takes a number, and a lock of its own.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
    let own_code = (give_back as *const ()).addr();
    for Range { start, end } in unwritten(&fs::read_to_string(MAPPINGS)?, own_code) {
        #[allow(unsafe_code, reason = "the kernel is told about memory by its address")]
        // SAFETY: the mapping is private, read-only, and none of its pages was ever written, nor is one in swap that was:
        // whoever reads it, now or later, gets the same bytes from the file again. The file is this program's own, this
        // code among it: the mapping can't be unmapped or become another one while the program runs.
        let told = unsafe {
            madvise(
                std::ptr::without_provenance_mut(start),
                end - start,
                Advice::LinuxDontNeed,
            )
        };
        // A mapping that is gone, or locked, has nothing to give.
        let _ = told;
    }
    Ok(())
}

/// The private, read-only mappings of the file that is mapped at `address`, if none of their pages was ever written. Pages
/// that were written before the mapping was protected (addresses that were relocated) are anonymous ones or in swap.
fn unwritten(smaps: &str, address: usize) -> Vec<Range<usize>> {
    let mut found: Vec<Mapping<'_>> = Vec::new();
    let mut current: Option<Mapping<'_>> = None;
    let mut wanted = None;
    for line in smaps.lines() {
        match line.split_once(' ') {
            Some(("Anonymous:", size)) => current = current.filter(|_| is_none(size)),
            // It comes after the other.
            Some(("Swap:", size)) => found.extend(current.take().filter(|_| is_none(size))),
            Some((range, rest)) if !range.ends_with(':') => {
                current = Mapping::read(range, rest);
                if let Some(mapping) = &current
                    && mapping.range.contains(&address)
                {
                    wanted = Some(mapping.file);
                }
            }
            _ => {}
        }
    }
    found.retain(|mapping| Some(mapping.file) == wanted);
    found.into_iter().map(|mapping| mapping.range).collect()
}

fn is_none(size: &str) -> bool {
    size.trim() == "0 kB"
}

/// A private mapping of a file that can't be written.
struct Mapping<'a> {
    range: Range<usize>,
    /// Device and inode.
    file: (&'a str, &'a str),
}

impl<'a> Mapping<'a> {
    /// Reads `55d0-55d4 r-xp 00001000 08:01 1234 /path`.
    fn read(range: &str, rest: &'a str) -> Option<Self> {
        let mut fields = rest.split_whitespace();
        let is_private = matches!(fields.next(), Some("r-xp" | "r--p"));
        let file = (fields.nth(1)?, fields.next()?);
        let (start, end) = range.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        let range = address(start)?..address(end)?;
        (is_private && file.1 != "0").then_some(Self { range, file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_the_programs_file_has_too_is_given_back() {
        let mapping = |about: &str, anonymous: u8, swap: u8| {
            format!("{about}\nRss: 64 kB\nAnonymous: {anonymous} kB\nSwap: {swap} kB\nVmFlags: rd mr mw me\n")
        };
        let smaps = [
            mapping("00400000-00500000 r--p 00000000 fe:00 11            /weft", 0, 0),
            mapping("00500000-00900000 r-xp 00100000 fe:00 11            /weft", 0, 0),
            mapping(
                "00900000-00910000 r--p 00500000 fe:00 11            /weft (deleted)",
                64,
                0,
            ),
            mapping(
                "00910000-00920000 r--p 00500000 fe:00 11            /weft (deleted)",
                0,
                64,
            ),
            mapping("00920000-00930000 rw-p 00510000 fe:00 11            /weft", 0, 0),
            mapping("00a00000-00b00000 rw-p 00000000 00:00 0             [heap]", 0, 0),
            // Others may be unmapped at any moment, and their addresses used for something else.
            mapping(
                "7f000000-7f100000 r-xp 00000000 fe:00 13            /library",
                0,
                0,
            ),
            mapping("7f100000-7f200000 r--p 00000000 fe:01 11            /file", 0, 0),
            mapping("7ffc0000-7ffd0000 r-xp 00000000 00:00 0             [vdso]", 0, 0),
            mapping(
                "7ffe0000-7fff0000 r--s 00000000 fe:00 12            /shared",
                0,
                0,
            ),
        ]
        .concat();
        let program = [0x40_0000..0x50_0000, 0x50_0000..0x90_0000];
        assert_eq!(unwritten(&smaps, 0x60_0000), program);
        let (heap, nothing) = (0xa0_0000, 0x10);
        for address in [heap, nothing] {
            assert!(unwritten(&smaps, address).is_empty());
        }
    }

    #[test]
    fn pages_of_the_program_go_and_come_back() {
        let resident = || -> u64 {
            let status = fs::read_to_string("/proc/self/status").unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssFile:"));
            line.unwrap().trim().trim_end_matches(" kB").parse().unwrap()
        };
        share_one_heap();
        let before = resident();
        // Other tests run meanwhile and read some of them again.
        give_back().unwrap();
        let after = resident();
        assert!(after < before, "{before} kB, then {after} kB");
    }
}
