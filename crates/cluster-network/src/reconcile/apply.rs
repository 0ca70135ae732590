//! Applies a plan: the record, then the objects in their order. Then it prunes objects that the plan no longer renders.

use std::collections::BTreeSet;

use api::cluster_network::{
    SINGLETON, cluster_operator::ClusterOperatorStatus, config, operator::NetworkSpec,
};
use kube_kit::{
    apply::Applier,
    cache::{Cache, Lookup},
    object::{self, Kind, ObjectId},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Reconciler, Stop,
    hosted::{Target, Targets, is_hosted},
};
use crate::{
    facts::Facts,
    failures::Level,
    messages, names,
    names::manager,
    observe::{self, Stored},
    ovn::machines,
    plan::{self, Plan},
    render::{Part, Rendered},
    watches,
};

/// Kind of the owner of all applied objects.
pub(super) const OWNER_KIND: &str = "Network";

/// Names of the cloud network configuration controller, of upstream's operator.
const CLOUD_CONFIG: &str = "cloud-network-config-controller";

/// Kind that is never pruned: a deleted definition would delete all objects of the users.
const STAY: Kind = object::CUSTOM_RESOURCE_DEFINITION;

impl Reconciler {
    /// Stores the defaults, so that users see the effective configuration (§4.2).
    pub(super) async fn store_operator_config(
        &mut self,
        stored: &Stored<NetworkSpec>,
        plan: &Plan,
    ) -> Result<(), Stop> {
        if plan.filled == stored.spec {
            return Ok(());
        }
        let object = filled_config(stored, &plan.filled);
        let applied = self
            .applier
            .apply_as(manager::OPERATOR_CONFIG, &object, None)
            .await;
        let done =
            applied.map_err(|error| self.failed(Level::OperatorConfig, "UpdateOperatorConfig", &error));
        done.map(drop)
    }

    /// Applies the objects, in spite of single failures, and prunes leftovers. Returns the failure of dashboards: no
    /// other step depends on them, and it is retried.
    pub(super) async fn apply_plan(
        &mut self,
        stored: &Stored<NetworkSpec>,
        plan: &Plan,
        facts: &Facts,
    ) -> Result<Option<String>, Stop> {
        let (level, now) = (Level::OperatorConfig, Instant::now());
        let rendered = &plan.rendered;
        tracing::debug!("Render phase done, rendered {} objects", rendered.objects.len());
        if rendered.failed.is_empty() {
            self.failures.clear(Level::OperatorRender);
        } else {
            let mut texts: Vec<&str> = rendered.failed.iter().map(|(_, text)| text.as_str()).collect();
            // A wrong label of nodes blocks OVN-Kubernetes and kube-proxy.
            texts.dedup();
            let message = texts.join("\n");
            tracing::error!("cannot render everything: {message}");
            self.failures
                .debounced(Level::OperatorRender, "RenderError", message, now);
        }
        let record = plan::record(&plan.applied, &self.settings.namespace);
        let (mut errors, mut dashboards) = (Vec::new(), Vec::new());
        let targets = self.targets(&stored.object, facts);
        for object in std::iter::once(&record).chain(&rendered.objects) {
            if let Err(error) = apply_one(object, targets.of(object)).await {
                let is_dashboard =
                    object["metadata"]["labels"][names::PART_LABEL] == Part::Dashboards.label();
                let errors = if is_dashboard {
                    &mut dashboards
                } else {
                    &mut errors
                };
                errors.push(error);
            }
        }
        if let Err(error) = self.enable_console_plugin(rendered).await {
            errors.push(error);
        }
        errors.extend(self.prune(rendered, &targets).await);
        if !self.has_pruned_former
            && errors.is_empty()
            && rendered.failed.is_empty()
            && let Some(hosted) = &self.settings.hosted
        {
            errors.extend(self.prune_former(hosted).await);
            self.has_pruned_former = errors.is_empty();
        }
        let dashboards = self.dashboards_applied(&dashboards, now);
        self.rendered = Some(applied(rendered));
        // A failed part keeps its objects.
        if !rendered
            .failed
            .iter()
            .any(|(part, _)| *part == Part::DefaultNetwork)
        {
            self.machines = Some(machines::rendered(&rendered.objects));
        }
        if errors.is_empty() {
            return Ok(dashboards);
        }
        let message = errors.join("\n");
        tracing::warn!("{message}");
        self.failures
            .debounced(level, "ApplyOperatorConfig", message.clone(), now);
        Err(Stop(Some(message)))
    }

