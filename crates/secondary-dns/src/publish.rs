//! Writes one zone file atomically (secondary-dns §5, §9). `files` decides when, and retries.

use std::collections::HashMap;
use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use crate::model::{self, Model};
use crate::names;
use crate::zone::serial;

/// Name of an incomplete file. It contains no prefix of zone files, for any name of the zone.
const UNFINISHED: &str = ".next";
/// All users may read a zone.
const MODE: u32 = 0o644;
/// The first lines of a zone file are not longer than this number of octets.
const HEAD: u64 = 2048;

/// A failed write of a zone file.
#[derive(Debug, thiserror::Error)]
#[error("cannot write zone file {}", path.display())]
pub(crate) struct Error {
    path: PathBuf,
    #[source]
    source: io::Error,
}

/// A directory of zone files.
#[derive(Debug)]
pub(crate) struct Publisher {
    directory: PathBuf,
    /// A digest of each zone's file without its serial.
    digests: HashMap<String, u64>,
}

/// Files to write.
#[derive(Debug)]
pub(crate) struct Edition {
    /// By the name of the zone: text and digest.
    files: Vec<(String, String, u64)>,
}

/// The file of a zone.
pub(crate) fn path(directory: &Path, zone: &str) -> PathBuf {
    directory.join(format!("{}{zone}", names::ZONE_FILE))
}

impl Publisher {
    /// A publisher for a directory.
    pub(crate) fn new(directory: PathBuf) -> Self {
        Self {
            directory,
            digests: HashMap::new(),
        }
    }

    /// The file of a zone.
    pub(crate) fn path(&self, zone: &str) -> PathBuf {
        path(&self.directory, zone)
    }

    /// Other zones of instances with a file of this program.
    pub(crate) fn others(&self, zone: &str) -> Vec<String> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()));
        let zones = files.filter_map(|entry| {
            let name = entry.file_name().into_string().ok()?;
            name.strip_prefix(names::ZONE_FILE).map(str::to_owned)
        });
        zones
            .filter(|other| other != zone && self.is_ours(other))
            .collect()
    }

    fn is_ours(&self, zone: &str) -> bool {
        let mut head = Vec::new();
        let file = File::open(self.path(zone));
        let read = file.and_then(|file| file.take(HEAD).read_to_end(&mut head));
        read.is_ok() && model::is_file_of(zone, &String::from_utf8_lossy(&head))
    }

    /// The serial of a zone's file, if the file is readable.
    pub(crate) fn serial(&self, zone: &str) -> Option<u32> {
        let path = path(&self.directory, zone);
        let found = match fs::read(&path) {
            Ok(octets) => serial::of_file(&String::from_utf8_lossy(&octets)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return None,
            Err(_) => None,
        };
        if found.is_none() {
            tracing::warn!(path = %path.display(), "the zone file cannot be read and is written anew");
        }
        found
    }

    /// Whether a zone's file has exactly this text.
    pub(crate) fn is_current(&self, zone: &str, text: &str) -> bool {
        fs::read(path(&self.directory, zone)).is_ok_and(|octets| octets == text.as_bytes())
    }

    /// The files that differ from the model.
    pub(crate) fn edition(&self, model: &Model) -> Edition {
        let header = model.header();
        let forward = std::iter::once((header.zone.clone(), model.render()));
        let reverse = header.reverse.iter();
        let reverse = reverse.map(|zone| (zone.origin.clone(), model.render_reverse(zone)));
        let files = forward.chain(reverse).map(|(zone, text)| {
            let digest = digest(&text);
            (zone, text, digest)
        });
        let is_news = |(zone, _, digest): &(String, String, u64)| self.digests.get(zone) != Some(digest);
        Edition {
            files: files.filter(is_news).collect(),
        }
    }

    /// Records that a zone's file already has this text.
    pub(crate) fn assume(&mut self, zone: &str, text: &str) {
        self.digests.insert(zone.to_owned(), digest(text));
    }

    /// Writes files. Each of them is the old one or the new one at any time.
    ///
    /// # Errors
    /// If a write fails. The files before it are written; this file and the rest are part of the next edition.
    pub(crate) fn write(&mut self, edition: Edition) -> Result<(), Error> {
        for (zone, text, digest) in edition.files {
            let path = path(&self.directory, &zone);
            if let Err(source) = self.replace(&path, &text) {
                return Err(Error { path, source });
            }
            self.digests.insert(zone, digest);
        }
        Ok(())
    }

    fn replace(&self, path: &Path, text: &str) -> io::Result<()> {
        let unfinished = self.directory.join(UNFINISHED);
        let written = File::create(&unfinished).and_then(|mut file| {
            file.set_permissions(fs::Permissions::from_mode(MODE))?;
            file.write_all(text.as_bytes())?;
            file.sync_all()?;
            fs::rename(&unfinished, path)
        });
        if written.is_err() {
            // The file takes space on a disk that may be full.
            let _ = fs::remove_file(&unfinished);
        }
        written
    }
}

