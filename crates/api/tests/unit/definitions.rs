//! The nodes of the schemas, against tables of operator §1 and multus §1 that are written by hand.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use serde_json::{Value, json};

/// Path of a node → its type, with format and nullability, such as `string`, `integer int32`, `object null`.
pub(crate) type Nodes = BTreeMap<String, String>;

pub(crate) fn nodes_of(schema: &Value) -> Nodes {
    let mut nodes = Nodes::new();
    collect(schema, "", &mut nodes);
    nodes
}

fn collect(node: &Value, path: &str, nodes: &mut Nodes) {
    let text = |key: &str| {
        node.get(key)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let mut kind = text("type");
    if node.get("format").is_some() {
        kind = format!("{kind} {}", text("format"));
    }
    if let Some(nullable) = node.get("nullable") {
        kind += if nullable == &json!(true) {
            " null"
        } else {
            " not-null"
        };
    }
    nodes.insert(path.to_owned(), kind);
    for (name, child) in node
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        collect(child, &format!("{path}.{name}"), nodes);
    }
    if let Some(items) = node.get("items") {
        collect(items, &format!("{path}[]"), nodes);
    }
    if let Some(values) = node.get("additionalProperties") {
        collect(values, &format!("{path}{{}}"), nodes);
    }
}

// Operator §1.1 and §1.2: the root, and the parts that occur several times.
const TOP: &str = "/ object
    .apiVersion string
    .kind string
    .metadata object
    .spec object
    .spec.multus object
    .spec.multus.namespaceIsolation boolean
    .spec.multus.globalNamespaces array
    .spec.multus.globalNamespaces[] string
    .spec.multusDynamicNetworks object
    .spec.multusDynamicNetworks.hostCRISocketPath string
    .spec.linuxBridge object
    .spec.linuxBridge.preserveDefaultVlan boolean
    .spec.linuxBridge.dhcp boolean
    .spec.ovs object
    .spec.kubeMacPool object
    .spec.kubeMacPool.rangeStart string
    .spec.kubeMacPool.rangeEnd string
    .spec.imagePullPolicy string
    .spec.nmstate object
    .spec.kubeSecondaryDNS object
    .spec.kubeSecondaryDNS.domain string
    .spec.kubeSecondaryDNS.nameServerIP string
    .spec.kubeSecondaryDNS.ttl integer int32
    .spec.kubeSecondaryDNS.allowedPrefixes array
    .spec.kubeSecondaryDNS.allowedPrefixes[] string
    .spec.kubeSecondaryDNS.singleProcess boolean
    .spec.kubeSecondaryDNS.followSettings boolean
    .spec.kubeSecondaryDNS.service object
    .spec.kubeSecondaryDNS.service.type string
    .spec.kubeSecondaryDNS.service.nodePort integer int32
    .spec.macvtap object
    .spec.macvtap.devicePluginConfig string
    .spec.kubevirtIpamController object
    .spec.kubevirtIpamController.defaultNetworkNADNamespace string
    .spec.selfSignConfiguration object
    .spec.selfSignConfiguration.caRotateInterval string
    .spec.selfSignConfiguration.caOverlapInterval string
    .spec.selfSignConfiguration.certRotateInterval string
    .spec.selfSignConfiguration.certOverlapInterval string
    .spec.placementConfiguration object
    .spec.cniDirectories object
    .spec.cniDirectories.bin string
    .spec.cniDirectories.conf string
    .spec.tlsSecurityProfile object null
    .spec.tlsSecurityProfile.type string
    .spec.tlsSecurityProfile.old object null
    .spec.tlsSecurityProfile.intermediate object null
    .spec.tlsSecurityProfile.modern object null
    .spec.tlsSecurityProfile.custom object null
    .spec.tlsSecurityProfile.custom.ciphers array
    .spec.tlsSecurityProfile.custom.ciphers[] string
    .spec.tlsSecurityProfile.custom.minTLSVersion string
    .status object
    .status.operatorVersion string
    .status.targetVersion string
    .status.observedVersion string
    .status.conditions array
    .status.conditions[] object
    .status.conditions[].type string
    .status.conditions[].status string
    .status.conditions[].reason string
    .status.conditions[].message string
    .status.conditions[].lastHeartbeatTime string date-time null
    .status.conditions[].lastTransitionTime string date-time null
    .status.containers array
    .status.containers[] object
    .status.containers[].parentKind string
    .status.containers[].parentName string
    .status.containers[].name string
    .status.containers[].image string";

