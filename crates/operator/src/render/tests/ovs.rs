//! Operands §5.

use std::{fs, process::Command};

use super::*;

fn daemon_set(native: bool, bin_dir: &str) -> Value {
    let mut install = json!({
        "name": "ovs-cni-plugin",
        "image": "ovs:1",
        "imagePullPolicy": "IfNotPresent",
        "command": ["/bin/sh", "-c"],
        "args": ["cp /ovs /host/opt/cni/bin/ovs && \
                  cp /ovs-mirror-producer /host/opt/cni/bin/ovs-mirror-producer && \
                  cp /ovs-mirror-consumer /host/opt/cni/bin/ovs-mirror-consumer\n"],
        "resources": requests(),
        "securityContext": { "privileged": true },
        "volumeMounts": [{ "name": "cnibin", "mountPath": "/host/opt/cni/bin" }],
    });
    let mut marker = json!({
        "name": "ovs-cni-marker",
        "image": "ovs:1",
        "imagePullPolicy": "IfNotPresent",
        "command": ["/marker"],
        "args": [
            "-v", "3", "-logtostderr", "-node-name", "$(NODE_NAME)",
            "-ovs-socket", "unix:/host/var/run/openvswitch/db.sock", "-healthcheck-interval=60",
        ],
        "env": [{ "name": "NODE_NAME", "valueFrom": field("spec.nodeName") }],
        "livenessProbe": {
            "exec": { "command": ["sh", "-c", "find /tmp/healthy -mmin -2 | grep -q /tmp/healthy"] },
            "initialDelaySeconds": 60, "periodSeconds": 60,
        },
        "resources": { "requests": { "cpu": "10m", "memory": "10Mi" } },
        "securityContext": { "privileged": true },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{ "name": "ovs-var-run", "mountPath": "/host/var/run/openvswitch" }],
    });
    if native {
        install["image"] = json!("weft:1");
        install["command"] = json!([
            "/weft",
            "install-plugins",
            "--to",
            "/host/opt/cni/bin",
            "ovs",
            "ovs-mirror-producer",
            "ovs-mirror-consumer",
        ]);
        install.as_object_mut().expect("a container").shift_remove("args");
        install["securityContext"]["readOnlyRootFilesystem"] = json!(true);
        marker["image"] = json!("weft:1");
        marker["command"] = json!(["/weft", "ovs-marker"]);
        marker["livenessProbe"]["exec"]["command"] = json!(["/weft", "ovs-marker", "--check"]);
        marker["securityContext"] = json!({
            "readOnlyRootFilesystem": true, "allowPrivilegeEscalation": false,
            "capabilities": { "drop": ["ALL"], "add": ["DAC_OVERRIDE"] },
            "seccompProfile": { "type": "RuntimeDefault" },
            "runAsUser": 0, "seLinuxOptions": { "type": "spc_t" },
        });
        let mounts = marker["volumeMounts"].as_array_mut().expect("mounts");
        mounts.push(json!({ "name": "tmp", "mountPath": "/tmp" }));
    }
    let mut pod = json!({
        "hostNetwork": true,
        "serviceAccountName": "ovs-cni-marker",
        "priorityClassName": "system-node-critical",
        "initContainers": [install],
        "containers": [marker],
        "volumes": [
            { "name": "cnibin", "hostPath": { "path": bin_dir } },
            { "name": "ovs-var-run", "hostPath": { "path": "/var/run/openvswitch" } },
        ],
    });
    if native {
        let volumes = pod["volumes"].as_array_mut().expect("volumes");
        volumes.push(json!({ "name": "tmp", "emptyDir": {} }));
    }
    place(&mut pod);
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {
            "name": "ovs-cni-amd64", "namespace": "addons", "labels": { "tier": "node", "app": "ovs-cni" },
        },
        "spec": {
            "selector": { "matchLabels": { "app": "ovs-cni" } },
            "updateStrategy": { "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "10%" } },
            "template": {
                "metadata": {
                    "labels": { "tier": "node", "app": "ovs-cni" },
                    "annotations": { "description": "OVS CNI allows users to attach their Pods/VMs to Open vSwitch \
                                                     bridges available on nodes" },
                },
                "spec": pod,
            },
        },
    })
}

