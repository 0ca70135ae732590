//! The result of each spec, from Ginkgo's report, and the printed table.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

/// Ginkgo's report of a suite (`types.Report`), reduced to the used fields.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Suite {
    #[serde(default)]
    special_suite_failure_reasons: Option<Vec<String>>,
    #[serde(default)]
    spec_reports: Option<Vec<Entry>>,
}

/// An entry of the report (`types.SpecReport`).
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Entry {
    #[serde(default)]
    container_hierarchy_texts: Option<Vec<String>>,
    #[serde(default)]
    leaf_node_type: String,
    #[serde(default)]
    leaf_node_text: String,
    #[serde(default)]
    state: String,
    /// In nanoseconds.
    #[serde(default)]
    run_time: u64,
    #[serde(default)]
    failure: Failure,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Failure {
    message: String,
    location: Location,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
struct Location {
    file_name: String,
    line_number: u64,
}

/// The result of a spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// The spec passed.
    Passed,
    /// The spec failed, with a message and a place in its source.
    Failed {
        /// The message of the test.
        message: String,
        /// File and line.
        place: String,
    },
    /// The spec skipped itself, for this reason.
    Skipped(String),
    /// The spec is excluded, for this reason.
    Excluded(String),
}

/// A spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// The group of the spec, such as `Services`.
    pub area: String,
    /// The full name.
    pub name: String,
    /// The result.
    pub outcome: Outcome,
    /// The duration.
    pub time: Duration,
}

/// The results of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Results {
    /// The selected specs, ordered by name.
    pub specs: Vec<Spec>,
    /// Failures outside of specs: set-up and tear-down of the suite, a timeout.
    pub around: Vec<String>,
}

impl Results {
    /// Parses Ginkgo's report. Specs that were skipped before they ran were not selected, and are ignored.
    pub(crate) fn parse(text: &str) -> serde_json::Result<Self> {
        let suites: Vec<Suite> = serde_json::from_str(text)?;
        let mut results = Self::default();
        for suite in suites {
            results
                .around
                .extend(suite.special_suite_failure_reasons.unwrap_or_default());
            for entry in suite.spec_reports.unwrap_or_default() {
                results.take(entry);
            }
        }
        results.specs.sort_by(|one, two| one.name.cmp(&two.name));
        Ok(results)
    }

    fn take(&mut self, entry: Entry) {
        let texts = entry.container_hierarchy_texts.unwrap_or_default();
        let names = texts
            .iter()
            .map(String::as_str)
            .chain([entry.leaf_node_text.as_str()]);
        let name = names.collect::<Vec<_>>().join(" ");
        let outcome = match entry.state.as_str() {
            "passed" => Outcome::Passed,
            "pending" => return,
            "skipped" if entry.failure.message.is_empty() => return,
            "skipped" => Outcome::Skipped(entry.failure.message),
            _ => Outcome::Failed {
                message: entry.failure.message,
                place: format!(
                    "{}:{}",
                    entry.failure.location.file_name, entry.failure.location.line_number
                ),
            },
        };
        if entry.leaf_node_type != "It" {
            if let Outcome::Failed { message, place } = outcome {
                let kind = entry.leaf_node_type;
                self.around.push(format!("{kind}: {message} ({place})"));
            }
            return;
        }
        let first = texts.into_iter().next().unwrap_or_default();
        self.specs.push(Spec {
            area: area(&first).to_owned(),
            name,
            outcome,
            time: Duration::from_nanos(entry.run_time),
        });
    }

    /// Returns true if specs passed, and nothing failed.
    pub fn is_success(&self) -> bool {
        let passed = self.specs.iter().any(|spec| spec.outcome == Outcome::Passed);
        passed && !self.has_failures()
    }

    pub(crate) fn has_failures(&self) -> bool {
        !self.around.is_empty() || self.failed().next().is_some()
    }

    fn failed(&self) -> impl Iterator<Item = (&Spec, &str, &str)> {
        self.specs.iter().filter_map(|spec| match &spec.outcome {
            Outcome::Failed { message, place } => Some((spec, message.as_str(), place.as_str())),
            _ => None,
        })
    }

