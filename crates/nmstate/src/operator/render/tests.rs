use std::collections::BTreeMap;

use super::*;

fn settings(more: &[(&str, &str)]) -> Settings {
    let usual = [
        ("HANDLER_NAMESPACE", "nmstate"),
        ("OPERATOR_NAMESPACE", "operators"),
        ("MONITORING_NAMESPACE", "monitoring"),
        ("RELATED_IMAGE_HANDLER_IMAGE", "weft:1"),
    ];
    let variables: BTreeMap<&str, &str> = usual.into_iter().chain(more.iter().copied()).collect();
    Settings::read(|name| variables.get(name).map(|value| (*value).to_owned())).expect("settings")
}

fn nmstate(spec: &Value) -> NMState {
    serde_json::from_value(json!({
        "apiVersion": "nmstate.io/v1", "kind": "NMState",
        "metadata": { "name": "nmstate", "uid": "1234" }, "spec": spec,
    }))
    .expect("a nmstate")
}

/// The rendered objects, with the usual settings.
fn rendered(spec: &Value, facts: &Facts) -> Vec<Value> {
    render(&nmstate(spec), &settings(&[]), facts, &Files::embedded()).expect("objects")
}

fn openshift() -> Facts {
    Facts {
        openshift: true,
        tls_profile: Some(r#"{"ciphers":[],"minTLSVersion":"VersionTLS12"}"#.to_owned()),
        ..Facts::default()
    }
}

/// `Kind namespace/name` of an object.
fn called(object: &Value) -> String {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().expect("a name");
    match metadata["namespace"].as_str() {
        Some(namespace) => format!("{} {namespace}/{name}", object["kind"].as_str().expect("a kind")),
        None => format!("{} {name}", object["kind"].as_str().expect("a kind")),
    }
}

fn names_of(objects: &[Value]) -> Vec<String> {
    objects.iter().map(called).collect()
}

fn find<'a>(objects: &'a [Value], name: &str) -> &'a Value {
    let found = objects.iter().find(|object| called(object) == name);
    found.unwrap_or_else(|| panic!("no {name} in {:#?}", names_of(objects)))
}

fn pods<'a>(objects: &'a [Value], name: &str) -> &'a Value {
    &find(objects, name)["spec"]["template"]["spec"]
}

/// A container's variables: its value, or the field that it is of.
fn variables(pods: &Value) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let variables = pods["containers"][0]["env"].as_array().expect("variables");
    variables
        .iter()
        .map(|variable| {
            let field = &variable["valueFrom"]["fieldRef"]["fieldPath"];
            let value = if field.is_string() {
                field
            } else {
                &variable["value"]
            };
            (text(&variable["name"]), text(value))
        })
        .collect()
}

const HANDLER_SET: &str = "DaemonSet nmstate/nmstate-handler";
const WEBHOOK: &str = "Deployment nmstate/nmstate-webhook";
const METRICS: &str = "Deployment nmstate/nmstate-metrics";
const CERT_MANAGER: &str = "Deployment nmstate/nmstate-cert-manager";

// nmstate#68, the objects; nmstate#70, their owners
#[test]
fn objects_are_ordered_and_owned_except_definitions_and_namespaces() {
    let objects = rendered(&json!({}), &Facts::default());
    let expected = [
        "CustomResourceDefinition nodenetworkstates.nmstate.io",
        "CustomResourceDefinition nodenetworkconfigurationpolicies.nmstate.io",
        "CustomResourceDefinition nodenetworkconfigurationenactments.nmstate.io",
        "Namespace nmstate",
        "ServiceAccount nmstate/nmstate-handler",
        "ClusterRole nmstate-handler",
        "ClusterRoleBinding nmstate-handler",
        "Role nmstate/nmstate-handler",
        "RoleBinding nmstate/nmstate-handler",
        "Role default/nmstate-handler-events",
        "RoleBinding default/nmstate-handler-events",
        "ServiceAccount nmstate/nmstate-webhook",
        "ServiceAccount nmstate/nmstate-cert-manager",
        "ClusterRole nmstate-cert-manager",
        "ClusterRoleBinding nmstate-cert-manager",
        "Role nmstate/nmstate-cert-manager",
        "RoleBinding nmstate/nmstate-cert-manager",
        "ServiceAccount nmstate/nmstate-metrics",
        "ClusterRole nmstate-metrics",
        "ClusterRoleBinding nmstate-metrics",
        "Role nmstate/nmstate-monitor",
        "RoleBinding nmstate/nmstate-monitor",
        "NetworkPolicy operators/allow-operator-egress-api-6443",
        "NetworkPolicy operators/allow-operator-egress-dns",
        "NetworkPolicy operators/default-deny-labelled-operator",
        "NetworkPolicy nmstate/allow-cert-manager-egress-api-6443",
        "NetworkPolicy nmstate/allow-metrics-ingress-8443",
        "NetworkPolicy nmstate/allow-metrics-ingress-443",
        "NetworkPolicy nmstate/allow-webhook-ingress-9443",
        "NetworkPolicy nmstate/allow-webhook-ingress-443",
        "NetworkPolicy nmstate/allow-webhook-egress-api-6443",
        "NetworkPolicy nmstate/allow-webhook-egress-dns",
        "NetworkPolicy nmstate/allow-metrics-egress-api-6443",
        "NetworkPolicy nmstate/allow-metrics-egress-dns",
        "NetworkPolicy nmstate/default-deny-labelled-operand",
        WEBHOOK,
        CERT_MANAGER,
        HANDLER_SET,
        METRICS,
        "Service nmstate/nmstate-webhook",
        "Service nmstate/nmstate-monitor",
        "PodDisruptionBudget nmstate/nmstate-webhook",
        "Role nmstate/prometheus-k8s",
        "RoleBinding nmstate/prometheus-k8s",
        "ServiceMonitor nmstate/controller-manager-metrics-monitor",
        "MutatingWebhookConfiguration nmstate",
        "ValidatingAdmissionPolicy nncp-validation-policy",
        "ValidatingAdmissionPolicyBinding nncp-validation-policy-binding",
        "ValidatingAdmissionPolicy nns-spec-policy",
        "ValidatingAdmissionPolicyBinding nns-spec-policy-binding",
        "ValidatingAdmissionPolicy nmstate-handler-node",
        "ValidatingAdmissionPolicyBinding nmstate-handler-node",
    ];
    assert_eq!(names_of(&objects), expected);
    let owner = json!([{
        "apiVersion": "nmstate.io/v1", "kind": "NMState", "name": "nmstate", "uid": "1234",
        "controller": true, "blockOwnerDeletion": true,
    }]);
    for object in &objects {
        let outlives =
            ["CustomResourceDefinition", "Namespace"].contains(&object["kind"].as_str().expect("a kind"));
        let expected = if outlives { &Value::Null } else { &owner };
        assert_eq!(
            object["metadata"]["ownerReferences"],
            *expected,
            "{}",
            called(object)
        );
    }
    insta::assert_snapshot!("plain", yaml(&objects));
    insta::assert_snapshot!("openshift", yaml(&rendered(&json!({}), &openshift())));
}

