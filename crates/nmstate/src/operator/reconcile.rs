//! Makes what is deployed what the `NMState` asks for: reads, renders, applies, and says how it is going.

use api::node_state::NMState;
use k8s_openapi::jiff::Timestamp;
use kube::core::DynamicObject;
use kube::core::params::{Patch, PatchParams};
use kube::{Api, Client};
use kube_kit::apply::{self, Applier};
use kube_kit::cache::{Blocked, Cache, Lookup, Object};
use kube_kit::client;
use kube_kit::merge::Policy;
use kube_kit::object::{self, ObjectId};
use serde_json::{Value, json};
use thiserror::Error;

use super::facts::{self, Known};
use super::files::{self, Files};
use super::render::{self, Facts, render};
use super::settings::Settings;
use super::status::{self, Outcome};
use super::{messages, names, replicas};
use crate::tls_profile::{self, InvalidProfile};

/// Why something can't be deployed now.
#[derive(Debug, Error)]
pub enum Error {
    /// An object can't be read, applied or deleted.
    #[error(transparent)]
    Apply(#[from] apply::Error),
    /// Nothing can be rendered.
    #[error(transparent)]
    Render(#[from] render::Error),
    /// Nodes can't be counted.
    #[error(transparent)]
    Facts(#[from] facts::Error),
    /// The cluster's TLS profile can't be served.
    #[error(transparent)]
    Profile(#[from] InvalidProfile),
    /// The `NMState` has not the form of its kind.
    #[error("malformed NMState")]
    Malformed(#[from] serde_json::Error),
    /// The status can't be written.
    #[error("cannot write the status: {}", client::message(.0))]
    Status(#[source] Box<kube::Error>),
}

impl From<files::Error> for Error {
    fn from(error: files::Error) -> Self {
        Self::Render(error.into())
    }
}

/// Reconciles, one after the other.
pub struct Reconciler {
    applier: Applier,
    settings: Settings,
    known: Known,
    /// Whether what OpenShift has no need of was looked for.
    tidied: bool,
}

impl Reconciler {
    /// Reads what the watches of this cache tell.
    pub fn new(client: Client, cache: Cache, settings: Settings) -> Self {
        Self {
            applier: Applier::with_cache(client, Policy::owned_by(names::OWNER_KIND), cache),
            settings,
            known: Known::default(),
            tidied: false,
        }
    }

    /// Does what there is to do now.
    ///
    /// # Errors
    /// When something could not be done; it is to be tried again.
    pub async fn reconcile(&mut self) -> Result<(), Error> {
        let mut wishes = by_age(&self.applier.cache().list(object::NMSTATE)).into_iter();
        let Some(chosen) = wishes.next() else {
            // What belonged to it goes with it.
            return Ok(());
        };
        let mut undeleted = None;
        for other in wishes {
            let id = ObjectId::of(&other);
            tracing::info!(name = id.name, "{}", messages::ANOTHER);
            // The chosen one is deployed even if another one can't be deleted.
            if let Err(error) = self.applier.delete(&id).await {
                undeleted.get_or_insert(error);
            }
        }
        let deployed = self.deploy(&chosen).await;
        let outcome = match &deployed {
            Ok(outcome) => outcome.clone(),
            Err(error) => Outcome::Failed(client::chain(error)),
        };
        self.tell(&chosen, &outcome).await?;
        deployed?;
        match undeleted {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// Writes a failure that names these watches into the status while the first lists are not complete, so that nothing
    /// can be reconciled. Only the watch of the `NMState` is needed for that.
    pub async fn report_blocked(&self, blocked: &[Blocked]) {
        let cache = self.applier.cache();
        if blocked.is_empty() || !cache.serves(object::NMSTATE) {
            return;
        }
        let Some(chosen) = by_age(&cache.list(object::NMSTATE)).into_iter().next() else {
            return;
        };
        let lines: Vec<_> = blocked.iter().map(ToString::to_string).collect();
        if let Err(error) = self.tell(&chosen, &Outcome::Failed(lines.join("\n"))).await {
            let error = client::chain(&error);
            tracing::warn!(error, "cannot write the status about the watches");
        }
    }

    async fn deploy(&mut self, wish: &Value) -> Result<Outcome, Error> {
        let wish: NMState = serde_json::from_value(wish.clone())?;
        let (facts, ignored) = self.facts(&wish).await?;
        let files = match &self.settings.manifests {
            Some(directory) => Files::from_directory(directory)?,
            None => Files::embedded(),
        };
        let objects = render(&wish, &self.settings, &facts, &files)?;
        let mut first = None;
        for object in &objects {
            match self.applier.apply(object).await {
                Ok(_) => {}
                Err(error) if error.is_unknown_kind() => {
                    tracing::debug!(%error, "left out");
                }
                // One that can't be applied keeps none of the others.
                Err(error) => {
                    first.get_or_insert(error);
                }
            }
        }
        if let Some(error) = first {
            return Err(error.into());
        }
        if facts.openshift {
            self.tidy_up().await?;
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

    /// What decides beside the `NMState`, and what of the TLS profile can't be served.
    async fn facts(&mut self, wish: &NMState) -> Result<(Facts, Option<String>), Error> {
        let client = self.applier.client().clone();
        let openshift = self.known.openshift(&client).await;
        let reader = object::CLUSTER_ROLE.object(None, names::CLUSTER_READER);
        let cluster_reader = matches!(self.applier.cache().lookup(&reader), Lookup::Present(_));
        let selector = render::infrastructure_selector(&wish.spec);
        let taints = self.known.taints(&client, &selector).await?;
        let tolerations = render::infrastructure_tolerations(&wish.spec);
        let dedicated_nodes = replicas::dedicated(taints.iter().map(Vec::as_slice), &tolerations);
        let mut facts = Facts {
            openshift,
            cluster_reader,
            dedicated_nodes,
            api_ports: self.known.api_ports(&client).await,
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

    /// Where OpenShift issues certificates, what issued them before goes.
    async fn tidy_up(&mut self) -> Result<(), Error> {
        if self.tidied {
            return Ok(());
        }
        let namespace = Some(self.settings.handler_namespace.as_str());
        let deployment = object::DEPLOYMENT.object(namespace, &self.settings.name(names::CERT_MANAGER));
        let secret = object::SECRET.object(namespace, &self.settings.name(names::WEBHOOK));
        for id in [deployment, secret] {
            self.applier.delete(&id).await?;
        }
        self.tidied = true;
        Ok(())
    }

    /// Has the console show the plugin, if it was deployed.
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
        let plugins = console.pointer("/spec/plugins").and_then(Value::as_array);
        let mut plugins = plugins.cloned().unwrap_or_default();
        if plugins.iter().any(|known| known == plugin) {
            return Ok(());
        }
        plugins.push(json!(plugin));
        if !console["spec"].is_object() {
            console["spec"] = json!({});
        }
        console["spec"]["plugins"] = Value::Array(plugins);
        self.applier.store(&console).await?;
        Ok(())
    }

    /// Says how it is going, if that is something new.
    async fn tell(&self, wish: &Value, outcome: &Outcome) -> Result<(), Error> {
        let before = wish.pointer("/status/conditions").cloned();
        let before = before.and_then(|conditions| serde_json::from_value(conditions).ok());
        let before: Vec<_> = before.unwrap_or_default();
        let Some(after) = status::conditions(&before, outcome, Timestamp::now()) else {
            return Ok(());
        };
        let name = ObjectId::of(wish).name;
        let api: Api<DynamicObject> =
            Api::all_with(self.applier.client().clone(), &object::NMSTATE.api_resource());
        let parameters = PatchParams::apply(names::FIELD_OWNER).force();
        let patch = Patch::Apply(status::patch(&name, &after));
        match api.patch_status(&name, &parameters, &patch).await {
            Ok(_) => Ok(()),
            // It was deleted meanwhile.
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(Error::Status(Box::new(error))),
        }
    }
}

/// The ones that are not being deleted, the oldest first, which is the one that counts. Among those of one second, one
/// that was already looked after, then the first by name.
fn by_age(wishes: &[Object]) -> Vec<Value> {
    let text = |wish: &Value, pointer: &str| {
        let text = wish.pointer(pointer).and_then(Value::as_str);
        text.unwrap_or_default().to_owned()
    };
    let mut wishes: Vec<Value> = wishes
        .iter()
        .filter(|wish| wish.pointer("/metadata/deletionTimestamp").is_none())
        .map(|wish| Value::clone(wish))
        .collect();
    wishes.sort_by_key(|wish| {
        (
            text(wish, "/metadata/creationTimestamp"),
            wish.pointer("/status/conditions/0").is_none(),
            text(wish, "/metadata/name"),
        )
    });
    wishes
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    // nmstate#69, the choice
    #[test]
    fn the_oldest_counts_whatever_its_name() {
        let wish = |name: &str, second: u8, more: Value| {
            let at = format!("2026-01-01T00:00:{second:02}Z");
            let mut wish = json!({ "metadata": { "name": name, "creationTimestamp": at } });
            for (key, value) in more.as_object().into_iter().flatten() {
                wish[key] = value.clone();
            }
            Arc::new(wish)
        };
        let names = |wishes: Vec<Object>| -> Vec<String> {
            by_age(&wishes)
                .iter()
                .map(|wish| ObjectId::of(wish).name)
                .collect()
        };
        let known = json!({ "status": { "conditions": [{}] } });
        let mut leaving = Value::clone(&wish("leaving", 1, json!({})));
        leaving["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:01:00Z");
        assert_eq!(
            names(vec![
                wish("a", 5, json!({})),
                wish("b", 4, json!({})),
                wish("c", 4, known),
                Arc::new(leaving),
            ]),
            ["c", "b", "a"]
        );
        assert!(names(vec![]).is_empty());
    }
}
