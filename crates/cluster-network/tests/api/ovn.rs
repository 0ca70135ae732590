//! OVN-Kubernetes: the API server accepts all rendered objects, and workloads are updated in order.
//!
//! The server runs no pods: the tests write the statuses.

use std::time::Duration;

use serde_json::{Value, json};

use crate::proxies::definition;
use crate::stage::{ACCOUNT, CLUSTER, CLUSTER_OPERATOR, OPERATOR, Stage, condition};

const NODE: &str = "/apis/apps/v1/namespaces/openshift-ovn-kubernetes/daemonsets/ovnkube-node";
const CONTROL_PLANE: &str =
    "/apis/apps/v1/namespaces/openshift-ovn-kubernetes/deployments/ovnkube-control-plane";
const PREPULLER: &str =
    "/apis/apps/v1/namespaces/openshift-ovn-kubernetes/daemonsets/ovnkube-upgrades-prepuller";
const IPSEC: &str = "/apis/apps/v1/namespaces/openshift-ovn-kubernetes/daemonsets/ovn-ipsec-containerized";
const IDENTITY: &str =
    "/apis/apps/v1/namespaces/openshift-network-node-identity/daemonsets/network-node-identity";
const WEBHOOK: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/\
                       network-node-identity.openshift.io";

const CLOUD_NETWORK: &str = "/apis/apps/v1/namespaces/openshift-cloud-network-config-controller/deployments/\
                             cloud-network-config-controller";
const CLOUD_CONFIG_MAPS: &str = "/api/v1/namespaces/openshift-cloud-network-config-controller/configmaps";

/// Creates the result of the MTU prober.
fn found_out(stage: &Stage, mtu: &str) {
    stage.apply(&json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "mtu", "namespace": "openshift-network-operator" }, "data": { "mtu": mtu },
    }));
}

/// Applies the configuration of a cluster whose MTU has been probed.
pub(crate) fn configure(stage: &Stage) {
    found_out(stage, "1500");
    choose(stage);
}

fn choose(stage: &Stage) {
    stage.apply(&json!({
        "apiVersion": "config.openshift.io/v1", "kind": "Network", "metadata": { "name": "cluster" },
        "spec": {
            "clusterNetwork": [{ "cidr": "10.244.0.0/16", "hostPrefix": 24 }], "serviceNetwork": ["10.96.0.0/12"],
            "networkType": "OVNKubernetes",
        },
    }));
}

/// Waits until the operator has applied all objects.
pub(crate) fn settled(stage: &Stage) {
    stage.there(NODE);
    stage.there(IDENTITY);
    stage.at_rest();
    let operator = stage.there(OPERATOR);
    assert_eq!(
        condition(&operator, "Degraded").as_deref(),
        Some("False : "),
        "{operator:#}"
    );
}

