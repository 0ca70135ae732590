//! The Job that probes the MTU of the nodes (§4.3). The operator watches the ConfigMap with the result.

use std::time::Duration;

use api::cluster_network::operator::NetworkSpec;
use kube_kit::{
    cache::Lookup,
    object::{self, ObjectId},
};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    Reconciler, Stop,
    apply::{OWNER_KIND, owner},
};
use crate::{facts::Facts, failures::Level, names, observe::Stored, probe, render};

/// Interval of checks of the running Job, which is not watched. It may fail before the nodes have routes, and users may
/// delete it.
const CHECK: Duration = Duration::from_secs(30);

/// State of the Job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Prober {
    /// This process has neither started nor deleted the Job.
    #[default]
    Unknown,
    /// The Job runs. It is checked at this time.
    Running(Instant),
    /// The result exists, and the Job is deleted.
    Done,
}

impl Prober {
    /// Time of the next check of the Job. A configuration that needs no Job any more leaves it in the past.
    pub(super) fn check(self) -> Option<Instant> {
        match self {
            Self::Running(check) => Some(check),
            Self::Unknown | Self::Done => None,
        }
    }
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
        let now = Instant::now();
        let done = match (has_result, self.prober) {
            (true, Prober::Done) => return Ok(()),
            (false, Prober::Running(check)) if now < check => return Ok(()),
            (true, _) => self.delete_prober(facts).await.map(|()| Prober::Done),
            (false, _) => {
                let started = self.start_prober(stored, facts).await;
                started.map(|()| Prober::Running(now + CHECK))
            }
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
                match self.applier.get(&id).await.map_err(|error| error.to_string())? {
                    Some(live) if has_failed(&live) => {
                        tracing::warn!("Job {} has failed, and starts again", id.name);
                        let deleted = self.applier.delete_if_owned(&id, OWNER_KIND).await;
                        deleted.map_err(|error| error.to_string())?;
                    }
                    Some(_) => continue,
                    None => tracing::info!("starting Job {}, which finds out the MTU of the nodes", id.name),
                }
            }
            object["metadata"]["ownerReferences"] = json!([owner(&stored.object)]);
            let applied = self
                .applier
                .apply_as(names::manager::OPERATOR_CONFIG, &object, None)
                .await;
            applied.map_err(|error| error.to_string())?;
        }
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
                .delete_if_owned(&ObjectId::of(object), OWNER_KIND)
                .await;
            deleted.map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// True if the Job has used up its attempts.
fn has_failed(job: &Value) -> bool {
    let conditions = job["status"]["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|condition| condition["type"] == "Failed" && condition["status"] == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn job_has_failed_once_its_condition_says_so() {
        let job = |kind: &str, status: &str| json!({ "status": { "conditions": [{ "type": "Suspended", "status": "True" }, { "type": kind, "status": status }] } });
        assert!(has_failed(&job("Failed", "True")));
        assert!(!has_failed(&job("Failed", "False")));
        assert!(!has_failed(&job("Complete", "True")));
        assert!(!has_failed(&json!({})));
    }
}
