//! Injects the bundle of the cluster into all labelled `ConfigMaps` (§15.2).

use std::collections::BTreeMap;
use std::time::Duration;

use kube::Client;
use kube_kit::client::message;
use kube_kit::object::CONFIG_MAP;
use kube_kit::shutdown::Shutdown;
use kube_kit::watch::{Name, Options, Store, Waking, has_begun};
use linux::backoff::Backoff;
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
/// Delay of the second write to a `ConfigMap`. It doubles with each further one.
const PAUSE: Duration = Duration::from_millis(100);
/// Time without a write to a `ConfigMap` after which the delay is [`PAUSE`] again.
const CALM: Duration = Duration::from_mins(10);
/// Number of writes to a `ConfigMap` after which the log names it.
const CONTESTED: u32 = 6;
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
        paces: BTreeMap::new(),
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
    bundle: Store<Name, Option<String>>,
    /// Written and refused `ConfigMaps`.
    paces: BTreeMap<Name, Pace>,
}

/// Time of the next write to a `ConfigMap`.
#[derive(Clone, Copy)]
struct Pace {
    /// Number of writes without [`CALM`] between them.
    writes: u32,
    last: Instant,
    next: Instant,
}

impl Pace {
    /// Delays the next write after a write. Another client may revert each of them.
    fn written(before: Option<&Self>, now: Instant) -> Self {
        let writes = match before {
            Some(before) if now < before.last + CALM => before.writes.saturating_add(1),
            _ => 1,
        };
        let next = now + Backoff::new(PAUSE, LONGEST).after(writes);
        Self {
            writes,
            last: now,
            next,
        }
    }

    fn refused(now: Instant) -> Self {
        Self {
            writes: 0,
            last: now,
            next: now + LONGEST,
        }
    }
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
        let (mut failures, mut delayed) = (Vec::new(), Vec::new());
        for name in self.wanting.keys() {
            let wanted = self.wanting.with(&name, |wanting| injection(wanting, &digest));
            let Some(injection) = wanted.flatten() else {
                continue;
            };
            let (now, pace) = (Instant::now(), self.paces.get(&name));
            if let Some(pace) = pace.filter(|pace| pace.next > now) {
                delayed.push(pace.next);
                continue;
            }
            match self.apply(&name, &bundle, &injection).await {
                Ok(()) => {
                    let pace = Pace::written(pace, now);
                    if pace.writes >= CONTESTED {
                        let retry = pace.next - now;
                        tracing::warn!(
                            namespace = name.namespace,
                            name = name.name,
                            ?retry,
                            "another client keeps reverting the bundle"
                        );
                    }
                    self.paces.insert(name, pace);
                }
                // Anybody can label a ConfigMap that cannot take the bundle, and must not stop the others.
                Err(error) if is_refused(&error) => {
                    let error = message(&error);
                    tracing::warn!(namespace = name.namespace, name = name.name, error, retry = ?LONGEST, "refused");
                    let pace = Pace::refused(now);
                    delayed.push(pace.next);
                    self.paces.insert(name, pace);
                }
                Err(error) => {
                    failures.push(format!("{}/{}: {}", name.namespace, name.name, message(&error)));
                }
            }
            if failures.len() > FAILURES {
                break;
            }
        }
        self.paces.retain(|name, _| self.wanting.contains(name));
        if failures.is_empty() {
            return Ok(delayed.into_iter().min());
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
    fn reverted_bundle_is_written_with_back_off() {
        let begin = Instant::now();
        let first = Pace::written(None, begin);
        assert_eq!(first.next, begin + PAUSE);
        let second = Pace::written(Some(&first), first.next);
        assert_eq!(second.next, first.next + PAUSE * 2);
        let mut pace = second;
        for _ in 0..20 {
            pace = Pace::written(Some(&pace), pace.next);
        }
        assert_eq!(pace.next, pace.last + LONGEST);
        let calm = pace.last + CALM;
        assert_eq!(Pace::written(Some(&pace), calm).next, calm + PAUSE);
        assert_eq!(Pace::refused(begin).next, begin + LONGEST);
    }

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
