//! Updates of virtual machines.

use super::*;

fn five() -> Value {
    machine(&[pod_nic("default"), nic("br1"), nic("br2"), nic("br3"), nic("br4")])
}

// kubemacpool#31
#[test]
fn update_without_addresses_keeps_them() {
    let mut stage = Stage::new();
    let created = stage.created(&five());
    let mut again = five();
    again["metadata"]["annotations"] = created["metadata"]["annotations"].clone();
    again["spec"]["runStrategy"] = json!("Halted");
    let verdict = stage.update(&created, &again);
    let updated = patched(&again, &verdict);
    assert_eq!(macs(&updated), macs(&created));
    assert_eq!(macs(&updated)[4], "02:00:00:00:00:06");
    assert_eq!(verdict.warnings, [""; 0]);
    stage.see(&updated);
    assert_eq!(stage.holders("02:00:00:00:00:06"), ["vm br4"]);
    assert_eq!(stage.pool.oldest(), None);
}

// kubemacpool#32
#[test]
fn old_and_new_address_are_held_until_update_is_stored() {
    let mut stage = Stage::new();
    let created = stage.created(&five());
    let mut changed = interfaces(&created);
    changed[1]["macAddress"] = json!("0A-00-00-00-00-01");
    let updated = stage.updated(&created, &with_interfaces(&created, &changed));
    assert_eq!(macs(&updated)[1], "0A-00-00-00-00-01");
    assert_eq!(stage.holders("02:00:00:00:00:03"), ["vm br1"]);
    assert_eq!(stage.holders("0a:00:00:00:00:01"), ["vm br1?"]);
    stage.see(&updated);
    assert_eq!(stage.holders("02:00:00:00:00:03"), [""; 0]);
    assert_eq!(stage.holders("0a:00:00:00:00:01"), ["vm br1"]);
    assert_eq!(stage.pool.oldest(), None);
}

// kubemacpool#33
#[test]
fn new_interface_gets_pending_address() {
    let mut stage = Stage::new();
    let created = stage.created(&five());
    let mut changed = interfaces(&created);
    changed.push(nic("br5"));
    let updated = stage.updated(&created, &with_interfaces(&created, &changed));
    assert_eq!(macs(&updated)[5], "02:00:00:00:00:07");
    assert_eq!(macs(&updated)[..5], macs(&created));
    assert_eq!(stage.holders("02:00:00:00:00:07"), ["vm br5?"]);
    assert_eq!(stage.holders("02:00:00:00:00:02"), ["vm default"]);
    stage.see(&updated);
    assert_eq!(stage.holders("02:00:00:00:00:07"), ["vm br5"]);
}

// kubemacpool#34
#[test]
fn removed_interface_address_is_held_until_update_is_stored() {
    let mut stage = Stage::new();
    let created = stage.created(&five());
    let changed = &interfaces(&created)[..4];
    let updated = stage.updated(&created, &with_interfaces(&created, changed));
    assert_eq!(stage.holders("02:00:00:00:00:06"), ["vm br4"]);
    stage.see(&updated);
    assert_eq!(stage.holders("02:00:00:00:00:06"), [""; 0]);
    assert_eq!(stage.holders("02:00:00:00:00:05"), ["vm br3"]);
}

// kubemacpool#35
#[test]
fn interface_swap_allocates_and_releases() {
    let mut stage = Stage::new();
    let created = stage.created(&five());
    let mut changed = interfaces(&created);
    changed[2] = nic("new");
    let updated = stage.updated(&created, &with_interfaces(&created, &changed));
    assert_eq!(macs(&updated)[2], "02:00:00:00:00:07");
    assert_eq!(stage.holders("02:00:00:00:00:04"), ["vm br2"]);
    assert_eq!(stage.holders("02:00:00:00:00:07"), ["vm new?"]);
    stage.see(&updated);
    assert_eq!(stage.holders("02:00:00:00:00:04"), [""; 0]);
    assert_eq!(stage.holders("02:00:00:00:00:07"), ["vm new"]);
}

