//! Operands §3.

use super::*;

fn plugins(native: bool, scc: bool, bin_dir: &str) -> Value {
    let mut container = json!({
        "name": "cni-plugins",
        "image": "plugins:1",
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/bash", "-ce", "the script"],
        "resources": requests(),
        "securityContext": { "privileged": true, "readOnlyRootFilesystem": true },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{ "name": "cnibin", "mountPath": "/opt/cni/bin" }, { "name": "tmp", "mountPath": "/tmp" }],
    });
    if native {
        container["image"] = json!("weft:1");
        container["command"] = json!([
            "/weft",
            "install-plugins",
            "--to",
            "/opt/cni/bin",
            "--host-dir",
            bin_dir,
            "bridge",
            "tuning",
        ]);
        container["startupProbe"] = json!({
            "exec": { "command": [
                "/weft", "install-plugins", "--check", "--to", "/opt/cni/bin", "--host-dir", bin_dir, "bridge", "tuning",
            ] },
            "periodSeconds": 1,
            "failureThreshold": 300,
        });
    }
    let mut pod = json!({
        "priorityClassName": "system-cluster-critical",
        "containers": [container],
        "volumes": [{ "name": "cnibin", "hostPath": { "path": bin_dir } }, { "name": "tmp", "emptyDir": {} }],
    });
    if native {
        pod["automountServiceAccountToken"] = json!(false);
    }
    place(&mut pod);
    let mut annotations = json!({
        "description": "LinuxBridge installs 'bridge' CNI on cluster nodes, so it can be later used to attach Pods/VMs to Linux bridges",
    });
    if scc {
        pod["serviceAccountName"] = json!("linux-bridge");
        annotations["openshift.io/required-scc"] = json!("linux-bridge");
    }
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {
            "name": "kube-cni-linux-bridge-plugin", "namespace": "addons",
            "labels": { "tier": "node", "app": "cni-linux-bridge-plugin" },
        },
        "spec": {
            "selector": { "matchLabels": { "name": "kube-cni-linux-bridge-plugin" } },
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "10%" } },
            "template": {
                "metadata": {
                    "labels": { "name": "kube-cni-linux-bridge-plugin", "tier": "node", "app": "cni-plugins" },
                    "annotations": annotations,
                },
                "spec": pod,
            },
        },
    })
}

fn marker(native: bool) -> Value {
    let probe = |initial: u32, period: u32| {
        json!({
            "httpGet": { "path": "/healthz", "port": "healthport" },
            "initialDelaySeconds": initial, "periodSeconds": period,
        })
    };
    let eager = json!({ "httpGet": { "path": "/healthz", "port": "healthport" }, "periodSeconds": 10 });
    let mut container = json!({
        "name": "bridge-marker",
        "image": "marker:1",
        "imagePullPolicy": "IfNotPresent",
        "args": ["-node-name", "$(NODE_NAME)"],
        "env": [{ "name": "NODE_NAME", "valueFrom": field("spec.nodeName") }],
        "resources": requests(),
        "ports": [{ "name": "healthport", "containerPort": 8081, "protocol": "TCP" }],
        "readinessProbe": probe(5, 10),
        "livenessProbe": probe(10, 20),
        "securityContext": { "readOnlyRootFilesystem": true },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{ "name": "tmp", "mountPath": "/tmp" }],
    });
    if native {
        container["image"] = json!("weft:1");
        container["command"] = json!(["/weft", "bridge-marker"]);
        container["securityContext"] = json!({
            "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"] }, "seccompProfile": { "type": "RuntimeDefault" },
        });
        container["readinessProbe"] = eager.clone();
        container["livenessProbe"] = eager;
    }
    let mut pod = json!({
        "hostNetwork": true,
        "serviceAccountName": "bridge-marker",
        "priorityClassName": "system-node-critical",
        "securityContext": { "runAsNonRoot": true, "runAsUser": 1001 },
        "containers": [container],
        "volumes": [{ "name": "tmp", "emptyDir": {} }],
    });
    place(&mut pod);
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {
            "name": "bridge-marker", "namespace": "addons", "labels": { "tier": "node", "app": "bridge-marker" },
        },
        "spec": {
            "selector": { "matchLabels": { "name": "bridge-marker" } },
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "10%" } },
            "template": {
                "metadata": {
                    "labels": { "tier": "node", "app": "bridge-marker", "name": "bridge-marker" },
                    "annotations": {
                        "description": "Bridge marker exposes network bridges available on nodes as node resources",
                        "openshift.io/required-scc": "bridge-marker",
                    },
                },
                "spec": pod,
            },
        },
    })
}

