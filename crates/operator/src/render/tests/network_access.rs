//! Reachability of pods under a policy that denies all other traffic.

use super::*;

/// Pods with a network namespace of their own that need neither the API server nor the DNS.
const NEED_NOTHING: [&str; 1] = ["kube-cni-linux-bridge-plugin"];

/// Pods whose upstream image gets no additional label, because that would restart them at takeover.
const AS_ESTABLISHED: [&str; 1] = ["dynamic-networks-controller-ds"];

fn pods(object: &Value) -> Option<&Value> {
    object.pointer("/spec/template")
}

fn rendered(native: bool, openshift4: bool) -> Vec<Value> {
    let setting = Setting {
        native,
        openshift4,
        monitoring: true,
        ..Setting::default()
    };
    let groups = setting.with(all_components(), render_enabled);
    groups.into_iter().flat_map(|group| group.objects).collect()
}

/// Whether all selected labels are present.
fn selects(selector: &Value, labels: &Value) -> bool {
    let wanted = selector.as_object().into_iter().flatten();
    wanted
        .into_iter()
        .all(|(key, value)| labels.get(key) == Some(value))
}

// Case 76 of operator §16 in terms of objects. No test here can prove that packets pass where a policy denies
// everything else: docs/behaviour/not-provable.md.
#[test]
fn policies_allow_egress_of_clients_and_ingress_of_servers() {
    for (native, openshift4) in [(false, false), (true, false), (false, true), (true, true)] {
        let objects = rendered(native, openshift4);
        let of_kind = |kind: &'static str| objects.iter().filter(move |object| object["kind"] == kind);
        // Egress: both policies for egress select this label.
        for name in [
            "cnao-allow-egress-to-cluster-api",
            "cnao-allow-egress-to-cluster-dns",
        ] {
            let policy = of_kind("NetworkPolicy").find(|policy| policy["metadata"]["name"] == name);
            assert_eq!(
                policy.expect("a policy")["spec"]["podSelector"]["matchExpressions"],
                json!([{ "key": "allow-access-cluster-services", "operator": "Exists" }])
            );
        }
        let mut seen = 0;
        for object in &objects {
            let Some(template) = pods(object) else { continue };
            let name = object["metadata"]["name"].as_str().expect("a name");
            seen += 1;
            // Policies do not apply to the network of the host.
            let apart = template["spec"]["hostNetwork"] == true
                || NEED_NOTHING.contains(&name)
                || (!native && AS_ESTABLISHED.contains(&name));
            let labelled = template["metadata"]["labels"]
                .get("allow-access-cluster-services")
                .is_some();
            assert!(apart != labelled, "{name}, native: {native}");
        }
        assert_eq!(seen, 11);
        // Ingress: the targets of all Services, and the DNS.
        let mut ways = Vec::new();
        for service in of_kind("Service") {
            let selector = &service["spec"]["selector"];
            for port in service["spec"]["ports"].as_array().expect("ports") {
                // The operator's installation allows ingress to its own pods.
                if port["targetPort"].is_u64() {
                    ways.push((selector.clone(), port["targetPort"].clone()));
                }
            }
        }
        assert_eq!(
            ways.len(),
            3,
            "two webhooks and the metrics of the pool: {ways:?}"
        );
        ways.push((json!({ "k8s-app": "secondary-dns" }), json!(5353)));
        for (selector, port) in ways {
            let served = objects
                .iter()
                .filter_map(pods)
                .find(|template| selects(&selector, &template["metadata"]["labels"]));
            let labels =
                &served.unwrap_or_else(|| panic!("no Service selects {selector}"))["metadata"]["labels"];
            let open = of_kind("NetworkPolicy").any(|policy| {
                let spec = &policy["spec"];
                let rules = spec["ingress"].as_array().into_iter().flatten();
                let ports: Vec<_> = rules
                    .filter_map(|rule| rule["ports"].as_array().cloned())
                    .flatten()
                    .collect();
                selects(&spec["podSelector"]["matchLabels"], labels)
                    && spec["podSelector"]["matchLabels"].is_object()
                    && ports.iter().any(|allowed| allowed["port"] == port)
            });
            assert!(open, "no ingress is allowed at {port} of {selector}");
        }
    }
}
