//! Watches with a delay, for tests of stale caches.

use axum::http::Request;
use kube::{Client, client::Body};
use tokio::sync::watch;
use tower::service_fn;

/// Holds the watches of a resource until the release: they report no events, but lists are answered. Clones share the
/// state.
#[derive(Clone, Debug)]
pub struct Hold {
    resource: &'static str,
    /// Part of the query of the held watches.
    query: &'static str,
    released: watch::Sender<bool>,
}

impl Hold {
    /// Returns a hold of the watches of this resource, such as `configmaps`. `v1/configmaps` means those of all
    /// namespaces alone.
    pub fn watches_of(resource: &'static str) -> Self {
        Self {
            resource,
            query: "",
            released: watch::Sender::new(false),
        }
    }

    /// Returns a hold of the watches of this resource that select by label.
    pub fn watches_by_label_of(resource: &'static str) -> Self {
        Self {
            query: "labelSelector=",
            ..Self::watches_of(resource)
        }
    }

    /// Releases the watches.
    pub fn release(&self) {
        self.released.send_replace(true);
    }

    /// Returns a client that sends its requests through `client`, and the held watches only after the release.
    pub fn client(self, client: Client) -> Client {
        let namespace = client.default_namespace().to_owned();
        let service = service_fn(move |request: Request<Body>| {
            let uri = request.uri();
            let is_watch = uri
                .query()
                .is_some_and(|query| query.contains("watch=true") && query.contains(self.query));
            let of_resource = uri.path().strip_suffix(self.resource);
            let is_held = is_watch && of_resource.is_some_and(|path| path.ends_with('/'));
            let (client, mut released) = (client.clone(), self.released.subscribe());
            async move {
                if is_held {
                    // An error means that every `Hold` was dropped, at the end of the test.
                    let _ = released.wait_for(|released| *released).await;
                }
                client.send(request).await
            }
        });
        Client::new(service, namespace)
    }
}
