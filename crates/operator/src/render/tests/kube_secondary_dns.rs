//! Operands §7.

use super::*;

const COREFILE: &str = "\
.:5353 {
    auto {
      directory /zones db\\.(.*) {1}
      reload 45s
    }
    reload
    log
    health :8082
    ready :8083
}
";

fn container(own: Value) -> Value {
    let mut container = own;
    container["imagePullPolicy"] = json!("IfNotPresent");
    container["resources"] = json!({ "requests": { "cpu": "100m", "memory": "70Mi" } });
    container["securityContext"] =
        json!({ "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] } });
    container["terminationMessagePolicy"] = json!("FallbackToLogsOnError");
    container
}

fn probe(path: &str, port: &str, initial: u32, period: u32) -> Value {
    json!({ "httpGet": { "path": path, "port": port }, "initialDelaySeconds": initial, "periodSeconds": period })
}

fn eager(path: &str, port: &str) -> Value {
    json!({ "httpGet": { "path": path, "port": port }, "periodSeconds": 1 })
}

/// The native containers, and the expected annotation with the settings.
#[derive(Clone, Copy, Default)]
struct Flavour {
    server: bool,
    monitor: Option<&'static str>,
    scc: bool,
}

impl Flavour {
    fn is_native(self) -> bool {
        self.server && self.monitor.is_some()
    }
}

fn deployment(flavour: Flavour) -> Value {
    let port = |name: &str, number: u16, protocol: &str| json!({ "name": name, "containerPort": number, "protocol": protocol });
    let variable = |key: &str| json!({ "name": key, "valueFrom": { "configMapKeyRef": { "name": "secondary-dns", "key": key } } });
    let mut server = container(json!({
        "name": "secondary-dns",
        "image": "dns:1",
        "args": ["-conf", "/etc/coredns/Corefile"],
        "ports": [port("dns", 5353, "UDP"), port("healthport", 8082, "TCP"), port("readyport", 8083, "TCP")],
        "readinessProbe": probe("/ready", "readyport", 5, 10),
        "livenessProbe": probe("/health", "healthport", 15, 20),
        "volumeMounts": [
            { "name": "config-volume", "mountPath": "/etc/coredns", "readOnly": true },
            { "name": "secdns-zones", "mountPath": "/zones", "readOnly": true },
        ],
    }));
    let mut monitor = container(json!({
        "name": "status-monitor",
        "image": "zones:1",
        "env": [variable("DOMAIN"), variable("NAME_SERVER_IP")],
        "ports": [port("healthport", 8081, "TCP")],
        "readinessProbe": probe("/readyz", "healthport", 5, 10),
        "livenessProbe": probe("/healthz", "healthport", 15, 20),
        "volumeMounts": [{ "name": "secdns-zones", "mountPath": "/zones" }],
    }));
    let mut annotations = json!({
        "kubectl.kubernetes.io/default-container": "status-monitor",
        "openshift.io/required-scc": "restricted-v2",
    });
    if flavour.server {
        server["image"] = json!("weft:1");
        server["command"] = json!(["/weft", "secondary-dns", "serve"]);
        server["ports"] = json!([
            port("dns", 5353, "UDP"),
            port("healthport", 8082, "TCP"),
            port("readyport", 8083, "TCP"),
            port("dns-tcp", 5353, "TCP"),
        ]);
        server["readinessProbe"] = eager("/ready", "readyport");
        server["securityContext"]["readOnlyRootFilesystem"] = json!(true);
    }
    if let Some(settings) = flavour.monitor {
        monitor["image"] = json!("weft:1");
        monitor["command"] = json!(["/weft", "secondary-dns", "monitor"]);
        monitor["readinessProbe"] = eager("/readyz", "healthport");
        monitor["securityContext"]["readOnlyRootFilesystem"] = json!(true);
        annotations["networkaddonsoperator.network.kubevirt.io/secondary-dns-settings"] = json!(settings);
    }
    let mut security = json!({ "seccompProfile": { "type": "RuntimeDefault" } });
    if !flavour.scc {
        security["runAsNonRoot"] = json!(true);
        security["runAsUser"] = json!(1000);
    }
    let mut pod = json!({
        "serviceAccountName": "secondary",
        "priorityClassName": "system-cluster-critical",
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 1,
        "securityContext": security,
        "containers": [server, monitor],
        "volumes": [
            { "name": "config-volume", "configMap": {
                "name": "secondary-dns", "defaultMode": 420, "items": [{ "key": "Corefile", "path": "Corefile" }],
            } },
            { "name": "secdns-zones", "emptyDir": {} },
        ],
    });
    place_infra(&mut pod);
    if flavour.is_native() {
        pod["topologySpreadConstraints"] = json!([{
            "maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway",
            "labelSelector": { "matchLabels": { "k8s-app": "secondary-dns" } },
        }]);
    }
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {
            "name": "secondary-dns", "namespace": "addons", "labels": { "k8s-app": "secondary-dns" },
        },
        "spec": {
            "replicas": if flavour.is_native() { 2 } else { 1 },
            "selector": { "matchLabels": { "k8s-app": "secondary-dns" } },
            "template": {
                "metadata": {
                    "labels": { "k8s-app": "secondary-dns", "allow-access-cluster-services": "" },
                    "annotations": annotations,
                },
                "spec": pod,
            },
        },
    })
}

