use super::*;
use crate::cluster::{ReadError, WriteError};
use crate::sandbox::PodRef;
use cni::json::Object;
use kube_kit::events::Kind;
use serde_json::json;
use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;
use tokio::time::timeout;

#[derive(Default)]
struct Fake {
    nads: BTreeMap<(String, String), Nad>,
    /// Look-ups in the pod's own namespace wait here for each other.
    barrier: Option<tokio::sync::Barrier>,
}

impl Fake {
    fn with(mut self, namespace: &str, name: &str, config: &str) -> Self {
        let nad = Nad {
            config: config.into(),
            resource_name: None,
        };
        self.nads.insert((namespace.into(), name.into()), nad);
        self
    }
}

impl ClusterView for Fake {
    async fn pod(&self, _: &str, _: &str, _: Option<&str>) -> Result<Option<Pod>, LookupError> {
        Ok(None)
    }

    async fn nad(&self, namespace: &str, name: &str) -> Result<Nad, LookupError> {
        if let Some(barrier) = &self.barrier
            && namespace == "ns1"
        {
            barrier.wait().await;
        }
        let key = (namespace.to_owned(), name.to_owned());
        self.nads
            .get(&key)
            .cloned()
            .ok_or_else(|| LookupError(format!("\"{name}\" not found")))
    }

    async fn read(&self, path: &str) -> Result<String, ReadError> {
        Err(ReadError::NotFound(format!("{path} not found")))
    }

    fn event(&self, _: &PodRef, _: Kind, _: &'static str, _: String) {}

    async fn write_status(&self, _: &Pod, _: &str) -> Result<(), WriteError> {
        Ok(())
    }
}

const BRIDGE: &str = r#"{"cniVersion":"0.3.1","type":"bridge"}"#;

fn cluster() -> Fake {
    Fake::default()
        .with("kube-system", "cluster", r#"{"type":"ptp","name":"cluster-net"}"#)
        .with("kube-system", "extra", BRIDGE)
        .with("ns1", "net1", BRIDGE)
        .with("ns1", "net2", BRIDGE)
        .with("other", "net3", BRIDGE)
        .with("default", "net1", BRIDGE)
}

fn config(keys: &serde_json::Value) -> MultusConfig {
    let mut all = json!({"clusterNetwork": "cluster"});
    all.as_object_mut()
        .unwrap()
        .extend(keys.as_object().cloned().unwrap());
    MultusConfig::parse(&Object::parse(all.to_string().as_bytes()).unwrap()).unwrap()
}

fn pod(namespace: &str, networks: &str) -> Pod {
    Pod {
        namespace: namespace.into(),
        name: "pod".into(),
        networks: Some(networks.into()),
        ..Pod::default()
    }
}

async fn resolve(config: &MultusConfig, pod: &Pod) -> Result<Vec<Delegate>, Error> {
    Resolver {
        cluster: &cluster(),
        config,
    }
    .networks_of(pod)
    .await
}

async fn names(config: &MultusConfig, pod: &Pod) -> Vec<String> {
    resolve(config, pod)
        .await
        .unwrap()
        .into_iter()
        .map(|delegate| delegate.display_name)
        .collect()
}

async fn error(config: &MultusConfig, pod: &Pod) -> String {
    resolve(config, pod).await.unwrap_err().to_string()
}

#[tokio::test]
async fn networks_of_the_annotation_follow_the_master_in_order() {
    // multus#1, multus#8
    let found = names(&config(&json!({})), &pod("ns1", "net1, net2 ,other/net3")).await;
    assert_eq!(
        found,
        ["kube-system/cluster", "ns1/net1", "ns1/net2", "other/net3"]
    );
}

#[tokio::test]
async fn missing_or_empty_annotation_resolves_to_master() {
    // multus#14 (the list)
    let plain = Pod {
        networks: None,
        ..pod("ns1", "")
    };
    assert_eq!(names(&config(&json!({})), &plain).await, ["kube-system/cluster"]);
    assert_eq!(
        names(&config(&json!({})), &pod("ns1", "")).await,
        ["kube-system/cluster"]
    );
    assert_eq!(
        names(&config(&json!({})), &pod("ns1", "[]")).await,
        ["kube-system/cluster"]
    );
}

#[tokio::test]
async fn attributes_of_element_reach_its_delegate() {
    let annotation = r#"[{"name":"net1","interface":"foo","mac":"02:00:00:00:00:01","ips":["10.0.0.1/24"],
        "cni-args":{"k":"v"},"deviceID":"d1","default-route":["10.0.0.254"]}]"#;
    let delegate = resolve(&config(&json!({})), &pod("ns1", annotation))
        .await
        .unwrap()
        .remove(1);
    assert_eq!(delegate.requests.interface.as_deref(), Some("foo"));
    assert_eq!(delegate.requests.mac.as_deref(), Some("02:00:00:00:00:01"));
    assert_eq!(delegate.requests.ips, ["10.0.0.1/24"]);
    assert_eq!(
        delegate.requests.default_route,
        Some(vec!["10.0.0.254".parse().unwrap()])
    );
    assert_eq!(delegate.requests.device_id.as_deref(), Some("d1"));
    let text: serde_json::Value = serde_json::from_str(&delegate.config.object().to_json()).unwrap();
    assert_eq!(text["args"]["cni"], json!({"k": "v"}));
    assert_eq!(text["name"], "net1");
    assert_eq!((text.get("deviceID"), text.get("pciBusID")), (None, None));
}

