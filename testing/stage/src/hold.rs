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
    released: watch::Sender<bool>,
}

impl Hold {
    /// Returns a hold of the watches of this resource, such as `configmaps`.
    pub fn watches_of(resource: &'static str) -> Self {
        Self {
            resource,
            released: watch::Sender::new(false),
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
            let is_watch = uri.query().is_some_and(|query| query.contains("watch=true"));
            let is_held = is_watch && uri.path().rsplit('/').next() == Some(self.resource);
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