// cluster-network#34, cluster-network#47
#[test]
fn ovn_kubernetes_is_accepted_and_becomes_available() {
    let stage = Stage::start();
    let _operator = stage.operator();
    configure(&stage);
    settled(&stage);
    let operator = stage.there(OPERATOR);
    let config = &operator["spec"]["defaultNetwork"]["ovnKubernetesConfig"];
    assert_eq!(
        (&config["mtu"], &config["genevePort"]),
        (&json!(1400), &json!(6081))
    );
    for path in [
        CONTROL_PLANE,
        "/api/v1/namespaces/openshift-ovn-kubernetes/configmaps/ovnkube-config",
        "/api/v1/namespaces/openshift-ovn-kubernetes/configmaps/ovnkube-script-lib",
        "/api/v1/namespaces/openshift-ovn-kubernetes/serviceaccounts/ovn-kubernetes-node",
        "/api/v1/namespaces/openshift-host-network/resourcequotas/host-network-namespace-quotas",
        "/api/v1/namespaces/openshift-config-managed/configmaps/openshift-network-features",
        "/apis/network.operator.openshift.io/v1/namespaces/openshift-ovn-kubernetes/operatorpkis/ovn",
        "/apis/network.operator.openshift.io/v1/namespaces/openshift-ovn-kubernetes/operatorpkis/signer",
        "/apis/flowcontrol.apiserver.k8s.io/v1/flowschemas/openshift-ovn-kubernetes",
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/clusteruserdefinednetworks.k8s.ovn.org",
        "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/default-network-annotation",
    ] {
        stage.there(path);
    }
    // kube-proxy is not deployed.
    assert!(stage.get("/api/v1/namespaces/openshift-kube-proxy").is_none());
    // The API server accepts the definitions and serves their kinds.
    for plural in [
        "egressfirewalls",
        "egressips",
        "egressqoses",
        "adminpolicybasedexternalroutes",
        "egressservices",
        "userdefinednetworks",
        "clusteruserdefinednetworks",
    ] {
        stage.wait_until_served(&format!("/apis/k8s.ovn.org/v1/{plural}"));
    }
    let available = |expected: &str| stage.condition("Available", expected);
    available("False Startup: The network is starting up");
    stage.roll_out_all();
    available("True : ");
    stage.condition("Progressing", "False : ");
    let status = stage.there(CLUSTER)["status"].clone();
    assert_eq!(
        (&status["networkType"], &status["clusterNetworkMTU"]),
        (&json!("OVNKubernetes"), &json!(1400))
    );
    // A change without effect on the plan causes no write.
    let mark = stage.at_rest();
    stage.change(
        "/api/v1/namespaces/openshift-network-operator/configmaps/mtu",
        &json!({ "metadata": { "labels": { "a": "b" } } }),
    );
    stage.at_rest();
    let requests = stage.requests_of(ACCOUNT, mark);
    let writes: Vec<_> = requests
        .iter()
        .filter(|it| !["get", "list", "watch"].contains(&it.verb.as_str()))
        .collect();
    assert!(writes.is_empty(), "{writes:#?}");
}

#[test]
fn definitions_refuse_values_that_ovn_kubernetes_cannot_read() {
    let stage = Stage::start();
    let _operator = stage.operator();
    configure(&stage);
    settled(&stage);
    for plural in ["egressfirewalls", "userdefinednetworks"] {
        stage.wait_until_served(&format!("/apis/k8s.ovn.org/v1/{plural}"));
    }
    let path = |plural: &str| format!("/apis/k8s.ovn.org/v1/namespaces/default/{plural}");
    let firewall = |kind: &str| {
        json!({
            "apiVersion": "k8s.ovn.org/v1", "kind": "EgressFirewall", "metadata": { "name": "default" },
            "spec": { "egress": [{ "type": kind, "to": { "cidrSelector": "0.0.0.0/0" } }] },
        })
    };
    let send = |plural: &str, body: &Value| stage.send(::stage::Method::POST, &path(plural), Some(body));
    send("egressfirewalls", &firewall("Deny")).accepted();
    let refused = send("egressfirewalls", &firewall("Drop")).refused();
    assert!(refused.contains("spec.egress[0].type"), "{refused}");
    let network = |topology: &str, settings: &str| {
        json!({
            "apiVersion": "k8s.ovn.org/v1", "kind": "UserDefinedNetwork", "metadata": { "name": "a" },
            "spec": { "topology": topology, settings: { "role": "Secondary", "subnets": ["10.100.0.0/16"] } },
        })
    };
    let refused = send("userdefinednetworks", &network("Layer3", "layer2")).refused();
    assert!(
        refused.contains("exactly the settings of the topology"),
        "{refused}"
    );
    send("userdefinednetworks", &network("Layer2", "layer2")).accepted();
}

