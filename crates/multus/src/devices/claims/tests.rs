use super::*;
use crate::cluster::{LookupError, Nad, Pod, WriteError};
use crate::sandbox::PodRef;
use kube_kit::events::Kind;
use serde_json::{Value, json};
use std::sync::{Arc, Mutex};

const RESOURCE: &str = "x.io/sriov";
const SLICES_OF: &str =
    "/apis/resource.k8s.io/v1/resourceslices?fieldSelector=spec.nodeName%3Dnode1%2Cspec.driver%3D";

/// An API server with claims and slices by their path. It records its requests.
#[derive(Default)]
struct Fake {
    objects: BTreeMap<String, Value>,
    asked: Mutex<Vec<String>>,
}

impl Fake {
    fn with_claim(mut self, namespace: &str, name: &str, results: &Value) -> Self {
        let path = format!("/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}");
        let claim =
            json!({"kind": "ResourceClaim", "status": {"allocation": {"devices": {"results": results}}}});
        self.objects.insert(path, claim);
        self
    }

    fn with_slices(mut self, driver: &str, items: &Value) -> Self {
        let path = format!("{SLICES_OF}{driver}&limit=50");
        self.objects.insert(path, json!({"metadata": {}, "items": items}));
        self
    }

    fn asked(&self, start: &str) -> usize {
        let asked = self.asked.lock().unwrap();
        asked.iter().filter(|path| path.starts_with(start)).count()
    }
}

impl ClusterView for Fake {
    async fn pod(&self, _: &str, _: &str, _: Option<&str>) -> Result<Option<Pod>, LookupError> {
        Ok(None)
    }

    async fn nad(&self, _: &str, _: &str) -> Result<Nad, LookupError> {
        Err(LookupError("none".into()))
    }

    async fn read(&self, path: &str) -> Result<String, ReadError> {
        self.asked.lock().unwrap().push(path.to_owned());
        let found = self.objects.get(path);
        found
            .map(Value::to_string)
            .ok_or_else(|| ReadError::NotFound(format!("{path} not found")))
    }

