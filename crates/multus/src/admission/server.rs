//! The webhook server, its certificate, and its cache of the networks' resources.

use super::inject::{self, Pod};
use super::{check, messages};
use crate::names::admission as names;
use cni::names::RESOURCE_NAME_ANNOTATION;
use k8s_openapi::api::core::v1::Secret;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::core::{DynamicObject, PartialObjectMeta};
use kube::{Api, Client};
use kube_kit::client::{chain, message};
use kube_kit::object::NETWORK_ATTACHMENT_DEFINITION;
use kube_kit::path;
use kube_kit::serve::{Limits, Readiness, Server, probes};
use kube_kit::tls::{self, Identity, Tls};
use kube_kit::watch::{self, Change, Name, Options, Watch};
use std::collections::BTreeMap;
use std::future::ready;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;
use tokio::time::timeout;
use webhook::admission::{self, Request, Verdict};

/// Timeout of all lookups for one pod: the client that creates the pod waits for them.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(2);
/// Page size of lists.
const PAGE: u32 = 50;

/// Settings of the server.
#[derive(Debug, Clone)]
pub struct Settings {
    /// Port, on all addresses.
    pub port: u16,
    /// Namespace of the Service and of the Secrets.
    pub namespace: String,
    /// Whether to request resources for pods.
    pub inject_resources: bool,
    /// Namespace of default networks that are named without a namespace.
    pub multus_namespace: String,
}

