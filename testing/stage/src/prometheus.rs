//! Rules of Prometheus, checked and evaluated by its own programs.

use std::fs;
use std::process::Command;

use cluster::{Error, Home, Packages, Quiet};
use serde_json::{Value, json};

/// Prometheus' programs, installed if possible.
pub fn programs() -> Option<Packages> {
    match Home::from_env().and_then(|home| Packages::ensure_prometheus(&home, &mut Quiet)) {
        Ok(packages) => Some(packages),
        Err(Error::Missing(why)) => {
            println!("skipped: {why}");
            None
        }
        Err(error) => panic!("Prometheus cannot be brought in: {error}"),
    }
}

fn run(command: &mut Command) {
    let output = command.output().expect("a program");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}\n{}{}",
        text(&output.stdout),
        text(&output.stderr)
    );
}

/// Checks rules as `promtool` does, with all of its lints. `rules` is the `spec` of a `PrometheusRule`.
pub fn check(programs: &Packages, rules: &Value) {
    let dir = tempfile::tempdir().expect("a folder");
    let file = dir.path().join("rules.json");
    fs::write(&file, rules.to_string()).expect("a file");
    let mut check = programs.command("usr/bin/promtool");
    run(check
        .args(["check", "rules", "--lint=all", "--lint-fatal"])
        .arg(&file));
}

/// Evaluates rules at an interval, and runs tests of `promtool` on them. `rules` is the `spec` of a `PrometheusRule`.
pub fn test(programs: &Packages, rules: &Value, interval: &str, tests: &Value) {
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join("rules.json"), rules.to_string()).expect("a file");
    let groups = rules["groups"].as_array().expect("groups").iter();
    let order: Vec<_> = groups.map(|group| group["name"].clone()).collect();
    let unit = json!({
        "rule_files": ["rules.json"], "evaluation_interval": interval, "group_eval_order": order, "tests": tests,
    });
    fs::write(dir.path().join("tests.json"), unit.to_string()).expect("a file");
    let mut test = programs.command("usr/bin/promtool");
    run(test.args(["test", "rules", "tests.json"]).current_dir(dir.path()));
}
