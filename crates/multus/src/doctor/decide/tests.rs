use super::super::facts::Prepared;
use super::*;
use std::time::Duration;

fn attachment(sandbox: &str, netns: Netns, checked: Checked) -> Attachment {
    Attachment {
        keeper: Keeper::Multus,
        pod: PodRef {
            namespace: "ns".into(),
            name: sandbox.into(),
            uid: None,
        },
        sandbox: sandbox.into(),
        interface: "net1".into(),
        network: "lan".into(),
        plugins: vec!["bridge".into()],
        netns,
        checked,
    }
}

fn trace(sandbox: &str, network: &str, age: Duration) -> Trace {
    Trace {
        plugin: "bridge".into(),
        network: network.into(),
        container_id: sandbox.into(),
        ifname: "net1".into(),
        address: None,
        written: now() - age,
    }
}

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_hours(100_000)
}

fn facts(known: &[&str], attachments: Vec<Attachment>) -> Facts {
    Facts {
        node: "node01".into(),
        runtime: Ok(known.iter().map(|&id| id.to_owned()).collect()),
        attachments,
        prepared: Vec::new(),
        traces: Vec::new(),
        broken: Vec::new(),
        notes: Vec::new(),
        now: now(),
    }
}

fn not_asked() -> Checked {
    Checked::NotAsked("why".into())
}

#[test]
fn attachment_whose_check_fails_is_a_finding_for_each_plugin() {
    let failed = vec![
        ("bridge".to_owned(), "no port".to_owned()),
        ("tuning".to_owned(), "mtu".to_owned()),
    ];
    let report = report(&facts(
        &["a"],
        vec![attachment("a", Netns::There, Checked::Failed(failed))],
    ));
    let found: Vec<_> = report
        .findings
        .iter()
        .map(|it| (it.kind, &*it.pod, &*it.plugin, &*it.problem))
        .collect();
    assert_eq!(
        found,
        [
            (Kind::Drifted, "ns/a", "bridge", "no port"),
            (Kind::Drifted, "ns/a", "tuning", "mtu")
        ]
    );
    assert_eq!(report.attachments[0].check, Check::Failed);
}

#[test]
fn sandbox_is_gone_only_without_namespace_and_runtime() {
    let of = |known: &[&str], netns| {
        let facts = facts(known, vec![attachment("a", netns, not_asked())]);
        (
            report(&facts).attachments[0].check,
            leftovers(&facts).unwrap().len(),
        )
    };
    assert_eq!(of(&["b"], Netns::Gone), (Check::LeftOver, 1));
    assert_eq!(of(&["a"], Netns::Gone), (Check::NotChecked, 0));
    assert_eq!(of(&["b"], Netns::There), (Check::NotChecked, 0));
    assert_eq!(of(&["b"], Netns::Unknown), (Check::NotChecked, 0));
}

#[test]
fn one_namespace_that_is_there_keeps_the_whole_sandbox() {
    let other = Attachment {
        interface: "net2".into(),
        ..attachment("a", Netns::There, Checked::Good)
    };
    let facts = facts(&["b"], vec![attachment("a", Netns::Gone, not_asked()), other]);
    assert_eq!(leftovers(&facts), Ok(BTreeSet::new()));
}

#[test]
fn runtime_that_does_not_answer_refuses_repair_and_is_noted() {
    let mut facts = facts(&[], vec![attachment("a", Netns::Gone, not_asked())]);
    facts.runtime = Err("no socket".into());
    let report = report(&facts);
    assert_eq!(report.findings[0].kind, Kind::LeftOver);
    assert!(report.notes[0].contains("no socket"), "{:?}", report.notes);
    assert!(leftovers(&facts).unwrap_err().contains("no socket"));
}

#[test]
fn state_without_a_cache_is_left_over_once_it_is_old_and_others_are_known() {
    let old = SETTLED + Duration::from_secs(1);
    let of = |known: &[&str], age| {
        let mut facts = facts(known, vec![attachment("b", Netns::There, Checked::Good)]);
        facts.traces = vec![trace("a", "lan", age)];
        facts.prepared = vec![Prepared {
            sandbox: "c".into(),
            written: now() - age,
        }];
        leftovers(&facts).unwrap().len()
    };
    assert_eq!(of(&["b"], old), 2);
    assert_eq!(of(&["b"], SETTLED), 0, "an ADD may be under way");
    assert_eq!(of(&["a", "b", "c"], old), 0);
    assert_eq!(of(&[], old), 0, "a runtime that knows nothing is no evidence");
}

#[test]
fn state_of_a_network_without_attachments_is_noted_and_stays() {
    let old = SETTLED + Duration::from_secs(1);
    let mut facts = facts(&["b"], vec![attachment("b", Netns::There, Checked::Good)]);
    facts.traces = vec![trace("a", "podman", old)];
    let report = report(&facts);
    assert_eq!(report.findings, []);
    assert!(
        report.notes[0].starts_with("network podman: 1 records"),
        "{:?}",
        report.notes
    );
    assert_eq!(leftovers(&facts), Ok(BTreeSet::new()));
}

#[test]
fn state_of_a_cached_sandbox_goes_with_the_sandbox() {
    let mut facts = facts(&["b"], vec![attachment("a", Netns::Gone, not_asked())]);
    facts.traces = vec![trace("a", "lan", SETTLED * 2)];
    let expected = Leftover::Sandbox { id: "a".into() };
    assert_eq!(leftovers(&facts), Ok(BTreeSet::from([expected])));
    assert_eq!(report(&facts).findings.len(), 1);
}
