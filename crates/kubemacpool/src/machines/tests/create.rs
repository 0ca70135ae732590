//! Creation of virtual machines.

use super::*;

// kubemacpool#16-17
#[test]
fn create_gives_addresses_to_supported_interfaces() {
    let mut bridged = machine(&[pod_nic("default"), nic("br1"), nic("br2")]);
    // On the pod network, without masquerade.
    bridged["spec"]["template"]["spec"]["networks"][1] = json!({"name": "br1", "pod": {}});
    for (machine, expected) in [
        (machine(&[pod_nic("default")]), vec!["02:00:00:00:00:02"]),
        (
            machine(&[pod_nic("default"), nic("br1")]),
            vec!["02:00:00:00:00:02", "02:00:00:00:00:03"],
        ),
        (bridged, vec!["02:00:00:00:00:02", "", "02:00:00:00:00:03"]),
    ] {
        let mut stage = Stage::new();
        assert_eq!(macs(&stage.admitted(&machine)), expected);
        assert_eq!(stage.holders("02:00:00:00:00:02"), ["vm default?"]);
        assert_eq!(stage.holders("02:00:00:00:00:04"), [""; 0]);
    }
}

// kubemacpool#16
#[test]
fn create_leaves_unsupported_interface_unchanged() {
    let mut bridged = machine(&[nic("a"), with_mac(nic("b"), "02:00:00:00:aa:01"), nic("nowhere")]);
    bridged["spec"]["template"]["spec"]["networks"] =
        json!([{"name": "a", "pod": {}}, {"name": "b", "pod": {}}]);
    let mut stage = Stage::new();
    assert_eq!(macs(&stage.admitted(&bridged)), ["", "02:00:00:00:aa:01", ""]);
    assert_eq!(stage.holders("02:00:00:00:aa:01"), [""; 0]);
    assert_eq!(stage.pool.oldest(), None);
}

// kubemacpool#18, kubemacpool#25-26
#[test]
fn create_without_interfaces_adds_only_timestamp() {
    let mut without_networks = machine(&[pod_nic("default")]);
    without_networks["spec"]["template"]["spec"]["networks"] = Value::Null;
    let mut without_devices = machine(&[]);
    without_devices["spec"]["template"]["spec"]["domain"] = json!({});
    for machine in [machine(&[]), without_networks, without_devices] {
        let mut stage = Stage::new();
        let verdict = stage.create(&machine);
        assert_eq!(
            verdict,
            Verdict::patched(vec![
                Change::Add {
                    path: "/metadata/annotations".to_owned(),
                    value: json!({})
                },
                Change::Add {
                    path: TIMESTAMP_PATH.to_owned(),
                    value: json!("2026-01-02T03:04:05.12345679Z")
                },
            ])
        );
        assert_eq!(stage.pool.oldest(), None);
    }
}

// kubemacpool#25-26
#[test]
fn create_replaces_timestamp_and_keeps_annotations() {
    let mut stage = Stage::new();
    let mut annotated = machine(&[pod_nic("default")]);
    annotated["metadata"]["annotations"] = json!({"a/b": "c"});
    let verdict = stage.create(&annotated);
    assert_eq!(
        verdict.patch,
        [
            Change::Add {
                path: TIMESTAMP_PATH.to_owned(),
                value: json!("2026-01-02T03:04:05.12345679Z")
            },
            Change::Add {
                path: "/spec/template/spec/domain/devices/interfaces/0/macAddress".to_owned(),
                value: json!("02:00:00:00:00:02"),
            },
        ]
    );
    assert_eq!(
        patched(&annotated, &verdict)["metadata"]["annotations"]["a/b"],
        "c"
    );

    annotated["metadata"]["annotations"][names::TRANSACTION_TIMESTAMP] = json!("2020-01-01T00:00:00Z");
    assert_eq!(
        stage.create(&annotated).patch[0],
        Change::Replace {
            path: TIMESTAMP_PATH.to_owned(),
            value: json!("2026-01-02T03:04:05.123456791Z")
        }
    );
}

// kubemacpool#19
#[test]
fn create_keeps_explicit_address_text() {
    let mut stage = Stage::new();
    let vm = machine(&[with_mac(pod_nic("default"), "0A-00-00-00-00-01"), nic("br1")]);
    assert_eq!(
        macs(&stage.admitted(&vm)),
        ["0A-00-00-00-00-01", "02:00:00:00:00:02"]
    );
    assert_eq!(stage.holders("0a:00:00:00:00:01"), ["vm default?"]);
}

// kubemacpool#14
#[test]
fn explicit_address_is_not_allocated() {
    let mut stage = Stage::new();
    stage.created(&named("first", &[with_mac(nic("nic"), "02-00-00-00-00-03")]));
    // Not to another interface of the same virtual machine either, in any order.
    let vm = machine(&[nic("a"), nic("b"), with_mac(nic("c"), "02:00:00:00:00:02")]);
    assert_eq!(
        macs(&stage.admitted(&vm)),
        ["02:00:00:00:00:04", "02:00:00:00:00:05", "02:00:00:00:00:02"]
    );
}