fn objects(domain: &str, address: &str, flavour: Flavour) -> Vec<Value> {
    let rules = json!([{
        "apiGroups": ["kubevirt.io"], "resources": ["virtualmachineinstances"], "verbs": ["get", "list", "watch"],
    }]);
    let mut policy = ingress(
        "allow-ingress-to-secondary-dns",
        &json!({ "k8s-app": "secondary-dns" }),
        "UDP",
        5353,
    );
    if flavour.server {
        let port = |protocol: &str| json!({ "protocol": protocol, "port": 5353 });
        policy["spec"]["ingress"][0]["ports"] = json!([port("UDP"), port("TCP")]);
    }
    let mut objects = vec![
        namespace(),
        json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": "secondary-dns", "namespace": "addons" },
            "data": { "DOMAIN": domain, "NAME_SERVER_IP": address, "Corefile": COREFILE },
        }),
        cluster_role("secondary", &rules),
        binding("ClusterRoleBinding", "secondary", "secondary", "secondary"),
        service_account("secondary"),
        deployment(flavour),
        policy,
    ];
    if flavour.is_native() {
        objects.push(json!({
            "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
            "metadata": { "name": "secondary-dns", "namespace": "addons" },
            "spec": { "maxUnavailable": 1, "selector": { "matchLabels": { "k8s-app": "secondary-dns" } } },
        }));
    }
    objects
}