const PLACEMENT: &str = "/ object
    .nodeSelector object
    .nodeSelector{} string
    .tolerations array
    .tolerations[] object
    .tolerations[].effect string
    .tolerations[].key string
    .tolerations[].operator string
    .tolerations[].value string
    .tolerations[].tolerationSeconds integer int64
    .affinity object
    .affinity.nodeAffinity object
    .affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution array
    .affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[] object
    .affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[].weight integer int32
    .affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution object
    .affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms array
    .affinity.podAffinity object
    .affinity.podAntiAffinity object";

const NODE_TERM: &str = "/ object
    .matchExpressions array
    .matchExpressions[] object
    .matchExpressions[].key string
    .matchExpressions[].operator string
    .matchExpressions[].values array
    .matchExpressions[].values[] string
    .matchFields array
    .matchFields[] object
    .matchFields[].key string
    .matchFields[].operator string
    .matchFields[].values array
    .matchFields[].values[] string";

const POD_RULES: &str = ".preferredDuringSchedulingIgnoredDuringExecution array
    .preferredDuringSchedulingIgnoredDuringExecution[] object
    .preferredDuringSchedulingIgnoredDuringExecution[].weight integer int32
    .requiredDuringSchedulingIgnoredDuringExecution array";

const POD_TERM: &str = "/ object
    .namespaces array
    .namespaces[] string
    .topologyKey string
    .labelSelector object
    .labelSelector.matchLabels object
    .labelSelector.matchLabels{} string
    .labelSelector.matchExpressions array
    .labelSelector.matchExpressions[] object
    .labelSelector.matchExpressions[].key string
    .labelSelector.matchExpressions[].operator string
    .labelSelector.matchExpressions[].values array
    .labelSelector.matchExpressions[].values[] string";

fn expected_nodes() -> Nodes {
    let mut nodes = Nodes::new();
    let mut add = |prefix: &str, table: &str| {
        for line in table.lines().map(str::trim).filter(|line| !line.is_empty()) {
            let (path, kind) = line.split_once(' ').expect("path and type");
            let path = if path == "/" { "" } else { path };
            nodes.insert(format!("{prefix}{path}"), kind.trim().to_owned());
        }
    };
    add("", TOP);
    let placements = [
        ".spec.placementConfiguration.infra",
        ".spec.placementConfiguration.workloads",
    ];
    for placement in placements {
        add(placement, PLACEMENT);
        let node_terms = [
            ".affinity.nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[].preference",
            ".affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms[]",
        ];
        for term in node_terms {
            add(&format!("{placement}{term}"), NODE_TERM);
        }
        for pods in [".affinity.podAffinity", ".affinity.podAntiAffinity"] {
            add(&format!("{placement}{pods}"), POD_RULES);
            let pod_terms = [
                ".preferredDuringSchedulingIgnoredDuringExecution[].podAffinityTerm",
                ".requiredDuringSchedulingIgnoredDuringExecution[]",
            ];
            for term in pod_terms {
                add(&format!("{placement}{pods}{term}"), POD_TERM);
            }
        }
    }
    nodes
}

/// Last part of a node's path → its required members.
fn expected_required(path: &str) -> &'static [&'static str] {
    let ends = |end: &str| path.ends_with(end);
    if ends("matchExpressions[]") || ends("matchFields[]") {
        &["key", "operator"]
    } else if ends("nodeAffinity.preferredDuringSchedulingIgnoredDuringExecution[]") {
        &["preference", "weight"]
    } else if ends("nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution") {
        &["nodeSelectorTerms"]
    } else if ends("ffinity.preferredDuringSchedulingIgnoredDuringExecution[]") {
        &["podAffinityTerm", "weight"]
    } else if ends("podAffinityTerm") || ends("ffinity.requiredDuringSchedulingIgnoredDuringExecution[]") {
        &["topologyKey"]
    } else if ends(".status.conditions[]") {
        &["status", "type"]
    } else if ends(".status.containers[]") {
        &["image", "name", "parentKind", "parentName"]
    } else {
        &[]
    }
}

