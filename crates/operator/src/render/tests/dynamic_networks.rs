//! Operands §2.

use super::*;

const CRIO: &str = "/run/crio/crio.sock";
const CONTAINERD: &str = "/run/containerd/containerd.sock";

fn config_map(socket: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": "dynamic-networks-controller-config", "namespace": "addons",
            "labels": { "tier": "node", "app": "multus-dynamic-networks-controller" },
        },
        "data": { "dynamic-networks-config.json": {
            "criSocketPath": format!("/host{socket}"), "multusSocketPath": "/host/run/multus/multus.sock",
        } },
    })
}

fn daemon_set(native: bool, socket: &str) -> Value {
    let config = "/etc/dynamic-networks-controller/dynamic-networks-config.json";
    let socket_in_container = format!("/host{socket}");
    let curl = [
        "curl",
        "--fail",
        "--unix-socket",
        "/host/run/multus/multus.sock",
        "localhost/healthz",
    ];
    let mut probe = json!({ "exec": { "command": curl }, "initialDelaySeconds": 15, "periodSeconds": 5 });
    let mut multus_mount =
        json!({ "name": "multus-server-socket", "mountPath": "/host/run/multus/multus.sock" });
    let mut multus_volume = json!({ "path": "/run/multus/multus.sock", "type": "Socket" });
    let mut ready = probe.clone();
    if native {
        let check = |how: &str| json!({ "exec": { "command": ["/weft", "dynamic-networks", how] }, "periodSeconds": 5 });
        (probe, ready) = (check("--check"), check("--check=ready"));
        multus_mount["mountPath"] = json!("/host/run/multus");
        multus_volume = json!({ "path": "/run/multus", "type": "Directory" });
    }
    let mut container = json!({
        "name": "dynamic-networks-controller",
        "image": "dynamic:1",
        "imagePullPolicy": "IfNotPresent",
        "command": ["/dynamic-networks-controller"],
        "args": [format!("-config={config}"), "-v=5"],
        "env": [{ "name": "NODE_NAME", "valueFrom": field("spec.nodeName") }],
        "livenessProbe": probe,
        "readinessProbe": ready,
        "resources": { "requests": { "cpu": "100m", "memory": "50Mi" } },
        "securityContext": { "privileged": true },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            {
                "name": "dynamic-networks-controller-config-dir",
                "mountPath": "/etc/dynamic-networks-controller/", "readOnly": true,
            },
            multus_mount,
            { "name": "cri-socket", "mountPath": socket_in_container },
        ],
    });
    if native {
        container["image"] = json!("weft:1");
        container["command"] = json!(["/weft", "dynamic-networks"]);
        container["args"] = json!([format!("--config={config}")]);
        container["securityContext"] = json!({
            "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] }, "seccompProfile": { "type": "RuntimeDefault" },
            "runAsUser": 0, "seLinuxOptions": { "type": "spc_t" },
        });
        let mounts = container["volumeMounts"].as_array_mut().expect("mounts");
        mounts.push(json!({ "name": "run", "mountPath": "/run" }));
    }
    let labels = json!({
        "tier": "node", "app": "dynamic-networks-controller", "name": "dynamic-networks-controller",
    });
    let mut pod_labels = labels.clone();
    if native {
        pod_labels["allow-access-cluster-services"] = json!("");
    }
    let mut pod = json!({
        "serviceAccountName": "dynamic-networks-controller",
        "terminationGracePeriodSeconds": 10,
        "containers": [container],
        "volumes": [
            { "name": "dynamic-networks-controller-config-dir", "configMap": {
                "name": "dynamic-networks-controller-config",
                "items": [{ "key": "dynamic-networks-config.json", "path": "dynamic-networks-config.json" }],
            } },
            { "name": "multus-server-socket", "hostPath": multus_volume },
            { "name": "cri-socket", "hostPath": { "path": socket, "type": "Socket" } },
        ],
    });
    if native {
        let volumes = pod["volumes"].as_array_mut().expect("volumes");
        volumes.push(json!({ "name": "run", "emptyDir": {} }));
    }
    place(&mut pod);
    if !native {
        pod.as_object_mut().expect("a pod").shift_remove("nodeSelector");
    }
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": { "name": "dynamic-networks-controller-ds", "namespace": "addons", "labels": labels },
        "spec": {
            "selector": { "matchLabels": { "name": "dynamic-networks-controller" } },
            "updateStrategy": { "type": "RollingUpdate" },
            "template": { "metadata": { "labels": pod_labels }, "spec": pod },
        },
    })
}