// cluster-network#191
#[test]
fn controller_of_cloud_addresses_follows_the_cloud_and_its_image() {
    const ADDRESSES: &str = "/apis/cloud.network.openshift.io/v1/cloudprivateipconfigs";
    let stage = Stage::start();
    for (kind, plural) in [("Infrastructure", "infrastructures"), ("Proxy", "proxies")] {
        stage.apply(&definition(kind, plural));
        stage.wait_until_served(&format!("/apis/config.openshift.io/v1/{plural}"));
        stage.apply(&json!({
            "apiVersion": "config.openshift.io/v1", "kind": kind, "metadata": { "name": "cluster" },
        }));
    }
    stage.report(
        "/apis/config.openshift.io/v1/infrastructures/cluster",
        &json!({ "platformStatus": { "type": "AWS", "aws": { "region": "eu-west-1" } } }),
    );
    let operator = stage.operator_that_waits(Duration::ZERO);
    configure(&stage);
    settled(&stage);
    let controller = |what: &str, text: &str| {
        stage.wait_for(what, CLOUD_NETWORK, |deployment| {
            let container = &deployment?["spec"]["template"]["spec"]["containers"][0];
            container.to_string().contains(text).then_some(())
        });
    };
    controller("the region", "-platform-region=eu-west-1");
    // The configuration of the cloud, and the proxy, come later.
    stage.apply(&json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "kube-cloud-config", "namespace": "openshift-config-managed" },
        "data": { "ca-bundle.pem": "authorities" },
    }));
    controller(
        "the bundle",
        "-platform-aws-ca-override=/kube-cloud-config/ca-bundle.pem",
    );
    let copy = stage.there(&format!("{CLOUD_CONFIG_MAPS}/kube-cloud-config"));
    assert_eq!(copy["data"], json!({ "ca-bundle.pem": "authorities" }));
    stage.report(
        "/apis/config.openshift.io/v1/proxies/cluster",
        &json!({ "httpsProxy": "http://proxy.example.com:3128" }),
    );
    controller("the proxy", "http://proxy.example.com:3128");
    // The bundle of certificate authorities is injected by another part, and stays.
    let path = format!("{CLOUD_CONFIG_MAPS}/trusted-ca");
    stage.change(&path, &json!({ "data": { "ca-bundle.crt": "authorities" } }));
    stage.at_rest();
    assert_eq!(stage.there(&path)["data"]["ca-bundle.crt"], "authorities");

    stage.wait_until_served(ADDRESSES);
    let create = |name: &str| {
        let object = json!({
            "apiVersion": "cloud.network.openshift.io/v1", "kind": "CloudPrivateIPConfig",
            "metadata": { "name": name }, "spec": { "node": "a" },
        });
        stage.send(::stage::Method::POST, ADDRESSES, Some(&object))
    };
    create("192.0.2.9").accepted();
    create("2001.0db8.0000.0000.0000.0000.0000.0001").accepted();
    for name in ["node1", "192.0.2.256", "2001.db8.0.0.0.0.0.1"] {
        let refused = create(name).refused();
        assert!(refused.contains("metadata.name"), "{refused}");
    }

    drop(operator);
    let mut settings = crate::stage::settings();
    settings.cloud_network_image = None;
    let _operator = stage.operator_of(settings, Duration::ZERO);
    stage.gone(CLOUD_NETWORK);
    stage.gone(&path);
    settled(&stage);
    // Credentials of the cloud are in the namespace, and the network wrote the objects.
    stage.there("/api/v1/namespaces/openshift-cloud-network-config-controller");
    stage.there(&format!("{ADDRESSES}/192.0.2.9"));
}

// cluster-network#44
#[test]
fn update_pulls_images_then_nodes_then_the_control_plane() {
    let stage = Stage::start();
    let operator = stage.operator();
    configure(&stage);
    settled(&stage);
    stage.roll_out_all();
    stage.condition("Available", "True : ");
    stage.at_rest();
    drop(operator);
    // The annotations simulate workloads of an older version.
    let version = json!({ "metadata": { "annotations": { "release.openshift.io/version": "1.2.2" } } });
    for path in [NODE, CONTROL_PLANE] {
        stage.change(path, &version);
    }
    let is = |object: &Value| object["metadata"]["annotations"]["release.openshift.io/version"].clone();
    let _operator = stage.operator();
    stage.there(PREPULLER);
    stage.at_rest();
    assert_eq!(is(&stage.there(NODE)), "1.2.2");
    assert_eq!(is(&stage.there(CONTROL_PLANE)), "1.2.2");
    stage.roll_out(PREPULLER);
    let becomes = |path: &str| {
        stage.wait_for("the release", path, |object| {
            (is(object?) == "1.2.3").then_some(())
        });
    };
    becomes(NODE);
    stage.gone(PREPULLER);
    // The nodes stay unchanged: only the annotation of the object differs.
    becomes(CONTROL_PLANE);
    stage.roll_out(CONTROL_PLANE);
    stage.condition("Progressing", "False : ");
}

