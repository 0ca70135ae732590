use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().expect("an address")
}

type Change = fn(&mut Existing);

fn service(addresses: &[&str]) -> Service {
    Service {
        addresses: addresses.iter().map(|text| ip(text)).collect(),
    }
}

fn endpoint(address: &str, port: u16, node: &str) -> Endpoint {
    Endpoint {
        address: ip(address),
        port,
        node: Some(node.to_owned()).filter(|node| !node.is_empty()),
    }
}

fn source(pod: &str, node: &str) -> Source {
    Source {
        pod: pod.to_owned(),
        node: node.to_owned(),
        node_uid: format!("uid-{node}"),
    }
}

/// All sources of targets on OpenShift.
fn all() -> Facts {
    Facts {
        kubernetes: Backed {
            service: Some(service(&["172.30.0.1", "fd02::1"])),
            endpoints: vec![endpoint("10.0.0.1", 6443, "")],
        },
        kube_apiserver: Backed {
            service: Some(service(&["172.30.0.2"])),
            endpoints: vec![
                endpoint("10.0.0.1", 6443, "m1.example.com"),
                endpoint("10.0.0.2", 6443, "m2.example.com"),
            ],
        },
        openshift_apiserver: Backed {
            service: Some(service(&["172.30.0.3"])),
            endpoints: vec![endpoint("10.128.0.7", 8443, "m1.example.com")],
        },
        external: Some("https://api.example.com:6443".to_owned()),
        internal: Some("https://api-int.example.com:6443".to_owned()),
        target: Backed {
            service: Some(service(&["172.30.0.4"])),
            endpoints: vec![
                endpoint("10.128.0.9", 8080, "w1.example.com"),
                endpoint("fd01::9", 8080, "w1.example.com"),
            ],
        },
        hosted: false,
    }
}

fn pairs(facts: &Facts) -> Vec<(String, String)> {
    targets(facts)
        .into_iter()
        .map(|target| (target.name, target.endpoint))
        .collect()
}

fn text(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|(name, endpoint)| ((*name).to_owned(), (*endpoint).to_owned()))
        .collect()
}

#[test]
fn label_is_the_first_label_of_a_name_or_an_address_with_dashes() {
    // cluster-network#69
    for (node, expected) in [
        ("node1.example.com", "node1"),
        ("192.168.0.1", "192-168-0-1"),
        ("fd00::1", "fd00--1"),
        ("192.168.0.300", "192"),
    ] {
        assert_eq!(label(node), expected);
    }
}

#[test]
fn cluster_with_all_objects_has_all_targets() {
    let everywhere = [
        ("kubernetes-default-service-cluster-0", "172.30.0.1:443"),
        ("kubernetes-default-service-cluster-1", "[fd02::1]:443"),
    ];
    let of_api_servers = [
        ("kubernetes-apiserver-service-cluster", "172.30.0.2:443"),
        ("kubernetes-apiserver-endpoint-m1", "10.0.0.1:6443"),
        ("kubernetes-apiserver-endpoint-m2", "10.0.0.2:6443"),
        ("openshift-apiserver-service-cluster", "172.30.0.3:443"),
        ("openshift-apiserver-endpoint-m1", "10.128.0.7:8443"),
    ];
    let others = [
        ("load-balancer-api-external", "api.example.com:6443"),
        ("load-balancer-api-internal", "api-int.example.com:6443"),
        ("network-check-target-service-cluster", "network-check-target:80"),
        ("network-check-target-w1", "10.128.0.9:8080"),
    ];
    let expected = [&everywhere[..], &of_api_servers, &others].concat();
    assert_eq!(pairs(&all()), text(&expected));
    let hosted = Facts {
        hosted: true,
        ..all()
    };
    assert_eq!(pairs(&hosted), text(&[&everywhere[..], &others].concat()));
}

#[test]
fn missing_object_is_no_target() {
    assert_eq!(pairs(&Facts::default()), []);
    // Plain Kubernetes: the service `default/kubernetes` has the API servers.
    let plain = Facts {
        kubernetes: all().kubernetes,
        ..Facts::default()
    };
    assert_eq!(
        pairs(&plain)[2..],
        text(&[("kubernetes-apiserver-endpoint-10-0-0-1", "10.0.0.1:6443")])
    );
}