const CASES: [(&str, &str, &str); 4] = [
    ("", "", "{}"),
    ("vm.example", "", r#"{"domain":"vm.example"}"#),
    (
        "123",
        "192.0.2.1",
        r#"{"domain":"123","nameServerIP":"192.0.2.1"}"#,
    ),
    ("", "true", r#"{"nameServerIP":"true"}"#),
];

// operands#12, secondary-dns#61-63: the deployed objects; changed settings change an annotation and restart the pods.
#[test]
fn secondary_dns_is_its_objects_in_order() {
    assert!(enables(
        "kubeSecondaryDNS",
        &complete(json!({ "kubeSecondaryDNS": {} }))
    ));
    assert!(!enables("kubeSecondaryDNS", &complete(json!({}))));
    for (domain, address, settings) in CASES {
        for native in [false, true] {
            for (scc, openshift4) in [(false, false), (true, false), (true, true)] {
                let setting = Setting {
                    native,
                    scc,
                    openshift4,
                    monitoring: openshift4,
                    ..Setting::default()
                };
                let spec = json!({ "kubeSecondaryDNS": { "domain": domain, "nameServerIP": address } });
                let flavour = Flavour {
                    server: native,
                    monitor: native.then_some(settings),
                    scc,
                };
                assert_objects(
                    &setting.render("kubeSecondaryDNS", spec),
                    &objects(domain, address, flavour),
                );
            }
        }
    }
}

#[test]
fn absent_settings_are_empty() {
    let rendered = Setting::default().render("kubeSecondaryDNS", json!({ "kubeSecondaryDNS": {} }));
    assert_objects(&rendered, &objects("", "", Flavour::default()));
}

// secondary-dns §11
#[test]
fn service_exists_only_on_request() {
    let service = |kind: &str, node_port: Option<u16>| {
        let port = |name: &str, protocol: &str| {
            let mut port = json!({ "name": name, "port": 53, "protocol": protocol, "targetPort": 5353 });
            if let Some(number) = node_port {
                port["nodePort"] = json!(number);
            }
            port
        };
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": "secondary-dns", "namespace": "addons", "labels": { "k8s-app": "secondary-dns" },
            },
            "spec": {
                "type": kind, "selector": { "k8s-app": "secondary-dns" },
                "ports": [port("dns", "UDP"), port("dns-tcp", "TCP")],
            },
        })
    };
    for (wanted, expected) in [
        (json!({}), service("ClusterIP", None)),
        (json!({ "nodePort": 31111 }), service("ClusterIP", None)),
        (json!({ "type": "NodePort" }), service("NodePort", None)),
        (
            json!({ "type": "NodePort", "nodePort": 31111 }),
            service("NodePort", Some(31111)),
        ),
        (json!({ "type": "LoadBalancer" }), service("LoadBalancer", None)),
    ] {
        for native in [false, true] {
            let setting = Setting {
                native,
                ..Setting::default()
            };
            let spec = json!({ "kubeSecondaryDNS": { "domain": "a.example", "service": wanted } });
            let flavour = Flavour {
                server: native,
                // A created or deleted Service restarts no pod.
                monitor: native.then_some(r#"{"domain":"a.example"}"#),
                scc: false,
            };
            let mut objects = objects("a.example", "", flavour);
            objects.push(expected.clone());
            assert_objects(&setting.render("kubeSecondaryDNS", spec), &objects);
        }
    }
}

fn native() -> Setting {
    Setting {
        native: true,
        ..Setting::default()
    }
}

fn native_objects(settings: &'static str) -> Vec<Value> {
    let flavour = Flavour {
        server: true,
        monitor: Some(settings),
        scc: false,
    };
    objects("a.example", "", flavour)
}

/// The pod of the Deployment.
fn pod(objects: &mut [Value]) -> &mut Value {
    let deployment = objects.iter_mut().find(|object| object["kind"] == "Deployment");
    &mut deployment.expect("a Deployment")["spec"]["template"]["spec"]
}

fn push(list: &mut Value, item: Value) {
    list.as_array_mut().expect("a list").push(item);
}

