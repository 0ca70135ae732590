//! Injects the bundle of the cluster into all labelled `ConfigMaps` (§15.2).

use std::collections::BTreeMap;
use std::time::Duration;

use kube::Client;
use kube_kit::apply::contest::{Contest, Verdict};
use kube_kit::client::message;
use kube_kit::object::CONFIG_MAP;
use kube_kit::shutdown::Shutdown;
use kube_kit::watch::{Name, Options, Store, Waking, has_begun};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{
    BUNDLE, COMPONENT, Digest, INJECT, Injection, Invalid, OWNING_COMPONENT, USER_BUNDLE, Wanting, check,
    digest, injection,
};
use crate::objects::{self, text};
use crate::report::{Failure, Level, Reports};

/// Namespace of the bundle.
pub const BUNDLE_NAMESPACE: &str = "openshift-config-managed";
/// `ConfigMap` of the bundle.
pub const BUNDLE_NAME: &str = "trusted-ca-bundle";
/// Suffix of the field manager.
const PART: &str = "configmap_ca";
/// Limit of failed `ConfigMaps` in one attempt. The others have to wait for the next attempt.
const FAILURES: usize = 5;
const LONGEST: Duration = Duration::from_mins(5);
/// Status codes that concern all objects, or that a retry overcomes: no authentication, a timeout, a conflict, load.
const OF_ALL: [u16; 4] = [401, 408, 409, 429];

/// The bundle in a `ConfigMap`.
pub(crate) fn bundle(object: &Value) -> Option<String> {
    Some(object["data"][BUNDLE].as_str()?.to_owned())
}

/// The bundle to inject. An empty one is valid if the operator emptied it (§15.1).
fn valid(object: &Value) -> Result<String, Invalid> {
    let bundle = bundle(object).unwrap_or_default();
    let is_emptied = bundle.is_empty() && object["metadata"]["annotations"][USER_BUNDLE] == "";
    if !is_emptied {
        check(&bundle)?;
    }
    Ok(bundle)
}

fn wanting(object: &Value) -> Wanting {
    Wanting {
        uid: text(object, "/metadata/uid").to_owned(),
        bundle: object["data"][BUNDLE].as_str().map(digest),
        component: text(
            &object["metadata"]["annotations"],
            &format!("/{}", kube_kit::patch::escape(OWNING_COMPONENT)),
        )
        .to_owned(),
    }
}

/// Injects the bundle until the shutdown.
pub async fn run(client: Client, reports: &Reports, shutdown: &Shutdown) {
    let queue = reports.queue("configmap_ca_injector", LONGEST);
    queue.add(());
    let mut watches = Waking::new(client.clone(), &queue);
    let labelled = Options::all().labels(format!("{INJECT}=true"));
    let mut injector = Injector {
        wanting: watches.start(&CONFIG_MAP, None, &labelled, (), wanting),
        bundle: watches.start(
            &CONFIG_MAP,
            Some(BUNDLE_NAMESPACE),
            &Options::all().named(BUNDLE_NAME),
            (),
            valid,
        ),
        client,
        refused: BTreeMap::new(),
        contests: BTreeMap::new(),
    };
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            () = queue.next_when(|| has_begun(&injector.wanting) && has_begun(&injector.bundle)) => {}
        }
        let injected = injector.inject().await;
        reports.set(Level::InjectorConfig, injected.as_ref().err());
        match injected {
            Ok(next) => {
                queue.succeeded(&());
                if let Some(next) = next {
                    queue.add_after((), next.saturating_duration_since(Instant::now()));
                }
            }
            Err(failure) => {
                let pause = queue.failed(());
                tracing::warn!(reason = failure.reason, error = failure.message, retry = ?pause, "bundle not injected");
            }
        }
    }
}

struct Injector {
    client: Client,
    wanting: Store<Name, Wanting>,
    bundle: Store<Name, Result<String, Invalid>>,
    /// Refused `ConfigMaps`, with the time of the next attempt.
    refused: BTreeMap<Name, Instant>,
    /// Recent writes, which another client may revert.
    contests: BTreeMap<Name, Contest>,
}

/// The change of a `ConfigMap`. With its UID, the API server does not create a deleted one again.
fn injected(name: &Name, bundle: &str, injection: &Injection) -> Value {
    let mut object = json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": { "name": name.name, "namespace": name.namespace, "uid": injection.uid },
        "data": { BUNDLE: bundle },
    });
    if injection.sets_component {
        object["metadata"]["annotations"] = json!({ OWNING_COMPONENT: COMPONENT });
    }
    object
}

/// True if the `ConfigMap` was deleted. Another one may have its name.
fn is_gone(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    match status.code {
        409 => status.message.contains("uid mismatch"),
        422 => status.message.contains("metadata.uid"),
        _ => false,
    }
}

