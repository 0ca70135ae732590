//! What is decided about a pod that is to be created (kubemacpool §9.2, §9.3).

use serde::Deserialize;
use serde_json::{Map, Value};
use webhook::admission::{Change, Operation, Request, Verdict};

use crate::annotation::{self, Element};
use crate::decide::{self, Context, Metadata, Texts};
use crate::mac::{InvalidMac, Mac};
use crate::messages;
use crate::names;
use crate::pool::{Claimant, Draft, Holding, Kind, Owner, Pending, Pool, RangeIsFull};

/// A pod that asks for networks.
#[derive(Debug)]
pub struct Review<'r> {
    request: &'r Request,
    claimant: Claimant,
    annotations: Texts,
    networks: Vec<Element>,
    machine: Option<Owner>,
}

/// Why a pod gets no addresses.
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

/// The virtual machine that a pod runs, if its owner is an instance. The instance may do without a virtual machine: then
/// the pod is an ordinary one. `owners` are kinds and names.
pub fn machine<'a>(namespace: &str, owners: impl IntoIterator<Item = (&'a str, &'a str)>) -> Option<Owner> {
    owners
        .into_iter()
        .find(|(kind, _)| *kind == names::INSTANCE_KIND)
        .map(|(_, name)| Owner::machine(namespace, name))
}

impl<'r> Review<'r> {
    /// Reads a request.
    ///
    /// # Errors
    /// When there is nothing more to decide: the pod can't be read, its annotation is refused, or it needs no addresses.
    pub fn read(request: &'r Request) -> Result<Self, Verdict> {
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

    /// The virtual machine of which [`Context::exists`] tells whether it exists. When that can't be found out, it does.
    pub fn needs(&self) -> Option<&Owner> {
        self.machine.as_ref()
    }

    /// Completes the networks with addresses, and holds them.
    pub fn admit(mut self, pool: &mut Pool, context: &Context<'_>) -> Verdict {
        if self.machine.is_some() && context.exists {
            return Verdict::allowed();
        }
        let brought = self
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
            self.log(&held, brought);
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

    /// Tells what the pod holds from now on: what it brings comes first.
    fn log(&self, held: &[Holding], brought: usize) {
        let pod = messages::owner(&self.claimant);
        for (number, holding) in held.iter().enumerate() {
            let text = if number < brought {
                messages::REGISTERED_FOR_POD
            } else {
                messages::ALLOCATED_TO_POD
            };
            tracing::info!(%pod, network = &*holding.key, mac = %holding.mac, "{text}");
        }
    }

    /// Returns what is to be said about the addresses.
    fn complete(
        &mut self,
        pool: &mut Pool,
        context: &Context<'_>,
        draft: &mut Draft,
    ) -> Result<Vec<String>, Refusal> {
        let mut warnings = Vec::new();
        // Those that the pod brings come first, so that none of them is handed out to another network of it.
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