#[tokio::test]
async fn default_network_annotation_replaces_master() {
    // multus#18 (the selected network; it runs with CNI_IFNAME because it is the first)
    let mut asking = pod("ns1", "net1");
    asking.default_network = Some("extra".into());
    assert_eq!(
        names(&config(&json!({})), &asking).await,
        ["kube-system/extra", "ns1/net1"]
    );
    asking.default_network = Some("extra,cluster".into());
    assert_eq!(
        error(&config(&json!({})), &asking).await,
        "error loading k8s delegates k8s args: TryLoadPodDelegates: error in loading K8s cluster default network \
         from pod annotation: tryLoadK8sPodDefaultNetwork: more than one default network is specified: extra,cluster"
    );
}

#[tokio::test]
async fn default_network_annotation_obeys_isolation() {
    // multus#110
    let asking = |network: &str| {
        let mut asking = pod("test", "");
        asking.default_network = Some(network.into());
        asking
    };
    let isolated = config(&json!({"namespaceIsolation": true}));
    let violation =
        "annotation violates permission, pod is in namespace test but refers to target namespace ns1";
    assert!(error(&isolated, &asking("ns1/net1")).await.ends_with(violation));
    // Multus' own namespace, and those that are open to all.
    for (network, found) in [
        ("kube-system/extra", "kube-system/extra"),
        ("extra", "kube-system/extra"),
    ] {
        assert_eq!(names(&isolated, &asking(network)).await, [found]);
    }
    assert_eq!(names(&isolated, &asking("default/net1")).await, ["default/net1"]);
    assert_eq!(
        names(&config(&json!({})), &asking("ns1/net1")).await,
        ["ns1/net1"]
    );
}

#[tokio::test]
async fn missing_nad_fails_resolution_and_is_named() {
    // multus#22 (the error and the text of the event)
    let error = resolve(&config(&json!({})), &pod("ns1", "net1,nope"))
        .await
        .unwrap_err();
    let missing = "cannot find a network-attachment-definition (nope) in namespace (ns1): \"nope\" not found";
    assert_eq!(error.missing().unwrap().to_string(), missing);
    assert_eq!(
        error.to_string(),
        format!(
            "error loading k8s delegates k8s args: TryLoadPodDelegates: error in getting k8s network for pod: \
             getKubernetesDelegate: {missing}"
        )
    );
}