// kubemacpool#20-22
#[test]
fn refused_request_reserves_nothing() {
    let long = "x".repeat(100_000);
    let mut unsupported = machine(&[
        pod_nic("default"),
        with_mac(nic("br1"), "02:00:00:00:ff:ff"),
        with_mac(nic("br2"), "02:00:00:00:ff:ff"),
    ]);
    unsupported["spec"]["template"]["spec"]["networks"] = json!([{"name": "default", "pod": {}}]);
    for (vm, text) in [
        (
            machine(&[
                pod_nic("default"),
                with_mac(nic("br1"), "02:00:00:00:ff:ff"),
                with_mac(nic("br2"), "02:00:00:00:ff:ff"),
            ]),
            "duplicate MAC address 02:00:00:00:ff:ff found on interfaces: br1 and br2",
        ),
        (
            machine(&[
                with_mac(nic("br1"), "0A-00-00-00-FF-FF"),
                with_mac(nic("br2"), "0a:00:00:00:ff:ff"),
            ]),
            "duplicate MAC address 0a:00:00:00:ff:ff found on interfaces: br1 and br2",
        ),
        (
            unsupported,
            "duplicate MAC address 02:00:00:00:ff:ff found on interfaces: br1 and br2",
        ),
        (
            machine(&[pod_nic("default"), with_mac(nic("br1"), "invalid-mac")]),
            "invalid MAC address format for interface br1: invalid-mac: address invalid-mac: invalid MAC address",
        ),
        (
            machine(&[with_mac(nic("br1"), "02:00:00:00:aa:01"), nic("br1")]),
            "Failed to mutate virtual machine: every interface must have a unique name",
        ),
        (
            machine(&[with_mac(nic("br1"), &long)]),
            "invalid MAC address format for interface br1: xxxx",
        ),
    ] {
        for dry_run in [false, true] {
            let mut stage = Stage {
                dry_run,
                ..Stage::new()
            };
            let verdict = stage.create(&vm);
            let message = denial(&verdict);
            assert!(message.starts_with(&format!("{CREATE}{text}")), "{message}");
            assert!(message.len() < 3000);
            if message.len() < 300 {
                assert_eq!(message, format!("{CREATE}{text}"));
            }
            assert_eq!(stage.pool.oldest(), None, "nothing is held");
            assert_eq!(stage.holders("02:00:00:00:ff:ff"), [""; 0]);
        }
    }
}

// kubemacpool#10
#[test]
fn create_in_full_range_is_refused() {
    let mut stage = Stage::of("02:00:00:00:00:10", "02:00:00:00:00:11", 0);
    stage.admitted(&named("a", &[pod_nic("default")]));
    stage.created(&named("b", &[pod_nic("default")]));
    let verdict = stage.create(&named("c", &[pod_nic("default")]));
    assert_eq!(denial(&verdict), format!("{CREATE}the range is full"));
    assert_eq!(stage.holders("02:00:00:00:00:10"), ["a default?"]);
    assert_eq!(stage.holders("02:00:00:00:00:11"), ["b default"]);
}

#[test]
fn partial_allocation_is_released_when_range_is_full() {
    let mut stage = Stage::of("02:00:00:00:00:10", "02:00:00:00:00:11", 0);
    let vm = machine(&[nic("a"), nic("b"), nic("c")]);
    assert_eq!(denial(&stage.create(&vm)), format!("{CREATE}the range is full"));
    assert_eq!(macs(&stage.admitted(&machine(&[nic("a"), nic("b")]))).len(), 2);
}

// kubemacpool#23
#[test]
fn duplicate_address_is_accepted_with_warning() {
    let mut stage = Stage::new();
    let interfaces = [with_mac(nic("br1"), "02:00:00:00:aa:01")];
    let mut elsewhere = named("first", &interfaces);
    elsewhere["metadata"]["namespace"] = json!("other");
    assert_eq!(stage.create(&elsewhere).warnings, [""; 0]);
    let verdict = stage.create(&machine(&interfaces));
    assert_eq!(verdict.denied, None);
    assert_eq!(
        verdict.warnings,
        ["MAC 02:00:00:00:aa:01 is already used by vm/other/first, interface br1"]
    );
    assert_eq!(stage.holders("02:00:00:00:aa:01"), ["first br1?", "vm br1?"]);
    stage.see(&patched(&machine(&interfaces), &verdict));
    assert_eq!(
        stage.holders("02:00:00:00:aa:01"),
        ["first br1?", "vm br1"],
        "the first stays first"
    );
}

#[test]
fn warning_ignores_own_addresses() {
    let mut stage = Stage::new();
    let vm = machine(&[with_mac(nic("br1"), "02:00:00:00:aa:01")]);
    stage.create(&vm);
    // Denied by another webhook, and retried.
    assert_eq!(stage.create(&vm).warnings, [""; 0]);
    let mut hidden = named("hidden", &[with_mac(nic("br1"), "02:00:00:00:aa:02")]);
    hidden["metadata"]["namespace"] = json!("unmanaged");
    stage.create(&hidden);
    let vm = machine(&[with_mac(nic("br1"), "02:00:00:00:aa:02")]);
    assert_eq!(stage.create(&vm).warnings, [""; 0], "not managed");
    let unnamed = json!({"metadata": {"generateName": "vm-"}, "spec": machine(&[with_mac(nic("br1"), "02:00:00:00:aa:03")])["spec"]});
    stage.create(&unnamed);
    assert_eq!(
        stage.create(&unnamed).warnings,
        ["MAC 02:00:00:00:aa:03 is already used by vm/ns/(not named yet), interface br1"]
    );
}