    /// Records whether the dashboards were applied (§16.1).
    fn dashboards_applied(&mut self, errors: &[String], now: Instant) -> Option<String> {
        let level = Level::DashboardConfig;
        if errors.is_empty() {
            self.failures.clear(level);
            return None;
        }
        let message = messages::dashboards_not_applied(errors);
        tracing::warn!("{message}");
        self.failures
            .debounced(level, "DashboardError", message.clone(), now);
        Some(message)
    }

    /// Prunes leftovers: objects with the operator's label, or among the related objects of an earlier operator (§5.2).
    async fn prune(&self, rendered: &Rendered, targets: &Targets<'_>) -> Vec<String> {
        let (cluster, management) = (&targets.cluster, &targets.management);
        let superfluous = cluster.leftovers(rendered);
        // An earlier operator recorded no parts, so that a failed part may still need any of its objects.
        let mut related = BTreeSet::new();
        if rendered.failed.is_empty() {
            let staying = staying(rendered, cluster.is_management);
            related.extend(self.related());
            related.retain(|id| !superfluous.iter().chain(&staying).any(|other| other.same(id)));
        }
        let mut errors = self.delete(superfluous, cluster, true).await;
        errors.extend(self.delete(related, cluster, false).await);
        if let Some(management) = management {
            let superfluous = management.leftovers(rendered);
            errors.extend(self.delete(superfluous, management, true).await);
        }
        errors
    }

    /// Deletes objects that are not rendered. With `may_be_forged`, the lack of a right is no error: other users can copy
    /// label and owner to objects that this account may not delete.
    async fn delete(
        &self,
        superfluous: BTreeSet<ObjectId>,
        target: &Target<'_>,
        may_be_forged: bool,
    ) -> Vec<String> {
        let mut errors = Vec::new();
        let mut superfluous: Vec<ObjectId> = superfluous.into_iter().collect();
        superfluous.sort_by_key(|id| !leads_to_others(id));
        for id in superfluous {
            if id.kind == STAY.kind {
                continue;
            }
            if let Err(error) = self.disable_console_plugin(&id).await {
                errors.push(error);
                continue;
            }
            let owner_kind = target.owner["kind"].as_str().unwrap_or(OWNER_KIND);
            match target.applier.delete_if_owned(&id, owner_kind).await {
                Ok(outcome) => tracing::info!(%id, ?outcome, "not rendered any more"),
                Err(error) if may_be_forged && error.is_forbidden() => tracing::warn!("{error}"),
                Err(error) => errors.push(error.to_string()),
            }
        }
        errors
    }

    /// Related objects that an earlier operator recorded.
    fn related(&self) -> Vec<ObjectId> {
        let Lookup::Present(operator) = self.cache().lookup(&observe::cluster_operator_id()) else {
            return Vec::new();
        };
        let status = operator.get("status").cloned().unwrap_or_default();
        let status: ClusterOperatorStatus = serde_json::from_value(status).unwrap_or_default();
        let known = |group: &str, plural: &str| {
            let mut kinds = watches::RENDERED.into_iter().chain(watches::RENDERED_IF_SERVED);
            kinds.find(|kind| kind.group == group && kind.plural == plural)
        };
        let related = status.related_objects.iter().filter(|related| {
            let is_record = related.resource == "configmaps" && related.name == names::APPLIED;
            let is_home = related.resource == "namespaces" && related.name == self.settings.namespace;
            // The management cluster keeps this controller, which needs its rights in the hosted cluster.
            let is_cloud = self.settings.hosted.is_some()
                && (related.name.contains(CLOUD_CONFIG) || related.namespace.ends_with(CLOUD_CONFIG));
            !related.name.is_empty() && !is_record && !is_home && !is_cloud
        });
        related
            .filter_map(|related| {
                let kind = known(&related.group, &related.resource)?;
                Some(kind.object(Some(&related.namespace), &related.name))
            })
            .collect()
    }