/// All objects but the definitions, which have files of their own.
fn yaml(objects: &[Value]) -> String {
    let texts = objects
        .iter()
        .filter(|object| object["kind"] != "CustomResourceDefinition")
        .map(|object| serde_yaml::to_string(object).expect("YAML"));
    texts.collect::<Vec<_>>().join("---\n")
}

// nmstate#72
#[test]
fn placement_applies_to_handler_or_infrastructure() {
    let objects = rendered(&json!({}), &Facts::default());
    let linux = json!({ "kubernetes.io/os": "linux" });
    let handler = pods(&objects, HANDLER_SET);
    assert_eq!(handler["nodeSelector"], linux);
    assert_eq!(handler["tolerations"], json!([{ "operator": "Exists" }]));
    assert_eq!(handler["affinity"], Value::Null);
    let role = |weight: u8, role: &str| {
        json!({ "weight": weight, "preference": { "matchExpressions": [
            { "key": format!("node-role.kubernetes.io/{role}"), "operator": "Exists" },
        ] } })
    };
    let toleration = |role: &str| json!({ "key": format!("node-role.kubernetes.io/{role}"), "operator": "Exists", "effect": "NoSchedule" });
    for workload in [WEBHOOK, METRICS, CERT_MANAGER] {
        let pods = pods(&objects, workload);
        assert_eq!(pods["nodeSelector"], linux, "{workload}");
        assert_eq!(
            pods["tolerations"],
            json!([toleration("control-plane"), toleration("master")]),
            "{workload}"
        );
        assert_eq!(
            pods["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"],
            json!([role(10, "control-plane"), role(1, "master")]),
            "{workload}"
        );
    }

    let affinity = |key: &str| {
        json!({ "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{ "matchExpressions": [{ "key": key, "operator": "Exists" }] }],
        } } })
    };
    let spec = json!({
        "nodeSelector": { "a": "b" }, "tolerations": [{ "key": "t", "operator": "Exists" }], "affinity": affinity("x"),
        "infraNodeSelector": { "c": "d" }, "infraTolerations": [], "infraAffinity": affinity("y"),
    });
    let objects = rendered(&spec, &Facts::default());
    let handler = pods(&objects, HANDLER_SET);
    assert_eq!(handler["nodeSelector"], json!({ "a": "b" }));
    assert_eq!(
        handler["tolerations"],
        json!([{ "key": "t", "operator": "Exists" }])
    );
    assert_eq!(handler["affinity"], affinity("x"));
    for workload in [WEBHOOK, METRICS, CERT_MANAGER] {
        let pods = pods(&objects, workload);
        assert_eq!(pods["nodeSelector"], json!({ "c": "d" }), "{workload}");
        assert_eq!(pods["tolerations"], json!([]), "{workload}");
        assert_eq!(pods["affinity"], affinity("y"), "{workload}");
    }
}

// nmstate#73
#[test]
fn probe_host_is_set_on_the_handler() {
    let host = |spec: &Value| {
        let objects = rendered(spec, &Facts::default());
        variables(pods(&objects, HANDLER_SET))["PROBE_DNS_HOST"].clone()
    };
    assert_eq!(host(&json!({})), "root-servers.net");
    assert_eq!(
        host(&json!({ "probeConfiguration": { "dns": { "host": "example.org" } } })),
        "example.org"
    );
}

