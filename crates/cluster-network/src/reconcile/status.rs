//! The status of the operator configuration, and the `ClusterOperator` (§10, §11).

use std::{collections::BTreeSet, sync::Arc, time::SystemTime};

use api::cluster_network::{
    SINGLETON,
    cluster_operator::{ClusterOperatorStatus, ObjectReference, OperandVersion},
    operator::{Condition, NetworkStatus},
};
use k8s_openapi::jiff::Timestamp;
use kube_kit::{
    apply,
    cache::Lookup,
    object::{self, ObjectId},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Reconciler, apply::has_owner, hosted::is_hosted};
use crate::{
    conditions::{self, Finding},
    failures::{Failure, Level},
    messages, names,
    names::manager,
    observe,
    ovn::machines,
    watches,
    workloads::{self, Assessment, State},
};

impl Reconciler {
    /// Writes both statuses if they differ from the observed ones.
    pub(super) async fn report_status(&mut self) -> Result<(), apply::Error> {
        let live = self.live(&observe::cluster_operator_id());
        let status = live
            .as_ref()
            .and_then(|live| live.get("status").cloned())
            .unwrap_or_default();
        let before: ClusterOperatorStatus = serde_json::from_value(status).unwrap_or_default();
        let annotation = |key: &str| {
            let annotations = live.as_ref()?.pointer("/metadata/annotations")?;
            annotations.get(key)?.as_str().map(str::to_owned)
        };
        let is_available = before
            .conditions
            .iter()
            .any(|condition| condition.kind == "Available" && condition.status == "True");
        let seen = annotation(names::LAST_SEEN_STATE);
        let state = State::read(seen.as_deref(), is_available);
        let operator = self.live(&observe::operator_config_id());
        let mut assessment = self.assess(&state, operator.as_deref());
        let crashes = self.note_crashes(&assessment.unavailable).await;
        self.crashes.explain(&mut assessment);
        self.note_hung(&assessment).await;

        let recorded = annotation(names::MACHINE_CONFIG_STATE);
        let machines = self.assess_machines(recorded.as_deref());

        let conditions = self.conditions(&assessment, &machines, operator.as_deref(), &before);
        // Before the writes: a status that the API server refuses must not hide a condition from Prometheus.
        self.metrics.set_conditions(&conditions);
        if let Some(operator) = &operator {
            self.write_operator_status(operator, &conditions, &assessment)
                .await?;
        }
        let observed = ObservedOperator {
            live: live.as_deref(),
            status: &before,
            seen,
            recorded,
        };
        let state = (&assessment, &machines);
        self.write_cluster_operator(&observed, &conditions, state, operator.as_deref())
            .await?;
        let now = Instant::now();
        let hung = assessment.look_again.map(|pause| now + pause);
        self.look_again = self
            .failures
            .due(now)
            .into_iter()
            .chain(hung)
            .chain(crashes)
            .chain(self.prober.check().filter(|check| *check > now))
            .min();
        let mirrored = operator.is_some().then_some(conditions.as_slice());
        self.mirror_conditions(mirrored).await
    }

    fn live(&self, id: &ObjectId) -> Option<Arc<Value>> {
        match self.cache().lookup(id) {
            Lookup::Present(object) => Some(object),
            _ => None,
        }
    }

    fn assess(&self, before: &State, operator: Option<&Value>) -> Assessment {
        let label = observe::status_label(self.cache(), &self.settings);
        let counts = |object: &Arc<Value>| {
            object["metadata"]["labels"][names::STATUS_LABEL] == label
                && object.pointer("/metadata/deletionTimestamp").is_none()
        };
        let mut all = observe::workloads(self.cache());
        all.retain(|_, object| operator.is_none() || is_owned(object, operator));
        if let Some(management) = &self.management {
            all.extend(observe::workloads(management.cache()));
        }
        let all: Vec<&Value> = all.values().filter(|it| counts(it)).map(Arc::as_ref).collect();
        workloads::assess(&all, before, &self.settings.version, self.is_applied(), now())
    }

    /// Compares the machine configurations with the pools of machines, and records a degraded pool.
    fn assess_machines(&mut self, recorded: Option<&str>) -> machines::Assessment {
        let pools = self.cache().list(object::MACHINE_CONFIG_POOL);
        let pools: Vec<&Value> = pools.iter().map(Arc::as_ref).collect();
        let found = machines::assess(&machines::read(recorded), self.machines.as_ref(), &pools);
        let level = Level::MachineConfig;
        match &found.degraded {
            Some(message) => self
                .failures
                .immediate(level, "MachineConfig", message, Instant::now()),
            None => self.failures.clear(level),
        }
        found
    }

