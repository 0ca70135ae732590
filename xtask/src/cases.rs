//! `cargo xtask cases`: the numbered cases of the contract, and which of them tests prove.
//!
//! ```text
//! docs/behaviour/SPEC.md       `## N. Conformance cases` ── items `7. …`       the cases
//! *.rs                         comments `// SPEC#7`, `// SPEC#9-11`             the claims of tests: inside of a
//!                                                                             test function, or directly above it
//! docs/behaviour/not-provable.md   items `- SPEC#12: reason`                    cases that no test here can prove
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use crate::paths;

/// Arguments of the command.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// List the unproven cases of this spec
    #[arg(long, value_name = "SPEC")]
    missing: Option<String>,
}

/// The file of cases that cannot be proven, beside the specs.
const NOT_PROVABLE: &str = "not-provable.md";

/// Case numbers with their first lines.
type Cases = BTreeMap<u32, String>;

/// A citation of the cases `first` to `last`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Mention {
    spec: String,
    first: u32,
    last: u32,
}

/// Parses the items of the section "Conformance cases".
fn cases(spec: &str) -> Cases {
    let mut found = Cases::new();
    let mut inside = false;
    for line in spec.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            inside = title.trim_end().ends_with("Conformance cases");
        } else if inside
            && let Some((number, text)) = line.split_once(". ")
            && let Ok(number) = number.parse()
        {
            found.insert(number, text.to_owned());
        }
    }
    found
}

/// Finds `spec#7` and `spec#9-11` in a text, for the given specs.
fn mentions(text: &str, specs: &BTreeSet<String>) -> Vec<Mention> {
    let mut found = Vec::new();
    for (at, _) in text.match_indices('#') {
        let start = text[..at]
            .rfind(|c: char| !(c.is_ascii_lowercase() || c == '-'))
            .map_or(0, |index| index + 1);
        let spec = &text[start..at];
        let rest = &text[at + 1..];
        let Some((first, rest)) = number(rest) else {
            continue;
        };
        if !specs.contains(spec) {
            continue;
        }
        let last = rest
            .strip_prefix('-')
            .and_then(number)
            .map_or(first, |(last, _)| last);
        found.push(Mention {
            spec: spec.to_owned(),
            first,
            last,
        });
    }
    found
}

fn number(text: &str) -> Option<(u32, &str)> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    Some((text[..end].parse().ok()?, &text[end..]))
}

/// Returns the plain comment of a line of Rust, which may contain claims. Documentation contains none.
fn claim(line: &str) -> Option<&str> {
    let at = line.find("//")?;
    let comment = &line[at + 2..];
    (!comment.starts_with(['/', '!'])).then_some(comment)
}

/// Parses `- spec#12: reason`.
fn excuses(text: &str, specs: &BTreeSet<String>) -> anyhow::Result<Vec<Mention>> {
    let mut found = Vec::new();
    for line in text.lines() {
        let Some(item) = line.strip_prefix("- ") else {
            continue;
        };
        let Some((case, reason)) = item.split_once(':') else {
            bail!("no reason in {NOT_PROVABLE}: {line}")
        };
        let mentioned = mentions(case, specs);
        if mentioned.is_empty() || reason.trim().is_empty() {
            bail!("{NOT_PROVABLE}: write `- spec#7: reason` instead of: {line}");
        }
        found.extend(mentioned);
    }
    Ok(found)
}

/// The cases of a spec.
#[derive(Debug, Default)]
struct Tally {
    cases: Cases,
    proven: BTreeSet<u32>,
    listed: BTreeSet<u32>,
}

impl Tally {
    fn missing(&self) -> impl Iterator<Item = (u32, &str)> {
        let open = |number: &u32| !self.proven.contains(number) && !self.listed.contains(number);
        self.cases
            .iter()
            .filter(move |(number, _)| open(number))
            .map(|(number, text)| (*number, text.as_str()))
    }
}

