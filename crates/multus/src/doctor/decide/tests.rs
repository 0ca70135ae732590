use super::super::facts::Prepared;
use super::*;
use std::time::Duration;

fn attachment(sandbox: &str, netns: Netns, checked: Checked) -> CachedAttachment {
    CachedAttachment {
        owner: CacheOwner::Multus,
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

fn facts(known: &[&str], attachments: Vec<CachedAttachment>) -> Facts {
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
    Checked::Skipped("why".into())
}

#[test]
fn failed_check_is_finding_for_each_plugin() {
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
fn existing_namespace_keeps_whole_sandbox() {
    let other = CachedAttachment {
        interface: "net2".into(),
        ..attachment("a", Netns::There, Checked::Good)
    };
    let facts = facts(&["b"], vec![attachment("a", Netns::Gone, not_asked()), other]);
    assert_eq!(leftovers(&facts), Ok(BTreeSet::new()));
}

#[test]
fn silent_runtime_refuses_repair_and_is_noted() {
    let mut facts = facts(&[], vec![attachment("a", Netns::Gone, not_asked())]);
    facts.runtime = Err("no socket".into());
    let report = report(&facts);
    assert_eq!(report.findings[0].kind, Kind::LeftOver);
    assert!(report.notes[0].contains("no socket"), "{:?}", report.notes);
    assert!(leftovers(&facts).unwrap_err().contains("no socket"));
}

#[test]
fn old_uncached_state_is_leftover_if_runtime_lists_others() {
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
fn state_of_unattached_network_is_noted_and_kept() {
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
fn state_of_cached_sandbox_is_removed_with_sandbox() {
    let mut facts = facts(&["b"], vec![attachment("a", Netns::Gone, not_asked())]);
    facts.traces = vec![trace("a", "lan", SETTLED * 2)];
    let expected = Leftover::Sandbox { id: "a".into() };
    assert_eq!(leftovers(&facts), Ok(BTreeSet::from([expected])));
    assert_eq!(report(&facts).findings.len(), 1);
}