    /// True if all workloads exist that this process rendered.
    fn is_applied(&self) -> bool {
        let is_workload = |id: &&ObjectId| watches::WITH_STATUS.iter().any(|kind| kind.kind == id.kind);
        let exists = |id: &ObjectId| {
            let applier = self.applier_of(id);
            matches!(applier.cache().lookup(id), Lookup::Present(_))
        };
        self.rendered
            .as_ref()
            .is_some_and(|objects| objects.iter().filter(is_workload).all(exists))
    }

    /// Annotates workloads with a hung rollout, and removes the annotation after progress.
    async fn note_hung(&mut self, assessment: &Assessment) {
        for (id, _) in &assessment.hung {
            self.annotate(id, &json!("")).await;
        }
        for id in &assessment.moving_again {
            self.annotate(id, &Value::Null).await;
        }
        if assessment.hung.is_empty() {
            self.failures.clear(Level::RolloutHung);
        } else {
            let lines: Vec<&str> = assessment.hung.iter().map(|(_, line)| line.as_str()).collect();
            let (level, now) = (Level::RolloutHung, Instant::now());
            self.failures
                .immediate(level, "RolloutHung", lines.join("\n"), now);
        }
    }

    async fn annotate(&self, id: &ObjectId, value: &Value) {
        let applier = self.applier_of(id);
        let Lookup::Present(live) = applier.cache().lookup(id) else {
            return;
        };
        let annotations = live.pointer("/metadata/annotations");
        let is = annotations.and_then(|annotations| annotations.get(names::ROLLOUT_HUNG));
        if is.is_some() == value.is_string() {
            return;
        }
        let patch = json!({ "metadata": { "annotations": { names::ROLLOUT_HUNG: value } } });
        if let Err(error) = applier.merge_patch(id, None, &patch).await {
            tracing::warn!("{error}");
        }
    }

    fn conditions(
        &self,
        assessment: &Assessment,
        machines: &machines::Assessment,
        operator: Option<&Value>,
        cluster_operator: &ClusterOperatorStatus,
    ) -> Vec<Condition> {
        let unreadable = Failure {
            reason: "NoOperConfig",
            message: messages::OPERATOR_CONFIG_UNREADABLE.to_owned(),
        };
        let lines = assessment.progress();
        let deploying = (!lines.is_empty()).then_some(("Deploying", lines.as_str()));
        let machines = machines
            .progressing
            .as_deref()
            .map(|text| ("MachineConfig", text));
        let migrating = self.notes.migration.as_deref().map(|text| ("MTUMigration", text));
        let finding = Finding {
            failure: if operator.is_some() {
                self.failures.current(Instant::now())
            } else {
                Some(&unreadable)
            },
            progressing: machines.or(deploying).or(migrating),
            reached: assessment.reached,
            observability: self.notes.observability.as_ref(),
        };
        let mut before = operator.map(status_of).unwrap_or_default().conditions;
        if !before.iter().any(|condition| condition.kind == "Available") {
            before.clone_from(&cluster_operator.conditions);
        }
        conditions::next(&finding, &before, now())
    }

    async fn write_operator_status(
        &self,
        operator: &Value,
        conditions: &[Condition],
        assessment: &Assessment,
    ) -> Result<(), apply::Error> {
        let before = status_of(operator);
        let mut status = json!({ "conditions": conditions });
        let version = if assessment.reached {
            self.settings.version.clone()
        } else {
            before.version.clone()
        };
        if !version.is_empty() {
            status["version"] = json!(version);
        }
        if before.conditions == conditions && before.version == version {
            return Ok(());
        }
        let object = json!({
            "apiVersion": "operator.openshift.io/v1",
            "kind": "Network",
            "metadata": { "name": SINGLETON },
            "status": status,
        });
        match self
            .applier
            .apply_as(manager::STATUS, &object, Some("status"))
            .await
        {
            Err(error) if error.is_not_found() => Ok(()),
            done => done.map(drop),
        }
    }

