//! Operands §8.

mod definition;

use super::*;

const NAME: &str = "kubevirt-ipam-controller-manager";
const SERVICE: &str = "kubevirt-ipam-controller-webhook-service";

/// The issuer of the webhook's certificate.
#[derive(Clone, Copy, PartialEq)]
enum Issuer {
    CertManager,
    OpenShift,
    Operator,
}

fn labelled(mut object: Value) -> Value {
    object["metadata"]["labels"] = json!({ "app": "ipam-virt-workloads" });
    object
}

fn access(native: bool) -> Vec<Value> {
    let all = json!(["get", "list", "watch", "create", "update", "patch", "delete"]);
    let election = "kubevirt-ipam-controller-leader-election-role";
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": { "name": election, "namespace": "addons" },
        "rules": [
            { "apiGroups": [""], "resources": ["configmaps"], "verbs": all },
            { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": all },
            { "apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"] },
        ],
    });
    let watching = json!(["get", "list", "watch"]);
    let rules = json!([
        { "apiGroups": [""], "resources": ["pods"], "verbs": watching },
        {
            "apiGroups": ["kubevirt.io"], "resources": ["virtualmachines", "virtualmachineinstances"],
            "verbs": watching,
        },
        {
            "apiGroups": ["kubevirt.io"],
            "resources": ["virtualmachines/finalizers", "virtualmachineinstances/finalizers"],
            "verbs": ["update"],
        },
        {
            "apiGroups": ["k8s.cni.cncf.io"], "resources": ["ipamclaims", "network-attachment-definitions"],
            "verbs": watching,
        },
        { "apiGroups": ["k8s.cni.cncf.io"], "resources": ["ipamclaims"], "verbs": ["create", "update"] },
    ]);
    let (role, rules) = if native {
        native_access(election)
    } else {
        (role, rules)
    };
    let mut to_elect = binding(
        "RoleBinding",
        "kubevirt-ipam-controller-leader-election-rolebinding",
        election,
        NAME,
    );
    to_elect["roleRef"]["kind"] = json!("Role");
    let manager = "kubevirt-ipam-controller-manager-role";
    let to_manage = binding(
        "ClusterRoleBinding",
        "kubevirt-ipam-controller-manager-rolebinding",
        manager,
        NAME,
    );
    vec![
        labelled(service_account(NAME)),
        labelled(role),
        labelled(cluster_role(manager, &rules)),
        labelled(to_elect),
        labelled(to_manage),
    ]
}

/// kubevirt-ipam §10: the rights that Weft's program uses.
fn native_access(election: &str) -> (Value, Value) {
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role",
        "metadata": { "name": election, "namespace": "addons" },
        "rules": [
            { "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create"] },
            {
                "apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "resourceNames": ["71d89df3"],
                "verbs": ["get", "update"],
            },
        ],
    });
    let watching = json!(["get", "list", "watch"]);
    let rules = json!([
        {
            "apiGroups": ["kubevirt.io"], "resources": ["virtualmachines", "virtualmachineinstances"],
            "verbs": watching,
        },
        {
            "apiGroups": ["kubevirt.io"],
            "resources": ["virtualmachines/finalizers", "virtualmachineinstances/finalizers"],
            "verbs": ["update"],
        },
        { "apiGroups": ["k8s.cni.cncf.io"], "resources": ["network-attachment-definitions"], "verbs": watching },
        {
            "apiGroups": ["k8s.cni.cncf.io"], "resources": ["ipamclaims"],
            "verbs": ["get", "list", "watch", "create", "update", "delete"],
        },
        { "apiGroups": ["k8s.cni.cncf.io"], "resources": ["ipamclaims/status"], "verbs": ["update"] },
        { "apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"] },
    ]);
    (role, rules)
}

/// kubevirt-ipam §11: one replica remains when nodes are drained.
fn disruption() -> Value {
    labelled(json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": { "name": NAME, "namespace": "addons" },
        "spec": {
            "minAvailable": 1,
            "selector": { "matchLabels": { "app": "ipam-virt-workloads", "control-plane": "manager" } },
        },
    }))
}

