//! Reads and writes the API server directly, because caches may be stale.

use std::time::Duration;

use api::kubevirt;
use kube::api::{DeleteParams, ListParams, PostParams, Preconditions};
use kube::core::{ApiResource, DynamicObject};
use kube::{Api, Client, Resource};
use kube_kit::client::message;
use kube_kit::pages::Pages;
use kube_kit::path;
use kube_kit::watch::{DeserializeGuard, Name};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::messages::review::TOO_SLOW;
use crate::names;
use crate::network::Network;
use crate::objects::{
    Claim, ClaimSpec, Instance, Machine, WireClaim, WireInstance, WireMachine, WireNetworkDefinition,
};
use crate::uid::Uid;

/// Timeout of a read (§5).
const READ: Duration = Duration::from_secs(1);
/// Timeout of a write.
const WRITE: Duration = Duration::from_secs(10);
/// Timeout of a write of addresses. The sum of this timeout and [`RENEW_DEADLINE`](crate::election::RENEW_DEADLINE) is
/// less than the duration of a Lease: the next leader sees all addresses that the former leader allocated.
const GIVE: Duration = Duration::from_secs(4);

/// The cause of a failed read or write, with the API server's text.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub(crate) enum Error {
    /// The object has changed since the read.
    #[error("{0}")]
    Conflict(String),
    #[error("{0}")]
    NotFound(String),
    /// An object of that name exists.
    #[error("{0}")]
    Exists(String),
    #[error("{0}")]
    Forbidden(String),
    /// The API server does not serve the kind.
    #[error("{0}")]
    NotServed(String),
    #[error("{0}")]
    Other(String),
}

impl Error {
    fn of(error: &kube::Error) -> Self {
        let text = message(error);
        let kube::Error::Api(status) = error else {
            return Self::Other(text);
        };
        match status.reason.as_str() {
            // An unserved kind has no reason in the status, and its objects may still exist.
            "NotFound" => Self::NotFound(text),
            "AlreadyExists" => Self::Exists(text),
            "Conflict" => Self::Conflict(text),
            "Forbidden" => Self::Forbidden(text),
            _ if status.code == 404 => Self::NotServed(text),
            _ => Self::Other(text),
        }
    }
}

/// A claim with all fields that the API server has. A write must not lose fields that this program does not know.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LiveClaim(DynamicObject);

impl LiveClaim {
    pub(crate) fn name(&self) -> &str {
        self.0.metadata.name.as_deref().unwrap_or_default()
    }

    /// The fields that this program reads.
    ///
    /// # Errors
    /// If the claim is malformed.
    pub(crate) fn claim(&self) -> Result<Claim, Error> {
        let read = serde_json::to_value(&self.0).and_then(serde_json::from_value::<WireClaim>);
        read.map(Claim::of)
            .map_err(|error| Error::Other(error.to_string()))
    }

    /// Without our finalizer.
    fn released(mut self) -> Self {
        if let Some(finalizers) = self.0.metadata.finalizers.as_mut() {
            finalizers.retain(|finalizer| finalizer != names::FINALIZER);
        }
        self
    }

    /// With our finalizer.
    fn held(mut self) -> Self {
        let finalizers = self.0.metadata.finalizers.get_or_insert_default();
        if !finalizers.iter().any(|finalizer| finalizer == names::FINALIZER) {
            finalizers.push(names::FINALIZER.to_owned());
        }
        self
    }

    /// With this owner as the only one.
    fn owned(mut self, owner: &Owner) -> Result<Self, Error> {
        let reference = serde_json::from_value(owner.reference());
        let reference = reference.map_err(|error| Error::Other(error.to_string()))?;
        self.0.metadata.owner_references = Some(vec![reference]);
        Ok(self)
    }
}

/// The owner of a claim.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct Owner {
    /// `VirtualMachine` or `VirtualMachineInstance`.
    pub(crate) kind: &'static str,
    pub(crate) name: String,
    pub(crate) uid: Uid,
}

impl Owner {
    /// The virtual machine if it exists, otherwise its instance. A virtual machine that is being deleted may orphan its
    /// claims.
    pub(crate) fn of(name: &str, machine: Option<&Machine>, instance: &Instance) -> Self {
        let (kind, uid) = match machine.filter(|machine| !machine.deleting) {
            Some(machine) => (kubevirt::MACHINE, &machine.uid),
            None => (kubevirt::INSTANCE, &instance.uid),
        };
        Self {
            kind,
            name: name.to_owned(),
            uid: uid.clone(),
        }
    }

    fn reference(&self) -> Value {
        json!({
            "apiVersion": kubevirt::API_VERSION, "kind": self.kind, "name": self.name, "uid": self.uid.to_string(),
            "controller": true, "blockOwnerDeletion": true,
        })
    }
}

