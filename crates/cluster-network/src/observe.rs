//! Reads the observed state from the caches of the watches, as input of a plan.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use api::cluster_network::{SINGLETON, config, operator};
use kube_kit::{
    cache::{Cache, Lookup},
    object::{self, Kind, ObjectId},
};
use serde_json::Value;

use crate::{
    facts::{ApiServer, Cloud, CniDirectories, Facts, NodeIdentity, Platform},
    hosted::{self, ControlPlane, Management},
    messages, names, objects,
    ovn::{
        knobs::{self, Data},
        observed::{self, ConfigMaps, Observed},
    },
    plan,
    settings::{self, Settings},
    tls_profile::Profile,
};

/// Identifier of the only cluster configuration.
pub fn cluster_config_id() -> ObjectId {
    object::CLUSTER_NETWORK.object(None, SINGLETON)
}

/// Identifier of the only operator configuration.
pub fn operator_config_id() -> ObjectId {
    object::OPENSHIFT_NETWORK.object(None, SINGLETON)
}

/// Identifier of the object in which the operator reports to the platform.
pub fn cluster_operator_id() -> ObjectId {
    object::CLUSTER_OPERATOR.object(None, names::CLUSTER_OPERATOR)
}

/// Identifier of OpenShift's web console.
pub fn console_id() -> ObjectId {
    object::OPENSHIFT_CONSOLE.object(None, SINGLETON)
}

/// A stored configuration.
#[derive(Clone, Debug)]
pub struct Stored<T> {
    /// The whole object.
    pub object: Arc<Value>,
    /// Desired state in the object.
    pub spec: T,
}

impl<T> Stored<T> {
    /// Resource version of the object, for optimistic concurrency.
    pub fn version(&self) -> Value {
        self.object["metadata"]["resourceVersion"].clone()
    }
}

/// The object cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error("{id} is not readable: {cause}")]
pub struct Unreadable {
    id: String,
    cause: String,
}

fn stored<T: serde::de::DeserializeOwned + Default>(
    cache: &Cache,
    id: &ObjectId,
) -> Result<Option<Stored<T>>, Unreadable> {
    let Some(object) = present(cache, id) else {
        return Ok(None);
    };
    let spec = match object.get("spec") {
        Some(spec) if !spec.is_null() => serde_json::from_value(spec.clone()),
        _ => Ok(T::default()),
    };
    match spec {
        Ok(spec) => Ok(Some(Stored { object, spec })),
        Err(error) => Err(Unreadable {
            id: id.to_string(),
            cause: error.to_string(),
        }),
    }
}

fn present(cache: &Cache, id: &ObjectId) -> Option<Arc<Value>> {
    match cache.lookup(id) {
        Lookup::Present(object) => Some(object),
        Lookup::Absent | Lookup::Unknown => None,
    }
}

/// The cluster configuration.
///
/// # Errors
/// If the object does not match its definition.
pub fn cluster_config(cache: &Cache) -> Result<Option<Stored<config::NetworkSpec>>, Unreadable> {
    stored(cache, &cluster_config_id())
}

/// The operator configuration, unless it is being deleted.
///
/// # Errors
/// If the object does not match its definition.
pub fn operator_config(cache: &Cache) -> Result<Option<Stored<operator::NetworkSpec>>, Unreadable> {
    let stored = stored(cache, &operator_config_id())?;
    let stays = |it: &Stored<_>| it.object.pointer("/metadata/deletionTimestamp").is_none();
    Ok(stored.filter(stays))
}

/// The applied configuration.
///
/// # Errors
/// If the record exists but cannot be parsed.
pub fn previous(cache: &Cache, namespace: &str) -> Result<Option<operator::NetworkSpec>, String> {
    let id = object::CONFIG_MAP.object(Some(namespace), names::APPLIED);
    present(cache, &id).map(|map| plan::recorded(&map)).transpose()
}

/// The MTU of the nodes, as recorded by the prober (§4.3).
///
/// # Errors
/// If the value is not a number above 0.
pub fn host_mtu(config_map: &Value) -> Result<u32, String> {
    let text = config_map["data"][names::MTU].as_str().unwrap_or_default();
    let mtu = text.parse().ok().filter(|mtu| *mtu > 0);
    mtu.ok_or_else(|| format!("format error: ConfigMap {} says {text:?}", names::MTU))
}

