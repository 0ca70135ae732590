//! Watches of all objects that decide the plan: both configurations, the operator's own namespace, nodes, and all
//! rendered objects, by their common label.

use std::time::Duration;

use kube::Client;
use kube_kit::{
    cache::{self, Cache, Changes},
    object::{self, Kind},
    watch::Options,
};

use crate::{
    names,
    settings::{self, Settings},
};

/// Kinds of rendered objects that every cluster serves.
pub const RENDERED: [Kind; 16] = [
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
    object::RESOURCE_QUOTA,
    object::FLOW_SCHEMA,
    object::VALIDATING_WEBHOOK_CONFIGURATION,
    object::VALIDATING_ADMISSION_POLICY,
    object::VALIDATING_ADMISSION_POLICY_BINDING,
];

/// Kinds of rendered objects whose definitions come from another installer, or from the operator in the same
/// reconciliation.
pub const RENDERED_IF_SERVED: [Kind; 6] = [
    object::NETWORK_ATTACHMENT_DEFINITION,
    object::SERVICE_MONITOR,
    object::PROMETHEUS_RULE,
    object::OPERATOR_PKI,
    object::MACHINE_CONFIG,
    object::CONSOLE_PLUGIN,
];

/// Kinds of objects in the management cluster.
const HOSTED: [Kind; 3] = [object::DEPLOYMENT, object::SERVICE, object::CONFIG_MAP];

/// Kinds of objects in the management cluster whose definitions come from another installer.
pub const HOSTED_IF_SERVED: [Kind; 3] = [
    object::SERVICE_MONITOR,
    object::RHOBS_SERVICE_MONITOR,
    object::PROMETHEUS_RULE,
];

/// Kinds of rendered objects: in the management cluster, or in the cluster itself.
pub fn rendered(in_management: bool) -> Vec<Kind> {
    if in_management {
        HOSTED.into_iter().chain(HOSTED_IF_SERVED).collect()
    } else {
        RENDERED.into_iter().chain(RENDERED_IF_SERVED).collect()
    }
}

/// Kinds whose status the operator reads.
pub const WITH_STATUS: [Kind; 2] = [object::DAEMON_SET, object::DEPLOYMENT];

/// Interval of discovery for a kind that is not served. Kinds whose definition the operator applies are discovered at
/// once.
const ABSENT: Duration = Duration::from_mins(10);

/// Interval of discovery for the kinds of the configuration, without which the operator does nothing: their definitions
/// may be installed after it.
const WITHOUT_CONFIGURATION: Duration = Duration::from_secs(5);

/// Starts all watches.
pub fn start(client: &Client, cache: &Cache, settings: &Settings) -> Changes {
    let mut changes = Changes::new();
    let one = |name: &str| Options::all().named(name);
    for (kind, name) in [
        (object::CLUSTER_NETWORK, api::cluster_network::SINGLETON),
        (object::OPENSHIFT_NETWORK, api::cluster_network::SINGLETON),
        (object::CLUSTER_OPERATOR, names::CLUSTER_OPERATOR),
    ] {
        let options = one(name).absent(WITHOUT_CONFIGURATION);
        changes.push(cache.watch(client.clone(), kind, None, &options, cache::keep_all));
    }
    changes.push(cache.watch(
        client.clone(),
        object::CONFIG_MAP,
        Some(&settings.namespace),
        &Options::all(),
        cache::keep_all,
    ));
    // Plans depend only on the labels of nodes.
    changes.push(cache.watch_metadata(client.clone(), object::NODE, &Options::all()));
    // Installers run kube-proxy there. Elsewhere, tenants could set the label and stop the operator's kube-proxy.
    let (label, value) = names::FOREIGN_KUBE_PROXY;
    let foreign = Options::all().labels(format!("{label}={value}"));
    changes.push(cache.watch(
        client.clone(),
        object::DAEMON_SET,
        Some(names::KUBE_SYSTEM),
        &foreign,
        cache::drop_status,
    ));
    let ours = Options::all().labels(names::PART_LABEL);
    for kind in RENDERED {
        let trim = if WITH_STATUS.contains(&kind) {
            drop_foreign
        } else {
            drop_foreign_and_status
        };
        changes.push(cache.watch(client.clone(), kind, None, &ours, trim));
    }
    for kind in RENDERED_IF_SERVED {
        let ours = ours.clone().absent(ABSENT);
        changes.push(cache.watch_if_served(client.clone(), kind, None, &ours, drop_foreign_and_status));
    }
    let platform = one(api::cluster_network::SINGLETON).absent(ABSENT);
    for (kind, trim) in [
        (object::OPENSHIFT_INFRASTRUCTURE, cache::keep_all as fn(&mut _)),
        (object::FEATURE_GATE, cache::keep_all),
        (object::OPENSHIFT_API_SERVER, cache::drop_status),
        (object::OPENSHIFT_CONSOLE, cache::drop_status),
    ] {
        changes.push(cache.watch_if_served(client.clone(), kind, None, &platform, trim));
    }
    if settings.frr_image.is_some() {
        let bundle = one(names::FRR_BUNDLE);
        let namespace = Some(names::FRR_NAMESPACE);
        changes.push(cache.watch(
            client.clone(),
            object::CONFIG_MAP,
            namespace,
            &bundle,
            cache::keep_all,
        ));
    }
    if settings.cloud_network_image.is_some() {
        let config = one(names::CLOUD_CONFIG);
        let namespace = Some(names::MANAGED_NAMESPACE);
        changes.push(cache.watch(
            client.clone(),
            object::CONFIG_MAP,
            namespace,
            &config,
            cache::keep_all,
        ));
    }
    if settings.uses_proxy() {
        changes.push(cache.watch_if_served(client.clone(), object::PROXY, None, &platform, cache::keep_all));
    }
    watch_ovn(client, cache, &mut changes);
    changes
}