/// The object of a new claim (§5.6).
pub(crate) fn claim_object(
    namespace: &str,
    name: &str,
    spec: &ClaimSpec,
    machine: &str,
    owner: &Owner,
) -> Value {
    json!({
        "apiVersion": names::CLAIM_API,
        "kind": names::CLAIM,
        "metadata": {
            "name": name,
            "namespace": namespace,
            "labels": { names::MACHINE_LABEL: machine },
            "finalizers": [names::FINALIZER],
            "ownerReferences": [owner.reference()],
        },
        "spec": spec,
    })
}

#[derive(Clone)]
pub(crate) struct Cluster {
    client: Client,
}

impl Cluster {
    pub(crate) fn new(client: Client) -> Self {
        Self { client }
    }

    /// A virtual machine; `None` if it does not exist.
    ///
    /// # Errors
    /// If the API server cannot be read.
    pub(crate) async fn machine(&self, name: &Name) -> Result<Option<Machine>, Error> {
        Ok(self.get::<WireMachine>(name).await?.map(Machine::from))
    }

    /// An instance; `None` if it does not exist.
    ///
    /// # Errors
    /// If the API server cannot be read.
    pub(crate) async fn instance(&self, name: &Name) -> Result<Option<Instance>, Error> {
        Ok(self.get::<WireInstance>(name).await?.map(Instance::from))
    }

    /// A network; `None` if it does not exist.
    ///
    /// # Errors
    /// If the API server cannot be read.
    pub(crate) async fn network(&self, id: &Name) -> Result<Option<Network>, Error> {
        let definition = self.get::<WireNetworkDefinition>(id).await?;
        Ok(definition.map(|definition| Network::read(id.clone(), definition.config())))
    }

    async fn get<K>(&self, name: &Name) -> Result<Option<K>, Error>
    where
        K: Resource<DynamicType = (), Scope = kube::core::NamespaceResourceScope>
            + Clone
            + DeserializeOwned
            + std::fmt::Debug,
    {
        // No object has an invalid name.
        if path::check(&name.namespace, &name.name).is_err() {
            return Ok(None);
        }
        let api: Api<K> = Api::namespaced(self.client.clone(), &name.namespace);
        found(within(READ, api.get(&name.name)).await)
    }

    /// Claims whose label names a virtual machine.
    ///
    /// # Errors
    /// If the API server cannot be read.
    pub(crate) async fn claims_of(&self, machine: &Name) -> Result<Vec<LiveClaim>, Error> {
        let selector = format!("{}={}", names::MACHINE_LABEL, machine.name);
        let claims = self.claims(&machine.namespace)?;
        let list = ListParams::default().labels(&selector);
        let list = within(READ, claims.list(&list)).await?;
        Ok(list.items.into_iter().map(LiveClaim).collect())
    }

    /// A claim; `None` if it does not exist.
    ///
    /// # Errors
    /// If the API server cannot be read.
    pub(crate) async fn claim(&self, id: &Name) -> Result<Option<LiveClaim>, Error> {
        let claims = self.claims(&id.namespace)?;
        let claim = found(within(READ, claims.get(&id.name)).await)?;
        Ok(claim.map(LiveClaim))
    }

    /// Writes the addresses of a claim that has not changed since the read. Returns the new claim.
    ///
    /// # Errors
    /// If the API server refuses the write.
    pub(crate) async fn give(
        &self,
        namespace: &str,
        claim: LiveClaim,
        ips: &[String],
    ) -> Result<LiveClaim, Error> {
        let LiveClaim(mut object) = claim;
        object.data["status"]["ips"] = json!(ips);
        let claims = self.claims(namespace)?;
        let name = object.metadata.name.clone().unwrap_or_default();
        let parameters = PostParams::default();
        let written = within(GIVE, claims.replace_status(&name, &parameters, &object)).await?;
        Ok(LiveClaim(written))
    }

    /// Writes another network into a claim that has not changed since the read. Returns the new claim.
    ///
    /// # Errors
    /// If the API server refuses the write.
    pub(crate) async fn set_network(
        &self,
        namespace: &str,
        claim: LiveClaim,
        network: &str,
    ) -> Result<LiveClaim, Error> {
        let LiveClaim(mut object) = claim;
        object.data["spec"]["network"] = json!(network);
        let claims = self.claims(namespace)?;
        let name = object.metadata.name.clone().unwrap_or_default();
        let parameters = PostParams::default();
        let written = within(GIVE, claims.replace(&name, &parameters, &object)).await?;
        Ok(LiveClaim(written))
    }