/// The error in the prober's ConfigMap, if the ConfigMap exists.
pub fn wrong_host_mtu(cache: &Cache, namespace: &str) -> Option<String> {
    let map = present(cache, &object::CONFIG_MAP.object(Some(namespace), names::MTU))?;
    host_mtu(&map).err()
}

/// The MTU of nodes whose control plane another cluster hosts. On some clouds, all nodes have the same MTU (§4.3).
fn hosted_mtu(platform: &Platform, is_hosted: bool) -> Option<u32> {
    match platform {
        Platform::Aws if is_hosted => Some(9001),
        Platform::Azure if is_hosted => Some(1500),
        _ => None,
    }
}

/// True if the `ConfigMap` switches iptables-alerter off (§17.3). Other values than `true` and `false` have no effect.
fn is_switched_off(config_map: &Value) -> bool {
    let value = config_map["data"]["enabled"].as_str().unwrap_or_default();
    if !["true", "false"].contains(&value) {
        tracing::warn!("{}", messages::unknown_alerter_switch(value));
    }
    value == "false"
}

/// The facts. `api_server` is the endpoint of the API server for clients without services. `management` is the cache of
/// the cluster that hosts the control plane, if another one does.
pub fn facts(
    cache: &Cache,
    management: Option<&Cache>,
    settings: &Settings,
    api_server: &ApiServer,
) -> Facts {
    let hosted = settings.hosted.as_ref().zip(management);
    let management = hosted.and_then(|(hosted, management)| {
        let status_label = status_label(cache, settings);
        self::management(management, hosted, status_label)
    });
    let config_map = |name: &str| present(cache, &object::CONFIG_MAP.object(Some(&settings.namespace), name));
    let infrastructure = object::OPENSHIFT_INFRASTRUCTURE.object(None, SINGLETON);
    let infrastructure = present(cache, &infrastructure);
    let nodes = cache.list(object::NODE);
    let labelled = |label: &str| {
        let has = |node: &&Arc<Value>| node["metadata"]["labels"].get(label).is_some();
        nodes.iter().filter(has).count()
    };
    let masters = labelled(names::MASTER_LABEL);
    let via_host = config_map(names::GATEWAY_MODE).map(|map| map["data"]["mode"].clone());
    let host_mtu = config_map(names::MTU).map(|map| host_mtu(&map));
    if let Some(Err(error)) = &host_mtu {
        tracing::warn!("{error}");
    }
    let control_plane_nodes = if masters > 0 {
        masters
    } else {
        labelled(names::CONTROL_PLANE_LABEL)
    };
    let topology = |key: &str, value: &str| {
        infrastructure
            .as_ref()
            .is_some_and(|it| it["status"][key] == value)
    };
    let is_external = topology("controlPlaneTopology", "External");
    let platform = Platform::named(
        infrastructure
            .as_deref()
            .map(objects::platform)
            .unwrap_or_default(),
    );
    let cloud_config = object::CONFIG_MAP.object(Some(names::MANAGED_NAMESPACE), names::CLOUD_CONFIG);
    let cloud_config = present(cache, &cloud_config);
    Facts {
        gates: present(cache, &object::FEATURE_GATE.object(None, SINGLETON))
            .map(|gates| feature_gates(&gates, &settings.version))
            .unwrap_or_default(),
        host_mtu: hosted_mtu(&platform, is_external).or(host_mtu.and_then(Result::ok)),
        cloud: cloud(
            &platform,
            infrastructure.as_deref().unwrap_or(&Value::Null),
            cloud_config.as_deref().unwrap_or(&Value::Null),
        ),
        platform,
        routing_via_host: via_host.is_some_and(|mode| mode == "local"),
        linux_nodes: nodes
            .iter()
            .filter(|node| node["metadata"]["labels"][names::OS_LABEL] == names::LINUX)
            .count(),
        control_plane_nodes: if hosted.is_some() {
            0
        } else {
            install_replicas(cache).unwrap_or(control_plane_nodes)
        },
        external_control_plane: is_external,
        single_hosted_node: is_external && topology("infrastructureTopology", "SingleReplica"),
        single_worker: topology("infrastructureTopology", "SingleReplica") || nodes.len() == 1,
        labelled_master: masters > 0,
        api_server: api_server.clone(),
        cni: CniDirectories {
            conf: settings.cni_conf_dir.clone(),
            bin: settings.cni_bin_dir.clone(),
        },
        openshift: infrastructure.is_some(),
        monitoring: cache.serves(object::SERVICE_MONITOR),
        tls_profile: match &management {
            Some(management) => management.control_plane.tls_profile.clone(),
            None => present(cache, &object::OPENSHIFT_API_SERVER.object(None, SINGLETON))
                .and_then(|server| Profile::of(&server)),
        },
        without_iptables_alerter: config_map(names::ALERTER_CONFIG).is_some_and(|map| is_switched_off(&map)),
        console_plugins: cache.serves(object::CONSOLE_PLUGIN),
        frr_bundle: bundle(cache, names::FRR_NAMESPACE, names::FRR_BUNDLE),
        foreign_kube_proxy: foreign_kube_proxy(cache),
        ovn: ovn(cache, hosted, settings, &nodes, is_external),
        node_identity: match hosted {
            Some((settings, cache)) => hosted_node_identity(cache, settings),
            None => node_identity(cache, infrastructure.is_some()),
        },
        proxy: proxy(cache),
        management,
    }
}

