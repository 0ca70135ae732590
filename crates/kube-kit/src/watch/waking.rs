//! Watches whose changes wake a queue, of objects from which only some values are kept.

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
    /// Wakes this queue.
    pub fn new(client: Client, queue: &Queue<Key>) -> Self {
        Self {
            client,
            queue: queue.clone(),
            tasks: JoinSet::new(),
        }
    }

    /// Watches objects of a kind, in one namespace or in all. `read` keeps of an object what its reader needs; after each
    /// change there is work on `key`.
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
            // What was read as an object is one again.
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

/// Whether a watch has told what there is, which may be that its kind is not served.
pub fn has_begun<T>(store: &Store<Name, T>) -> bool {
    store.is_synced() || store.trouble(Duration::ZERO) == Some(Trouble::NotServed)
}
