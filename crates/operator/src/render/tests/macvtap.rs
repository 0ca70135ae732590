//! Operands §6.

use super::*;

fn config_map() -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "macvtap-deviceplugin-config", "namespace": "addons" },
        "data": { "DP_MACVTAP_CONF": "[]" },
    })
}

fn daemon_set(native: bool, bin_dir: &str, config: &str) -> Value {
    let mut install = json!({
        "name": "install-cni",
        "image": "macvtap:1",
        "imagePullPolicy": "IfNotPresent",
        "command": ["cp", "/macvtap-cni", "/host/opt/cni/bin/macvtap"],
        "resources": requests(),
        "securityContext": { "privileged": true },
        "volumeMounts": [{ "name": "cni", "mountPath": "/host/opt/cni/bin", "mountPropagation": "Bidirectional" }],
    });
    let mut plugin = json!({
        "name": "macvtap-cni",
        "image": "macvtap:1",
        "imagePullPolicy": "IfNotPresent",
        "command": ["/macvtap-deviceplugin", "-v", "3", "-logtostderr"],
        "envFrom": [{ "configMapRef": { "name": config } }],
        "resources": { "requests": { "cpu": "60m", "memory": "30Mi" } },
        "securityContext": { "privileged": true },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{ "name": "deviceplugin", "mountPath": "/var/lib/kubelet/device-plugins" }],
    });
    if native {
        install["image"] = json!("weft:1");
        install["command"] = json!(["/weft", "install-plugins", "--to", "/host/opt/cni/bin", "macvtap"]);
        install["securityContext"]["readOnlyRootFilesystem"] = json!(true);
        plugin["image"] = json!("weft:1");
        plugin["command"] = json!(["/weft", "macvtap-device-plugin"]);
        plugin["securityContext"]["readOnlyRootFilesystem"] = json!(true);
    }
    let mut pod = json!({
        "hostNetwork": true,
        "hostPID": true,
        "serviceAccountName": "macvtap-cni",
        "priorityClassName": "system-node-critical",
        "initContainers": [install],
        "containers": [plugin],
        "volumes": [
            { "name": "deviceplugin", "hostPath": { "path": "/var/lib/kubelet/device-plugins" } },
            { "name": "cni", "hostPath": { "path": bin_dir } },
        ],
    });
    if native {
        pod["automountServiceAccountToken"] = json!(false);
    }
    place(&mut pod);
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": { "name": "macvtap-cni", "namespace": "addons" },
        "spec": {
            "selector": { "matchLabels": { "name": "macvtap-cni" } },
            "template": { "metadata": { "labels": { "name": "macvtap-cni" } }, "spec": pod },
        },
    })
}

fn plain(native: bool) -> Vec<Value> {
    vec![
        namespace(),
        service_account("macvtap-cni"),
        config_map(),
        daemon_set(native, "/opt/cni/bin", "macvtap-deviceplugin-config"),
    ]
}

fn render(setting: Setting) -> Vec<Value> {
    setting.render("macvtap", json!({ "macvtap": {} }))
}

// operands#11
#[test]
fn macvtap_is_a_daemon_set_with_a_configuration() {
    for native in [false, true] {
        let setting = Setting {
            native,
            ..Setting::default()
        };
        assert_objects(&render(setting), &plain(native));
    }
}

// operands#11
#[test]
fn macvtap_with_scc_has_constraints_before_configuration() {
    let constraints = json!({
        "apiVersion": "security.openshift.io/v1", "kind": "SecurityContextConstraints",
        "metadata": { "name": "macvtap-cni" },
        "allowHostNetwork": true, "allowPrivilegedContainer": true, "allowHostDirVolumePlugin": true,
        "allowHostIPC": false, "allowHostPID": false, "allowHostPorts": false, "readOnlyRootFilesystem": false,
        "runAsUser": { "type": "RunAsAny" }, "seLinuxContext": { "type": "RunAsAny" }, "volumes": ["hostPath"],
    });
    for native in [false, true] {
        let mut expected = plain(native);
        let [role, binding] = use_of("macvtap-cni");
        expected.splice(2..2, [constraints.clone(), role, binding]);
        let setting = Setting {
            native,
            scc: true,
            ..Setting::default()
        };
        assert_objects(&render(setting), &expected);
    }
}

// operands#11
#[test]
fn other_macvtap_configuration_changes_pods_alone() {
    for native in [false, true] {
        let setting = Setting {
            native,
            ..Setting::default()
        };
        let found = setting.render("macvtap", json!({ "macvtap": { "devicePluginConfig": "mine" } }));
        let mut expected = plain(native);
        expected[3] = daemon_set(native, "/opt/cni/bin", "mine");
        assert_objects(&found, &expected);
    }
}

#[test]
fn macvtap_on_openshift_uses_its_directory() {
    // The cluster has OpenShift's API but no network configuration of OpenShift: with one, macvtap is refused.
    for native in [false, true] {
        let objects = render(Setting {
            native,
            openshift4: true,
            ..Setting::default()
        });
        let expected = daemon_set(native, "/var/lib/cni/bin", "macvtap-deviceplugin-config");
        assert_objects(&objects[3..], &[expected]);
    }
}

#[test]
fn containers_of_macvtap_are_reported() {
    for (native, image) in [(false, "macvtap:1"), (true, "weft:1")] {
        assert_containers(
            native,
            json!({ "macvtap": {} }),
            &[
                ["DaemonSet", "macvtap-cni", "install-cni", image],
                ["DaemonSet", "macvtap-cni", "macvtap-cni", image],
            ],
        );
    }
}