    /// Writes the status of the cluster configuration (§10.4).
    pub(super) async fn write_cluster_status(
        &mut self,
        cluster: Option<&Stored<config::NetworkSpec>>,
        plan: &Plan,
    ) -> Result<(), Stop> {
        let Some(cluster) = cluster else {
            return Ok(());
        };
        let live = cluster.object.get("status").cloned().unwrap_or_default();
        let before: config::NetworkStatus = serde_json::from_value(live).unwrap_or_default();
        let after = cluster_status(&before, &plan.applied);
        if after == before {
            return Ok(());
        }
        let (mut spec, mut status) = (json!(cluster.spec), json!(after));
        if let Some(fields) = spec.as_object_mut() {
            // Only users own it: a field with another owner would stay when they remove it.
            fields.shift_remove("networkDiagnostics");
            fields.shift_remove("networkObservability");
        }
        if let Some(fields) = status.as_object_mut() {
            fields.shift_remove("conditions");
        }
        let object = json!({
            "apiVersion": "config.openshift.io/v1",
            "kind": OWNER_KIND,
            // The version prevents the loss of a concurrent edit of the specification.
            "metadata": { "name": SINGLETON, "resourceVersion": cluster.version() },
            "spec": spec,
            "status": status,
        });
        let applied = self
            .applier
            .apply_as(manager::OPERATOR_CONFIG, &object, None)
            .await;
        applied
            .map(drop)
            .map_err(|error| self.failed(Level::OperatorConfig, "StatusError", &error))
    }
}

/// The objects of a rendering, without those that wait for other objects.
fn applied(rendered: &Rendered) -> BTreeSet<ObjectId> {
    let is_applied = |object: &&Value| {
        let annotations = &object["metadata"]["annotations"];
        annotations.get(names::CREATE_WAIT).is_none()
    };
    rendered
        .objects
        .iter()
        .filter(is_applied)
        .map(ObjectId::of)
        .collect()
}

/// Applies an object, with regard to its annotations (§5.1).
async fn apply_one(object: &Value, target: &Target<'_>) -> Result<(), String> {
    let Target { applier, owner, .. } = target;
    let id = ObjectId::of(object);
    let annotation = |key: &str| object["metadata"]["annotations"][key].as_str();
    if annotation(names::CREATE_WAIT).is_some() {
        return Ok(());
    }
    let failed = |error: String| {
        if annotation(names::IGNORE_ERRORS).is_some() {
            tracing::info!(%id, error, "ignored");
            return Ok(());
        }
        Err(messages::could_not_apply(&id.to_string(), &error))
    };
    if annotation(names::CREATE_ONLY).is_some() {
        match exists(applier, &id).await {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => return failed(error),
        }
    }
    if let Some(patch) = annotation(names::PRE_PATCH) {
        let patch = serde_json::from_str(patch).map_err(|error| error.to_string())?;
        match applier.strategic_patch(&id, &patch).await {
            Ok(_) => {}
            Err(error) if error.is_not_found() => {}
            Err(error) => return failed(error.cause.to_string()),
        }
    }
    let mut object = object.clone();
    // Definitions of users' objects and shared namespaces outlive the configuration.
    if id.kind != STAY.kind && annotation(names::CREATE_ONLY).is_none() {
        object["metadata"]["ownerReferences"] = json!([owner]);
    }
    match applier.apply_as(manager::OPERATOR_CONFIG, &object, None).await {
        Ok(outcome) => {
            tracing::debug!(%id, ?outcome, "applied");
            Ok(())
        }
        Err(error) => {
            let mut text = error.cause.to_string();
            if id.kind == "NetworkAttachmentDefinition" && text.contains("namespaces") {
                text = format!("{text}: {}", messages::NAMESPACE_HINT);
            }
            failed(text)
        }
    }
}

async fn exists(applier: &Applier, id: &ObjectId) -> Result<bool, String> {
    match applier.cache().lookup(id) {
        Lookup::Present(_) => Ok(true),
        _ => match applier.get(id).await {
            Ok(live) => Ok(live.is_some()),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error.cause.to_string()),
        },
    }
}

impl Target<'_> {
    fn leftovers(&self, rendered: &Rendered) -> BTreeSet<ObjectId> {
        let cache = self.applier.cache();
        leftovers(rendered, cache, self.is_management, &self.owner["uid"])
    }
}