/// The cloud (§18.5). `config` is the ConfigMap with its configuration.
fn cloud(platform: &Platform, infrastructure: &Value, config: &Value) -> Cloud {
    let text = |pointer: &str| {
        let status = &infrastructure["status"]["platformStatus"];
        objects::text(status, pointer).to_owned()
    };
    let data = || serde_json::from_value(config["data"].clone()).unwrap_or_default();
    match platform {
        Platform::Aws => Cloud {
            region: text("/aws/region"),
            api_url: ec2_url(infrastructure),
            config: data(),
            ..Cloud::default()
        },
        Platform::Azure => Cloud {
            api_url: text("/azure/armEndpoint"),
            azure_environment: text("/azure/cloudName"),
            ..Cloud::default()
        },
        Platform::Gcp => Cloud {
            region: text("/gcp/region"),
            ..Cloud::default()
        },
        Platform::OpenStack => Cloud {
            config: data(),
            ..Cloud::default()
        },
        _ => Cloud::default(),
    }
}

/// URL of the EC2 service, if the installer changed it. The last entry counts.
fn ec2_url(infrastructure: &Value) -> String {
    let endpoints = objects::list(infrastructure, "/status/platformStatus/aws/serviceEndpoints");
    let of_ec2 = endpoints.filter(|it| it["name"] == "ec2").last();
    of_ec2
        .map(|it| objects::text(it, "/url").to_owned())
        .unwrap_or_default()
}

/// Variables of the cluster-wide proxy.
fn proxy(cache: &Cache) -> Vec<(&'static str, String)> {
    let proxy = present(cache, &object::PROXY.object(None, SINGLETON));
    let variables = [
        ("HTTP_PROXY", "httpProxy"),
        ("HTTPS_PROXY", "httpsProxy"),
        ("NO_PROXY", "noProxy"),
    ]
    .map(|(variable, field)| {
        let value = proxy.as_ref().and_then(|proxy| proxy["status"][field].as_str());
        (variable, value.unwrap_or_default().to_owned())
    });
    variables
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .collect()
}

/// Value of the label of workloads whose rollout the operator reports. The operator of the management cluster ignores
/// workloads of hosted clusters, whose value is the name of their infrastructure.
pub fn status_label(cache: &Cache, settings: &Settings) -> String {
    let Some(hosted) = &settings.hosted else {
        return names::STAND_ALONE.to_owned();
    };
    let infrastructure = present(cache, &object::OPENSHIFT_INFRASTRUCTURE.object(None, SINGLETON));
    let name = infrastructure.and_then(|it| it["status"]["infrastructureName"].as_str().map(str::to_owned));
    name.filter(|name| !name.is_empty())
        .unwrap_or_else(|| hosted.name.clone())
}