// kubemacpool#20-22, kubemacpool#36
#[test]
fn refused_update_changes_nothing() {
    let mut stage = Stage::new();
    let created = stage.created(&five());
    let had = interfaces(&created);
    let extended = |extra: Value| {
        let mut interfaces = had.clone();
        interfaces.push(extra);
        interfaces
    };
    let mut moved = had.clone();
    moved[0].as_object_mut().unwrap().shift_remove("macAddress");
    moved[1]["macAddress"] = json!("02-00-00-00-00-02");
    for (changed, text) in [
        (
            extended(nic("br1")),
            "Failed to mutate virtual machine: every interface must have a unique name",
        ),
        (
            extended(with_mac(nic("br5"), "invalid-mac")),
            "invalid MAC address format for interface br5: invalid-mac: address invalid-mac: invalid MAC address",
        ),
        (
            extended(with_mac(nic("br5"), "02-00-00-00-00-03")),
            "duplicate MAC address 02:00:00:00:00:03 found on interfaces: br1 and br5",
        ),
        // An address that is added back counts too.
        (
            moved,
            "duplicate MAC address 02:00:00:00:00:02 found on interfaces: default and br1",
        ),
    ] {
        let verdict = stage.update(&created, &with_interfaces(&created, &changed));
        assert_eq!(denial(&verdict), format!("{UPDATE}{text}"));
        assert_eq!(stage.pool.oldest(), None);
        assert_eq!(stage.holders("02:00:00:00:00:03"), ["vm br1"]);
    }
}

// kubemacpool#37
#[test]
fn full_range_refuses_new_interface_and_keeps_others() {
    let mut stage = Stage::of("02:00:00:00:00:10", "02:00:00:00:00:11", 0);
    let created = stage.created(&machine(&[nic("a"), nic("b")]));
    let wanted = with_interfaces(&created, &[nic("a"), nic("b"), nic("c")]);
    assert_eq!(
        denial(&stage.update(&created, &wanted)),
        format!("{UPDATE}the range is full")
    );
    assert_eq!(stage.holders("02:00:00:00:00:10"), ["vm a"]);
    assert_eq!(stage.holders("02:00:00:00:00:11"), ["vm b"]);
}

// kubemacpool#38
#[test]
fn irrelevant_update_is_not_patched() {
    let mut stage = Stage::new();
    let created = stage.created(&five());
    let changes: [fn(&mut Value); 7] = [
        |vm| vm["metadata"]["finalizers"] = json!(["x"]),
        |vm| vm["status"]["ready"] = json!(false),
        |vm| vm["metadata"]["ownerReferences"] = json!([{"kind": "X", "name": "x"}]),
        |vm| vm["metadata"]["managedFields"] = json!([{"manager": "x"}]),
        |vm| vm["metadata"]["resourceVersion"] = json!("2"),
        |vm| vm["metadata"]["annotations"][names::TRANSACTION_TIMESTAMP] = json!("2020-01-01T00:00:00Z"),
        |vm| vm["metadata"]["annotations"] = Value::Null,
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut changed = created.clone();
        change(&mut changed);
        assert_eq!(
            stage.update(&created, &changed),
            Verdict::allowed(),
            "change {number}"
        );
    }
    let mut labelless = created.clone();
    labelless["metadata"]["labels"] = json!({});
    let mut without = created.clone();
    without["metadata"]["labels"] = Value::Null;
    assert_eq!(stage.update(&labelless, &without), Verdict::allowed());
    assert_eq!(stage.pool.oldest(), None);
}

// kubemacpool#38
#[test]
fn relevant_update_gets_timestamp_and_keeps_addresses() {
    let mut stage = Stage::new();
    let created = stage.created(&five());
    let changes: [fn(&mut Value); 4] = [
        |vm| vm["metadata"]["labels"] = json!({"app": "y"}),
        |vm| vm["metadata"]["labels"] = Value::Null,
        |vm| vm["metadata"]["annotations"]["other"] = json!("x"),
        |vm| vm["spec"]["unknown"] = json!(9_007_199_254_740_993_u64),
    ];
    for change in changes {
        let mut changed = created.clone();
        change(&mut changed);
        let verdict = stage.update(&created, &changed);
        let expected = Change::Replace {
            path: TIMESTAMP_PATH.to_owned(),
            value: json!(stage.now.to_string()),
        };
        assert_eq!(verdict, Verdict::patched(vec![expected]));
    }
    let mut odd = created.clone();
    odd["spec"]["unknown"] = json!(9_007_199_254_740_993_u64);
    let mut even = created.clone();
    even["spec"]["unknown"] = json!(9_007_199_254_740_992_u64);
    assert_eq!(
        stage.update(&odd, &even).patch.len(),
        1,
        "numbers are compared exactly"
    );
    assert_eq!(stage.pool.oldest(), None, "no address is new");
}

