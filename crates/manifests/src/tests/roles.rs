//! The shipped roles against the tables of operator §11 themselves: only rights in the tables are shipped.

use super::*;

const SPECIFICATION: &str = include_str!("../../../../docs/behaviour/operator.md");

/// The cells of the rows after the first line that starts with `start`.
fn table(start: &str) -> Vec<Vec<String>> {
    let from = SPECIFICATION.find(start).expect("the table");
    let lines = SPECIFICATION[from..].lines().skip(1);
    let rows = lines
        .skip_while(|line| !line.starts_with('|'))
        .take_while(|line| line.starts_with('|'));
    let cells = |line: &str| -> Vec<String> {
        let line = line.trim().trim_start_matches('|').trim_end_matches('|');
        line.split('|').map(|cell| cell.trim().to_owned()).collect()
    };
    // Head and separator.
    rows.skip(2).map(cells).collect()
}

/// Adds the permissions of `group | resources | verbs`; a group `same` or an empty one is that of the row before.
fn add(all: &mut Permissions, group: &mut String, cells: &[String]) {
    let [apis, resources, verbs] = cells else {
        panic!("{cells:?}");
    };
    // A remark before or after the group.
    let apis = apis.rsplit("* ").next().expect("a group");
    match apis.split(' ').next().expect("a group") {
        "same" | "" => {}
        "\"\"" => group.clear(),
        other => other.clone_into(group),
    }
    let (resources, names) = resources
        .split_once(", resourceNames ")
        .unwrap_or((resources, ""));
    let names = names.replace(", ", ",");
    for resource in resources.split(", ") {
        for verb in verbs.split(' ') {
            all.insert(format!("{group}/{resource} {verb} {names}").trim_end().to_owned());
        }
    }
}

// operator#81
#[test]
fn roles_equal_tables_of_specification() {
    for (start, role, least) in [
        ("ClusterRole rules:", operator("ClusterRole"), 70),
        ("Rules of the ClusterRole for upstream images", upstream(), 20),
        ("Role (OPNS):", operator("Role"), 60),
    ] {
        let (mut all, mut group) = (Permissions::new(), String::new());
        for cells in table(start) {
            add(&mut all, &mut group, &cells);
        }
        assert!(all.len() > least, "{start} {all:#?}");
        assert_eq!(permissions(&role), all, "{start}");
    }
}
