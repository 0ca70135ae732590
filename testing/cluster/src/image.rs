//! Container images as docker archives, created without a container engine.
//!
//! Equal content gives equal bytes: entries are sorted, times are zero, and root owns all files.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::debian::Packages;
use crate::error::{At, Error, Result};
use crate::run;

/// Directory of the dynamic linker's libraries in an image.
const LIBRARIES: &str = "/usr/lib";

/// An entry of an image.
#[derive(Debug, Clone)]
enum Entry {
    Dir { mode: u32 },
    File { mode: u32, content: Vec<u8> },
    Link { target: String },
}

/// A container image with one layer.
#[derive(Debug, Clone, Default)]
pub struct Image {
    entries: BTreeMap<String, Entry>,
    entrypoint: Vec<String>,
    arguments: Vec<String>,
}

impl Image {
    /// Returns an empty image.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a directory, such as `/tmp`.
    #[must_use]
    pub fn dir(self, path: &str, mode: u32) -> Self {
        self.entry(path, Entry::Dir { mode })
    }

    /// Adds a file.
    #[must_use]
    pub fn file(self, path: &str, mode: u32, content: impl Into<Vec<u8>>) -> Self {
        self.entry(
            path,
            Entry::File {
                mode,
                content: content.into(),
            },
        )
    }

    /// Adds a program of Debian's packages, named by its path below `/`, and its shared libraries.
    ///
    /// # Errors
    /// If the program is static, or a file is missing.
    pub fn program(self, packages: &Packages, path: &str, place: &str) -> Result<Self> {
        let program = packages.file(path);
        let content = fs::read(&program).at("read", &program)?;
        let mut image = self.file(place, 0o755, content);
        let mut command = Command::new("ldd");
        command.envs(packages.variables()).arg(&program);
        for (place, library) in linked(&run::output(&mut command)?) {
            let content = fs::read(&library).at("read", &library)?;
            image = image.file(&place, 0o755, content);
        }
        Ok(image)
    }

    /// Adds a symbolic link.
    #[must_use]
    pub fn link(self, path: &str, target: &str) -> Self {
        self.entry(
            path,
            Entry::Link {
                target: target.to_owned(),
            },
        )
    }

    /// Sets the command that a container runs.
    #[must_use]
    pub fn entrypoint(mut self, argv: &[&str]) -> Self {
        self.entrypoint = argv.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    /// Sets the default arguments of the command.
    #[must_use]
    pub fn arguments(mut self, argv: &[&str]) -> Self {
        self.arguments = argv.iter().map(|word| (*word).to_owned()).collect();
        self
    }

    fn entry(mut self, path: &str, entry: Entry) -> Self {
        let path = path.trim_matches('/');
        let parents = path.match_indices('/').map(|(end, _)| &path[..end]);
        for parent in parents {
            self.entries
                .entry(parent.to_owned())
                .or_insert(Entry::Dir { mode: 0o755 });
        }
        self.entries.insert(path.to_owned(), entry);
        self
    }

    /// Returns the paths of all entries, sorted, without the leading slash.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    fn layer(&self) -> std::io::Result<Vec<u8>> {
        let mut tar = tar::Builder::new(Vec::new());
        for (path, entry) in &self.entries {
            match entry {
                Entry::Dir { mode } => append(
                    &mut tar,
                    &format!("{path}/"),
                    tar::EntryType::Directory,
                    *mode,
                    &[],
                    None,
                )?,
                Entry::File { mode, content } => {
                    append(&mut tar, path, tar::EntryType::Regular, *mode, content, None)?;
                }
                Entry::Link { target } => {
                    append(&mut tar, path, tar::EntryType::Symlink, 0o777, &[], Some(target))?;
                }
            }
        }
        tar.into_inner()
    }

