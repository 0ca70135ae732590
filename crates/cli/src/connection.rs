//! Access to a cluster, with errors that help to get it.

use kube::{Client, core::params::ListParams};
use kube_kit::{
    apply::{self, Applier, Cause},
    connection,
    merge::Policy,
    object::{self, Kind, ObjectId},
};
use serde_json::Value;

use operator::{detect, names, resource};

/// A cluster that cannot be read. Each text has the next step.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    /// There is no connection, or no permission.
    #[error(transparent)]
    Connection(#[from] connection::Error),
    /// The definition of `NetworkAddonsConfig` does not exist.
    #[error(
        "this cluster does not serve NetworkAddonsConfig: the operator is not installed\nInstall it by:\n  weft manifests \
         --image REF | kubectl apply -f -"
    )]
    NotInstalled,
    /// There is no Deployment of the operator.
    #[error(
        "there is no operator (Deployment {}) in {place}\nInstall it by `weft manifests --image REF | kubectl apply -f \
         -`, or say by --images-from FILE or --image REF which operator is meant.",
        names::OPERATOR
    )]
    NoOperator { place: String },
    #[error("there is an operator in each of the namespaces {}: select one with --namespace", .0.join(", "))]
    Operators(Vec<String>),
}

impl Error {
    /// The error of a request for `what`.
    pub(super) fn of(what: &str, error: &kube::Error) -> Self {
        connection::Error::of(what, error).into()
    }

    fn other(what: String, cause: String) -> Self {
        connection::Error::Other { what, cause }.into()
    }
}

impl From<apply::Error> for Error {
    fn from(error: apply::Error) -> Self {
        let what = named(&error.id);
        match &error.cause {
            Cause::Request(cause) => Self::of(&what, cause),
            Cause::Timeout(_) => connection::Error::Unreachable(error.cause.to_string()).into(),
            cause => Self::other(what, cause.to_string()),
        }
    }
}

impl From<detect::Error> for Error {
    fn from(error: detect::Error) -> Self {
        use std::error::Error as _;
        match error
            .source()
            .and_then(|source| source.downcast_ref::<kube::Error>())
        {
            Some(source) => Self::of("the platform", source),
            None => Self::other("the platform".to_owned(), error.to_string()),
        }
    }
}

/// An object in the form that users know: `DaemonSet addons/multus`.
pub(super) fn named(id: &ObjectId) -> String {
    match &id.namespace {
        Some(namespace) => format!("{} {namespace}/{}", id.kind, id.name),
        None => format!("{} {}", id.kind, id.name),
    }
}

/// Read-only access to a cluster.
pub(super) struct Cluster {
    applier: Applier,
}

impl Cluster {
    /// Prepares the connection of the flags, without sending a request.
    pub(super) async fn connect(flags: &connection::Flags) -> Result<Self, Error> {
        let client = connection::connect(flags).await?;
        let policy = Policy::owned_by(api::names::NETWORK_ADDONS_KIND);
        Ok(Self {
            applier: Applier::new(client, policy),
        })
    }

    pub(super) fn client(&self) -> &Client {
        self.applier.client()
    }

    /// The object; `None` if it or its kind does not exist.
    pub(super) async fn get(&self, id: &ObjectId) -> Result<Option<Value>, Error> {
        match self.applier.get(id).await {
            Err(error) if error.is_unknown_kind() => Ok(None),
            got => Ok(got?),
        }
    }

    pub(super) async fn configuration(&self) -> Result<Option<Value>, Error> {
        match self.applier.get(&resource::id()).await {
            Err(error) if error.is_unknown_kind() => Err(Error::NotInstalled),
            got => Ok(got?),
        }
    }

    /// Whether the cluster serves this kind.
    pub(super) async fn serves(&self, id: &ObjectId) -> Result<bool, Error> {
        match self.applier.get(id).await {
            Err(error) if error.is_unknown_kind() => Ok(false),
            got => got.map(|_| true).map_err(Error::from),
        }
    }

    pub(super) async fn list(
        &self,
        kind: Kind,
        namespace: Option<&str>,
        parameters: &ListParams,
    ) -> Result<Vec<Value>, Error> {
        let list = kind
            .api(self.client(), namespace)
            .list(parameters)
            .await
            .map_err(|error| Error::of(kind.plural, &error))?;
        let named = list.items.into_iter().filter_map(|object| {
            let mut object = serde_json::to_value(object).ok()?;
            // Items of a list have no apiVersion and no kind.
            object["apiVersion"] = kind.api_version().into();
            object["kind"] = kind.kind.into();
            Some(object)
        });
        Ok(named.collect())
    }

    /// The Deployment of the operator, in a namespace or in any.
    pub(super) async fn operator(&self, namespace: Option<&str>) -> Result<Option<Value>, Error> {
        let named = ListParams::default().fields(&format!("metadata.name={}", names::OPERATOR));
        let mut found = self.list(object::DEPLOYMENT, namespace, &named).await?;
        if found.len() > 1 {
            let namespaces = found.iter().filter_map(|object| ObjectId::of(object).namespace);
            return Err(Error::Operators(namespaces.collect()));
        }
        Ok(found.pop())
    }
}