const CIPHERS: &str = "TLS_AES_128_GCM_SHA256 TLS_AES_256_GCM_SHA384 TLS_CHACHA20_POLY1305_SHA256 \
     ECDHE-ECDSA-AES128-GCM-SHA256 ECDHE-RSA-AES128-GCM-SHA256 ECDHE-ECDSA-AES256-GCM-SHA384 \
     ECDHE-RSA-AES256-GCM-SHA384 ECDHE-ECDSA-CHACHA20-POLY1305 ECDHE-RSA-CHACHA20-POLY1305 \
     ECDHE-ECDSA-AES128-SHA256 ECDHE-RSA-AES128-SHA256 ECDHE-ECDSA-AES128-SHA ECDHE-RSA-AES128-SHA \
     ECDHE-ECDSA-AES256-SHA ECDHE-RSA-AES256-SHA AES128-GCM-SHA256 AES256-GCM-SHA384 AES128-SHA256 \
     AES128-SHA AES256-SHA DES-CBC3-SHA";

fn expected_enum(path: &str) -> Option<Value> {
    match path {
        ".spec.kubeSecondaryDNS.service.type" => Some(json!(["ClusterIP", "NodePort", "LoadBalancer"])),
        ".spec.tlsSecurityProfile.type" => Some(json!(["Old", "Intermediate", "Modern", "Custom"])),
        ".spec.tlsSecurityProfile.custom.minTLSVersion" => Some(json!([
            "VersionTLS10",
            "VersionTLS11",
            "VersionTLS12",
            "VersionTLS13"
        ])),
        ".spec.tlsSecurityProfile.custom.ciphers[]" => {
            Some(CIPHERS.split_whitespace().collect::<Vec<_>>().into())
        }
        _ => None,
    }
}

/// Calls `check` with the path and the schema of each node.
pub(crate) fn walk(node: &Value, path: &str, check: &mut dyn FnMut(&str, &Value)) {
    check(path, node);
    for (name, child) in node
        .get("properties")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
    {
        walk(child, &format!("{path}.{name}"), check);
    }
    for (key, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
        if let Some(child) = node.get(key) {
            walk(child, &format!("{path}{mark}"), check);
        }
    }
}

pub(crate) fn schema(crd: &CustomResourceDefinition, version: usize) -> Value {
    let schema = crd.spec.versions[version]
        .schema
        .as_ref()
        .and_then(|s| s.open_api_v3_schema.as_ref());
    serde_json::to_value(schema.expect("a schema")).expect("JSON")
}

#[test]
fn definition_has_the_names_and_versions_of_upstream() {
    let crd = api::network_addons::crd().expect("a definition");
    let value = serde_json::to_value(&crd).expect("JSON");
    assert_eq!(
        value["metadata"]["name"],
        "networkaddonsconfigs.networkaddonsoperator.network.kubevirt.io"
    );
    assert_eq!(
        value["spec"]["group"],
        "networkaddonsoperator.network.kubevirt.io"
    );
    assert_eq!(value["spec"]["scope"], "Cluster");
    assert_eq!(value["spec"]["preserveUnknownFields"], json!(false));
    assert_eq!(value["spec"].get("conversion"), None);
    let names = &value["spec"]["names"];
    assert_eq!(names["kind"], "NetworkAddonsConfig");
    assert_eq!(names["plural"], "networkaddonsconfigs");
    assert_eq!(names["singular"], "networkaddonsconfig");
    assert_eq!(names["shortNames"], json!(["nac"]));
    let versions: Vec<_> = crd
        .spec
        .versions
        .iter()
        .map(|v| (v.name.as_str(), v.served, v.storage))
        .collect();
    assert_eq!(versions, [("v1", true, true), ("v1alpha1", true, false)]);
    for version in &crd.spec.versions {
        assert!(
            version
                .subresources
                .as_ref()
                .is_some_and(|s| s.status.is_some() && s.scale.is_none())
        );
        assert_eq!(version.deprecated, None);
    }
    assert_eq!(schema(&crd, 0), schema(&crd, 1));
}