/// The server could not start.
#[derive(Debug, thiserror::Error)]
pub enum NoServer {
    /// No TLS configuration.
    #[error("cannot set up TLS")]
    Tls(#[from] tls::Error),
    /// No listening socket.
    #[error(transparent)]
    Listen(#[from] kube_kit::serve::Error),
}

/// A running server; it ends when it is stopped or dropped.
#[derive(Debug)]
pub struct Running {
    server: Server,
    certified: Readiness,
    /// Reloads the certificate; ends when it is dropped.
    _follower: JoinSet<()>,
}

impl Running {
    /// The listening address.
    pub fn address(&self) -> SocketAddr {
        self.server.address()
    }

    /// Ready once the server presents the certificate that the API server trusts.
    pub fn readiness(&self) -> &Readiness {
        &self.certified
    }

    /// Refuses new requests and ends when the requests in flight are answered.
    pub async fn stop(self) {
        self.server.stop().await;
    }
}

/// Serves the webhooks and the probes. Until the Secret holds a certificate, the server presents a self-signed one.
///
/// # Errors
/// The port is taken, or TLS cannot be set up.
pub async fn start(settings: Settings, client: Client) -> Result<Running, NoServer> {
    let Settings {
        port,
        namespace,
        inject_resources,
        multus_namespace,
    } = settings;
    let certified = Readiness::new();
    let own = Identity::self_signed(&tls::service_names(names::NAME, &namespace))?;
    let tls = Tls::with_http2(own)?;
    let mut router = admission::router(names::VALIDATE, |request: Request| ready(check::decide(&request)));
    if inject_resources {
        let injector = Arc::new(Injector::start(client.clone(), multus_namespace));
        router = router.merge(admission::router(names::INJECT, move |request| {
            let injector = Arc::clone(&injector);
            async move { injector.decide(&request).await }
        }));
    }
    let router = router.merge(probes(certified.clone()));
    let server = Server::on_port_tls_within(port, router, &tls, Limits::webhook()).await?;
    let mut follower = JoinSet::new();
    let secrets: Api<watch::DeserializeGuard<Secret>> = Api::namespaced(client, &namespace);
    let secret = watch::start_named(secrets, &Options::all().named(names::NAME), identity);
    follower.spawn(follow(secret, tls, certified.clone()));
    Ok(Running {
        server,
        certified,
        _follower: follower,
    })
}

/// Presents the certificate of the Secret from the next handshake on. An unusable Secret changes nothing.
async fn follow(mut secret: Watch<Name, Result<Identity, String>>, tls: Tls, certified: Readiness) {
    let cache = secret.store();
    while let Some(change) = secret.next().await {
        let Change::Applied(name) = change else { continue };
        let shown = match cache.get(&name) {
            Some(Ok(identity)) => tls.set_identity(identity).map_err(|error| chain(&error)),
            Some(Err(cause)) => Err(cause),
            None => continue,
        };
        match shown {
            Ok(()) => certified.set(true),
            Err(cause) => tracing::warn!(
                secret = name.name,
                cause,
                "unusable serving certificate, keeping the current one"
            ),
        }
    }
}

fn identity(secret: Secret) -> Result<Identity, String> {
    let data = secret.data.unwrap_or_default();
    let of = |key: &str| data.get(key).map(|bytes| bytes.0.as_slice()).unwrap_or_default();
    Identity::from_pem(of("tls.crt"), of("tls.key")).map_err(|error| chain(&error))
}

/// The device plugin resource that a network needs, if any.
type Resource = Option<Arc<str>>;

fn resource(metadata: &ObjectMeta) -> Resource {
    let name = metadata.annotations.as_ref()?.get(RESOURCE_NAME_ANNOTATION)?;
    (!name.is_empty()).then(|| name.as_str().into())
}

/// Requests resources for pods, from a cache of all definitions.
struct Injector {
    known: Watch<Name, Resource>,
    client: Client,
    multus_namespace: String,
}

impl Injector {
    fn start(client: Client, multus_namespace: String) -> Self {
        let kind = NETWORK_ATTACHMENT_DEFINITION.api_resource();
        let definitions: Api<PartialObjectMeta<DynamicObject>> = Api::all_with(client.clone(), &kind);
        let options = Options::all().page(PAGE);
        let known = watch::start_metadata(definitions, &options, Name::of, |nad| resource(&nad.metadata));
        Self {
            known: known.quiet(),
            client,
            multus_namespace,
        }
    }

    async fn decide(&self, request: &Request) -> Verdict {
        let pod = match Pod::read(request) {
            Ok(Some(pod)) => pod,
            Ok(None) => return Verdict::allowed(),
            Err(error) => return Verdict::denied(400, error.to_string()),
        };
        let networks = match pod.networks(&request.namespace, &self.multus_namespace) {
            Ok(networks) => networks,
            Err(error) => return inject::admit_unchanged(messages::unknown_networks(&error.to_string())),
        };
        let needed = match timeout(LOOKUP_TIMEOUT, self.needed(networks)).await {
            Ok(Ok(needed)) => needed,
            Ok(Err(warning)) => return inject::admit_unchanged(warning),
            Err(_) => {
                return inject::admit_unchanged(messages::unknown_networks(
                    "the API server did not answer in time",
                ));
            }
        };
        match pod.requesting(&needed) {
            Ok(patch) => Verdict::patched(patch),
            Err(error) => inject::admit_unchanged(error.to_string()),
        }
    }

    /// How many devices of each resource these networks need.
    async fn needed(&self, networks: Vec<Name>) -> Result<BTreeMap<String, u64>, String> {
        let mut needed = BTreeMap::new();
        for network in networks {
            let found = self.resource(&network).await;
            let found = found.map_err(|error| {
                let name = format!("{}/{}", network.namespace, network.name);
                messages::not_looked_up(&name, &message(&error))
            })?;
            if let Some(resource) = found {
                *needed.entry(resource.to_string()).or_default() += 1;
            }
        }
        Ok(needed)
    }

    /// The resource of a network. A missing definition needs none: multus reports it when it attaches the pod.
    async fn resource(&self, network: &Name) -> Result<Resource, kube::Error> {
        if let Some(known) = self.known.store().get(network) {
            return Ok(known);
        }
        if path::check(&network.namespace, &network.name).is_err() {
            return Ok(None);
        }
        // The cache may be stale: the definition may have been created a moment ago, together with the pod.
        let kind = NETWORK_ATTACHMENT_DEFINITION.api_resource();
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), &network.namespace, &kind);
        match api.get_metadata(&network.name).await {
            Ok(nad) => Ok(resource(&nad.metadata)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error),
        }
    }
}
