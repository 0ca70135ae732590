//! Takeover of installations of earlier generations: workloads with the same names are updated, the others are removed.

use kube_kit::object;
use serde_json::{Value, json};

use crate::{
    fixture::{DEADLINE, Fixture, NAMESPACE, VERSION},
    installation::{DEPLOYMENTS, IMAGES, Installation, VERSION_LABEL, identities, owned},
    stubs::CERT_MANAGER,
};

const NETWORKS: &str = "network-attachment-definitions.k8s.cni.cncf.io";

fn first_generation(fixture: &Fixture) -> Installation {
    let definitions = Installation::earlier(
        fixture,
        "0.23.0",
        &[include_str!("../fixtures/era-0.23/definitions.yaml")],
    );
    definitions.define(fixture);
    let installation = Installation::earlier(
        fixture,
        "0.23.0",
        &[
            include_str!("../fixtures/era-0.23/operands.yaml"),
            include_str!("../fixtures/era-0.23/nmstate.yaml"),
        ],
    );
    installation.create(fixture);
    // The kubemacpool of that generation created the webhook configuration itself.
    let webhooks = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": "kubemacpool-mutator" },
    });
    fixture
        .kubectl()
        .delete(["mutatingwebhookconfiguration", "kubemacpool-mutator"])
        .expect("deleted");
    fixture.kubectl().apply(&webhooks.to_string()).expect("webhooks");
    // That generation also set a label on the namespace.
    let label = [
        "label",
        "--overwrite",
        "namespace",
        NAMESPACE,
        "control-plane=mac-controller-manager",
        "controller-tools.k8s.io=1.0",
        "kubemacpool/ignoreAdmission=true",
        "networkaddonsoperator.network.kubevirt.io/version=0.23.0",
    ];
    fixture.kubectl().run(label).expect("labels");
    installation
}

