//! The summary of operands, over all components and in both flavours.

use super::*;

fn objects(native: bool, spec: Value) -> (Vec<Value>, Vec<String>) {
    let setting = Setting {
        native,
        scc: true,
        monitoring: true,
        ..Setting::default()
    };
    let groups = setting.with(spec, render_enabled);
    let listed = containers(&groups).into_iter();
    let listed = listed.map(|c| format!("{} {} {}", c.parent_kind, c.parent_name, c.name));
    let listed = listed.collect();
    (
        groups.into_iter().flat_map(|group| group.objects).collect(),
        listed,
    )
}

fn workloads_of(objects: &[Value]) -> impl Iterator<Item = &Value> {
    objects
        .iter()
        .filter(|object| matches!(object["kind"].as_str(), Some("DaemonSet" | "Deployment")))
}

/// Each workload: kind, name, priority class and update strategy; its containers: name, requests, and whether the end
/// of the log becomes the termination message.
fn expected() -> Vec<Value> {
    let container = |name: &str, cpu: &str, memory: &str, termination_message: bool| {
        let policy = termination_message.then_some("FallbackToLogsOnError");
        json!([name, { "requests": { "cpu": cpu, "memory": memory } }, policy])
    };
    let rolling = json!({ "type": "RollingUpdate" });
    let tenth = json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "10%" } });
    let recreate = json!({ "type": "Recreate" });
    let (cluster, node) = ("system-cluster-critical", "system-node-critical");
    vec![
        json!([
            "DaemonSet",
            "multus",
            cluster,
            rolling,
            [
                container("install-multus-binary", "10m", "15Mi", true),
                container("kube-multus", "10m", "15Mi", true),
            ]
        ]),
        json!([
            "DaemonSet",
            "dynamic-networks-controller-ds",
            null,
            rolling,
            [container("dynamic-networks-controller", "100m", "50Mi", true),]
        ]),
        json!([
            "DaemonSet",
            "kube-cni-linux-bridge-plugin",
            cluster,
            tenth,
            [container("cni-plugins", "10m", "15Mi", true),]
        ]),
        json!([
            "DaemonSet",
            "bridge-marker",
            node,
            tenth,
            [container("bridge-marker", "10m", "15Mi", true)]
        ]),
        json!([
            "Deployment",
            "kubemacpool-cert-manager",
            cluster,
            recreate,
            [container("manager", "30m", "30Mi", true),]
        ]),
        json!([
            "Deployment",
            "kubemacpool-mac-controller-manager",
            cluster,
            recreate,
            [container("manager", "100m", "100Mi", true),]
        ]),
        json!([
            "DaemonSet",
            "ovs-cni-amd64",
            node,
            tenth,
            [
                container("ovs-cni-plugin", "10m", "15Mi", false),
                container("ovs-cni-marker", "10m", "10Mi", true),
            ]
        ]),
        json!([
            "DaemonSet",
            "macvtap-cni",
            node,
            null,
            [
                container("install-cni", "10m", "15Mi", false),
                container("macvtap-cni", "60m", "30Mi", true),
            ]
        ]),
        json!([
            "Deployment",
            "secondary-dns",
            cluster,
            null,
            [
                container("secondary-dns", "100m", "70Mi", true),
                container("status-monitor", "100m", "70Mi", true),
            ]
        ]),
        json!([
            "Deployment",
            "kubevirt-ipam-controller-manager",
            cluster,
            null,
            [container("manager", "10m", "128Mi", true),]
        ]),
        json!([
            "Deployment",
            "nmstate-operator",
            cluster,
            recreate,
            [container("nmstate-operator", "60m", "30Mi", true),]
        ]),
    ]
}

// operands#18, operands#19
#[test]
fn workloads_and_containers_equal_summary() {
    for native in [false, true] {
        let (objects, listed) = objects(native, all_components());
        let found: Vec<_> = workloads_of(&objects)
            .map(|object| {
                let (spec, pod) = (&object["spec"], &object["spec"]["template"]["spec"]);
                let list = |key: &str| pod[key].as_array().cloned().unwrap_or_default();
                let all = [list("initContainers"), list("containers")].concat();
                let containers: Vec<_> = all
                    .iter()
                    .map(|c| json!([c["name"], c["resources"], c["terminationMessagePolicy"]]))
                    .collect();
                let strategy = spec.get("updateStrategy").or(spec.get("strategy"));
                json!([
                    object["kind"],
                    object["metadata"]["name"],
                    pod["priorityClassName"],
                    strategy,
                    containers
                ])
            })
            .collect();
        for (found, expected) in found.iter().zip(expected()) {
            assert_eq!(*found, expected, "native: {native}");
        }
        assert_eq!(found.len(), expected().len());
        let expected: Vec<_> = expected()
            .iter()
            .flat_map(|row| {
                let text = |value: &Value| value.as_str().expect("a text").to_owned();
                let containers = row[4].as_array().cloned().unwrap_or_default().into_iter();
                let (kind, name) = (text(&row[0]), text(&row[1]));
                containers
                    .map(move |container| format!("{kind} {name} {}", container[0].as_str().expect("a name")))
                    .collect::<Vec<_>>()
            })
            .collect();
        assert_eq!(listed, expected, "status.containers, native: {native}");
    }
}

// operands#16
#[test]
fn placements_are_set_on_workloads_of_summary() {
    let placement = |name: &str| json!({ "nodeSelector": { "for": name }, "tolerations": [{ "key": name, "operator": "Exists" }] });
    let mut spec = all_components();
    spec["placementConfiguration"] =
        json!({ "infra": placement("infra"), "workloads": placement("workloads") });
    for native in [false, true] {
        for object in workloads_of(&objects(native, spec.clone()).0) {
            let name = object["metadata"]["name"].as_str().expect("a name");
            let part = if object["kind"] == "DaemonSet" {
                "workloads"
            } else {
                "infra"
            };
            let pod = &object["spec"]["template"]["spec"];
            assert_eq!(pod["tolerations"], placement(part)["tolerations"], "{name}");
            assert_eq!(pod["nodeSelector"], placement(part)["nodeSelector"], "{name}");
        }
    }
}

