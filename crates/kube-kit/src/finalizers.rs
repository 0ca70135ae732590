//! Removal of the finalizers of a controller that is gone. No other client removes them, and they block deletions.

use futures::stream::{self, StreamExt as _};
use kube::api::{ListParams, PostParams};
use kube::core::DynamicObject;
use kube::{Api, Client, ResourceExt as _};

use crate::object::Kind;
use crate::pages::Pages;
use crate::watch::Name;

/// Concurrent writes.
const WRITES: usize = 8;
/// Attempts to write an object that other clients write, too.
const ATTEMPTS: usize = 5;

/// The result of a removal.
#[derive(Debug, Default)]
pub struct Removed {
    /// Objects that had the finalizer, and do not have it any more.
    pub count: usize,
    /// Objects that still have the finalizer, with the cause.
    pub failures: Vec<(Name, kube::Error)>,
}

/// Removes a finalizer from all objects of a namespaced kind. A kind that is not served has no objects.
///
/// # Errors
/// If the objects cannot be listed.
pub async fn remove(client: &Client, kind: Kind, finalizer: &str) -> Result<Removed, kube::Error> {
    let resource = kind.api_resource();
    let mut removed = Removed::default();
    let mut pages = Pages::new(
        Api::<DynamicObject>::all_with(client.clone(), &resource),
        ListParams::default(),
    );
    loop {
        let page = match pages.next().await {
            Ok(Some(page)) => page,
            Ok(None) => return Ok(removed),
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(removed),
            Err(error) => return Err(error),
        };
        let held = page.into_iter().filter(|object| has(object, finalizer));
        let writes = held.map(|object| {
            let namespace = object.namespace().unwrap_or_default();
            let name = Name::new(&namespace, object.name_any());
            let api = Api::namespaced_with(client.clone(), &namespace, &resource);
            async move { (name, remove_from(&api, object, finalizer).await) }
        });
        let mut writes = stream::iter(writes).buffer_unordered(WRITES);
        while let Some((name, written)) = writes.next().await {
            match written {
                Ok(()) => removed.count += 1,
                Err(error) => removed.failures.push((name, error)),
            }
        }
    }
}

fn has(object: &DynamicObject, finalizer: &str) -> bool {
    object.finalizers().iter().any(|present| present == finalizer)
}

/// Removes the finalizer from an object, and keeps all other fields. A deleted object has none.
async fn remove_from(
    api: &Api<DynamicObject>,
    mut object: DynamicObject,
    finalizer: &str,
) -> Result<(), kube::Error> {
    let name = object.name_any();
    let mut attempts = 1;
    while has(&object, finalizer) {
        object.finalizers_mut().retain(|present| present != finalizer);
        match api.replace(&name, &PostParams::default(), &object).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
            // The object has changed since the read.
            Err(kube::Error::Api(status)) if status.code == 409 && attempts < ATTEMPTS => attempts += 1,
            Err(error) => return Err(error),
        }
        match api.get_opt(&name).await? {
            Some(live) => object = live,
            None => return Ok(()),
        }
    }
    Ok(())
}