// Additions to upstream's definition (operator §1).
#[test]
fn columns_of_both_versions_are_equal() {
    let crd = api::network_addons::crd().expect("a definition");
    let condition = |name: &str, part: &str| format!(".status.conditions[?(@.type=='{name}')].{part}");
    let expected = [
        (
            "Available",
            "string",
            condition("Available", "status"),
            "True if all components are available.",
            None,
        ),
        (
            "Progressing",
            "string",
            condition("Progressing", "status"),
            "True during a rollout.",
            None,
        ),
        (
            "Degraded",
            "string",
            condition("Degraded", "status"),
            "True if a component failed.",
            None,
        ),
        (
            "Version",
            "string",
            ".status.observedVersion".to_owned(),
            "Operator version of the last available components.",
            None,
        ),
        (
            "Age",
            "date",
            ".metadata.creationTimestamp".to_owned(),
            "Age of the configuration.",
            None,
        ),
        (
            "Reason",
            "string",
            condition("Degraded", "reason"),
            "Reason of a failure, in one word.",
            Some(1),
        ),
    ];
    for version in &crd.spec.versions {
        let columns = version.additional_printer_columns.as_deref().unwrap_or_default();
        let found: Vec<_> = columns
            .iter()
            .map(|column| {
                (
                    column.name.as_str(),
                    column.type_.as_str(),
                    column.json_path.clone(),
                    column.description.as_deref().unwrap_or_default(),
                    column.priority,
                )
            })
            .collect();
        assert_eq!(found, expected, "{}", version.name);
    }
}