// nmstate#74
#[test]
fn log_level_is_set_on_the_handler_and_its_probe() {
    for (spec, args, probe) in [
        (
            json!({}),
            json!(["--zap-time-encoding=iso8601"]),
            json!(["nmstatectl", "show", "lo"]),
        ),
        (
            json!({ "logLevel": "info" }),
            json!(["--zap-time-encoding=iso8601"]),
            json!(["nmstatectl", "show", "lo"]),
        ),
        (
            json!({ "logLevel": "debug" }),
            json!(["--zap-time-encoding=iso8601", "--v", "debug"]),
            json!(["nmstatectl", "show", "lo", "-vv"]),
        ),
    ] {
        let objects = rendered(&spec, &Facts::default());
        let container = &pods(&objects, HANDLER_SET)["containers"][0];
        assert_eq!(container["args"], args, "{spec}");
        assert_eq!(container["livenessProbe"]["exec"]["command"], probe, "{spec}");
        for workload in [WEBHOOK, METRICS, CERT_MANAGER] {
            let args = &pods(&objects, workload)["containers"][0]["args"];
            assert_eq!(*args, json!(["--zap-time-encoding=iso8601"]), "{workload}");
        }
    }
}

// nmstate#75, the use of the count
#[test]
fn webhook_has_two_replicas_with_two_dedicated_nodes() {
    for (dedicated_nodes, replicas, available) in [(0, 1, 0), (1, 1, 0), (2, 2, 1), (3, 2, 1)] {
        let facts = Facts {
            dedicated_nodes,
            ..Facts::default()
        };
        let objects = rendered(&json!({}), &facts);
        assert_eq!(find(&objects, WEBHOOK)["spec"]["replicas"], replicas);
        let budget = find(&objects, "PodDisruptionBudget nmstate/nmstate-webhook");
        assert_eq!(budget["spec"]["minAvailable"], available);
        for workload in [METRICS, CERT_MANAGER] {
            assert_eq!(find(&objects, workload)["spec"]["replicas"], 1);
        }
    }
}

// nmstate#76
#[test]
fn empty_manifest_directory_is_an_error() {
    let directory = tempfile::tempdir().expect("a directory");
    let text = |path: &std::path::Path| Files::from_directory(path).expect_err("no manifests").to_string();
    let path = directory.path();
    assert_eq!(
        text(path),
        format!("no manifests rendered from {}", path.display())
    );
    let missing = path.join("missing");
    assert_eq!(
        text(&missing),
        format!("no manifests rendered from {}", missing.display())
    );
    std::fs::write(path.join("namespace.yaml"), "{").expect("a file");
    let files = Files::from_directory(path).expect("a file");
    let error = render(&nmstate(&json!({})), &settings(&[]), &Facts::default(), &files).expect_err("no YAML");
    assert_eq!(error.to_string(), "malformed manifests in file namespace.yaml");
}

// nmstate#78, the object
#[test]
fn cluster_reader_role_is_rendered_if_aggregated() {
    let name = "ClusterRole nmstate-cluster-reader";
    assert!(!names_of(&rendered(&json!({}), &Facts::default())).contains(&name.to_owned()));
    let facts = Facts {
        cluster_reader: true,
        ..Facts::default()
    };
    let objects = rendered(&json!({}), &facts);
    let role = find(&objects, name);
    let label = "rbac.authorization.k8s.io/aggregate-to-cluster-reader";
    assert_eq!(role["metadata"]["labels"][label], "true");
    assert_eq!(
        role["rules"],
        json!([
            { "nonResourceURLs": ["/metrics"], "verbs": ["get"] },
            {
                "apiGroups": ["nmstate.io"],
                "resources": [
                    "nodenetworkstates", "nodenetworkconfigurationpolicies", "nodenetworkconfigurationenactments",
                ],
                "verbs": ["get", "list", "watch"],
            },
        ])
    );
}

// The values of the table's variables, or the fields of their values.
const FIELDS: &[(&str, &str)] = &[
    ("WATCH_NAMESPACE", ""),
    ("POD_NAME", "metadata.name"),
    ("POD_NAMESPACE", "metadata.namespace"),
    ("OPERATOR_NAME", "nmstate"),
    ("ENABLE_PROFILER", "False"),
    ("PROFILER_PORT", "6060"),
];
const RELATIONSHIP: &[(&str, &str)] = &[
    ("COMPONENT", "metadata.labels['app.kubernetes.io/component']"),
    ("PART_OF", "metadata.labels['app.kubernetes.io/part-of']"),
    ("VERSION", "metadata.labels['app.kubernetes.io/version']"),
    ("MANAGED_BY", "metadata.labels['app.kubernetes.io/managed-by']"),
];
const OPENSHIFT: &[(&str, &str)] = &[("IS_OPENSHIFT", "false")];
const RUN_WEBHOOK: &[(&str, &str)] = &[("RUN_WEBHOOK_SERVER", "")];
const RUN_METRICS: &[(&str, &str)] = &[("RUN_METRICS_MANAGER", ""), ("METRICS_BIND_ADDRESS", ":8443")];
const RUN_CERT_MANAGER: &[(&str, &str)] = &[
    ("RUN_CERT_MANAGER", ""),
    ("CA_ROTATE_INTERVAL", "8760h0m0s"),
    ("CA_OVERLAP_INTERVAL", "24h0m0s"),
    ("CERT_ROTATE_INTERVAL", "4380h0m0s"),
    ("CERT_OVERLAP_INTERVAL", "24h0m0s"),
];
const OF_HANDLER: &[(&str, &str)] = &[
    ("NODE_NAME", "spec.nodeName"),
    ("NMSTATE_INSTANCE_NODE_LOCK_FILE", "/var/k8s_nmstate/handler_lock"),
    ("PROBE_DNS_HOST", "root-servers.net"),
    ("NNCP_MAX_RETRIES", "5"),
    ("NNCP_MAX_BACKOFF_SECONDS", "30"),
    ("NNCP_INITIAL_BACKOFF_SECONDS", "1"),
];

