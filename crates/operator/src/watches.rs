//! What is watched, so that nothing has to be asked for: the configuration resource, and everything that
//! was rendered, by the label that it all carries.
//!
//! Some kinds somebody else defines, now, later or never. Their definitions are watched by name, metadata alone: a
//! connection and about a kilobyte each, however many definitions there are besides. A kind is watched as soon as its
//! definition is there, and no longer when that goes; nobody waits for what such a watch knows.

use api::names::MANAGED_BY_LABEL;
use kube::Client;
use kube_kit::{
    cache::{self, Cache, Changes},
    object::{self, Kind, ObjectId},
    watch::{Options, Watch},
};

use crate::{cluster_facts::Platform, components::kubevirt_ipam_controller, names, settings::Settings};

/// Kinds of rendered objects that every cluster knows.
const RENDERED: [Kind; 13] = [
    object::DAEMON_SET,
    object::DEPLOYMENT,
    object::SERVICE,
    object::ROLE,
    object::ROLE_BINDING,
    object::MUTATING_WEBHOOK_CONFIGURATION,
    object::CONFIG_MAP,
    object::SERVICE_ACCOUNT,
    object::NETWORK_POLICY,
    object::POD_DISRUPTION_BUDGET,
    object::CLUSTER_ROLE,
    object::CLUSTER_ROLE_BINDING,
    object::CUSTOM_RESOURCE_DEFINITION,
];

/// Kinds of rendered objects that somebody else defines.
const RENDERED_IF_SERVED: [Kind; 5] = [
    object::SECURITY_CONTEXT_CONSTRAINTS,
    object::SERVICE_MONITOR,
    object::PROMETHEUS_RULE,
    object::CERTIFICATE,
    object::ISSUER,
];

/// Kinds that decide what is rendered, and that somebody else defines.
const DECIDING: [Kind; 2] = [object::OPENSHIFT_NETWORK, object::NMSTATE];

/// Kinds of objects that are watched by their label.
pub fn rendered_kinds() -> Vec<Kind> {
    [&RENDERED[..], &RENDERED_IF_SERVED[..]].concat()
}

/// Identity of the definition of a kind.
pub fn definition(kind: Kind) -> ObjectId {
    let name = format!("{}.{}", kind.plural, kind.group);
    object::CUSTOM_RESOURCE_DEFINITION.object(None, &name)
}

/// The kinds whose definitions are watched, the configuration resource's own first.
fn defined() -> impl Iterator<Item = Kind> {
    [object::NETWORK_ADDONS_CONFIG]
        .into_iter()
        .chain(RENDERED_IF_SERVED)
        .chain(DECIDING)
}

/// Which kind an object is the watched definition of.
pub fn defined_by(id: &ObjectId) -> Option<Kind> {
    defined().find(|kind| definition(*kind) == *id)
}

/// Watches those definitions, whoever deployed them.
pub fn definitions(client: &Client, cache: &Cache, changes: &mut Changes) {
    for kind in defined() {
        let named = Options::all().named(&definition(kind).name);
        changes.push(cache.watch_metadata(client.clone(), object::CUSTOM_RESOURCE_DEFINITION, &named));
    }
}

/// Watches a kind that somebody else defines.
pub fn if_served(
    client: &Client,
    cache: &Cache,
    kind: Kind,
    settings: &Settings,
) -> Watch<ObjectId, cache::Object> {
    let options = match kind {
        object::OPENSHIFT_NETWORK => Options::all().named(names::OPENSHIFT_CLUSTER),
        // Others' wishes count too.
        object::NMSTATE => Options::all(),
        _ => ours(),
    };
    let trim = match kind {
        // Their conditions tell how far their operator is.
        object::NMSTATE => cache::keep_all,
        _ => cache::drop_status,
    };
    let namespace = kind.namespaced.then_some(settings.operand_namespace.as_str());
    cache.watch_if_served(client.clone(), kind, namespace, &options, trim)
}

/// What a platform is once these kinds are served: what they were found to be at start or since, they stay until their
/// definition goes.
pub fn platform(before: Platform, serves: impl Fn(Kind) -> bool) -> Platform {
    let mut platform = before;
    platform.openshift4 |= serves(object::OPENSHIFT_NETWORK);
    platform.scc |= serves(object::SECURITY_CONTEXT_CONSTRAINTS);
    platform.monitoring |= serves(object::SERVICE_MONITOR) && serves(object::PROMETHEUS_RULE);
    platform
}

