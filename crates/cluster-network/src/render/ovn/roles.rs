//! Definitions and permissions (§7.3, 7.7). Feature gates and the configuration extend both.

use serde_json::{Value, json};

use super::{
    super::{
        Context, Error,
        objects::{find, parse},
        parts::{create_only, definition},
    },
    flags,
};

/// Definitions of the kinds that OVN-Kubernetes serves. An existing definition stays unchanged.
pub(super) fn definitions(context: &Context<'_>) -> Result<Vec<Value>, Error> {
    let mut all = parse("definitions.yaml", include_str!("definitions.yaml"))?;
    let advertises = flags::advertises_routes(&flags::config(context.spec));
    let gated = [
        ("routeadvertisements.k8s.ovn.org", advertises),
        ("vteps.k8s.ovn.org", advertises && context.facts.gate("EVPN")),
        (
            "clusternetworkconnects.k8s.ovn.org",
            context.facts.gate("NetworkConnect"),
        ),
    ];
    let mut more = parse("gated_definitions.yaml", include_str!("gated_definitions.yaml"))?;
    more.retain(|it| {
        gated
            .iter()
            .any(|(name, is_on)| *is_on && it["metadata"]["name"] == *name)
    });
    all.extend(more);
    all.push(definition(api::ipam_claim::crd())?);
    Ok(all.into_iter().map(create_only).collect())
}

/// Permissions. If each node has its own user, the group of these users gets them (§7.7).
pub(super) fn roles(context: &Context<'_>) -> Result<Vec<Value>, Error> {
    const ROLE: &str = "openshift-ovn-kubernetes-node-limited";
    let mut objects = parse("rbac.yaml", include_str!("rbac.yaml"))?;
    let facts = context.facts;
    let advertises = flags::advertises_routes(&flags::config(context.spec));
    let gated = [
        (
            "dnsnameresolvers",
            "network.openshift.io",
            facts.gate("DNSNameResolver"),
        ),
        (
            "clusternetworkconnects",
            "k8s.ovn.org",
            facts.gate("NetworkConnect"),
        ),
        ("routeadvertisements", "k8s.ovn.org", advertises),
        ("vteps", "k8s.ovn.org", advertises && facts.gate("EVPN")),
    ];
    for (role, verbs) in [
        (ROLE, json!(["get", "list", "watch"])),
        (
            "openshift-ovn-kubernetes-control-plane-limited",
            json!(["get", "list", "watch", "patch", "update"]),
        ),
    ] {
        let Some(rules) = find(&mut objects, "ClusterRole", role)?["rules"].as_array_mut() else {
            continue;
        };
        for (plural, group, _) in gated.iter().filter(|(_, _, is_on)| *is_on) {
            let resources = [(*plural).to_owned(), format!("{plural}/status")];
            rules.push(json!({ "apiGroups": [group], "resources": resources, "verbs": verbs }));
        }
        if advertises && role != ROLE {
            rules.push(json!({
                "apiGroups": ["frrk8s.metallb.io"], "resources": ["frrconfigurations"],
                "verbs": ["get", "list", "watch", "create", "patch", "update", "delete"],
            }));
        }
    }
    if facts.ovn.config_maps.has_node_identity() {
        for (kind, name) in [
            ("RoleBinding", "openshift-ovn-kubernetes-nodes-identity-limited"),
            (
                "ClusterRoleBinding",
                "openshift-ovn-kubernetes-node-identity-limited",
            ),
        ] {
            let binding = find(&mut objects, kind, ROLE)?;
            binding["metadata"]["name"] = json!(name);
            binding["subjects"] = json!([{
                "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:ovn-nodes",
            }]);
        }
    }
    Ok(objects)
}
