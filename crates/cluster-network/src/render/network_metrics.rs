//! network-metrics-daemon, which tells Prometheus which networks the interfaces of pods are in (§12).

use serde_json::{Value, json};

use super::{
    Context, Error,
    objects::{container, extend, find, parse, set, use_image, use_secret},
    parts::{KUBE_RBAC_PROXY, left_out, skip_verification, without_monitoring},
};
use crate::messages;

/// The `DaemonSet`, and the placeholder of its image in the file.
const DAEMON: &str = "network-metrics-daemon";
/// Secret with the certificate of `OperatorPKI` `network-metrics`.
const SECRET: &str = "network-metrics-cert";
/// Flag of kube-rbac-proxy that a TLS profile replaces.
const CIPHERS: &str = "--tls-cipher-suites=";

/// All objects. Nothing is rendered without both images.
pub(super) fn objects(context: &Context<'_>) -> Result<Vec<Value>, Error> {
    let Context { facts, settings, .. } = *context;
    let images = settings
        .network_metrics_image
        .as_ref()
        .zip(settings.kube_rbac_proxy_image.as_ref());
    let Some((image, guard)) = images else {
        if facts.openshift {
            left_out(messages::NO_NETWORK_METRICS_IMAGE);
        }
        return Ok(Vec::new());
    };
    let mut objects = parse("network_metrics.yaml", include_str!("network_metrics.yaml"))?;
    use_image(&mut objects, DAEMON, image, &settings.pull_policy);
    use_image(&mut objects, KUBE_RBAC_PROXY, guard, &settings.pull_policy);
    let daemon = find(&mut objects, "DaemonSet", DAEMON)?;
    if let Some(profile) = &facts.tls_profile {
        let flags = &mut container(daemon, KUBE_RBAC_PROXY)?["args"];
        if let Some(flags) = flags.as_array_mut() {
            flags.retain(|flag| !flag.as_str().is_some_and(|flag| flag.starts_with(CIPHERS)));
        }
        extend(flags, profile.flags());
    }
    if facts.openshift {
        objects.retain(|object| object["kind"] != "OperatorPKI");
    } else {
        let class = json!("system-cluster-critical");
        set(daemon, "/spec/template/spec/priorityClassName", class)?;
        use_secret(daemon, "metrics-certs", SECRET);
        skip_verification(&mut objects);
    }
    Ok(without_monitoring(objects, facts))
}

#[cfg(test)]
mod tests {
    use api::cluster_network::operator::NetworkSpec;
    use serde_json::{Value, json};

    use super::super::{
        Part,
        sample::{self, Variables, titles},
    };
    use crate::{facts::Facts, tls_profile::Profile};