    /// Returns a table of counts by area, and then the failed, skipped and excluded specs with their reasons.
    pub fn table(&self) -> String {
        let mut areas: BTreeMap<&str, [usize; 4]> = BTreeMap::new();
        let mut all = [0; 4];
        for spec in &self.specs {
            let column = match spec.outcome {
                Outcome::Passed => 0,
                Outcome::Failed { .. } => 1,
                Outcome::Skipped(_) => 2,
                Outcome::Excluded(_) => 3,
            };
            areas.entry(&spec.area).or_default()[column] += 1;
            all[column] += 1;
        }
        let width = areas.keys().map(|area| area.len()).max().unwrap_or(0).max(4);
        let row = |area: &str, [passed, failed, skipped, excluded]: [usize; 4]| {
            format!("{area:width$}  {passed:>6}  {failed:>6}  {skipped:>7}  {excluded:>8}\n")
        };
        let mut text = format!(
            "{:width$}  {:>6}  {:>6}  {:>7}  {:>8}\n",
            "area", "passed", "failed", "skipped", "excluded"
        );
        for (area, counts) in areas {
            text.push_str(&row(area, counts));
        }
        text.push_str(&row("all", all));
        for (spec, message, place) in self.failed() {
            text.push_str(&format!("\nFAILED {}\n    at {place}\n", spec.name));
            for line in message.lines().take(MESSAGE_LINES) {
                text.push_str(&format!("    {line}\n"));
            }
        }
        for failure in &self.around {
            text.push_str(&format!("\nFAILED beside the specs: {failure}\n"));
        }
        text.push_str(&self.grouped("skipped by themselves", |outcome| match outcome {
            Outcome::Skipped(reason) => Some(reason),
            _ => None,
        }));
        text.push_str(&self.grouped("excluded", |outcome| match outcome {
            Outcome::Excluded(reason) => Some(reason),
            _ => None,
        }));
        text
    }

    /// Lists names below their reasons.
    fn grouped(&self, title: &str, reason: impl Fn(&Outcome) -> Option<&String>) -> String {
        let mut groups: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
        for spec in &self.specs {
            if let Some(reason) = reason(&spec.outcome) {
                groups.entry(reason).or_default().push(&spec.name);
            }
        }
        let mut text = String::new();
        for (reason, names) in groups {
            text.push_str(&format!("\n{title}: {}\n", reason.trim()));
            for name in names {
                text.push_str(&format!("    {name}\n"));
            }
        }
        text
    }
}

/// Number of printed lines of a failure. The log has the rest.
const MESSAGE_LINES: usize = 12;

/// Returns the outermost text of a spec without the prefix of the owning group.
fn area(text: &str) -> &str {
    text.strip_prefix("[sig-network] ").unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const REPORT: &str = r#"[{
        "SpecialSuiteFailureReasons": null,
        "SpecReports": [
            { "ContainerHierarchyTexts": null, "LeafNodeType": "SynchronizedBeforeSuite", "State": "passed" },
            { "ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It",
              "LeafNodeText": "should serve", "State": "passed", "RunTime": 2000000000 },
            { "ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It",
              "LeafNodeText": "should drain", "State": "failed", "RunTime": 1,
              "Failure": { "Message": "no answer\nafter 5 s", "Location": { "FileName": "service.go", "LineNumber": 7 } } },
            { "ContainerHierarchyTexts": ["[sig-network] DNS"], "LeafNodeType": "It",
              "LeafNodeText": "should resolve", "State": "skipped", "Failure": { "Message": "needs 3 nodes" } },
            { "ContainerHierarchyTexts": ["[sig-storage] Volumes"], "LeafNodeType": "It",
              "LeafNodeText": "should mount", "State": "skipped" }
        ]
    }]"#;

    #[test]
    fn specs_that_were_not_selected_are_ignored() {
        let results = Results::parse(REPORT).unwrap();
        let names: Vec<_> = results.specs.iter().map(|spec| spec.name.as_str()).collect();
        assert_eq!(
            names,
            [
                "[sig-network] DNS should resolve",
                "[sig-network] Services should drain",
                "[sig-network] Services should serve"
            ]
        );
        assert_eq!(results.specs[2].time, Duration::from_secs(2));
        assert!(!results.is_success());
    }

    #[test]
    fn table_counts_by_area_and_shows_failures() {
        let mut results = Results::parse(REPORT).unwrap();
        results.specs.push(Spec {
            area: "Services".to_owned(),
            name: "[sig-network] Services should balance".to_owned(),
            outcome: Outcome::Excluded("No cloud.".to_owned()),
            time: Duration::ZERO,
        });
        let expected = "\
area      passed  failed  skipped  excluded
DNS            0       0        1         0
Services       1       1        0         1
all            1       1        1         1

FAILED [sig-network] Services should drain
    at service.go:7
    no answer
    after 5 s

skipped by themselves: needs 3 nodes
    [sig-network] DNS should resolve

excluded: No cloud.
    [sig-network] Services should balance
";
        assert_eq!(results.table(), expected);
    }

    #[test]
    fn failed_set_up_fails_the_run() {
        let text = r#"[{ "SpecReports": [
            { "LeafNodeType": "SynchronizedBeforeSuite", "State": "failed",
              "Failure": { "Message": "no node", "Location": { "FileName": "e2e.go", "LineNumber": 3 } } },
            { "ContainerHierarchyTexts": ["[sig-network] Services"], "LeafNodeType": "It",
              "LeafNodeText": "should serve", "State": "passed" }
        ] }]"#;
        let results = Results::parse(text).unwrap();
        assert_eq!(results.around, ["SynchronizedBeforeSuite: no node (e2e.go:3)"]);
        assert!(!results.is_success());
    }

    #[test]
    fn run_without_a_passed_spec_is_no_success() {
        assert!(!Results::parse("[]").unwrap().is_success());
    }
}