#[tokio::test]
async fn isolation_refuses_other_namespaces() {
    // multus#26
    let asking = pod("test", "default/net1");
    let isolated = config(&json!({"namespaceIsolation": true}));
    assert_eq!(
        names(&isolated, &asking).await.len(),
        2,
        "default is exempt unless globalNamespaces is set"
    );
    let violation = "namespace isolation enabled, annotation violates permission, pod is in namespace test but refers \
                     to target namespace kube-system";
    assert!(
        error(&isolated, &pod("test", "kube-system/extra"))
            .await
            .ends_with(violation)
    );
    let exempt = config(&json!({"namespaceIsolation": true, "globalNamespaces": "kube-system, donkey-kong"}));
    assert_eq!(names(&exempt, &pod("test", "kube-system/extra")).await.len(), 2);
    assert!(error(&exempt, &asking).await.contains("violates permission"));
    assert_eq!(
        names(&config(&json!({})), &pod("test", "kube-system/extra"))
            .await
            .len(),
        2
    );
}

#[tokio::test]
async fn cluster_network_resolves_in_every_form() {
    // multus#27
    let dir = tempfile::tempdir().unwrap();
    let put = |name: &str, text: &str| {
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        path
    };
    let conf = put(
        "20-b.conf",
        r#"{"cniVersion":"0.3.1","name":"conf","type":"ptp"}"#,
    );
    let list = put(
        "10-a.conflist",
        r#"{"cniVersion":"0.3.1","name":"list","plugins":[{"type":"ptp"}]}"#,
    );
    let plain = Pod {
        networks: None,
        ..pod("ns1", "")
    };
    let of = |cluster_network: serde_json::Value| {
        config(&json!({"clusterNetwork": cluster_network, "confDir": dir.path()}))
    };
    assert_eq!(
        names(&of(json!("cluster")), &plain).await,
        ["kube-system/cluster"]
    );
    assert_eq!(names(&of(json!("conf")), &plain).await, ["conf"]);
    assert_eq!(names(&of(json!(dir.path())), &plain).await, ["list"]);
    assert_eq!(names(&of(json!(conf)), &plain).await, ["conf"]);
    assert_eq!(names(&of(json!(list)), &plain).await, ["list"]);
    let unknown = error(&of(json!("nope")), &plain).await;
    assert!(
        unknown.starts_with(
            "failed to get clusterNetwork/defaultNetworks: GetDefaultNetworks: failed to get clusterNetwork nope in \
             namespace kube-system"
        ),
        "{unknown}"
    );
    let untyped = put("30-c.conf", "{}");
    assert!(
        error(&of(json!(untyped)), &plain)
            .await
            .ends_with("30-c.conf: no 'type'; perhaps this is supposed to be a .conflist?")
    );
}

#[tokio::test]
async fn forced_version_reaches_a_cluster_network_that_is_a_file() {
    // multus#116
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("10-a.conflist");
    let text = r#"{"cniVersion":"0.3.1","name":"list","plugins":[{"type":"ptp"}]}"#;
    fs::write(&file, text).unwrap();
    let plain = Pod {
        networks: None,
        ..pod("ns1", "")
    };
    let version = async |cluster_network: serde_json::Value, force: bool| {
        let config = config(
            &json!({"clusterNetwork": cluster_network, "cniVersion": "1.0.0", "forceCNIVersion": force}),
        );
        resolve(&config, &plain).await.unwrap()[0].config.cni_version()
    };
    assert_eq!(version(json!(file), true).await, "1.0.0");
    assert_eq!(version(json!(file), false).await, "0.3.1");
    assert_eq!(
        version(json!("cluster"), true).await,
        "",
        "a definition keeps its own"
    );
    assert_eq!(fs::read_to_string(&file).unwrap(), text);
}

#[tokio::test]
async fn default_networks_exclude_system_namespaces() {
    // multus#28
    let config = config(&json!({"defaultNetworks": ["extra"]}));
    assert_eq!(
        names(&config, &pod("ns1", "net1")).await,
        ["kube-system/cluster", "kube-system/extra", "ns1/net1"]
    );
    let system = Pod {
        networks: None,
        ..pod("kube-system", "")
    };
    assert_eq!(names(&config, &system).await, ["kube-system/cluster"]);
}

