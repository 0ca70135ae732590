//! The objects of each component, field by field, against operands.

mod access;
mod any_input;
mod cluster_services;
mod dynamic_networks;
mod hardening;
mod kube_mac_pool;
mod kube_secondary_dns;
mod kubevirt_ipam;
mod layouts;
mod linux_bridge;
mod macvtap;
mod monitoring;
mod multus;
mod network_access;
mod nmstate;
mod ovs;
mod stamps;
mod summary;

use api::network_addons::NetworkAddonsConfigSpec;
use serde_json::{Value, json};

use super::*;
use crate::{
    cluster_facts::{Cluster, NodeState, OpenShiftNetwork, Platform},
    configuration,
    images::Images,
    labels::Stamp,
    layout::Layout,
    manifest::Manifest,
    settings::Prometheus,
};

/// The flavour and the platform.
#[derive(Clone, Copy, Default)]
#[allow(clippy::struct_excessive_bools, reason = "they are independent of each other")]
struct Setting {
    native: bool,
    scc: bool,
    openshift4: bool,
    openshift_network: bool,
    monitoring: bool,
    layout: Layout,
}

/// Whether a specification enables a component.
fn enables(component: &str, spec: &NetworkAddonsConfigSpec) -> bool {
    components::enabled(spec).contains(&component)
}

impl Setting {
    fn render(self, component: &str, spec: Value) -> Vec<Value> {
        let named = components::ALL.into_iter().find(|known| known.name == component);
        let component = named.expect("a component");
        self.with(spec, |context| (component.render)(context).expect("objects"))
            .into_iter()
            .map(Manifest::into_value)
            .collect()
    }

    fn with<R>(self, spec: Value, then: impl FnOnce(&Context<'_>) -> R) -> R {
        let cluster = Cluster {
            platform: Platform {
                openshift4: self.openshift4,
                scc: self.scc,
                monitoring: self.monitoring,
                layout: self.layout,
            },
            openshift_network: self.openshift_network.then_some(OpenShiftNetwork {
                multus_disabled: false,
            }),
        };
        let spec = configuration::read(spec).expect("a specification");
        let spec = configuration::complete(&spec, None, cluster.platform, [1, 2]);
        let images = images(self.native);
        then(&Context {
            spec: &spec,
            cluster: &cluster,
            images: &images,
            namespace: "addons",
            prometheus: &prometheus(),
            node_state: &NodeState::default(),
        })
    }
}

/// A specification that enables all components.
fn all_components() -> Value {
    json!({
        "multus": {}, "multusDynamicNetworks": {}, "linuxBridge": {}, "kubeMacPool": {}, "ovs": {}, "macvtap": {},
        "kubeSecondaryDNS": {}, "kubevirtIpamController": {}, "nmstate": {},
    })
}

/// The groups of [`render`] for all enabled components.
fn render_enabled(context: &Context<'_>) -> Vec<Group> {
    enabled(context)
        .map(|component| group(&component, context, &stamps::stamp()).expect("objects"))
        .collect()
}

fn complete(spec: Value) -> NetworkAddonsConfigSpec {
    let spec = configuration::read(spec).expect("a specification");
    configuration::complete(&spec, None, Platform::default(), [1, 2])
}

/// A monitoring stack other than the default one.
fn prometheus() -> Prometheus {
    Prometheus {
        namespace: "observers".into(),
        service_account: "prometheus".into(),
        runbook_url_template: "https://runbooks.example/%s.html".into(),
    }
}

fn images(native: bool) -> Images {
    let upstream = |name: &str| {
        let image = match name {
            "MULTUS_IMAGE" => "multus:4",
            "LINUX_BRIDGE_IMAGE" => "plugins:1",
            "LINUX_BRIDGE_MARKER_IMAGE" => "marker:1",
            "MULTUS_DYNAMIC_NETWORKS_CONTROLLER_IMAGE" => "dynamic:1",
            "KUBEVIRT_IPAM_CONTROLLER_IMAGE" => "ipam:1",
            "OVS_CNI_IMAGE" => "ovs:1",
            "MACVTAP_CNI_IMAGE" => "macvtap:1",
            "KUBEMACPOOL_IMAGE" => "pool:1",
            "KUBE_SECONDARY_DNS_IMAGE" => "zones:1",
            "CORE_DNS_IMAGE" => "dns:1",
            _ => "other:1",
        };
        (!native).then(|| image.to_owned())
    };
    Images::read(upstream).with_own(Some("weft:1".to_owned()))
}

fn namespace() -> Value {
    json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": "addons" } })
}

fn service_account(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": { "name": name, "namespace": "addons" } })
}

fn cluster_role(name: &str, rules: &Value) -> Value {
    json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": name },
        "rules": rules,
    })
}