fn service(issuer: Issuer) -> Value {
    let mut service = labelled(json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": { "name": SERVICE, "namespace": "addons" },
        "spec": {
            "ports": [{ "port": 443, "protocol": "TCP", "targetPort": 9443 }],
            "selector": { "app": "ipam-virt-workloads", "control-plane": "manager" },
        },
    }));
    if issuer == Issuer::OpenShift {
        service["metadata"]["annotations"] =
            json!({ "service.beta.openshift.io/serving-cert-secret-name": SERVICE });
    }
    service
}

fn deployment(setting: Setting, issuer: Issuer, arguments: &[&str]) -> Value {
    let (secret, directory) = if issuer == Issuer::OpenShift {
        (SERVICE, "/etc/ipam-controller/certificates")
    } else {
        ("webhook-server-cert", "/tmp/k8s-webhook-server/serving-certs")
    };
    let mut container = json!({
        "name": "manager",
        "image": "ipam:1",
        "imagePullPolicy": "IfNotPresent",
        "command": ["/manager"],
        "args": arguments,
        "env": [{ "name": "LOG_LEVEL", "value": "0" }],
        "ports": [{ "name": "webhook-server", "containerPort": 9443, "protocol": "TCP" }],
        "livenessProbe": {
            "httpGet": { "path": "/healthz", "port": 8081 }, "initialDelaySeconds": 15, "periodSeconds": 20,
        },
        "readinessProbe": {
            "httpGet": { "path": "/readyz", "port": 8081 }, "initialDelaySeconds": 5, "periodSeconds": 10,
        },
        "resources": { "requests": { "cpu": "10m", "memory": "128Mi" } },
        "securityContext": { "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } },
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{ "name": "cert", "mountPath": directory, "readOnly": true }],
    });
    let mut security = json!({ "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } });
    if setting.native {
        container["image"] = json!("weft:1");
        container["command"] = json!(["/weft", "kubevirt-ipam"]);
        container["readinessProbe"] =
            json!({ "httpGet": { "path": "/readyz", "port": 8081 }, "periodSeconds": 1 });
        container["securityContext"]["readOnlyRootFilesystem"] = json!(true);
        if !setting.scc {
            security["runAsUser"] = json!(65532);
        }
    }
    let mut annotations = json!({ "kubectl.kubernetes.io/default-container": "manager" });
    if setting.openshift4 {
        annotations["openshift.io/required-scc"] = json!("restricted-v2");
    }
    let selector = json!({ "app": "ipam-virt-workloads", "control-plane": "manager" });
    let mut labels = selector.clone();
    labels["allow-access-cluster-services"] = json!("");
    let role = |name: &str| json!({ "matchExpressions": [{ "key": name, "operator": "Exists" }] });
    let mut affinity = json!({ "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [
        { "weight": 10, "preference": role("node-role.kubernetes.io/control-plane") },
        { "weight": 1, "preference": role("node-role.kubernetes.io/master") },
    ] } });
    if setting.native {
        affinity["podAntiAffinity"] = json!({ "preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 100,
            "podAffinityTerm": {
                "topologyKey": "kubernetes.io/hostname", "labelSelector": { "matchLabels": selector },
            },
        }] });
    }
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": { "name": NAME, "namespace": "addons", "labels": selector },
        "spec": {
            "replicas": 2,
            "selector": { "matchLabels": selector },
            "template": {
                "metadata": { "labels": labels, "annotations": annotations },
                "spec": {
                    "serviceAccountName": NAME,
                    "priorityClassName": "system-cluster-critical",
                    "terminationGracePeriodSeconds": 10,
                    "securityContext": security,
                    "affinity": affinity,
                    "containers": [container],
                    "volumes": [{ "name": "cert", "secret": { "secretName": secret, "defaultMode": 420 } }],
                },
            },
        },
    })
}

