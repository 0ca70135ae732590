//! Injects the bundle of the cluster into all labelled `ConfigMaps` (§15.2).

use std::collections::BTreeMap;
use std::time::Duration;

use kube::Client;
use kube_kit::client::message;
use kube_kit::object::CONFIG_MAP;
use kube_kit::shutdown::Shutdown;
use kube_kit::watch::{Name, Options, Store, Waking, has_begun};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::{BUNDLE, COMPONENT, INJECT, Injection, OWNING_COMPONENT, Wanting, check, digest, injection};
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
const BEGINNING: Duration = Duration::from_millis(200);

/// The bundle in a `ConfigMap`.
pub(crate) fn bundle(object: &Value) -> Option<String> {
    Some(object["data"][BUNDLE].as_str()?.to_owned())
}

fn wanting(object: &Value) -> Wanting {
    Wanting {
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
            bundle,
        ),
        client,
        refused: BTreeMap::new(),
    };
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            () = queue.next() => {}
        }
        if !has_begun(&injector.wanting) || !has_begun(&injector.bundle) {
            queue.succeeded(&());
            queue.add_after((), BEGINNING);
            continue;
        }
        let failure = injector.inject().await.err();
        reports.set(Level::InjectorConfig, failure.as_ref());
        match failure {
            None => {
                queue.succeeded(&());
                if !injector.refused.is_empty() {
                    queue.add_after((), LONGEST);
                }
            }
            Some(failure) => {
                let pause = queue.failed(());
                tracing::warn!(reason = failure.reason, error = failure.message, retry = ?pause, "bundle not injected");
            }
        }
    }
}

struct Injector {
    client: Client,
    wanting: Store<Name, Wanting>,
    bundle: Store<Name, Option<String>>,
    /// Refused `ConfigMaps`, with the time of the next attempt.
    refused: BTreeMap<Name, Instant>,
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
    async fn inject(&mut self) -> Result<(), Failure> {
        let key = Name::new(BUNDLE_NAMESPACE, BUNDLE_NAME);
        let Some(bundle) = self.bundle.get(&key) else {
            // The bundle does not exist yet.
            return Ok(());
        };
        let bundle = bundle.unwrap_or_default();
        check(&bundle).map_err(|error| {
            Failure::at_once(
                "InvalidInjectorConfig",
                format!(
                    "ConfigMap {BUNDLE_NAMESPACE}/{BUNDLE_NAME} holds no bundle of certificates: {error}"
                ),
            )
        })?;
        let digest = digest(&bundle);
        let mut failures = Vec::new();
        for name in self.wanting.keys() {
            let wanted = self.wanting.with(&name, |wanting| injection(wanting, &digest));
            let Some(injection) = wanted.flatten() else {
                continue;
            };
            let is_early = self
                .refused
                .get(&name)
                .is_some_and(|retry_at| *retry_at > Instant::now());
            if is_early {
                continue;
            }
            match self.apply(&name, &bundle, &injection).await {
                Ok(()) => {
                    self.refused.remove(&name);
                }
                // Anybody can label a ConfigMap that cannot take the bundle, and must not stop the others.
                Err(error) if is_refused(&error) => {
                    let error = message(&error);
                    tracing::warn!(namespace = name.namespace, name = name.name, error, retry = ?LONGEST, "refused");
                    self.refused.insert(name, Instant::now() + LONGEST);
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
        if failures.is_empty() {
            return Ok(());
        }
        let text = format!(
            "cannot inject the bundle into ConfigMaps: {}",
            failures.join("; ")
        );
        Err(Failure::debounced("ConfigMapUpdateFailure", text))
    }

    async fn apply(&self, name: &Name, bundle: &str, injection: &Injection) -> Result<(), kube::Error> {
        let mut object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": name.name, "namespace": name.namespace },
            "data": { BUNDLE: bundle },
        });
        if injection.sets_component {
            object["metadata"]["annotations"] = json!({ OWNING_COMPONENT: COMPONENT });
        }
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
