//! Reconciles: reads the `NMState`, renders, applies, and writes the status.

use api::node_state::NMState;
use k8s_openapi::jiff::Timestamp;
use kube::core::DynamicObject;
use kube::core::params::{Patch, PatchParams};
use kube::{Api, Client};
use kube_kit::apply::{self, Applier};
use kube_kit::cache::{Blocked, Cache, Lookup, Object};
use kube_kit::client;
use kube_kit::console::plugins_after;
use kube_kit::merge::Policy;
use kube_kit::object::{self, ObjectId};
use serde_json::{Value, json};
use thiserror::Error;

use super::facts::{self, FactCache};
use super::files::{self, Files};
use super::render::{self, Facts, render};
use super::settings::Settings;
use super::status::{self, Outcome};
use super::{messages, names, replicas};
use crate::tls_profile::{self, InvalidProfile};

/// A reconcile failed.
#[derive(Debug, Error)]
pub(crate) enum Error {
    /// An object cannot be read, applied or deleted.
    #[error(transparent)]
    Apply(#[from] apply::Error),
    /// The objects cannot be rendered.
    #[error(transparent)]
    Render(#[from] render::Error),
    /// The nodes cannot be listed.
    #[error(transparent)]
    Facts(#[from] facts::Error),
    /// The cluster's TLS profile cannot be used.
    #[error(transparent)]
    Profile(#[from] InvalidProfile),
    /// The `NMState` is malformed.
    #[error("malformed NMState")]
    Malformed(#[from] serde_json::Error),
    /// The status cannot be written.
    #[error("cannot write the status: {}", client::message(.0))]
    Status(#[source] Box<kube::Error>),
}

impl From<files::Error> for Error {
    fn from(error: files::Error) -> Self {
        Self::Render(error.into())
    }
}

/// Reconciles the `NMState`.
pub(crate) struct Reconciler {
    applier: Applier,
    settings: Settings,
    facts: FactCache,
    /// Whether objects that OpenShift does not need were deleted.
    cleaned_up: bool,
}

impl Reconciler {
    /// Creates a reconciler that reads this cache.
    pub(crate) fn new(client: Client, cache: Cache, settings: Settings) -> Self {
        Self {
            applier: Applier::with_cache(client, Policy::owned_by(names::OWNER_KIND), cache),
            settings,
            facts: FactCache::default(),
            cleaned_up: false,
        }
    }

    /// Reconciles once.
    pub(crate) async fn reconcile(&mut self) -> Result<(), Error> {
        let mut nmstates = by_age(&self.applier.cache().list(object::NMSTATE)).into_iter();
        let Some(chosen) = nmstates.next() else {
            // The garbage collector deletes the objects of a deleted NMState.
            return Ok(());
        };
        let mut undeleted = None;
        for other in nmstates {
            let id = ObjectId::of(&other);
            tracing::info!(name = id.name, "{}", messages::ANOTHER);
            // The chosen one is deployed even if the deletion of another one fails.
            if let Err(error) = self.applier.delete(&id).await {
                undeleted.get_or_insert(error);
            }
        }
        let deployed = self.deploy(&chosen).await;
        let outcome = match &deployed {
            Ok(outcome) => outcome.clone(),
            Err(error) => Outcome::Failed(client::chain(error)),
        };
        self.write_status(&chosen, &outcome).await?;
        deployed?;
        match undeleted {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// Writes the failed watches into the status while the first lists are incomplete, so that nothing can be
    /// reconciled. Only the watch of the `NMState` is needed for that.
    pub(crate) async fn report_blocked(&self, blocked: &[Blocked]) {
        let cache = self.applier.cache();
        if blocked.is_empty() || !cache.serves(object::NMSTATE) {
            return;
        }
        let Some(chosen) = by_age(&cache.list(object::NMSTATE)).into_iter().next() else {
            return;
        };
        let lines: Vec<_> = blocked.iter().map(ToString::to_string).collect();
        if let Err(error) = self
            .write_status(&chosen, &Outcome::Failed(lines.join("\n")))
            .await
        {
            let error = client::chain(&error);
            tracing::warn!(error, "cannot write the failed watches into the status");
        }
    }

    async fn deploy(&mut self, nmstate: &Value) -> Result<Outcome, Error> {
        let nmstate: NMState = serde_json::from_value(nmstate.clone())?;
        let (facts, ignored) = self.facts(&nmstate).await?;
        let files = match &self.settings.manifests {
            Some(directory) => Files::from_directory(directory)?,
            None => Files::embedded(),
        };
        let objects = render(&nmstate, &self.settings, &facts, &files)?;
        let mut first = None;
        for object in &objects {
            match self.applier.apply(object).await {
                Ok(_) => {}
                Err(error) if error.is_unknown_kind() => {
                    tracing::debug!(%error, "skipping an object of an unknown kind");
                }
                // A failed object does not stop the others.
                Err(error) => {
                    first.get_or_insert(error);
                }
            }
        }
        if let Some(error) = first {
            return Err(error.into());
        }
        if facts.openshift {
            self.clean_up().await?;
            self.enable_plugin(&objects).await?;
        }
        let workloads: Vec<(ObjectId, Option<Object>)> = objects
            .iter()
            // A workload without replicas has no pods to wait for.
            .filter(|object| object["spec"]["replicas"] != 0)
            .map(ObjectId::of)
            .filter(|id| [object::DAEMON_SET.kind, object::DEPLOYMENT.kind].contains(&id.kind.as_str()))
            .map(|id| match self.applier.cache().lookup(&id) {
                Lookup::Present(object) => (id, Some(object)),
                Lookup::Absent | Lookup::Unknown => (id, None),
            })
            .collect();
        let seen = workloads.iter().map(|(id, object)| (id, object.as_deref()));
        let lines = status::deploying(seen);
        if lines.is_empty() {
            return Ok(Outcome::Deployed { ignored });
        }
        Ok(Outcome::Deploying(lines))
    }

    /// Reads the facts, and the unsupported entries of the TLS profile.
    async fn facts(&mut self, nmstate: &NMState) -> Result<(Facts, Option<String>), Error> {
        let client = self.applier.client().clone();
        let openshift = self.facts.openshift(&client).await;
        let reader = object::CLUSTER_ROLE.object(None, names::CLUSTER_READER);
        let cluster_reader = matches!(self.applier.cache().lookup(&reader), Lookup::Present(_));
        let selector = render::infrastructure_selector(&nmstate.spec);
        let taints = self.facts.taints(&client, &selector).await?;
        let tolerations = render::infrastructure_tolerations(&nmstate.spec);
        let dedicated_nodes = replicas::dedicated(taints.iter().map(Vec::as_slice), &tolerations);
        let mut facts = Facts {
            openshift,
            cluster_reader,
            dedicated_nodes,
            api_ports: self.facts.api_ports(&client).await,
            tls_profile: None,
        };
        if !openshift {
            return Ok((facts, None));
        }
        let id = object::OPENSHIFT_API_SERVER.object(None, names::OPENSHIFT_CLUSTER);
        let server = match self.applier.cache().lookup(&id) {
            Lookup::Present(server) => Some(Value::clone(&server)),
            Lookup::Absent => None,
            Lookup::Unknown => match self.applier.get(&id).await {
                Err(error) if error.is_unknown_kind() => None,
                answer => answer?,
            },
        };
        let given = server
            .as_ref()
            .and_then(|server| server.pointer("/spec/tlsSecurityProfile"));
        let profile = tls_profile::parse(given)?;
        let ignored = profile.settings()?.ignored;
        facts.tls_profile = Some(profile.to_json());
        Ok((facts, ignored))
    }

    /// Deletes our certificate manager where OpenShift issues the certificates.
    async fn clean_up(&mut self) -> Result<(), Error> {
        if self.cleaned_up {
            return Ok(());
        }
        let namespace = Some(self.settings.handler_namespace.as_str());
        let deployment = object::DEPLOYMENT.object(namespace, &self.settings.name(names::CERT_MANAGER));
        let secret = object::SECRET.object(namespace, &self.settings.name(names::WEBHOOK));
        for id in [deployment, secret] {
            self.applier.delete(&id).await?;
        }
        self.cleaned_up = true;
        Ok(())
    }

    /// Enables the plugin in the console, if it was deployed.
    async fn enable_plugin(&self, objects: &[Value]) -> Result<(), Error> {
        let plugin = &self.settings.plugin.name;
        if !objects
            .iter()
            .any(|object| object["kind"] == object::CONSOLE_PLUGIN.kind)
        {
            return Ok(());
        }
        let id = object::OPENSHIFT_CONSOLE.object(None, names::OPENSHIFT_CLUSTER);
        let mut console = match self.applier.get(&id).await {
            Ok(Some(console)) => console,
            Ok(None) => return Ok(()),
            Err(error) if error.is_unknown_kind() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        let Some(plugins) = plugins_after(&console, plugin, true) else {
            return Ok(());
        };
        if !console["spec"].is_object() {
            console["spec"] = json!({});
        }
        console["spec"]["plugins"] = Value::Array(plugins);
        self.applier.store(&console).await?;
        Ok(())
    }

    /// Writes the conditions of an outcome, if they differ.
    async fn write_status(&self, nmstate: &Value, outcome: &Outcome) -> Result<(), Error> {
        let before = nmstate.pointer("/status/conditions").cloned();
        let before = before.and_then(|conditions| serde_json::from_value(conditions).ok());
        let before: Vec<_> = before.unwrap_or_default();
        let Some(after) = status::conditions(&before, outcome, Timestamp::now()) else {
            return Ok(());
        };
        let name = ObjectId::of(nmstate).name;
        let api: Api<DynamicObject> =
            Api::all_with(self.applier.client().clone(), &object::NMSTATE.api_resource());
        let parameters = PatchParams::apply(names::FIELD_OWNER).force();
        let patch = Patch::Apply(status::patch(&name, &after));
        match api.patch_status(&name, &parameters, &patch).await {
            Ok(_) => Ok(()),
            // The NMState was deleted meanwhile.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(Error::Status(Box::new(error))),
        }
    }
}

/// The `NMState`s that are not being deleted, in the order in which one is chosen: the oldest, then one with
/// conditions, then the first by name.
fn by_age(nmstates: &[Object]) -> Vec<Value> {
    let text = |nmstate: &Value, pointer: &str| {
        let text = nmstate.pointer(pointer).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let mut nmstates: Vec<Value> = nmstates
        .iter()
        .filter(|nmstate| nmstate.pointer("/metadata/deletionTimestamp").is_none())
        .map(|nmstate| Value::clone(nmstate))
        .collect();
    nmstates.sort_by_key(|nmstate| {
        (
            text(nmstate, "/metadata/creationTimestamp"),
            nmstate.pointer("/status/conditions/0").is_none(),
            text(nmstate, "/metadata/name"),
        )
    });
    nmstates
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    // nmstate#69, the choice
    #[test]
    fn oldest_nmstate_is_chosen() {
        let nmstate = |name: &str, second: u8, more: Value| {
            let at = format!("2026-01-01T00:00:{second:02}Z");
            let mut nmstate = json!({ "metadata": { "name": name, "creationTimestamp": at } });
            for (key, value) in more.as_object().into_iter().flatten() {
                nmstate[key] = value.clone();
            }
            Arc::new(nmstate)
        };
        let names = |nmstates: Vec<Object>| -> Vec<String> {
            by_age(&nmstates)
                .iter()
                .map(|nmstate| ObjectId::of(nmstate).name)
                .collect()
        };
        let known = json!({ "status": { "conditions": [{}] } });
        let mut leaving = Value::clone(&nmstate("leaving", 1, json!({})));
        leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:01:00Z");
        assert_eq!(
            names(vec![
                nmstate("a", 5, json!({})),
                nmstate("b", 4, json!({})),
                nmstate("c", 4, known),
                Arc::new(leaving),
            ]),
            ["c", "b", "a"]
        );
        assert!(names(vec![]).is_empty());
    }
}