// The table of nmstate §11.
#[test]
fn workloads_follow_the_table() {
    let objects = rendered(&json!({}), &Facts::default());
    for (workload, part, expected, requests) in [
        (
            WEBHOOK,
            "webhook",
            [FIELDS, OPENSHIFT, RUN_WEBHOOK].concat(),
            ("30m", "20Mi"),
        ),
        (
            METRICS,
            "metrics",
            [FIELDS, OPENSHIFT, RUN_METRICS].concat(),
            ("30m", "20Mi"),
        ),
        (
            CERT_MANAGER,
            "cert-manager",
            [FIELDS, RELATIONSHIP, RUN_CERT_MANAGER].concat(),
            ("30m", "30Mi"),
        ),
        (
            HANDLER_SET,
            "handler",
            [FIELDS, RELATIONSHIP, OPENSHIFT, OF_HANDLER].concat(),
            ("100m", "100Mi"),
        ),
    ] {
        let object = find(&objects, workload);
        let name = format!("nmstate-{part}");
        let component = format!("kubernetes-nmstate-{part}");
        for labels in [
            &object["metadata"]["labels"],
            &object["spec"]["template"]["metadata"]["labels"],
        ] {
            assert_eq!(labels["app"], "kubernetes-nmstate", "{workload}");
            assert_eq!(labels["component"], component, "{workload}");
        }
        assert_eq!(object["spec"]["selector"]["matchLabels"], json!({ "name": name }));
        assert_eq!(object["spec"]["template"]["metadata"]["labels"]["name"], name);
        let annotations = &object["spec"]["template"]["metadata"]["annotations"];
        assert!(annotations["description"].is_string(), "{workload}");
        assert_eq!(
            annotations["target.workload.openshift.io/management"],
            r#"{"effect": "PreferredDuringScheduling"}"#
        );
        let pods = pods(&objects, workload);
        let container = &pods["containers"][0];
        let expected: BTreeMap<String, String> = expected
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect();
        assert_eq!(variables(pods), expected, "{workload}");
        assert_eq!(pods["serviceAccountName"], name, "{workload}");
        assert_eq!(container["command"], json!(["manager"]), "{workload}");
        assert_eq!(container["image"], "weft:1", "{workload}");
        assert_eq!(container["imagePullPolicy"], "IfNotPresent", "{workload}");
        assert_eq!(
            container["terminationMessagePolicy"], "FallbackToLogsOnError",
            "{workload}"
        );
        assert_eq!(
            container["resources"],
            json!({
                "requests": { "cpu": requests.0, "memory": requests.1 },
                "limits": { "cpu": "500m", "memory": "1Gi" },
            }),
            "{workload}"
        );
        let priority = if workload == HANDLER_SET {
            "system-node-critical"
        } else {
            assert_eq!(
                object["spec"]["strategy"],
                json!({ "type": "Recreate" }),
                "{workload}"
            );
            "system-cluster-critical"
        };
        assert_eq!(pods["priorityClassName"], priority, "{workload}");
    }
}

/// `binding subject` of all bindings to a role, in order.
fn bound(objects: &[Value], kind: &str, role: &str) -> Vec<String> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let bindings = objects
        .iter()
        .filter(|object| object["roleRef"]["kind"] == kind && object["roleRef"]["name"] == role);
    bindings
        .flat_map(|binding| {
            let subjects = binding["subjects"].as_array().expect("subjects").iter();
            subjects.map(move |subject| format!("{} {}", called(binding), text(&subject["name"])))
        })
        .collect()
}

/// `resource[names]: verbs` of a role's rules.
fn rules(role: &Value) -> Vec<String> {
    let words = |rule: &Value, key: &str| -> String {
        let words = rule[key].as_array().into_iter().flatten();
        let words = words.map(|word| word.as_str().expect("a word"));
        words.collect::<Vec<_>>().join(" ")
    };
    let rules = role["rules"].as_array().expect("rules").iter();
    rules
        .map(|rule| {
            let resources = words(rule, "resources");
            format!(
                "{resources}[{}]: {}",
                words(rule, "resourceNames"),
                words(rule, "verbs")
            )
        })
        .collect()
}