fn record(
    tallies: &mut BTreeMap<String, Tally>,
    mention: &Mention,
    place: &str,
    set: fn(&mut Tally) -> &mut BTreeSet<u32>,
    errors: &mut Vec<String>,
) {
    let Some(tally) = tallies.get_mut(&mention.spec) else {
        return;
    };
    if mention.first > mention.last {
        errors.push(format!(
            "{place}: {}#{}-{} runs backwards",
            mention.spec, mention.first, mention.last
        ));
    }
    for number in mention.first..=mention.last {
        if tally.cases.contains_key(&number) {
            set(tally).insert(number);
        } else {
            errors.push(format!("{place}: there is no case {}#{number}", mention.spec));
        }
    }
}

/// A function, perhaps a test.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Function<'a> {
    name: &'a str,
    is_test: bool,
    /// The lines from the comments and attributes above it to its last one.
    first: usize,
    last: usize,
}

/// Attributes of tests.
const TEST_ATTRIBUTES: [&str; 3] = ["#[test]", "#[rstest", "#[tokio::test"];

/// Prefixes of the first line of a function.
const BLOCKS: [&str; 5] = ["mod ", "impl", "trait ", "pub trait ", "proptest!"];

/// Finds the functions in a source formatted by rustfmt: the last line of each is a brace with the indentation of its
/// first line.
fn functions(source: &str) -> Vec<Function<'_>> {
    let lines: Vec<&str> = source.lines().collect();
    let mut found = Vec::new();
    for (at, line) in lines.iter().enumerate() {
        let Some(name) = function_name(line.trim_start()) else {
            continue;
        };
        let indent = &line[..line.len() - line.trim_start().len()];
        let ends = |line: &&str| line.strip_prefix(indent) == Some("}");
        let length = lines[at..].iter().position(ends);
        let last = length.map_or(at, |length| at + length);
        // A function without a separate body, as in a trait, ends on its first line.
        let last = if line.ends_with(['}', ';']) { at } else { last };
        // Attributes may have many lines, but no blank ones.
        let above = lines[..at].iter().rev().take_while(|line| {
            let line = line.trim_start();
            !line.is_empty()
                && line != "}"
                && !BLOCKS
                    .iter()
                    .any(|block| line.starts_with(block) && line.ends_with('{'))
        });
        let above = above.count();
        let head = &lines[at - above..at];
        let is_test = head
            .iter()
            .any(|line| TEST_ATTRIBUTES.iter().any(|it| line.trim_start().starts_with(it)));
        found.push(Function {
            name,
            is_test,
            first: at - above,
            last,
        });
    }
    found
}

/// Returns the name in `pub(crate) async fn name(…`.
fn function_name(line: &str) -> Option<&str> {
    let mut rest = line;
    for word in [
        "pub(crate) ",
        "pub(super) ",
        "pub ",
        "const ",
        "async ",
        "unsafe ",
    ] {
        rest = rest.strip_prefix(word).unwrap_or(rest);
    }
    let rest = rest.strip_prefix("fn ")?;
    let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_')?;
    Some(&rest[..end])
}

/// A claim of a test to prove a case.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Citation {
    /// `SPEC#7`
    pub(crate) case: String,
    /// Directory of the package below the root: `crates/operator`.
    pub(crate) package: String,
    /// The test function.
    pub(crate) test: String,
}

/// Returns all claims of tests. Fails if a claim names a missing case, or is outside of a test.
pub(crate) fn citations() -> anyhow::Result<Vec<Citation>> {
    tally().map(|(_, citations)| citations)
}

/// Fails if a citation names a missing case, or is outside of a test.
pub(crate) fn check() -> anyhow::Result<()> {
    citations().map(drop)
}

