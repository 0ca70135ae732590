//! Reviews of created pods (kubemacpool §9.2, §9.3).

use api::kubevirt;
use cni::mac::{InvalidMac, Mac};
use serde::Deserialize;
use serde_json::{Map, Value};
use webhook::admission::{Change, Operation, Request, Verdict};

use crate::annotation::{self, Element};
use crate::decide::{self, Context, Metadata, Texts};
use crate::messages;
use crate::names;
use crate::pool::{Claimant, Draft, Holding, Kind, Owner, Pending, Pool, RangeIsFull};

/// The review of a pod with networks.
#[derive(Debug)]
pub(crate) struct Review<'r> {
    request: &'r Request,
    claimant: Claimant,
    annotations: Texts,
    networks: Vec<Element>,
    machine: Option<Owner>,
}

/// The pod cannot get addresses.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
enum Refusal {
    #[error(transparent)]
    Invalid(#[from] InvalidMac),
    #[error(transparent)]
    Full(#[from] RangeIsFull),
    #[error("{}", messages::refused_duplicate(.0))]
    Duplicate(String),
}

#[derive(Deserialize)]
struct Pod {
    metadata: Option<Metadata>,
}

/// The virtual machine of a pod whose owner is an instance. An instance may have no virtual machine: then the pod is an
/// ordinary one. `owners` are kinds and names.
pub(crate) fn machine<'a>(
    namespace: &str,
    owners: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Option<Owner> {
    owners
        .into_iter()
        .find(|(kind, _)| *kind == kubevirt::INSTANCE)
        .map(|(_, name)| Owner::machine(namespace, name))
}

impl<'r> Review<'r> {
    /// Reads a request.
    ///
    /// # Errors
    /// The verdict if there is nothing to decide: the pod is malformed, its annotation is refused, or it needs no
    /// addresses.
    pub(crate) fn read(request: &'r Request) -> Result<Self, Verdict> {
        if request.operation != Operation::Create {
            return Err(Verdict::allowed());
        }
        let object = request.object.as_deref().map_or("null", |object| object.get());
        let pod: Option<Pod> = serde_json::from_str(object).map_err(decide::undecodable)?;
        let pod = pod.ok_or_else(|| decide::undecodable(messages::NO_OBJECT))?;
        let mut metadata = pod.metadata.unwrap_or_default();
        let Some(networks) = metadata.annotation(names::NETWORKS) else {
            return Err(Verdict::allowed());
        };
        if metadata.annotation(names::NETWORK_STATUS).is_some() {
            return Err(Verdict::allowed());
        }
        let mut networks =
            annotation::parse(networks).map_err(|error| Verdict::denied(500, error.to_string()))?;
        if networks.is_empty() {
            return Err(Verdict::allowed());
        }
        let namespace = metadata.namespace(request);
        for network in &mut networks {
            if network.namespace.is_empty() {
                namespace.clone_into(&mut network.namespace);
            }
        }
        let owners = metadata.owner_references.iter().flatten().map(|owner| {
            let [kind, name] = [&owner.kind, &owner.name].map(|text| text.as_deref().unwrap_or_default());
            (kind, name)
        });
        Ok(Self {
            request,
            claimant: metadata.claimant(Kind::Pod, request),
            machine: machine(namespace, owners),
            networks,
            annotations: metadata.annotations.take().unwrap_or_default(),
        })
    }

    /// The virtual machine that [`Context::exists`] is about. If it cannot be read, it counts as existing.
    pub(crate) fn needs(&self) -> Option<&Owner> {
        self.machine.as_ref()
    }

    /// Sets missing addresses of the networks, and holds all of them.
    pub(crate) fn admit(mut self, pool: &mut Pool, context: &Context<'_>) -> Verdict {
        if self.machine.is_some() && context.exists {
            return Verdict::allowed();
        }
        let explicit = self
            .networks
            .iter()
            .filter(|network| !network.mac.is_empty())
            .count();
        let mut draft = Draft::new();
        let warnings = match self.complete(pool, context, &mut draft) {
            Ok(warnings) => warnings,
            Err(refusal) => return Verdict::denied(500, messages::excerpt(refusal.to_string())),
        };
        let held = draft.holdings().to_vec();
        let pending = Pending {
            claimant: self.claimant.clone(),
            timestamp: context.timestamp,
            uid: None,
            admitted: context.admitted,
            client: self.request.client,
        };
        if let Err(refusal) = decide::admit(pool, self.request, pending, draft) {
            return Verdict::denied(500, refusal.to_string());
        }
        if !self.request.dry_run {
            self.log(&held, explicit);
        }
        let text = annotation::to_text(&self.networks);
        let before = self
            .annotations
            .insert(names::NETWORKS.to_owned(), Some(text.clone()));
        let mut verdict = Verdict::allowed();
        verdict.warnings = warnings;
        if before.flatten() != Some(text) {
            verdict.patch.push(Change::Replace {
                path: names::ANNOTATIONS_PATH.to_owned(),
                value: annotations(self.annotations),
            });
        }
        verdict
    }

    /// Logs the pod's addresses: the first `explicit` are its own.
    fn log(&self, held: &[Holding], explicit: usize) {
        let pod = messages::owner(&self.claimant);
        for (number, holding) in held.iter().enumerate() {
            let text = if number < explicit {
                messages::REGISTERED_FOR_POD
            } else {
                messages::ALLOCATED_TO_POD
            };
            tracing::info!(%pod, network = &*holding.key, mac = %holding.mac, "{text}");
        }
    }

    /// Completes the networks; returns the warnings.
    fn complete(
        &mut self,
        pool: &mut Pool,
        context: &Context<'_>,
        draft: &mut Draft,
    ) -> Result<Vec<String>, Refusal> {
        let mut warnings = Vec::new();
        // The pod's own addresses come first, so that none of them is allocated to another of its networks.
        for network in self.networks.iter().filter(|network| !network.mac.is_empty()) {
            let mac = Mac::parse(&network.mac)?;
            if let Some(used) = decide::used_by_others(pool, context, &self.claimant, mac) {
                if context.reject_duplicates {
                    return Err(Refusal::Duplicate(used));
                }
                warnings.push(used);
            }
            draft.register(mac, &network.name);
        }
        for network in self.networks.iter_mut().filter(|network| network.mac.is_empty()) {
            network.mac = pool.allocate(draft, &network.name)?.to_string();
        }
        Ok(warnings)
    }
}

fn annotations(texts: Texts) -> Value {
    let text = |(key, text): (String, Option<String>)| (key, Value::String(text.unwrap_or_default()));
    Value::Object(texts.into_iter().map(text).collect::<Map<_, _>>())
}

#[cfg(test)]
mod tests;
