use super::*;
use crate::cluster::{LookupError, Nad};
use crate::explain::facts::{Event, PodObject};
use crate::explain::gather;
use kube_kit::watch::Name;
use serde_json::{Value, json};

fn nad(config: &str, resource: Option<&str>) -> Nad {
    Nad {
        config: config.into(),
        resource_name: resource.map(Into::into),
    }
}

/// A pod of namespace `ns` that runs, and the networks `ns/a`, `ns/b` (needs a device) and `ns/file`.
#[allow(clippy::needless_pass_by_value, reason = "calls read better")]
fn facts(annotations: Value, status: Value) -> Facts {
    let mut annotations = annotations;
    if !status.is_null() {
        annotations["k8s.v1.cni.cncf.io/network-status"] = status.to_string().into();
    }
    let pod = json!({"metadata": {"namespace": "ns", "name": "web", "uid": "u", "annotations": annotations},
        "spec": {"nodeName": "n1", "containers": [{}]}, "status": {"phase": "Running"}});
    let pod: PodObject = serde_json::from_value(pod).unwrap();
    let nads = [
        ("a", nad(r#"{"cniVersion":"0.3.1","type":"bridge"}"#, None)),
        (
            "b",
            nad(r#"{"cniVersion":"0.3.1","type":"sriov"}"#, Some("x.io/vf")),
        ),
        ("tune", nad(r#"{"cniVersion":"0.3.1","type":"tuning"}"#, None)),
        ("file", nad("", None)),
    ];
    Facts {
        pod,
        config: gather::parse("{}").unwrap(),
        config_from: Ok("kube-system".into()),
        nads: nads
            .into_iter()
            .map(|(name, nad)| (Name::new("ns", name), Ok(nad)))
            .collect(),
        forbidden: BTreeSet::new(),
        has_nads: true,
        events: Vec::new(),
        notes: Vec::new(),
    }
}

fn networks(text: &str) -> Value {
    json!({"k8s.v1.cni.cncf.io/networks": text})
}

fn master() -> Value {
    json!({"name": "cluster-net", "interface": "eth0", "ips": ["10.0.0.1"], "default": true, "dns": {}})
}

async fn problems(facts: &Facts) -> Vec<String> {
    let report = report(facts).await;
    report
        .problems
        .iter()
        .map(|problem| format!("{}: {}", problem.about, problem.text))
        .collect()
}

#[tokio::test]
async fn healthy_pod_has_no_problems() {
    let status = json!([master(), {"name": "ns/a", "interface": "net1", "ips": ["10.1.0.1"], "mac": "02:00:00:00:00:01"}]);
    let facts = facts(networks("a"), status);
    let report = report(&facts).await;
    assert_eq!(report.problems, []);
    let rows: Vec<_> = report
        .networks
        .iter()
        .map(|it| {
            (
                it.interface.as_str(),
                it.name.as_str(),
                it.from.as_str(),
                it.plugins.join(","),
            )
        })
        .collect();
    assert_eq!(
        rows,
        [
            ("eth0", "cluster-net", "cluster network", String::new()),
            ("net1", "ns/a", "networks[0]", "bridge".to_owned())
        ]
    );
    let config = report.networks[1].config.as_ref().unwrap().get();
    assert_eq!(config, r#"{"cniVersion":"0.3.1","type":"bridge","name":"a"}"#);
    assert_eq!(report.networks[1].attached.as_ref().unwrap().ips, ["10.1.0.1"]);
}

#[tokio::test]
async fn missing_and_surplus_attachments_are_reported() {
    let status = json!([master(), {"name": "ns/old", "interface": "net1"}]);
    assert_eq!(
        problems(&facts(networks("a,tune,file"), status)).await,
        [
            // A plugin that changes other plugins' interfaces is in no status.
            "net1 ns/a: it is requested, but not attached",
            "net3 ns/file: it is requested, but not attached",
            "net1 ns/old: it is attached, but not requested",
        ]
    );
    let mut unknown = facts(
        networks("a"),
        json!([master(), {"name": "ns/a", "interface": "net1"}, {"name": "x"}]),
    );
    unknown.config_from = Err("no".into());
    assert_eq!(
        problems(&unknown).await,
        [" x: it is attached, but not requested in an annotation; it may be one of multus' defaultNetworks"]
    );
}

#[tokio::test]
async fn differing_attributes_are_reported() {
    let requested = json!([{"name": "a", "interface": "data", "mac": "02:00:00:00:00:01", "ips": ["10.1.0.1/24", "10.1.0.2"]}]);
    let entry = json!({"name": "ns/a", "interface": "net1", "mac": "02:00:00:00:00:02", "ips": ["10.1.0.2"]});
    assert_eq!(
        problems(&facts(networks(&requested.to_string()), json!([master(), entry]))).await,
        [
            "data ns/a: its interface is net1",
            "data ns/a: mac 02:00:00:00:00:01 was requested, but it has 02:00:00:00:00:02",
            "data ns/a: address 10.1.0.1/24 was requested, but it has 10.1.0.2",
        ]
    );
    let entry = json!({"name": "ns/a", "interface": "data", "mac": "02-00-00-00-00-01", "ips": ["10.1.0.2", "10.1.0.1"]});
    assert!(
        problems(&facts(networks(&requested.to_string()), json!([master(), entry])))
            .await
            .is_empty()
    );
}

#[tokio::test]
async fn missing_device_requests_are_reported() {
    let status =
        json!([master(), {"name": "ns/b", "interface": "net1"}, {"name": "ns/b", "interface": "net2"}]);
    let mut facts = facts(networks("b,b"), status);
    let with = |containers: Value, first: Value| {
        serde_json::from_value(json!({"containers": containers, "initContainers": first})).unwrap()
    };
    let vf = |count: &str| json!({"resources": {"requests": {"x.io/vf": count}}});
    for (containers, first, has) in [
        (json!([{}]), json!([]), Some(0)),
        (json!([vf("1"), {}]), json!([]), Some(1)),
        (json!([vf("1"), vf("1")]), json!([]), None),
        (json!([{}]), json!([vf("1"), vf("1")]), Some(1)),
        (json!([{}]), json!([vf("2")]), None),
    ] {
        facts.pod.spec = with(containers, first);
        let expected = has.map(|has| {
            format!("net1 ns/b, net2 ns/b: needs 2 of resource x.io/vf, and the pod requests {has}")
        });
        assert_eq!(problems(&facts).await, expected.into_iter().collect::<Vec<_>>());
    }
    // Claims can't be counted from here.
    facts.pod.spec = serde_json::from_value(json!({"containers": [{}], "resourceClaims": [{}]})).unwrap();
    assert!(problems(&facts).await.is_empty());
}

#[tokio::test]
async fn unresolvable_networks_are_reported() {
    let mut facts = facts(networks("other/a,missing,a@x,b@x"), json!([master()]));
    facts.config = gather::parse(r#"{"namespaceIsolation":true}"#).unwrap();
    facts
        .nads
        .insert(Name::new("ns", "missing"), Err(LookupError("not found".into())));
    facts
        .pod
        .metadata
        .annotations
        .remove("k8s.v1.cni.cncf.io/network-status");
    facts.pod.status.phase = "Pending".into();
    facts.pod.spec.resource_claims = vec![json!({})];
    facts.events = vec![Event {
        kind: "Warning".into(),
        reason: "NoNetworkFound".into(),
        message: "the last words".into(),
        ..Event::default()
    }];
    assert_eq!(
        problems(&facts).await,
        [
            "net1 other/a: GetNetworkDelegates: namespace isolation enabled, annotation violates permission, pod is in \
             namespace ns but refers to target namespace other",
            "net2 ns/missing: getKubernetesDelegate: cannot find a network-attachment-definition (missing) in namespace \
             (ns): not found",
            "x ns/b: another network of the pod has an interface of this name",
            "NoNetworkFound: the last words",
        ]
    );
    facts.has_nads = false;
    assert_eq!(
        problems(&facts).await[0],
        "k8s.v1.cni.cncf.io/networks: this cluster knows no NetworkAttachmentDefinitions, so it has no multus"
    );
}

#[tokio::test]
async fn forbidden_definition_is_not_reported_missing() {
    let secret = Name::new("other", "secret");
    let mut facts = facts(
        networks("other/secret"),
        json!([master(), {"name": "other/secret", "interface": "net1"}]),
    );
    let forbidden = Err(LookupError("forbidden".into()));
    facts.nads.insert(secret.clone(), forbidden);
    facts.forbidden.insert(secret);
    let report = report(&facts).await;
    assert_eq!(report.problems, []);
    assert!(report.networks[1].plugins.is_empty() && report.networks[1].attached.is_some());
}

#[tokio::test]
async fn default_networks_come_first() {
    let mut facts = facts(networks("ns/a"), Value::Null);
    facts.pod.status.phase = "Pending".into();
    facts.config =
        gather::parse(r#"{"clusterNetwork":"a","defaultNetworks":["b","nowhere"],"multusNamespace":"ns"}"#)
            .unwrap();
    facts.pod.spec.resource_claims = vec![json!({})];
    let places = |report: &Report| -> Vec<String> {
        let networks = report.networks.iter();
        networks
            .map(|it| format!("{} {} {}", it.interface, it.name, it.from))
            .collect()
    };
    assert_eq!(
        places(&report(&facts).await),
        [
            "eth0 ns/a cluster network",
            "net1 ns/b defaultNetworks",
            // The name of a file's configuration, perhaps.
            "net2 nowhere defaultNetworks",
            "net3 ns/a networks[0]"
        ]
    );
    facts.config.system_namespaces = vec!["ns".into()];
    let annotation = "v1.multus-cni.io/default-network".to_owned();
    facts
        .pod
        .metadata
        .annotations
        .insert(annotation, "b@first".into());
    assert_eq!(
        places(&report(&facts).await),
        ["first ns/b default-network", "net1 ns/a networks[0]"]
    );
}

#[tokio::test]
async fn unattached_pods_are_reported() {
    let mut facts = facts(networks("a"), Value::Null);
    assert_eq!(
        problems(&facts).await,
        ["k8s.v1.cni.cncf.io/network-status: multus did not attach this pod"]
    );
    facts.pod.spec.host_network = true;
    assert_eq!(
        problems(&facts).await,
        ["k8s.v1.cni.cncf.io/networks: the pod uses its node's network: nothing is attached to it"]
    );
}
