//! The watches of the operator: the configuration resource, and all rendered objects by their common label.
//!
//! Some kinds are part of other products, which may be installed now, later or never. Their definitions are watched by
//! name, with metadata only: each costs a connection and about a kilobyte, for any number of other definitions. A kind
//! is watched while its definition exists; the operator does not wait for these watches to sync.

use api::names::MANAGED_BY_LABEL;
use kube::Client;
use kube_kit::{
    cache::{self, Cache, Changes, Lookup},
    object::{self, Kind, ObjectId},
    watch::{Options, Watch},
};

use crate::{cluster_facts::Platform, components::kubevirt_ipam_controller, names, settings::Settings};

/// Kinds of rendered objects that every cluster serves.
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

/// Kinds of rendered objects that other products define.
const RENDERED_IF_SERVED: [Kind; 5] = [
    object::SECURITY_CONTEXT_CONSTRAINTS,
    object::SERVICE_MONITOR,
    object::PROMETHEUS_RULE,
    object::CERTIFICATE,
    object::ISSUER,
];

/// Kinds of other products on which the rendered objects depend.
const DECIDING: [Kind; 2] = [object::OPENSHIFT_NETWORK, object::NMSTATE];

/// Kinds of objects that are watched by label.
#[cfg(test)]
pub(crate) fn rendered_kinds() -> Vec<Kind> {
    [&RENDERED[..], &RENDERED_IF_SERVED[..]].concat()
}

/// The definition of a kind.
pub fn definition(kind: Kind) -> ObjectId {
    let name = format!("{}.{}", kind.plural, kind.group);
    object::CUSTOM_RESOURCE_DEFINITION.object(None, &name)
}

/// The kinds whose definitions are watched, starting with the configuration resource's own.
fn defined() -> impl Iterator<Item = Kind> {
    [object::NETWORK_ADDONS_CONFIG]
        .into_iter()
        .chain(RENDERED_IF_SERVED)
        .chain(DECIDING)
}

/// The kind that a watched definition defines.
pub(crate) fn defined_by(id: &ObjectId) -> Option<Kind> {
    defined().find(|kind| definition(*kind) == *id)
}

/// Whether a definition exists, after a watch reported its change. The watches of the definitions know; the watch by
/// label also reports that a definition only lost its label. Before their first lists are complete, the kind of change
/// decides.
pub(crate) fn is_defined(known: &Lookup, applied: bool, synced: bool) -> bool {
    matches!(known, Lookup::Present(_)) || (applied && !synced)
}

/// Watches these definitions, with any owner.
pub(crate) fn definitions(client: &Client, cache: &Cache, changes: &mut Changes) {
    for kind in defined() {
        let named = Options::all().named(&definition(kind).name);
        changes.push(cache.watch_metadata(client.clone(), object::CUSTOM_RESOURCE_DEFINITION, &named));
    }
}

/// Watches a kind of another product.
pub(crate) fn if_served(
    client: &Client,
    cache: &Cache,
    kind: Kind,
    settings: &Settings,
) -> Watch<ObjectId, cache::Object> {
    let options = match kind {
        object::OPENSHIFT_NETWORK => Options::all().named(names::OPENSHIFT_CLUSTER),
        // Objects of other owners are needed, too.
        object::NMSTATE => Options::all(),
        _ => ours(),
    };
    let trim = match kind {
        // The conditions report the progress of the node state operator.
        object::NMSTATE => cache::keep_all,
        _ => cache::drop_status,
    };
    let namespace = kind.namespaced.then_some(settings.operand_namespace.as_str());
    cache.watch_if_served(client.clone(), kind, namespace, &options, trim)
}

/// The platform after the API server was observed to serve these kinds. A detected kind stays until its definition is
/// deleted.
pub(crate) fn platform(before: Platform, serves: impl Fn(Kind) -> bool) -> Platform {
    let mut platform = before;
    platform.openshift4 |= serves(object::OPENSHIFT_NETWORK);
    platform.scc |= serves(object::SECURITY_CONTEXT_CONSTRAINTS);
    platform.monitoring |= serves(object::SERVICE_MONITOR) && serves(object::PROMETHEUS_RULE);
    platform
}

/// The platform without a kind.
pub(crate) fn platform_without(before: Platform, kind: Kind) -> Platform {
    let mut platform = before;
    match kind {
        object::OPENSHIFT_NETWORK => platform.openshift4 = false,
        object::SECURITY_CONTEXT_CONSTRAINTS => platform.scc = false,
        object::SERVICE_MONITOR | object::PROMETHEUS_RULE => platform.monitoring = false,
        _ => {}
    }
    platform
}

/// The kinds of the platform that was detected at the start.
pub(crate) fn found_at_start(platform: Platform) -> Vec<Kind> {
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

/// Starts the watches of kinds that every cluster serves, and of the configuration resource, and adds them to the
/// cache.
pub(crate) fn start(client: &Client, cache: &Cache, settings: &Settings) -> Changes {
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
    // An earlier operator may have written the record without labels.
    watch(
        object::CONFIG_MAP,
        own,
        &Options::all().named(names::APPLIED_CONFIG_MAP),
    );
    // The operator's own namespace has no label.
    watch(object::NAMESPACE, "", &Options::all().named(own));
    if operands != own {
        watch(object::NAMESPACE, "", &Options::all().named(operands));
    }
    // On OpenShift, which issues these certificates, the Secrets never exist.
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
    fn defined_by_returns_kind_of_definition_name() {
        let id = definition(object::CERTIFICATE);
        assert_eq!(id.name, "certificates.cert-manager.io");
        assert_eq!(defined_by(&id), Some(object::CERTIFICATE));
        assert_eq!(
            defined_by(&definition(object::NETWORK_ATTACHMENT_DEFINITION)),
            None
        );
    }

    #[test]
    fn definition_that_lost_its_label_is_still_defined() {
        let present = Lookup::Present(std::sync::Arc::default());
        for (known, applied, synced, expected) in [
            (&present, false, true, true),
            (&present, true, true, true),
            (&Lookup::Absent, false, true, false),
            // The watch by label is ahead; the watch of the definition reports its creation, too.
            (&Lookup::Absent, true, true, false),
            (&Lookup::Unknown, true, false, true),
            (&Lookup::Absent, true, false, true),
            (&Lookup::Unknown, false, false, false),
        ] {
            let found = is_defined(known, applied, synced);
            assert_eq!(found, expected, "{known:?} {applied} {synced}");
        }
    }

    #[test]
    fn platform_keeps_served_kind_until_its_definition_goes() {
        let plain = Platform::default();
        let monitored = platform(plain, |kind| kind.group == "monitoring.coreos.com");
        assert_eq!(
            monitored,
            Platform {
                monitoring: true,
                ..plain
            }
        );
        // Only one of both kinds is served.
        assert_eq!(platform(plain, |kind| kind == object::SERVICE_MONITOR), plain);
        // A watch that is not synced does not change the detected platform.
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
