//! FRR: the API server accepts its objects and definitions, with the certificates of a plain cluster.

use std::time::Duration;

use serde_json::{Value, json};

use crate::proxies::definition;
use crate::stage::{ACCOUNT, CLUSTER_OPERATOR, MULTUS, OPERATOR, Stage, condition, settings};

const NAMESPACE: &str = "/api/v1/namespaces/openshift-frr-k8s";
const DAEMON: &str = "/apis/apps/v1/namespaces/openshift-frr-k8s/daemonsets/frr-k8s";
const CLEANER: &str = "/apis/apps/v1/namespaces/openshift-frr-k8s/deployments/frr-k8s-statuscleaner";
const WEBHOOK: &str = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/\
                       frr-k8s-validating-webhook-configuration-ocp";
const CONFIGURATIONS: &str = "/apis/frrk8s.metallb.io/v1beta1/namespaces/default/frrconfigurations";

/// Configures a network with FRR, and waits for both workloads.
fn deploy(stage: &Stage) {
    stage.configure("Calico");
    stage.there(MULTUS);
    enable(stage);
    stage.there(DAEMON);
    stage.there(CLEANER);
}

fn enable(stage: &Stage) {
    let providers = json!({ "providers": ["FRR"] });
    stage.change(
        OPERATOR,
        &json!({ "spec": { "additionalRoutingCapabilities": providers } }),
    );
}

/// A configuration of FRR with one neighbor.
fn configuration(name: &str, neighbor: &Value) -> Value {
    json!({
        "apiVersion": "frrk8s.metallb.io/v1beta1", "kind": "FRRConfiguration",
        "metadata": { "name": name, "namespace": "default" },
        "spec": { "bgp": { "routers": [{ "asn": 64512, "neighbors": [neighbor] }] } },
    })
}

// cluster-network#151, cluster-network#154, cluster-network#157, cluster-network#169
#[test]
fn frr_is_counted_in_the_rollout_and_pruned() {
    let stage = Stage::start();
    let _operator = stage.operator_with_all();
    stage.configure("Calico");
    stage.there(MULTUS);
    stage.at_rest();
    stage.roll_out_all();
    stage.condition("Available", "True : ");
    stage.condition("Progressing", "False : ");
    enable(&stage);
    for title in [
        r#"DaemonSet "/openshift-frr-k8s/frr-k8s""#,
        r#"Deployment "/openshift-frr-k8s/frr-k8s-statuscleaner""#,
    ] {
        stage.wait_for(&format!("progress of {title}"), OPERATOR, |object| {
            condition(object?, "Progressing")?.contains(title).then_some(())
        });
    }
    // The certificate comes from the operator, and the webhook configuration trusts its authority.
    stage.there(&format!("{NAMESPACE}/secrets/frr-k8s-cert"));
    stage.there("/api/v1/namespaces/openshift-multus/secrets/network-metrics-cert");
    let bundle = stage.there(&format!("{NAMESPACE}/configmaps/frr-k8s-ca"));
    let bundle = bundle["data"]["ca-bundle.crt"]
        .as_str()
        .expect("a bundle")
        .to_owned();
    let webhook = stage.there(WEBHOOK);
    let trusted = &webhook["webhooks"][0]["clientConfig"]["caBundle"];
    assert_eq!(*trusted, ::stage::base64(bundle.as_bytes()));
    stage.at_rest();
    stage.roll_out(DAEMON);
    stage.roll_out(CLEANER);
    stage.condition("Progressing", "False : ");
    stage.condition("Degraded", "False : ");

    // Drift is repaired, and a change that concerns no field of the operator causes no write.
    stage.remove(DAEMON);
    stage.there(DAEMON);
    stage.change(
        WEBHOOK,
        &json!({ "webhooks": [{
            "name": "frrconfigurationsvalidationwebhook.metallb.io", "admissionReviewVersions": ["v1"],
            "clientConfig": webhook["webhooks"][0]["clientConfig"], "sideEffects": "None", "failurePolicy": "Ignore",
        }] }),
    );
    stage.wait_for("the policy of failures", WEBHOOK, |object| {
        (object?["webhooks"][0]["failurePolicy"] == "Fail").then_some(())
    });
    let mark = stage.at_rest();
    stage.change(CLEANER, &json!({ "metadata": { "labels": { "mine": "kept" } } }));
    stage.at_rest();
    let is_write = |verb: &str| !["get", "list", "watch"].contains(&verb);
    let writes: Vec<_> = stage
        .requests_of(ACCOUNT, mark)
        .into_iter()
        .filter(|it| is_write(&it.verb))
        .collect();
    assert!(writes.is_empty(), "{writes:#?}");

    let mark = stage.mark();
    stage.change(
        OPERATOR,
        &json!({ "spec": { "additionalRoutingCapabilities": null } }),
    );
    for path in [
        DAEMON,
        CLEANER,
        WEBHOOK,
        "/apis/rbac.authorization.k8s.io/v1/clusterroles/openshift-frr-k8s",
        "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/openshift-frr-k8s",
        "/apis/network.operator.openshift.io/v1/namespaces/openshift-frr-k8s/operatorpkis/frr-k8s",
    ] {
        stage.gone(path);
    }
    // No controller of this server completes the deletion of a namespace.
    stage.wait_for("the end of the namespace", NAMESPACE, |object| {
        object?["metadata"]["deletionTimestamp"].as_str().map(drop)
    });
    let requests = stage.requests_of(ACCOUNT, mark);
    let first = requests.iter().find(|it| it.verb == "delete");
    // Without its pods, the webhook would refuse all configurations of FRR.
    assert!(first.is_some_and(|it| it.uri.starts_with(WEBHOOK)), "{first:#?}");
    stage.wait_for("related objects without FRR", CLUSTER_OPERATOR, |object| {
        let related = object?["status"]["relatedObjects"].as_array()?;
        let is_gone = !related.iter().any(|it| it["namespace"] == "openshift-frr-k8s");
        is_gone.then_some(())
    });
    stage
        .there("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/frrconfigurations.frrk8s.metallb.io");
}