fn expected(native: bool, socket: &str) -> Vec<Value> {
    let name = "dynamic-networks-controller";
    let mut rules = json!([
        {
            "apiGroups": ["k8s.cni.cncf.io"], "resources": ["network-attachment-definitions"],
            "verbs": ["get", "list", "watch"],
        },
        { "apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["get", "list", "update", "watch"] },
        { "apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"] },
    ]);
    if native {
        rules = json!([
            { "apiGroups": ["k8s.cni.cncf.io"], "resources": ["network-attachment-definitions"], "verbs": ["get"] },
            { "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"] },
            { "apiGroups": [""], "resources": ["pods/status"], "verbs": ["update"] },
            { "apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"] },
        ]);
    }
    vec![
        binding("ClusterRoleBinding", name, name, name),
        cluster_role(name, &rules),
        config_map(socket),
        daemon_set(native, socket),
        service_account(name),
    ]
}

/// Renders with these settings; the JSON text in the ConfigMap is parsed for the comparison.
fn render(setting: Setting, settings: &Value) -> Vec<Value> {
    let spec = json!({ "multus": {}, "multusDynamicNetworks": settings });
    let mut objects = setting.render("multusDynamicNetworks", spec);
    let config = &mut objects[2]["data"]["dynamic-networks-config.json"];
    *config = serde_json::from_str(config.as_str().expect("text")).expect("JSON");
    objects
}

// operands#4
#[test]
fn dynamic_networks_are_five_objects_in_order() {
    for native in [false, true] {
        // Security context constraints change nothing: OpenShift is not supported.
        for scc in [false, true] {
            let setting = Setting {
                native,
                scc,
                ..Setting::default()
            };
            assert_objects(&render(setting, &json!({})), &expected(native, CRIO));
        }
    }
}

// operands#4
#[test]
fn other_socket_changes_configuration_and_mounts() {
    for native in [false, true] {
        let setting = Setting {
            native,
            ..Setting::default()
        };
        let found = render(setting, &json!({ "hostCRISocketPath": CONTAINERD }));
        assert_objects(&found, &expected(native, CONTAINERD));
        let mounts = |objects: &[Value]| {
            let pod = &objects[3]["spec"]["template"]["spec"];
            [
                pod["volumes"].clone(),
                pod["containers"][0]["volumeMounts"].clone(),
            ]
        };
        let before = mounts(&render(setting, &json!({})));
        for (before, after) in before.iter().zip(mounts(&found)) {
            assert_ne!(*before, after, "the pods are rolled");
        }
    }
}

/// The scheduling constraints of the pods of multus and of dynamic networks.
fn placements(native: bool, workloads: &Value) -> [Vec<Option<Value>>; 2] {
    let mut spec = json!({ "multus": {}, "multusDynamicNetworks": {} });
    if !workloads.is_null() {
        spec["placementConfiguration"] = json!({ "workloads": workloads });
    }
    let setting = Setting {
        native,
        ..Setting::default()
    };
    ["multus", "multusDynamicNetworks"].map(|component| {
        let objects = setting.render(component, spec.clone());
        let daemon_set = objects.iter().find(|object| object["kind"] == "DaemonSet");
        let pod = &daemon_set.expect("a DaemonSet")["spec"]["template"]["spec"];
        let fields = ["nodeSelector", "affinity", "tolerations"];
        fields.map(|field| pod.get(field).cloned()).into()
    })
}

// operands#32
#[test]
fn dynamic_networks_have_placement_of_multus() {
    let toleration = json!({ "key": "a", "operator": "Exists" });
    let selected = json!({ "nodeSelector": { "a": "b" }, "tolerations": [toleration] });
    for native in [false, true] {
        for workloads in [&selected, &json!({})] {
            let [multus, dynamic] = placements(native, workloads);
            assert_eq!(dynamic, multus, "native: {native}, {workloads}");
        }
        let [_, dynamic] = placements(native, &selected);
        assert_eq!(dynamic[0], Some(json!({ "a": "b" })), "native: {native}");
    }
}

// operands#33
#[test]
fn dynamic_networks_with_upstream_image_have_no_default_node_selector() {
    let [multus, dynamic] = placements(true, &json!(null));
    assert_eq!(dynamic, multus);
    let [multus, dynamic] = placements(false, &json!(null));
    assert_eq!(multus[0], Some(json!({ "kubernetes.io/os": "linux" })));
    assert_eq!(dynamic[0], None);
    assert_eq!(dynamic[1..], multus[1..]);
}

#[test]
fn container_of_dynamic_networks_is_reported_after_those_of_multus() {
    for (native, multus, image) in [(false, "multus:4", "dynamic:1"), (true, "weft:1", "weft:1")] {
        assert_containers(
            native,
            json!({ "multus": {}, "multusDynamicNetworks": {} }),
            &[
                ["DaemonSet", "multus", "install-multus-binary", multus],
                ["DaemonSet", "multus", "kube-multus", multus],
                [
                    "DaemonSet",
                    "dynamic-networks-controller-ds",
                    "dynamic-networks-controller",
                    image,
                ],
            ],
        );
    }
}
