//! Watches that wake a queue, and keep only some values of their objects.

use kube::Client;
use kube::api::Api;
use kube::core::DynamicObject;
use serde_json::Value;
use std::time::Duration;
use tokio::task::JoinSet;

use super::{DeserializeGuard, Name, Options, Store, Trouble, start_named};
use crate::object::Kind;
use crate::queue::Queue;

/// Starts watches. They end when it is dropped.
pub struct Waking<Key> {
    client: Client,
    queue: Queue<Key>,
    tasks: JoinSet<()>,
}

impl<Key: Ord + Clone + Send + 'static> Waking<Key> {
    /// Makes a starter of watches that wake this queue.
    pub fn new(client: Client, queue: &Queue<Key>) -> Self {
        Self {
            client,
            queue: queue.clone(),
            tasks: JoinSet::new(),
        }
    }

    /// Watches objects of a kind, in one namespace or in all. `read` returns the needed values of an object; each
    /// change adds `key` to the queue.
    pub fn start<T: Send + 'static>(
        &mut self,
        kind: &Kind,
        namespace: Option<&str>,
        options: &Options,
        key: Key,
        read: impl Fn(&Value) -> T + Send + 'static,
    ) -> Store<Name, T> {
        let resource = kind.api_resource();
        let api: Api<DeserializeGuard<DynamicObject>> = match namespace {
            Some(namespace) if kind.namespaced => {
                Api::namespaced_with(self.client.clone(), namespace, &resource)
            }
            _ => Api::all_with(self.client.clone(), &resource),
        };
        let mut watch = start_named(api, options, move |object| {
            // The object was parsed from JSON, so its serialization cannot fail.
            read(&serde_json::to_value(&object).unwrap_or_default())
        });
        let store = watch.store();
        let queue = self.queue.clone();
        self.tasks.spawn(async move {
            while watch.next().await.is_some() {
                queue.add(key.clone());
            }
        });
        store
    }
}

/// Whether the first list of a watch is complete, or its kind is not served.
pub fn has_begun<T>(store: &Store<Name, T>) -> bool {
    store.is_synced() || store.trouble(Duration::ZERO) == Some(Trouble::NotServed)
}
