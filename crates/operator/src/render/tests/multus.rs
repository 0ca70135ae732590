//! Operands §1.

use super::*;

fn definition() -> Value {
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": "network-attachment-definitions.k8s.cni.cncf.io" },
        "spec": {
            "group": "k8s.cni.cncf.io",
            "scope": "Namespaced",
            "names": {
                "plural": "network-attachment-definitions", "singular": "network-attachment-definition",
                "kind": "NetworkAttachmentDefinition", "shortNames": ["nad", "net-attach-def"],
            },
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": { "openAPIV3Schema": { "type": "object", "properties": {
                    "apiVersion": { "type": "string" },
                    "kind": { "type": "string" },
                    "metadata": { "type": "object" },
                    "spec": { "type": "object", "properties": { "config": { "type": "string" } } },
                } } },
            }],
        },
    })
}

fn config_map() -> Value {
    let config = json!({
        "chrootDir": "/hostroot", "cniVersion": "0.3.1", "logLevel": "verbose", "logToStderr": true,
        "cniConfigDir": "/host/etc/cni/net.d", "multusAutoconfigDir": "/host/etc/cni/net.d",
        "multusConfigFile": "auto", "socketDir": "/host/run/multus/",
    });
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": "multus-daemon-config", "namespace": "addons", "labels": { "tier": "node", "app": "multus" },
        },
        "data": { "daemon-config.json": config },
    })
}

/// Parses the JSON text in the ConfigMap for the comparison.
fn parsed(mut config_map: Value) -> Value {
    let config = &mut config_map["data"]["daemon-config.json"];
    *config = serde_json::from_str(config.as_str().expect("text")).expect("JSON");
    config_map
}

fn daemon_set(native: bool, conf_dir: &str, bin_dir: &str) -> Value {
    let mount = |name: &str, path: &str| json!({ "name": name, "mountPath": path });
    let propagated = |name: &str, path: &str, how: &str| json!({ "name": name, "mountPath": path, "mountPropagation": how });
    let host = |name: &str, path: &str| json!({ "name": name, "hostPath": { "path": path } });
    let mut install = json!({
        "name": "install-multus-binary",
        "image": "multus:4",
        "command": ["/usr/src/multus-cni/bin/install_multus", "-d", "/host/opt/cni/bin", "-t", "thick"],
        "resources": requests(),
        "securityContext": { "privileged": true },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [propagated("cnibin", "/host/opt/cni/bin", "Bidirectional")],
    });
    let mut daemon = json!({
        "name": "kube-multus",
        "image": "multus:4",
        "imagePullPolicy": "IfNotPresent",
        "command": ["/usr/src/multus-cni/bin/multus-daemon"],
        "env": [{ "name": "MULTUS_NODE_NAME", "valueFrom": field("spec.nodeName") }],
        "lifecycle": { "preStop": { "exec": {
            "command": ["/bin/sh", "-c", "rm -rf /host/etc/cni/net.d/00-multus.conf /host/var/lib/cni/*"],
        } } },
        "resources": requests(),
        "securityContext": { "privileged": true },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [
            mount("cni", "/host/etc/cni/net.d"),
            mount("cnibin", "/opt/cni/bin"),
            mount("host-run", "/host/run"),
            mount("host-var-lib-cni-multus", "/var/lib/cni/multus"),
            propagated("host-var-lib-kubelet", "/var/lib/kubelet", "HostToContainer"),
            mount("host-run-k8s-cni-cncf-io", "/run/k8s.cni.cncf.io"),
            propagated("host-run-netns", "/run/netns", "HostToContainer"),
            { "name": "multus-daemon-config", "mountPath": "/etc/cni/net.d/multus.d", "readOnly": true },
            propagated("hostroot", "/hostroot", "HostToContainer"),
            mount("multus-conf-dir", "/etc/cni/multus/net.d"),
        ],
    });
    if native {
        install["image"] = json!("weft:1");
        install["imagePullPolicy"] = json!("IfNotPresent");
        install["command"] = json!(["/weft", "install-multus", "--to", "/host/opt/cni/bin"]);
        install["securityContext"]["readOnlyRootFilesystem"] = json!(true);
        daemon["image"] = json!("weft:1");
        daemon["command"] = json!(["/weft", "multus-daemon"]);
        daemon["securityContext"]["readOnlyRootFilesystem"] = json!(true);
        daemon["startupProbe"] = json!({
            "exec": { "command": ["/weft", "multus-daemon", "--check"] }, "periodSeconds": 1, "failureThreshold": 300,
        });
        daemon
            .as_object_mut()
            .expect("a container")
            .shift_remove("lifecycle");
    }
    let mut pod = json!({
        "hostNetwork": true,
        "hostPID": true,
        "serviceAccountName": "multus",
        "terminationGracePeriodSeconds": 10,
        "priorityClassName": "system-cluster-critical",
        "initContainers": [install],
        "containers": [daemon],
        "volumes": [
            host("cni", conf_dir),
            host("cnibin", bin_dir),
            host("hostroot", "/"),
            { "name": "multus-daemon-config", "configMap": {
                "name": "multus-daemon-config",
                "items": [{ "key": "daemon-config.json", "path": "daemon-config.json" }],
            } },
            host("host-run", "/run"),
            host("host-var-lib-cni-multus", "/var/lib/cni/multus"),
            host("host-var-lib-kubelet", "/var/lib/kubelet"),
            host("host-run-k8s-cni-cncf-io", "/run/k8s.cni.cncf.io"),
            host("host-run-netns", "/run/netns/"),
            host("multus-conf-dir", "/etc/cni/multus/net.d"),
        ],
    });
    place(&mut pod);
    json!({
        "apiVersion": "apps/v1", "kind": "DaemonSet",
        "metadata": {
            "name": "multus", "namespace": "addons",
            "labels": { "tier": "node", "app": "multus", "name": "multus" },
        },
        "spec": {
            "selector": { "matchLabels": { "name": "kube-multus-ds-amd64" } },
            "updateStrategy": { "type": "RollingUpdate" },
            "template": {
                "metadata": { "labels": { "tier": "node", "app": "multus", "name": "kube-multus-ds-amd64" } },
                "spec": pod,
            },
        },
    })
}