/// A binding of a cluster role to a service account: in the cluster, or in the namespace.
fn binding(kind: &str, name: &str, role: &str, account: &str) -> Value {
    let mut binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": { "name": name },
        "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role },
        "subjects": [{ "kind": "ServiceAccount", "name": account, "namespace": "addons" }],
    });
    if kind == "RoleBinding" {
        binding["metadata"]["namespace"] = json!("addons");
    }
    binding
}

/// The role and the binding that let an account use its constraints.
fn use_of(name: &str) -> [Value; 2] {
    let role = format!("{name}-scc-use");
    let rules = json!([{
        "apiGroups": ["security.openshift.io"], "resources": ["securitycontextconstraints"],
        "resourceNames": [name], "verbs": ["use"],
    }]);
    [
        cluster_role(&role, &rules),
        binding("RoleBinding", &role, &role, name),
    ]
}

fn requests() -> Value {
    json!({ "requests": { "cpu": "10m", "memory": "15Mi" } })
}

fn field(path: &str) -> Value {
    json!({ "fieldRef": { "fieldPath": path } })
}

/// `Kind name` of each object, in order.
fn listing(objects: &[Value]) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    objects
        .iter()
        .map(|object| format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"])))
        .collect()
}

/// Compares lists of objects one by one, so that a failure shows the object.
fn assert_objects(found: &[Value], expected: &[Value]) {
    assert_eq!(listing(found), listing(expected));
    let shown = |object: &Value| {
        let mut sorted = object.clone();
        sorted.sort_all_objects();
        serde_json::to_string_pretty(&sorted).expect("JSON")
    };
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(shown(found), shown(expected));
    }
}

/// Checks the containers in the status for a specification, and that labels and owner are on all objects and pods: a
/// component cannot omit them.
fn assert_containers(native: bool, spec: Value, expected: &[[&str; 4]]) {
    let setting = Setting {
        native,
        scc: true,
        ..Setting::default()
    };
    let groups = setting.with(spec, render_enabled);
    let found = containers(&groups);
    let found: Vec<_> = found
        .iter()
        .map(|c| [&*c.parent_kind, &*c.parent_name, &*c.name, &*c.image])
        .collect();
    assert_eq!(found, expected);
    for object in groups.iter().flat_map(|group| &group.objects) {
        stamps::assert_stamped(object);
    }
}

/// Removes the descriptions from a schema: their text is free.
fn without_descriptions(mut value: Value) -> Value {
    match &mut value {
        Value::Object(members) => {
            members.retain(|key, member| key != "description" || !member.is_string());
            members
                .values_mut()
                .for_each(|member| *member = without_descriptions(member.take()));
        }
        Value::Array(items) => items
            .iter_mut()
            .for_each(|item| *item = without_descriptions(item.take())),
        _ => {}
    }
    value
}

const DEFAULT_TOLERATION: &str = "node.kubernetes.io/unschedulable";

/// Adds the default placement of workloads to a pod.
fn place(pod: &mut Value) {
    pod["nodeSelector"] = json!({ "kubernetes.io/os": "linux" });
    pod["affinity"] = json!({});
    pod["tolerations"] = json!([{ "key": DEFAULT_TOLERATION, "operator": "Exists", "effect": "NoSchedule" }]);
}

