use api::cluster_network::{config::NetworkDiagnostics, operator::NetworkSpec};
use serde_json::json;

use super::{Input, Plan, Rejection, record, recorded};
use crate::{
    base::{b, ovn, spec},
    facts::Facts,
    settings::Settings,
};

fn plan(given: &NetworkSpec, previous: Option<&NetworkSpec>) -> Result<Plan, Rejection> {
    let image = |name: &str| (name == "NETWORK_OPERATOR_IMAGE").then(|| "weft".to_owned());
    Plan::of(&Input {
        spec: given,
        previous,
        diagnostics: &NetworkDiagnostics::default(),
        facts: &Facts {
            host_mtu: Some(1500),
            ..Facts::default()
        },
        settings: &Settings::read("ns", image).expect("settings"),
    })
}

#[test]
fn record_is_read_as_it_was_written() {
    let applied = plan(&b(), None).expect("a plan").applied;
    let map = record(&applied, "ns");
    assert_eq!(map["metadata"]["name"], "applied-cluster");
    assert_eq!(recorded(&map), Ok(applied));
    let error = recorded(&json!({ "data": { "applied": "{" } })).expect_err("no JSON");
    assert!(error.contains("applied-cluster"), "{error}");
    assert!(recorded(&json!({})).is_err());
}

#[test]
fn migration_changes_the_applied_mtu() {
    let before = plan(&b(), None).expect("a plan").applied;
    assert_eq!(ovn(&mut before.clone()).mtu, Some(1400));
    // The migration starts.
    let mut migrating = b();
    migrating.migration = Some(spec(
        "{mtu: {network: {from: 1400, to: 1300}, machine: {to: 1500}}}",
    ));
    let during = plan(&migrating, Some(&before)).expect("a plan");
    assert_eq!(ovn(&mut during.filled.clone()).mtu, Some(1400));
    assert_eq!(ovn(&mut during.applied.clone()).mtu, Some(1300));
    // The migration continues.
    let again = plan(&during.filled, Some(&during.applied)).expect("a plan");
    assert_eq!(again.applied, during.applied);
    // The migration ends with the new MTU, and with no other.
    for (mtu, is_safe) in [(1300, true), (1400, false), (1350, false)] {
        let mut end = b();
        ovn(&mut end).mtu = Some(mtu);
        let outcome = plan(&end, Some(&again.applied));
        assert_eq!(outcome.is_ok(), is_safe, "{mtu}: {outcome:?}");
    }
}

#[test]
fn neither_side_of_a_comparison_is_changed() {
    let given = b();
    let previous = plan(&given, None).expect("a plan").applied;
    let (given_before, previous_before) = (given.clone(), previous.clone());
    let mut other = given.clone();
    other.cluster_network.reverse();
    plan(&other, Some(&previous)).expect("a plan");
    assert_eq!((given, previous), (given_before, previous_before));
    // The defaults keep the order of the user's blocks.
    let filled = plan(&other, None).expect("a plan").filled;
    assert_eq!(filled.cluster_network, other.cluster_network);
}