fn plain(native: bool) -> Vec<Value> {
    let rules = if native {
        json!([
            { "apiGroups": ["k8s.cni.cncf.io"], "resources": ["network-attachment-definitions"],
                "verbs": ["get", "list", "watch"] },
            { "apiGroups": [""], "resources": ["pods"], "verbs": ["get", "list", "watch"] },
            { "apiGroups": [""], "resources": ["pods/status"], "verbs": ["update"] },
            { "apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"] },
            { "apiGroups": ["resource.k8s.io"], "resources": ["resourceclaims", "resourceslices"],
                "verbs": ["get", "list"] },
            { "apiGroups": ["apps"], "resources": ["daemonsets"], "resourceNames": ["multus"], "verbs": ["get"] },
            { "apiGroups": [""], "resources": ["nodes"], "verbs": ["get"] },
        ])
    } else {
        json!([
            { "apiGroups": ["k8s.cni.cncf.io"], "resources": ["*"], "verbs": ["*"] },
            { "apiGroups": [""], "resources": ["pods", "pods/status"], "verbs": ["get", "list", "update", "watch"] },
            { "apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch", "update"] },
        ])
    };
    vec![
        namespace(),
        definition(),
        cluster_role("multus", &rules),
        binding("ClusterRoleBinding", "multus", "multus", "multus"),
        service_account("multus"),
        config_map(),
        daemon_set(native, "/etc/cni/net.d", "/opt/cni/bin"),
    ]
}

fn render(setting: Setting) -> Vec<Value> {
    let mut objects = setting.render("multus", json!({ "multus": {} }));
    for object in &mut objects {
        if object["kind"] == "ConfigMap" {
            *object = parsed(object.take());
        } else if object["kind"] == "CustomResourceDefinition" {
            *object = without_descriptions(object.take());
        }
    }
    objects
}

