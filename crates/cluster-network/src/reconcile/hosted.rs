//! The cluster that hosts the control plane: its objects, and conditions of the `HostedControlPlane` (§18.3).

use std::time::SystemTime;

use api::cluster_network::Condition;
use k8s_openapi::jiff::Timestamp;
use kube_kit::{
    apply::{self, Applier},
    cache::Lookup,
    object::{self, Kind, ObjectId},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{Reconciler, Stop};
use crate::{facts::Facts, failures::Level, hosted, messages, names, settings};

/// Objects that upstream's operator applies to the management cluster, and this one does not.
const FORMER: [(Kind, &str); 7] = [
    (object::DEPLOYMENT, "multus-admission-controller"),
    (object::SERVICE, "multus-admission-controller"),
    (object::SERVICE_MONITOR, "monitor-multus-admission-controller"),
    (
        object::RHOBS_SERVICE_MONITOR,
        "monitor-multus-admission-controller",
    ),
    (object::PROMETHEUS_RULE, "prometheus-k8s-rules"),
    (object::SECRET, "ovn-cert"),
    (object::CONFIG_MAP, "ovn-ca"),
];

/// A cluster that the operator writes to, and the owner of its objects there.
pub(super) struct Target<'a> {
    pub(super) applier: &'a Applier,
    pub(super) owner: Value,
    pub(super) is_management: bool,
}

/// The clusters that the operator writes to.
pub(super) struct Targets<'a> {
    pub(super) cluster: Target<'a>,
    pub(super) management: Option<Target<'a>>,
}

impl<'a> Targets<'a> {
    /// The cluster in which an object belongs.
    pub(super) fn of(&self, object: &Value) -> &Target<'a> {
        match &self.management {
            Some(management) if is_hosted(object) => management,
            _ => &self.cluster,
        }
    }
}

/// True for an object of a hosted control plane in the management cluster.
pub(crate) fn is_hosted(object: &Value) -> bool {
    let annotations = &object["metadata"]["annotations"];
    annotations.get(names::CLUSTER_NAME).is_some()
}

impl Reconciler {
    /// The clusters that the operator writes to. `operator` is the operator configuration.
    pub(super) fn targets(&self, operator: &Value, facts: &Facts) -> Targets<'_> {
        let hosted = self.management.as_ref().zip(facts.management.as_ref());
        Targets {
            cluster: Target {
                applier: &self.applier,
                owner: super::apply::owner(operator),
                is_management: false,
            },
            management: hosted.map(|(applier, facts)| Target {
                applier,
                owner: facts.control_plane.owner(),
                is_management: true,
            }),
        }
    }

    /// The applier of the cluster with this workload.
    pub(super) fn applier_of(&self, workload: &ObjectId) -> &Applier {
        let management = self.management.as_ref();
        let has = |applier: &&Applier| matches!(applier.cache().lookup(workload), Lookup::Present(_));
        management.filter(has).unwrap_or(&self.applier)
    }

    /// Records that the management cluster lacks the hosted control plane.
    pub(super) fn without_control_plane(&mut self, settings: &settings::Hosted) -> Stop {
        let message = messages::no_hosted_control_plane(&format!("{}/{}", settings.namespace, settings.name));
        tracing::error!("{message}");
        let (level, now) = (Level::OperatorConfig, Instant::now());
        self.failures.debounced(level, "BootstrapError", message, now);
        // The watch reports the object.
        Stop(None)
    }

    /// Mirrors the conditions of the operator configuration. `None` without a configuration.
    pub(super) async fn mirror_conditions(
        &self,
        conditions: Option<&[Condition]>,
    ) -> Result<(), apply::Error> {
        let (Some(applier), Some(settings)) = (&self.management, &self.settings.hosted) else {
            return Ok(());
        };
        let id = hosted::control_plane_id(settings);
        let Lookup::Present(live) = applier.cache().lookup(&id) else {
            return Ok(());
        };
        let now = Timestamp::try_from(SystemTime::now()).unwrap_or_default();
        let Some(conditions) = hosted::conditions(&live, conditions, now) else {
            return Ok(());
        };
        // Other operators write conditions too: the version prevents the loss of theirs.
        let patch = json!({
            "metadata": { "resourceVersion": live["metadata"]["resourceVersion"] },
            "status": { "conditions": conditions },
        });
        match applier.merge_patch(&id, Some("status"), &patch).await {
            // The watch reports the other change.
            Err(error) if error.is_conflict() => Ok(()),
            done => done.map(drop),
        }
    }

    /// Deletes objects of upstream's operator from the management cluster. Objects without its annotation stay.
    pub(super) async fn prune_former(&self, settings: &settings::Hosted) -> Vec<String> {
        let Some(applier) = &self.management else {
            return Vec::new();
        };
        let mut errors = Vec::new();
        for (kind, name) in FORMER {
            let id = kind.object(Some(&settings.namespace), name);
            match applier.delete_if(&id, is_hosted).await {
                Ok(_) => {}
                Err(error) => errors.push(error.to_string()),
            }
        }
        errors
    }
}