/// Starts the watches in the namespace of a hosted control plane (§18.3).
pub fn start_hosted(client: &Client, cache: &Cache, hosted: &settings::Hosted, changes: &mut Changes) {
    let namespace = Some(hosted.namespace.as_str());
    let mut one = |kind: Kind, name: &str| {
        let options = Options::all().named(name);
        changes.push(cache.watch(client.clone(), kind, namespace, &options, cache::keep_all));
    };
    one(object::HOSTED_CONTROL_PLANE, &hosted.name);
    one(object::CONFIG_MAP, &hosted.authorities.0);
    // Deployments of upstream's operator have no label of this one.
    one(object::DEPLOYMENT, names::OVN_CONTROL_PLANE);
    one(object::DEPLOYMENT, names::NODE_IDENTITY);
    let ours = Options::all().labels(names::PART_LABEL);
    for kind in HOSTED {
        changes.push(cache.watch(client.clone(), kind, namespace, &ours, cache::keep_all));
    }
    let ours = ours.absent(ABSENT);
    for kind in HOSTED_IF_SERVED {
        changes.push(cache.watch_if_served(client.clone(), kind, namespace, &ours, cache::drop_status));
    }
}

/// Watches of further objects that decide the plan for OVN-Kubernetes: workloads and machine configurations of other
/// operators, and the state of the installation.
fn watch_ovn(client: &Client, cache: &Cache, changes: &mut Changes) {
    let all = Options::all();
    for kind in WITH_STATUS {
        let namespace = Some(names::OVN_NAMESPACE);
        changes.push(cache.watch(client.clone(), kind, namespace, &all, cache::keep_all));
    }
    let config_map = |namespace: &str, name: &str| {
        let options = Options::all().named(name);
        cache.watch(
            client.clone(),
            object::CONFIG_MAP,
            Some(namespace),
            &options,
            cache::keep_all,
        )
    };
    changes.push(config_map(names::KUBE_SYSTEM, names::BOOTSTRAP));
    changes.push(config_map(names::KUBE_SYSTEM, names::INSTALL_CONFIG));
    let bundle = format!("{}-ca", names::NODE_IDENTITY);
    changes.push(config_map(names::NODE_IDENTITY_NAMESPACE, &bundle));
    let machines = Options::all()
        .named(names::MACHINE_OPERATOR)
        .absent(WITHOUT_CONFIGURATION);
    changes.push(cache.watch(
        client.clone(),
        object::CLUSTER_OPERATOR,
        None,
        &machines,
        cache::keep_all,
    ));
    let may_be_absent = Options::all().absent(ABSENT);
    changes.push(cache.watch_if_served(
        client.clone(),
        object::MACHINE_CONFIG,
        None,
        &may_be_absent,
        drop_spec,
    ));
    changes.push(cache.watch_if_served(
        client.clone(),
        object::MACHINE_CONFIG_POOL,
        None,
        &may_be_absent,
        cache::keep_all,
    ));
}

/// Drops the content of objects of others: everybody can set the operator's label on their own objects.
fn drop_foreign(object: &mut serde_json::Value) {
    if !object::owned_by(object, object::OPENSHIFT_NETWORK.kind)
        && let Some(fields) = object.as_object_mut()
    {
        fields.retain(|key, _| ["apiVersion", "kind", "metadata"].contains(&key.as_str()));
    }
}

fn drop_foreign_and_status(object: &mut serde_json::Value) {
    drop_foreign(object);
    cache::drop_status(object);
}

/// Drops the spec of a machine configuration, which contains whole files.
fn drop_spec(object: &mut serde_json::Value) {
    if let Some(fields) = object.as_object_mut() {
        fields.shift_remove("spec");
    }
}