// cluster-network#154
#[test]
fn authority_that_openshift_injects_stays() {
    let stage = Stage::start();
    stage.apply(&definition("Infrastructure", "infrastructures"));
    let infrastructures = "/apis/config.openshift.io/v1/infrastructures";
    stage.wait_until_served(infrastructures);
    stage.create(
        infrastructures,
        &json!({
            "apiVersion": "config.openshift.io/v1", "kind": "Infrastructure", "metadata": { "name": "cluster" },
        }),
    );
    let _operator = stage.operator_with_all();
    deploy(&stage);
    stage.there(WEBHOOK);
    stage.at_rest();
    let mut webhook = stage.there(WEBHOOK);
    assert_eq!(webhook["webhooks"][0]["clientConfig"]["caBundle"], Value::Null);
    // The service authority of OpenShift fills in the bundle.
    let injected = ::stage::base64(b"PEM");
    webhook["webhooks"][0]["clientConfig"]["caBundle"] = injected.clone();
    stage
        .send(::stage::Method::PUT, WEBHOOK, Some(&webhook))
        .accepted();
    stage.change(
        WEBHOOK,
        &json!({ "metadata": { "annotations": { "service.beta.openshift.io/inject-cabundle": "false" } } }),
    );
    stage.wait_for("the annotation", WEBHOOK, |object| {
        let annotation = &object?["metadata"]["annotations"]["service.beta.openshift.io/inject-cabundle"];
        (annotation == "true").then_some(())
    });
    stage.at_rest();
    let webhook = stage.there(WEBHOOK);
    assert_eq!(webhook["webhooks"][0]["clientConfig"]["caBundle"], injected);
    let certificates = "/apis/network.operator.openshift.io/v1/namespaces/openshift-frr-k8s/operatorpkis";
    assert_eq!(stage.list(certificates), Vec::<Value>::new());
}

// cluster-network#158
#[test]
fn tls_profile_of_the_cluster_is_followed() {
    let stage = Stage::start();
    stage.apply(&definition("APIServer", "apiservers"));
    let servers = "/apis/config.openshift.io/v1/apiservers";
    stage.wait_until_served(servers);
    let modern = json!({ "type": "Modern" });
    stage.create(
        servers,
        &json!({
            "apiVersion": "config.openshift.io/v1", "kind": "APIServer", "metadata": { "name": "cluster" },
            "spec": { "tlsSecurityProfile": modern },
        }),
    );
    let _operator = stage.operator();
    deploy(&stage);
    let first = |object: &Value| object["spec"]["template"]["spec"]["containers"][0]["args"][0].clone();
    assert_eq!(first(&stage.there(CLEANER)), "--disable-cert-rotation=true");
    let require = |policy: &str| {
        let spec = json!({ "spec": { "tlsAdherence": policy } });
        stage.change(&format!("{servers}/cluster"), &spec);
    };
    require("StrictAllComponents");
    let flag = "--tls-min-version=VersionTLS13";
    for path in [DAEMON, CLEANER] {
        stage.wait_for("the profile", path, |object| {
            (first(object?) == flag).then_some(())
        });
    }
    require("LegacyAdheringComponentsOnly");
    for path in [DAEMON, CLEANER] {
        stage.wait_for("no profile", path, |object| {
            (first(object?) != flag).then_some(())
        });
    }
}

