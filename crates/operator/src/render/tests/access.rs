//! The API server lets the operator grant only rights that it holds (operator §11).

use std::collections::BTreeSet;

use super::*;
use crate::{
    cluster_facts::{NMStateObject, NodeStateDefinition},
    rbac, watches,
};

/// One permission of a role.
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

/// The operator's rights: in the whole cluster, and in its namespace.
struct Held {
    cluster: Vec<Value>,
    namespaced: Vec<Value>,
}

impl Held {
    /// With or without the rights for upstream's images.
    fn new(upstream: bool) -> Self {
        let values =
            |rules: Vec<rbac::Rule>| -> Vec<Value> { rules.into_iter().map(rbac::Rule::to_value).collect() };
        let mut cluster = values(rbac::cluster_rules(true));
        if upstream {
            cluster.extend(values(rbac::upstream_rules(true)));
        }
        let namespaced = [cluster.clone(), values(rbac::namespace_rules())].concat();
        Self { cluster, namespaced }
    }

    /// The rules that apply to an object.
    fn over(&self, namespace: Option<&str>) -> &[Value] {
        match namespace {
            Some("addons") => &self.namespaced,
            _ => &self.cluster,
        }
    }

    fn assert_may(&self, verb: &str, id: &ObjectId) {
        let kind = id.known_kind().expect("a known kind");
        let permission = Permission {
            group: kind.group,
            resource: kind.plural,
            // An object has no name before its creation.
            name: (verb != "create").then_some(id.name.as_str()),
            verb,
        };
        // A request for a namespace itself is authorized by the role in it.
        let namespace = match kind {
            object::NAMESPACE => Some(id.name.as_str()),
            _ => id.namespace.as_deref(),
        };
        assert!(is_held(&permission, self.over(namespace)), "{id}: {permission:?}");
    }
}

/// Every flavour on every platform.
fn settings() -> Vec<Setting> {
    let mut all = Vec::new();
    for native in [false, true] {
        for scc in [false, true] {
            for openshift4 in [false, true] {
                for openshift_network in [false, true] {
                    all.push(Setting {
                        native,
                        scc,
                        openshift4,
                        openshift_network,
                        monitoring: true,
                        ..Setting::default()
                    });
                }
            }
        }
    }
    all
}

/// All objects of all components, with the `NMState`, which is rendered once its API is served.
fn everything(setting: Setting) -> Vec<Value> {
    let node_state = NodeState {
        definition: NodeStateDefinition::Ours,
        object: NMStateObject::None,
    };
    let groups = setting.with(all_components(), |context| {
        render_enabled(&Context {
            node_state: &node_state,
            ..*context
        })
    });
    groups.into_iter().flat_map(|group| group.objects).collect()
}

// operator#81
#[test]
fn roles_hold_all_granted_rights() {
    let mut roles = 0;
    for setting in settings() {
        // Weft's own images are deployed without the rights for upstream's images.
        let held = Held::new(!setting.native);
        for object in everything(setting) {
            if !["ClusterRole", "Role"].contains(&object["kind"].as_str().expect("a kind")) {
                continue;
            }
            roles += 1;
            let held = held.over(object["metadata"]["namespace"].as_str());
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
    }
    assert!(roles > 0);
}

// operator#81
#[test]
fn roles_allow_writing_all_rendered_objects_by_name() {
    let held = Held::new(false);
    for setting in settings() {
        for object in everything(setting) {
            let id = ObjectId::of(&object);
            let verbs: &[&str] = match id.kind.as_str() {
                // The namespace exists before its operator, and is never deleted.
                "Namespace" => &["get", "update"],
                "CustomResourceDefinition" => &["get", "create", "update"],
                _ => &["get", "create", "update", "delete"],
            };
            for verb in verbs {
                held.assert_may(verb, &id);
            }
            let role = &object["roleRef"];
            if role["kind"] == "ClusterRole" {
                let name = role["name"].as_str().expect("a name");
                held.assert_may("bind", &object::CLUSTER_ROLE.object(None, name));
            }
        }
        // The leftovers of all components are among these for any specification.
        let old = setting.with(json!({}), legacy);
        for id in old {
            for verb in ["get", "delete"] {
                held.assert_may(verb, &id);
            }
        }
    }
}

// operator#81
#[test]
fn roles_name_rendered_objects_alone() {
    let mut known = BTreeSet::new();
    for setting in settings() {
        for object in everything(setting) {
            known.insert(ObjectId::of(&object).name);
            known.extend(object["roleRef"]["name"].as_str().map(str::to_owned));
        }
        known.extend(setting.with(json!({}), legacy).into_iter().map(|id| id.name));
    }
    let secrets = [
        "kubevirt-ipam-controller-webhook-ca",
        "webhook-server-cert",
        "kubemacpool-service",
        "kubemacpool-mutator-ca",
    ];
    known.extend(secrets.map(str::to_owned));
    for rule in Held::new(true).namespaced {
        for name in words(&rule, "resourceNames") {
            assert!(known.contains(name), "{name}: {rule}");
        }
    }
}

#[test]
fn roles_allow_watching_all_rendered_kinds() {
    let held = Held::new(false);
    for kind in watches::rendered_kinds() {
        // A watch selects by label, so names do not apply.
        for verb in ["list", "watch", "get", "create"] {
            let permission = Permission {
                group: kind.group,
                resource: kind.plural,
                name: None,
                verb,
            };
            assert!(is_held(&permission, &held.namespaced), "{permission:?}");
        }
    }
}