#[tokio::test]
async fn plugins_beside_a_list_are_appended() {
    // multus#29
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("10-a.conflist");
    fs::create_dir(dir.path().join("list")).unwrap();
    fs::write(dir.path().join("list/x.conf"), r#"{"type":"x","k":1}"#).unwrap();
    let plain = Pod {
        networks: None,
        ..pod("ns1", "")
    };
    for (only_inlined, count) in [(false, 2), (true, 1)] {
        let list = json!({"cniVersion": "1.0.0", "name": "list", "loadOnlyInlinedPlugins": only_inlined,
            "plugins": [{"type": "ptp"}]});
        fs::write(&file, list.to_string()).unwrap();
        let config = config(&json!({"clusterNetwork": file}));
        let delegate = resolve(&config, &plain).await.unwrap().remove(0);
        assert_eq!(delegate.config.chain().unwrap().len(), count);
        assert_eq!(delegate.config.network().unwrap().plugins.len(), count);
    }
}

#[tokio::test]
async fn nad_without_configuration_refers_to_file() {
    // multus#20, multus#21
    let dir = tempfile::tempdir().unwrap();
    let config = config(&json!({"confDir": dir.path()}));
    let cluster = cluster().with("ns1", "filed", "");
    let asking = pod("ns1", "filed");
    let resolver = Resolver {
        cluster: &cluster,
        config: &config,
    };
    let text = |error: Error| error.to_string();
    let nothing = text(resolver.networks_of(&asking).await.unwrap_err());
    let expected = format!(
        "GetCNIConfig: err in GetCNIConfigFromFile: No networks found in {}",
        dir.path().display()
    );
    assert!(nothing.ends_with(&expected), "{nothing}");

    fs::write(
        dir.path().join("20-b.conf"),
        r#"{"name":"filed","type":"macvlan"}"#,
    )
    .unwrap();
    let found = resolver.networks_of(&asking).await.unwrap().remove(1);
    assert_eq!(
        (found.display_name.as_str(), found.config.plugin_type().as_str()),
        ("ns1/filed", "macvlan")
    );

    fs::write(dir.path().join("10-a.conf"), "{").unwrap();
    let broken = text(resolver.networks_of(&asking).await.unwrap_err());
    assert!(broken.contains("Error loading CNI config file "), "{broken}");
}

#[tokio::test]
async fn error_of_broken_nad_names_it() {
    let cluster = cluster()
        .with("ns1", "bad", "{\"type\":")
        .with("ns1", "empty", "{}");
    let config = config(&json!({}));
    let resolver = Resolver {
        cluster: &cluster,
        config: &config,
    };
    let text = resolver
        .networks_of(&pod("ns1", "bad"))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        text.contains(
            "network ns1/bad: GetCNIConfig: err in getCNIConfigFromSpec: failed to unmarshal Spec.Config: "
        ),
        "{text}"
    );
    let text = resolver
        .networks_of(&pod("ns1", "empty"))
        .await
        .unwrap_err()
        .to_string();
    assert!(
        text.ends_with(
            "network ns1/empty: LoadDelegateNetConfList: delegate must have the 'type' or 'plugin' field"
        ),
        "{text}"
    );
}

#[tokio::test]
async fn inline_delegates_are_used_without_a_cluster_network() {
    let config = config(
        &json!({"clusterNetwork": "", "delegates": [{"name": "a", "type": "x"}, {"name": "b", "type": "y"}]}),
    );
    assert_eq!(names(&config, &pod("ns1", "net1")).await, ["a", "b", "ns1/net1"]);
}