fn certificate() -> [Value; 2] {
    let metadata = |name: &str| json!({ "name": name, "namespace": "addons" });
    let issuer = "kubevirt-ipam-controller-selfsigned-issuer";
    [
        labelled(json!({
            "apiVersion": "cert-manager.io/v1", "kind": "Certificate",
            "metadata": metadata("kubevirt-ipam-controller-serving-cert"),
            "spec": {
                "dnsNames": [
                    "kubevirt-ipam-controller-webhook-service.addons.svc",
                    "kubevirt-ipam-controller-webhook-service.addons.svc.cluster.local",
                ],
                "issuerRef": { "kind": "Issuer", "name": issuer },
                "secretName": "webhook-server-cert",
            },
        })),
        labelled(json!({
            "apiVersion": "cert-manager.io/v1", "kind": "Issuer", "metadata": metadata(issuer),
            "spec": { "selfSigned": {} },
        })),
    ]
}

fn webhook(issuer: Issuer, native: bool) -> [Value; 2] {
    let mut configuration = labelled(json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": "kubevirt-ipam-controller-mutating-webhook-configuration" },
        "webhooks": [{
            "name": "ipam-claims.k8s.cni.cncf.io",
            "admissionReviewVersions": ["v1"],
            "clientConfig": { "service": { "name": SERVICE, "namespace": "addons", "path": "/mutate-v1-pod" } },
            "failurePolicy": "Fail",
            "sideEffects": "None",
            "objectSelector": { "matchLabels": { "kubevirt.io": "virt-launcher" } },
            "rules": [{
                "apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["pods"],
            }],
        }],
    }));
    if native {
        configuration["webhooks"][0]["matchConditions"] = json!([
            {
                "name": "runs-a-virtual-machine",
                "expression": "has(object.metadata.annotations) && 'kubevirt.io/domain' in object.metadata.annotations",
            },
            {
                "name": "changes-annotations",
                "expression": "request.operation != 'UPDATE' || !has(object.metadata.annotations) || \
                    !has(oldObject.metadata.annotations) || \
                    object.metadata.annotations != oldObject.metadata.annotations",
            },
        ]);
    }
    match issuer {
        Issuer::CertManager => {
            configuration["metadata"]["annotations"] =
                json!({ "cert-manager.io/inject-ca-from": "addons/kubevirt-ipam-controller-serving-cert" });
        }
        Issuer::OpenShift => {
            configuration["metadata"]["annotations"] =
                json!({ "service.beta.openshift.io/inject-cabundle": "true" });
        }
        Issuer::Operator => {}
    }
    let policy = labelled(json!({
        "apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
        "metadata": { "name": "kubevirt-ipam-controller-allow-ingress-to-ipam-ext-webhook", "namespace": "addons" },
        "spec": {
            "podSelector": { "matchLabels": { "app": "ipam-virt-workloads" } },
            "policyTypes": ["Ingress"],
            "ingress": [{ "ports": [{ "protocol": "TCP", "port": 9443 }] }],
        },
    }));
    [configuration, policy]
}

fn expected(setting: Setting, issuer: Issuer, arguments: &[&str]) -> Vec<Value> {
    let mut all = Vec::new();
    if !setting.openshift4 {
        all.push(definition::expected());
    }
    let mut own_namespace = namespace();
    own_namespace["metadata"]["labels"] = json!({ "app": "ipam-virt-workloads", "control-plane": "manager" });
    all.push(own_namespace);
    all.extend(access(setting.native));
    all.extend([service(issuer), deployment(setting, issuer, arguments)]);
    if setting.native {
        all.push(disruption());
    }
    if issuer == Issuer::CertManager {
        all.extend(certificate());
    }
    all.extend(webhook(issuer, setting.native));
    all
}

fn render(setting: Setting) -> Vec<Value> {
    let mut objects = setting.render("kubevirtIpamController", json!({ "kubevirtIpamController": {} }));
    for object in &mut objects {
        if object["kind"] == "CustomResourceDefinition" {
            *object = without_descriptions(object.take());
        }
    }
    objects
}

// operands#13
#[test]
fn on_kubernetes_the_definition_comes_first_and_certificates_from_cert_manager_or_the_operator() {
    for (native, issuer) in [(false, Issuer::CertManager), (true, Issuer::Operator)] {
        for scc in [false, true] {
            let setting = Setting {
                native,
                scc,
                ..Setting::default()
            };
            let arguments = [
                "--leader-elect",
                "--certificates-dir=",
                "--tls-min-version=VersionTLS13",
            ];
            assert_objects(&render(setting), &expected(setting, issuer, &arguments));
        }
    }
}

