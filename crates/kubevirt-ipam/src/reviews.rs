//! Answers the API server's admission requests (kubevirt-ipam §6).
//!
//! ```text
//! Request ── read ──> known? ──> instance, networks: cached, or read once ──> mutate ──> Verdict
//! ```

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use kube_kit::watch::Name;
use webhook::admission::{self, Request, Verdict};

use crate::cluster::{Cluster, Error};
use crate::messages::review as text;
use crate::mutate::{Lookup, Review, addresses, claims_needed, mutate};
use crate::names;
use crate::network::Network;
use crate::objects::{Claim, Instance, Machine};
use crate::plan::Networks;
use crate::state;
use crate::watches::Core;

/// Deadline for synced caches in a request, just below the API server's timeout.
const TIMEOUT: Duration = Duration::from_secs(9);
/// Maximum number of uncached networks, and of uncached claims, in one review: the creator of a pod chooses the names.
const LOOK_UPS: usize = 16;

/// The webhook.
pub(crate) fn router(core: &Core, default_namespace: &str) -> Router {
    let reviews = Reviews {
        cluster: Cluster::new(core.client.clone()),
        core: core.clone(),
        default_namespace: default_namespace.into(),
    };
    admission::router(names::MUTATE, move |request| {
        let reviews = reviews.clone();
        async move { reviews.decide(&request).await }
    })
}

#[derive(Clone)]
struct Reviews {
    core: Core,
    cluster: Cluster,
    default_namespace: Arc<str>,
}

impl Reviews {
    async fn decide(&self, request: &Request) -> Verdict {
        let review = match Review::read(request) {
            Ok(review) => review,
            Err(verdict) => return verdict,
        };
        if tokio::time::timeout(TIMEOUT, self.core.known.wait())
            .await
            .is_err()
        {
            return review.no_access(text::NOT_READY);
        }
        if let Some(verdict) = review.early(&*state::lock(&self.core.shared)) {
            return verdict;
        }
        let instance = match self.instance(&review).await {
            Ok(Some(instance)) => instance,
            Ok(None) => return review.without_instance(),
            Err(error) => return review.no_access(error),
        };
        let asked = match self.unknown(&review).await {
            Ok(asked) => asked,
            Err(error) => return review.no_access(error),
        };
        let claims = match self.claims(&review, &instance, &asked).await {
            Ok(claims) => claims,
            Err(error) => return review.no_access(error),
        };
        let known = Known {
            state: state::lock(&self.core.shared),
            asked,
            claims,
        };
        mutate(&review, &instance, &known, &self.default_namespace)
    }

    /// The pod's instance, read from the API server if the cache is stale.
    async fn instance(&self, review: &Review) -> Result<Option<Arc<Instance>>, Error> {
        let name = review.instance();
        let known = state::lock(&self.core.shared).instance(&name).cloned();
        if let Some(known) = known.filter(|known| review.runs(known)) {
            return Ok(Some(known));
        }
        let found = self.cluster.instance(&name).await?;
        Ok(found.filter(|found| review.runs(found)).map(Arc::new))
    }

    /// Claims whose addresses the pod needs and the cache lacks.
    async fn claims(
        &self,
        review: &Review,
        instance: &Instance,
        asked: &HashMap<Name, Arc<Network>>,
    ) -> Result<HashMap<Name, Claim>, Error> {
        let needed = {
            let known = Known {
                state: state::lock(&self.core.shared),
                asked: asked.clone(),
                claims: HashMap::new(),
            };
            let mut needed = claims_needed(review, instance, &known);
            needed.retain(|id| addresses(review, instance, &known, id).is_empty());
            needed
        };
        let mut found = HashMap::new();
        for id in needed.into_iter().take(LOOK_UPS) {
            if let Some(live) = self.cluster.claim(&id).await? {
                found.insert(id, live.claim()?);
            }
        }
        Ok(found)
    }

    /// Existing networks of the pod that the cache lacks.
    async fn unknown(&self, review: &Review) -> Result<HashMap<Name, Arc<Network>>, Error> {
        let mut needed = review.needs();
        {
            let state = state::lock(&self.core.shared);
            needed.retain(|definition| state.network(definition).is_none());
        }
        let mut found = HashMap::new();
        for definition in needed.into_iter().take(LOOK_UPS) {
            if let Some(network) = self.cluster.network(&definition).await? {
                found.insert(definition, Arc::new(network));
            }
        }
        Ok(found)
    }
}

/// The caches, and the objects that were read besides.
struct Known<'a> {
    state: std::sync::MutexGuard<'a, state::State>,
    asked: HashMap<Name, Arc<Network>>,
    claims: HashMap<Name, Claim>,
}

impl Networks for Known<'_> {
    fn network(&self, definition: &Name) -> Option<Arc<Network>> {
        let known = self.state.network(definition);
        known.or_else(|| self.asked.get(definition).cloned())
    }

    fn primary(&self, namespace: &str) -> Option<Arc<Network>> {
        self.state.primary(namespace)
    }
}

impl Lookup for Known<'_> {
    fn claim(&self, id: &Name) -> Option<Claim> {
        self.claims.get(id).cloned().or_else(|| self.state.claim(id))
    }

    fn machine(&self, name: &Name) -> Option<Machine> {
        self.state.machine(name).cloned()
    }
}
