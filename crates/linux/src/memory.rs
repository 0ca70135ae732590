//! Releases memory that the process does not need.

use std::fs;
use std::io;
use std::ops::Range;

use rustix::mm::{Advice, madvise};

/// The kernel's statistics of each mapping of this process.
const MAPPINGS: &str = "/proc/self/smaps";
/// The kernel's summary of this process.
const STATUS: &str = "/proc/self/status";

/// Makes all threads share one heap from now on. By default glibc gives threads their own heaps, which remain half
/// empty. For programs that allocate little at once, that costs more than lock contention. Other C libraries have one
/// heap.
pub fn share_one_heap() {
    #[allow(unsafe_code, reason = "the C library's allocator has no safe interface")]
    // SAFETY: the call takes two numbers, and locks by itself.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Returns freed memory to the kernel, and [drops the pages of the program](drop_pages).
///
/// # Errors
/// If the mappings of this process cannot be read.
pub fn give_back() -> io::Result<()> {
    #[allow(unsafe_code, reason = "the C library's allocator has no safe interface")]
    // SAFETY: the call takes a number, and locks by itself.
    #[cfg(target_env = "gnu")]
    unsafe {
        libc::malloc_trim(0);
    }
    drop_pages()
}

/// Resident memory of this process, in kibibytes.
///
/// # Errors
/// If the kernel's status of this process cannot be read.
pub fn resident() -> io::Result<u64> {
    let status = fs::read_to_string(STATUS)?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let size = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse().ok());
    size.ok_or_else(|| io::Error::other(format!("{STATUS} has no resident memory")))
}

/// Drops pages of the program that were read for completed work. Pages that are needed again are in the page cache.
///
/// # Errors
/// If the mappings of this process cannot be read.
pub fn drop_pages() -> io::Result<()> {
    let own_code = (drop_pages as *const ()).addr();
    for Range { start, end } in unwritten(&fs::read_to_string(MAPPINGS)?, own_code) {
        #[allow(unsafe_code, reason = "madvise takes memory by its address")]
        // SAFETY: the mapping is private and read-only, and none of its pages was ever written, including pages in
        // swap: later reads return the same bytes from the file. The file is this program, including this function: the
        // mapping cannot be unmapped or replaced while the program runs.
        let advised = unsafe {
            madvise(
                std::ptr::without_provenance_mut(start),
                end - start,
                Advice::LinuxDontNeed,
            )
        };
        // A removed or locked mapping has nothing to release.
        let _ = advised;
    }
    Ok(())
}

/// Returns the private, read-only mappings of the file that is mapped at `address` whose pages were never written.
/// Pages that were written before the mapping was protected (relocated addresses) are anonymous or in swap.
fn unwritten(smaps: &str, address: usize) -> Vec<Range<usize>> {
    let mut found: Vec<Mapping<'_>> = Vec::new();
    let mut current: Option<Mapping<'_>> = None;
    let mut wanted = None;
    for line in smaps.lines() {
        match line.split_once(' ') {
            Some(("Anonymous:", size)) => current = current.filter(|_| is_none(size)),
            // The kernel prints this line after `Anonymous`.
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

/// A private, read-only mapping of a file.
struct Mapping<'a> {
    range: Range<usize>,
    /// Device and inode.
    file: (&'a str, &'a str),
}

impl<'a> Mapping<'a> {
    /// Parses `55d0-55d4 r-xp 00001000 08:01 1234 /path`.
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
    fn only_unwritten_mappings_of_the_program_are_released() {
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
            // Other mappings may be unmapped at any moment, and their addresses reused.
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
    fn pages_of_the_program_are_released_and_read_again() {
        let pages = || -> u64 {
            let status = fs::read_to_string(STATUS).unwrap();
            let line = status.lines().find_map(|line| line.strip_prefix("RssFile:"));
            line.unwrap().trim().trim_end_matches(" kB").parse().unwrap()
        };
        share_one_heap();
        let before = pages();
        assert!(resident().unwrap() >= before);
        // Concurrent tests read some of the pages again.
        give_back().unwrap();
        let after = pages();
        assert!(after < before, "{before} kB, then {after} kB");
    }
}
