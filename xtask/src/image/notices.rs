//! The notices that the licences of linked packages require.
//!
//! Texts that differ only in white space are printed once, and the list of packages refers to them by number.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::Context;

use super::linked::{Id, Linked, Origin, Package};

/// Prefixes of the names of licence files, case-insensitive.
const BEGINNINGS: [&str; 6] = [
    "license",
    "licence",
    "copying",
    "copyright",
    "notice",
    "unlicense",
];
/// All files in directories with these names are licences.
const FOLDERS: [&str; 3] = ["licenses", ".licenses", "licences"];
/// Directories of a package that are not linked.
const APART: [&str; 7] = [
    ".git", ".github", "benches", "examples", "fuzz", "target", "tests",
];
/// Files with these extensions are code about licences.
const CODE: [&str; 8] = ["c", "go", "h", "html", "json", "py", "rs", "yml"];
const RULE: &str = "--------------------------------------------------------------------------------";

/// A package and the texts of its licences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    package: &'a Package,
    texts: Vec<String>,
}

impl<'a> Entry<'a> {
    fn read(package: &'a Package) -> anyhow::Result<Self> {
        let mut texts = Vec::new();
        for place in &package.texts {
            read(place, place, &mut texts)?;
        }
        Ok(Self { package, texts })
    }
}

/// Reads the texts of all foreign packages. Weft's packages have one licence, which comes first.
pub(super) fn collect(linked: &Linked) -> anyhow::Result<Vec<Entry<'_>>> {
    let others = linked
        .packages
        .values()
        .filter(|package| package.origin != Origin::Workspace);
    others.map(Entry::read).collect()
}

/// Reads a file, or the licences in a directory. Only paths relative to the package matter.
fn read(top: &Path, place: &Path, texts: &mut Vec<String>) -> anyhow::Result<()> {
    let failed = || format!("cannot read {}", place.display());
    if place.is_dir() {
        let entries = std::fs::read_dir(place).with_context(failed)?;
        let mut entries = entries
            .map(|entry| Ok(entry?.path()))
            .collect::<std::io::Result<Vec<_>>>()
            .with_context(failed)?;
        entries.sort();
        for entry in entries {
            let inside = entry.strip_prefix(top).unwrap_or(&entry);
            if entry.is_dir() && is_linked(inside) || entry.is_file() && is_licence(inside) {
                read(top, &entry, texts)?;
            }
        }
        return Ok(());
    }
    let bytes = std::fs::read(place).with_context(failed)?;
    let text = String::from_utf8_lossy(&bytes);
    if place.extension().is_some_and(|ending| ending == "html") {
        texts.extend(of_page(&text));
    } else {
        texts.push(tidy(&text));
    }
    Ok(())
}

/// Returns the words of a page, and each text that it quotes.
fn of_page(page: &str) -> Vec<String> {
    let mut words = String::new();
    let mut quoted = Vec::new();
    for part in page.split("<pre>") {
        let (quote, behind) = part.split_once("</pre>").unwrap_or(("", part));
        if !quote.is_empty() {
            quoted.push(plain(quote));
        }
        words.push_str(behind);
    }
    [plain(&words)].into_iter().chain(quoted).collect()
}

/// Returns a part of a page without markup, with at most one empty line between paragraphs.
fn plain(page: &str) -> String {
    let mut words = String::new();
    for part in page.split('<') {
        words.push_str(part.split_once('>').map_or(part, |(_, behind)| behind));
    }
    for (code, sign) in [
        ("&lt;", "<"),
        ("&gt;", ">"),
        ("&quot;", "\""),
        ("&#39;", "'"),
        ("&amp;", "&"),
    ] {
        words = words.replace(code, sign);
    }
    let mut lines: Vec<&str> = words.lines().map(str::trim_end).collect();
    lines.dedup_by(|line, before| line.is_empty() && before.is_empty());
    lines.join("\n").trim_matches('\n').to_owned()
}

fn is_linked(folder: &Path) -> bool {
    let name = folder.file_name().and_then(|name| name.to_str());
    name.is_some_and(|name| !APART.contains(&name))
}

fn is_licence(file: &Path) -> bool {
    let named = |path: &Path| {
        let name = path.file_name().and_then(|name| name.to_str());
        name.unwrap_or_default().to_lowercase()
    };
    let name = named(file);
    let ending = name.rsplit_once('.').map_or("", |(_, ending)| ending);
    let begins = BEGINNINGS.iter().any(|beginning| name.starts_with(beginning));
    let folder = file.parent().map(named).unwrap_or_default();
    (begins || FOLDERS.contains(&folder.as_str())) && !CODE.contains(&ending)
}

/// Returns lines without trailing white space, and without empty lines at both ends of the text.
fn tidy(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n").trim_matches('\n').to_owned()
}

/// Texts and their numbers. Similar texts have similar lengths, and compress better side by side.
struct Texts<'a> {
    /// By their words.
    numbers: BTreeMap<String, usize>,
    sorted: Vec<&'a str>,
}

impl<'a> Texts<'a> {
    fn of(texts: impl Iterator<Item = &'a str>) -> Self {
        let mut found = BTreeMap::new();
        for text in texts {
            found.entry(words(text)).or_insert(text);
        }
        let mut found: Vec<(String, &str)> = found.into_iter().collect();
        found.sort_by_key(|(_, text)| text.len());
        let sorted = found.iter().map(|(_, text)| *text).collect();
        let numbered = (1..).zip(found).map(|(number, (words, _))| (words, number));
        Self {
            numbers: numbered.collect(),
            sorted,
        }
    }

