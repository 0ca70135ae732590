//! Watches of every `NMState`, and of the deployed objects by their label.

use kube::Client;
use kube_kit::cache::{self, Cache, Changes};
use kube_kit::object::{self, Kind};
use kube_kit::watch::Options;

use super::names;
use super::settings::Settings;

/// Kinds in the namespace of the deployed objects.
const NAMESPACED: [Kind; 8] = [
    object::DAEMON_SET,
    object::DEPLOYMENT,
    object::SERVICE,
    object::SERVICE_ACCOUNT,
    object::CONFIG_MAP,
    object::ROLE,
    object::ROLE_BINDING,
    object::POD_DISRUPTION_BUDGET,
];

/// Cluster-scoped kinds.
const CLUSTER: [Kind; 6] = [
    object::CLUSTER_ROLE,
    object::CLUSTER_ROLE_BINDING,
    object::MUTATING_WEBHOOK_CONFIGURATION,
    object::VALIDATING_ADMISSION_POLICY,
    object::VALIDATING_ADMISSION_POLICY_BINDING,
    object::CUSTOM_RESOURCE_DEFINITION,
];

/// Namespaced kinds that may not be installed.
const IF_SERVED: [Kind; 2] = [object::SERVICE_MONITOR, object::PROMETHEUS_RULE];

/// Starts the watches that feed the cache.
pub(crate) fn start(client: &Client, cache: &Cache, settings: &Settings) -> Changes {
    let mut changes = Changes::new();
    let ours = Options::all().labels(format!("{}={}", names::MANAGED_BY.0, names::MANAGED_BY.1));
    let mut watch = |kind: Kind, namespace: Option<&str>, options: &Options| {
        let trim = match kind {
            object::DAEMON_SET | object::DEPLOYMENT | object::NMSTATE => cache::keep_all,
            _ => cache::drop_status,
        };
        changes.push(cache.watch(client.clone(), kind, namespace, options, trim));
    };
    let (handler, operator) = (
        settings.handler_namespace.as_str(),
        settings.operator_namespace.as_str(),
    );
    watch(object::NMSTATE, None, &Options::all());
    watch(object::NAMESPACE, None, &Options::all().named(handler));
    for kind in NAMESPACED {
        watch(kind, Some(handler), &ours);
    }
    watch(object::NETWORK_POLICY, Some(handler), &ours);
    if operator != handler {
        watch(object::NETWORK_POLICY, Some(operator), &ours);
    }
    if handler != names::EVENTS_NAMESPACE {
        for kind in [object::ROLE, object::ROLE_BINDING] {
            watch(kind, Some(names::EVENTS_NAMESPACE), &ours);
        }
    }
    for kind in CLUSTER {
        watch(kind, None, &ours);
    }
    let reader = Options::all().named(names::CLUSTER_READER);
    changes.push(cache.watch_metadata(client.clone(), object::CLUSTER_ROLE, &reader));
    for kind in IF_SERVED {
        changes.push(cache.watch_if_served(client.clone(), kind, Some(handler), &ours, cache::drop_status));
    }
    let api_server = Options::all().named(names::OPENSHIFT_CLUSTER);
    changes.push(cache.watch_if_served(
        client.clone(),
        object::OPENSHIFT_API_SERVER,
        None,
        &api_server,
        cache::drop_status,
    ));
    changes
}
