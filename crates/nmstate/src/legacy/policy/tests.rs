use rstest::rstest;

use super::*;

fn rule(name: Option<&str>, kind: Option<&str>, vlans: Option<&[u16]>) -> Rule {
    Rule {
        name: name.map(str::to_owned),
        kind: kind.map(str::to_owned),
        vlans: vlans.map(|vlans| vlans.iter().copied().collect()),
    }
}

#[test]
fn present_policy_is_not_of_the_original_design() {
    for spec in [
        json!({}),
        json!({"desiredState": {"interfaces": []}, "priority": 3}),
        json!({"match": null, "autoConfig": null}),
        json!(null),
    ] {
        assert_eq!(OriginalPolicy::of(&spec), Ok(None));
    }
}

// nmstate#91
#[rstest]
#[case::object(json!({"match": {"interfaces": {"name": "eth1", "type": "ethernet"}}}), vec![rule(Some("eth1"), Some("ethernet"), None)])]
#[case::list(json!({"match": {"interfaces": [{"name": "eth1"}, {"name": "eth2"}]}}), vec![rule(Some("eth1"), None, None), rule(Some("eth2"), None, None)])]
#[case::items(json!({"match": {"items": [{"interfaces": {"type": "ethernet"}}]}}), vec![rule(None, Some("ethernet"), None)])]
#[case::rules(json!({"matchRules": [{"interfaces": {"name": "eth1"}}, {"name": "eth2"}]}), vec![rule(Some("eth1"), None, None), rule(Some("eth2"), None, None)])]
#[case::vlans(json!({"match": {"interfaces": {"lldp": {"vlan-ids": [101, "102"]}}}}), vec![rule(None, None, Some(&[101, 102]))])]
#[case::vlans_old(json!({"match": {"interfaces": {"lldp": {"vlanIDList": [101]}}}}), vec![rule(None, None, Some(&[101]))])]
#[case::vlans_go(json!({"match": {"interfaces": {"lldp": {"vlanIDs": [101]}}}}), vec![rule(None, None, Some(&[101]))])]
#[case::vlan(json!({"match": {"interfaces": {"vlanID": 101}}}), vec![rule(None, None, Some(&[101]))])]
#[case::empty(json!({"match": {}}), vec![])]
#[case::none(json!({"match": {"interfaces": []}}), vec![])]
fn rules_are_read_in_all_forms(#[case] spec: Value, #[case] rules: Vec<Rule>) {
    assert_eq!(
        OriginalPolicy::of(&spec),
        Ok(Some(OriginalPolicy {
            rules,
            ..OriginalPolicy::default()
        }))
    );
}

// nmstate#93
#[test]
fn auto_config_excludes_a_desired_state() {
    let vlans = json!({"interfaces": {"lldp": {"vlan-ids": [101]}}});
    let spec = |desired: Value| json!({"match": vlans, "autoConfig": {"autoBonding": true}, "desiredState": desired});
    let error = OriginalPolicy::of(&spec(json!({"interfaces": [{"name": "eth1"}]}))).expect_err("both");
    assert_eq!(
        error.to_string(),
        "autoConfig cannot be used together with desiredState"
    );
    for nothing in [json!({}), json!(null), json!({"interfaces": null})] {
        assert!(
            OriginalPolicy::of(&spec(nothing))
                .expect("one of them")
                .expect("an old one")
                .auto_bonding
        );
    }
    let error = OriginalPolicy::of(&json!({"match": vlans, "capture": {"a": "interfaces.name==\"eth1\""}}));
    assert_eq!(
        error.expect_err("both").to_string(),
        "capture cannot be used together with match or autoConfig"
    );
}

#[rstest]
#[case(json!({"match": {"interfaces": {"mac": "x"}}}), "unknown key match.interfaces.mac")]
#[case(json!({"match": {"interfaces": {"name": null}}}), "a rule in match.interfaces says nothing: give it name, type or lldp.vlan-ids")]
#[case(json!({"match": {"interfaces": [{"name": "eth1"}, {}]}}), "a rule in match.interfaces says nothing: give it name, type or lldp.vlan-ids")]
#[case(json!({"match": {"interfaces": {"name": 7}}}), "match.interfaces.name is malformed")]
#[case(json!({"match": {"interfaces": "eth1"}}), "match.interfaces is neither an object nor a list")]
#[case(json!({"match": {"interfaces": {"lldp": {"vlan-ids": [0]}}}}), "0 in match.interfaces.lldp.vlan-ids is no VLAN")]
#[case(json!({"match": {"interfaces": {"lldp": {"system": "x"}}}}), "unknown key match.interfaces.lldp.system")]
#[case(json!({"match": {"interfaces": [], "nodes": []}}), "match has other keys beside interfaces")]
#[case(json!({"autoConfig": {"autoVlan": true}}), "autoConfig.autoVlan is not supported")]
#[case(json!({"autoConfig": {"autoBonding": "yes"}}), "autoConfig.autoBonding is neither true nor false")]
#[case(json!({"autoConfig": {"autoBonding": true}}), "autoConfig.autoBonding needs match.interfaces with lldp.vlan-ids: the VLANs whose interfaces are bonded")]
#[case(json!({"autoConfig": []}), "autoConfig is not an object")]
fn malformed_policy_is_refused_with_the_key(#[case] spec: Value, #[case] text: &str) {
    assert_eq!(OriginalPolicy::of(&spec).expect_err("no sense").to_string(), text);
}

#[rstest]
#[case(json!({"match": {"interfaces": [{"name": "eth1"}, {"lldp": {"vlan-ids": [101]}}]}}), true)]
#[case(json!({"match": {"interfaces": {"name": "eth1"}}}), false)]
#[case(json!({"match": {"interfaces": {"lldp": {"system": "x"}}}}), false)]
#[case(json!({"desiredState": {"interfaces": []}}), false)]
fn only_rules_with_vlans_need_lldp(#[case] spec: Value, #[case] expected: bool) {
    assert_eq!(needs_lldp(&spec), expected);
}

#[rstest]
#[case(json!({"parallel": true}), Some(json!("100%")))]
#[case(json!({"parallel": false}), Some(json!(1)))]
#[case(json!({"parallel": true, "maxUnavailable": "10%"}), Some(json!("10%")))]
#[case(json!({"parallel": "yes"}), None)]
#[case(json!({}), None)]
fn parallel_is_read_as_max_unavailable(#[case] spec: Value, #[case] expected: Option<Value>) {
    assert_eq!(max_unavailable(&spec), expected);
}

#[test]
fn default_priority_is_zero() {
    assert_eq!(priority(&json!({})), 0);
    assert_eq!(priority(&json!({"priority": -3})), -3);
    assert_eq!(priority(&json!({"priority": "high"})), 0);
}