    /// References to texts, each once.
    fn references(&self, texts: &[String]) -> String {
        let numbers: BTreeSet<_> = texts
            .iter()
            .filter_map(|text| self.numbers.get(&words(text)))
            .collect();
        numbers.iter().map(|number| format!(" [{number}]")).collect()
    }
}

/// Returns a text with normalised white space.
fn words(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Writes the notices. `own` is the licence of this project.
pub(super) fn compose(own: &str, entries: &[Entry<'_>]) -> String {
    let own = [tidy(own)];
    let texts = Texts::of(
        entries
            .iter()
            .flat_map(|entry| &entry.texts)
            .chain(&own)
            .map(String::as_str),
    );
    let mut listed = String::new();
    let mut bare = String::new();
    for Entry {
        package,
        texts: found,
    } in entries
    {
        let line = line(package);
        if found.is_empty() {
            bare.push_str(&format!("{line}\n"));
        } else {
            listed.push_str(&format!("{line}:{}\n", texts.references(found)));
        }
    }
    let mut notices = format!(
        "Weft is distributed under the licence{}. Its programs are linked with the packages below. A line holds the name\n\
         and the version of a package, its licence as an SPDX expression, its home, and the numbers of the texts that it\n\
         brings along.\n\n{listed}",
        texts.references(&own)
    );
    if !bare.is_empty() {
        notices.push_str(&format!(
            "\nThese packages bring no text along. Their expressions name their licences.\n\n{bare}"
        ));
    }
    for (number, text) in (1..).zip(texts.sorted) {
        notices.push_str(&format!("\n{RULE}\n[{number}]\n\n{text}\n"));
    }
    notices
}

/// `serde 1.0.229, MIT OR Apache-2.0, https://github.com/serde-rs/serde`
fn line(package: &Package) -> String {
    let Id { name, version } = &package.id;
    let license = package.license.as_deref().unwrap_or("no licence is declared");
    let home = package.repository.as_ref().map(|home| format!(", {home}"));
    format!("{name} {version}, {license}{}", home.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::linked::tests::sample;

    #[test]
    fn licence_files_are_found_by_name() {
        for file in [
            "LICENSE",
            "license-MIT",
            "COPYING.LIB",
            "LICENSE.httprouter",
            "LICENSE-Apache-2.0_WITH_LLVM-exception",
            "UNLICENSE",
            "COPYRIGHT",
            "Notice.txt",
            ".licenses/Ethiraric-MIT",
            "aws-lc/third_party/fiat/LICENSE",
        ] {
            assert!(is_licence(Path::new(file)), "{file}");
        }
        for file in [
            "README.md",
            "src/license.rs",
            "license.yml",
            "licenses/index.html",
            "src/copy.c",
        ] {
            assert!(!is_licence(Path::new(file)), "{file}");
        }
    }

    #[test]
    fn quoted_texts_of_a_page_are_separate_texts() {
        let page = "<html>\n<body>\n\n<p>\n<b>Copyright:</b> A &lt;a@b&gt; &amp;amp;\n</p>\n<pre>MIT\n\n\n</pre>\n<b>B</b>";
        assert_eq!(of_page(page), ["Copyright: A <a@b> &amp;\n\nB", "MIT"]);
    }

    #[test]
    fn texts_are_found_anywhere_in_the_linked_sources() {
        let dir = tempfile::tempdir().unwrap();
        for (file, text) in [
            ("package/LICENSE-MIT", "mit\r\n"),
            ("package/c/third_party/LICENSE", "\nboring  \n\n"),
            ("package/tests/LICENSE", "of a test"),
            ("package/README.md", "words"),
            ("elsewhere/text", "another"),
        ] {
            let path = dir.path().join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        let mut texts = Vec::new();
        for place in ["package", "elsewhere/text"].map(|place| dir.path().join(place)) {
            read(&place, &place, &mut texts).unwrap();
        }
        assert_eq!(texts, ["mit", "boring", "another"]);
    }

    #[test]
    fn text_is_printed_once_and_a_package_without_one_is_named() {
        let linked = sample();
        let package = |name: &str| linked.packages.values().find(|it| it.id.name == name).unwrap();
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect();
        let mut silent = package("shared").clone();
        silent.id.name = "silent".to_owned();
        silent.license = None;
        silent.repository = None;
        let entries = [
            Entry {
                package: package("own_one"),
                texts: texts(&["Permission is\ngranted", "Apache"]),
            },
            Entry {
                package: package("shared"),
                texts: texts(&["Permission\nis granted"]),
            },
            Entry {
                package: &silent,
                texts: Vec::new(),
            },
        ];
        let notices = compose("Apache\n", &entries);
        let (head, rest) = notices.split_once(RULE).unwrap();
        assert!(head.contains("licence [1]"), "{head}");
        assert!(
            head.ends_with(
                "\n\nown_one 0.4.0+c, ISC, https://example.org/own_one: [1] [2]\n\
                 shared 1.2.3, MIT OR Apache-2.0, https://example.org/shared: [2]\n\n\
                 These packages bring no text along. Their expressions name their licences.\n\n\
                 silent 1.2.3, no licence is declared\n\n"
            ),
            "{head}"
        );
        assert_eq!(
            rest,
            format!("\n[1]\n\nApache\n\n{RULE}\n[2]\n\nPermission is\ngranted\n")
        );
    }

    #[test]
    fn packages_of_this_repository_have_its_licence() {
        let mut linked = sample();
        for package in linked.packages.values_mut() {
            package.texts.clear();
        }
        let names: Vec<_> = collect(&linked)
            .unwrap()
            .into_iter()
            .map(|entry| entry.package.id.name.clone())
            .collect();
        assert_eq!(names, ["own_one", "shared"]);
    }
}