/// Waits until no object of an operator has the version of another operator (operator §14).
fn wait_for_our_version(fixture: &Fixture) {
    let namespaced =
        "configmaps,serviceaccounts,services,deployments,daemonsets,roles,rolebindings,poddisruptionbudgets";
    let cluster = "clusterroles,clusterrolebindings,mutatingwebhookconfigurations";
    cluster::wait::until("one version everywhere", DEADLINE, || {
        let list = |kinds: &str| {
            let get = ["get", kinds, "-n", NAMESPACE, "-l", VERSION_LABEL];
            let list = fixture.kubectl().json(get).expect("objects");
            list["items"].as_array().cloned().unwrap_or_default()
        };
        // Cluster-scoped objects are shared with other tests, whose configuration resource is deleted.
        let uid = fixture.configuration()["metadata"]["uid"].clone();
        let ours = |object: &Value| object["metadata"]["ownerReferences"][0]["uid"] == uid;
        let all: Vec<_> = [list(namespaced), list(cluster)]
            .concat()
            .into_iter()
            .filter(ours)
            .collect();
        let namespace = fixture.object("namespace", NAMESPACE).expect("it");
        let stale: Vec<_> = all
            .iter()
            .chain([&namespace])
            .filter(|object| {
                object["metadata"]["labels"][VERSION_LABEL]
                    .as_str()
                    .is_some_and(|v| v != VERSION)
            })
            .map(crate::installation::key)
            .collect();
        if stale.is_empty() {
            Ok(())
        } else {
            Err(format!("{stale:#?}\n{:#?}", fixture.events()))
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
}

// operator#70 for the first generation, operator#80, operands#20
#[test]
fn first_generation_is_updated_in_place() {
    let mut fixture = Fixture::installed();
    let spec = json!({ "multus": {}, "linuxBridge": {}, "ovs": {}, "kubeMacPool": {}, "nmstate": {} });
    fixture.configure_as("v1alpha1", "cluster", &spec);
    first_generation(&fixture);
    let before = identities(&owned(&fixture));

    fixture.start_images(&IMAGES);
    for (kind, name) in [
        ("daemonset", "kube-multus-ds-amd64"),
        ("poddisruptionbudget", "mac-controller-manager"),
        ("daemonset", "nmstate-handler"),
        ("mutatingwebhookconfiguration", "nmstate"),
    ] {
        fixture.wait_until_gone(kind, name);
    }
    let sets = [
        "multus",
        "kube-cni-linux-bridge-plugin",
        "bridge-marker",
        "ovs-cni-amd64",
    ];
    fixture.roll_out(&sets);
    fixture.roll_out_deployments(&DEPLOYMENTS[..2]);
    fixture.roll_out_deployments(&["nmstate-operator"]);
    fixture.report_node_state("True", "");
    fixture.wait_until_available();
    wait_for_our_version(&fixture);

    let objects = owned(&fixture);
    let after = identities(&objects);
    for name in [
        "DaemonSet/kube-cni-linux-bridge-plugin",
        "DaemonSet/bridge-marker",
        "DaemonSet/ovs-cni-amd64",
        "Deployment/kubemacpool-mac-controller-manager",
    ] {
        assert_eq!(
            after[name], before[name],
            "{name} is the one it was, with its selector"
        );
        let pods = &objects[name]["spec"]["template"]["spec"];
        assert!(
            pods["nodeSelector"]["beta.kubernetes.io/arch"].is_null()
                && pods["containers"][0]["resources"]["limits"].is_null(),
            "nothing of the old pods is left: {pods:#}"
        );
    }
    let multus = &objects["DaemonSet/multus"]["spec"];
    assert_eq!(
        multus["selector"]["matchLabels"],
        json!({ "name": "kube-multus-ds-amd64" })
    );
    let ovs = &objects["DaemonSet/ovs-cni-amd64"]["spec"]["template"]["spec"];
    assert_eq!(ovs["initContainers"][0]["name"], "ovs-cni-plugin");
    assert_eq!(ovs["containers"].as_array().map(Vec::len), Some(1));
    let pool = &objects["Deployment/kubemacpool-mac-controller-manager"]["spec"];
    assert_eq!(
        (&pool["replicas"], &pool["strategy"]),
        (&json!(1), &json!({ "type": "Recreate" }))
    );
    let binding = &objects["ClusterRoleBinding/kubemacpool-manager-rolebinding"];
    assert_eq!(binding["subjects"][0]["name"], "kubemacpool-sa");
    let range = &objects["ConfigMap/kubemacpool-mac-range-config"]["data"];
    assert_eq!(
        range,
        &json!({ "RANGE_START": "02:ab:cd:00:00:00", "RANGE_END": "02:ab:cd:ff:ff:ff" })
    );
    let webhooks = &objects["MutatingWebhookConfiguration/kubemacpool-mutator"]["webhooks"];
    assert_eq!(
        webhooks.as_array().map(Vec::len),
        Some(2),
        "rendered ones are added"
    );
    // The old node state is gone; the current operator replaces it.
    let left: Vec<_> = objects.keys().filter(|name| name.contains("nmstate")).collect();
    assert_eq!(
        left,
        [
            "ClusterRoleBinding/cluster-network-addons-nmstate-operator",
            "Deployment/nmstate-operator",
            "RoleBinding/cluster-network-addons-nmstate-operator-namespace",
            "ServiceAccount/nmstate-operator",
        ]
    );
    // Networks must not be deleted with the configuration resource.
    let definition = fixture.object("crd", NETWORKS).expect("the definition");
    assert_eq!(definition["metadata"].get("ownerReferences"), None);
    let version = &definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    assert!(version["description"].is_string(), "{version:#}");
}

// operator#67, operator#80, operands#20
#[test]
fn unrequested_workloads_of_first_generation_are_removed() {
    let mut fixture = Fixture::installed();
    fixture.configure_as("v1alpha1", "cluster", &json!({ "linuxBridge": {} }));
    let installation = first_generation(&fixture);
    // Another owner that adopted one of the objects keeps it.
    let adopted = json!({ "metadata": { "ownerReferences": [
        { "apiVersion": "nmstate.io/v1", "kind": "NMState", "name": "nmstate", "uid": "1" },
    ] } });
    let patch = adopted.to_string();
    for (kind, name) in [
        ("configmap", "nmstate-config"),
        ("clusterrole", "nmstate-handler"),
    ] {
        let arguments = ["patch", kind, name, "-n", NAMESPACE, "--type=merge", "-p", &patch];
        fixture.kubectl().run(arguments).expect("patched");
    }
    fixture.start_images(&IMAGES);
    let kept = [
        "DaemonSet/kube-cni-linux-bridge-plugin",
        "DaemonSet/bridge-marker",
        "ClusterRole/bridge-marker-cr",
        "ClusterRoleBinding/bridge-marker-crb",
        "ServiceAccount/bridge-marker",
        "ConfigMap/cluster-networks-addons-operator-applied-cluster",
        "NetworkPolicy/cnao-allow-egress-to-cluster-api",
        "NetworkPolicy/cnao-allow-egress-to-cluster-dns",
    ];
    assert!(installation.objects.len() > 2 * kept.len());
    cluster::wait::until("the remaining objects", DEADLINE, || {
        let mut expected: Vec<_> = kept.iter().map(|name| (*name).to_owned()).collect();
        expected.sort();
        let found: Vec<_> = owned(&fixture).into_keys().collect();
        // The old DaemonSet of multus has a different name. It is deleted with the deployment of multus, or with its
        // component.
        if found == expected {
            Ok(())
        } else {
            Err(format!("{found:#?}\n{:#?}", fixture.events()))
        }
    })
    .unwrap_or_else(|error| panic!("{error}"));
    for (kind, name) in [
        ("configmap", "nmstate-config"),
        ("clusterrole", "nmstate-handler"),
    ] {
        assert!(
            fixture.operand(kind, name).is_some(),
            "{kind} {name} has another owner"
        );
    }
    fixture.roll_out(&["kube-cni-linux-bridge-plugin", "bridge-marker"]);
    fixture.wait_until_available();
    wait_for_our_version(&fixture);
    let warnings: Vec<_> = fixture
        .events()
        .into_iter()
        .filter(|event| event.starts_with("Warning"))
        .collect();
    assert_eq!(warnings, Vec::<String>::new());
}

// operator#70 for leftovers of releases from 0.89 on that later ones no longer deploy
#[test]
fn leftovers_of_release_0_94_are_removed() {
    let mut fixture = Fixture::with(CERT_MANAGER);
    fixture.configure(&json!({ "macvtap": {}, "kubevirtIpamController": {} }));
    let definitions = Installation::earlier(
        &fixture,
        "0.94.0",
        &[include_str!("../fixtures/established/definitions.yaml")],
    );
    definitions.define(&fixture);
    let installation = Installation::earlier(
        &fixture,
        "0.94.0",
        &[include_str!("../fixtures/release-0.94/leftovers.yaml")],
    );
    installation.create(&fixture);
    let before = identities(&owned(&fixture));
    fixture.start_images(&IMAGES);
    // Leftovers are deleted after all other steps.
    fixture.wait_until_gone("daemonset", "passt-binding-cni");
    fixture.roll_out(&["macvtap-cni"]);
    fixture.roll_out_deployments(&["kubevirt-ipam-controller-manager"]);
    fixture.wait_until_available();
    wait_for_our_version(&fixture);
    let objects = owned(&fixture);
    let left = objects
        .keys()
        .filter(|name| name.contains("kubevirt-ipam-claims"))
        .collect::<Vec<_>>();
    assert_eq!(left, Vec::<&String>::new());
    let networks = object::NETWORK_ATTACHMENT_DEFINITION.path(Some("default"));
    let network = format!("{networks}/primary-udn-kubevirt-binding");
    assert_eq!(fixture.admin().get(&network), None::<Value>);
    let macvtap = "DaemonSet/macvtap-cni";
    assert_eq!(identities(&objects)[macvtap], before[macvtap]);
}