// cluster-network#156, cluster-network#151
#[test]
fn configurations_of_frr_are_validated_and_outlive_it() {
    let stage = Stage::start();
    // Without the controller of certificates, no webhook is configured.
    let _operator = stage.operator();
    deploy(&stage);
    for plural in ["frrconfigurations", "frrk8sconfigurations", "bgpsessionstates"] {
        stage.wait_until_served(&format!(
            "/apis/frrk8s.metallb.io/v1beta1/namespaces/default/{plural}"
        ));
    }
    stage.wait_until_served("/apis/frrk8s.metallb.io/v1beta1/frrnodestates");
    assert!(stage.get(WEBHOOK).is_none());
    let valid = configuration(
        "valid",
        &json!({
            "address": "192.0.2.1", "asn": 64513, "connectTime": "10s", "holdTime": "90s", "port": 179,
            "toAdvertise": { "allowed": { "prefixes": ["198.51.100.0/24"] } },
            "toReceive": { "allowed": { "mode": "all", "prefixes": [{ "prefix": "0.0.0.0/0", "le": 32 }] } },
        }),
    );
    let stored = stage.create(CONFIGURATIONS, &valid);
    let neighbor = &stored["spec"]["bgp"]["routers"][0]["neighbors"][0];
    assert_eq!(neighbor["toAdvertise"]["allowed"]["mode"], "filtered");
    assert_eq!(neighbor["dualStackAddressFamily"], false);
    assert_eq!(
        neighbor["holdTime"], "90s",
        "no field of the neighbor is pruned: {neighbor}"
    );
    for (neighbor, error) in [
        (
            json!({ "asn": 4_294_967_296_u64 }),
            "less than or equal to 4294967295",
        ),
        (
            json!({ "connectTime": "1500ms" }),
            "connect time should contain a whole number of seconds",
        ),
        (
            json!({ "connectTime": "0s" }),
            "connect time should be between 1 seconds to 65535",
        ),
        (json!({ "dynamicASN": "any" }), "Unsupported value: \"any\""),
        (json!({ "port": 16385 }), "less than or equal to 16384"),
        (
            json!({ "toReceive": { "allowed": { "prefixes": [{ "prefix": "all" }] } } }),
            "must be of type cidr",
        ),
    ] {
        let wrong = configuration("wrong", &neighbor);
        let refused = stage
            .send(::stage::Method::POST, CONFIGURATIONS, Some(&wrong))
            .refused();
        assert!(refused.contains(error), "{neighbor}: {refused}");
    }
    stage.change(
        OPERATOR,
        &json!({ "spec": { "additionalRoutingCapabilities": null } }),
    );
    stage.gone(DAEMON);
    stage.at_rest();
    assert_eq!(
        stage.there(&format!("{CONFIGURATIONS}/valid"))["spec"],
        stored["spec"]
    );
}

// cluster-network#151
#[test]
fn frr_without_its_image_stays_as_it_is() {
    let stage = Stage::start();
    let operator = stage.operator();
    deploy(&stage);
    stage.at_rest();
    drop(operator);
    let before = stage.there(DAEMON);
    let mut settings = settings();
    settings.frr_image = None;
    let _operator = stage.operator_of(settings, Duration::ZERO);
    stage.condition(
        "Degraded",
        "True RenderError: FRR is to be deployed, and its image is not known: set environment variable FRR_K8S_IMAGE of \
         the operator",
    );
    stage.at_rest();
    let after = stage.there(DAEMON);
    assert_eq!(
        after["metadata"]["resourceVersion"],
        before["metadata"]["resourceVersion"]
    );
    stage.there(CLEANER);
}

// cluster-network#157
#[test]
fn binding_of_an_earlier_operator_is_pruned() {
    const NAME: &str = "system:openshift:scc:privileged";
    let stage = Stage::start();
    let bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/openshift-frr-k8s/rolebindings";
    let owner = stage.related(&json!([{
        "group": "rbac.authorization.k8s.io", "resource": "rolebindings", "namespace": "openshift-frr-k8s", "name": NAME,
    }]));
    stage.namespace("openshift-frr-k8s", &[]);
    stage.create(
        bindings,
        &json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding",
            "metadata": { "name": NAME, "ownerReferences": [owner] },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME },
        }),
    );
    let _operator = stage.operator();
    deploy(&stage);
    stage.gone(&format!("{bindings}/{NAME}"));
    stage.there(&format!("{bindings}/openshift-frr-k8s"));
    stage.at_rest();
    stage.condition("Degraded", "False : ");
}

// cluster-network#152
#[test]
fn unknown_provider_is_refused() {
    let stage = Stage::start();
    let _operator = stage.operator();
    stage.configure("Calico");
    stage.there(MULTUS);
    let refused = |spec: Value| stage.patch(OPERATOR, &json!({ "spec": spec })).refused();
    let unknown = refused(json!({ "additionalRoutingCapabilities": { "providers": ["BIRD"] } }));
    assert!(
        unknown.contains("Unsupported value: \"BIRD\": supported values: \"FRR\""),
        "{unknown}"
    );
    let advertises = json!({ "ovnKubernetesConfig": { "routeAdvertisements": "Enabled" } });
    let missing = refused(json!({ "defaultNetwork": advertises }));
    let text = "Route advertisements cannot be Enabled if 'FRR' routing capability provider is not available";
    assert!(missing.contains(text), "{missing}");
    enable(&stage);
    stage.change(OPERATOR, &json!({ "spec": { "defaultNetwork": advertises } }));
    let missing = refused(json!({ "additionalRoutingCapabilities": null }));
    assert!(missing.contains(text), "{missing}");
}
