use super::report::{Check, Finding, Kind, Repair, Row};
use super::*;
use serde_json::json;

fn report() -> Report {
    Report {
        node: "node01".into(),
        attachments: vec![Row {
            pod: "ns/web".into(),
            interface: "net1".into(),
            network: "lan".into(),
            sandbox: "c1".into(),
            plugins: vec!["bridge".into()],
            check: Check::NotChecked,
            reason: "why".into(),
        }],
        findings: vec![Finding {
            kind: Kind::LeftOver,
            sandbox: "c2".into(),
            problem: "p".into(),
            advice: "a".into(),
            ..Finding::default()
        }],
        repair: Some(Repair {
            removed: vec!["r".into()],
            ..Repair::default()
        }),
        notes: vec!["n".into()],
    }
}

#[test]
fn json_report_has_the_documented_shape() {
    let answer = of_one(&report(), Form::Json).unwrap();
    let printed: serde_json::Value = serde_json::from_str(&answer.text).unwrap();
    assert_eq!(
        printed,
        json!({"node": "node01", "attachments": [{"pod": "ns/web", "interface": "net1", "network": "lan",
            "sandbox": "c1", "plugins": ["bridge"], "check": "notChecked", "reason": "why"}],
            "findings": [{"kind": "leftOver", "pod": "", "interface": "", "network": "", "sandbox": "c2", "plugin": "",
            "problem": "p", "advice": "a"}], "repair": {"removed": ["r"], "failed": []}, "notes": ["n"]})
    );
    let read: Report = serde_json::from_value(printed).unwrap();
    assert_eq!(read, report());
}

#[test]
fn exit_code_distinguishes_problems_and_refusals() {
    let healthy = Report::default();
    assert_eq!((code(&healthy), code(&report())), (0, FINDINGS));
    let refused = Report {
        repair: Some(Repair {
            refused: Some("why".into()),
            ..Repair::default()
        }),
        ..Report::default()
    };
    assert_eq!(code(&refused), TROUBLE);
}

#[test]
fn summary_of_all_nodes_counts_unreachable_nodes() {
    let checked_nodes = remote::CheckedNodes {
        reports: vec![report(), Report::default()],
        failed: vec!["node node03 has no pod".into()],
    };
    let answer = of_all(&checked_nodes, Form::Text).unwrap();
    assert!(
        answer.text.ends_with("\n1 of 3 nodes have no problems.\n"),
        "{}",
        answer.text
    );
    assert!(
        answer.remarks.ends_with("error: node node03 has no pod\n"),
        "{}",
        answer.remarks
    );
    assert_eq!(answer.code, TROUBLE);
}
