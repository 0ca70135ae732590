//! The auxiliary chain (multus.md §5.7): plugins of a directory beside the cluster network's file, called for every
//! pod after all its networks.

use crate::networks::delegate::{Config, Delegate};
use crate::networks::net_conf::MultusConfig;
use cni::config::NetworkList;
use serde_json::json;
use std::path::Path;

/// The first plugin of the chain, which provides an initial result, and its name in the list.
const FIRST: (&str, &str) = ("passthru", "passthru-cni");

/// The directory of the chain is unknown.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("auxiliary chain used but ClusterNetwork must be a path, and it is not a path: {0}")]
pub(crate) struct NoPath(pub String);

/// The chain, if it is configured and its directory has plugins. An unusable directory is only logged: it fails no
/// pod.
pub(super) fn chain(config: &MultusConfig) -> Result<Option<Delegate>, NoPath> {
    let name = &config.auxiliary_chain;
    if name.is_empty() {
        return Ok(None);
    }
    let cluster_network = config.cluster_network.as_deref().unwrap_or_default();
    let (folder, _) = cluster_network
        .rsplit_once('/')
        .ok_or_else(|| NoPath(cluster_network.to_owned()))?;
    let folder = if folder.is_empty() { "/" } else { folder };
    Ok(
        load(name, &config.cni_version, Path::new(folder)).unwrap_or_else(|cause| {
            tracing::error!(
                chain = name,
                folder,
                cause,
                "cannot load the auxiliary chain, skipping it"
            );
            None
        }),
    )
}

fn load(name: &str, version: &str, folder: &Path) -> Result<Option<Delegate>, String> {
    let (plugin, called) = FIRST;
    let list = json!({"cniVersion": version, "name": name, "plugins": [{"type": plugin, "name": called}]});
    let mut list = NetworkList::parse(list.to_string().as_bytes()).map_err(|error| error.to_string())?;
    let initial = list.plugins.len();
    list.append_folder(folder).map_err(|error| error.to_string())?;
    if list.plugins.len() == initial {
        return Ok(None);
    }
    let config = Config::from_file(&list).map_err(|error| error.to_string())?;
    Ok(Some(Delegate::new(name.to_owned(), config)))
}
