//! Operands §2.

use super::*;
use crate::components::multus_dynamic_networks::MultusDynamicNetworks;

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
    pod.as_object_mut().expect("a pod").shift_remove("nodeSelector");
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

/// Renders with these settings; the JSON text in the ConfigMap is parsed, to compare it by its meaning.
fn render(setting: Setting, settings: &Value) -> Vec<Value> {
    let spec = json!({ "multus": {}, "multusDynamicNetworks": settings });
    let mut objects = setting.render(&MultusDynamicNetworks, spec);
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
fn another_socket_changes_configuration_and_mounts() {
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

#[test]
fn a_placement_counts_but_for_its_node_selector() {
    let toleration = json!({ "key": "a", "operator": "Exists" });
    let placement = json!({ "workloads": { "nodeSelector": { "a": "b" }, "tolerations": [toleration] } });
    let spec = json!({ "multus": {}, "multusDynamicNetworks": {}, "placementConfiguration": placement });
    let objects = Setting::default().render(&MultusDynamicNetworks, spec);
    let pod = &objects[3]["spec"]["template"]["spec"];
    assert_eq!(pod.get("nodeSelector"), None);
    assert_eq!(pod["affinity"], json!({}));
    assert_eq!(pod["tolerations"], json!([toleration]));
}

#[test]
fn the_container_is_reported_after_those_of_multus() {
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
