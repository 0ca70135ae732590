//! The number of webhook replicas (nmstate §10.3).

use k8s_openapi::api::core::v1::{Taint, Toleration};

/// Prefix of taints that follow the state of a node, and not its purpose.
const TRANSIENT: &str = "node.kubernetes.io/";

/// The number of nodes that are reserved for infrastructure: they have taints that affect scheduling, and all of these
/// are tolerated. `nodes` are the taints of each selected node.
pub(crate) fn dedicated<'a>(
    nodes: impl IntoIterator<Item = &'a [Taint]>,
    tolerations: &[Toleration],
) -> usize {
    let tolerated = |taint: &&Taint| tolerations.iter().any(|toleration| tolerates(toleration, taint));
    let keeps_away = |taint: &&Taint| taint.effect != "PreferNoSchedule" && !taint.key.starts_with(TRANSIENT);
    nodes
        .into_iter()
        .filter(|taints| {
            let mut hard = taints.iter().filter(keeps_away).peekable();
            hard.peek().is_some() && hard.all(|taint| tolerated(&taint))
        })
        .count()
}

/// Whether the scheduler accepts a taint: no key matches every key, no effect every effect.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let given = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
    let effect = given(&toleration.effect).is_none_or(|effect| effect == taint.effect);
    let key = given(&toleration.key);
    let exists = toleration.operator.as_deref() == Some("Exists");
    let value = exists || given(&toleration.value) == given(&taint.value);
    effect && key.map_or(exists, |key| key == taint.key) && value
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn count(nodes: &Value, tolerations: &Value) -> usize {
        let nodes: Vec<Vec<Taint>> = serde_json::from_value(nodes.clone()).expect("taints");
        let tolerations: Vec<Toleration> = serde_json::from_value(tolerations.clone()).expect("tolerations");
        dedicated(nodes.iter().map(Vec::as_slice), &tolerations)
    }

    // nmstate#75, the counting
    #[test]
    fn dedicated_nodes_have_tolerated_taints() {
        let control_plane = json!({ "key": "node-role.kubernetes.io/control-plane", "effect": "NoSchedule" });
        let usual = json!([
            { "key": "node-role.kubernetes.io/control-plane", "operator": "Exists", "effect": "NoSchedule" },
            { "key": "node-role.kubernetes.io/master", "operator": "Exists", "effect": "NoSchedule" },
        ]);
        assert_eq!(count(&json!([[control_plane], []]), &usual), 1);
        assert_eq!(count(&json!([[control_plane], [control_plane]]), &usual), 2);
        assert_eq!(count(&json!([[], []]), &usual), 0);
        let infra = json!({ "key": "infra", "value": "reserved", "effect": "NoExecute" });
        assert_eq!(count(&json!([[infra], [infra]]), &usual), 0);
        let equal = json!([{ "key": "infra", "value": "reserved", "effect": "NoExecute" }]);
        assert_eq!(count(&json!([[infra], [infra]]), &equal), 2);
        let other = json!([{ "key": "infra", "value": "other", "effect": "NoExecute" }]);
        assert_eq!(count(&json!([[infra]]), &other), 0);
        // Two taints of a node count once, and a second one without toleration excludes the node.
        assert_eq!(count(&json!([[infra, control_plane]]), &equal), 0);
        let all = json!([{ "operator": "Exists" }]);
        assert_eq!(count(&json!([[infra, control_plane], [infra]]), &all), 2);
        // A preferred effect neither sets a node aside nor repels pods.
        let preferred = json!({ "key": "spot", "effect": "PreferNoSchedule" });
        assert_eq!(count(&json!([[preferred], [infra, preferred]]), &equal), 1);
        // A node that is not ready for a while is still set aside.
        let not_ready = json!({ "key": "node.kubernetes.io/not-ready", "effect": "NoExecute" });
        assert_eq!(count(&json!([[not_ready], [infra, not_ready]]), &equal), 1);
    }
}