#[test]
fn workloads_of_an_earlier_operator_are_updated_in_the_same_order() {
    let stage = Stage::start();
    let namespace = "openshift-ovn-kubernetes";
    stage.namespace(namespace, &[]);
    // The workloads lack the part label, by which most watches select.
    let workload = |kind: &str, name: &str, app: &str| {
        let spec = json!({ "containers": [{ "name": "c", "image": "old" }] });
        json!({
            "apiVersion": "apps/v1", "kind": kind,
            "metadata": {
                "name": name, "namespace": namespace, "annotations": { "release.openshift.io/version": "1.2.2" },
            },
            "spec": {
                "selector": { "matchLabels": { "app": app } },
                "template": { "metadata": { "labels": { "app": app } }, "spec": spec },
            },
        })
    };
    stage.apply(&workload("DaemonSet", "ovnkube-node", "ovnkube-node"));
    stage.apply(&workload(
        "Deployment",
        "ovnkube-control-plane",
        "ovnkube-control-plane",
    ));
    let _operator = stage.operator();
    configure(&stage);
    settled(&stage);
    stage.there(PREPULLER);
    let image = |path: &str| stage.there(path)["spec"]["template"]["spec"]["containers"][0]["image"].clone();
    assert_eq!((image(NODE), image(CONTROL_PLANE)), (json!("old"), json!("old")));
    stage.roll_out(PREPULLER);
    let node = stage.wait_for("the release", NODE, |object| {
        let annotations = &object?["metadata"]["annotations"];
        (annotations["release.openshift.io/version"] == "1.2.3")
            .then(|| object.cloned())
            .flatten()
    });
    // The workload was installed without masquerade subnets, and the annotation stays absent.
    let masquerade = "networkoperator.openshift.io/default-masquerade-network-cidrs";
    assert!(
        node["metadata"]["annotations"].get(masquerade).is_none(),
        "{node:#}"
    );
    assert_eq!(image(CONTROL_PLANE), "old");
}

fn set_ipsec(stage: &Stage, mode: &str) {
    let config = json!({ "ipsecConfig": { "mode": mode } });
    stage.change(
        OPERATOR,
        &json!({ "spec": { "defaultNetwork": { "ovnKubernetesConfig": config } } }),
    );
}

// cluster-network#46
#[test]
fn encryption_is_switched_off_in_ovn_before_its_workload_goes() {
    let stage = Stage::start();
    let _operator = stage.operator();
    configure(&stage);
    settled(&stage);
    let mode = |mode: &str| set_ipsec(&stage, mode);
    mode("Full");
    stage.there(IPSEC);
    let annotation = "networkoperator.openshift.io/ipsec-enabled";
    stage.wait_for("the annotation", NODE, |object| {
        (object?["metadata"]["annotations"][annotation] == "true").then_some(())
    });
    stage.at_rest();
    stage.roll_out_all();
    stage.at_rest();
    mode("Disabled");
    stage.wait_for("OVN without encryption", NODE, |object| {
        object?["metadata"]["annotations"]
            .get(annotation)
            .is_none()
            .then_some(())
    });
    stage.at_rest();
    // The nodes still encrypt.
    stage.there(IPSEC);
    stage.roll_out(NODE);
    stage.gone(IPSEC);
}

// cluster-network#209
#[test]
fn encryption_without_a_mode_is_mode_full_and_wrong_fields_are_refused() {
    let stage = Stage::start();
    let _operator = stage.operator();
    configure(&stage);
    settled(&stage);
    let ovn = |config: Value| json!({ "spec": { "defaultNetwork": { "ovnKubernetesConfig": config } } });
    let refused = |config: Value| stage.patch(OPERATOR, &ovn(config)).refused();
    let error = refused(json!({ "ipsecConfig": { "full": { "encapsulation": "Always" } } }));
    assert!(
        error.contains("full is forbidden when mode is not Full"),
        "{error}"
    );
    let error = refused(json!({ "gatewayConfig": { "ipForwarding": "Everywhere" } }));
    assert!(
        error.contains("invalid value for IPForwarding, valid values are 'Restricted' or 'Global'"),
        "{error}"
    );
    // A merge patch with null leaves an empty object.
    stage.change(OPERATOR, &ovn(json!({ "ipsecConfig": { "mode": null } })));
    stage.there(IPSEC);
}

