//! Starts and stops the parts of the program in order.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::Router;
use axum::http::StatusCode;
use axum::routing::get;
use kube::Client;
use kube_kit::events::Recorder;
use kube_kit::metrics::Requests;
use kube_kit::serve::{Certified, DRAIN, Limits, NoServer, Readiness, Server, Serving};
use kube_kit::shutdown::Shutdown;
use kube_kit::watch::{Name, Store};

use crate::cluster::Cluster;
use crate::controller::{self, Queues};
use crate::election::{Election, Leadership, Lost};
use crate::metrics::Metrics;
use crate::names;
use crate::reconcile::Reconciler;
use crate::reviews;
use crate::settings::Settings;
use crate::state::{self, Shared};
use crate::watches::Core;

/// Deadline for running work and the release of the Lease at the shutdown. The sum with the grace time of running reviews
/// ([`Limits::webhook`]) is less than the pod's grace period of 10 s.
const GRACE: Duration = Duration::from_secs(4);

/// A program before its start.
pub struct Manager {
    settings: Settings,
    metrics: Metrics,
}

/// A program that serves reviews and probes. Its watches run as long as the runtime.
pub struct Running {
    core: Core,
    claims: Store<Name, ()>,
    certified: Readiness,
    metrics: Metrics,
    leadership: Leadership,
    election: Option<Election>,
    webhook: Serving,
    plain: Vec<Server>,
}

impl Manager {
    /// A program with these settings and empty caches.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            metrics: Metrics::new(),
        }
    }

    /// The counter of requests. The client must update it.
    pub fn requests(&self) -> &Requests {
        &self.metrics.requests
    }

    /// Starts the parts that every replica runs. `me` is the replica's name in elections.
    ///
    /// # Errors
    /// If an address cannot be listened on, or TLS cannot be set up. A missing certificate is no error: the webhook
    /// waits for it.
    pub async fn start(self, client: Client, me: &str) -> anyhow::Result<Running> {
        let Self { settings, metrics } = self;
        let Settings {
            webhook,
            probes,
            metrics: scraped,
            elect,
            http2,
            certificates,
            default_namespace,
            profile,
        } = settings;
        let core = Core {
            shared: Shared::default(),
            client: client.clone(),
            known: Readiness::new(),
            queues: Queues::new(&metrics.controllers),
        };
        let election = elect.then(|| {
            let namespace = client.default_namespace().to_owned();
            Election::new(client, &namespace, me)
        });
        let leadership = election
            .as_ref()
            .map_or_else(Leadership::of_one, Election::leadership);
        let certified = Readiness::new();
        let server = Certified {
            certificates: Some(certificates),
            names: vec![names::SERVICE.to_owned()],
            profile,
            http2,
            authorities: None,
            limits: Limits::webhook(),
        };
        let router = metrics.counted(reviews::router(&core, &default_namespace));
        let webhook = server.serve(&webhook, router, &certified).await;
        let webhook = webhook
            .context("the webhook")?
            .ok_or(NoServer::Nowhere)
            .context("the webhook")?;
        let mut plain = Vec::new();
        let answered = probed(core.known.clone(), certified.clone());
        plain.extend(Server::at(&probes, answered).await.context("the probes")?);
        let figures = metrics.router(&core.shared, &leadership);
        plain.extend(Server::at(&scraped, figures).await.context("the metrics")?);
        let claims = core.watch();
        Ok(Running {
            core,
            claims,
            certified,
            metrics,
            leadership,
            election,
            webhook,
            plain,
        })
    }
}

impl Running {
    /// Address of the webhook.
    pub fn address(&self) -> SocketAddr {
        self.webhook.address()
    }

    /// Addresses of probes and metrics, in this order. A disabled server has none.
    pub fn plain_addresses(&self) -> Vec<SocketAddr> {
        self.plain.iter().map(Server::address).collect()
    }

    /// The caches, for tests.
    pub fn state(&self) -> &Shared {
        &self.core.shared
    }

    /// The leadership of this replica.
    pub fn leadership(&self) -> &Leadership {
        &self.leadership
    }

    /// Waits until the caches are synced.
    pub async fn ready(&self) {
        self.core.known.wait().await;
        self.certified.wait().await;
    }

    /// Writes while this replica is the leader, until the shutdown. Then finishes the started work, and releases the Lease.
    /// One of several replicas answers reviews for at least [`DRAIN`] after the shutdown.
    ///
    /// # Errors
    /// If another replica took the Lease: the process must end.
    pub async fn run(self, shutdown: &Shutdown) -> anyhow::Result<()> {
        let Self {
            core,
            claims,
            certified: _,
            metrics,
            mut leadership,
            election,
            webhook,
            plain,
        } = self;
        let reconciler = Reconciler::new(
            Arc::clone(&core.shared),
            Cluster::new(core.client.clone()),
            Recorder::new(core.client.clone(), names::COMPONENT),
            leadership.clone(),
        )
        .beside(claims);
        let work = async {
            tokio::select! {
                () = shutdown.wait() => return true,
                () = async { leadership.won().await; core.known.wait().await } => {}
            }
            let (queues, shared) = (core.queues.clone(), Arc::clone(&core.shared));
            controller::run(queues, metrics.controllers, shared, reconciler, shutdown).await;
            state::lock(&core.shared).are_settled()
        };
        let of_several = election.is_some();
        let written = ended(work, election, shutdown);
        let drained = async {
            shutdown.wait().await;
            if of_several {
                tokio::time::sleep(DRAIN).await;
            }
            Ok(())
        };
        // A lost Lease ends everything at once.
        tokio::try_join!(written, drained)?;
        let stop = async {
            for server in plain {
                server.stop().await;
            }
        };
        tokio::join!(webhook.stop(), stop);
        Ok(())
    }
}

/// Waits for the end of the work, and then releases the Lease. The work returns whether the outcome of all its writes of
/// addresses is known. If it is not, or the work takes too long, the Lease stays held: a write may still succeed, and the
/// next leader must see it.
///
/// # Errors
/// If another replica took the Lease.
async fn ended(
    work: impl Future<Output = bool>,
    mut election: Option<Election>,
    shutdown: &Shutdown,
) -> Result<(), Lost> {
    let finished = async {
        let Some(election) = &mut election else {
            work.await;
            return Ok(());
        };
        let ((), are_settled) = tokio::try_join!(election.run(shutdown), async { Ok(work.await) })?;
        if are_settled {
            election.give_back().await;
        }
        Ok(())
    };
    let patient = async {
        shutdown.wait().await;
        tokio::time::sleep(GRACE).await;
    };
    tokio::select! {
        ended = finished => ended,
        () = patient => {
            tracing::warn!("the work or the release of the Lease takes too long, ending nevertheless");
            Ok(())
        }
    }
}

/// `ok` at both paths, at `/readyz` only with synced caches and a certificate.
fn probed(known: Readiness, certified: Readiness) -> Router {
    let ready = move || async move {
        if !certified.is_ready() {
            (StatusCode::INTERNAL_SERVER_ERROR, "waiting for the certificate")
        } else if !known.is_ready() {
            (StatusCode::INTERNAL_SERVER_ERROR, "waiting for the caches")
        } else {
            (StatusCode::OK, "ok")
        }
    };
    Router::new()
        .route("/healthz", get(|| async { "ok" }))
        .route("/readyz", get(ready))
}

#[cfg(test)]
mod tests;