// operands#1
#[test]
fn multus_is_seven_objects_in_order() {
    for native in [false, true] {
        assert_objects(
            &render(Setting {
                native,
                ..Setting::default()
            }),
            &plain(native),
        );
    }
}

// operands#2
#[test]
fn multus_with_scc_has_three_more_objects() {
    let constraints = json!({
        "apiVersion": "security.openshift.io/v1", "kind": "SecurityContextConstraints",
        "metadata": { "name": "multus" },
        "allowPrivilegedContainer": true, "allowHostDirVolumePlugin": true, "allowHostNetwork": true,
        "readOnlyRootFilesystem": false, "allowHostIPC": false, "allowHostPID": false, "allowHostPorts": false,
        "runAsUser": { "type": "RunAsAny" }, "seLinuxContext": { "type": "RunAsAny" }, "volumes": ["*"],
    });
    for native in [false, true] {
        let mut expected = plain(native);
        expected.push(constraints.clone());
        expected.extend(use_of("multus"));
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

// operands#3, operator#47
#[test]
fn multus_on_openshift_has_no_objects() {
    for native in [false, true] {
        let setting = Setting {
            native,
            scc: true,
            openshift4: true,
            openshift_network: true,
            ..Setting::default()
        };
        assert_objects(&render(setting), &[]);
    }
}

// operands#36
#[test]
fn multus_isolates_namespaces_where_the_configuration_does() {
    let rendered = |multus: Value| {
        [false, true].map(|native| {
            let setting = Setting {
                native,
                ..Setting::default()
            };
            let objects = setting.render("multus", json!({ "multus": multus }));
            let of = |kind: &str| {
                let found = objects.iter().find(|object| object["kind"] == kind);
                found.expect("the object").clone()
            };
            (parsed(of("ConfigMap")), of("DaemonSet"))
        })
    };
    let usual = rendered(json!({}));
    for without in [
        json!({ "namespaceIsolation": false }),
        json!({ "namespaceIsolation": null, "globalNamespaces": ["shared"] }),
    ] {
        assert_eq!(rendered(without), usual);
    }
    let annotation = "networkaddonsoperator.network.kubevirt.io/multus-isolation";
    for (multus, keys, text) in [
        (
            json!({ "namespaceIsolation": true }),
            json!({ "namespaceIsolation": true }),
            r#"{"namespaceIsolation":true}"#,
        ),
        (
            json!({ "namespaceIsolation": true, "globalNamespaces": ["default", "shared"] }),
            json!({ "namespaceIsolation": true, "globalNamespaces": "default,shared" }),
            r#"{"globalNamespaces":"default,shared","namespaceIsolation":true}"#,
        ),
    ] {
        let mut expected = usual.clone();
        for (config_map, daemon_set) in &mut expected {
            for (key, value) in keys.as_object().expect("keys") {
                config_map["data"]["daemon-config.json"][key] = value.clone();
            }
            daemon_set["spec"]["template"]["metadata"]["annotations"] = json!({ annotation: text });
        }
        assert_eq!(rendered(multus), expected);
    }
}

#[test]
fn multus_on_openshift_uses_its_directories() {
    let objects = render(Setting {
        openshift4: true,
        ..Setting::default()
    });
    let expected = daemon_set(false, "/etc/kubernetes/cni/net.d", "/var/lib/cni/bin");
    assert_objects(&objects[6..], &[expected]);
}

#[test]
fn pull_policy_is_set_on_containers_that_have_one() {
    let policies = |native| {
        let setting = Setting {
            native,
            ..Setting::default()
        };
        let objects = setting.render("multus", json!({ "multus": {}, "imagePullPolicy": "Always" }));
        let pod = objects[6]["spec"]["template"]["spec"].clone();
        [
            pod["initContainers"][0].get("imagePullPolicy").cloned(),
            pod["containers"][0].get("imagePullPolicy").cloned(),
        ]
    };
    assert_eq!(policies(false), [None, Some(json!("Always"))]);
    assert_eq!(policies(true), [Some(json!("Always")), Some(json!("Always"))]);
}
