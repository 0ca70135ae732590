//! The desired migration in the operator configuration.

use serde_json::{Value, json};

use super::*;

fn spec(kind: &str, migration: &Value) -> NetworkSpec {
    serde_json::from_value(json!({
        "managementState": "Managed",
        "clusterNetwork": [{ "cidr": "10.244.0.0/16" }],
        "defaultNetwork": { "type": kind },
        "migration": migration,
    }))
    .expect("a spec")
}

// cluster-network#100
#[test]
fn request_needs_the_field_and_an_applied_migration() {
    let mtu = json!({ "network": { "from": 1400, "to": 8900 }, "machine": { "to": 9000 } });
    let nodes = json!({ "machine": { "to": 9000 } });
    let of = |mtu: &Value, mode: &str| json!({ "mtu": mtu, "nodePolicies": mode });
    let ask = |kind: &str, migration: &Value| {
        let spec = spec(kind, migration);
        request(&spec, Some(&spec))
    };
    assert_eq!(ask("Weft", &Value::Null), Request::None);
    assert_eq!(ask("Weft", &json!({ "nodePolicies": "Apply" })), Request::None);
    assert_eq!(ask("OVNKubernetes", &json!({ "mtu": mtu })), Request::Elsewhere);
    assert_eq!(
        ask("OVNKubernetes", &of(&mtu, "Apply")),
        wanted(Mode::Apply, Some(NETWORK))
    );
    assert_eq!(ask("Weft", &of(&nodes, "DryRun")), wanted(Mode::DryRun, None));
    // The daemon of `Weft` finds out the MTU of pods itself.
    assert_eq!(ask("weft", &of(&mtu, "Apply")), wanted(Mode::Apply, None));
    let invalid = |kind: &str, mtu: &Value| match ask(kind, &of(mtu, "Apply")) {
        Request::Invalid(message) => message,
        other => panic!("{other:?}"),
    };
    assert_eq!(
        invalid("Calico", &nodes),
        "spec.migration.nodePolicies is supported with OVNKubernetes and Weft, and not with Calico"
    );
    assert_eq!(
        invalid("Weft", &json!({})),
        "spec.migration.nodePolicies needs spec.migration.mtu.machine.to"
    );
    assert_eq!(
        invalid("Weft", &json!({ "machine": { "to": 100 } })),
        "invalid Migration.MTU.Machine.To(100), has to be in range: 576-65536"
    );
    // The main loop has not applied it, or applied another one.
    let asked = spec("Weft", &of(&nodes, "Apply"));
    let other = spec("Weft", &of(&json!({ "machine": { "to": 4000 } }), "Apply"));
    for recorded in [None, Some(&spec("Weft", &Value::Null)), Some(&other)] {
        let request = request(&asked, recorded);
        assert!(
            matches!(
                request,
                Request::Wanted {
                    is_accepted: false,
                    ..
                }
            ),
            "{request:?}"
        );
        let mut world = World::new(request, &["a"]);
        assert_eq!(world.all_actions(), []);
    }
    let mut unmanaged = asked.clone();
    unmanaged.management_state = "Unmanaged".to_owned();
    assert_eq!(request(&unmanaged, Some(&asked)), Request::Unmanaged);
}
