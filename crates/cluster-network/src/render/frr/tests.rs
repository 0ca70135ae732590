use api::cluster_network::operator::NetworkSpec;
use serde_json::{Value, json};

use super::super::{
    Part, Rendered,
    sample::{self, titles},
};
use crate::{base::b, facts::Facts, tls_profile::Profile};

const IMAGE: &str = "registry.example/frr:v1";

fn with_frr() -> NetworkSpec {
    let mut spec = b();
    spec.additional_routing_capabilities =
        serde_json::from_value(json!({ "providers": ["FRR"] })).expect("a provider");
    spec
}

fn facts() -> Facts {
    Facts {
        control_plane_nodes: 3,
        monitoring: true,
        ..Facts::default()
    }
}

fn rendered(spec: &NetworkSpec, facts: &Facts, image: Option<&str>) -> Rendered {
    let mut variables = vec![("RELEASE_VERSION", "1.2.3")];
    variables.extend(image.map(|image| ("FRR_K8S_IMAGE", image)));
    sample::rendered(Part::Frr, spec, facts, &sample::settings(&variables))
}

fn objects(spec: &NetworkSpec, facts: &Facts) -> Vec<Value> {
    let rendered = rendered(spec, facts, Some(IMAGE));
    assert_eq!(rendered.failed, []);
    rendered.objects
}

fn find<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
    objects.iter().find(|it| it["kind"] == kind).expect(kind)
}

/// Names of the Secrets that the pods of a workload mount.
fn secrets(workload: &Value) -> Vec<&str> {
    let volumes = workload["spec"]["template"]["spec"]["volumes"].as_array();
    let names = volumes.into_iter().flatten();
    names
        .filter_map(|volume| volume["secret"]["secretName"].as_str())
        .collect()
}

// cluster-network#151
#[test]
fn provider_decides_all_objects() {
    let expected = [
        "Namespace openshift-frr-k8s",
        "NetworkPolicy default-deny",
        "ServiceAccount frr-k8s-daemon",
        "Role openshift-frr-k8s",
        "RoleBinding openshift-frr-k8s",
        "ClusterRole openshift-frr-k8s",
        "ClusterRoleBinding openshift-frr-k8s",
        "OperatorPKI frr-k8s",
        "CustomResourceDefinition frrconfigurations.frrk8s.metallb.io",
        "CustomResourceDefinition frrk8sconfigurations.frrk8s.metallb.io",
        "CustomResourceDefinition frrnodestates.frrk8s.metallb.io",
        "CustomResourceDefinition bgpsessionstates.frrk8s.metallb.io",
        "ConfigMap frr-startup",
        "DaemonSet frr-k8s",
        "Service frr-k8s-monitor-service",
        "ServiceMonitor frr-k8s-monitor",
        "Role prometheus-k8s",
        "RoleBinding prometheus-k8s",
        "Deployment frr-k8s-statuscleaner",
        "Service frr-k8s-webhook-service",
        "ValidatingWebhookConfiguration frr-k8s-validating-webhook-configuration-ocp",
    ];
    let all = objects(&with_frr(), &facts());
    assert_eq!(titles(&all), expected);
    for workload in ["DaemonSet", "Deployment"] {
        let workload = find(&all, workload);
        let metadata = &workload["metadata"];
        let label = &metadata["labels"]["networkoperator.openshift.io/generates-operator-status"];
        assert_eq!(label, "stand-alone");
        let annotations = &metadata["annotations"];
        assert_eq!(annotations["release.openshift.io/version"], "1.2.3");
        assert!(
            annotations
                .get("networkoperator.openshift.io/non-critical")
                .is_none()
        );
        let pod = &workload["spec"]["template"]["spec"];
        for list in ["initContainers", "containers"] {
            for container in pod[list].as_array().into_iter().flatten() {
                assert_eq!(container["image"], IMAGE, "{container}");
            }
        }
    }
    let create_only = "networkoperator.openshift.io/create-only";
    for object in &all {
        let is_definition = object["kind"] == "CustomResourceDefinition";
        let annotation = object["metadata"]["annotations"].get(create_only);
        assert_eq!(annotation.is_some(), is_definition, "{object}");
    }
    assert_eq!(titles(&objects(&b(), &facts())), Vec::<String>::new());
}

// cluster-network#151
#[test]
fn missing_image_is_an_error_of_the_part() {
    let rendered = rendered(&with_frr(), &facts(), None);
    assert_eq!(titles(&rendered.objects), Vec::<String>::new());
    let expected = "FRR is to be deployed, and its image is not known: set environment variable FRR_K8S_IMAGE of the \
                    operator";
    assert_eq!(rendered.failed, [(Part::Frr, expected.to_owned())]);
}

