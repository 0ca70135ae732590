//! Maintains the labels of the namespace of the host's network (§17.1).

use std::collections::BTreeMap;
use std::time::Duration;

use kube::Client;
use kube::api::{Patch, PatchParams};
use kube_kit::client::message;
use kube_kit::object::{INGRESS_CONTROLLER, NAMESPACE};
use kube_kit::queue::Queue;
use kube_kit::shutdown::Shutdown;
use kube_kit::watch::{Name, Options, Waking, has_begun};
use serde_json::Value;

use super::{is_on_host, patch};
use crate::objects::{self, text};

/// The default ingress controller.
const DEFAULT: (&str, &str) = ("openshift-ingress-operator", "default");
/// The namespace that represents the host's network in network policies.
const HOST_NETWORK: &str = "openshift-host-network";
const LONGEST: Duration = Duration::from_mins(3);
const BEGINNING: Duration = Duration::from_millis(200);

/// Maintains the labels until the shutdown. A cluster without ingress controllers is not changed.
pub async fn run(client: Client, shutdown: &Shutdown) {
    let queue = Queue::with_longest(LONGEST);
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
            () = queue.next() => {}
        }
        queue.succeeded(&());
        if !has_begun(&strategies) || !has_begun(&labels) {
            queue.add_after((), BEGINNING);
            continue;
        }
        let key = Name::new("", HOST_NETWORK);
        let (Some(known), Some(strategy)) = (labels.get(&key), strategies.get(&Name::new(namespace, name)))
        else {
            continue;
        };
        let Some(change) = patch(&known, is_on_host(&strategy)) else {
            continue;
        };
        let namespaces = objects::api(&client, &NAMESPACE, "");
        let patched = namespaces
            .patch(HOST_NETWORK, &PatchParams::default(), &Patch::Merge(&change))
            .await;
        if let Err(error) = patched {
            let pause = queue.failed(());
            tracing::warn!(namespace = HOST_NETWORK, error = message(&error), retry = ?pause, "cannot label");
        }
    }
}

fn labels(object: &Value) -> BTreeMap<String, String> {
    serde_json::from_value(object["metadata"]["labels"].clone()).unwrap_or_default()
}
