//! Device-info files: a device plugin describes a device for the CNI plugin, which may rewrite the description for
//! the pod's network status (multus.md §5.6).
//!
//! ```text
//! dp/<resource>-<device>-device.json ──copied before ADD──> cni/<network>-<sandbox>_<interface> ──> status
//!        device plugin                                         CNI plugin may rewrite it          removed by DEL
//! ```
//!
//! The files belong to other programs and are not trusted: their size is limited, links and pipes are refused, and a
//! bad file never fails an attachment.

use cni::files;
use linux::files::{Links, open_regular};
use serde_json::Value;
use serde_json::value::RawValue;
use std::fs::{self, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

/// Directory of the files.
const ROOT: &str = "/var/run/k8s.cni.cncf.io/devinfo";
/// Subdirectory of device plugins.
const OF_DEVICE_PLUGINS: &str = "dp";
/// Subdirectory of attachments.
const OF_ATTACHMENTS: &str = "cni";
/// Size limit in bytes: the content becomes part of an annotation. Real files have some hundred bytes.
const LIMIT: u64 = 16 * 1024;
const MODE: u32 = 0o444;

/// A file is unusable.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It cannot be read or written.
    #[error("{}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is not a regular file, or too large.
    #[error("{} is not a regular file of at most {LIMIT} bytes", .0.display())]
    Refused(PathBuf),
    /// It is not a JSON object.
    #[error("{} is not a JSON object", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where.
        source: serde_json::Error,
    },
}

/// The directory of all device-info files of a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    root: PathBuf,
}

impl Default for DeviceInfo {
    fn default() -> Self {
        Self::below(ROOT.into())
    }
}

impl DeviceInfo {
    /// The files below another directory, for tests.
    pub fn below(root: PathBuf) -> Self {
        Self { root }
    }

    /// The file of an attachment. Plugins see it at the same path.
    pub fn of_attachment(&self, network: &str, container_id: &str, interface: &str) -> PathBuf {
        let name = plain(&format!("{network}-{container_id}_{interface}"));
        self.root.join(OF_ATTACHMENTS).join(name)
    }

    /// The file of a device plugin about one of its devices. It may be missing.
    pub fn of_device(&self, resource: &str, device: &str) -> PathBuf {
        let name = format!("{}-{}-device.json", plain(resource), plain(device));
        self.root.join(OF_DEVICE_PLUGINS).join(name)
    }

    /// Whether a path is that of an attachment's file. Others are never read or removed.
    pub fn is_of_attachment(&self, path: &Path) -> bool {
        path.parent() == Some(&*self.root.join(OF_ATTACHMENTS)) && path.file_name().is_some()
    }

    /// Copies the device plugin's file to the attachment's file, which must not exist. A missing source is no error.
    pub fn hand_over(&self, resource: &str, device: &str, attachment: &Path) -> Result<(), Error> {
        let Some(object) = object(&self.of_device(resource, device))? else {
            return Ok(());
        };
        let failed = |source| Error::Io {
            path: attachment.to_owned(),
            source,
        };
        if let Some(folder) = attachment.parent() {
            fs::create_dir_all(folder).map_err(failed)?;
        }
        let mut file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(MODE)
            .open(attachment)
            .map_err(failed)?;
        file.write_all(object.get().as_bytes()).map_err(|source| {
            // A partial file would mislead plugins, and no retry replaces it.
            let _ = fs::remove_file(attachment);
            failed(source)
        })
    }

    /// The content of an attachment's file; `None` without a file.
    pub fn read(&self, attachment: &Path) -> Result<Option<Box<RawValue>>, Error> {
        object(attachment)
    }

    /// Removes the file of an attachment. A missing file is no error.
    pub fn remove(&self, attachment: &Path) -> Result<(), Error> {
        files::remove_if_present(attachment).map_err(|source| Error::Io {
            path: attachment.to_owned(),
            source,
        })
    }
}

/// Makes a name from users safe as a file name: it cannot lead to another directory.
fn plain(name: &str) -> String {
    name.replace('/', "-")
}

/// The object in a file; `None` without a file.
fn object(path: &Path) -> Result<Option<Box<RawValue>>, Error> {
    let Some(text) = read(path)? else {
        return Ok(None);
    };
    parse(text).map(Some).map_err(|source| Error::Malformed {
        path: path.to_owned(),
        source,
    })
}

/// The object that the text of a file is, without the white space around it.
pub fn parse(text: String) -> Result<Box<RawValue>, serde_json::Error> {
    // The parser limits the depth; a raw value alone would not.
    match serde_json::from_str::<Value>(&text)? {
        Value::Object(_) => RawValue::from_string(text),
        _ => Err(serde::de::Error::custom("expected an object")),
    }
}

