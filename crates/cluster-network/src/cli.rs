//! `weft network plan`, `status` and `manifests`: the plan of the operator, the state of the network, and the manifests
//! that install the operator. None of them writes to a cluster.

mod manifests;
mod plan;
mod status;

use std::time::Duration;

use kube::Client;
use kube_kit::{
    cache::{Cache, Changes},
    connection,
    object::{self, Kind, ObjectId},
    watch::Change,
};
use serde_json::{Value, json};
use tokio::time::Instant;

pub use manifests::{Args as ManifestsArgs, answer as manifests};
pub use plan::{Args as PlanArgs, answer as plan};
pub use status::{Args as StatusArgs, answer as status};

use crate::{
    controller,
    facts::CniDirectories,
    names,
    settings::{self, Settings},
    watches,
};

/// Deadline of the lists of all watches.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Kinds that come with the operator.
const OWN_KINDS: [Kind; 3] = [
    object::CLUSTER_NETWORK,
    object::OPENSHIFT_NETWORK,
    object::CLUSTER_OPERATOR,
];
/// Interval of checks for kinds that the API server does not serve, which no watch reports.
const CHECK: Duration = Duration::from_millis(100);

/// Cause of a failed command. The texts name the remedy.
#[derive(Debug, thiserror::Error)]
enum Error {
    #[error(transparent)]
    Connection(#[from] connection::Error),
    #[error("cannot read {file}: {cause}")]
    File { file: String, cause: String },
    #[error(
        "{0} has no Network: name a file with a Network of config.openshift.io/v1 or of operator.openshift.io/v1, or \
         both"
    )]
    NoNetwork(String),
    #[error("{0}")]
    Unreadable(String),
    #[error("the watches are not complete: {0}")]
    Incomplete(String),
}

/// Lists all objects that the operator watches. A cluster without the operator does not serve all of their kinds.
async fn observe(client: &Client, settings: &Settings) -> Result<Cache, Error> {
    let cache = Cache::new();
    let changes = watches::start(client, &cache, settings);
    // Without these lists, objects of OpenShift would seem superfluous.
    fill(
        &cache,
        changes,
        controller::deciding(client, settings.uses_proxy()),
    )
    .await?;
    Ok(cache)
}

/// Lists all objects of a hosted control plane that the operator watches in the management cluster.
async fn observe_hosted(client: &Client, settings: &settings::Hosted) -> Result<Cache, Error> {
    let (cache, mut changes) = (Cache::new(), Changes::new());
    watches::start_hosted(client, &cache, settings, &mut changes);
    fill(
        &cache,
        changes,
        controller::served(client, &watches::HOSTED_IF_SERVED),
    )
    .await?;
    Ok(cache)
}

/// Waits for the lists of the watches, and of these kinds.
async fn fill(
    cache: &Cache,
    mut changes: Changes,
    deciding: impl Future<Output = Vec<Kind>>,
) -> Result<(), Error> {
    let until = Instant::now() + TIMEOUT;
    let deciding = tokio::time::timeout_at(until, deciding).await;
    let deciding = deciding
        .map_err(|_| Error::Incomplete("the API server does not say which kinds it serves".to_owned()))?;
    let is_listed = || deciding.iter().all(|kind| cache.serves(*kind));
    while !cache.is_synced_without(&OWN_KINDS) || !is_listed() {
        match tokio::time::timeout(CHECK, changes.next()).await {
            Ok(Change::Invalid(id, error)) => return Err(Error::Unreadable(format!("{id}: {error}"))),
            _ if Instant::now() < until => {}
            _ if cache.is_synced_without(&OWN_KINDS) => break,
            _ => {
                let blocked = kube_kit::cache::blocked([cache], Duration::ZERO);
                let lines: Vec<_> = blocked.iter().map(ToString::to_string).collect();
                return Err(Error::Incomplete(lines.join("; ")));
            }
        }
    }
    Ok(())
}

/// Settings of the operator in the cluster. Without an operator, the defaults.
fn settings(operator: Option<&Value>) -> Settings {
    let containers = operator.and_then(|it| it.pointer("/spec/template/spec/containers/0"));
    let variables = containers.and_then(|container| container["env"].as_array());
    let variable = |name: &str| {
        let found = variables.into_iter().flatten().find(|it| it["name"] == name)?;
        let is_namespace =
            found.pointer("/valueFrom/fieldRef/fieldPath") == Some(&json!("metadata.namespace"));
        let value = if is_namespace {
            &operator?["metadata"]["namespace"]
        } else {
            &found["value"]
        };
        value.as_str().map(str::to_owned)
    };
    Settings::read(names::OPERATOR_NAMESPACE, variable).unwrap_or_else(|_| Settings {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        image: "weft".to_owned(),
        kube_proxy_image: Some("kube-proxy".to_owned()),
        kube_rbac_proxy_image: None,
        multi_network_policy_image: None,
        whereabouts_image: None,
        egress_router_image: None,
        frr_image: None,
        console_plugin_image: None,
        network_metrics_image: None,
        cli_image: None,
        cloud_network_image: None,
        pull_policy: "IfNotPresent".to_owned(),
        api_server: None,
        cni_conf_dir: CniDirectories::default().conf,
        cni_bin_dir: CniDirectories::default().bin,
        namespace: names::OPERATOR_NAMESPACE.to_owned(),
        ovn: crate::settings::Ovn {
            image: Some("ovn-kubernetes".to_owned()),
            ..crate::settings::Ovn::default()
        },
        hosted: None,
    })
}

fn operator_id() -> ObjectId {
    object::DEPLOYMENT.object(Some(names::OPERATOR_NAMESPACE), names::OPERATOR_DEPLOYMENT)
}

/// The name of an object as users write it: `DaemonSet openshift-multus/multus`.
fn named(id: &ObjectId) -> String {
    match &id.namespace {
        Some(namespace) => format!("{} {namespace}/{}", id.kind, id.name),
        None => format!("{} {}", id.kind, id.name),
    }
}
