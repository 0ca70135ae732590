//! Reconciles the Secrets and the `ConfigMap` of each `OperatorPKI` (§17.4).

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use k8s_openapi::ByteString;
use kube::Client;
use kube_kit::client::message;
use kube_kit::object::{CONFIG_MAP, Kind, SECRET};
use kube_kit::shutdown::Shutdown;
use kube_kit::watch::{self, Change, DeserializeGuard, Name, Options};
use serde_json::{Value, json};
use webhook::certificates::Pair;

use api::operator_pki::OperatorPKI;

use super::{Found, Next, next};
use crate::objects;
use crate::report::{Failure, Level, Reports};

/// Interval of reconciliations. The operator does not watch the Secrets and `ConfigMap`s, which are in namespaces of
/// other components.
const RESYNC: Duration = Duration::from_mins(5);
const LONGEST: Duration = Duration::from_mins(5);
/// Suffix of the field manager.
const PART: &str = "pki";
const CERTIFICATE: &str = "tls.crt";
const KEY: &str = "tls.key";
const BUNDLE: &str = "ca-bundle.crt";

/// Cached fields of an `OperatorPKI`.
#[derive(Clone, Debug)]
struct RequestedCertificate {
    common_name: String,
    uid: String,
}

/// Reconciles until the shutdown.
pub async fn run(client: Client, reports: &Reports, shutdown: &Shutdown) {
    let requests: kube::Api<DeserializeGuard<OperatorPKI>> = kube::Api::all(client.clone());
    let mut watch = watch::start_named(requests, &Options::all(), |pki: OperatorPKI| {
        RequestedCertificate {
            common_name: pki.spec.target_cert.common_name,
            uid: pki.metadata.uid.unwrap_or_default(),
        }
    });
    let store = watch.store();
    let queue = reports.queue("pki", LONGEST);
    // A deleted or repaired OperatorPKI must not hide the failure of another one.
    let mut failures: BTreeMap<Name, String> = BTreeMap::new();
    loop {
        let name = tokio::select! {
            () = shutdown.wait() => return,
            change = watch.next() => {
                match change {
                    Some(Change::Applied(name) | Change::Deleted(name)) => queue.add(name),
                    Some(Change::Invalid(..) | Change::Synced) => {}
                    // The watch never ends by itself.
                    None => return,
                }
                continue;
            }
            name = queue.next() => name,
        };
        let Some(requested) = store.get(&name) else {
            failures.remove(&name);
            reports.set(Level::PkiConfig, failure(&failures).as_ref());
            queue.succeeded(&name);
            continue;
        };
        match keep(&client, &name, &requested).await {
            Ok(()) => {
                failures.remove(&name);
                queue.succeeded(&name);
                queue.add_after(name, RESYNC);
            }
            Err(error) => {
                let text = format!(
                    "could not reconcile OperatorPKI {}/{}: {error}",
                    name.namespace, name.name
                );
                let pause = queue.failed(name.clone());
                tracing::warn!(error = text, retry = ?pause, "certificates not kept");
                failures.insert(name, text);
            }
        }
        reports.set(Level::PkiConfig, failure(&failures).as_ref());
    }
}

/// The failure of all `OperatorPKI`s together.
fn failure(failures: &BTreeMap<Name, String>) -> Option<Failure> {
    let texts: Vec<&str> = failures.values().map(String::as_str).collect();
    (!texts.is_empty()).then(|| Failure::debounced("PKIError", texts.join("; ")))
}

async fn keep(client: &Client, name: &Name, requested: &RequestedCertificate) -> Result<(), String> {
    let of = |what: &str| format!("{}-{what}", name.name);
    let (authority, certificate) = (of("ca"), of("cert"));
    let known_authority = read(client, &SECRET, &name.namespace, &authority).await?;
    let known_certificate = read(client, &SECRET, &name.namespace, &certificate).await?;
    let bundle = read(client, &CONFIG_MAP, &name.namespace, &authority).await?;
    let found = Found {
        authority: known_authority.as_ref().map(pair),
        bundle: bundle
            .and_then(|map| Some(map["data"][BUNDLE].as_str()?.to_owned()))
            .unwrap_or_default(),
        certificate: known_certificate.as_ref().map(pair),
    };
    let owner = format!("{}_{}", name.namespace, name.name);
    let common_name = requested.common_name.clone();
    // Generating keys takes a while, and would block the only thread of the runtime.
    let issued = tokio::task::spawn_blocking(move || next(&found, &owner, &common_name, SystemTime::now()));
    let issued = issued.await.map_err(|error| error.to_string())?;
    let issued = issued.map_err(|error| error.to_string())?;
    if issued.is_nothing() {
        return Ok(());
    }
    let Next {
        authority: new_authority,
        bundle,
        certificate: new_certificate,
    } = issued;
    let owners = json!([{
        "apiVersion": "network.operator.openshift.io/v1", "kind": "OperatorPKI", "name": name.name, "uid": requested.uid,
        "controller": true, "blockOwnerDeletion": true,
    }]);
    let metadata =
        |object: &str| json!({ "name": object, "namespace": name.namespace, "ownerReferences": owners });
    let write = |kind: Kind, object: Value| async move {
        let applied = objects::apply(client, &kind, PART, &object).await;
        applied.map(drop).map_err(|error| message(&error))
    };
    if let Some(new) = &new_authority {
        let object = secret_object(&metadata(&authority), new, known_authority.as_ref());
        write(SECRET, object).await?;
    }
    if let Some(bundle) = bundle {
        let object = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata(&authority), "data": { BUNDLE: bundle },
        });
        write(CONFIG_MAP, object).await?;
    }
    if let Some(new) = &new_certificate {
        let object = secret_object(&metadata(&certificate), new, known_certificate.as_ref());
        write(SECRET, object).await?;
    }
    tracing::info!(
        namespace = name.namespace,
        name = name.name,
        authority = new_authority.is_some(),
        certificate = new_certificate.is_some(),
        "certificates issued"
    );
    Ok(())
}

async fn read(client: &Client, kind: &Kind, namespace: &str, name: &str) -> Result<Option<Value>, String> {
    let found = objects::api(client, kind, namespace).get_opt(name).await;
    let found = found.map_err(|error| message(&error))?;
    Ok(found.and_then(|object| serde_json::to_value(object).ok()))
}

/// Certificate and key of a Secret.
fn pair(secret: &Value) -> Pair {
    let part = |key: &str| {
        serde_json::from_value(secret["data"][key].clone())
            .map_or_else(|_| Vec::new(), |ByteString(bytes)| bytes)
    };
    Pair {
        certificate: part(CERTIFICATE),
        key: part(KEY),
    }
}

/// A Secret with this pair, and with the type of a live Secret: the type is immutable.
fn secret_object(metadata: &Value, pair: &Pair, live: Option<&Value>) -> Value {
    let kind = live.and_then(|live| live["type"].as_str());
    json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": metadata,
        "type": kind.unwrap_or("kubernetes.io/tls"),
        "data": {
            CERTIFICATE: ByteString(pair.certificate.clone()),
            KEY: ByteString(pair.key.clone()),
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_names_every_pki_that_failed() {
        let mut failures = BTreeMap::new();
        assert_eq!(failure(&failures), None);
        failures.insert(Name::new("ns", "a"), "no a".to_owned());
        failures.insert(Name::new("ns", "b"), "no b".to_owned());
        let found = failure(&failures).expect("a failure");
        assert_eq!((found.reason, found.message.as_str()), ("PKIError", "no a; no b"));
    }
}