    /// Writes the archive. The image is named `NAME:TAG`. The tag is `tag`, or else the first 12 digits of the SHA-256
    /// digest of the content. Returns the whole name.
    pub fn write(&self, archive: &Path, name: &str, tag: Option<&str>) -> Result<String> {
        let layer = self.layer().at("assemble the image", archive)?;
        let digest = hex(&Sha256::digest(&layer));
        let mut process = json!({
            "Entrypoint": self.entrypoint,
            "WorkingDir": "/",
            "Env": ["PATH=/usr/local/bin:/usr/bin:/bin:/"],
        });
        if !self.arguments.is_empty() {
            process["Cmd"] = json!(self.arguments);
        }
        let config = json!({
            "architecture": if cfg!(target_arch = "aarch64") { "arm64" } else { "amd64" },
            "os": "linux",
            "created": "1970-01-01T00:00:00Z",
            "config": process,
            "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{digest}")] },
            "history": [{ "created": "1970-01-01T00:00:00Z" }],
        })
        .to_string();
        let content = hex(&Sha256::digest(format!("{digest}{config}")));
        let reference = format!("{name}:{}", tag.unwrap_or(&content[..12]));
        let config_file = format!("{}.json", hex(&Sha256::digest(&config)));
        let layer_file = format!("{digest}.tar");
        let manifest =
            json!([{ "Config": config_file, "RepoTags": [reference], "Layers": [layer_file] }]).to_string();

        let unfinished = archive.with_extension("unfinished");
        let file = File::create(&unfinished).at("create", &unfinished)?;
        let mut tar = tar::Builder::new(std::io::BufWriter::new(file));
        append(
            &mut tar,
            &config_file,
            tar::EntryType::Regular,
            0o644,
            config.as_bytes(),
            None,
        )
        .and_then(|()| {
            append(
                &mut tar,
                &layer_file,
                tar::EntryType::Regular,
                0o644,
                &layer,
                None,
            )
        })
        .and_then(|()| {
            append(
                &mut tar,
                "manifest.json",
                tar::EntryType::Regular,
                0o644,
                manifest.as_bytes(),
                None,
            )
        })
        .and_then(|()| tar.into_inner())
        .and_then(|mut writer| std::io::Write::flush(&mut writer))
        .at("write", &unfinished)?;
        fs::rename(&unfinished, archive).at("create", archive)?;
        Ok(reference)
    }
}

/// Parses the output of `ldd`: the path of each library in the image, and its file. Programs contain the path of the
/// dynamic linker; other libraries are found by name.
fn linked(output: &str) -> Vec<(String, PathBuf)> {
    let library = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            [name, "=>", file, _] if file.starts_with('/') => {
                let place = if name.starts_with('/') {
                    name.to_owned()
                } else {
                    format!("{LIBRARIES}/{name}")
                };
                Some((place, PathBuf::from(file)))
            }
            [linker, _] if linker.starts_with('/') => Some((linker.to_owned(), PathBuf::from(linker))),
            _ => None,
        }
    };
    output.lines().filter_map(library).collect()
}

fn append(
    tar: &mut tar::Builder<impl std::io::Write>,
    path: &str,
    kind: tar::EntryType,
    mode: u32,
    content: &[u8],
    target: Option<&str>,
) -> std::io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_mtime(0);
    header.set_size(content.len() as u64);
    if let Some(target) = target {
        return tar.append_link(&mut header, path, target);
    }
    tar.append_data(&mut header, path, content)
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the names of the images in an archive.
pub fn references(archive: &Path) -> Result<Vec<String>> {
    let file = File::open(archive).at("open", archive)?;
    let mut tar = tar::Archive::new(file);
    for entry in tar.entries().at("read", archive)? {
        let mut entry = entry.at("read", archive)?;
        if entry.path().is_ok_and(|path| path == Path::new("manifest.json")) {
            let mut text = String::new();
            entry.read_to_string(&mut text).at("read", archive)?;
            let manifest: Value = serde_json::from_str(&text).map_err(|source| Error::Json {
                what: format!("bad manifest.json in {}", archive.display()),
                source,
            })?;
            let images = manifest.as_array().into_iter().flatten();
            let tags = images.filter_map(|image| image["RepoTags"].as_array()).flatten();
            return Ok(tags.filter_map(Value::as_str).map(str::to_owned).collect());
        }
    }
    Err(Error::Missing(format!(
        "{} is not a docker archive: it holds no manifest.json",
        archive.display()
    )))
}

/// Name of the sandbox image of test clusters.
pub const PAUSE: &str = "localhost/weft-pause:1";
/// Name of the image of test pods: a static busybox with a link for each of its commands.
pub const BUSYBOX: &str = "localhost/busybox:weft";