// operands#13, kubevirt-ipam#79
#[test]
fn openshift_has_no_definition_and_certificates_of_the_platform() {
    for native in [false, true] {
        let setting = Setting {
            native,
            scc: true,
            openshift4: true,
            openshift_network: true,
            ..Setting::default()
        };
        let arguments = [
            "--leader-elect",
            "--certificates-dir=/etc/ipam-controller/certificates",
            "--tls-min-version=VersionTLS13",
        ];
        assert_objects(
            &render(setting),
            &expected(setting, Issuer::OpenShift, &arguments),
        );
    }
}

// operands#13, kubevirt-ipam#80, kubevirt-ipam#81 for Modern and both Custom profiles
#[test]
fn optional_arguments_exist_only_when_they_are_set() {
    let arguments = |spec: Value| -> Vec<String> {
        let objects = Setting::default().render("kubevirtIpamController", spec);
        let deployment = objects.iter().find(|object| object["kind"] == "Deployment");
        let arguments =
            &deployment.expect("a Deployment")["spec"]["template"]["spec"]["containers"][0]["args"];
        serde_json::from_value(arguments.clone()).expect("arguments")
    };
    let custom = |ciphers: Value, version: &str| json!({ "type": "Custom", "custom": { "ciphers": ciphers, "minTLSVersion": version } });
    assert_eq!(
        arguments(json!({
            "kubevirtIpamController": { "defaultNetworkNADNamespace": "test" },
            "tlsSecurityProfile": custom(json!(["AES128-SHA", "AES256-SHA"]), "VersionTLS12"),
        })),
        [
            "--leader-elect",
            "--certificates-dir=",
            "--default-network-nad-namespace=test",
            "--tls-min-version=VersionTLS12",
            "--tls-cipher-suites=TLS_RSA_WITH_AES_128_CBC_SHA,TLS_RSA_WITH_AES_256_CBC_SHA",
        ]
    );
    for profile in [
        json!(null),
        custom(json!(["TLS_AES_128_GCM_SHA256"]), "VersionTLS13"),
    ] {
        let spec = json!({
            "kubevirtIpamController": { "defaultNetworkNADNamespace": "" }, "tlsSecurityProfile": profile,
        });
        assert_eq!(
            arguments(spec),
            [
                "--leader-elect",
                "--certificates-dir=",
                "--tls-min-version=VersionTLS13"
            ]
        );
    }
}

// kubevirt-ipam#81
#[test]
fn profiles_of_tls_become_arguments() {
    let arguments = |profile: &str| -> Vec<String> {
        let spec = json!({ "kubevirtIpamController": {}, "tlsSecurityProfile": { "type": profile } });
        let objects = Setting::default().render("kubevirtIpamController", spec);
        let deployment = objects.iter().find(|object| object["kind"] == "Deployment");
        let arguments =
            &deployment.expect("a Deployment")["spec"]["template"]["spec"]["containers"][0]["args"];
        serde_json::from_value(arguments.clone()).expect("arguments")
    };
    for (profile, version, ciphers) in [
        ("Old", "VersionTLS10", true),
        ("Intermediate", "VersionTLS12", true),
        ("Modern", "VersionTLS13", false),
    ] {
        let arguments = arguments(profile);
        assert_eq!(arguments[2], format!("--tls-min-version={version}"));
        let flag = arguments.get(3).map(String::as_str).unwrap_or_default();
        let prefix = "--tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,";
        assert_eq!(flag.starts_with(prefix), ciphers, "{arguments:?}");
    }
}

