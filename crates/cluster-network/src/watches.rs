//! What is watched, so that nothing has to be asked for: both configurations, the operator's own namespace, nodes, and
//! everything that was rendered, by the label that it all carries.

use std::time::Duration;

use kube::Client;
use kube_kit::{
    cache::{self, Cache, Changes},
    object::{self, Kind},
    watch::Options,
};

use crate::{names, settings::Settings};

/// Kinds of rendered objects that every cluster knows.
pub const RENDERED: [Kind; 14] = [
    object::NAMESPACE,
    object::DAEMON_SET,
    object::DEPLOYMENT,
    object::SERVICE,
    object::SERVICE_ACCOUNT,
    object::ROLE,
    object::ROLE_BINDING,
    object::CLUSTER_ROLE,
    object::CLUSTER_ROLE_BINDING,
    object::CONFIG_MAP,
    object::NETWORK_POLICY,
    object::VALIDATING_WEBHOOK_CONFIGURATION,
    object::VALIDATING_ADMISSION_POLICY,
    object::VALIDATING_ADMISSION_POLICY_BINDING,
];

/// Kinds of rendered objects that somebody else may define, or we ourselves in the same pass.
pub const RENDERED_IF_SERVED: [Kind; 2] = [object::NETWORK_ATTACHMENT_DEFINITION, object::SERVICE_MONITOR];

/// Kinds whose status counts.
const WITH_STATUS: [Kind; 2] = [object::DAEMON_SET, object::DEPLOYMENT];

/// How often to ask for a kind that is not served. A definition that we make ourselves is asked for at once.
const ABSENT: Duration = Duration::from_mins(10);

/// Starts all watches.
pub fn start(client: &Client, cache: &Cache, settings: &Settings) -> Changes {
    let mut changes = Changes::new();
    let one = |name: &str| Options::all().named(name);
    for (kind, name) in [
        (object::CLUSTER_NETWORK, api::cluster_network::SINGLETON),
        (object::OPENSHIFT_NETWORK, api::cluster_network::SINGLETON),
        (object::CLUSTER_OPERATOR, names::CLUSTER_OPERATOR),
    ] {
        changes.push(cache.watch(client.clone(), kind, None, &one(name), cache::keep_all));
    }
    changes.push(cache.watch(
        client.clone(),
        object::CONFIG_MAP,
        Some(&settings.namespace),
        &Options::all(),
        cache::keep_all,
    ));
    // Labels are all that counts of nodes.
    changes.push(cache.watch_metadata(client.clone(), object::NODE, &Options::all()));
    let foreign = Options::all().labels(names::FOREIGN_KUBE_PROXY);
    changes.push(cache.watch(
        client.clone(),
        object::DAEMON_SET,
        None,
        &foreign,
        cache::drop_status,
    ));
    let ours = Options::all().labels(names::PART_LABEL);
    for kind in RENDERED {
        let trim = if WITH_STATUS.contains(&kind) {
            cache::keep_all
        } else {
            cache::drop_status
        };
        changes.push(cache.watch(client.clone(), kind, None, &ours, trim));
    }
    for kind in RENDERED_IF_SERVED {
        let ours = ours.clone().absent(ABSENT);
        changes.push(cache.watch_if_served(client.clone(), kind, None, &ours, cache::drop_status));
    }
    let infrastructure = one(api::cluster_network::SINGLETON).absent(ABSENT);
    changes.push(cache.watch_if_served(
        client.clone(),
        object::OPENSHIFT_INFRASTRUCTURE,
        None,
        &infrastructure,
        cache::keep_all,
    ));
    changes
}