/// Creates the images [`PAUSE`] and [`BUSYBOX`] in `dir` from a static busybox, once.
pub(crate) fn of_busybox(busybox: &Path, dir: &Path) -> Result<[PathBuf; 2]> {
    let archives = [dir.join("pause.tar"), dir.join("busybox.tar")];
    if archives.iter().all(|archive| archive.exists()) {
        return Ok(archives);
    }
    fs::create_dir_all(dir).at("create", dir)?;
    let program = fs::read(busybox).at("read", busybox)?;
    let split = |reference: &'static str| reference.rsplit_once(':').unwrap_or((reference, "latest"));
    let (name, tag) = split(PAUSE);
    let pause = Image::new().file("/bin/busybox", 0o755, program.clone());
    pause
        .entrypoint(&["/bin/busybox", "sleep", "infinity"])
        .write(&archives[0], name, Some(tag))?;

    let mut image = Image::new()
        .file("/bin/busybox", 0o755, program)
        .dir("/tmp", 0o1777)
        .dir("/root", 0o700)
        .file(
            "/etc/passwd",
            0o644,
            "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n",
        )
        .file("/etc/group", 0o644, "root:x:0:\nnogroup:x:65534:\n");
    let commands = run::output(Command::new(busybox).arg("--list"))?;
    for command in commands.lines().filter(|command| *command != "busybox") {
        image = image.link(&format!("/bin/{command}"), "busybox");
    }
    let (name, tag) = split(BUSYBOX);
    image
        .entrypoint(&["/bin/sh"])
        .write(&archives[1], name, Some(tag))?;
    Ok(archives)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Image {
        Image::new()
            .file("/weft", 0o755, *b"program")
            .dir("/tmp", 0o1777)
            .link("/usr/bin/weft", "/weft")
    }

    #[test]
    fn equal_content_gives_equal_bytes_and_names() {
        let dir = tempfile::tempdir().unwrap();
        let (one, two) = (dir.path().join("one.tar"), dir.path().join("two.tar"));
        let first = sample().write(&one, "localhost/weft", None).unwrap();
        let second = sample().write(&two, "localhost/weft", None).unwrap();
        assert_eq!(first, second);
        assert_eq!(fs::read(&one).unwrap(), fs::read(&two).unwrap());
        assert_eq!(references(&one).unwrap(), std::slice::from_ref(&first));
        let tag = first.strip_prefix("localhost/weft:").unwrap();
        assert!(
            tag.len() == 12 && tag.chars().all(|c| c.is_ascii_hexdigit()),
            "{first}"
        );

        let other = sample()
            .file("/weft", 0o755, *b"changed")
            .write(&two, "localhost/weft", None)
            .unwrap();
        assert_ne!(first, other);
    }

    #[test]
    fn library_has_its_name_and_the_linker_its_path() {
        let output = "\tlinux-vdso.so.1 (0x00007ffc)\n\
            \tlibedit.so.2 => /cache/usr/lib/x86_64-linux-gnu/libedit.so.2 (0x00007f)\n\
            \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let expected = [
            (
                "/usr/lib/libedit.so.2",
                "/cache/usr/lib/x86_64-linux-gnu/libedit.so.2",
            ),
            ("/usr/lib/libc.so.6", "/lib/x86_64-linux-gnu/libc.so.6"),
            ("/lib64/ld-linux-x86-64.so.2", "/lib64/ld-linux-x86-64.so.2"),
        ];
        let expected = expected.map(|(place, file)| (place.to_owned(), PathBuf::from(file)));
        assert_eq!(linked(output), expected);
    }

    #[test]
    fn layer_has_all_entries_with_parents_sorted_and_without_times() {
        let layer = sample().layer().unwrap();
        let mut tar = tar::Archive::new(&layer[..]);
        let entries: Vec<_> = tar
            .entries()
            .unwrap()
            .map(|entry| {
                let entry = entry.unwrap();
                let header = entry.header();
                assert_eq!((header.mtime().unwrap(), header.uid().unwrap()), (0, 0));
                let target = entry
                    .link_name()
                    .unwrap()
                    .map(|target| target.to_string_lossy().into_owned());
                (
                    entry.path().unwrap().to_string_lossy().into_owned(),
                    header.mode().unwrap(),
                    target,
                )
            })
            .collect();
        let expected = [
            ("tmp/", 0o1777, None),
            ("usr/", 0o755, None),
            ("usr/bin/", 0o755, None),
            ("usr/bin/weft", 0o777, Some("/weft")),
            ("weft", 0o755, None),
        ];
        let expected =
            expected.map(|(path, mode, target)| (path.to_owned(), mode, target.map(str::to_owned)));
        assert_eq!(entries, expected);
    }
}