/// What a platform is without a kind.
pub fn platform_without(before: Platform, kind: Kind) -> Platform {
    let mut platform = before;
    match kind {
        object::OPENSHIFT_NETWORK => platform.openshift4 = false,
        object::SECURITY_CONTEXT_CONSTRAINTS => platform.scc = false,
        object::SERVICE_MONITOR | object::PROMETHEUS_RULE => platform.monitoring = false,
        _ => {}
    }
    platform
}

/// The kinds that make a platform what it was found to be at start.
pub fn found_at_start(platform: Platform) -> Vec<Kind> {
    let kinds = [
        (platform.openshift4, object::OPENSHIFT_NETWORK),
        (platform.scc, object::SECURITY_CONTEXT_CONSTRAINTS),
        (platform.monitoring, object::SERVICE_MONITOR),
        (platform.monitoring, object::PROMETHEUS_RULE),
    ];
    kinds
        .into_iter()
        .filter_map(|(found, kind)| found.then_some(kind))
        .collect()
}

fn ours() -> Options {
    Options::all().labels(format!("{MANAGED_BY_LABEL}={}", names::MANAGED_BY))
}

/// Starts the watches of kinds that every cluster knows, and of the configuration resource; the cache looks things up
/// in them.
pub fn start(client: &Client, cache: &Cache, settings: &Settings) -> Changes {
    let mut changes = Changes::new();
    let mut watch = |kind: Kind, namespace: &str, options: &Options| {
        let namespace = kind.namespaced.then_some(namespace);
        let trim = match kind {
            object::DAEMON_SET | object::DEPLOYMENT | object::NETWORK_ADDONS_CONFIG => cache::keep_all,
            _ => cache::drop_status,
        };
        changes.push(cache.watch(client.clone(), kind, namespace, options, trim));
    };
    let (own, operands) = (&settings.operator_namespace, &settings.operand_namespace);
    let singleton = Options::all().named(api::names::NETWORK_ADDONS_SINGLETON);
    watch(object::NETWORK_ADDONS_CONFIG, "", &singleton);
    // What was applied may have been written by an operator that labelled nothing.
    watch(
        object::CONFIG_MAP,
        own,
        &Options::all().named(names::APPLIED_CONFIG_MAP),
    );
    // Namespaces are not labelled when they are the operator's own.
    watch(object::NAMESPACE, "", &Options::all().named(own));
    if operands != own {
        watch(object::NAMESPACE, "", &Options::all().named(operands));
    }
    // Where OpenShift issues it, they are never there.
    for name in kubevirt_ipam_controller::issued_secrets(&settings.images, Platform::default()) {
        watch(object::SECRET, operands, &Options::all().named(name));
    }
    for kind in RENDERED {
        watch(kind, operands, &ours());
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_definition_is_known_by_its_name() {
        let id = definition(object::CERTIFICATE);
        assert_eq!(id.name, "certificates.cert-manager.io");
        assert_eq!(defined_by(&id), Some(object::CERTIFICATE));
        assert_eq!(
            defined_by(&definition(object::NETWORK_ATTACHMENT_DEFINITION)),
            None
        );
    }

    #[test]
    fn a_platform_is_what_is_served_until_that_goes() {
        let plain = Platform::default();
        let monitored = platform(plain, |kind| kind.group == "monitoring.coreos.com");
        assert_eq!(
            monitored,
            Platform {
                monitoring: true,
                ..plain
            }
        );
        // One of both kinds is not enough.
        assert_eq!(platform(plain, |kind| kind == object::SERVICE_MONITOR), plain);
        // A watch that is not complete yet says nothing about what was found before.
        assert_eq!(platform(monitored, |_| false), monitored);
        assert_eq!(platform_without(monitored, object::PROMETHEUS_RULE), plain);
        assert_eq!(platform_without(monitored, object::CERTIFICATE), monitored);
        let openshift = platform(plain, |kind| {
            kind == object::OPENSHIFT_NETWORK || kind == object::SECURITY_CONTEXT_CONSTRAINTS
        });
        assert!(openshift.openshift4 && openshift.scc && !openshift.monitoring);
        assert_eq!(
            found_at_start(openshift),
            [object::OPENSHIFT_NETWORK, object::SECURITY_CONTEXT_CONSTRAINTS]
        );
        assert!(!platform_without(openshift, object::SECURITY_CONTEXT_CONSTRAINTS).scc);
    }
}