// cluster-network#74
#[test]
fn webhook_of_node_identity_comes_last() {
    let stage = Stage::start();
    let _operator = stage.operator();
    configure(&stage);
    settled(&stage);
    assert!(stage.get(WEBHOOK).is_none());
    stage.roll_out_all();
    stage.at_rest();
    assert!(stage.get(WEBHOOK).is_none());
    stage.apply(&json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": "network-node-identity-ca", "namespace": "openshift-network-node-identity" },
        "data": { "ca-bundle.crt": CA },
    }));
    let webhook = stage.there(WEBHOOK);
    assert!(
        webhook["webhooks"][0]["clientConfig"]["caBundle"].is_string(),
        "{webhook:#}"
    );
}

/// A valid certificate, because the API server parses it.
const CA: &str = include_str!("ovn_ca.pem");

// cluster-network#42, cluster-network#51
#[test]
fn programs_of_other_images_are_accepted() {
    let stage = Stage::start();
    let _operator = stage.operator();
    configure(&stage);
    settled(&stage);
    let config = r#"{"type":"macvlan","ipam":{"type":"whereabouts"}}"#;
    let network = json!({ "name": "a", "namespace": "default", "type": "Raw", "rawCNIConfig": config });
    stage.change(
        OPERATOR,
        &json!({ "spec": { "useMultiNetworkPolicy": true, "additionalNetworks": [network] } }),
    );
    let multus = "/apis/apps/v1/namespaces/openshift-multus/daemonsets";
    stage.there(&format!("{multus}/multus-networkpolicy"));
    stage.there(&format!("{multus}/whereabouts-reconciler"));
    stage.wait_until_served("/apis/k8s.cni.cncf.io/v1beta1/multi-networkpolicies");
    stage.wait_until_served("/apis/whereabouts.cni.cncf.io/v1alpha1/ippools");
    settled(&stage);
    let args = stage.there(CONTROL_PLANE)["spec"]["template"]["spec"]["containers"].to_string();
    assert!(args.contains("--enable-multi-networkpolicy"), "{args}");
    stage.change(OPERATOR, &json!({ "spec": { "useMultiNetworkPolicy": false } }));
    stage.gone(&format!("{multus}/multus-networkpolicy"));
}

// cluster-network#20
#[test]
fn mtu_is_probed_by_a_job_that_goes_once_it_is_done() {
    let stage = Stage::start();
    let _operator = stage.operator_that_waits(std::time::Duration::from_secs(1));
    choose(&stage);
    let namespace = "openshift-network-operator";
    let job = format!("/apis/batch/v1/namespaces/{namespace}/jobs/mtu-prober");
    let pod = stage.there(&job)["spec"]["template"]["spec"].clone();
    assert_eq!(
        (&pod["hostNetwork"], &pod["restartPolicy"]),
        (&json!(true), &json!("OnFailure"))
    );
    let container = &pod["containers"][0];
    assert_eq!(
        container["command"],
        json!([
            "/weft",
            "cluster-network-operator",
            "probe-mtu",
            "--namespace=openshift-network-operator",
            "--name=mtu"
        ])
    );
    assert!(stage.get(NODE).is_none());
    stage.condition(
        "Degraded",
        "True MTUProbeFailed: Failed to probe MTU: the MTU of the nodes is not known",
    );
    found_out(&stage, "abc");
    stage.condition(
        "Degraded",
        "True MTUProbeFailed: Failed to probe MTU: format error: ConfigMap mtu says \"abc\"",
    );
    assert!(stage.get(NODE).is_none());
    found_out(&stage, "5000");
    stage.there(NODE);
    for path in [
        job,
        format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings/mtu-prober"),
        format!("/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles/mtu-prober"),
        format!("/api/v1/namespaces/{namespace}/serviceaccounts/mtu-prober"),
    ] {
        stage.gone(&path);
    }
    let mtu = &stage.there(OPERATOR)["spec"]["defaultNetwork"]["ovnKubernetesConfig"]["mtu"];
    assert_eq!(*mtu, 4900);
}