/// The state of the management cluster. `None` without a `HostedControlPlane`.
fn management(cache: &Cache, settings: &settings::Hosted, status_label: String) -> Option<Management> {
    let control_plane = present(cache, &hosted::control_plane_id(settings))?;
    let monitor = if settings.has_rhobs {
        object::RHOBS_SERVICE_MONITOR
    } else {
        object::SERVICE_MONITOR
    };
    let mut requests = BTreeMap::new();
    for workload in workloads(cache).values() {
        let name = workload["metadata"]["name"].as_str().unwrap_or_default();
        let containers = workload
            .pointer("/spec/template/spec/containers")
            .and_then(Value::as_array);
        for container in containers.into_iter().flatten() {
            let key = container["name"].as_str().unwrap_or_default();
            if let Some(live) = container["resources"]["requests"].as_object() {
                requests.insert((name.to_owned(), key.to_owned()), live.clone());
            }
        }
    }
    Some(Management {
        control_plane: ControlPlane::of(&control_plane),
        status_label,
        monitoring: cache.serves(monitor),
        requests,
    })
}

/// Certificate authorities of the management cluster's services. Empty before the first one.
fn service_authorities(cache: &Cache, settings: &settings::Hosted) -> String {
    let (name, key) = &settings.authorities;
    let map = present(cache, &object::CONFIG_MAP.object(Some(&settings.namespace), name));
    let bundle = map.and_then(|map| map["data"][key].as_str().map(str::to_owned));
    bundle.unwrap_or_default()
}

/// Enabled feature gates of a version. Without an entry for the version, the gates of the newest one (§1.3).
pub(crate) fn feature_gates(object: &Value, version: &str) -> BTreeSet<String> {
    let details = object["status"]["featureGates"].as_array();
    let mut entries = details.into_iter().flatten();
    let entry = entries.clone().find(|entry| entry["version"] == version);
    let enabled = entry.or_else(|| entries.next()).map(|entry| &entry["enabled"]);
    let enabled = enabled.and_then(Value::as_array).into_iter().flatten();
    enabled
        .filter_map(|gate| gate["name"].as_str().map(str::to_owned))
        .collect()
}

/// Number of control plane nodes in the installer's configuration (§7.2). `None` for a cluster without an installer.
fn install_replicas(cache: &Cache) -> Option<usize> {
    let id = object::CONFIG_MAP.object(Some(names::KUBE_SYSTEM), names::INSTALL_CONFIG);
    let map = present(cache, &id)?;
    Some(replicas(map["data"]["install-config"].as_str()?))
}

/// `controlPlane.replicas` of the installer's configuration, a number or a text. 0 for any other value.
fn replicas(config: &str) -> usize {
    let config: Value = serde_saphyr::from_str(config).unwrap_or_default();
    let replicas = &config["controlPlane"]["replicas"];
    let number = replicas.as_u64().or_else(|| replicas.as_str()?.parse().ok());
    number
        .and_then(|number| usize::try_from(number).ok())
        .unwrap_or_default()
}