fn read(path: &Path) -> Result<Option<String>, Error> {
    let failed = |source| Error::Io {
        path: path.to_owned(),
        source,
    };
    let file = match open_regular(path, Links::Refuse) {
        Ok(file) => file,
        Err(error) if files::is_absent(&error) => return Ok(None),
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
            return Err(Error::Refused(path.to_owned()));
        }
        Err(error) => return Err(failed(error)),
    };
    let mut text = String::new();
    file.take(LIMIT + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > LIMIT {
        return Err(Error::Refused(path.to_owned()));
    }
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    struct Bench {
        dir: tempfile::TempDir,
        info: DeviceInfo,
    }

    impl Bench {
        fn new() -> Self {
            let dir = tempfile::tempdir().unwrap();
            fs::create_dir(dir.path().join("dp")).unwrap();
            let info = DeviceInfo::below(dir.path().into());
            Self { dir, info }
        }

        fn attachment(&self) -> PathBuf {
            self.info.of_attachment("ns/net", "c1", "net1")
        }
    }

    const PCI: &str = r#"{"type":"pci","version":"1.1.0","pci":{"pci-address":"0000:00:01.0"}}"#;

    #[test]
    fn files_have_standard_paths() {
        let info = DeviceInfo::default();
        assert_eq!(
            info.of_attachment("ns/net", "c1", "net1"),
            Path::new("/var/run/k8s.cni.cncf.io/devinfo/cni/ns-net-c1_net1")
        );
        assert_eq!(
            info.of_device("intel.com/sriov", "a/0000:00:01.0"),
            Path::new("/var/run/k8s.cni.cncf.io/devinfo/dp/intel.com-sriov-a-0000:00:01.0-device.json")
        );
    }

    #[test]
    fn names_cannot_leave_directory() {
        let info = DeviceInfo::default();
        assert!(info.is_of_attachment(&info.of_attachment("../../etc", "../c", "..")));
        for path in [
            "/etc/passwd",
            "/var/run/k8s.cni.cncf.io/devinfo/dp/a",
            "/var/run/k8s.cni.cncf.io/devinfo/cni/../../x",
            "/var/run/k8s.cni.cncf.io/devinfo/cni/..",
            "",
        ] {
            assert!(!info.is_of_attachment(Path::new(path)), "{path}");
        }
    }

    #[test]
    fn device_plugins_file_is_copied() {
        // multus#62 (the files)
        let bench = Bench::new();
        fs::write(bench.info.of_device("x.io/r", "d1"), PCI).unwrap();
        let file = bench.attachment();
        bench.info.hand_over("x.io/r", "d1", &file).unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o444);
        assert_eq!(bench.info.read(&file).unwrap().unwrap().get(), PCI);
        // An existing file belongs to another owner.
        fs::write(bench.info.of_device("x.io/r", "d1"), "{}").unwrap();
        bench.info.hand_over("x.io/r", "d1", &file).unwrap_err();
        assert_eq!(bench.info.read(&file).unwrap().unwrap().get(), PCI);
        bench.info.remove(&file).unwrap();
        bench.info.remove(&file).unwrap();
        assert!(!file.exists());
    }

    #[test]
    fn missing_file_has_no_device_info() {
        let bench = Bench::new();
        let file = bench.attachment();
        bench.info.hand_over("x.io/r", "d1", &file).unwrap();
        // A name that no file can have comes from a user, too.
        bench.info.hand_over("x.io/r", &"d".repeat(300), &file).unwrap();
        assert!(bench.info.read(&file).unwrap().is_none());
    }

    #[test]
    fn large_or_malformed_file_is_refused() {
        let bench = Bench::new();
        let file = bench.attachment();
        fs::create_dir(bench.dir.path().join("cni")).unwrap();
        let deep = format!("{{\"a\":{}{}}}", "[".repeat(2000), "]".repeat(2000));
        let large = format!("{{\"a\":\"{}\"}}", "x".repeat(17_000));
        for text in ["", "[]", "null", "{", &deep, &large] {
            fs::write(&file, text).unwrap();
            assert!(bench.info.read(&file).is_err(), "{}", text.len());
        }
        fs::write(&file, [0xff, 0xfe]).unwrap();
        bench.info.read(&file).unwrap_err();
        fs::remove_file(&file).unwrap();
        // Neither opens what it leads to, nor waits for a writer.
        fs::write(bench.dir.path().join("secret"), PCI).unwrap();
        symlink(bench.dir.path().join("secret"), &file).unwrap();
        assert!(matches!(bench.info.read(&file), Err(Error::Refused(_))));
        fs::remove_file(&file).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &file,
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RUSR,
            0,
        )
        .unwrap();
        assert!(matches!(bench.info.read(&file), Err(Error::Refused(_))));
    }
}
