use super::*;
use serde_json::value::to_raw_value;

fn pod(value: Value) -> Pod {
    serde_json::from_value(value).unwrap()
}

fn networks(value: Value) -> Result<Vec<String>, SelectionError> {
    let networks = pod(value).networks("ns", "kube-system")?;
    Ok(networks
        .iter()
        .map(|name| format!("{}/{}", name.namespace, name.name))
        .collect())
}

#[test]
fn every_network_of_pod_counts() {
    let annotations =
        json!({"k8s.v1.cni.cncf.io/networks": "a,other/b,a", "v1.multus-cni.io/default-network": "c"});
    assert_eq!(
        networks(json!({"metadata": {"annotations": annotations}})).unwrap(),
        ["ns/a", "other/b", "ns/a", "kube-system/c"]
    );
    // The pod's own namespace, if its metadata has one.
    let metadata = json!({"namespace": "own", "annotations": {"k8s.v1.cni.cncf.io/networks": "a"}});
    assert_eq!(networks(json!({"metadata": metadata})).unwrap(), ["own/a"]);
    let host = json!({"metadata": metadata, "spec": {"hostNetwork": true, "containers": []}});
    assert!(networks(host).unwrap().is_empty());
    assert!(
        networks(json!({"metadata": {"annotations": null}}))
            .unwrap()
            .is_empty()
    );
    let bad = json!({"metadata": {"annotations": {"k8s.v1.cni.cncf.io/networks": "a/b/c"}}});
    assert_eq!(networks(bad), Err(SelectionError::Slash));
}

#[allow(clippy::needless_pass_by_value, reason = "calls read better")]
fn patch(containers: Value, needed: &[(&str, u64)]) -> Result<Value, NoCount> {
    let needed = needed
        .iter()
        .map(|(name, count)| ((*name).to_owned(), *count))
        .collect();
    let patch = pod(json!({"spec": {"containers": containers}})).requesting(&needed)?;
    Ok(serde_json::to_value(patch).unwrap())
}

#[allow(clippy::needless_pass_by_value, reason = "calls read better")]
fn first(value: Value) -> Value {
    json!([{"op": "add", "path": "/spec/containers/0/resources", "value": value}])
}

#[test]
fn first_container_gets_requests() {
    let both = |list: Value| json!({"requests": list, "limits": list});
    assert_eq!(
        patch(json!([{}, {}]), &[("x.io/a", 2), ("x.io/b", 1)]).unwrap(),
        first(both(json!({"x.io/a": "2", "x.io/b": "1"})))
    );
    let resources =
        json!({"requests": {"cpu": "1", "x.io/a": "1"}, "limits": {"x.io/a": "1", "memory": "1Gi"}});
    assert_eq!(
        patch(json!([{"resources": resources}]), &[("x.io/a", 3)]).unwrap(),
        first(json!({"requests": {"cpu": "1", "x.io/a": "3"}, "limits": {"x.io/a": "3", "memory": "1Gi"}}))
    );
    assert_eq!(patch(json!([]), &[("x.io/a", 1)]).unwrap(), json!([]));
    assert_eq!(patch(json!([{"resources": null}]), &[]).unwrap(), json!([]));
}

#[test]
fn existing_requests_are_raised_or_kept() {
    let with = |count: Value| json!({"resources": {"limits": {"x.io/a": count}}});
    for (containers, needed) in [
        (json!([{}, with(json!("2"))]), 2),
        (json!([with(json!(1)), with(json!("1"))]), 2),
        (json!([with(json!("7"))]), 2),
    ] {
        assert_eq!(patch(containers, &[("x.io/a", needed)]).unwrap(), json!([]));
    }
    // Another container has two of three.
    assert_eq!(
        patch(json!([{}, with(json!("2"))]), &[("x.io/a", 3)]).unwrap(),
        first(json!({"requests": {"x.io/a": "1"}, "limits": {"x.io/a": "1"}}))
    );
    let error = patch(json!([with(json!("1k"))]), &[("x.io/a", 3)]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "no resources are requested: \"1k\" of x.io/a is no whole number"
    );
}

#[test]
fn only_created_pods_are_patched() {
    let request = |operation| Request {
        client: std::net::Ipv4Addr::LOCALHOST.into(),
        uid: "u".into(),
        operation,
        namespace: "ns".into(),
        name: "p".into(),
        dry_run: false,
        object: Some(to_raw_value(&json!({"spec": {"containers": [{}]}})).unwrap()),
        old_object: None,
    };
    assert!(Pod::read(&request(Operation::Create)).unwrap().is_some());
    assert!(Pod::read(&request(Operation::Update)).unwrap().is_none());
}