// cluster-network#98
#[test]
fn probers_of_several_nodes_agree_on_the_least_mtu() {
    let stage = Stage::start();
    for name in ["node1", "node2"] {
        stage.apply(&json!({
            "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": { "kubernetes.io/os": "linux" } },
        }));
    }
    let _operator = stage.operator();
    choose(&stage);
    let namespace = "openshift-network-operator";
    let job = format!("/apis/batch/v1/namespaces/{namespace}/jobs/mtu-prober");
    assert_eq!(stage.there(&job)["spec"]["completions"], 2);
    let results = format!("/api/v1/namespaces/{namespace}/configmaps/mtu-prober");
    stage.there(&results);
    // The result of the other node, whose MTU is less than that of any link.
    stage.change(&results, &json!({ "data": { "node2": "1280" } }));
    let account = format!("system:serviceaccount:{namespace}:mtu-prober");
    let _prober = stage.task_as(&account, async |client, _| {
        let probed =
            cluster_network::probe::report(client, "openshift-network-operator", "mtu", "node1", 9000, 2);
        probed.await.expect("a result");
    });
    let map = stage.there(&format!("/api/v1/namespaces/{namespace}/configmaps/mtu"));
    assert_eq!(
        map["data"],
        json!({ "mtu": "1280", "nodes": "node1: 9000\nnode2: 1280\n" })
    );
    stage.gone(&job);
    stage.gone(&results);
    stage.there(NODE);
    let mtu = &stage.there(OPERATOR)["spec"]["defaultNetwork"]["ovnKubernetesConfig"]["mtu"];
    assert_eq!(*mtu, 1180);
}