    async fn write_cluster_operator(
        &self,
        observed: &ObservedOperator<'_>,
        conditions: &[Condition],
        (assessment, machines): (&Assessment, &machines::Assessment),
        operator: Option<&Value>,
    ) -> Result<(), apply::Error> {
        let (live, before) = (observed.live, observed.status);
        let state = serde_json::to_string(&assessment.state).unwrap_or_default();
        let mut annotations = json!({ names::LAST_SEEN_STATE: state });
        let mut is_new = observed.seen.as_deref() != Some(&state);
        if observed.recorded.is_some() || !machines.recorded.is_empty() {
            let recorded = machines::written(&machines.recorded);
            annotations[names::MACHINE_CONFIG_STATE] = json!(recorded);
            is_new |= observed.recorded.as_ref() != Some(&recorded);
        }
        let known = live
            .and_then(|live| live["metadata"]["annotations"][names::RELATED_CLUSTER_OBJECTS].as_str())
            .map(str::to_owned);
        let related = if self.rendered.is_some() {
            self.related_in_management()
        } else {
            known.clone()
        };
        if let Some(related) = related {
            annotations[names::RELATED_CLUSTER_OBJECTS] = json!(related);
            is_new |= known != Some(related);
        }
        if live.is_none() || is_new {
            let object = json!({
                "apiVersion": "config.openshift.io/v1",
                "kind": "ClusterOperator",
                "metadata": { "name": names::CLUSTER_OPERATOR, "annotations": annotations },
                "spec": {},
            });
            self.applier.apply_as(manager::STATUS, &object, None).await?;
        }
        let versions = if assessment.reached {
            vec![OperandVersion {
                name: "operator".to_owned(),
                version: self.settings.version.clone(),
            }]
        } else {
            before.versions.clone()
        };
        let after = ClusterOperatorStatus {
            conditions: conditions.to_vec(),
            versions,
            related_objects: match &self.rendered {
                Some(objects) => self.related_now(objects, operator),
                None => before.related_objects.clone(),
            },
        };
        if after == *before {
            return Ok(());
        }
        let object = json!({
            "apiVersion": "config.openshift.io/v1",
            "kind": "ClusterOperator",
            "metadata": { "name": names::CLUSTER_OPERATOR },
            "status": after,
        });
        let written = self
            .applier
            .apply_as(manager::STATUS, &object, Some("status"))
            .await;
        written.map(drop)
    }

    /// All objects of the operator in the management cluster, in upstream's format. `None` for a cluster with its own
    /// control plane.
    fn related_in_management(&self) -> Option<String> {
        let cache = self.management.as_ref()?.cache();
        let mut related = Vec::new();
        for kind in watches::rendered(true) {
            let objects = cache.list(kind);
            for object in objects.iter().filter(|object| is_hosted(object)) {
                let id = ObjectId::of(object);
                let namespace = id.namespace.as_deref().unwrap_or_default();
                let (group, plural, name) = (kind.group, kind.plural, &id.name);
                related.push(format!(
                    "{}/{group}/{plural}/{namespace}/{name}",
                    names::MANAGEMENT
                ));
            }
        }
        related.sort();
        related.dedup();
        Some(related.join(","))
    }

    /// All objects of the operator, for tools that collect debug data.
    fn related_now(&self, rendered: &BTreeSet<ObjectId>, operator: Option<&Value>) -> Vec<ObjectReference> {
        let reference = |group: &str, resource: &str, namespace: Option<&str>, name: &str| ObjectReference {
            group: group.to_owned(),
            resource: resource.to_owned(),
            namespace: namespace.unwrap_or_default().to_owned(),
            name: name.to_owned(),
        };
        let mut related = Vec::new();
        for kind in watches::rendered(false) {
            for object in self.cache().list(kind) {
                let labels = &object["metadata"]["labels"];
                let id = ObjectId::of(&object);
                let is_ours = rendered.contains(&id) || is_owned(&object, operator);
                if labels.get(names::PART_LABEL).is_some() && is_ours && !is_hosted(&object) {
                    related.push(reference(
                        kind.group,
                        kind.plural,
                        id.namespace.as_deref(),
                        &id.name,
                    ));
                }
            }
        }
        related.push(reference(
            "",
            "configmaps",
            Some(&self.settings.namespace),
            names::APPLIED,
        ));
        related.push(reference("", "namespaces", None, &self.settings.namespace));
        related.push(reference("operator.openshift.io", "networks", None, SINGLETON));
        related.sort();
        related.dedup();
        related
    }
}

/// The observed `ClusterOperator`.
struct ObservedOperator<'a> {
    live: Option<&'a Value>,
    status: &'a ClusterOperatorStatus,
    /// The annotation with the last seen state of the workloads.
    seen: Option<String>,
    /// The annotation with the machine configurations.
    recorded: Option<String>,
}

/// True if the operator configuration owns the object. Everybody can set the operator's labels on their own objects.
fn is_owned(object: &Value, operator: Option<&Value>) -> bool {
    operator.is_some_and(|operator| has_owner(object, &operator["metadata"]["uid"]))
}

fn status_of(operator: &Value) -> NetworkStatus {
    let status = operator.get("status").cloned().unwrap_or_default();
    serde_json::from_value(status).unwrap_or_default()
}

fn now() -> Timestamp {
    Timestamp::try_from(SystemTime::now()).unwrap_or_default()
}