#[test]
fn endpoints_of_load_balancers_come_from_urls() {
    for (url, expected) in [
        ("https://api.example.com:6443", Some("api.example.com:6443")),
        ("https://api.example.com", Some("api.example.com:443")),
        ("http://h/path", Some("h:80")),
        ("https://[fd00::1]:6443/", Some("[fd00::1]:6443")),
        ("https://[fd00::1]", Some("[fd00::1]:443")),
        ("", None),
        ("https://", None),
        ("api.example.com:6443", None),
    ] {
        assert_eq!(of_url(url).as_deref(), expected, "{url}");
    }
}

#[test]
fn source_has_a_check_for_each_target() {
    let sources = [source("s-1", "w1.example.com"), source("s-2", "fd00::2")];
    let targets = [Target {
        name: "network-check-target-w3".to_owned(),
        endpoint: "10.0.0.3:8080".to_owned(),
    }];
    let checks = checks(&sources, &targets);
    let names: Vec<_> = checks.keys().collect();
    assert_eq!(
        names,
        [
            "network-check-source-fd00--2-to-network-check-target-w3",
            "network-check-source-w1-to-network-check-target-w3"
        ]
    );
    assert_eq!(
        checks[names[1]].object(),
        json!({
            "apiVersion": "controlplane.operator.openshift.io/v1alpha1", "kind": "PodNetworkConnectivityCheck",
            "metadata": {
                "name": "network-check-source-w1-to-network-check-target-w3",
                "namespace": "openshift-network-diagnostics",
                "labels": { "networking.openshift.io/managedBy": "oc-connectivity-check-controller" },
                "ownerReferences": [
                    { "apiVersion": "v1", "kind": "Node", "name": "w1.example.com", "uid": "uid-w1.example.com" },
                ],
            },
            "spec": { "sourcePod": "s-1", "targetEndpoint": "10.0.0.3:8080" },
        })
    );
}

fn existing(check: &Generated) -> Existing {
    Existing {
        labelled: true,
        source_pod: check.source_pod.clone(),
        endpoint: check.endpoint.clone(),
        owners: vec![check.node_uid.clone()],
    }
}

#[test]
fn plan_without_a_difference_is_empty() {
    let wanted = checks(&[source("s", "w1")], &targets(&all()));
    let known: BTreeMap<_, _> = wanted
        .values()
        .map(|check| (check.name.clone(), existing(check)))
        .collect();
    assert_eq!(plan(&wanted, &known), Plan::default());
    assert_eq!(plan(&wanted, &BTreeMap::new()).apply.len(), wanted.len());
    let changes: [Change; 4] = [
        |check| check.labelled = false,
        |check| check.source_pod = "other".to_owned(),
        |check| check.endpoint = "h:1".to_owned(),
        |check| check.owners.clear(),
    ];
    for change in changes {
        let mut known = known.clone();
        let (name, check) = known.iter_mut().next().expect("a check");
        let name = name.clone();
        change(check);
        let plan = plan(&wanted, &known);
        let applied: Vec<_> = plan.apply.iter().map(|check| check.name.clone()).collect();
        assert_eq!((applied, plan.delete), (vec![name], vec![]));
    }
}

#[test]
fn check_without_the_label_is_never_deleted() {
    let check = existing(
        &checks(&[source("s", "w1")], &targets(&all()))["network-check-source-w1-to-network-check-target-w1"],
    );
    let unlabelled = Existing {
        labelled: false,
        ..check.clone()
    };
    let known = BTreeMap::from([("foreign".to_owned(), unlabelled), ("stale".to_owned(), check)]);
    assert_eq!(plan(&BTreeMap::new(), &known).delete, ["stale"]);
}

#[test]
fn condition_names_the_missing_sources_or_targets() {
    let sources = [source("s", "w1")];
    assert_eq!(availability(&sources, &all()), ("True", "AsExpected", ""));
    assert_eq!(
        availability(&[], &all()),
        ("False", "NoSources", "No source pods available")
    );
    assert_eq!(
        availability(&sources, &Facts::default()),
        ("False", "NoTargets", "No targets available")
    );
}