#[test]
fn duplicate_address_is_refused_with_reject_duplicates() {
    let mut stage = Stage {
        reject_duplicates: true,
        ..Stage::new()
    };
    let interfaces = [nic("free"), with_mac(nic("br1"), "02:00:00:00:aa:01")];
    stage.created(&named("first", &interfaces));
    let verdict = stage.create(&machine(&interfaces));
    assert_eq!(
        denial(&verdict),
        format!(
            "{CREATE}failed to allocate requested mac address: MAC 02:00:00:00:aa:01 is already used by vm/ns/first, \
             interface br1"
        )
    );
    assert_eq!(stage.pool.oldest(), None);
}

// kubemacpool#24
#[test]
fn dry_run_create_reserves_nothing() {
    let mut stage = Stage {
        dry_run: true,
        ..Stage::new()
    };
    let vm = machine(&[pod_nic("default"), with_mac(nic("br1"), "02:00:00:00:aa:01")]);
    assert_eq!(
        macs(&stage.admitted(&vm)),
        ["02:00:00:00:00:02", "02:00:00:00:aa:01"]
    );
    assert_eq!(stage.pool.oldest(), None);
    assert_eq!(stage.holders("02:00:00:00:00:02"), [""; 0]);
    assert_eq!(stage.holders("02:00:00:00:aa:01"), [""; 0]);
}

// kubemacpool#27
#[test]
fn machine_without_template_is_admitted() {
    for spec in [json!({"template": null}), json!({}), Value::Null] {
        let mut vm = machine(&[pod_nic("default")]);
        vm["spec"] = spec;
        let mut stage = Stage::new();
        let expected = Verdict {
            message: Some("virtual machine template is nil, ignoring virtual machine".to_owned()),
            ..Verdict::allowed()
        };
        assert_eq!(stage.create(&vm), expected);
        assert_eq!(stage.update(&machine(&[pod_nic("default")]), &vm), expected);
    }
}

// kubemacpool#28
#[test]
fn unknown_fields_are_kept() {
    let mut stage = Stage::new();
    let vm = machine(&[pod_nic("default"), nic("br1")]);
    let mut created = stage.admitted(&vm);
    assert_eq!(
        created["spec"]["template"]["spec"]["domain"]["devices"]["disks"][0]["io"],
        "native-new"
    );
    created["metadata"]
        .as_object_mut()
        .unwrap()
        .shift_remove("annotations");
    for index in 0..2 {
        let interface = &mut created["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][index];
        interface.as_object_mut().unwrap().shift_remove("macAddress");
    }
    assert_eq!(created, vm);
}

// kubemacpool#30
#[test]
fn create_of_existing_name_adds_only_timestamp() {
    let mut stage = Stage {
        exists: true,
        ..Stage::new()
    };
    let twice = machine(&[
        with_mac(nic("a"), "02:00:00:00:aa:01"),
        with_mac(nic("b"), "02:00:00:00:aa:01"),
    ]);
    for vm in [machine(&[pod_nic("default")]), twice] {
        let verdict = stage.create(&vm);
        assert_eq!((verdict.denied, verdict.patch.len()), (None, 2));
        assert_eq!(stage.pool.oldest(), None);
    }
}

#[test]
fn failed_lookup_is_refused() {
    assert_eq!(
        denial(&lookup_failed("etcdserver: request timed out")),
        "Failed to create virtual machine allocation error: Failed to get the existing vm object: etcdserver: request \
         timed out"
    );
    let mut stage = Stage::new();
    let mut vm = machine(&[pod_nic("default")]);
    vm["metadata"]["deletionTimestamp"] = json!("2026-01-02T03:04:05Z");
    assert_eq!(
        denial(&stage.create(&vm)),
        "Failed to create virtual machine allocation error: Failed to get the existing vm object: \
         virtualmachines.kubevirt.io \"vm\" not found"
    );
    stage.exists = true;
    assert_eq!(stage.create(&vm), Verdict::allowed());
}

// kubemacpool#49
#[test]
fn unnamed_machine_is_held_by_request_until_stored() {
    let mut stage = Stage::new();
    let mut vm = machine(&[pod_nic("default")]);
    vm["metadata"] = json!({"generateName": "vm-"});
    let mut created = stage.admitted(&vm);
    assert_eq!(stage.holders("02:00:00:00:00:02"), ["request-1 default?"]);
    created["metadata"]["name"] = json!("vm-x7");
    stage.see(&created);
    assert_eq!(stage.holders("02:00:00:00:00:02"), ["vm-x7 default"]);
    stage.pool.remove(&owner(&created));
    assert_eq!(stage.holders("02:00:00:00:00:02"), [""; 0]);
}
