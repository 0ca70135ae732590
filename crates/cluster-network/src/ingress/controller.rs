//! Maintains the labels of the namespace of the host's network (§17.1).

use std::collections::BTreeMap;
use std::time::Duration;

use kube::Client;
use kube::api::{Patch, PatchParams};
use kube_kit::client::message;
use kube_kit::object::{INGRESS_CONTROLLER, NAMESPACE};
use kube_kit::shutdown::Shutdown;
use kube_kit::watch::{Name, Options, Waking, has_begun};
use serde_json::Value;

use super::{is_on_host, patch};
use crate::objects::{self, text};
use crate::report::Reports;

/// The default ingress controller.
const DEFAULT: (&str, &str) = ("openshift-ingress-operator", "default");
/// The namespace that represents the host's network in network policies.
const HOST_NETWORK: &str = "openshift-host-network";
const LONGEST: Duration = Duration::from_mins(3);

/// Maintains the labels until the shutdown. A cluster without ingress controllers is not changed.
pub async fn run(client: Client, reports: &Reports, shutdown: &Shutdown) {
    let queue = reports.queue("ingressconfig", LONGEST);
    queue.add(());
    let mut watches = Waking::new(client.clone(), &queue);
    let (namespace, name) = DEFAULT;
    let default = Options::all().named(name);
    let host = Options::all().named(HOST_NETWORK);
    let strategies = watches.start(&INGRESS_CONTROLLER, Some(namespace), &default, (), |object| {
        text(object, "/status/endpointPublishingStrategy/type").to_owned()
    });
    let labels = watches.start(&NAMESPACE, None, &host, (), labels);
    loop {
        tokio::select! {
            () = shutdown.wait() => return,
            () = queue.next_when(|| has_begun(&strategies) && has_begun(&labels)) => {}
        }
        let known = labels.get(&Name::new("", HOST_NETWORK));
        let strategy = strategies.get(&Name::new(namespace, name));
        let change = known
            .zip(strategy)
            .and_then(|(known, strategy)| patch(&known, is_on_host(&strategy)));
        let Some(change) = change else {
            queue.succeeded(&());
            continue;
        };
        let namespaces = objects::api(&client, &NAMESPACE, "");
        let patched = namespaces
            .patch(HOST_NETWORK, &PatchParams::default(), &Patch::Merge(&change))
            .await;
        match patched {
            Ok(_) => queue.succeeded(&()),
            Err(error) => {
                let pause = queue.failed(());
                tracing::warn!(namespace = HOST_NETWORK, error = message(&error), retry = ?pause, "cannot label");
            }
        }
    }
}

fn labels(object: &Value) -> BTreeMap<String, String> {
    serde_json::from_value(object["metadata"]["labels"].clone()).unwrap_or_default()
}