    /// All claims of the cluster.
    ///
    /// # Errors
    /// If the API server cannot be read.
    pub(crate) async fn all_claims(&self) -> Result<Vec<(Name, Claim)>, Error> {
        let claims: Api<DeserializeGuard<WireClaim>> = Api::all(self.client.clone());
        let mut pages = Pages::new(claims, ListParams::default());
        let mut all = Vec::new();
        while let Some(page) = within(WRITE, pages.next()).await? {
            let readable = page.into_iter().filter_map(|DeserializeGuard(item)| item.ok());
            all.extend(readable.map(|wire| (Name::of(&wire.metadata), Claim::of(wire))));
        }
        Ok(all)
    }

    /// Creates a claim and returns it.
    ///
    /// # Errors
    /// If the API server refuses the write, or a claim of that name exists.
    pub(crate) async fn create(&self, namespace: &str, claim: Value) -> Result<LiveClaim, Error> {
        let claim: DynamicObject =
            serde_json::from_value(claim).map_err(|error| Error::Other(error.to_string()))?;
        let claims = self.claims(namespace)?;
        within(WRITE, claims.create(&PostParams::default(), &claim))
            .await
            .map(LiveClaim)
    }

    /// Removes our finalizer from a claim that has not changed since the read. A deleted claim is no error.
    ///
    /// # Errors
    /// If the API server refuses the write.
    pub(crate) async fn release(&self, namespace: &str, claim: LiveClaim) -> Result<(), Error> {
        self.replace(namespace, claim.released()).await
    }

    /// Adds our finalizer to a claim that has not changed since the read. Returns the new claim.
    ///
    /// # Errors
    /// If the API server refuses the write.
    pub(crate) async fn hold(&self, namespace: &str, claim: LiveClaim) -> Result<LiveClaim, Error> {
        let LiveClaim(object) = claim.held();
        let claims = self.claims(namespace)?;
        let name = object.metadata.name.clone().unwrap_or_default();
        let parameters = PostParams::default();
        let written = within(WRITE, claims.replace(&name, &parameters, &object)).await?;
        Ok(LiveClaim(written))
    }

    /// Sets the owner of a claim that has not changed since the read. A deleted claim is no error.
    ///
    /// # Errors
    /// If the API server refuses the write.
    pub(crate) async fn adopt(&self, namespace: &str, claim: LiveClaim, owner: &Owner) -> Result<(), Error> {
        self.replace(namespace, claim.owned(owner)?).await
    }

    async fn replace(&self, namespace: &str, claim: LiveClaim) -> Result<(), Error> {
        let claims = self.claims(namespace)?;
        let parameters = PostParams::default();
        match within(WRITE, claims.replace(claim.name(), &parameters, &claim.0)).await {
            Ok(_) => Ok(()),
            Err(Error::NotFound(error)) => {
                tracing::info!("WARNING: Object not found: {error}");
                Ok(())
            }
            Err(error) => Err(error),
        }
    }

    /// Deletes a claim that has not changed since the read, and removes our finalizer.
    ///
    /// # Errors
    /// If the API server refuses the write.
    pub(crate) async fn delete(&self, namespace: &str, claim: LiveClaim) -> Result<(), Error> {
        if claim.0.metadata.deletion_timestamp.is_some() {
            return self.release(namespace, claim).await;
        }
        let claims = self.claims(namespace)?;
        let only = DeleteParams {
            preconditions: Some(Preconditions {
                uid: claim.0.metadata.uid.clone(),
                resource_version: claim.0.metadata.resource_version.clone(),
            }),
            ..DeleteParams::default()
        };
        match within(WRITE, claims.delete(claim.name(), &only)).await {
            Ok(deleted) => match deleted.left() {
                Some(deleting) => self.release(namespace, LiveClaim(deleting)).await,
                None => Ok(()),
            },
            Err(Error::NotFound(_)) => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn claims(&self, namespace: &str) -> Result<Api<DynamicObject>, Error> {
        path::segment(namespace).map_err(|error| Error::Other(error.to_string()))?;
        let resource = ApiResource::erase::<WireClaim>(&());
        Ok(Api::namespaced_with(self.client.clone(), namespace, &resource))
    }
}

async fn within<T>(limit: Duration, request: impl Future<Output = kube::Result<T>>) -> Result<T, Error> {
    match tokio::time::timeout(limit, request).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(error)) => Err(Error::of(&error)),
        Err(_) => Err(Error::Other(TOO_SLOW.to_owned())),
    }
}

fn found<T>(answer: Result<T, Error>) -> Result<Option<T>, Error> {
    match answer {
        Ok(found) => Ok(Some(found)),
        Err(Error::NotFound(_)) => Ok(None),
        Err(error) => Err(error),
    }
}