#[tokio::test]
async fn malformed_annotations_fail_before_anything_runs() {
    // multus#10, multus#11, multus#13 (through the resolver: nothing has run yet when it fails)
    let prefix =
        "error loading k8s delegates k8s args: TryLoadPodDelegates: error in getting k8s network for pod: ";
    for (annotation, text) in [
        (
            r#"[{"name":"net1","mac":"foo"}]"#,
            "parsePodNetworkAnnotation: failed to mac: ",
        ),
        (
            r#"[{"name":"net1","ips":["1.2.3"]}]"#,
            "failed to parse IP address \"1.2.3\"",
        ),
        (
            r#"[{"name":"net1","ips":["1.2.3.4/33"]}]"#,
            "failed to parse CIDR \"1.2.3.4/33\"",
        ),
        (
            r#"[{"name":"net1","infiniband-guid":"xx"}]"#,
            "parsePodNetworkAnnotation: failed to validate infiniband GUID: ",
        ),
        (
            "[{",
            "parsePodNetworkAnnotation: failed to parse pod Network Attachment Selection Annotation JSON format: ",
        ),
        (
            "[null]",
            "parsePodNetworkAnnotation: failed to parse pod Network Attachment Selection Annotation JSON format: ",
        ),
        (
            r#"{"name":"net1"}"#,
            "parsePodNetworkAnnotation: failed to parse pod Network Attachment Selection Annotation JSON format: ",
        ),
    ] {
        let found = error(&config(&json!({})), &pod("ns1", annotation)).await;
        assert!(
            found.starts_with(&format!("{prefix}{text}")),
            "{annotation}: {found}"
        );
    }
}

#[tokio::test]
async fn auxiliary_chain_is_last() {
    // multus#30
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("10-a.conf");
    fs::write(&file, BRIDGE.replacen('{', r#"{"name":"cluster-net","#, 1)).unwrap();
    let keys =
        json!({"cniVersion": "0.4.0", "clusterNetwork": file, "auxiliaryCNIChainName": "vendor-cni-chain"});
    let config = config(&keys);
    let asking = pod("ns1", "net1");
    assert_eq!(
        names(&config, &asking).await,
        ["cluster-net", "ns1/net1"],
        "no folder"
    );

    let folder = dir.path().join("vendor-cni-chain");
    fs::create_dir(&folder).unwrap();
    assert_eq!(
        names(&config, &asking).await,
        ["cluster-net", "ns1/net1"],
        "an empty folder"
    );

    fs::write(folder.join("20-b.conf"), r#"{"type":"b"}"#).unwrap();
    fs::write(folder.join("10-a.conf"), r#"{"type":"a","big":9007199254740993}"#).unwrap();
    fs::write(folder.join("30-c.conflist"), r#"{"type":"c"}"#).unwrap();
    let chain = resolve(&config, &asking).await.unwrap().remove(2);
    assert_eq!(chain.display_name, "vendor-cni-chain");
    let text: serde_json::Value = serde_json::from_str(&chain.config.object().to_json()).unwrap();
    assert_eq!(
        text,
        json!({"cniVersion": "0.4.0", "name": "vendor-cni-chain", "plugins": [
            {"type": "passthru", "name": "passthru-cni"}, {"type": "a", "big": 9_007_199_254_740_993_u64}, {"type": "b"}]})
    );

    fs::write(folder.join("15-broken.conf"), "{").unwrap();
    assert_eq!(
        names(&config, &asking).await,
        ["cluster-net", "ns1/net1"],
        "broken: logged alone"
    );
}

#[tokio::test]
async fn auxiliary_chain_is_beside_cluster_network_file() {
    // multus#30
    let config = config(&json!({"auxiliaryCNIChainName": "vendor-cni-chain"}));
    assert_eq!(
        error(&config, &pod("ns1", "net1")).await,
        "auxiliary chain used but ClusterNetwork must be a path, and it is not a path: cluster"
    );
}

#[tokio::test]
async fn networks_are_looked_up_concurrently() {
    let mut cluster = cluster();
    cluster.barrier = Some(tokio::sync::Barrier::new(3));
    let config = config(&json!({}));
    let resolver = Resolver {
        cluster: &cluster,
        config: &config,
    };
    let asked = async |networks: &str| {
        let found = timeout(
            Duration::from_secs(60),
            resolver.networks_of(&pod("ns1", networks)),
        )
        .await;
        found.expect("one after the other")
    };
    let found = asked("net2,net1,net2").await.unwrap();
    let names: Vec<_> = found
        .iter()
        .map(|delegate| delegate.display_name.as_str())
        .collect();
    assert_eq!(names, ["kube-system/cluster", "ns1/net2", "ns1/net1", "ns1/net2"]);
    // The first failure in order, not in time.
    let error = asked("net1,missing,gone").await.unwrap_err().to_string();
    assert!(error.contains("missing"), "{error}");
}