// cluster-network#31
#[test]
fn mtu_migration_continues_until_it_is_finished() {
    let stage = Stage::start();
    let _operator = stage.operator();
    configure(&stage);
    settled(&stage);
    let conf = "/api/v1/namespaces/openshift-ovn-kubernetes/configmaps/ovnkube-config";
    let file = |lines: &str| {
        stage.wait_for(lines, conf, |map| {
            map?["data"]["ovnkube.conf"]
                .as_str()?
                .starts_with(lines)
                .then_some(())
        });
    };
    file("[default]\nmtu=\"1400\"\ncluster-subnets=");
    let migration = json!({ "mtu": { "network": { "from": 1400, "to": 1300 }, "machine": { "to": 1500 } } });
    stage.change(OPERATOR, &json!({ "spec": { "migration": migration } }));
    file("[default]\nmtu=\"1400\"\nroutable-mtu=\"1300\"\ncluster-subnets=");
    stage.wait_for("the migration in the status", CLUSTER, |object| {
        let status = &object?["status"];
        (status["migration"]["mtu"] == migration["mtu"] && status["clusterNetworkMTU"] == 1300).then_some(())
    });
    let record = stage.there(crate::stage::RECORD)["data"]["applied"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    assert!(record.contains(r#""mtu":1300"#), "{record}");
    let finish = |mtu: i64| {
        let ovn = json!({ "ovnKubernetesConfig": { "mtu": mtu } });
        stage.change(
            OPERATOR,
            &json!({ "spec": { "migration": null, "defaultNetwork": ovn } }),
        );
    };
    finish(1350);
    stage.condition(
        "Degraded",
        "True InvalidOperatorConfig: Not applying unsafe configuration change: invalid configuration: [cannot change \
         ovn-kubernetes MTU without migration]. Use 'oc edit network.operator.openshift.io cluster' to undo the change.",
    );
    finish(1300);
    file("[default]\nmtu=\"1300\"\ncluster-subnets=");
    stage.condition("Degraded", "False : ");
    stage.wait_for("no migration in the status", CLUSTER, |object| {
        object?["status"].get("migration").is_none().then_some(())
    });
}

/// Defines a kind of the machine config operator.
fn define_machines(stage: &Stage, kind: &str, plural: &str) {
    let group = "machineconfiguration.openshift.io";
    let anything = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    stage.apply(&json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": { "name": format!("{plural}.{group}") },
        "spec": {
            "group": group, "scope": "Cluster", "names": { "kind": kind, "plural": plural },
            "versions": [{
                "name": "v1", "served": true, "storage": true, "schema": { "openAPIV3Schema": anything },
            }],
        },
    }));
    stage.wait_until_served(&format!("/apis/{group}/v1/{plural}"));
}

/// A condition of the machine config operator.
fn is(kind: &str, status: &str) -> Value {
    json!({ "type": kind, "status": status, "lastTransitionTime": "2024-01-01T00:00:00Z" })
}

/// Defines both kinds of the machine config operator, with a pool for each role, and reports the operator as available.
fn prepare_machines(stage: &Stage) {
    define_machines(stage, "MachineConfig", "machineconfigs");
    define_machines(stage, "MachineConfigPool", "machineconfigpools");
    for role in ["master", "worker"] {
        let selector = json!({ "matchLabels": { "machineconfiguration.openshift.io/role": role } });
        stage.apply(&json!({
            "apiVersion": "machineconfiguration.openshift.io/v1", "kind": "MachineConfigPool",
            "metadata": { "name": role }, "spec": { "machineConfigSelector": selector },
        }));
    }
    stage.apply(&json!({
        "apiVersion": "config.openshift.io/v1", "kind": "ClusterOperator",
        "metadata": { "name": "machine-config" }, "spec": {},
    }));
    stage.report(
        "/apis/config.openshift.io/v1/clusteroperators/machine-config",
        &json!({
            "conditions": [is("Available", "True"), is("Degraded", "False"), is("Progressing", "False")],
            "versions": [{ "name": "operator", "version": "4.20.0" }],
        }),
    );
}

// cluster-network#176-178
#[test]
fn pools_that_process_machine_configurations_are_reported() {
    const POOLS: &str = "/apis/machineconfiguration.openshift.io/v1/machineconfigpools";
    const MACHINE_CONFIG: &str =
        "/apis/machineconfiguration.openshift.io/v1/machineconfigs/80-ipsec-worker-extensions";
    let stage = Stage::start();
    prepare_machines(&stage);
    let operator = stage.operator();
    configure(&stage);
    settled(&stage);
    let mode = |mode: &str| set_ipsec(&stage, mode);
    let carries = |role: &str, has_it: bool| {
        let source = json!([{ "name": format!("80-ipsec-{role}-extensions") }]);
        let source = if has_it { source } else { json!([]) };
        stage.change(
            &format!("{POOLS}/{role}"),
            &json!({ "status": { "configuration": { "source": source } } }),
        );
    };
    let processing = |role: &str| {
        let text = format!(
            "True MachineConfig: {role} machine config pool is still processing 80-ipsec-{role}-extensions \
             machine config"
        );
        stage.condition("Progressing", &text);
    };
    let recorded = |roles: &[&str]| {
        let configs: Vec<Value> = roles
            .iter()
            .map(|role| json!({ "Name": format!("80-ipsec-{role}-extensions"), "Role": role }))
            .collect();
        let annotation = "network.operator.openshift.io/rendered-machineconfig-state";
        stage.wait_for(&format!("a record of {roles:?}"), CLUSTER_OPERATOR, |object| {
            let text = object?["metadata"]["annotations"][annotation].as_str()?;
            let record: Value = serde_json::from_str(text).ok()?;
            (record == json!({ "RenderedMachineConfig": configs })).then_some(())
        });
    };
    mode("External");
    // The workloads are not rolled out either.
    processing("master");
    stage.roll_out_all();
    recorded(&["master", "worker"]);
    carries("master", true);
    processing("worker");
    // A paused pool processes nothing.
    let paused = |paused: bool| {
        stage.change(
            &format!("{POOLS}/worker"),
            &json!({ "spec": { "paused": paused } }),
        );
    };
    paused(true);
    stage.condition("Progressing", "False : ");
    paused(false);
    processing("worker");
    carries("worker", true);
    stage.condition("Progressing", "False : ");
    let degraded = |status: &str| {
        stage.change(
            &format!("{POOLS}/master"),
            &json!({ "status": { "conditions": [is("Degraded", status)] } }),
        );
    };
    degraded("True");
    stage.condition(
        "Degraded",
        "True MachineConfig: master machine config pool in degraded state",
    );
    degraded("False");
    stage.condition("Degraded", "False : ");

    mode("Disabled");
    stage.gone(MACHINE_CONFIG);
    processing("master");
    carries("master", false);
    processing("worker");
    recorded(&["worker"]);
    // Another operator goes on from the record.
    stage.at_rest();
    drop(operator);
    let _operator = stage.operator();
    stage.at_rest();
    processing("worker");
    carries("worker", false);
    stage.condition("Progressing", "False : ");
    recorded(&[]);
}