    const IMAGES: &Variables<'_> = &[
        ("NETWORK_METRICS_DAEMON_IMAGE", "registry.example/metrics:v1"),
        ("KUBE_RBAC_PROXY_IMAGE", "registry.example/guard:v1"),
    ];

    fn rendered(spec: &NetworkSpec, facts: &Facts, images: &Variables<'_>) -> Vec<Value> {
        sample::objects(Part::NetworkMetrics, spec, facts, &sample::settings(images))
    }

    fn on_openshift() -> Facts {
        Facts {
            openshift: true,
            monitoring: true,
            ..Facts::default()
        }
    }

    fn find<'a>(objects: &'a [Value], kind: &str) -> &'a Value {
        objects.iter().find(|it| it["kind"] == kind).expect(kind)
    }

    fn flags(objects: &[Value]) -> Vec<String> {
        let guard = &find(objects, "DaemonSet")["spec"]["template"]["spec"]["containers"][1]["args"];
        serde_json::from_value(guard.clone()).expect("flags")
    }

    // cluster-network#169
    #[test]
    fn daemon_is_rendered_with_multus_and_both_images() {
        let spec = NetworkSpec::default();
        let objects = rendered(&spec, &on_openshift(), IMAGES);
        let expected = [
            "ServiceAccount metrics-daemon-sa",
            "ClusterRole metrics-daemon-role",
            "ClusterRoleBinding metrics-daemon-sa-rolebinding",
            "NetworkPolicy network-metrics",
            "DaemonSet network-metrics-daemon",
            "Service network-metrics-service",
            "ServiceMonitor monitor-network",
            "Role prometheus-k8s",
            "RoleBinding prometheus-k8s",
        ];
        assert_eq!(titles(&objects), expected);
        let daemon = find(&objects, "DaemonSet");
        let annotation = "networkoperator.openshift.io/non-critical";
        assert_eq!(daemon["metadata"]["annotations"][annotation], "");
        let pod = &daemon["spec"]["template"]["spec"];
        assert_eq!(pod["containers"][0]["image"], IMAGES[0].1);
        assert_eq!(pod["containers"][1]["image"], IMAGES[1].1);
        let selection = "requiredDuringSchedulingIgnoredDuringExecution";
        let terms = &pod["affinity"]["nodeAffinity"][selection]["nodeSelectorTerms"];
        let absent = ["dpu-host", "dpu"].map(|label| {
            json!({ "key": format!("network.operator.openshift.io/{label}"), "operator": "DoesNotExist" })
        });
        assert_eq!(*terms, json!([{ "matchExpressions": absent }]));

        for images in [&IMAGES[..1], &IMAGES[1..], &[]] {
            let objects = rendered(&spec, &on_openshift(), images);
            assert_eq!(objects, Vec::<Value>::new(), "{images:?}");
        }
        let mut without_multus = spec;
        without_multus.disable_multi_network = Some(true);
        let objects = rendered(&without_multus, &on_openshift(), IMAGES);
        assert_eq!(objects, Vec::<Value>::new());
    }

    // cluster-network#169
    #[test]
    fn certificate_depends_on_the_cluster() {
        let state = |facts: &Facts| {
            let objects = rendered(&NetworkSpec::default(), facts, IMAGES);
            let pod = &find(&objects, "DaemonSet")["spec"]["template"]["spec"];
            let monitor = objects.iter().find(|it| it["kind"] == "ServiceMonitor");
            (
                objects.iter().any(|it| it["kind"] == "OperatorPKI"),
                pod["volumes"][0]["secret"]["secretName"].clone(),
                pod["priorityClassName"].clone(),
                monitor.map(|it| it["spec"]["endpoints"][0]["tlsConfig"].clone()),
            )
        };
        let verified = json!({
            "caFile": "/etc/prometheus/configmaps/serving-certs-ca-bundle/service-ca.crt",
            "serverName": "network-metrics-service.openshift-multus.svc",
        });
        let openshift = (
            false,
            json!("metrics-daemon-secret"),
            json!("openshift-user-critical"),
            Some(verified),
        );
        assert_eq!(state(&on_openshift()), openshift);
        let mut plain = on_openshift();
        plain.openshift = false;
        let own = (
            true,
            json!("network-metrics-cert"),
            json!("system-cluster-critical"),
            Some(json!({ "insecureSkipVerify": true })),
        );
        assert_eq!(state(&plain), own);
        plain.monitoring = false;
        assert_eq!(state(&plain).3, None);
        // Without Prometheus, no account gets its rights.
        let objects = rendered(&NetworkSpec::default(), &plain, IMAGES);
        let prometheus = objects
            .iter()
            .filter(|it| it["metadata"]["name"] == "prometheus-k8s");
        assert_eq!(prometheus.count(), 0);
    }

    // cluster-network#169, cluster-network#158
    #[test]
    fn tls_profile_replaces_the_default_ciphers() {
        let spec = NetworkSpec::default();
        let default = flags(&rendered(&spec, &on_openshift(), IMAGES));
        let ciphers = "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256";
        assert_eq!(default.last(), Some(&format!("--tls-cipher-suites={ciphers}")));
        let modern = json!({ "spec": {
            "tlsAdherence": "StrictAllComponents", "tlsSecurityProfile": { "type": "Modern" },
        } });
        let mut facts = on_openshift();
        facts.tls_profile = Profile::of(&modern);
        let mut expected = default;
        expected.pop();
        expected.push("--tls-min-version=VersionTLS13".to_owned());
        assert_eq!(flags(&rendered(&spec, &facts, IMAGES)), expected);
    }
}