/// Reads the specs, the list of unprovable cases, and the claims of all tests.
fn tally() -> anyhow::Result<(BTreeMap<String, Tally>, Vec<Citation>)> {
    let root = paths::root();
    let mut tallies = BTreeMap::new();
    let docs = root.join("docs/behaviour");
    for file in files(&docs, "md")? {
        let name = file
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if file.file_name().is_some_and(|name| name != NOT_PROVABLE) {
            tallies.insert(
                name,
                Tally {
                    cases: cases(&read(&file)?),
                    ..Tally::default()
                },
            );
        }
    }
    let specs: BTreeSet<String> = tallies.keys().cloned().collect();
    let mut errors = Vec::new();
    let list = docs.join(NOT_PROVABLE);
    if list.exists() {
        for mention in excuses(&read(&list)?, &specs)? {
            record(
                &mut tallies,
                &mention,
                NOT_PROVABLE,
                |tally| &mut tally.listed,
                &mut errors,
            );
        }
    }
    let mut citations = Vec::new();
    for dir in ["crates", "testing"] {
        for file in files(&root.join(dir), "rs")? {
            let text = read(&file)?;
            let functions = functions(&text);
            let inside = file.strip_prefix(&root).unwrap_or(&file);
            let package: PathBuf = inside.components().take(2).collect();
            for (line, claim) in (1..)
                .zip(text.lines())
                .filter_map(|(number, line)| Some((number, claim(line)?)))
            {
                let place = format!("{}:{line}", inside.display());
                let around =
                    |function: &&Function<'_>| (function.first + 1..=function.last + 1).contains(&line);
                let test = functions
                    .iter()
                    .find(|function| function.is_test && around(function));
                for mention in mentions(claim, &specs) {
                    let Some(test) = test else {
                        errors.push(format!(
                            "{place}: {}#{} is cited outside of a test",
                            mention.spec, mention.first
                        ));
                        continue;
                    };
                    citations.extend((mention.first..=mention.last).map(|number| Citation {
                        case: format!("{}#{number}", mention.spec),
                        package: package.display().to_string(),
                        test: test.name.to_owned(),
                    }));
                    record(
                        &mut tallies,
                        &mention,
                        &place,
                        |tally| &mut tally.proven,
                        &mut errors,
                    );
                }
            }
        }
    }
    if !errors.is_empty() {
        bail!("invalid citations:\n  {}", errors.join("\n  "));
    }
    Ok((tallies, citations))
}

pub(crate) fn run(args: &Args) -> anyhow::Result<()> {
    let (tallies, _) = tally()?;
    match &args.missing {
        None => print!("{}", table(&tallies)),
        Some(spec) => {
            let Some(tally) = tallies.get(spec) else {
                bail!(
                    "there is no spec {spec}; there are {}",
                    tallies.keys().cloned().collect::<Vec<_>>().join(", ")
                );
            };
            for (number, text) in tally.missing() {
                println!("{spec}#{number}  {text}");
            }
        }
    }
    Ok(())
}

fn table(tallies: &BTreeMap<String, Tally>) -> String {
    let mut text = format!(
        "{:<18}{:>7}{:>9}{:>9}{:>9}\n",
        "spec", "cases", "proven", "listed", "missing"
    );
    let mut sums = [0; 4];
    let mut line = |name: &str, counts: [usize; 4]| {
        let [all, proven, listed, missing] = counts;
        text.push_str(&format!("{name:<18}{all:>7}{proven:>9}{listed:>9}{missing:>9}\n"));
    };
    for (name, tally) in tallies {
        let counts = [
            tally.cases.len(),
            tally.proven.len(),
            tally.listed.difference(&tally.proven).count(),
            tally.missing().count(),
        ];
        line(name, counts);
        sums.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    line("total", sums);
    text
}

fn read(file: &Path) -> anyhow::Result<String> {
    fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))
}

