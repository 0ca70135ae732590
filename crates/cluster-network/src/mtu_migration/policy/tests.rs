use super::{super::uplink::Setting, *};

fn settings(mtu: u32) -> Settings {
    let setting = Setting {
        kind: "ethernet".to_owned(),
        mtu,
    };
    BTreeMap::from([("eth0".to_owned(), setting)])
}

fn draft(goal: Goal, is_dry_run: bool) -> Draft {
    Draft {
        node: "node1.example.com".to_owned(),
        hostname: "node1".to_owned(),
        goal,
        settings: settings(9000),
        former: settings(1500),
        is_dry_run,
        was_changed: false,
    }
}

// cluster-network#101
#[test]
fn policy_selects_its_node_and_sets_the_mtu_alone() {
    assert_eq!(
        draft(Goal::Mtu(9000), true).object("u1"),
        json!({
            "apiVersion": "nmstate.io/v1",
            "kind": "NodeNetworkConfigurationPolicy",
            "metadata": {
                "name": "mtu-migration-node1.example.com",
                "labels": { "networkoperator.openshift.io/part": "mtu-migration" },
                "annotations": {
                    "networkoperator.openshift.io/mtu": "9000",
                    "networkoperator.openshift.io/former-mtu": "{\"eth0\":{\"type\":\"ethernet\",\"mtu\":1500}}",
                    "nmstate.io/edit-in-progress": "true",
                    "nmstate.io/dry-run": "true",
                },
                "ownerReferences": [{
                    "apiVersion": "operator.openshift.io/v1", "kind": "Network", "name": "cluster", "uid": "u1",
                    "controller": true, "blockOwnerDeletion": true,
                }],
            },
            "spec": {
                "nodeSelector": { "kubernetes.io/hostname": "node1" },
                "desiredState": { "interfaces": [
                    { "name": "eth0", "type": "ethernet", "state": "up", "mtu": 9000 },
                ] },
            },
        })
    );
}

#[test]
fn written_policy_is_read_back() {
    for (goal, is_dry_run) in [
        (Goal::Mtu(9000), true),
        (Goal::Mtu(1400), false),
        (Goal::Former, false),
    ] {
        let mut object = draft(goal, is_dry_run).object("u1");
        object["metadata"]["uid"] = json!("u2");
        object["metadata"]["generation"] = json!(3);
        let expected = Policy {
            uid: "u2".to_owned(),
            generation: 3,
            goal: Some(goal),
            former: settings(1500),
            is_dry_run,
            was_changed: false,
        };
        assert_eq!(Policy::read(&object), expected);
    }
    let edited = json!({ "metadata": { "annotations": {
        "networkoperator.openshift.io/mtu": "many", "networkoperator.openshift.io/former-mtu": "[]",
    } } });
    let policy = Policy::read(&edited);
    assert_eq!(
        (policy.goal, policy.former.len(), policy.is_dry_run),
        (None, 0, false)
    );
}

#[test]
fn names_are_label_values() {
    assert_eq!(name("node1"), "mtu-migration-node1");
    let long = format!("{}.example.com", "a".repeat(60));
    let names = [name(&long), name(&format!("{long}.org"))];
    assert_ne!(names[0], names[1]);
    for name in names {
        assert_eq!(name.len(), 63, "{name}");
    }
    let dot_at_the_cut = name(&format!("{}.{}", "a".repeat(39), "b".repeat(30)));
    assert!(!dot_at_the_cut.contains(".-"), "{dot_at_the_cut}");
}

fn enactment(generation: i64, uid: &str, conditions: &[(&str, &str, &str)]) -> Enactment {
    let conditions: Vec<Value> = conditions
        .iter()
        .map(|(kind, reason, message)| {
            json!({ "type": kind, "status": "True", "reason": reason, "message": message })
        })
        .collect();
    Enactment::read(&json!({
        "status": { "policyGeneration": generation, "policyUID": uid, "conditions": conditions },
    }))
}