    fn event(&self, _: &PodRef, _: Kind, _: &'static str, _: String) {}

    async fn write_status(&self, _: &Pod, _: &str) -> Result<(), WriteError> {
        Ok(())
    }
}

fn allocated(request: &str, driver: &str, device: &str) -> Value {
    json!({"request": request, "driver": driver, "pool": "node1", "device": device})
}

fn device(name: &str, attributes: &Value) -> Value {
    json!({"name": name, "attributes": attributes})
}

fn nic(name: &str, id: &str) -> Value {
    device(
        name,
        &json!({DEVICE_ID: {"string": id}, RESOURCE_NAME: {"string": RESOURCE}, "x.io/mtu": {"int": 1500}}),
    )
}

fn slice(generation: i64, devices: &Value) -> Value {
    json!({"spec": {"driver": "d", "nodeName": "node1", "pool": {"name": "node1", "generation": generation,
        "resourceSliceCount": 1}, "devices": devices}})
}

fn claims(status: &Value) -> PodClaims {
    let spec = serde_json::from_value(json!({"nodeName": "node1", "containers": []})).unwrap();
    PodClaims::of(spec, status).unwrap()
}

fn generated(names: &[&str]) -> PodClaims {
    let statuses: Vec<_> = names
        .iter()
        .map(|name| json!({"name": "n", "resourceClaimName": name}))
        .collect();
    claims(&json!({"resourceClaimStatuses": statuses}))
}

fn extended(request: &str, resource: &str) -> PodClaims {
    claims(
        &json!({"extendedResourceClaimStatus": {"resourceClaimName": "ext", "requestMappings": [
        {"containerName": "c", "requestName": request, "resourceName": resource}]}}),
    )
}

async fn devices(cluster: &Fake, claims: &PodClaims, namespace: &str) -> Result<Devices, String> {
    let mut devices = Devices::default();
    devices.add(RESOURCE, "from-plugin".into());
    claims
        .add_to(&mut devices, namespace, cluster)
        .await
        .map_err(|error| error.to_string())?;
    Ok(devices)
}

fn expected(ids: &[&str]) -> Devices {
    let mut devices = Devices::default();
    for id in ["from-plugin"].iter().chain(ids) {
        devices.add(RESOURCE, (*id).into());
    }
    devices
}

#[tokio::test]
async fn claimed_devices_join_those_of_device_plugins() {
    // multus#25: devices without the attributes are skipped; slices are listed once per driver
    let gpu = device("gpu0", &json!({"model": {"string": "x"}}));
    let half = device("half", &json!({DEVICE_ID: {"string": "h"}}));
    let number = device(
        "number",
        &json!({DEVICE_ID: {"int": 1}, RESOURCE_NAME: {"string": RESOURCE}}),
    );
    let cluster = Fake::default()
        .with_claim(
            "ns",
            "one",
            &json!([
                allocated("r", "nic", "vf1"),
                allocated("r", "nic", "half"),
                allocated("r", "nic", "number"),
                allocated("r", "nic", "gone"),
                allocated("r", "gpu", "gpu0")
            ]),
        )
        .with_claim("ns", "two", &json!([allocated("r", "nic", "vf0")]))
        .with_slices(
            "nic",
            &json!([slice(1, &json!([nic("vf0", "a"), nic("vf1", "b"), half, number]))]),
        )
        .with_slices("gpu", &json!([slice(1, &json!([gpu]))]));
    assert_eq!(
        devices(&cluster, &generated(&["one", "two"]), "ns").await,
        Ok(expected(&["a", "b"]))
    );
    assert_eq!((cluster.asked(SLICES_OF), cluster.asked("")), (2, 4));
}

#[tokio::test]
async fn claim_is_read_from_namespace_of_pod() {
    // multus#25: one name in two namespaces
    let cluster = Fake::default()
        .with_claim("ns1", "same", &json!([allocated("r", "nic", "vf0")]))
        .with_claim("ns2", "same", &json!([allocated("r", "nic", "vf1")]))
        .with_slices(
            "nic",
            &json!([slice(1, &json!([nic("vf0", "a"), nic("vf1", "b")]))]),
        );
    let claims = generated(&["same"]);
    assert_eq!(devices(&cluster, &claims, "ns1").await, Ok(expected(&["a"])));
    assert_eq!(devices(&cluster, &claims, "ns2").await, Ok(expected(&["b"])));
}

#[tokio::test]
async fn claim_without_devices_is_error() {
    // multus#25: no allocation
    let mut cluster = Fake::default().with_claim("ns", "empty", &json!([]));
    for (name, object) in [
        ("none", json!({})),
        ("waiting", json!({"status": {}})),
        ("others", json!({"status": {"allocation": {"nodeSelector": {}}}})),
    ] {
        let path = format!("/apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/{name}");
        cluster.objects.insert(path, object);
    }
    for name in ["empty", "none", "waiting", "others"] {
        assert_eq!(
            devices(&cluster, &generated(&[name]), "ns").await,
            Err(format!("claim {name} has no device allocation"))
        );
    }
    let error = devices(&cluster, &generated(&["missing"]), "ns")
        .await
        .unwrap_err();
    assert!(
        error.starts_with("failed to get ResourceClaim ns/missing: "),
        "{error}"
    );
}

#[tokio::test]
async fn extended_resource_must_match_mapping() {
    // multus#25: mappings
    let cluster = Fake::default()
        .with_claim(
            "ns",
            "ext",
            &json!([
                allocated("r0", "nic", "vf0"),
                allocated("r0", "nic", "vf1"),
                allocated("gone", "nic", "vf9"),
                allocated("bare", "nic", "bare")
            ]),
        )
        .with_slices(
            "nic",
            &json!([slice(
                1,
                &json!([nic("vf0", "a"), nic("vf1", "b"), {"name": "bare"}])
            )]),
        );
    let outcome = |request: &'static str, resource: &'static str| {
        let (claims, cluster) = (extended(request, resource), &cluster);
        async move { devices(cluster, &claims, "ns").await }
    };
    assert_eq!(outcome("r0", RESOURCE).await, Ok(expected(&["a", "b"])));
    assert_eq!(
        outcome("r0", "x.io/other").await,
        Err("device vf0: k8s.cni.cncf.io/resourceName is \"x.io/sriov\" but extended resource mapping for request \"r0\" is \"x.io/other\"".into())
    );
    assert_eq!(
        outcome("r1", RESOURCE).await,
        Err("request r1 not found in claim ext".into())
    );
    assert_eq!(
        outcome("gone", RESOURCE).await,
        Err("device vf9 not found in the ResourceSlices of driver nic".into())
    );
    assert_eq!(
        outcome("bare", RESOURCE).await,
        Err("device bare has no attribute k8s.cni.cncf.io/resourceName".into())
    );
}

#[tokio::test]
async fn newest_generation_of_pool_wins() {
    let slices = [
        slice(2, &json!([nic("vf0", "new")])),
        slice(1, &json!([nic("vf0", "old")])),
    ];
    for order in [[0, 1], [1, 0]] {
        let items: Vec<_> = order.iter().map(|index| &slices[*index]).collect();
        let cluster = Fake::default()
            .with_claim("ns", "one", &json!([allocated("r", "nic", "vf0")]))
            .with_slices("nic", &json!(items));
        assert_eq!(
            devices(&cluster, &generated(&["one"]), "ns").await,
            Ok(expected(&["new"]))
        );
    }
}

#[tokio::test]
async fn slices_are_read_in_pages() {
    let mut cluster = Fake::default().with_claim("ns", "one", &json!([allocated("r", "nic", "vf0")]));
    let first = format!("{SLICES_OF}nic&limit=50");
    let pages = [
        (
            first.clone(),
            json!({"metadata": {"continue": "a/b="}, "items": []}),
        ),
        (
            format!("{first}&continue=a%2Fb%3D"),
            json!({"metadata": {"continue": ""}, "items": [slice(1, &json!([nic("vf0", "a")]))]}),
        ),
    ];
    cluster.objects.extend(pages);
    assert_eq!(
        devices(&cluster, &generated(&["one"]), "ns").await,
        Ok(expected(&["a"]))
    );
}

#[test]
fn claims_of_pod_are_parsed() {
    let of = |spec: Value, status: Value| PodClaims::of(serde_json::from_value(spec).unwrap(), &status);
    assert_eq!(of(json!({"nodeName": "n"}), json!({"phase": "Running"})), None);
    assert_eq!(of(json!({}), Value::Null), None);
    let null = json!({"resourceClaimStatuses": null, "extendedResourceClaimStatus": null});
    assert_eq!(of(json!({}), null), None);
    // A template without a claim, and a value that no pod should have.
    let none = json!({"resourceClaimStatuses": [{"name": "a"}], "extendedResourceClaimStatus": 7});
    assert_eq!(of(json!({}), none), None);
    // A claim that is named directly has no status.
    let spec = json!({"nodeName": "n", "resourceClaims": [{"name": "a", "resourceClaimName": "direct"},
        {"name": "b", "resourceClaimTemplateName": "t"}]});
    let status = json!({"resourceClaimStatuses": [{"name": "b", "resourceClaimName": "made"}]});
    let claims = of(spec, status).unwrap();
    assert_eq!(claims.node, "n");
    assert_eq!(claims.names, ["direct", "made"].map(str::to_owned).into());
}

#[tokio::test]
async fn unavailable_claims_are_error_only_without_devices() {
    let network = || {
        let config = crate::networks::delegate::Config::parse(br#"{"type":"p","name":"n"}"#).unwrap();
        let mut network = crate::networks::delegate::Delegate::new("ns/n".into(), config);
        network.resource_name = Some("x.io/r".into());
        network
    };
    let pod = Pod {
        namespace: "ns".into(),
        claims: Some(Arc::new(generated(&["gpu"]))),
        ..Pod::default()
    };
    // An API server without claims, or one that shows none.
    let cluster = Fake::default();
    let mut kubelets = Devices::default();
    kubelets.add("x.io/r", "a".into());
    let mut devices = kubelets.clone();
    devices.add_claimed(&pod, &[network()], &cluster).await.unwrap();
    assert_eq!(devices, kubelets);
    let missing = devices.add_claimed(&pod, &[network(), network()], &cluster).await;
    let missing = missing.unwrap_err().to_string();
    assert_eq!(
        missing,
        "failed to get ResourceClaim ns/gpu: /apis/resource.k8s.io/v1/namespaces/ns/resourceclaims/gpu not found"
    );
    // An existing claim without devices is different.
    let cluster = Fake::default().with_claim("ns", "gpu", &json!([]));
    let error = devices
        .add_claimed(&pod, &[network()], &cluster)
        .await
        .unwrap_err();
    assert_eq!(error.to_string(), "claim gpu has no device allocation");
}
