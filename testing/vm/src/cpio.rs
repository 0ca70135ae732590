//! The archive format of an initramfs: cpio, variant "newc" (Linux, `Documentation/driver-api/early-userspace`).

use std::collections::BTreeSet;
use std::path::{Component, Path};

const MAGIC: &str = "070701";
/// Name of the last entry of an archive.
const TRAILER: &str = "TRAILER!!!";
/// File types of `st_mode`.
const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;
const LINK: u32 = 0o120_000;

/// An archive that is being written. Directories are created with their content.
#[derive(Debug, Default)]
pub(crate) struct Archive {
    bytes: Vec<u8>,
    entries: u32,
    folders: BTreeSet<String>,
}

impl Archive {
    /// Adds a directory. `mode` applies to a new directory only.
    pub(crate) fn folder(&mut self, path: &Path, mode: u32) {
        self.parents(path);
        let name = name(path);
        if self.folders.insert(name.clone()) {
            self.entry(&name, DIRECTORY | mode, &[]);
        }
    }

    /// Adds a regular file.
    pub(crate) fn file(&mut self, path: &Path, mode: u32, content: &[u8]) {
        self.parents(path);
        self.entry(&name(path), REGULAR | mode, content);
    }

    /// Adds a symbolic link.
    pub(crate) fn link(&mut self, path: &Path, target: &str) {
        self.parents(path);
        self.entry(&name(path), LINK | 0o777, target.as_bytes());
    }

    /// Returns the complete archive.
    pub(crate) fn finish(mut self) -> Vec<u8> {
        self.entry(TRAILER, 0, &[]);
        self.bytes
    }

    /// The kernel creates only entries of the archive: a file without its directory would be dropped.
    fn parents(&mut self, path: &Path) {
        if let Some(parent) = path.parent()
            && !name(parent).is_empty()
        {
            self.folder(parent, 0o755);
        }
    }

    fn entry(&mut self, name: &str, mode: u32, content: &[u8]) {
        self.entries += 1;
        let links = if mode & DIRECTORY == DIRECTORY { 2 } else { 1 };
        let size = u32::try_from(content.len()).unwrap_or(u32::MAX);
        let name_size = u32::try_from(name.len() + 1).unwrap_or(u32::MAX);
        // inode, mode, uid, gid, links, mtime, size, device (2), device of a node (2), size of the name, checksum
        let numbers = [self.entries, mode, 0, 0, links, 0, size, 0, 0, 0, 0, name_size, 0];
        self.bytes.extend_from_slice(MAGIC.as_bytes());
        for number in numbers {
            self.bytes.extend_from_slice(format!("{number:08x}").as_bytes());
        }
        self.bytes.extend_from_slice(name.as_bytes());
        self.bytes.push(0);
        self.pad();
        self.bytes.extend_from_slice(content);
        self.pad();
    }

    /// Pads names and contents to multiples of four bytes.
    fn pad(&mut self) {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
    }
}

/// Returns the path in the form of archives: relative to the root.
fn name(path: &Path) -> String {
    let parts: Vec<_> = path
        .components()
        .filter_map(|component| match component {
            Component::Normal(part) => Some(part.to_string_lossy()),
            _ => None,
        })
        .collect();
    parts.join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Name, mode and content of each entry.
    fn read(mut bytes: &[u8]) -> Vec<(String, u32, Vec<u8>)> {
        let mut entries = Vec::new();
        let whole = bytes.len();
        while !bytes.is_empty() {
            assert_eq!(&bytes[..6], b"070701");
            let number = |at: usize| {
                let digits = std::str::from_utf8(&bytes[6 + 8 * at..14 + 8 * at]).unwrap();
                usize::from_str_radix(digits, 16).unwrap()
            };
            let (mode, size, name_size) = (number(1), number(6), number(11));
            let name = String::from_utf8(bytes[110..110 + name_size - 1].to_vec()).unwrap();
            let start = (110 + name_size).next_multiple_of(4);
            let content = bytes[start..start + size].to_vec();
            entries.push((name, u32::try_from(mode).unwrap(), content));
            bytes = &bytes[(start + size).next_multiple_of(4)..];
            assert_eq!((whole - bytes.len()) % 4, 0);
        }
        entries
    }

    #[test]
    fn directory_precedes_its_content_and_occurs_once() {
        let mut archive = Archive::default();
        archive.file(Path::new("/init"), 0o755, b"abcde");
        archive.file(Path::new("/lib/modules/a.ko"), 0o644, b"");
        archive.folder(Path::new("/lib/modules"), 0o755);
        archive.folder(Path::new("/tmp"), 0o1777);
        archive.link(Path::new("/bin/sh"), "busybox");
        let entries = read(&archive.finish());
        let shown: Vec<String> = entries
            .iter()
            .map(|(name, mode, content)| format!("{mode:o} {name} {}", String::from_utf8_lossy(content)))
            .collect();
        assert_eq!(
            shown,
            [
                "100755 init abcde",
                "40755 lib ",
                "40755 lib/modules ",
                "100644 lib/modules/a.ko ",
                "41777 tmp ",
                "40755 bin ",
                "120777 bin/sh busybox",
                "0 TRAILER!!! ",
            ]
        );
    }
}