/// Adds the default placement of infrastructure to a pod.
fn place_infra(pod: &mut Value) {
    let prefer = |weight: u32, role: &str| {
        let key = format!("node-role.kubernetes.io/{role}");
        json!({ "weight": weight, "preference": { "matchExpressions": [{ "key": key, "operator": "Exists" }] } })
    };
    pod["affinity"] = json!({ "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
        prefer(10, "control-plane"), prefer(1, "master"),
    ] } });
}

/// The role and the binding with which the monitoring stack finds its targets.
fn scraping(name: &str) -> [Value; 2] {
    let rbac = "rbac.authorization.k8s.io";
    [
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
            "metadata": { "name": name, "namespace": "addons" },
            "rules": [{
                "apiGroups": [""], "resources": ["services", "endpoints", "pods"], "verbs": ["get", "list", "watch"],
            }],
        }),
        json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": { "name": name, "namespace": "addons" },
            "roleRef": { "apiGroup": rbac, "kind": "Role", "name": name },
            "subjects": [{ "kind": "ServiceAccount", "name": "prometheus", "namespace": "observers" }],
        }),
    ]
}

/// A policy that allows ingress from everywhere to a port of some pods.
fn ingress(name: &str, pods: &Value, protocol: &str, port: u16) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": name, "namespace": "addons" },
        "spec": {
            "podSelector": { "matchLabels": pods },
            "policyTypes": ["Ingress"],
            "ingress": [{ "ports": [{ "protocol": protocol, "port": port }] }],
        },
    })
}

fn policy(name: &str, egress: &Value) -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": name, "namespace": "addons" },
        "spec": {
            "podSelector": { "matchExpressions": [{ "key": "allow-access-cluster-services", "operator": "Exists" }] },
            "policyTypes": ["Egress"],
            "egress": [egress],
        },
    })
}

// operands#15, operator#75
#[test]
fn network_policies_follow_the_platform() {
    assert!(enables("networkPolicies", &complete(json!({}))));
    for (openshift4, namespace, label, value, port) in [
        (false, "kube-system", "k8s-app", "kube-dns", 53),
        (
            true,
            "openshift-dns",
            "dns.operator.openshift.io/daemonset-dns",
            "default",
            5353,
        ),
    ] {
        let setting = Setting {
            openshift4,
            ..Setting::default()
        };
        let objects = setting.render("networkPolicies", json!({}));
        let api = policy(
            "cnao-allow-egress-to-cluster-api",
            &json!({ "ports": [{ "protocol": "TCP", "port": 6443 }] }),
        );
        let dns = policy(
            "cnao-allow-egress-to-cluster-dns",
            &json!({
                "to": [{
                    "namespaceSelector": { "matchLabels": { "kubernetes.io/metadata.name": namespace } },
                    "podSelector": { "matchLabels": { label: value } },
                }],
                "ports": [{ "protocol": "TCP", "port": port }, { "protocol": "UDP", "port": port }],
            }),
        );
        assert_objects(&objects, &[api, dns]);
    }
}

#[test]
fn rendered_kinds_are_watched() {
    let setting = Setting {
        scc: true,
        monitoring: true,
        ..Setting::default()
    };
    let groups = setting.with(all_components(), render_enabled);
    let watched = crate::watches::rendered_kinds();
    for object in groups.iter().flat_map(|group| &group.objects) {
        let id = ObjectId::of(object);
        let kind = id.known_kind().expect("a known kind");
        // Namespaces are watched by their names.
        let apart = kind == kube_kit::object::NAMESPACE;
        assert!(apart != watched.contains(&kind), "{id}");
    }
}

