//! The Job that probes the MTU of the nodes (§4.3). The operator watches the ConfigMap with the result.

use api::cluster_network::operator::NetworkSpec;
use kube_kit::{
    cache::Lookup,
    object::{self, ObjectId},
};
use serde_json::json;
use tokio::time::Instant;

use super::{Reconciler, Stop, apply::owner};
use crate::{facts::Facts, failures::Level, names, observe::Stored, probe, render};

/// State of the Job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Prober {
    /// This process has neither started nor deleted the Job.
    #[default]
    Unknown,
    /// The Job runs.
    Running,
    /// The result exists, and the Job is deleted.
    Done,
}

impl Reconciler {
    /// Starts the Job if OVN-Kubernetes needs the MTU of the nodes. Deletes the Job after its result.
    pub(super) async fn probe_mtu(
        &mut self,
        stored: &Stored<NetworkSpec>,
        spec: &NetworkSpec,
        facts: &Facts,
    ) -> Result<(), Stop> {
        if !spec
            .default_network
            .kind
            .eq_ignore_ascii_case(names::OVN_KUBERNETES)
        {
            return Ok(());
        }
        let result = object::CONFIG_MAP.object(Some(&self.settings.namespace), names::MTU);
        let has_result =
            facts.host_mtu.is_some() || matches!(self.cache().lookup(&result), Lookup::Present(_));
        let done = match (has_result, self.prober) {
            (true, Prober::Done) | (false, Prober::Running) => return Ok(()),
            (true, _) => self.delete_prober(facts).await.map(|()| Prober::Done),
            (false, _) => self.start_prober(stored, facts).await.map(|()| Prober::Running),
        };
        match done {
            Ok(state) => {
                self.prober = state;
                Ok(())
            }
            Err(error) => {
                let message = format!("Failed to probe MTU: {error}");
                let (level, now) = (Level::OperatorConfig, Instant::now());
                self.failures
                    .debounced(level, "MTUProbeFailed", message.clone(), now);
                Err(Stop(Some(message)))
            }
        }
    }

    async fn start_prober(&self, stored: &Stored<NetworkSpec>, facts: &Facts) -> Result<(), String> {
        let objects = render::mtu_prober(facts, &self.settings).map_err(|error| error.to_string())?;
        for mut object in objects {
            let id = ObjectId::of(&object);
            // The pod template of a Job is immutable.
            if id.kind == object::JOB.kind {
                let live = self.applier.get(&id).await.map_err(|error| error.to_string())?;
                if live.is_some() {
                    continue;
                }
            }
            object["metadata"]["ownerReferences"] = json!([owner(&stored.object)]);
            let applied = self
                .applier
                .apply_as(names::manager::OPERATOR_CONFIG, &object, None)
                .await;
            applied.map_err(|error| error.to_string())?;
        }
        tracing::info!("started Job mtu-prober, which finds out the MTU of the nodes");
        Ok(())
    }

    async fn delete_prober(&self, facts: &Facts) -> Result<(), String> {
        let result = object::CONFIG_MAP.object(Some(&self.settings.namespace), names::MTU);
        if let Lookup::Present(map) = self.cache().lookup(&result) {
            let nodes = probe::outliers(&map);
            if !nodes.is_empty() {
                tracing::warn!(
                    ?nodes,
                    "the MTU of these nodes is less than that of others, and counts for all"
                );
            }
        }
        let objects = render::mtu_prober(facts, &self.settings).map_err(|error| error.to_string())?;
        for object in objects.iter().rev() {
            let deleted = self
                .applier
                .delete_if_owned(&ObjectId::of(object), "Network")
                .await;
            deleted.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}