/// The state of OVN-Kubernetes (§7.2).
fn ovn(
    cache: &Cache,
    hosted: Option<(&settings::Hosted, &Cache)>,
    settings: &Settings,
    nodes: &[Arc<Value>],
    is_external: bool,
) -> Observed {
    let find = |kind: Kind, name: &str| present(cache, &kind.object(Some(names::OVN_NAMESPACE), name));
    let data = |name: &str| -> Data {
        let map = present(cache, &object::CONFIG_MAP.object(Some(&settings.namespace), name));
        let data = map.map(|map| map["data"].clone()).unwrap_or_default();
        serde_json::from_value(data).unwrap_or_default()
    };
    let node = find(object::DAEMON_SET, "ovnkube-node");
    let control_plane = match hosted {
        Some((hosted, management)) => {
            let id = object::DEPLOYMENT.object(Some(&hosted.namespace), names::OVN_CONTROL_PLANE);
            present(management, &id)
        }
        None => find(object::DEPLOYMENT, names::OVN_CONTROL_PLANE),
    };
    let prepuller = find(object::DAEMON_SET, "ovnkube-upgrades-prepuller");
    let machine_configs = cache.list(object::MACHINE_CONFIG);
    let pools = cache.list(object::MACHINE_CONFIG_POOL);
    let machine_operator = present(
        cache,
        &object::CLUSTER_OPERATOR.object(None, names::MACHINE_OPERATOR),
    );
    observed::observe(&observed::Objects {
        node: node.as_deref(),
        control_plane: control_plane.as_deref(),
        prepuller: prepuller.as_deref(),
        has_machine_configs: cache.serves(object::MACHINE_CONFIG),
        is_hosted: is_external || hosted.is_some(),
        machine_configs: machine_configs.iter().map(Arc::as_ref).collect(),
        pools: pools.iter().map(Arc::as_ref).collect(),
        machine_operator: machine_operator.as_deref(),
        nodes: nodes.iter().map(Arc::as_ref).collect(),
        config_maps: ConfigMaps {
            flows: data(names::OVS_FLOWS),
            udp_aggregation: data(names::UDP_AGGREGATION),
            hardware: knobs::hardware(&data(names::HARDWARE_OFFLOAD)),
            overrides: data(names::OVN_OVERRIDES),
            node_identity: data(names::NODE_IDENTITY),
        },
    })
}

/// State of the node identity components. A plain cluster has no installer that reports the end of the installation.
fn node_identity(cache: &Cache, is_openshift: bool) -> NodeIdentity {
    let bootstrap = object::CONFIG_MAP.object(Some(names::KUBE_SYSTEM), names::BOOTSTRAP);
    let is_complete = |map: Arc<Value>| map["data"]["status"] == "complete";
    let authorities = format!("{}-ca", names::NODE_IDENTITY);
    let workload = object::DAEMON_SET.object(Some(names::NODE_IDENTITY_NAMESPACE), names::NODE_IDENTITY);
    NodeIdentity {
        is_bootstrapped: !is_openshift || present(cache, &bootstrap).is_some_and(is_complete),
        bundle: bundle(cache, names::NODE_IDENTITY_NAMESPACE, &authorities),
        is_rolled_out: present(cache, &workload).is_some_and(|it| observed::is_rolled_out(&it)),
    }
}

/// State of the node identity components in the management cluster, which exists before the hosted cluster.
fn hosted_node_identity(cache: &Cache, settings: &settings::Hosted) -> NodeIdentity {
    let workload = object::DEPLOYMENT.object(Some(&settings.namespace), names::NODE_IDENTITY);
    NodeIdentity {
        is_bootstrapped: true,
        bundle: service_authorities(cache, settings),
        is_rolled_out: present(cache, &workload).is_some_and(|it| observed::is_rolled_out(&it)),
    }
}

/// Certificate authorities in a ConfigMap. Empty without one.
fn bundle(cache: &Cache, namespace: &str, name: &str) -> String {
    let map = present(cache, &object::CONFIG_MAP.object(Some(namespace), name));
    let bundle = map.and_then(|map| map["data"]["ca-bundle.crt"].as_str().map(str::to_owned));
    bundle.unwrap_or_default()
}

/// All cached workloads. Several watches may select the same workload.
pub fn workloads(cache: &Cache) -> BTreeMap<ObjectId, Arc<Value>> {
    let all = [object::DAEMON_SET, object::DEPLOYMENT]
        .into_iter()
        .flat_map(|kind| cache.list(kind));
    all.map(|object| (ObjectId::of(&object), object)).collect()
}