// nmstate#95, the objects
#[test]
fn each_program_has_its_own_account() {
    let objects = rendered(&json!({}), &Facts::default());
    let handler = find(&objects, "ClusterRole nmstate-handler");
    assert_eq!(
        rules(handler),
        [
            "nodenetworkstates[]: get list watch create update",
            "nodenetworkstates/status nodenetworkconfigurationpolicies/status \
             nodenetworkconfigurationenactments/status[]: update",
            "nodenetworkconfigurationpolicies[]: get list watch",
            "nodenetworkconfigurationenactments[]: get list watch create delete",
            "nodes[]: get list watch",
            "namespaces[default]: get",
        ]
    );
    assert_eq!(
        rules(find(&objects, "Role nmstate/nmstate-handler")),
        ["pods[]: list", "configmaps[nmstate-config]: get"]
    );
    assert_eq!(
        rules(find(&objects, "ClusterRole nmstate-cert-manager")),
        ["mutatingwebhookconfigurations[nmstate]: get list watch update"]
    );
    assert_eq!(
        rules(find(&objects, "Role nmstate/nmstate-cert-manager")),
        [
            "secrets[nmstate-ca nmstate-webhook]: get list watch update",
            "secrets[]: create"
        ]
    );
    assert_eq!(
        rules(find(&objects, "ClusterRole nmstate-metrics")),
        [
            "nodenetworkstates nodenetworkconfigurationpolicies nodenetworkconfigurationenactments[]: list watch"
        ]
    );
    // No account has the role of another program.
    for name in ["nmstate-handler", "nmstate-cert-manager", "nmstate-metrics"] {
        assert_eq!(
            bound(&objects, "ClusterRole", name),
            [format!("ClusterRoleBinding {name} {name}")]
        );
    }
    for name in ["nmstate-handler", "nmstate-cert-manager"] {
        assert_eq!(
            bound(&objects, "Role", name),
            [format!("RoleBinding nmstate/{name} {name}")]
        );
    }
    let webhook = objects.iter().find(|object| {
        let mut subjects = object["subjects"].as_array().into_iter().flatten();
        subjects.any(|subject| subject["name"] == "nmstate-webhook")
    });
    assert_eq!(webhook, None, "it requests nothing");
    assert_eq!(pods(&objects, WEBHOOK)["automountServiceAccountToken"], false);
}