#[test]
fn an_infra_placement_reaches_the_controller() {
    let placement = |placement: Value| -> [Option<Value>; 3] {
        let spec = json!({ "kubevirtIpamController": {}, "placementConfiguration": placement });
        let objects = Setting::default().render("kubevirtIpamController", spec);
        let deployment = objects.iter().find(|object| object["kind"] == "Deployment");
        let pod = &deployment.expect("a Deployment")["spec"]["template"]["spec"];
        ["nodeSelector", "affinity", "tolerations"].map(|key| pod.get(key).cloned())
    };
    let node = json!({ "kubernetes.io/hostname": "node01" });
    assert_eq!(
        placement(json!({ "infra": { "nodeSelector": node }, "workloads": {} })),
        [Some(node), Some(json!({})), None]
    );
    assert_eq!(placement(json!({ "infra": {} })), [None, Some(json!({})), None]);
}

#[test]
fn the_container_is_reported() {
    for (native, image) in [(false, "ipam:1"), (true, "weft:1")] {
        assert_containers(
            native,
            json!({ "kubevirtIpamController": {} }),
            &[["Deployment", NAME, "manager", image]],
        );
    }
}

#[test]
fn the_namespace_of_the_operator_keeps_the_label_of_the_component_alone() {
    let groups = Setting::default().with(json!({ "kubevirtIpamController": {} }), |context| {
        super::super::render(context, &stamps::stamp()).expect("objects")
    });
    let objects = groups.iter().flat_map(|group| &group.objects);
    let namespaces: Vec<_> = objects.filter(|object| object["kind"] == "Namespace").collect();
    assert_eq!(namespaces.len(), 1);
    assert_eq!(
        namespaces[0]["metadata"],
        json!({ "name": "addons", "labels": { "app": "ipam-virt-workloads" } })
    );
}

// The list of operator §9.3.
#[test]
fn objects_of_the_first_release_go() {
    let found = |openshift4| -> Vec<String> {
        let setting = Setting {
            openshift4,
            ..Setting::default()
        };
        setting.with(json!({ "kubevirtIpamController": {} }), |context| {
            leftovers(context).iter().map(|(_, id)| id.to_string()).collect()
        })
    };
    let everywhere = [
        "(admissionregistration.k8s.io/v1, Kind=MutatingWebhookConfiguration) \
         /kubevirt-ipam-claims-mutating-webhook-configuration",
        "(apps/v1, Kind=Deployment) addons/kubevirt-ipam-claims-controller-manager",
        "(/v1, Kind=ServiceAccount) addons/kubevirt-ipam-claims-controller-manager",
        "(rbac.authorization.k8s.io/v1, Kind=Role) addons/kubevirt-ipam-claims-leader-election-role",
        "(rbac.authorization.k8s.io/v1, Kind=ClusterRole) /kubevirt-ipam-claims-manager-role",
        "(rbac.authorization.k8s.io/v1, Kind=RoleBinding) \
         addons/kubevirt-ipam-claims-leader-election-rolebinding",
        "(rbac.authorization.k8s.io/v1, Kind=ClusterRoleBinding) /kubevirt-ipam-claims-manager-rolebinding",
        "(/v1, Kind=Service) addons/kubevirt-ipam-claims-webhook-service",
    ];
    let of_cert_manager = [
        "(cert-manager.io/v1, Kind=Certificate) addons/kubevirt-ipam-claims-serving-cert",
        "(cert-manager.io/v1, Kind=Issuer) addons/kubevirt-ipam-claims-selfsigned-issuer",
    ];
    assert_eq!(found(true), everywhere);
    assert_eq!(found(false), [&everywhere[..], &of_cert_manager].concat());
}

#[test]
fn the_webhook_goes_before_its_server() {
    let setting = Setting::default();
    let groups = setting.with(json!({ "kubevirtIpamController": {} }), |context| {
        super::super::render(context, &stamps::stamp()).expect("objects")
    });
    let plan = inventory(&groups).prune(&Inventory::default(), is_kept);
    assert_eq!(plan[0].kind, "MutatingWebhookConfiguration");
    let kinds: Vec<_> = plan.iter().map(|id| id.kind.as_str()).collect();
    assert!(!kinds.contains(&"Namespace") && !kinds.contains(&"CustomResourceDefinition"));
    assert!(kinds.contains(&"Certificate") && kinds.contains(&"Issuer"));
}