// operands#35
#[test]
fn settings_of_our_own_reach_our_monitor() {
    let spec = json!({ "kubeSecondaryDNS": {
        "domain": "a.example", "ttl": 60, "allowedPrefixes": ["10.0.0.0/8", "fd00::/8"],
    } });
    let mut expected =
        native_objects(r#"{"domain":"a.example","ttl":60,"allowedPrefixes":["10.0.0.0/8","fd00::/8"]}"#);
    let env = &mut pod(&mut expected)["containers"][1]["env"];
    push(env, json!({ "name": "KSD_TTL", "value": "60" }));
    push(
        env,
        json!({ "name": "KSD_ALLOWED_PREFIXES", "value": "10.0.0.0/8,fd00::/8" }),
    );
    assert_objects(&native().render("kubeSecondaryDNS", spec.clone()), &expected);
    // Upstream's monitor does not support these settings.
    assert_objects(
        &Setting::default().render("kubeSecondaryDNS", spec),
        &objects("a.example", "", Flavour::default()),
    );
}

// operands#35
#[test]
fn settings_that_are_followed_roll_no_pod() {
    let mut expected = native_objects(r#"{"followSettings":true}"#);
    expected[1]["data"]["KSD_TTL"] = json!("60");
    let pod = pod(&mut expected);
    let monitor = &mut pod["containers"][1];
    monitor["args"] = json!(["--config", "/etc/secondary-dns"]);
    push(
        &mut monitor["volumeMounts"],
        json!({ "name": "settings", "mountPath": "/etc/secondary-dns", "readOnly": true }),
    );
    let map = json!({ "name": "settings", "configMap": { "name": "secondary-dns", "defaultMode": 420 } });
    push(&mut pod["volumes"], map);
    let spec = json!({ "kubeSecondaryDNS": { "domain": "a.example", "ttl": 60, "followSettings": true } });
    assert_objects(&native().render("kubeSecondaryDNS", spec.clone()), &expected);
    assert_objects(
        &Setting::default().render("kubeSecondaryDNS", spec),
        &objects("a.example", "", Flavour::default()),
    );
}

// operands#35
#[test]
fn single_process_has_one_container() {
    let single = |settings: &'static str| {
        let mut expected = native_objects(settings);
        let pod = pod(&mut expected);
        let mut monitor = pod["containers"][1].take();
        monitor["command"] = json!(["/weft", "secondary-dns", "all-in-one"]);
        for (name, protocol) in [("dns", "UDP"), ("dns-tcp", "TCP")] {
            push(
                &mut monitor["ports"],
                json!({ "name": name, "containerPort": 5353, "protocol": protocol }),
            );
        }
        monitor
            .as_object_mut()
            .expect("a container")
            .shift_remove("volumeMounts");
        pod["containers"] = json!([monitor]);
        pod.as_object_mut().expect("a pod").shift_remove("volumes");
        expected
    };
    let spec = json!({ "kubeSecondaryDNS": { "domain": "a.example", "singleProcess": true } });
    assert_objects(
        &native().render("kubeSecondaryDNS", spec.clone()),
        &single(r#"{"domain":"a.example","singleProcess":true}"#),
    );
    assert_objects(
        &Setting::default().render("kubeSecondaryDNS", spec),
        &objects("a.example", "", Flavour::default()),
    );
    let mut followed = single(r#"{"singleProcess":true,"followSettings":true}"#);
    let pod = pod(&mut followed);
    pod["containers"][0]["args"] = json!(["--config", "/etc/secondary-dns"]);
    pod["containers"][0]["volumeMounts"] =
        json!([{ "name": "settings", "mountPath": "/etc/secondary-dns", "readOnly": true }]);
    pod["volumes"] =
        json!([{ "name": "settings", "configMap": { "name": "secondary-dns", "defaultMode": 420 } }]);
    let spec = json!({ "kubeSecondaryDNS": {
        "domain": "a.example", "singleProcess": true, "followSettings": true,
    } });
    assert_objects(&native().render("kubeSecondaryDNS", spec), &followed);
}

#[test]
fn flavours_can_be_mixed() {
    let spec = complete(json!({ "kubeSecondaryDNS": {} }));
    for (variable, flavour) in [
        (
            ("CORE_DNS_IMAGE", "dns:1"),
            Flavour {
                monitor: Some("{}"),
                ..Flavour::default()
            },
        ),
        (
            ("KUBE_SECONDARY_DNS_IMAGE", "zones:1"),
            Flavour {
                server: true,
                ..Flavour::default()
            },
        ),
    ] {
        let images = Images::read(|name| (name == variable.0).then(|| variable.1.to_owned()))
            .with_own(Some("weft:1".to_owned()));
        let rendered = Setting::default().with(json!({}), |context| {
            let context = Context {
                spec: &spec,
                images: &images,
                ..*context
            };
            components::kube_secondary_dns::render(&context).expect("objects")
        });
        let rendered: Vec<_> = rendered.into_iter().map(Manifest::into_value).collect();
        assert_objects(&rendered, &objects("", "", flavour));
    }
}

// secondary-dns#64, secondary-dns §1: a requested object is no leftover of a former release.
#[test]
fn requested_objects_are_no_leftovers() {
    let pruned = |native: bool, spec: Value| {
        let setting = Setting {
            native,
            ..Setting::default()
        };
        let gone: Vec<ObjectId> = setting.with(spec, |context| {
            let rendered = inventory(&render(context, &stamps::stamp()).expect("objects"));
            let planned = rendered.union(&Inventory::of(legacy(context)));
            planned.prune(&rendered, is_kept)
        });
        assert!(gone.iter().all(|id| id.kind != "Namespace"), "{gone:?}");
        gone.iter().filter(|id| id.name.contains("secondary")).count()
    };
    for native in [false, true] {
        assert_eq!(pruned(native, json!({ "kubeSecondaryDNS": {} })), 0);
        assert_eq!(pruned(native, json!({})), 6);
    }
}