/// A DaemonSet of another installer that runs kube-proxy.
fn foreign_kube_proxy(cache: &Cache) -> Option<String> {
    let daemon_sets = cache.list(object::DAEMON_SET);
    let (label, value) = names::FOREIGN_KUBE_PROXY;
    let is_foreign = |object: &&Arc<Value>| {
        let labels = &object["metadata"]["labels"];
        labels.get(names::PART_LABEL).is_none() && labels[label] == value
    };
    let foreign = daemon_sets.iter().find(is_foreign)?;
    let text = |key: &str| foreign["metadata"][key].as_str().unwrap_or_default();
    Some(format!("{}/{}", text("namespace"), text("name")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::{cloud, feature_gates, host_mtu, hosted_mtu, replicas};
    use crate::facts::{Cloud, Platform};

    #[test]
    fn feature_gates_are_those_of_the_version() {
        let gates = json!({ "status": { "featureGates": [
            { "version": "4.20.0", "enabled": [{ "name": "EVPN" }], "disabled": [{ "name": "NetworkConnect" }] },
            { "version": "4.19.0", "enabled": [{ "name": "NetworkConnect" }] },
        ] } });
        let on = |version: &str| feature_gates(&gates, version).into_iter().collect::<Vec<_>>();
        assert_eq!(on("4.20.0"), ["EVPN"]);
        assert_eq!(on("4.19.0"), ["NetworkConnect"]);
        assert_eq!(on("1.2.3"), ["EVPN"]);
        assert!(feature_gates(&json!({}), "4.20.0").is_empty());
    }

    #[test]
    fn replicas_of_the_installer_are_a_number_or_a_text() {
        for (config, expected) in [
            ("controlPlane: {replicas: 3}", 3),
            ("controlPlane: {replicas: '1'}", 1),
            ("controlPlane: {replicas: many}", 0),
            ("{}", 0),
        ] {
            assert_eq!(replicas(config), expected, "{config}");
        }
    }

    // cluster-network#20
    #[test]
    fn hosted_clusters_of_some_clouds_need_no_probe() {
        assert_eq!(hosted_mtu(&Platform::Aws, true), Some(9001));
        assert_eq!(hosted_mtu(&Platform::Azure, true), Some(1500));
        assert_eq!(hosted_mtu(&Platform::Gcp, true), None);
        assert_eq!(hosted_mtu(&Platform::Aws, false), None);
    }

    // cluster-network#20
    #[test]
    fn mtu_is_a_number_above_zero() {
        let read = |text: &str| host_mtu(&json!({ "data": { "mtu": text } }));
        assert_eq!(read("5000"), Ok(5000));
        for text in ["0", "abc", ""] {
            let error = read(text).expect_err("no MTU");
            assert!(error.starts_with("format error"), "{error}");
        }
    }

    // cluster-network#190
    #[test]
    fn cloud_is_described_by_the_infrastructure() {
        let config = json!({ "data": { "ca-bundle.pem": "authorities" } });
        let data = || [("ca-bundle.pem".to_owned(), "authorities".to_owned())].into();
        for (platform, status, expected) in [
            (
                Platform::Aws,
                json!({ "aws": { "region": "eu-west-1", "serviceEndpoints": [
                    { "name": "ec2", "url": "https://old.example.com" },
                    { "name": "s3", "url": "https://s3.example.com" },
                    { "name": "ec2", "url": "https://ec2.example.com" },
                ] } }),
                Cloud {
                    region: "eu-west-1".to_owned(),
                    api_url: "https://ec2.example.com".to_owned(),
                    config: data(),
                    ..Cloud::default()
                },
            ),
            (
                Platform::Azure,
                json!({ "azure": { "cloudName": "AzureStackCloud", "armEndpoint": "https://arm.example.com" } }),
                Cloud {
                    api_url: "https://arm.example.com".to_owned(),
                    azure_environment: "AzureStackCloud".to_owned(),
                    ..Cloud::default()
                },
            ),
            (
                Platform::Gcp,
                json!({ "gcp": { "region": "us-central1" } }),
                Cloud {
                    region: "us-central1".to_owned(),
                    ..Cloud::default()
                },
            ),
            (
                Platform::OpenStack,
                json!({ "openstack": {} }),
                Cloud {
                    config: data(),
                    ..Cloud::default()
                },
            ),
            (
                Platform::BareMetal,
                json!({ "aws": { "region": "a" } }),
                Cloud::default(),
            ),
        ] {
            let infrastructure = json!({ "status": { "platformStatus": status } });
            assert_eq!(cloud(&platform, &infrastructure, &config), expected, "{platform}");
        }
        assert_eq!(
            cloud(&Platform::Aws, &json!(null), &json!(null)),
            Cloud::default()
        );
    }
}
