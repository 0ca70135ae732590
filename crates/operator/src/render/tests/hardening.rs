//! Privileges of Weft's containers, beside those of upstream's (operands §13.2).

use super::*;

/// A specification with all components that have programs of Weft.
fn ours() -> Value {
    json!({
        "multus": {}, "multusDynamicNetworks": {}, "linuxBridge": { "dhcp": true }, "kubeMacPool": {}, "ovs": {},
        "macvtap": {}, "nmstate": {}, "kubevirtIpamController": {},
    })
}

/// Names and pods of all workloads.
fn pods(setting: Setting) -> Vec<(String, Value)> {
    let groups = setting.with(ours(), |context| {
        super::super::render(context, &stamps::stamp()).expect("objects")
    });
    let objects = groups.into_iter().flat_map(|group| group.objects);
    let pod = |object: Value| {
        let pod = object.pointer("/spec/template/spec")?.clone();
        Some((object["metadata"]["name"].as_str()?.to_owned(), pod))
    };
    objects.filter_map(pod).collect()
}

/// Workload, container, security context of the pod, security context of the container.
fn contexts(native: bool) -> Vec<Value> {
    let setting = Setting {
        native,
        ..Setting::default()
    };
    let mut all = Vec::new();
    for (workload, pod) in pods(setting) {
        for list in ["initContainers", "containers"] {
            for container in pod[list].as_array().into_iter().flatten() {
                let own = &container["securityContext"];
                all.push(json!([workload, container["name"], pod["securityContext"], own]));
            }
        }
    }
    all
}

// operands#27
#[test]
fn native_containers_have_minimal_privileges() {
    let user = |user: u32| json!({ "runAsNonRoot": true, "runAsUser": user, "seccompProfile": { "type": "RuntimeDefault" } });
    let privileged = json!({ "privileged": true });
    let only_volumes = json!({ "privileged": true, "readOnlyRootFilesystem": true });
    let confined = json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
    let service = json!({
        "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] }, "readOnlyRootFilesystem": true,
    });
    let unprivileged = json!({
        "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] }, "readOnlyRootFilesystem": true,
        "seccompProfile": { "type": "RuntimeDefault" },
    });
    let root = json!({
        "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] }, "readOnlyRootFilesystem": true,
        "seccompProfile": { "type": "RuntimeDefault" },
        "runAsUser": 0, "seLinuxOptions": { "type": "spc_t" },
    });
    let root_with = |capability: &str| {
        let mut root = root.clone();
        root["capabilities"]["add"] = json!([capability]);
        root
    };
    let marker = json!({ "runAsNonRoot": true, "runAsUser": 1001 });
    let dynamic = "dynamic-networks-controller";
    let dynamic_set = "dynamic-networks-controller-ds";
    let plugins = "kube-cni-linux-bridge-plugin";
    let pool = "kubemacpool-mac-controller-manager";
    let ipam = "kubevirt-ipam-controller-manager";
    let image_user = json!({ "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } });
    assert_eq!(
        contexts(true),
        [
            json!(["multus", "install-multus-binary", null, only_volumes]),
            json!(["multus", "kube-multus", null, only_volumes]),
            json!([dynamic_set, dynamic, null, root]),
            json!([plugins, "cni-plugins", null, only_volumes]),
            json!([plugins, "dhcp-daemon", null, only_volumes]),
            json!(["bridge-marker", "bridge-marker", marker, unprivileged]),
            json!(["kubemacpool-cert-manager", "manager", user(107), service]),
            json!([pool, "manager", user(107), service]),
            json!(["ovs-cni-amd64", "ovs-cni-plugin", null, only_volumes]),
            json!(["ovs-cni-amd64", "ovs-cni-marker", null, root_with("DAC_OVERRIDE")]),
            json!(["macvtap-cni", "install-cni", null, only_volumes]),
            json!(["macvtap-cni", "macvtap-cni", null, only_volumes]),
            json!([ipam, "manager", user(65532), service]),
            json!(["nmstate-operator", "nmstate-operator", user(1001), service]),
        ]
    );
    // Upstream's programs may write to their root file system.
    let read_only = json!({ "readOnlyRootFilesystem": true });
    assert_eq!(
        contexts(false),
        [
            json!(["multus", "install-multus-binary", null, privileged]),
            json!(["multus", "kube-multus", null, privileged]),
            json!([dynamic_set, dynamic, null, privileged]),
            json!([plugins, "cni-plugins", null, only_volumes]),
            json!(["bridge-marker", "bridge-marker", marker, read_only]),
            json!(["kubemacpool-cert-manager", "manager", user(107), confined]),
            json!([pool, "manager", user(107), confined]),
            json!(["ovs-cni-amd64", "ovs-cni-plugin", null, privileged]),
            json!(["ovs-cni-amd64", "ovs-cni-marker", null, privileged]),
            json!(["macvtap-cni", "install-cni", null, privileged]),
            json!(["macvtap-cni", "macvtap-cni", null, privileged]),
            json!([ipam, "manager", image_user, confined]),
            // The image is Weft's own in either case.
            json!(["nmstate-operator", "nmstate-operator", user(1001), service]),
        ]
    );
}

// operands#28
#[test]
fn pods_without_api_access_have_no_token() {
    for (native, expected) in [
        (true, &["kube-cni-linux-bridge-plugin", "macvtap-cni"][..]),
        (false, &[]),
    ] {
        for scc in [false, true] {
            let setting = Setting {
                native,
                scc,
                ..Setting::default()
            };
            let without: Vec<_> = pods(setting)
                .into_iter()
                .filter(|(_, pod)| pod.get("automountServiceAccountToken") == Some(&json!(false)))
                .map(|(name, _)| name)
                .collect();
            assert_eq!(without, expected, "native: {native}, SCC: {scc}");
        }
    }
}