#[test]
fn update_timestamp_follows_stored_one() {
    let mut stage = Stage::new();
    let mut created = stage.created(&machine(&[nic("a")]));
    created["metadata"]["annotations"][names::TRANSACTION_TIMESTAMP] = json!("2030-01-01T02:00:00.5+02:00");
    let updated = stage.updated(&created, &with_interfaces(&created, &[nic("a"), nic("b")]));
    assert_eq!(
        updated["metadata"]["annotations"][names::TRANSACTION_TIMESTAMP],
        "2030-01-01T00:00:00.500000001Z"
    );
    stage.see(&created);
    assert_eq!(stage.holders("02:00:00:00:00:03"), ["vm b?"]);
    stage.see(&updated);
    assert_eq!(stage.holders("02:00:00:00:00:03"), ["vm b"]);
}

// kubemacpool#39
#[test]
fn update_of_missing_machine_is_admitted() {
    let mut stage = Stage::new();
    let vm = machine(&[nic("a")]);
    for unknown in [None, Some(Value::Null), Some(json!({"metadata": 1}))] {
        let verdict = stage.review(Operation::Update, &vm, unknown.as_ref());
        assert_eq!(verdict, Verdict::allowed());
    }
    assert_eq!(stage.pool.oldest(), None);
}

// kubemacpool#40
#[test]
fn new_unsupported_interface_is_unchanged() {
    let mut stage = Stage::new();
    let created = stage.created(&machine(&[nic("a")]));
    let mut wanted = with_interfaces(
        &created,
        &[nic("a"), nic("b"), with_mac(nic("c"), "02:00:00:00:aa:01")],
    );
    for index in [1, 2] {
        let network = &mut wanted["spec"]["template"]["spec"]["networks"][index];
        network.as_object_mut().unwrap().shift_remove("multus");
        network["pod"] = json!({});
    }
    let updated = stage.updated(&created, &wanted);
    assert_eq!(macs(&updated), ["02:00:00:00:00:02", "", "02:00:00:00:aa:01"]);
    assert_eq!(stage.holders("02:00:00:00:aa:01"), [""; 0]);
    assert_eq!(stage.pool.oldest(), None);
}

// kubemacpool#39
#[test]
fn interface_that_never_had_address_gets_none() {
    let mut stage = Stage::new();
    // Created while its namespace was unmanaged, and not observed since.
    let before = machine(&[nic("a"), with_mac(nic("b"), "02:00:00:00:aa:01")]);
    let updated = stage.updated(
        &before,
        &with_interfaces(&before, &[nic("a"), nic("b"), nic("c")]),
    );
    assert_eq!(macs(&updated), ["", "02:00:00:00:aa:01", "02:00:00:00:00:02"]);
    assert_eq!(stage.holders("02:00:00:00:aa:01"), ["vm b?"], "held anew");
    assert_eq!(stage.update(&before, &before), Verdict::allowed());
}

#[test]
fn existing_duplicate_does_not_refuse_update() {
    let mut stage = Stage::new();
    let twice = |name| with_mac(nic(name), "02:00:00:00:aa:01");
    let before = machine(&[twice("a"), twice("b")]);
    let wanted = with_interfaces(&before, &[nic("a"), nic("b"), nic("c")]);
    assert_eq!(
        macs(&stage.updated(&before, &wanted)),
        ["02:00:00:00:aa:01", "02:00:00:00:aa:01", "02:00:00:00:00:02"]
    );
    // Labels can always change.
    let mut labelled = before.clone();
    labelled["metadata"]["labels"] = json!({"a": "b"});
    assert_eq!(stage.update(&before, &labelled).denied, None);
}

#[test]
fn network_change_makes_interface_supported() {
    let mut stage = Stage::new();
    let after = machine(&[with_mac(nic("a"), "02:00:00:00:aa:01")]);
    let mut before = after.clone();
    before["spec"]["template"]["spec"]["networks"] = json!([{"name": "a", "pod": {}}]);
    stage.updated(&before, &after);
    assert_eq!(stage.holders("02:00:00:00:aa:01"), ["vm a?"]);
}