fn plain(native: bool) -> Vec<Value> {
    let rules = if native {
        json!([
            { "apiGroups": [""], "resources": ["nodes"], "verbs": ["get"] },
            { "apiGroups": [""], "resources": ["nodes/status"], "verbs": ["patch"] },
        ])
    } else {
        json!([
            { "apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["get", "update", "patch"] },
        ])
    };
    vec![
        namespace(),
        daemon_set(native, "/opt/cni/bin"),
        cluster_role("ovs-cni-marker-cr", &rules),
        binding(
            "ClusterRoleBinding",
            "ovs-cni-marker-crb",
            "ovs-cni-marker-cr",
            "ovs-cni-marker",
        ),
        service_account("ovs-cni-marker"),
    ]
}

/// The script of upstream's init container.
fn script() -> String {
    let objects = Setting::default().render("ovs", json!({ "ovs": {} }));
    let script = objects[1].pointer("/spec/template/spec/initContainers/0/args/0");
    script.and_then(Value::as_str).expect("a script").to_owned()
}

fn render(setting: Setting) -> Vec<Value> {
    setting.render("ovs", json!({ "ovs": {} }))
}

// operands#10
#[test]
fn open_vswitch_is_a_daemon_set_and_an_account() {
    for native in [false, true] {
        let setting = Setting {
            native,
            ..Setting::default()
        };
        assert_objects(&render(setting), &plain(native));
    }
}

// operands#10, operands#29
#[test]
fn ovs_with_scc_has_constraints_for_marker() {
    let constraints = json!({
        "apiVersion": "security.openshift.io/v1", "kind": "SecurityContextConstraints",
        "metadata": { "name": "ovs-cni-marker" },
        "allowHostNetwork": true, "allowPrivilegedContainer": true, "allowHostDirVolumePlugin": true,
        "runAsUser": { "type": "RunAsAny" }, "seLinuxContext": { "type": "RunAsAny" },
    });
    for native in [false, true] {
        let mut expected = plain(native);
        let mut constraints = constraints.clone();
        if native {
            // Constraints without lists refuse pods that name either.
            constraints["seccompProfiles"] = json!(["runtime/default"]);
            constraints["allowedCapabilities"] = json!(["DAC_OVERRIDE"]);
        }
        expected.push(constraints);
        expected.extend(use_of("ovs-cni-marker"));
        let setting = Setting {
            native,
            scc: true,
            ..Setting::default()
        };
        assert_objects(&render(setting), &expected);
    }
}

// operands#10, the script
#[test]
fn install_script_copies_three_plugins_or_fails() {
    let plugins = ["ovs", "ovs-mirror-producer", "ovs-mirror-consumer"];
    let root = tempfile::tempdir().expect("a directory");
    let (image, host) = (root.path().join("image"), root.path().join("host"));
    for directory in [&image, &host] {
        fs::create_dir(directory).expect("a directory");
    }
    for plugin in plugins {
        fs::write(image.join(plugin), format!("new {plugin}")).expect("a file");
    }
    fs::write(host.join("ovs"), "old ovs").expect("a file");
    let script = script()
        .replace("cp /", &format!("cp {}/", image.display()))
        .replace("/host/opt/cni/bin", &host.display().to_string());
    let run = || {
        let output = Command::new("/bin/sh").args(["-c", &script]).output();
        output.expect("a shell").status.success()
    };
    assert!(run());
    for plugin in plugins {
        let copy = fs::read_to_string(host.join(plugin)).expect("a copy");
        assert_eq!(copy, format!("new {plugin}"));
    }
    for missing in plugins {
        fs::remove_file(image.join(missing)).expect("removed");
        assert!(!run(), "without {missing}");
        fs::write(image.join(missing), "back").expect("a file");
    }
}

#[test]
fn ovs_on_openshift_uses_its_directory() {
    for native in [false, true] {
        let objects = render(Setting {
            native,
            openshift4: true,
            ..Setting::default()
        });
        assert_objects(&objects[1..2], &[daemon_set(native, "/var/lib/cni/bin")]);
    }
}

#[test]
fn containers_of_ovs_are_reported() {
    for (native, image) in [(false, "ovs:1"), (true, "weft:1")] {
        assert_containers(
            native,
            json!({ "ovs": {} }),
            &[
                ["DaemonSet", "ovs-cni-amd64", "ovs-cni-plugin", image],
                ["DaemonSet", "ovs-cni-amd64", "ovs-cni-marker", image],
            ],
        );
    }
}
