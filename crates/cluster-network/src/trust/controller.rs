//! Injects the bundle of the cluster into all labelled `ConfigMaps` (§15.2).

use std::time::Duration;

use kube::Client;
use kube_kit::client::message;
use kube_kit::object::CONFIG_MAP;
use kube_kit::shutdown::Shutdown;
use kube_kit::watch::{Name, Options, Store, Waking, has_begun};
use serde_json::{Value, json};

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
    let injector = Injector {
        wanting: watches.start(&CONFIG_MAP, None, &labelled, (), wanting),
        bundle: watches.start(
            &CONFIG_MAP,
            Some(BUNDLE_NAMESPACE),
            &Options::all().named(BUNDLE_NAME),
            (),
            bundle,
        ),
        client,
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
            None => queue.succeeded(&()),
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
}

impl Injector {
    async fn inject(&self) -> Result<(), Failure> {
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
            if let Err(error) = self.apply(&name, &bundle, &injection).await {
                failures.push(format!("{}/{}: {error}", name.namespace, name.name));
            }
            if failures.len() > FAILURES {
                break;
            }
        }
        if failures.is_empty() {
            return Ok(());
        }
        let text = format!(
            "cannot inject the bundle into ConfigMaps: {}",
            failures.join("; ")
        );
        Err(Failure::debounced("ConfigMapUpdateFailure", text))
    }

    async fn apply(&self, name: &Name, bundle: &str, injection: &Injection) -> Result<(), String> {
        let mut object = json!({
            "apiVersion": "v1", "kind": "ConfigMap",
            "metadata": { "name": name.name, "namespace": name.namespace },
            "data": { BUNDLE: bundle },
        });
        if injection.sets_component {
            object["metadata"]["annotations"] = json!({ OWNING_COMPONENT: COMPONENT });
        }
        let applied = objects::apply(&self.client, &CONFIG_MAP, PART, &object).await;
        let applied = applied.map_err(|error| message(&error))?;
        self.wanting
            .put(name.clone(), objects::version(&applied), wanting(&applied));
        tracing::info!(namespace = name.namespace, name = name.name, "bundle injected");
        Ok(())
    }
}