/// A digest of a zone file without its serial.
fn digest(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    for line in text.lines().filter(|line| !line.contains(" IN SOA ")) {
        line.hash(&mut hasher);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Header, key};
    use crate::vmi::Record;
    use std::os::unix::fs::MetadataExt as _;

    fn model(zone: &str) -> Model {
        let header = Header {
            zone: zone.to_owned(),
            name_servers: Vec::new(),
            ttl: 3600,
            reverse: crate::zone::reverse::zones(&["10.0.0.0/8".parse().unwrap()]).unwrap(),
        };
        Model::new(header, 0)
    }

    fn set(model: &mut Model, address: &str) {
        let record = Record {
            owner: "n.vm.ns".into(),
            address: address.parse().unwrap(),
            is_default: false,
        };
        model.set(&key("ns", "vm"), vec![record]);
    }

    fn files(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn files_are_called_after_their_zone() {
        // secondary-dns#7
        let directory = tempfile::tempdir().unwrap();
        for (zone, file) in [("vm", "db.vm"), ("vm.domain.com", "db.vm.domain.com")] {
            let mut publisher = Publisher::new(directory.path().to_owned());
            publisher.write(publisher.edition(&model(zone))).unwrap();
            let path = directory.path().join(file);
            assert_eq!(fs::read_to_string(&path).unwrap(), model(zone).render());
            assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o644);
        }
        assert_eq!(
            files(directory.path()),
            ["db.10.in-addr.arpa", "db.vm", "db.vm.domain.com"]
        );
    }

    #[test]
    fn only_files_with_changes_are_written() {
        // secondary-dns#13, the file
        let directory = tempfile::tempdir().unwrap();
        let mut publisher = Publisher::new(directory.path().to_owned());
        let mut model = model("vm");
        set(&mut model, "192.0.2.1");
        publisher.write(publisher.edition(&model)).unwrap();
        let inode = |zone| path(directory.path(), zone).metadata().unwrap().ino();
        let before = (inode("vm"), inode("10.in-addr.arpa"));
        publisher.write(publisher.edition(&model)).unwrap();
        assert_eq!((inode("vm"), inode("10.in-addr.arpa")), before);
        set(&mut model, "192.0.2.2");
        publisher.write(publisher.edition(&model)).unwrap();
        assert_ne!(inode("vm"), before.0);
        assert_eq!(inode("10.in-addr.arpa"), before.1, "nothing of it has changed");
    }

    #[test]
    fn readers_never_see_half_a_file() {
        // secondary-dns#32: a killed process leaves the old file or the new one, and an incomplete file is no zone.
        let directory = tempfile::tempdir().unwrap();
        let mut publisher = Publisher::new(directory.path().to_owned());
        let mut model = model("vm");
        set(&mut model, "192.0.2.1");
        publisher.write(publisher.edition(&model)).unwrap();
        let before = fs::read_to_string(path(directory.path(), "vm")).unwrap();
        // A directory blocks the path of the incomplete file: the write fails.
        fs::create_dir(directory.path().join(UNFINISHED)).unwrap();
        set(&mut model, "192.0.2.2");
        let error = publisher.write(publisher.edition(&model)).unwrap_err();
        assert!(
            error.to_string().starts_with("cannot write zone file /"),
            "{error}"
        );
        assert_eq!(fs::read_to_string(path(directory.path(), "vm")).unwrap(), before);
        assert!(!UNFINISHED.contains("db."));
        fs::remove_dir(directory.path().join(UNFINISHED)).unwrap();
        // A leftover of a killed process does no harm.
        fs::write(directory.path().join(UNFINISHED), "$ORIGIN v").unwrap();
        assert_eq!(Publisher::new(directory.path().to_owned()).serial("vm"), Some(1));
        publisher.write(publisher.edition(&model)).unwrap();
        assert_eq!(
            fs::read_to_string(path(directory.path(), "vm")).unwrap(),
            model.render()
        );
        assert_eq!(publisher.serial("vm"), Some(2));
        assert_eq!(files(directory.path()), ["db.10.in-addr.arpa", "db.vm"]);
    }

    #[test]
    fn failed_write_is_repeated() {
        // secondary-dns#33, the decision
        let directory = tempfile::tempdir().unwrap();
        let missing = directory.path().join("missing");
        let mut publisher = Publisher::new(missing.clone());
        let model = model("vm");
        assert!(publisher.write(publisher.edition(&model)).is_err());
        fs::create_dir(&missing).unwrap();
        publisher.write(publisher.edition(&model)).unwrap();
        assert!(publisher.is_current("vm", &model.render()));
    }

    #[test]
    fn files_of_other_zones_are_recognised() {
        let directory = tempfile::tempdir().unwrap();
        let mut publisher = Publisher::new(directory.path().to_owned());
        for zone in ["vm", "vm.former.example"] {
            publisher.write(publisher.edition(&model(zone))).unwrap();
        }
        // These have other authors.
        let former = model("vm.former.example").render();
        let with_other_names = [
            ("db.vm.copy.example", former.clone()),
            ("db.example", former.replace("vm.former.example", "example")),
            (
                "db.vm.people.example",
                former.replace("former", "people").replace("email", "jo"),
            ),
            ("db.vm.empty.example", String::new()),
            ("vm.former.example", former),
        ];
        for (file, text) in with_other_names {
            fs::write(directory.path().join(file), text).unwrap();
        }
        fs::create_dir(path(directory.path(), "vm.directory")).unwrap();
        assert_eq!(publisher.others("vm"), ["vm.former.example"]);
        assert_eq!(publisher.others("vm.former.example"), ["vm"]);
        let missing = Publisher::new(directory.path().join("missing"));
        assert!(missing.others("vm").is_empty());
    }

    #[test]
    fn garbage_counts_as_no_file() {
        // secondary-dns#6, the serial
        let directory = tempfile::tempdir().unwrap();
        let publisher = Publisher::new(directory.path().to_owned());
        for garbage in [&b""[..], b"garbage", b"\xff\xfe", b"@ IN SOA ns.vm. email.vm. ("] {
            fs::write(path(directory.path(), "vm"), garbage).unwrap();
            assert_eq!(publisher.serial("vm"), None);
        }
    }
}