#[test]
fn nodes_of_the_schema_match_the_table() {
    let crd = api::network_addons::crd().expect("a definition");
    let schema = schema(&crd, 0);
    let (found, expected) = (nodes_of(&schema), expected_nodes());
    let difference = |a: &Nodes, b: &Nodes| -> Vec<_> {
        a.iter()
            .filter(|(path, kind)| b.get(*path) != Some(kind))
            .map(|(p, k)| format!("{p} {k}"))
            .collect()
    };
    assert_eq!(
        difference(&found, &expected),
        Vec::<String>::new(),
        "in the schema, but not in the table"
    );
    assert_eq!(
        difference(&expected, &found),
        Vec::<String>::new(),
        "in the table, but not in the schema"
    );

    let allowed: BTreeSet<_> = [
        "type",
        "format",
        "nullable",
        "properties",
        "items",
        "additionalProperties",
        "required",
        "enum",
        "description",
    ]
    .into();
    walk(&schema, "", &mut |path, node| {
        let mut required: Vec<_> = node["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        required.sort_unstable();
        assert_eq!(required, expected_required(path), "required members of {path}");
        assert_eq!(node.get("enum").cloned(), expected_enum(path), "values of {path}");
        for key in node.as_object().expect("a node").keys() {
            assert!(allowed.contains(key.as_str()), "{path} has {key}");
        }
        // operator#4: `kubectl explain` describes every field.
        // The API server accepts no description of metadata, and describes it itself.
        assert!(
            path == ".metadata" || node["description"].as_str().is_some_and(|text| !text.is_empty()),
            "{path}"
        );
    });
}

// operator#6
#[test]
fn cipher_names_have_no_duplicates() {
    let distinct: BTreeSet<_> = api::network_addons::CIPHERS.into_iter().collect();
    assert_eq!(distinct.len(), 21);
}

#[test]
fn network_attachment_definition_matches_multus() {
    let crd = api::net_attach_def::crd().expect("a definition");
    let value = serde_json::to_value(&crd).expect("JSON");
    assert_eq!(
        value["metadata"]["name"],
        "network-attachment-definitions.k8s.cni.cncf.io"
    );
    assert_eq!(value["spec"]["group"], "k8s.cni.cncf.io");
    assert_eq!(value["spec"]["scope"], "Namespaced");
    assert_eq!(
        value["spec"]["names"],
        json!({
            "kind": "NetworkAttachmentDefinition",
            "plural": "network-attachment-definitions",
            "singular": "network-attachment-definition",
            "shortNames": ["nad", "net-attach-def"],
        })
    );
    assert_eq!(value["spec"]["versions"].as_array().map(Vec::len), Some(1));
    let version = &value["spec"]["versions"][0];
    assert_eq!(
        (&version["name"], &version["served"], &version["storage"]),
        (&json!("v1"), &json!(true), &json!(true))
    );
    assert_eq!(version.get("subresources"), None);
    let expected = [
        ("", "object"),
        (".apiVersion", "string"),
        (".kind", "string"),
        (".metadata", "object"),
        (".spec", "object"),
        (".spec.config", "string"),
    ];
    let schema = schema(&crd, 0);
    assert_eq!(
        nodes_of(&schema),
        expected
            .map(|(path, kind)| (path.to_owned(), kind.to_owned()))
            .into()
    );
    walk(&schema, "", &mut |path, node| {
        assert!(
            path == ".metadata" || node["description"].as_str().is_some_and(|text| !text.is_empty()),
            "{path}"
        );
        assert_eq!(node.get("required"), None, "{path}");
    });
}

#[test]
fn spec_of_the_first_generation_is_readable() {
    let spec: api::network_addons::NetworkAddonsConfigSpec = serde_json::from_value(json!({
        "multus": {}, "linuxBridge": {}, "sriov": {}, "nmstate": {}, "imagePullPolicy": "Always",
    }))
    .expect("a spec");
    assert!(spec.multus.is_some() && spec.linux_bridge.is_some() && spec.nmstate.is_some());
    assert_eq!(spec.image_pull_policy, "Always");
    assert_eq!(spec.ovs, None);
}

#[test]
fn empty_affinity_is_written_and_empty_settings_are_omitted() {
    let placement = api::placement::Placement::default();
    assert_eq!(
        serde_json::to_value(placement).expect("JSON"),
        json!({ "affinity": {} })
    );
    let dns = api::network_addons::KubeSecondaryDNS::default();
    assert_eq!(serde_json::to_value(dns).expect("JSON"), json!({}));
}

#[test]
fn ipam_claim_matches_the_cni_plugins() {
    let crd = api::ipam_claim::crd().expect("a definition");
    let value = serde_json::to_value(&crd).expect("JSON");
    assert_eq!(
        value["metadata"],
        json!({
            "name": "ipamclaims.k8s.cni.cncf.io",
            "annotations": { "controller-gen.kubebuilder.io/version": "v0.13.0" },
        })
    );
    assert_eq!(value["spec"]["group"], "k8s.cni.cncf.io");
    assert_eq!(value["spec"]["scope"], "Namespaced");
    assert_eq!(
        value["spec"]["names"],
        json!({
            "kind": "IPAMClaim", "listKind": "IPAMClaimList", "plural": "ipamclaims", "singular": "ipamclaim",
        })
    );
    assert_eq!(value["spec"]["versions"].as_array().map(Vec::len), Some(1));
    let version = &value["spec"]["versions"][0];
    assert_eq!(
        (&version["name"], &version["served"], &version["storage"]),
        (&json!("v1alpha1"), &json!(true), &json!(true))
    );
    assert_eq!(version["subresources"], json!({ "status": {} }));
    assert_eq!(version.get("additionalPrinterColumns"), None);
    let expected = [
        ("", "object"),
        (".apiVersion", "string"),
        (".kind", "string"),
        (".metadata", "object"),
        (".spec", "object"),
        (".spec.interface", "string"),
        (".spec.network", "string"),
        (".status", "object"),
        (".status.conditions", "array"),
        (".status.conditions[]", "object"),
        (".status.conditions[].lastTransitionTime", "string date-time"),
        (".status.conditions[].message", "string"),
        (".status.conditions[].observedGeneration", "integer int64"),
        (".status.conditions[].reason", "string"),
        (".status.conditions[].status", "string"),
        (".status.conditions[].type", "string"),
        (".status.ips", "array"),
        (".status.ips[]", "string"),
        (".status.ownerPod", "object"),
        (".status.ownerPod.name", "string"),
    ];
    let schema = schema(&crd, 0);
    assert_eq!(
        nodes_of(&schema),
        expected
            .map(|(path, kind)| (path.to_owned(), kind.to_owned()))
            .into()
    );
    let mut required = BTreeSet::new();
    walk(&schema, "", &mut |path, node| {
        for name in node["required"].as_array().into_iter().flatten() {
            required.insert(format!("{path}.{}", name.as_str().expect("a name")));
        }
    });
    let condition = ["lastTransitionTime", "message", "reason", "status", "type"];
    let expected = [".spec.interface", ".spec.network", ".status.ips"]
        .map(str::to_owned)
        .into_iter()
        .chain(condition.map(|name| format!(".status.conditions[].{name}")));
    assert_eq!(required, expected.collect());
}

#[test]
fn descriptions_have_no_line_breaks_inside_paragraphs() {
    fn check(node: &Value) {
        if let Some(text) = node["description"].as_str() {
            assert!(!text.replace("\n\n", "").contains('\n'), "{text}");
        }
        let members = node.as_object().into_iter().flat_map(|members| members.values());
        members.for_each(check);
    }
    for crd in [
        api::network_addons::crd(),
        api::node_state::crd(),
        api::node_state::network_state_crd(),
        api::node_state::policy_crd(),
        api::node_state::enactment_crd(),
    ] {
        let crd = serde_json::to_value(crd.expect("a definition")).expect("JSON");
        for version in crd["spec"]["versions"].as_array().expect("versions") {
            check(&version["schema"]["openAPIV3Schema"]);
        }
    }
}