// cluster-network#153
#[test]
fn bgp_accepts_connections_only_if_ovn_kubernetes_manages_it() {
    let startup = |spec: &NetworkSpec| {
        let objects = objects(spec, &facts());
        let file = find(&objects, "ConfigMap")["data"]["daemons"]
            .as_str()
            .map(str::to_owned);
        let pod = &find(&objects, "DaemonSet")["spec"]["template"]["metadata"];
        let hash = pod["annotations"]["network.operator.openshift.io/config-hash"].clone();
        (file.expect("a file"), hash)
    };
    let (closed, before) = startup(&with_frr());
    let lines: Vec<&str> = closed.lines().collect();
    for line in ["bgpd=yes", "bfdd=yes", "vtysh_enable=yes", "MAX_FDS=65536"] {
        assert!(lines.contains(&line), "{line}: {closed}");
    }
    assert!(
        lines.contains(&r#"bgpd_options="-A 127.0.0.1 -p 0 --limit-fds 100000""#),
        "{closed}"
    );
    let mut managed = with_frr();
    crate::base::ovn(&mut managed).bgp_managed_config =
        serde_json::from_value(json!({ "bgpTopology": "FullMesh" })).expect("a topology");
    let (open, after) = startup(&managed);
    assert_eq!(open, closed.replace("-p 0", "-p 179"));
    assert!(before.is_string() && before != after);
}

// cluster-network#154
#[test]
fn plain_cluster_issues_the_certificates_itself() {
    let wait = "networkoperator.openshift.io/create-wait";
    let webhook = |objects: &[Value]| find(objects, "ValidatingWebhookConfiguration").clone();
    let plain = objects(&with_frr(), &facts());
    assert_eq!(
        find(&plain, "OperatorPKI")["spec"]["targetCert"]["commonName"],
        "frr-k8s-webhook-service.openshift-frr-k8s.svc"
    );
    assert_eq!(secrets(find(&plain, "DaemonSet")), ["frr-k8s-cert"]);
    assert_eq!(secrets(find(&plain, "Deployment")), ["frr-k8s-cert"]);
    assert_eq!(webhook(&plain)["metadata"]["annotations"], json!({ wait: "" }));
    let certified = Facts {
        frr_bundle: "PEM".to_owned(),
        ..facts()
    };
    let configuration = webhook(&objects(&with_frr(), &certified));
    assert_eq!(configuration["metadata"]["annotations"], json!({}));
    let client = &configuration["webhooks"][0]["clientConfig"];
    assert_eq!(client["caBundle"], "UEVN");
    assert_eq!(client["service"]["name"], "frr-k8s-webhook-service");

    let openshift = Facts {
        openshift: true,
        ..facts()
    };
    let platform = objects(&with_frr(), &openshift);
    assert!(!titles(&platform).contains(&"OperatorPKI frr-k8s".to_owned()));
    assert_eq!(secrets(find(&platform, "DaemonSet")), ["frr-k8s-certs-secret"]);
    assert_eq!(
        secrets(find(&platform, "Deployment")),
        ["frr-k8s-webhook-server-cert"]
    );
    let serving = "service.beta.openshift.io/serving-cert-secret-name";
    let services = platform.iter().filter(|it| it["kind"] == "Service");
    let signed: Vec<&Value> = services
        .map(|it| &it["metadata"]["annotations"][serving])
        .collect();
    assert_eq!(signed, ["frr-k8s-certs-secret", "frr-k8s-webhook-server-cert"]);
    assert_eq!(
        webhook(&platform)["metadata"]["annotations"],
        json!({ "service.beta.openshift.io/inject-cabundle": "true" })
    );
}

// cluster-network#158
#[test]
fn servers_have_the_flags_of_the_tls_profile() {
    let flags = |tls_profile: Option<Profile>| {
        let facts = Facts {
            tls_profile,
            ..facts()
        };
        let objects = objects(&with_frr(), &facts);
        let mut with_flags = Vec::new();
        for kind in ["DaemonSet", "Deployment"] {
            let containers = &find(&objects, kind)["spec"]["template"]["spec"]["containers"];
            for container in containers.as_array().into_iter().flatten() {
                let first = container["args"][0].as_str().unwrap_or_default();
                if first == "--tls-min-version=VersionTLS13" {
                    with_flags.push(container["name"].as_str().unwrap_or_default().to_owned());
                }
            }
        }
        with_flags
    };
    let modern = json!({ "spec": {
        "tlsAdherence": "StrictAllComponents", "tlsSecurityProfile": { "type": "Modern" },
    } });
    assert_eq!(
        flags(Profile::of(&modern)),
        ["controller", "frr-metrics", "frr-k8s-statuscleaner"]
    );
    assert_eq!(flags(None), Vec::<String>::new());
}

// cluster-network#155
#[test]
fn webhook_of_one_control_plane_node_is_replaced_without_a_second_pod() {
    let update = |control_plane_nodes: usize| {
        let facts = Facts {
            control_plane_nodes,
            ..facts()
        };
        find(&objects(&with_frr(), &facts), "Deployment")["spec"]["strategy"]["rollingUpdate"].clone()
    };
    assert_eq!(update(1), json!({ "maxSurge": 0, "maxUnavailable": 1 }));
    assert_eq!(update(3), json!({ "maxSurge": "25%", "maxUnavailable": "25%" }));
}

// cluster-network#151
#[test]
fn cluster_without_prometheus_has_no_service_monitor() {
    let facts = Facts {
        monitoring: false,
        ..facts()
    };
    let titles = titles(&objects(&with_frr(), &facts));
    assert!(!titles.contains(&"ServiceMonitor frr-k8s-monitor".to_owned()));
    assert!(titles.contains(&"Service frr-k8s-monitor-service".to_owned()));
}