// operator#87
#[test]
fn render_orders_accounts_and_rights_before_workloads() {
    let access = [
        "ServiceAccount",
        "ClusterRole",
        "ClusterRoleBinding",
        "Role",
        "RoleBinding",
        "SecurityContextConstraints",
    ];
    let kind = |object: &Value| object["kind"].as_str().map(str::to_owned).expect("a kind");
    for (native, scc) in [(false, false), (false, true), (true, false), (true, true)] {
        let setting = Setting {
            native,
            scc,
            monitoring: true,
            ..Setting::default()
        };
        for Group {
            component, objects, ..
        } in setting.with(all_components(), render_enabled)
        {
            let pods = |object: &Value| object.pointer("/spec/template/spec").is_some();
            let Some(first) = objects.iter().position(pods) else {
                continue;
            };
            let late: Vec<_> = objects[first..].iter().map(kind).collect();
            assert!(
                late.iter().all(|kind| !access.contains(&kind.as_str())),
                "{component}: {late:?}"
            );
            for object in objects.iter().filter(|object| pods(object)) {
                let account = object.pointer("/spec/template/spec/serviceAccountName");
                let is_it = |found: &Value| {
                    kind(found) == "ServiceAccount" && Some(&found["metadata"]["name"]) == account
                };
                assert!(account.is_none() || objects.iter().any(is_it), "{component}");
            }
        }
    }
}

#[test]
fn each_renders_components_after_failed_one() {
    let images = Images::read(|name| (name == "MULTUS_IMAGE").then(|| "multus:4".to_owned()));
    let spec = json!({ "multus": {}, "linuxBridge": {} });
    let rendered = Setting::default().with(spec, |context| {
        let context = Context {
            images: &images,
            ..*context
        };
        assert!(render(&context, &stamps::stamp()).is_err());
        each(&context, &stamps::stamp())
            .map(|(component, group)| (component, group.is_ok()))
            .collect::<Vec<_>>()
    });
    assert_eq!(
        rendered,
        [
            ("multus", true),
            ("linuxBridge", false),
            ("monitoring", true),
            ("networkPolicies", true)
        ]
    );
}

#[test]
fn every_component_renders_with_own_image_and_with_upstream_images() {
    for native in [true, false] {
        let setting = Setting {
            native,
            ..Setting::default()
        };
        let groups = setting.with(all_components(), |context| render(context, &stamps::stamp()));
        let groups = groups.expect("objects");
        let names: Vec<_> = groups.iter().map(|group| group.component).collect();
        assert_eq!(
            names,
            [
                "multus",
                "multusDynamicNetworks",
                "linuxBridge",
                "kubeMacPool",
                "ovs",
                "macvtap",
                "kubeSecondaryDNS",
                "kubevirtIpamController",
                "nmstate",
                "monitoring",
                "networkPolicies"
            ]
        );
    }
}

#[test]
fn inventory_omits_kept_objects() {
    let setting = Setting {
        native: true,
        ..Setting::default()
    };
    let groups = setting.with(json!({ "multus": {} }), |context| {
        render(context, &stamps::stamp()).expect("objects")
    });
    let recorded: Vec<_> = inventory(&groups)
        .objects()
        .map(|id| format!("{} {}", id.kind, id.name))
        .collect();
    assert_eq!(
        recorded,
        [
            "ClusterRole multus",
            "ClusterRoleBinding multus",
            "ServiceAccount multus",
            "ConfigMap multus-daemon-config",
            "DaemonSet multus",
            "NetworkPolicy cnao-allow-egress-to-cluster-api",
            "NetworkPolicy cnao-allow-egress-to-cluster-dns",
        ]
    );
}

// operator#88
#[test]
fn superfluous_keeps_objects_of_unrendered_component_alone() {
    let id = |name: &str| kube_kit::object::CONFIG_MAP.object(Some("ns"), name);
    let multus = Group {
        component: "multus",
        objects: vec![
            json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "a", "namespace": "ns" } }),
        ],
        issued: Vec::new(),
    };
    let groups = [multus];
    let planned = inventory(&groups)
        .union(&Inventory::of_component("multus", [id("former")]))
        .union(&Inventory::of_component("linuxBridge", [id("bridge")]))
        .union(&Inventory::of_component("ovs", [id("ovs")]));
    assert_eq!(
        superfluous(&planned, &groups, &["linuxBridge"]),
        [id("former"), id("ovs")]
    );
    let all = [id("former"), id("bridge"), id("ovs")];
    assert_eq!(superfluous(&planned, &groups, &[]), all);
    // An entry of an earlier version may belong to any component.
    let planned = planned.union(&Inventory::of([id("earlier")]));
    assert_eq!(
        superfluous(&planned, &groups, &["linuxBridge"]),
        [id("former"), id("ovs")]
    );
    assert_eq!(
        superfluous(&planned, &groups, &[]),
        [&all[..], &[id("earlier")]].concat()
    );
}