/// A part of the digest, which tells bundles apart.
fn fingerprint(digest: &Digest) -> u64 {
    digest.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

/// True if the API server refuses this object alone. It may accept others.
fn is_refused(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    // The text of a missing right, which concerns all objects. Other refusals have this code too.
    let lacks_right = status.message.contains("cannot patch resource");
    (400..500).contains(&status.code) && !OF_ALL.contains(&status.code) && !lacks_right
}

impl Injector {
    /// Injects the bundle. Returns the time of the next attempt for `ConfigMaps` whose write is delayed.
    async fn inject(&mut self) -> Result<Option<Instant>, Failure> {
        let key = Name::new(BUNDLE_NAMESPACE, BUNDLE_NAME);
        let Some(bundle) = self.bundle.get(&key) else {
            // The bundle does not exist yet.
            return Ok(None);
        };
        let bundle = bundle.map_err(|error| {
            Failure::at_once(
                "InvalidInjectorConfig",
                format!(
                    "ConfigMap {BUNDLE_NAMESPACE}/{BUNDLE_NAME} holds no bundle of certificates: {error}"
                ),
            )
        })?;
        let digest = digest(&bundle);
        let (mut failures, mut delayed) = (Vec::new(), Vec::new());
        for name in self.wanting.keys() {
            let wanted = self.wanting.with(&name, |wanting| injection(wanting, &digest));
            let Some(injection) = wanted.flatten() else {
                continue;
            };
            let now = Instant::now();
            if let Some(retry_at) = self.retry_at(&name, &digest, now) {
                delayed.push(retry_at);
                continue;
            }
            match self.apply(&name, &bundle, &injection).await {
                Ok(()) => {
                    self.refused.remove(&name);
                    self.contests.entry(name).or_default().wrote(now);
                }
                // The watch reports its end, and the next ConfigMap of this name.
                Err(error) if is_gone(&error) => {}
                // Anybody can label a ConfigMap that cannot take the bundle, and must not stop the others.
                Err(error) if is_refused(&error) => {
                    let error = message(&error);
                    tracing::warn!(namespace = name.namespace, name = name.name, error, retry = ?LONGEST, "refused");
                    delayed.push(now + LONGEST);
                    self.refused.insert(name, now + LONGEST);
                }
                Err(error) => {
                    failures.push(format!("{}/{}: {}", name.namespace, name.name, message(&error)));
                }
            }
            if failures.len() > FAILURES {
                break;
            }
        }
        self.refused.retain(|name, _| self.wanting.contains(name));
        let now = Instant::now();
        self.contests
            .retain(|name, contest| self.wanting.contains(name) && !contest.is_over(now));
        if failures.is_empty() {
            return Ok(delayed.into_iter().min());
        }
        let text = format!(
            "cannot inject the bundle into ConfigMaps: {}",
            failures.join("; ")
        );
        Err(Failure::debounced("ConfigMapUpdateFailure", text))
    }

    /// The time of the next write to a `ConfigMap`, unless it may be written now.
    fn retry_at(&mut self, name: &Name, digest: &Digest, now: Instant) -> Option<Instant> {
        if let Some(retry_at) = self.refused.get(name).filter(|retry_at| **retry_at > now) {
            return Some(*retry_at);
        }
        let contest = self.contests.entry(name.clone()).or_default();
        let verdict = contest.ask(fingerprint(digest), now);
        if verdict == Verdict::Write {
            return None;
        }
        let retry = contest.left(now);
        // Once for each pause.
        if verdict == Verdict::Wait(None) {
            let opponent = "another client reverts each write of the bundle, retrying with back-off";
            tracing::warn!(namespace = name.namespace, name = name.name, ?retry, "{opponent}");
            contest.name(opponent.to_owned());
        }
        Some(now + retry)
    }

    async fn apply(&self, name: &Name, bundle: &str, injection: &Injection) -> Result<(), kube::Error> {
        let object = injected(name, bundle, injection);
        let applied = objects::apply(&self.client, &CONFIG_MAP, PART, &object).await?;
        self.wanting
            .put(name.clone(), objects::version(&applied), wanting(&applied));
        tracing::info!(namespace = name.namespace, name = name.name, "bundle injected");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kube::core::Status;

    use super::*;

    #[test]
    fn refusal_of_one_object_is_no_failure_of_all() {
        let error = |code: u16, message: &str| {
            kube::Error::Api(Box::new(Status::failure(message, "").with_code(code)))
        };
        for (code, message, expected) in [
            (422, "ConfigMap is immutable", true),
            (403, "admission webhook denied the request", true),
            (403, "User cannot patch resource \"configmaps\"", false),
            (401, "Unauthorized", false),
            (409, "conflict", false),
            (429, "too many requests", false),
            (500, "internal error", false),
        ] {
            assert_eq!(is_refused(&error(code, message)), expected, "{code} {message}");
        }
    }
}
