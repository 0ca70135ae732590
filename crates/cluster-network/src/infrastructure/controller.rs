//! Writes the addresses of an on-premises `Infrastructure` (§18.4).

use std::time::Duration;

use api::cluster_network::SINGLETON;
use kube::Client;
use kube::api::{Patch, PatchParams};
use kube_kit::client::message;
use kube_kit::object::OPENSHIFT_INFRASTRUCTURE;
use kube_kit::shutdown::Shutdown;
use kube_kit::watch::{Name, Options, Store, Waking, has_begun};
use serde_json::{Value, json};

use super::changes;
use crate::messages::infrastructure as messages;
use crate::names::manager;
use crate::objects;
use crate::report::{Failure, Level, Reports};

const LONGEST: Duration = Duration::from_mins(5);

/// Synchronises the addresses until the shutdown. A cluster without an `Infrastructure` is not changed.
pub async fn run(client: Client, reports: &Reports, shutdown: &Shutdown) {
    let queue = reports.queue("infrastructureconfig", LONGEST);
    queue.add(());
    let mut watches = Waking::new(client.clone(), &queue);
    let one = Options::all().named(SINGLETON);
    let store = watches.start(&OPENSHIFT_INFRASTRUCTURE, None, &one, (), Value::clone);
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            () = queue.next_when(|| has_begun(&store)) => {}
        }
        let failure = synchronise(&client, &store).await.err();
        reports.set(Level::InfrastructureConfig, failure.as_ref());
        match failure {
            Some(failure) if failure.is_debounced => {
                let pause = queue.failed(());
                tracing::warn!(error = failure.message, retry = ?pause, "infrastructure not written");
            }
            Some(failure) => {
                tracing::warn!(error = failure.message, "infrastructure not synchronised");
                // The watch reports the correction.
                queue.succeeded(&());
            }
            None => queue.succeeded(&()),
        }
    }
}

async fn synchronise(client: &Client, store: &Store<Name, Value>) -> Result<(), Failure> {
    let Some(mut live) = store.get(&Name::new("", SINGLETON)) else {
        return Ok(());
    };
    let changes = changes(&live).map_err(|error| {
        Failure::at_once(
            "SyncInfrastructureSpecAndStatus",
            messages::not_synchronised(&error),
        )
    })?;
    if let Some(spec) = changes.spec {
        let written = write(client, store, &live, json!({ "spec": spec }), false).await;
        live = written.map_err(|error| {
            let error = messages::spec_not_written(&error);
            Failure::debounced("UpdateInfrastructureSpecOrStatus", error)
        })?;
    }
    if let Some(status) = changes.status {
        let written = write(client, store, &live, json!({ "status": status }), true).await;
        written.map_err(|error| {
            Failure::debounced("UpdateInfrastructureStatus", messages::status_not_written(&error))
        })?;
    }
    Ok(())
}

/// Sends a merge patch. The API server refuses it if another client has written since `live`.
async fn write(
    client: &Client,
    store: &Store<Name, Value>,
    live: &Value,
    mut patch: Value,
    is_status: bool,
) -> Result<Value, String> {
    patch["metadata"] = json!({ "resourceVersion": objects::version(live) });
    let api = objects::api(client, &OPENSHIFT_INFRASTRUCTURE, "");
    let params = PatchParams {
        field_manager: Some(manager::INFRASTRUCTURE.to_owned()),
        ..PatchParams::default()
    };
    let patch = Patch::Merge(&patch);
    let written = if is_status {
        api.patch_status(SINGLETON, &params, &patch).await
    } else {
        api.patch(SINGLETON, &params, &patch).await
    };
    let written = written.map_err(|error| message(&error))?;
    let written = serde_json::to_value(written).map_err(|error| error.to_string())?;
    store.put(
        Name::new("", SINGLETON),
        objects::version(&written),
        written.clone(),
    );
    tracing::info!(is_status, "addresses of the infrastructure synchronised");
    Ok(written)
}