#[test]
fn old_machine_without_template_has_no_interfaces() {
    let mut stage = Stage::new();
    let after = machine(&[nic("a")]);
    for spec in [
        json!({}),
        json!({"template": null}),
        Value::Null,
        json!({"template": 1}),
    ] {
        let mut before = after.clone();
        before["spec"] = spec;
        assert_ne!(macs(&stage.updated(&before, &after)), [""]);
    }
}

#[test]
fn update_warns_only_about_changed_addresses() {
    let mut stage = Stage::new();
    stage.created(&named("other", &[with_mac(nic("x"), "02:00:00:00:aa:01")]));
    let created = stage.created(&machine(&[with_mac(nic("a"), "02:00:00:00:aa:01"), nic("b")]));
    let mut changed = interfaces(&created);
    changed[1]["macAddress"] = json!("02:00:00:00:aa:02");
    let verdict = stage.update(&created, &with_interfaces(&created, &changed));
    assert_eq!(verdict.warnings, [""; 0], "it had the other one before");
    changed[1]["macAddress"] = json!("02:00:00:00:aa:03");
    stage.created(&named("third", &[with_mac(nic("y"), "02-00-00-00-AA-03")]));
    let wanted = with_interfaces(&created, &changed);
    assert_eq!(
        stage.update(&created, &wanted).warnings,
        ["MAC 02:00:00:00:aa:03 is already used by vm/ns/third, interface y"]
    );
    stage.reject_duplicates = true;
    assert_eq!(
        denial(&stage.update(&created, &wanted)),
        format!(
            "{UPDATE}failed to allocate requested mac address: MAC 02:00:00:00:aa:03 is already used by vm/ns/third, \
             interface y"
        )
    );
}

#[test]
fn dry_run_update_reserves_nothing() {
    let mut stage = Stage::new();
    let created = stage.created(&machine(&[nic("a")]));
    stage.dry_run = true;
    let updated = stage.updated(&created, &with_interfaces(&created, &[nic("a"), nic("b")]));
    assert_eq!(macs(&updated), ["02:00:00:00:00:02", "02:00:00:00:00:03"]);
    assert_eq!(stage.pool.oldest(), None);
}

#[test]
fn deleting_machine_is_unchanged() {
    let mut stage = Stage::new();
    let created = stage.created(&machine(&[nic("a")]));
    let mut deleted = with_interfaces(&created, &[nic("a"), nic("b")]);
    deleted["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
    assert_eq!(stage.update(&created, &deleted), Verdict::allowed());
    // Finalizers must be removable.
    deleted["spec"]["template"] = json!(1);
    assert_eq!(stage.update(&created, &deleted), Verdict::allowed());
}

#[test]
fn hot_unplug_keeps_address_until_interface_is_removed() {
    let mut stage = Stage::new();
    let created = stage.created(&machine(&[nic("a"), nic("b")]));
    let mut changed = interfaces(&created);
    changed[1]["state"] = json!("absent");
    let unplugged = stage.updated(&created, &with_interfaces(&created, &changed));
    stage.see(&unplugged);
    assert_eq!(stage.holders("02:00:00:00:00:03"), ["vm b"]);
    let gone = stage.updated(&unplugged, &with_interfaces(&unplugged, &changed[..1]));
    stage.see(&gone);
    assert_eq!(stage.holders("02:00:00:00:00:03"), [""; 0]);
}

// kubemacpool#43
#[test]
fn address_removed_and_added_back_stays_held() {
    let mut stage = Stage::new();
    let created = stage.created(&machine(&[nic("a"), nic("b")]));
    let without = stage.updated(&created, &with_interfaces(&created, &interfaces(&created)[..1]));
    let again = with_interfaces(&without, &interfaces(&created));
    let with = stage.updated(&without, &again);
    assert_eq!(macs(&with), macs(&created));
    stage.see(&without);
    assert_eq!(stage.holders("02:00:00:00:00:03"), ["vm b?"]);
    stage.see(&with);
    assert_eq!(stage.holders("02:00:00:00:00:03"), ["vm b"]);
    assert_eq!(stage.pool.oldest(), None);
}