// cluster-network#102-103, cluster-network#105, cluster-network#145
#[test]
fn progress_follows_the_enactment_of_this_policy() {
    let policy = |is_dry_run| Policy {
        uid: "u1".to_owned(),
        generation: 2,
        goal: Some(Goal::Mtu(9000)),
        former: Settings::new(),
        is_dry_run,
        was_changed: false,
    };
    let (dry, real) = (policy(true), policy(false));
    let tried = enactment(
        2,
        "u1",
        &[("Available", "DryRun", "dry run: nothing would change")],
    );
    let applied = enactment(
        2,
        "u1",
        &[("Available", "SuccessfullyConfigured", "successfully reconciled")],
    );
    let failed = enactment(2, "u1", &[("Failing", "FailedToConfigure", "rolling back")]);
    let retrying = enactment(
        2,
        "u1",
        &[("Failing", "Retrying", "a"), ("Progressing", "Retrying", "a")],
    );
    // Not yet: a dry run while NetworkManager is away.
    let again = enactment(
        2,
        "u1",
        &[("Failing", "Retrying", "no bus; another attempt follows")],
    );
    let aborted = enactment(2, "", &[("Aborted", "ConfigurationAborted", "aborted")]);
    let failure = |message: &str| Progress::Failed(message.to_owned());
    for (policy, enactment, expected) in [
        (&dry, None, Progress::Pending),
        (&dry, Some(&tried), Progress::Done),
        // A handler that ignores dry runs, or that has not read the annotation yet.
        (&dry, Some(&applied), Progress::Pending),
        (&dry, Some(&failed), failure("rolling back")),
        (&real, Some(&tried), Progress::Pending),
        (&real, Some(&applied), Progress::Done),
        (&real, Some(&failed), failure("rolling back")),
        (&real, Some(&retrying), Progress::Pending),
        (
            &dry,
            Some(&again),
            Progress::Retrying("no bus; another attempt follows".to_owned()),
        ),
        (&real, Some(&aborted), failure("aborted")),
        (
            &real,
            Some(&enactment(
                1,
                "u1",
                &[("Available", "SuccessfullyConfigured", "")],
            )),
            Progress::Pending,
        ),
        (
            &real,
            Some(&enactment(
                2,
                "u0",
                &[("Available", "SuccessfullyConfigured", "")],
            )),
            Progress::Pending,
        ),
    ] {
        assert_eq!(progress(policy, enactment), expected, "{policy:?} {enactment:?}");
    }
}

// cluster-network#106
#[test]
fn policy_is_overdue_after_a_quarter_of_an_hour_without_a_result() {
    let policy = Policy::read(&draft(Goal::Mtu(9000), true).object("u1"));
    let released = Policy {
        is_dry_run: false,
        ..policy.clone()
    };
    let of = |policy: &Policy, progress| BTreeMap::from([("a".to_owned(), (policy.clone(), progress))]);
    let (mut awaited, begin) = (Awaited::default(), Instant::now());
    let (none, one) = (BTreeSet::new(), BTreeSet::from(["a".to_owned()]));
    let pending = of(&policy, Progress::Pending);
    assert_eq!(
        awaited.note(&pending, begin),
        (none.clone(), Some(begin + OVERDUE))
    );
    let later = begin + OVERDUE;
    assert_eq!(awaited.note(&pending, later), (one, None));
    // The change has its own time.
    let pending = of(&released, Progress::Pending);
    assert_eq!(
        awaited.note(&pending, later),
        (none.clone(), Some(later + OVERDUE))
    );
    assert_eq!(
        awaited.note(&of(&released, Progress::Done), later + OVERDUE),
        (none, None)
    );
}

// cluster-network#134
#[test]
fn dry_run_of_a_changed_node_carries_a_mark() {
    let before = draft(Goal::Mtu(9000), true);
    assert!(!Policy::read(&before.object("u1")).may_have_changed());
    let changed = Draft {
        was_changed: true,
        ..before
    };
    let object = changed.object("u1");
    assert_eq!(
        object["metadata"]["annotations"]["networkoperator.openshift.io/mtu-changed"],
        "true"
    );
    assert!(Policy::read(&object).may_have_changed());
    assert!(Policy::read(&draft(Goal::Mtu(9000), false).object("u1")).may_have_changed());
}

// cluster-network#137
#[test]
fn enactments_of_other_policies_state_their_mtus() {
    let of = |policy: &str, reason: &str| {
        let enactment = Enactment::read(&json!({
            "metadata": { "labels": { "nmstate.io/node": "node1", "nmstate.io/policy": policy } },
            "status": {
                "desiredState": { "interfaces": [{ "name": "eth0", "mtu": 1500 }, { "name": "eth1" }] },
                "conditions": [{ "type": "Available", "status": "True", "reason": reason }],
            },
        }));
        assert_eq!(enactment.node, "node1");
        enactment.stated().collect::<Vec<_>>()
    };
    let stated = Stated {
        policy: "uplink".to_owned(),
        interface: "eth0".to_owned(),
        mtu: 1500,
    };
    assert_eq!(of("uplink", "SuccessfullyConfigured"), [stated]);
    assert_eq!(of("uplink", "DryRun"), []);
    assert_eq!(of("mtu-migration-node1", "SuccessfullyConfigured"), []);
}

// cluster-network#140
#[test]
fn installation_restricts_the_rights_before_it_grants_them() {
    let text = include_str!("../../manifests/mtu-migration.yaml");
    let kinds: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("kind: "))
        .collect();
    assert_eq!(
        kinds,
        [
            "ValidatingAdmissionPolicy",
            "ValidatingAdmissionPolicyBinding",
            "ClusterRole",
            "ClusterRoleBinding"
        ]
    );
    let types = uplink::TYPES.map(|kind| format!("'{kind}'")).join(", ");
    assert!(text.contains(&format!("interface.type in [{types}]")), "{types}");
}
