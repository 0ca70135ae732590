//! The API server lets the operator grant only what it holds (operator §11).

use super::*;
use crate::rbac;

/// One permission, as a rule of a role has it.
#[derive(Debug)]
struct Permission<'a> {
    group: &'a str,
    resource: &'a str,
    name: Option<&'a str>,
    verb: &'a str,
}

fn words<'a>(rule: &'a Value, key: &str) -> Vec<&'a str> {
    let list = rule.get(key).and_then(Value::as_array).into_iter().flatten();
    list.map(|word| word.as_str().expect("a word")).collect()
}

fn permissions(rule: &Value) -> Vec<Permission<'_>> {
    let names: Vec<_> = match words(rule, "resourceNames") {
        names if names.is_empty() => vec![None],
        names => names.into_iter().map(Some).collect(),
    };
    let mut all = Vec::new();
    for group in words(rule, "apiGroups") {
        for resource in words(rule, "resources") {
            for verb in words(rule, "verbs") {
                all.extend(names.iter().map(|name| Permission {
                    group,
                    resource,
                    name: *name,
                    verb,
                }));
            }
        }
    }
    all
}

fn is_held(permission: &Permission<'_>, held: &[Value]) -> bool {
    held.iter().any(|rule| {
        let allows = |key: &str, wanted: &str| {
            let words = words(rule, key);
            words.contains(&"*") || words.contains(&wanted)
        };
        let names = words(rule, "resourceNames");
        allows("apiGroups", permission.group)
            && allows("resources", permission.resource)
            && allows("verbs", permission.verb)
            && (names.is_empty() || permission.name.is_some_and(|name| names.contains(&name)))
    })
}

#[test]
fn the_operator_holds_what_it_grants() {
    let values =
        |rules: Vec<rbac::Rule>| -> Vec<Value> { rules.into_iter().map(rbac::Rule::to_value).collect() };
    let cluster = values(rbac::cluster_rules());
    let namespaced = [cluster.clone(), values(rbac::namespace_rules())].concat();
    let setting = Setting {
        scc: true,
        monitoring: true,
        ..Setting::default()
    };
    let groups = setting.with(all_components(), render_enabled);
    let mut roles = 0;
    for object in groups.iter().flat_map(|group| &group.objects) {
        let held = match object["kind"].as_str() {
            Some("ClusterRole") => &cluster,
            Some("Role") => &namespaced,
            _ => continue,
        };
        roles += 1;
        for rule in object["rules"].as_array().expect("rules") {
            for permission in permissions(rule) {
                assert!(
                    is_held(&permission, held),
                    "{}: {permission:?}",
                    object["metadata"]["name"]
                );
            }
        }
    }
    assert!(roles > 0);
}