/// Returns all files below `dir` with the extension, sorted.
fn files(dir: &Path, extension: &str) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut open = vec![dir.to_owned()];
    while let Some(dir) = open.pop() {
        for entry in fs::read_dir(&dir).with_context(|| format!("cannot read {}", dir.display()))? {
            let entry = entry.with_context(|| format!("cannot read {}", dir.display()))?;
            if entry.file_type()?.is_dir() {
                open.push(entry.path());
            } else if entry.path().extension().is_some_and(|found| found == extension) {
                found.push(entry.path());
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn specs() -> BTreeSet<String> {
        ["operator", "cni-plugins"].map(str::to_owned).into()
    }

    fn mention(spec: &str, first: u32, last: u32) -> Mention {
        Mention {
            spec: spec.to_owned(),
            first,
            last,
        }
    }

    #[test]
    fn cases_are_items_of_their_section_alone() {
        let spec = "## 3. Rules\n1. not a case\n## 16. Conformance cases\nGroup\n1. Given x.\n   more of it\n2. Given y.\n\
                    ## 17. Known weaknesses\n3. not a case\n";
        let expected = [(1, "Given x.".to_owned()), (2, "Given y.".to_owned())];
        assert_eq!(cases(spec), Cases::from(expected));
    }

    #[test]
    fn single_cases_and_ranges_are_cited() {
        let found = mentions(
            " operator#7, operator#9-11; cni-plugins#62. kubevirt#123, operator#x",
            &specs(),
        );
        assert_eq!(
            found,
            [
                mention("operator", 7, 7),
                mention("operator", 9, 11),
                mention("cni-plugins", 62, 62)
            ]
        );
    }

    #[test]
    fn only_plain_comments_are_claims() {
        assert_eq!(claim("    fn x() { // operator#1"), Some(" operator#1"));
        assert_eq!(claim("/// as operator#1 says"), None);
        assert_eq!(claim("//! as operator#1 says"), None);
        assert_eq!(claim("let operator = 1;"), None);
    }

    #[test]
    fn citation_belongs_to_the_test_around_or_below_it() {
        let source = "\
fn helper() {
    // operator#1
}

// operator#2
#[rstest]
#[case(
    1
)]
fn above(#[case] number: u8) {
    assert!(number > 0);
}

mod tests {
    #[test]
    fn inside() {
        // operator#3
        if true {
            // operator#4
        }
    }
    fn short() {}
}
";
        let found: Vec<_> = functions(source)
            .into_iter()
            .map(|function| {
                (
                    function.name,
                    function.is_test,
                    function.first + 1,
                    function.last + 1,
                )
            })
            .collect();
        assert_eq!(
            found,
            [
                ("helper", false, 1, 3),
                ("above", true, 5, 12),
                ("inside", true, 15, 21),
                ("short", false, 22, 22),
            ]
        );
    }

    #[test]
    fn unprovable_case_needs_a_reason() {
        let text = "# Not provable\n\nSome words.\n\n- operator#3-4: needs OpenShift\n";
        assert_eq!(excuses(text, &specs()).unwrap(), [mention("operator", 3, 4)]);
        assert!(excuses("- operator#3:\n", &specs()).is_err());
        assert!(excuses("- something else: because\n", &specs()).is_err());
    }

    #[test]
    fn citation_of_a_missing_case_is_an_error() {
        let tally = Tally {
            cases: cases("## 1. Conformance cases\n1. a\n2. b\n"),
            ..Tally::default()
        };
        let mut tallies = BTreeMap::from([("operator".to_owned(), tally)]);
        let mut errors = Vec::new();
        record(
            &mut tallies,
            &mention("operator", 1, 3),
            "x.rs:5",
            |tally| &mut tally.proven,
            &mut errors,
        );
        assert_eq!(errors, ["x.rs:5: there is no case operator#3"]);
        assert_eq!(tallies["operator"].missing().count(), 0);
    }

    #[test]
    fn table_fits_a_terminal() {
        let tally = Tally {
            cases: cases("## 1. Conformance cases\n1. a\n2. b\n3. c\n"),
            proven: [1].into(),
            listed: [2].into(),
        };
        let table = table(&BTreeMap::from([("operator".to_owned(), tally)]));
        assert!(table.lines().all(|line| line.len() <= 80), "{table}");
        assert_eq!(
            table
                .lines()
                .last()
                .unwrap()
                .split_whitespace()
                .collect::<Vec<_>>(),
            ["total", "3", "1", "1", "1"]
        );
    }
}