// nmstate#95, on OpenShift
#[test]
fn only_the_handler_is_privileged_on_openshift() {
    let objects = rendered(&json!({}), &openshift());
    let names = names_of(&objects);
    let of_cert_manager = names.iter().filter(|name| name.contains("cert-manager"));
    assert_eq!(of_cert_manager.count(), 0, "{names:#?}");
    let users: Vec<String> = objects
        .iter()
        .filter(|object| object["rules"].to_string().contains("securitycontextconstraints"))
        .map(called)
        .collect();
    assert_eq!(users, ["ClusterRole nmstate-handler"]);
    for workload in [WEBHOOK, METRICS] {
        let security = &pods(&objects, workload)["securityContext"];
        assert_eq!(
            *security,
            json!({ "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } }),
            "{workload}"
        );
    }
    let metrics = rules(find(&objects, "ClusterRole nmstate-metrics"));
    assert_eq!(
        metrics[1..],
        ["tokenreviews[]: create", "subjectaccessreviews[]: create"]
    );
}

// nmstate#97, the object
#[test]
fn admission_of_node_states_needs_the_right_to_write_policies() {
    let objects = rendered(&json!({}), &Facts::default());
    let spec = &find(&objects, "ValidatingAdmissionPolicy nns-spec-policy")["spec"];
    assert_eq!(spec["failurePolicy"], "Fail");
    assert_eq!(
        spec["matchConstraints"]["resourceRules"],
        json!([{
            "apiGroups": ["nmstate.io"], "apiVersions": ["v1", "v1beta1", "v1alpha1"],
            "operations": ["CREATE", "UPDATE"], "resources": ["nodenetworkstates"], "scope": "*",
        }])
    );
    let [validation] = spec["validations"].as_array().expect("validations").as_slice() else {
        panic!("{spec:#}");
    };
    assert_eq!(
        validation["expression"],
        "!variables.specChanged || \
         authorizer.group('nmstate.io').resource('nodenetworkconfigurationpolicies').check('create').allowed()"
    );
    assert_eq!(
        validation["message"],
        "the spec of a NodeNetworkState takes the right to create nodenetworkconfigurationpolicies"
    );
    assert_eq!(validation["reason"], "Forbidden");
    let binding = &find(
        &objects,
        "ValidatingAdmissionPolicyBinding nns-spec-policy-binding",
    )["spec"];
    assert_eq!(
        *binding,
        json!({ "policyName": "nns-spec-policy", "validationActions": ["Deny"] })
    );
}

// nmstate#98, the object
#[test]
fn admission_restricts_handlers_to_their_node() {
    let condition = |objects: &[Value], name: &str| {
        let policy = &find(objects, &format!("ValidatingAdmissionPolicy {name}"))["spec"];
        policy["matchConditions"][0]["expression"].clone()
    };
    let objects = rendered(&json!({}), &Facts::default());
    assert_eq!(
        condition(&objects, "nmstate-handler-node"),
        "request.userInfo.username == 'system:serviceaccount:nmstate:nmstate-handler'"
    );
    let settings = settings(&[("HANDLER_NAMESPACE", "other"), ("HANDLER_PREFIX", "my")]);
    let (nmstate, files) = (nmstate(&json!({})), Files::embedded());
    let objects = render(&nmstate, &settings, &Facts::default(), &files).expect("objects");
    assert_eq!(
        condition(&objects, "my-nmstate-handler-node"),
        "request.userInfo.username == 'system:serviceaccount:other:my-nmstate-handler'"
    );
    let binding = find(
        &objects,
        "ValidatingAdmissionPolicyBinding my-nmstate-handler-node",
    );
    assert_eq!(binding["spec"]["policyName"], "my-nmstate-handler-node");
}

// The row of the handler in nmstate §11.
#[test]
fn handler_mounts_the_host_paths() {
    let objects = rendered(&json!({}), &Facts::default());
    let handler = pods(&objects, HANDLER_SET);
    assert_eq!(handler["hostNetwork"], true);
    assert_eq!(handler["dnsPolicy"], "Default");
    let container = &handler["containers"][0];
    assert_eq!(container["securityContext"], json!({ "privileged": true }));
    assert_eq!(
        find(&objects, HANDLER_SET)["spec"]["updateStrategy"],
        json!({ "type": "RollingUpdate", "rollingUpdate": { "maxUnavailable": "10%" } })
    );
    let paths = |list: &Value, path: fn(&Value) -> &Value| -> BTreeMap<String, String> {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let entries = list.as_array().expect("a list").iter();
        entries
            .map(|entry| (text(&entry["name"]), text(path(entry))))
            .collect()
    };
    let volumes = paths(&handler["volumes"], |volume| &volume["hostPath"]["path"]);
    let mounts = paths(&container["volumeMounts"], |mount| &mount["mountPath"]);
    assert_eq!(volumes, mounts);
    let expected = [
        "/etc/systemd/network",
        "/run/dbus/system_bus_socket",
        "/run/openvswitch",
        "/var/k8s_nmstate",
    ];
    let mut found: Vec<&str> = volumes.values().map(String::as_str).collect();
    found.sort_unstable();
    assert_eq!(found, expected);
    for volume in handler["volumes"].as_array().expect("volumes") {
        let bus = volume["hostPath"]["path"] == "/run/dbus/system_bus_socket";
        let kind = if bus { "Socket" } else { "DirectoryOrCreate" };
        assert_eq!(volume["hostPath"]["type"], kind);
    }
    let ready = &container["readinessProbe"];
    assert_eq!(ready["exec"]["command"], json!(["/weft-nmstate", "healthy"]));
    assert_eq!(
        (
            &ready["initialDelaySeconds"],
            &ready["periodSeconds"],
            &ready["timeoutSeconds"]
        ),
        (&json!(5), &json!(5), &json!(1))
    );
    let alive = &container["livenessProbe"];
    assert_eq!(
        (
            &alive["initialDelaySeconds"],
            &alive["periodSeconds"],
            &alive["timeoutSeconds"],
            &alive["failureThreshold"]
        ),
        (&json!(60), &json!(60), &json!(10), &json!(5))
    );
}

#[test]
fn handler_configuration_becomes_variables() {
    let spec = json!({ "handlerConfiguration": { "backend": "kernel", "originalDesign": false, "driftSeconds": 600 } });
    let objects = rendered(&spec, &Facts::default());
    let handler = pods(&objects, HANDLER_SET);
    let found = variables(handler);
    assert_eq!(found["WEFT_NMSTATE_BACKEND"], "kernel");
    assert_eq!(found["WEFT_NMSTATE_ORIGINAL_DESIGN"], "false");
    assert_eq!(found["WEFT_NMSTATE_DRIFT_SECONDS"], "600");
    // A missing socket prevents the start of a pod.
    assert!(!handler.to_string().contains("system_bus_socket"), "{handler:#}");
}

#[test]
fn certificate_intervals_have_separate_defaults() {
    let spec = json!({ "selfSignConfiguration": { "caRotateInterval": "1h", "certOverlapInterval": "1m" } });
    let objects = rendered(&spec, &Facts::default());
    let found = variables(pods(&objects, CERT_MANAGER));
    let intervals = [
        "CA_ROTATE_INTERVAL",
        "CA_OVERLAP_INTERVAL",
        "CERT_ROTATE_INTERVAL",
        "CERT_OVERLAP_INTERVAL",
    ];
    assert_eq!(
        intervals.map(|name| found[name].as_str()),
        ["1h", "24h0m0s", "4380h0m0s", "1m"]
    );
}

// nmstate §10.2, §10.5, §10.6 and §11, the parts about OpenShift
#[test]
fn openshift_provides_certificates_and_tls_profile() {
    let objects = rendered(&json!({}), &openshift());
    let found = names_of(&objects);
    for absent in [
        CERT_MANAGER,
        "NetworkPolicy nmstate/allow-cert-manager-egress-api-6443",
    ] {
        assert!(!found.contains(&absent.to_owned()), "{absent}");
    }
    let config = find(&objects, "ConfigMap nmstate/nmstate-tls-config");
    let profile = r#"{"ciphers":[],"minTLSVersion":"VersionTLS12"}"#;
    assert_eq!(config["data"]["profile.json"], profile);
    // printf '…' | sha256sum
    let hash = "36e121f8ce214973f106900f4f3de2a580b92feaec16734f958b4dbab4d7aac1";
    for (workload, secret) in [
        (WEBHOOK, "openshift-nmstate-webhook"),
        (METRICS, "openshift-nmstate-metrics"),
    ] {
        let template = &find(&objects, workload)["spec"]["template"];
        let annotated = &template["metadata"]["annotations"]["nmstate.io/tls-profile-hash"];
        assert_eq!(annotated, hash);
        let volumes = template["spec"]["volumes"].to_string();
        assert!(
            volumes.contains(secret) && volumes.contains("nmstate-tls-config"),
            "{volumes}"
        );
        let mounts = template["spec"]["containers"][0]["volumeMounts"].to_string();
        assert!(mounts.contains("/etc/nmstate/tls"), "{mounts}");
        assert_eq!(variables(&template["spec"])["IS_OPENSHIFT"], "true");
    }
    let metrics = pods(&objects, METRICS)["containers"][0]["volumeMounts"].to_string();
    assert!(
        metrics.contains("/tmp/k8s-metrics-server/serving-certs"),
        "{metrics}"
    );
    let rules = find(&objects, "ClusterRole nmstate-handler")["rules"].to_string();
    assert!(
        rules.contains(r#""resourceNames":["privileged"],"verbs":["use"]"#),
        "{rules}"
    );
    let space = &find(&objects, "Namespace nmstate")["metadata"];
    assert_eq!(space["annotations"]["openshift.io/node-selector"], "");
    assert_eq!(space["labels"]["openshift.io/cluster-monitoring"], "true");
    let records = find(
        &objects,
        "PrometheusRule nmstate/kubernetes-nmstate-prometheus-rules",
    )
    .to_string();
    for record in [
        "cluster:kubernetes_nmstate_features_applied:sum",
        "cluster:kubernetes_nmstate_network_interfaces:sum",
        "cluster:kubernetes_nmstate_routes:sum",
    ] {
        assert!(records.contains(record), "{record}");
    }
    for name in [
        "ServiceAccount nmstate/nmstate-console-plugin",
        "ConfigMap nmstate/nginx-conf",
        "Service nmstate/nmstate-console-plugin",
        "Deployment nmstate/nmstate-console-plugin",
        "NetworkPolicy nmstate/allow-plugin-nmstate-console-plugin-ingress",
        "ConsolePlugin nmstate-console-plugin",
    ] {
        assert!(found.contains(&name.to_owned()), "{name}");
    }
    // Without infrastructure settings, it runs anywhere.
    let plugin = pods(&objects, "Deployment nmstate/nmstate-console-plugin");
    assert_eq!((plugin.get("affinity"), plugin.get("tolerations")), (None, None));
    let placed = rendered(&json!({ "infraNodeSelector": { "infra": "" } }), &openshift());
    let plugin = pods(&placed, "Deployment nmstate/nmstate-console-plugin");
    assert_eq!(plugin["nodeSelector"], json!({ "infra": "" }));
}

#[test]
fn names_and_namespaces_follow_the_environment() {
    let settings = settings(&[
        ("HANDLER_NAMESPACE", "monitoring"),
        ("MONITORING_NAMESPACE", "prometheus"),
        ("HANDLER_PREFIX", "my"),
        ("HANDLER_IMAGE_PULL_POLICY", "Always"),
        ("NNCP_MAX_RETRIES", "9"),
        ("PLUGIN_NAME", "pages"),
        ("PLUGIN_IMAGE", "pages:2"),
        ("PLUGIN_PORT", "8444"),
    ]);
    let objects = render(
        &nmstate(&json!({})),
        &settings,
        &Facts::default(),
        &Files::embedded(),
    )
    .expect("objects");
    let handler = pods(&objects, "DaemonSet monitoring/my-nmstate-handler");
    assert_eq!(handler["serviceAccountName"], "my-nmstate-handler");
    assert_eq!(
        rules(find(&objects, "ClusterRole my-nmstate-cert-manager")),
        ["mutatingwebhookconfigurations[my-nmstate]: get list watch update"]
    );
    assert_eq!(
        rules(find(&objects, "Role monitoring/my-nmstate-cert-manager"))[0],
        "secrets[my-nmstate-ca my-nmstate-webhook]: get list watch update"
    );
    assert_eq!(handler["containers"][0]["imagePullPolicy"], "Always");
    assert_eq!(variables(handler)["NNCP_MAX_RETRIES"], "9");
    assert_eq!(
        variables(pods(&objects, "Deployment monitoring/my-nmstate-cert-manager"))["HANDLER_PREFIX"],
        "my"
    );
    let webhook = find(&objects, "MutatingWebhookConfiguration my-nmstate");
    for hook in webhook["webhooks"].as_array().expect("webhooks") {
        assert_eq!(hook["clientConfig"]["service"]["name"], "my-nmstate-webhook");
        assert_eq!(hook["clientConfig"]["service"]["namespace"], "monitoring");
    }
    let secret =
        &pods(&objects, "Deployment monitoring/my-nmstate-webhook")["volumes"][0]["secret"]["secretName"];
    assert_eq!(secret, "my-nmstate-webhook");
    let binding = find(&objects, "RoleBinding monitoring/my-nmstate-monitor");
    assert_eq!(binding["roleRef"]["name"], "my-nmstate-monitor");
    assert_eq!(binding["subjects"][0]["namespace"], "prometheus");
    let policy = find(&objects, "NetworkPolicy monitoring/allow-metrics-ingress-8443");
    assert_eq!(
        policy["spec"]["ingress"][0]["from"][0]["namespaceSelector"]["matchLabels"],
        json!({ "kubernetes.io/metadata.name": "prometheus" })
    );
    let objects = render(&nmstate(&json!({})), &settings, &openshift(), &Files::embedded()).expect("objects");
    let plugin = find(&objects, "Deployment monitoring/pages");
    assert_eq!(
        plugin["spec"]["template"]["spec"]["containers"][0]["image"],
        "pages:2"
    );
    assert_eq!(
        find(&objects, "ConsolePlugin pages")["spec"]["backend"]["service"]["port"],
        8444
    );
    let config = find(&objects, "ConfigMap monitoring/nginx-conf")["data"]["nginx.conf"].to_string();
    assert!(config.contains("[::]:8444 ssl"), "{config}");
    assert!(names_of(&objects).contains(&"NetworkPolicy monitoring/allow-plugin-pages-ingress".to_owned()));
}

// nmstate#117
#[test]
fn metrics_port_and_replicas_follow_the_bind_address() {
    for (address, replicas, port) in [
        (None, 1, 8443),
        (Some(":8089"), 1, 8443),
        (Some("nowhere"), 1, 8443),
        (Some(":9090"), 1, 9090),
        (Some("192.0.2.1:9090"), 1, 9090),
        (Some("0"), 0, 8443),
    ] {
        let spec = address.map_or_else(
            || json!({}),
            |address| json!({ "metricsConfiguration": { "bindAddress": address } }),
        );
        let objects = rendered(&spec, &Facts::default());
        let metrics = find(&objects, METRICS);
        assert_eq!(metrics["spec"]["replicas"], replicas, "{spec}");
        let container = &pods(&objects, METRICS)["containers"][0];
        assert_eq!(container["ports"][0]["containerPort"], port, "{spec}");
        assert_eq!(
            variables(pods(&objects, METRICS))["METRICS_BIND_ADDRESS"],
            format!(":{port}"),
            "{spec}"
        );
        let policy = find(&objects, "NetworkPolicy nmstate/allow-metrics-ingress-8443");
        assert_eq!(policy["spec"]["ingress"][0]["ports"][0]["port"], port, "{spec}");
        // Prometheus uses the Service, which knows the port by name.
        let service = find(&objects, "Service nmstate/nmstate-monitor");
        let asked = &service["spec"]["ports"][0];
        assert_eq!(
            (&asked["port"], &asked["targetPort"]),
            (&json!(8443), &json!("metrics"))
        );
    }
}

#[test]
fn network_policies_permit_the_api_ports() {
    let facts = Facts {
        api_ports: vec![443, 6443],
        ..Facts::default()
    };
    let objects = rendered(&json!({}), &facts);
    for name in [
        "NetworkPolicy operators/allow-operator-egress-api-6443",
        "NetworkPolicy nmstate/allow-cert-manager-egress-api-6443",
        "NetworkPolicy nmstate/allow-webhook-egress-api-6443",
        "NetworkPolicy nmstate/allow-metrics-egress-api-6443",
    ] {
        assert_eq!(
            find(&objects, name)["spec"]["egress"][0]["ports"],
            json!([{ "protocol": "TCP", "port": 6443 }, { "protocol": "TCP", "port": 443 }]),
            "{name}"
        );
    }
}

#[test]
fn relationship_labels_are_copied_to_pods() {
    let mut nmstate = nmstate(&json!({}));
    nmstate.metadata.labels = Some([("app.kubernetes.io/part-of".to_owned(), "hyper".to_owned())].into());
    let objects = render(&nmstate, &settings(&[]), &Facts::default(), &Files::embedded()).expect("objects");
    let handler = find(&objects, HANDLER_SET);
    let label = "app.kubernetes.io/part-of";
    assert_eq!(handler["metadata"]["labels"][label], "hyper");
    assert_eq!(handler["spec"]["template"]["metadata"]["labels"][label], "hyper");
}

#[test]
fn settings_need_namespace_and_image() {
    let none = Settings::read(|_| None).expect_err("nothing is set").to_string();
    assert_eq!(none, "environment variable HANDLER_NAMESPACE is not set");
    let image = Settings::read(|name| (name == "HANDLER_NAMESPACE").then(|| "a".to_owned()));
    assert_eq!(
        image.expect_err("no image").to_string(),
        "environment variable RELATED_IMAGE_HANDLER_IMAGE is not set"
    );
}