// operator#80, the list of operator §9.2
#[test]
fn legacy_lists_leftovers_of_earlier_operators() {
    let ids = Setting::default().with(json!({}), |context| {
        legacy(&Context {
            namespace: "ns",
            ..*context
        })
    });
    let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
    for expected in [
        "(/v1, Kind=ServiceAccount) ns/nmstate-handler",
        "(apps/v1, Kind=DaemonSet) ns/nmstate-handler",
        "(rbac.authorization.k8s.io/v1, Kind=Role) ns/nmstate-handler",
        "(rbac.authorization.k8s.io/v1, Kind=RoleBinding) ns/nmstate-handler",
        "(/v1, Kind=Service) ns/nmstate-webhook",
        "(apps/v1, Kind=Deployment) ns/nmstate-webhook",
        "(policy/v1, Kind=PodDisruptionBudget) ns/nmstate-webhook",
        "(/v1, Kind=ConfigMap) ns/nmstate-config",
        "(apps/v1, Kind=Deployment) ns/nmstate-cert-manager",
        "(rbac.authorization.k8s.io/v1, Kind=ClusterRole) /nmstate-handler",
        "(rbac.authorization.k8s.io/v1, Kind=ClusterRoleBinding) /nmstate-handler",
        "(admissionregistration.k8s.io/v1, Kind=MutatingWebhookConfiguration) /nmstate",
        "(apps/v1, Kind=DaemonSet) ns/passt-binding-cni",
        "(/v1, Kind=ServiceAccount) ns/passt-binding-cni",
        "(security.openshift.io/v1, Kind=SecurityContextConstraints) /passt-binding-cni",
        "(k8s.cni.cncf.io/v1, Kind=NetworkAttachmentDefinition) default/primary-udn-kubevirt-binding",
        "(policy/v1, Kind=PodDisruptionBudget) ns/mac-controller-manager",
        "(/v1, Kind=ConfigMap) ns/secondary-dns",
        "(rbac.authorization.k8s.io/v1, Kind=ClusterRole) /secondary",
        "(rbac.authorization.k8s.io/v1, Kind=ClusterRoleBinding) /secondary",
        "(/v1, Kind=ServiceAccount) ns/secondary",
        "(apps/v1, Kind=Deployment) ns/secondary-dns",
        "(networking.k8s.io/v1, Kind=NetworkPolicy) ns/allow-ingress-to-secondary-dns",
        "(apps/v1, Kind=DaemonSet) ns/kube-multus-ds-amd64",
        "(admissionregistration.k8s.io/v1, Kind=MutatingWebhookConfiguration) \
         /kubevirt-ipam-claims-mutating-webhook-configuration",
        "(apps/v1, Kind=Deployment) ns/kubevirt-ipam-claims-controller-manager",
        "(/v1, Kind=ServiceAccount) ns/kubevirt-ipam-claims-controller-manager",
        "(rbac.authorization.k8s.io/v1, Kind=Role) ns/kubevirt-ipam-claims-leader-election-role",
        "(rbac.authorization.k8s.io/v1, Kind=ClusterRole) /kubevirt-ipam-claims-manager-role",
        "(rbac.authorization.k8s.io/v1, Kind=RoleBinding) ns/kubevirt-ipam-claims-leader-election-rolebinding",
        "(rbac.authorization.k8s.io/v1, Kind=ClusterRoleBinding) /kubevirt-ipam-claims-manager-rolebinding",
        "(/v1, Kind=Service) ns/kubevirt-ipam-claims-webhook-service",
        "(cert-manager.io/v1, Kind=Certificate) ns/kubevirt-ipam-claims-serving-cert",
        "(cert-manager.io/v1, Kind=Issuer) ns/kubevirt-ipam-claims-selfsigned-issuer",
    ] {
        assert!(
            ids.contains(&expected.to_owned()),
            "{expected} is not among {ids:#?}"
        );
    }
    assert_eq!(ids.len(), 34);
}