/// Objects of a cluster that a plan does not render any more: they have the operator's label, and an owner with this UID.
/// A part that cannot be rendered keeps its objects.
pub(crate) fn leftovers(
    rendered: &Rendered,
    cache: &Cache,
    is_management: bool,
    owner: &Value,
) -> BTreeSet<ObjectId> {
    let failed: Vec<&str> = rendered.failed.iter().map(|(part, _)| part.label()).collect();
    let mut found = BTreeSet::new();
    for kind in watches::rendered(is_management) {
        for object in cache.list(kind) {
            let part = object["metadata"]["labels"][names::PART_LABEL]
                .as_str()
                .unwrap_or_default();
            // An invalid network keeps only its own definition.
            let is_kept = failed.contains(&part) && part != Part::AdditionalNetworks.label();
            let is_there = is_hosted(&object) == is_management;
            // Everybody can set the label on their own objects.
            let is_ours = has_owner(&object, owner);
            if !part.is_empty() && !is_kept && is_there && is_ours {
                found.insert(ObjectId::of(&object));
            }
        }
    }
    let staying = staying(rendered, is_management);
    found.retain(|id| !staying.iter().any(|other| other.same(id)));
    found
}

/// Objects of a cluster that a plan renders, or keeps.
fn staying(rendered: &Rendered, is_management: bool) -> Vec<ObjectId> {
    let belongs = |object: &&Value| is_hosted(object) == is_management;
    let wanted = rendered.objects.iter().filter(belongs).map(ObjectId::of);
    wanted.chain(rendered.kept.iter().cloned()).collect()
}

/// True if an owner of the object has this UID.
pub(super) fn has_owner(object: &Value, uid: &Value) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array();
    owners.into_iter().flatten().any(|owner| owner["uid"] == *uid)
}

/// The next status of the cluster configuration. Another network provider reports its own fields.
fn cluster_status(before: &config::NetworkStatus, applied: &NetworkSpec) -> config::NetworkStatus {
    let mut status = before.clone();
    let kind = &applied.default_network.kind;
    let is_ours = [names::OVN_KUBERNETES, names::WEFT].contains(&kind.as_str());
    if is_ours || status.network_type.is_empty() {
        status.network_type.clone_from(kind);
    }
    if is_ours || status.service_network.is_empty() {
        status.service_network.clone_from(&applied.service_network);
    }
    if is_ours || status.cluster_network.is_empty() {
        status.cluster_network.clone_from(&applied.cluster_network);
    }
    let ovn = applied.default_network.ovn_kubernetes_config.as_ref();
    if kind == names::OVN_KUBERNETES {
        status.cluster_network_mtu = ovn.and_then(|ovn| ovn.mtu).unwrap_or_default();
    }
    status.migration = applied
        .migration
        .as_ref()
        .map(|migration| config::NetworkMigration {
            network_type: migration.network_type.clone(),
            mtu: migration.mtu.clone(),
        });
    status
}

/// True for an object through which the API server or the web console calls the pods of other objects: it is deleted
/// before them.
fn leads_to_others(id: &ObjectId) -> bool {
    [object::VALIDATING_WEBHOOK_CONFIGURATION, object::CONSOLE_PLUGIN]
        .iter()
        .any(|kind| kind.kind == id.kind)
}

/// Owner reference to the operator configuration, in all applied objects.
pub(super) fn owner(operator: &Value) -> Value {
    json!({
        "apiVersion": "operator.openshift.io/v1",
        "kind": OWNER_KIND,
        "name": SINGLETON,
        "uid": operator["metadata"]["uid"],
        "controller": true,
        "blockOwnerDeletion": true,
    })
}

/// The operator configuration with its defaults. All fields are written, and the resource version prevents the loss of
/// a concurrent edit.
fn filled_config(stored: &Stored<NetworkSpec>, filled: &NetworkSpec) -> Value {
    let mut spec = json!(filled);
    if let Some(fields) = spec.as_object_mut() {
        // Other field managers own both fields (§3.2).
        fields.shift_remove("migration");
        if !stored.spec.disable_network_diagnostics {
            fields.shift_remove("disableNetworkDiagnostics");
        }
    }
    json!({
        "apiVersion": "operator.openshift.io/v1",
        "kind": OWNER_KIND,
        "metadata": { "name": SINGLETON, "resourceVersion": stored.version() },
        "spec": spec,
    })
}

#[cfg(test)]
mod tests;
