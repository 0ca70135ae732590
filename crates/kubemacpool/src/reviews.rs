//! Reviews of the API server (kubemacpool §9.2, §10.2).
//!
//! ```text
//! Request ── read ──> needs a virtual machine? ──> cached, or read ──> admit, under the lock ──> Verdict
//! ```

use std::time::{Duration, Instant};

use axum::Router;
use kube::{Api, Resource as _};
use kube_kit::client::message;
use kube_kit::path;
use kube_kit::watch::DeserializeGuard;
use webhook::admission::{self, Request, Verdict};

use crate::decide::Context;
use crate::kubevirt::VirtualMachine;
use crate::names;
use crate::pool::{Owner, Pool};
use crate::state;
use crate::watches::Core;
use crate::{machines, pods};

/// Timeout of a read of a virtual machine, while the API server waits for the review.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Routes of both webhooks.
pub(crate) fn router(core: &Core, reject_duplicates: bool) -> Router {
    let reviews = Reviews {
        core: core.clone(),
        reject_duplicates,
    };
    let (for_pods, for_machines) = (reviews.clone(), reviews);
    admission::router(names::MUTATE_PODS, move |request| {
        let reviews = for_pods.clone();
        async move { reviews.pod(&request).await }
    })
    .merge(admission::router(names::MUTATE_MACHINES, move |request| {
        let reviews = for_machines.clone();
        async move { reviews.machine(&request).await }
    }))
}

#[derive(Clone)]
struct Reviews {
    core: Core,
    reject_duplicates: bool,
}

impl Reviews {
    async fn pod(&self, request: &Request) -> Verdict {
        let review = match pods::Review::read(request) {
            Ok(review) => review,
            Err(verdict) => return verdict,
        };
        let exists = match review.needs() {
            Some(machine) => self.may_exist(machine).await,
            None => false,
        };
        self.decide(exists, |pool, context| review.admit(pool, context))
    }

    async fn machine(&self, request: &Request) -> Verdict {
        self.core.hint.notify_one();
        let review = match machines::Review::read(request) {
            Ok(review) => review,
            Err(verdict) => return verdict,
        };
        let exists = match review.needs() {
            Some(machine) => match self.exists(machine).await {
                Ok(exists) => exists,
                Err(error) => return machines::lookup_failed(error),
            },
            None => false,
        };
        self.decide(exists, |pool, context| review.admit(pool, context))
    }

    fn decide(&self, exists: bool, admit: impl FnOnce(&mut Pool, &Context<'_>) -> Verdict) -> Verdict {
        let mut state = state::lock(&self.core.shared);
        let timestamp = state.timestamp();
        let state = &mut *state;
        let managed = &state.managed;
        let context = Context {
            exists,
            timestamp,
            admitted: Instant::now(),
            reject_duplicates: self.reject_duplicates,
            is_managed: &|kind, namespace| managed.is_managed(kind, namespace).unwrap_or(false),
        };
        admit(&mut state.pool, &context)
    }

    /// Whether the virtual machine of a creation exists already. An uncached machine is new; a cached one may just have
    /// been deleted.
    async fn exists(&self, machine: &Owner) -> Result<bool, String> {
        if !state::lock(&self.core.shared).has_machine(machine) {
            return Ok(false);
        }
        // A machine under deletion may be gone when the new one is stored, which needs addresses then.
        let found = self.read_machine(machine).await?;
        Ok(found.is_some_and(|found| found.meta().deletion_timestamp.is_none()))
    }

    /// Whether a virtual machine exists whose pod is to be created; an error counts as yes.
    async fn may_exist(&self, machine: &Owner) -> bool {
        if state::lock(&self.core.shared).has_machine(machine) {
            return true;
        }
        match self.read_machine(machine).await {
            Ok(found) => found.is_some(),
            Err(error) => {
                tracing::warn!(%machine, error, "cannot determine whether a pod belongs to a virtual machine");
                true
            }
        }
    }

    async fn read_machine(
        &self,
        machine: &Owner,
    ) -> Result<Option<DeserializeGuard<VirtualMachine>>, String> {
        // No object has an invalid name.
        if path::check(&machine.namespace, &machine.name).is_err() {
            return Ok(None);
        }
        let client = self.core.client.clone();
        let api: Api<DeserializeGuard<VirtualMachine>> = Api::namespaced(client, &machine.namespace);
        match tokio::time::timeout(TIMEOUT, api.get_opt(&machine.name)).await {
            Ok(Ok(found)) => Ok(found),
            Ok(Err(error)) => Err(message(&error)),
            Err(_) => Err("timeout while waiting for the API server".to_owned()),
        }
    }
}