// operands#17
#[test]
fn objects_of_all_components_are_labelled_and_owned() {
    for native in [false, true] {
        for object in objects(native, all_components()).0 {
            let of_the_pool = object["metadata"]["labels"]["control-plane"] == "mac-controller-manager";
            if !of_the_pool {
                stamps::assert_stamped(&object);
                continue;
            }
            let what = &object["metadata"]["name"];
            let version = "networkaddonsoperator.network.kubevirt.io/version";
            assert_eq!(
                object["metadata"]["labels"][version], "Avalanches_of_water",
                "{what}"
            );
            let mut labels = vec![&object["metadata"]["labels"]];
            labels.extend(object.pointer("/spec/template/metadata/labels"));
            for labels in labels {
                assert_eq!(labels["prometheus.cnao.io"], "false", "{what}");
                assert_eq!(labels["app.kubernetes.io/managed-by"], "cnao-operator", "{what}");
                assert_eq!(labels["app.kubernetes.io/component"], "network", "{what}");
            }
            let owners = object["metadata"]["ownerReferences"].as_array().expect("owners");
            assert!(
                owners.len() == 1 && owners[0]["uid"] == "1-2-3",
                "{what}: {owners:?}"
            );
        }
    }
}

/// Host paths of the CNI directories and of the runtime's socket, by workload and volume, and their paths in
/// containers, by container and volume.
fn platform_paths(objects: &[Value]) -> Vec<String> {
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let is_one = |named: &&Value| {
        let names = ["cni", "cnibin", "cnibin-targets", "cri-socket"];
        names.iter().any(|name| named["name"] == *name)
    };
    let mut lines = Vec::new();
    for workload in workloads_of(objects) {
        let (name, pod) = (
            &workload["metadata"]["name"],
            &workload["spec"]["template"]["spec"],
        );
        for volume in list(&pod["volumes"]).iter().filter(is_one) {
            lines.push(format!(
                "{name} {} is {}",
                volume["name"], volume["hostPath"]["path"]
            ));
        }
        for container in [list(&pod["initContainers"]), list(&pod["containers"])].concat() {
            for mount in list(&container["volumeMounts"]).iter().filter(is_one) {
                lines.push(format!(
                    "{} {} at {}",
                    container["name"], mount["name"], mount["mountPath"]
                ));
            }
        }
    }
    lines.iter().map(|line| line.replace('"', "")).collect()
}

// operands#22
#[test]
fn directories_sockets_and_dns_follow_platform() {
    for (native, openshift4) in [(false, false), (true, false), (false, true), (true, true)] {
        let setting = Setting {
            native,
            openshift4,
            scc: openshift4,
            ..Setting::default()
        };
        let (bin, conf, socket, dns) = if openshift4 {
            (
                "/var/lib/cni/bin",
                "/etc/kubernetes/cni/net.d",
                "/run/crio/crio.sock",
                "openshift-dns",
            )
        } else {
            (
                "/opt/cni/bin",
                "/etc/cni/net.d",
                "/run/containerd/containerd.sock",
                "kube-system",
            )
        };
        let mut spec = all_components();
        // OpenShift has the default socket, cri-o's.
        if !openshift4 {
            spec["multusDynamicNetworks"] = json!({ "hostCRISocketPath": socket });
        }
        let (completed, groups) = setting.with(spec, |context| {
            let settings = context.spec.multus_dynamic_networks.as_ref();
            let completed = settings.expect("the component").host_cri_socket_path.clone();
            (completed, render_enabled(context))
        });
        let objects: Vec<_> = groups.into_iter().flat_map(|group| group.objects).collect();
        let what = format!("native: {native}, OpenShift 4: {openshift4}");

        assert_eq!(completed, socket, "the complete specification, {what}");
        let config = objects
            .iter()
            .find_map(|object| object["data"]["dynamic-networks-config.json"].as_str());
        let config: Value = serde_json::from_str(config.expect("a configuration")).expect("JSON");
        assert_eq!(config["criSocketPath"], format!("/host{socket}"), "{what}");
        let expected = format!(
            "multus cni is {conf}
            multus cnibin is {bin}
            install-multus-binary cnibin at /host/opt/cni/bin
            kube-multus cni at /host/etc/cni/net.d
            kube-multus cnibin at /opt/cni/bin
            dynamic-networks-controller-ds cri-socket is {socket}
            dynamic-networks-controller cri-socket at /host{socket}
            kube-cni-linux-bridge-plugin cnibin is {bin}
            cni-plugins cnibin at /opt/cni/bin
            ovs-cni-amd64 cnibin is {bin}
            ovs-cni-plugin cnibin at /host/opt/cni/bin
            macvtap-cni cni is {bin}
            install-cni cni at /host/opt/cni/bin"
        );
        let expected: Vec<_> = expected.lines().map(str::trim).collect();
        assert_eq!(platform_paths(&objects), expected, "{what}");

        let name = "cnao-allow-egress-to-cluster-dns";
        let policy = objects.iter().find(|object| object["metadata"]["name"] == name);
        let to = &policy.expect("a policy")["spec"]["egress"][0]["to"][0]["namespaceSelector"];
        assert_eq!(
            to,
            &json!({ "matchLabels": { "kubernetes.io/metadata.name": dns } }),
            "{what}"
        );
    }
}