fn marker_account(native: bool) -> [Value; 3] {
    let rules = if native {
        json!([
            { "apiGroups": [""], "resources": ["nodes"], "verbs": ["get"] },
            { "apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"] },
        ])
    } else {
        json!([{ "apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["get", "update", "patch"] }])
    };
    [
        cluster_role("bridge-marker-cr", &rules),
        binding(
            "ClusterRoleBinding",
            "bridge-marker-crb",
            "bridge-marker-cr",
            "bridge-marker",
        ),
        service_account("bridge-marker"),
    ]
}

fn render(setting: Setting) -> Vec<Value> {
    let mut objects = setting.render("linuxBridge", json!({ "linuxBridge": {} }));
    for object in &mut objects {
        if object["metadata"]["name"] == "kube-cni-linux-bridge-plugin" && !setting.native {
            let script = &mut object["spec"]["template"]["spec"]["containers"][0]["command"][2];
            let text = script.as_str().expect("a script");
            // The script itself is tested beside its source.
            let bin_dir = if setting.openshift4 {
                "/var/lib/cni/bin"
            } else {
                "/opt/cni/bin"
            };
            assert!(text.starts_with(&format!("host_dir={bin_dir}\n")), "{text}");
            *script = json!("the script");
        }
    }
    objects
}

// operands#5, the objects
#[test]
fn linux_bridge_is_two_daemon_sets_and_an_account() {
    for native in [false, true] {
        let mut expected = vec![
            namespace(),
            plugins(native, false, "/opt/cni/bin"),
            marker(native),
        ];
        expected.extend(marker_account(native));
        assert_objects(
            &render(Setting {
                native,
                ..Setting::default()
            }),
            &expected,
        );
    }
}

// operands#6, operands#29
#[test]
fn linux_bridge_with_scc_has_constraints_for_both_workloads() {
    let for_plugins = json!({
        "apiVersion": "security.openshift.io/v1", "kind": "SecurityContextConstraints",
        "metadata": { "name": "linux-bridge" },
        "allowPrivilegedContainer": true, "allowHostDirVolumePlugin": true,
        "allowHostIPC": false, "allowHostNetwork": false, "allowHostPID": false, "allowHostPorts": false,
        "readOnlyRootFilesystem": true, "runAsUser": { "type": "RunAsAny" },
        "seLinuxContext": { "type": "MustRunAs", "seLinuxOptions": { "type": "spc_t" } },
        "volumes": ["hostPath", "configMap", "secret", "emptyDir"],
    });
    let for_marker = json!({
        "apiVersion": "security.openshift.io/v1", "kind": "SecurityContextConstraints",
        "metadata": { "name": "bridge-marker" },
        "allowHostNetwork": true, "allowHostPorts": true,
        "allowHostDirVolumePlugin": false, "allowPrivilegedContainer": false,
        "allowHostIPC": false, "allowHostPID": false,
        "readOnlyRootFilesystem": true, "runAsUser": { "type": "MustRunAsNonRoot" },
        "seLinuxContext": { "type": "MustRunAs" }, "volumes": ["configMap", "emptyDir", "projected"],
    });
    for native in [false, true] {
        let mut expected = vec![namespace(), service_account("linux-bridge"), for_plugins.clone()];
        expected.extend(use_of("linux-bridge"));
        expected.extend([plugins(native, true, "/opt/cni/bin"), marker(native)]);
        expected.extend(marker_account(native));
        let mut for_marker = for_marker.clone();
        if native {
            // Constraints without a list refuse pods that name a profile.
            for_marker["seccompProfiles"] = json!(["runtime/default"]);
        }
        expected.push(for_marker);
        expected.extend(use_of("bridge-marker"));
        assert_objects(
            &render(Setting {
                native,
                scc: true,
                ..Setting::default()
            }),
            &expected,
        );
    }
}

#[test]
fn linux_bridge_on_openshift_uses_its_directory() {
    for native in [false, true] {
        let objects = render(Setting {
            native,
            openshift4: true,
            ..Setting::default()
        });
        assert_objects(&objects[1..2], &[plugins(native, false, "/var/lib/cni/bin")]);
    }
}

#[test]
fn preserve_default_vlan_is_passed_to_installer() {
    let command = |spec: Value| {
        let setting = Setting {
            native: true,
            ..Setting::default()
        };
        let objects = setting.render("linuxBridge", json!({ "linuxBridge": spec }));
        let container = &objects[1]["spec"]["template"]["spec"]["containers"][0];
        let words = container["command"].as_array().expect("a command").clone();
        let probe = container["startupProbe"]["exec"]["command"].clone();
        (words, probe.as_array().expect("a command").clone())
    };
    let flag = json!("--preserve-default-vlan");
    let (install, check) = command(json!({ "preserveDefaultVlan": true }));
    assert!(install.contains(&flag) && check.contains(&flag));
    for spec in [json!({}), json!({ "preserveDefaultVlan": false })] {
        let (install, check) = command(spec);
        assert!(!install.contains(&flag) && !check.contains(&flag));
    }
}

fn daemon() -> Value {
    let command = |more: &[&str]| {
        let places = ["--hostprefix", "/host", "--socketpath", "/run/cni/dhcp.sock"];
        json!([&["/weft", "dhcp-daemon"], more, &places].concat())
    };
    json!({
        "name": "dhcp-daemon",
        "image": "weft:1",
        "imagePullPolicy": "IfNotPresent",
        "command": command(&[]),
        "startupProbe": {
            "exec": { "command": command(&["--check"]) }, "periodSeconds": 1, "failureThreshold": 300,
        },
        "resources": requests(),
        "securityContext": { "privileged": true, "readOnlyRootFilesystem": true },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            { "name": "cni-run", "mountPath": "/host/run/cni" },
            { "name": "netns", "mountPath": "/host/run/netns", "mountPropagation": "HostToContainer" },
            { "name": "netns", "mountPath": "/host/var/run/netns", "mountPropagation": "HostToContainer" },
            { "name": "proc", "mountPath": "/host/proc" },
        ],
    })
}

// operands#34
#[test]
fn dhcp_adds_plugin_and_container_if_enabled() {
    let mut expected = plugins(true, false, "/opt/cni/bin");
    let pod = &mut expected["spec"]["template"]["spec"];
    let mut push = |pointer: &str, more: Value| {
        let list = pod.pointer_mut(pointer).and_then(Value::as_array_mut);
        list.expect("a list").push(more);
    };
    push("/containers/0/command", json!("dhcp"));
    push("/containers/0/startupProbe/exec/command", json!("dhcp"));
    push("/containers", daemon());
    for (name, path) in [
        ("cni-run", "/run/cni"),
        ("netns", "/run/netns"),
        ("proc", "/proc"),
    ] {
        push("/volumes", json!({ "name": name, "hostPath": { "path": path } }));
    }
    let native = Setting {
        native: true,
        ..Setting::default()
    };
    let found = native.render("linuxBridge", json!({ "linuxBridge": { "dhcp": true } }));
    assert_objects(&found[1..2], &[expected]);

    // Without the field the pods are unchanged, and also with another image of the plugins.
    let (given, without) = (json!({ "dhcp": false }), json!({}));
    for (setting, spec) in [(native, given), (Setting::default(), json!({ "dhcp": true }))] {
        assert_objects(
            &setting.render("linuxBridge", json!({ "linuxBridge": spec })),
            &setting.render("linuxBridge", json!({ "linuxBridge": without })),
        );
    }
}

#[test]
fn container_of_dhcp_daemon_is_reported() {
    assert_containers(
        true,
        json!({ "linuxBridge": { "dhcp": true } }),
        &[
            [
                "DaemonSet",
                "kube-cni-linux-bridge-plugin",
                "cni-plugins",
                "weft:1",
            ],
            [
                "DaemonSet",
                "kube-cni-linux-bridge-plugin",
                "dhcp-daemon",
                "weft:1",
            ],
            ["DaemonSet", "bridge-marker", "bridge-marker", "weft:1"],
        ],
    );
}
