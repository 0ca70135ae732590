//! What is watched, so that nothing has to be asked for: the configuration resource, and everything that
//! was rendered, by the label that it all carries.

use api::names::MANAGED_BY_LABEL;
use kube::Client;
use kube_kit::{
    cache::{self, Cache, Changes},
    object::{self, Kind, ObjectId},
    watch::{Options, Watch},
};
use serde_json::Value;

use crate::{cluster_facts::Platform, components::kubevirt_ipam_controller, names, settings::Settings};

/// Kinds of rendered objects. Those of cert-manager are not among them: it may come later or never, and a watch of what
/// is not served would keep everything else waiting. Their objects are looked at in each reconcile instead.
const RENDERED: [Kind; 12] = [
    object::DAEMON_SET,
    object::DEPLOYMENT,
    object::SERVICE,
    object::ROLE,
    object::ROLE_BINDING,
    object::MUTATING_WEBHOOK_CONFIGURATION,
    object::CONFIG_MAP,
    object::SERVICE_ACCOUNT,
    object::NETWORK_POLICY,
    object::CLUSTER_ROLE,
    object::CLUSTER_ROLE_BINDING,
    object::CUSTOM_RESOURCE_DEFINITION,
];

/// Kinds that are rendered only where there are security context constraints.
const RENDERED_WITH_SCC: [Kind; 1] = [object::SECURITY_CONTEXT_CONSTRAINTS];

/// Kinds of objects that are watched by their label on such a platform.
pub fn rendered_kinds(platform: Platform) -> Vec<Kind> {
    /// Kinds that are rendered only where there is monitoring.
    const WITH_MONITORING: [Kind; 2] = [object::SERVICE_MONITOR, object::PROMETHEUS_RULE];
    let with_scc: &[Kind] = if platform.scc { &RENDERED_WITH_SCC } else { &[] };
    let with_monitoring: &[Kind] = if platform.monitoring {
        &WITH_MONITORING
    } else {
        &[]
    };
    [&RENDERED, with_scc, with_monitoring].concat()
}

/// Name of the definition of the configuration resource.
fn definition() -> String {
    let group = api::names::NETWORK_ADDONS_GROUP;
    format!("{}.{group}", object::NETWORK_ADDONS_CONFIG.plural)
}

/// Whether this is the definition of the configuration resource: when it comes, that resource can be
/// watched.
pub fn is_definition(id: &ObjectId) -> bool {
    id.kind == object::CUSTOM_RESOURCE_DEFINITION.kind && id.name == definition()
}

/// Identity of the definition of the API by which node state is wished for.
pub fn node_state_definition() -> ObjectId {
    let name = format!("{}.{}", object::NMSTATE.plural, object::NMSTATE.group);
    object::CUSTOM_RESOURCE_DEFINITION.object(None, &name)
}

/// Watches that definition, whoever deployed it.
pub fn definitions(client: &Client, cache: &Cache) -> Watch<ObjectId, cache::Object> {
    let named = Options::all().named(&node_state_definition().name);
    cache.watch(
        client.clone(),
        object::CUSTOM_RESOURCE_DEFINITION,
        None,
        &named,
        drop_spec,
    )
}

/// Watches wishes for node state. To be started when their API is defined; nobody may wait for what it
/// knows, because that API need not have our version.
pub fn node_state(client: &Client) -> Watch<ObjectId, cache::Object> {
    Cache::new().watch(
        client.clone(),
        object::NMSTATE,
        None,
        &Options::all(),
        cache::drop_status,
    )
}

/// Starts all watches; the cache looks things up in them.
pub fn start(client: &Client, cache: &Cache, settings: &Settings, platform: Platform) -> Changes {
    let mut changes = Changes::new();
    let mut watch = |kind: Kind, namespace: &str, options: &Options| {
        let namespace = kind.namespaced.then_some(namespace);
        let trim = match kind {
            object::DAEMON_SET | object::DEPLOYMENT | object::NETWORK_ADDONS_CONFIG => cache::keep_all,
            object::CUSTOM_RESOURCE_DEFINITION if options.labels.is_none() => drop_spec,
            _ => cache::drop_status,
        };
        changes.push(cache.watch(client.clone(), kind, namespace, options, trim));
    };
    let (own, operands) = (&settings.operator_namespace, &settings.operand_namespace);
    let singleton = Options::all().named(api::names::NETWORK_ADDONS_SINGLETON);
    watch(object::NETWORK_ADDONS_CONFIG, "", &singleton);
    watch(
        object::CUSTOM_RESOURCE_DEFINITION,
        "",
        &Options::all().named(&definition()),
    );
    if platform.openshift4 {
        watch(object::OPENSHIFT_NETWORK, "", &Options::all().named("cluster"));
    }
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
    for name in kubevirt_ipam_controller::issued_secrets(&settings.images, platform) {
        watch(object::SECRET, operands, &Options::all().named(name));
    }
    let ours = Options::all().labels(format!("{MANAGED_BY_LABEL}={}", names::MANAGED_BY));
    for kind in rendered_kinds(platform) {
        watch(kind, operands, &ours);
    }
    changes
}

/// The schema of a definition is by far its largest part, and nobody reads it.
fn drop_spec(object: &mut Value) {
    if let Some(members) = object.as_object_mut() {
        members.remove("spec");
    }
}
