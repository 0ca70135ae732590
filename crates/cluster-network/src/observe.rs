//! What the watches know, in the form that plans are made of.

use std::sync::Arc;

use api::cluster_network::{SINGLETON, config, operator};
use kube_kit::{
    cache::{Cache, Lookup},
    object::{self, ObjectId},
};
use serde_json::Value;

use crate::{
    facts::{ApiServer, CniDirectories, Facts, Platform},
    names, plan,
    settings::Settings,
};

/// The object of both kinds that counts.
pub fn cluster_config_id() -> ObjectId {
    object::CLUSTER_NETWORK.object(None, SINGLETON)
}

/// See [`cluster_config_id`].
pub fn operator_config_id() -> ObjectId {
    object::OPENSHIFT_NETWORK.object(None, SINGLETON)
}

/// The object that tells the platform about the operator.
pub fn cluster_operator_id() -> ObjectId {
    object::CLUSTER_OPERATOR.object(None, names::CLUSTER_OPERATOR)
}

/// A configuration as it is stored.
#[derive(Clone, Debug)]
pub struct Stored<T> {
    /// The whole object.
    pub object: Arc<Value>,
    /// What it asks for.
    pub spec: T,
}

/// An object can't be read.
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
/// When it is not what its definition says.
pub fn cluster_config(cache: &Cache) -> Result<Option<Stored<config::NetworkSpec>>, Unreadable> {
    stored(cache, &cluster_config_id())
}

/// The operator configuration, unless it is on its way out.
///
/// # Errors
/// When it is not what its definition says.
pub fn operator_config(cache: &Cache) -> Result<Option<Stored<operator::NetworkSpec>>, Unreadable> {
    let stored = stored(cache, &operator_config_id())?;
    let stays = |it: &Stored<_>| it.object.pointer("/metadata/deletionTimestamp").is_none();
    Ok(stored.filter(stays))
}

/// The applied configuration.
///
/// # Errors
/// When there is one that can't be read.
pub fn previous(cache: &Cache, namespace: &str) -> Result<Option<operator::NetworkSpec>, String> {
    let id = object::CONFIG_MAP.object(Some(namespace), names::APPLIED);
    present(cache, &id).map(|map| plan::recorded(&map)).transpose()
}

/// The MTU of the nodes as the prober wrote it down (§4.3).
///
/// # Errors
/// When what is there is no number above 0.
pub fn host_mtu(config_map: &Value) -> Result<u32, String> {
    let text = config_map["data"][names::MTU].as_str().unwrap_or_default();
    let mtu = text.parse().ok().filter(|mtu| *mtu > 0);
    mtu.ok_or_else(|| format!("format error: ConfigMap {} says {text:?}", names::MTU))
}

/// The facts. `api_server` is how the API server is reached without services.
pub fn facts(cache: &Cache, settings: &Settings, api_server: &ApiServer) -> Facts {
    let config_map = |name: &str| present(cache, &object::CONFIG_MAP.object(Some(&settings.namespace), name));
    let infrastructure = object::OPENSHIFT_INFRASTRUCTURE.object(None, SINGLETON);
    let infrastructure = present(cache, &infrastructure);
    let platform = infrastructure.as_ref().and_then(|it| {
        let status = &it["status"];
        status["platformStatus"]["type"]
            .as_str()
            .or_else(|| status["platform"].as_str())
    });
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
    Facts {
        platform: Platform::named(platform.unwrap_or_default()),
        gates: std::collections::BTreeSet::new(),
        host_mtu: host_mtu.and_then(Result::ok),
        routing_via_host: via_host.is_some_and(|mode| mode == "local"),
        control_plane_nodes: if masters > 0 {
            masters
        } else {
            labelled(names::CONTROL_PLANE_LABEL)
        },
        labelled_master: masters > 0,
        api_server: api_server.clone(),
        cni: CniDirectories {
            conf: settings.cni_conf_dir.clone(),
            bin: settings.cni_bin_dir.clone(),
        },
        openshift: infrastructure.is_some(),
        monitoring: cache.serves(object::SERVICE_MONITOR),
        foreign_kube_proxy: foreign_kube_proxy(cache),
    }
}

/// A DaemonSet that runs kube-proxy and is not ours.
fn foreign_kube_proxy(cache: &Cache) -> Option<String> {
    let daemon_sets = cache.list(object::DAEMON_SET);
    let is_foreign = |object: &&Arc<Value>| object["metadata"]["labels"].get(names::PART_LABEL).is_none();
    let foreign = daemon_sets.iter().find(is_foreign)?;
    let text = |key: &str| foreign["metadata"][key].as_str().unwrap_or_default();
    Some(format!("{}/{}", text("namespace"), text("name")))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::host_mtu;

    #[test]
    fn mtu_is_a_number_above_zero() {
        let read = |text: &str| host_mtu(&json!({ "data": { "mtu": text } }));
        assert_eq!(read("5000"), Ok(5000));
        for text in ["0", "abc", ""] {
            let error = read(text).expect_err("no MTU");
            assert!(error.starts_with("format error"), "{error}");
        }
    }
}
